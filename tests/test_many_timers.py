"""Very many deliveries in flight and delayed messages, and a kill in between: none is lost, early or very late."""

from __future__ import annotations

import contextlib
import itertools
import random
import select
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from depth import by_depth, choices, rounds
from protocols.conversation import ROUND_ROBIN, Client
from served import ServedBroker, serving, wait_until
from tmqp_peer import ACCEPTED, ACKNOWLEDGE, JOIN, PING_FRAME, PONG_FRAME, QUEUE, SERVER, RawFrame, TmqpPeer

COUNT = rounds("TIMERS", quick=3000, full=1_000_000)
"""Messages."""
HOUR = 3600.0
TIMEOUTS = {
    1: (by_depth(0.3, 1.0), 0.01),
    2: (by_depth(0.7, 10.0), 0.05),
    3: (by_depth(1.5, 30.0), 0.1),
    4: (HOUR, 0.84),
}
"""The acknowledge timeout of each queue in seconds, and its share of the messages."""
WATCH_SECONDS = by_depth(2.0, 45.0)
"""Time in which deliveries time out, before and after the kill."""
DELAYS = (0.001, by_depth(2.0, 60.0))
"""The shortest and the longest delay of messages that are due during the test."""
LATE_SECONDS = 10.0
"""How late a busy machine may be."""
BATCH = 500
PART_OF_DELAYED = by_depth(0.5, 0.2)
"""The share of delayed messages that are due during the test. The others are due in an hour."""

_HEAD = struct.Struct("<BBBBBHB")


class Wire:
    """A connection that is read and written without ever waiting for the other side."""

    def __init__(self, broker: ServedBroker) -> None:
        self._peer = TmqpPeer(*broker.address)
        assert self._peer.hello().content_type == ACCEPTED
        self._buffer = bytearray()
        self._output = bytearray()
        self.confirmed = 0
        """Confirmations of what was published here."""

    def join(self, channel: str) -> None:
        """Receive the messages of the channel from now on."""
        self.send(RawFrame(kind=SERVER, id=b"join", target=channel.encode(), content_type=JOIN).encode())

    def send(self, data: bytes) -> None:
        """Send it, now or with a later call of `receive`."""
        self._output += data

    @property
    def unsent(self) -> int:
        """Bytes that are not sent yet."""
        return len(self._output)

    def receive(self, wait: float = 0.0) -> Iterator[tuple[int, bytes, bytes]]:
        """Queue, id and body of each message that has arrived."""
        stream = self._peer.socket
        stream.setblocking(False)
        try:
            wanted = [stream] if self._output else []
            readable, writable, _ = select.select([stream], wanted, [], wait)
            if writable:
                del self._output[: stream.send(self._output[: 1 << 20])]
            if readable:
                part = stream.recv(1 << 20)
                assert part, "the broker closed the connection"
                self._buffer += part
        except BlockingIOError:
            pass
        yield from self._frames()

    def _frames(self) -> Iterator[tuple[int, bytes, bytes]]:
        buffer, at = bytes(self._buffer), 0
        while len(buffer) - at >= 8:
            first, second, name, source, target, queue, size = _HEAD.unpack_from(buffer, at)
            if buffer[at : at + 8] == PING_FRAME:
                self._output += PONG_FRAME
                at += 8
                continue
            start = at + 8 + name + source + target
            if second & 0x20:
                if len(buffer) < start + 2:
                    break
                start += 2 + int.from_bytes(buffer[start : start + 2], "little")
            if len(buffer) < start + size:
                break
            assert size < 253, "bodies of this test are short"
            if first & 0x3F == QUEUE:
                yield queue, buffer[at + 8 : at + 8 + name], buffer[start : start + size]
            self.confirmed += first & 0x3F == ACKNOWLEDGE
            at = start + size
        del self._buffer[:at]

    def close(self) -> None:
        """Close the connection."""
        self._peer.close()


def published(channel: str, queue: int, number: int, delay: float | None = None) -> bytes:
    headers = [] if delay is None else [("Mqcore-Delay", str(round(delay * 1000)))]
    return RawFrame(
        kind=QUEUE,
        id=b"%x" % number,
        target=channel.encode(),
        content_type=queue,
        headers=headers,
        payload=b"%d" % number,
        pending_acknowledge=True,
    ).encode()


def create(broker: ServedBroker, channel: str, timeouts: dict[int, float]) -> None:
    """Create saving queues with these acknowledge timeouts."""
    with Client(*broker.address) as client:
        client.hello()
        for queue, timeout in timeouts.items():
            client.create_queue(
                channel, queue, Status=ROUND_ROBIN, RequestAcknowledge=True, AcknowledgeTimeout=round(timeout * 1000),
                MessageDeliveryHandler="at-least-once", RetryDelay=0, PutBackLimit=65535,
            )  # fmt: skip


class Watched:
    """When each message was delivered, and whether that was early or late."""

    def __init__(self, timeouts: dict[int, float], queue_of: list[int]) -> None:
        self._timeouts = timeouts
        self._queue_of = queue_of
        self._since: dict[int, float] = {}
        """The time before which the broker cannot have delivered it for the first time."""
        self._deliveries: dict[int, tuple[int, float]] = {}
        """How often it was delivered, and when last."""
        self.latest = 0.0
        """How much later than its timeout the latest redelivery came."""
        self.redelivered = 0

    def begin(self, number: int, at: float) -> None:
        """From now on, the broker may deliver it."""
        self._since[number] = at

    def restart(self, at: float) -> None:
        """All timers begin again."""
        self._since = dict.fromkeys(self._since, at)
        self._deliveries.clear()

    def __len__(self) -> int:
        return len(self._deliveries)

    def deliver(self, number: int, queue: int, at: float) -> None:
        """Check and record a delivery."""
        assert queue == self._queue_of[number]
        count, last = self._deliveries.get(number, (0, 0.0))
        timeout = self._timeouts[queue]
        assert at >= self._since[number] + count * timeout, f"message {number} is early, after {count} deliveries"
        if count:
            self.redelivered += 1
            self.latest = max(self.latest, at - last - timeout)
        self._deliveries[number] = (count + 1, at)

    def check_all_redelivered(self, now: float) -> None:
        """Each message whose timeout has long passed was delivered again."""
        for number, (count, last) in self._deliveries.items():
            timeout = self._timeouts[self._queue_of[number]]
            assert now - last <= timeout + LATE_SECONDS, f"message {number} is late, after {count} deliveries"


def queues_of_messages(chance: random.Random) -> list[int]:
    shares = [share for _, share in TIMEOUTS.values()]
    return chance.choices(list(TIMEOUTS), shares, k=COUNT)


def publish_all(wire: Wire, frames: Iterator[bytes], deliver: Callable[[Wire], None]) -> None:
    """Publish in batches, read meanwhile, and wait for all confirmations."""
    sent = 0
    while batch := list(itertools.islice(frames, BATCH)):
        wire.send(b"".join(batch))
        sent += len(batch)
        while wire.unsent or wire.confirmed < sent - 20 * BATCH:
            deliver(wire)
    deadline = time.monotonic() + 60
    while wire.confirmed < sent:
        deliver(wire)
        assert time.monotonic() < deadline, f"{sent - wire.confirmed} messages were not confirmed"


@pytest.mark.timeout(by_depth(60, 1200))
def test_deliveries_that_time_out_return_in_time_also_after_a_kill(tmp_path: Path) -> None:
    queue_of = queues_of_messages(choices(__name__))
    timeouts = {queue: seconds for queue, (seconds, _) in TIMEOUTS.items()}
    watched = Watched(timeouts, queue_of)
    arguments = ("--data-dir", str(tmp_path / "data"))

    def frames() -> Iterator[bytes]:
        for number, queue in enumerate(queue_of):
            watched.begin(number, time.monotonic())
            yield published("work", queue, number)

    def watch(wire: Wire) -> None:
        received = list(wire.receive(0.2))
        now = time.monotonic()
        for queue, _, body in received:
            watched.deliver(int(body), queue, now)

    def watch_all(wire: Wire) -> None:
        deadline = time.monotonic() + 120
        while len(watched) < COUNT:
            watch(wire)
            assert time.monotonic() < deadline, f"{COUNT - len(watched)} messages were not delivered"

    with serving(*arguments) as broker, contextlib.closing(Wire(broker)) as wire:
        create(broker, "work", timeouts)
        wire.join("work")
        publish_all(wire, frames(), watch)
        watch_all(wire)
        end = time.monotonic() + WATCH_SECONDS
        while time.monotonic() < end:
            watch(wire)
        watched.check_all_redelivered(time.monotonic())
        assert watched.redelivered
        broker.process.kill()
        broker.process.wait()
    timed_out, started = watched.redelivered, time.monotonic()
    with serving(*arguments) as broker, contextlib.closing(Wire(broker)) as wire:
        ready = time.monotonic() - started
        watched.restart(time.monotonic())
        wire.join("work")
        watch_all(wire)
        deadline = time.monotonic() + LATE_SECONDS + timeouts[1]
        while watched.redelivered == timed_out:
            watch(wire)
            assert time.monotonic() < deadline, "nothing times out after the restart"
    print(
        f"{COUNT} deliveries in flight: {watched.redelivered} timed out, the latest {watched.latest:.3f} s late; "
        f"ready {ready:.1f} s after the kill, none lost"
    )
    assert watched.latest <= LATE_SECONDS


@pytest.mark.timeout(by_depth(60, 1200))
def test_delayed_messages_come_in_time_also_after_a_kill(tmp_path: Path) -> None:
    chance = choices(f"{__name__} delays")
    low, high = DELAYS
    arguments = ("--data-dir", str(tmp_path / "data"))
    due: dict[int, float] = {}
    delivered: set[int] = set()
    latest = 0.0
    is_after_kill = False

    def frames() -> Iterator[bytes]:
        for number in range(COUNT):
            soon = chance.random() < PART_OF_DELAYED
            delay = low * (high / low) ** chance.random() if soon else HOUR
            if soon:
                # The broker rounds to milliseconds, as the frame does.
                due[number] = time.monotonic() + round(delay * 1000) / 1000
            yield published("later", 1, number, delay)

    def watch(wire: Wire) -> None:
        nonlocal latest
        received = list(wire.receive(0.2))
        now = time.monotonic()
        for queue, name, body in received:
            number = int(body)
            assert number in due, "a message that is due in an hour"
            # The clock of the system, by which a broker that starts again continues, may differ a little.
            assert now >= due[number] - 0.01, f"message {number} is early"
            if number not in delivered and (not is_after_kill or due[number] > restarted):
                latest = max(latest, now - due[number])
            delivered.add(number)
            wire.send(RawFrame(kind=ACKNOWLEDGE, id=name, target=b"later", content_type=queue).encode())

    with serving(*arguments) as broker, contextlib.closing(Wire(broker)) as wire:
        create(broker, "later", {1: HOUR})
        wire.join("later")
        publish_all(wire, frames(), watch)
        while len(delivered) < len(due) * 2 // 3:
            watch(wire)
        broker.process.kill()
        broker.process.wait()
    before = len(delivered)
    with serving(*arguments) as broker, contextlib.closing(Wire(broker)) as wire:
        is_after_kill, restarted = True, time.monotonic()
        wire.join("later")
        deadline = time.monotonic() + high + 60
        while len(delivered) < len(due):
            watch(wire)
            assert time.monotonic() < deadline, f"{len(due) - len(delivered)} messages are lost"
        with Client(*broker.address) as client:
            client.hello()

            def rest() -> int:
                watch(wire)
                return int(client.queue("later", 1)["Messages"])

            wait_until(lambda: rest() == COUNT - len(due), what="only messages that are due in an hour are left")
    print(
        f"{COUNT} delayed messages, {len(due)} due within {high} s: {before} came before the kill, all in the end; "
        f"the latest {latest:.3f} s late"
    )
    assert latest <= LATE_SECONDS
