"""Readers that stop: a broadcast queue drops what they miss and disconnects them; other readers lose nothing."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from depth import FULL, by_depth
from hostile.crowd import Usage, is_open, processor_seconds, raise_descriptor_limit
from metrics import metric
from protocols.conversation import BROADCAST, JOIN, OK, Client
from served import ServedBroker, serving, wait_until
from test_unfinished_input import endpoint
from tmqp_peer import QUEUE, RawFrame

FAST, STOPPED = by_depth(12, 1000), by_depth(3, 50)
BODY = by_depth(64 << 10, 1 << 10)
"""Bytes of a message."""
MESSAGES = by_depth(240, 15_000)
"""Messages that fill the buffers of a connection: those of the system have 4 MiB and more."""
MEASURED = by_depth(40, 5000)
"""Messages whose rate is measured."""
WINDOW = by_depth(8, 100)
"""Messages that the slowest of the fast readers may be behind, so that a busy machine does not make them slow.
At most an eighth of what may wait for a connection.
"""
OUTPUT_BYTES = by_depth(4 << 20, 8 << 20)
"""Bytes that may wait for a connection; 8 MiB is the default."""
TIMEOUT_SECONDS = by_depth(1, 30)
"""Time after which a reader that accepts nothing is disconnected; 30 s is the default."""
FACTOR = 1.4
"""The processor time that a broadcast beside stopped readers may take, in that without them."""
MARGIN = 64 << 20
"""Memory for other things: buffers of the fast readers, and what allocators keep."""


@pytest.fixture
def broker() -> Iterator[ServedBroker]:
    environment = {
        "MQCORE_OUTPUT_BYTES_MAX": str(OUTPUT_BYTES),
        "MQCORE_SLOW_CONSUMER_TIMEOUT": f"{TIMEOUT_SECONDS}s",
    }
    with serving("--admin", "http://127.0.0.1:0", environment=environment) as running:
        yield running


def join(broker: ServedBroker, stack: ExitStack) -> Client:
    peer = Client(*endpoint(broker, "tmqp"))
    stack.callback(peer.close)
    peer.hello()
    assert peer.ask(JOIN, "news").content_type == OK
    return peer


class Readers:
    """Connections that are read all the time, and the bytes that each received."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self.received = {peer.fileno(): 0 for peer in sockets}
        self._sockets = {peer.fileno(): peer for peer in sockets}
        self._poll = select.epoll()
        for peer in sockets:
            peer.setblocking(False)
            self._poll.register(peer, select.EPOLLIN)

    def read(self, seconds: float) -> None:
        """Read what has come, or what comes in a moment."""
        for number, _ in self._poll.poll(seconds):
            part = self._sockets[number].recv(1 << 20)
            assert part, "a fast reader was disconnected"
            self.received[number] += len(part)

    def read_until(self, size: int) -> None:
        """Read until each of them has received so many bytes."""
        deadline = time.monotonic() + 60
        while min(self.received.values()) < size:
            self.read(1.0)
            assert time.monotonic() < deadline, "a fast reader lost messages"

    def close(self) -> None:
        self._poll.close()


FRAME = RawFrame(kind=QUEUE, id=b"m", target=b"news", payload=b"x" * BODY).encode()


def broadcast(producer: Client, readers: Readers, size: int, count: int) -> float:
    """Publish so many messages, which have this size at a reader; messages a second."""
    (start,) = set(readers.received.values())
    began = time.monotonic()
    for sent in range(0, count, WINDOW // 2):
        producer.socket.sendall(FRAME * (WINDOW // 2))
        readers.read_until(start + max(0, sent - WINDOW // 2) * size)
    readers.read_until(start + count * size)
    seconds = time.monotonic() - began
    assert set(readers.received.values()) == {start + count * size}, "each received each message once"
    return count / seconds


def measure(broker: ServedBroker, producer: Client, readers: Readers, size: int) -> tuple[float, float]:
    """Publish to all readers; messages a second, and the broker's processor time of a thousand messages."""
    began = processor_seconds(broker.process.pid)
    rate = broadcast(producer, readers, size, MEASURED)
    return rate, (processor_seconds(broker.process.pid) - began) * 1000 / MEASURED


@pytest.mark.timeout(by_depth(60, 600))
def test_stopped_readers_of_a_broadcast_cost_others_nothing(broker: ServedBroker) -> None:
    raise_descriptor_limit()
    with ExitStack() as stack:
        producer = Client(*endpoint(broker, "tmqp"), timeout=60.0)
        stack.callback(producer.close)
        producer.hello()
        producer.create_queue("news", 0, Status=BROADCAST)
        first = join(broker, stack)
        producer.socket.sendall(FRAME)
        assert first.receive().payload == b"x" * BODY
        size = len(first.raw)
        readers = Readers([first.socket, *(join(broker, stack).socket for _ in range(FAST - 1))])
        stack.callback(readers.close)
        broadcast(producer, readers, size, WINDOW)
        before, alone = measure(broker, producer, readers, size)
        memory = Usage.of(broker.process.pid).resident
        stopped = [join(broker, stack).socket for _ in range(STOPPED)]
        broadcast(producer, readers, size, MESSAGES)
        during, beside = measure(broker, producer, readers, size)
        grown = Usage.of(broker.process.pid).resident - memory
        assert grown <= STOPPED * OUTPUT_BYTES + MARGIN
        dropped = 'mqcore_messages_dropped_total{reason="slow"}'
        missed = metric(broker, dropped)
        assert missed >= STOPPED * MEASURED, "the broker counts what they missed"
        closed = 'mqcore_connections_closed_total{protocol="tmqp",reason="slow-consumer"}'
        limit = 2 * TIMEOUT_SECONDS + 20.0
        wait_until(lambda: metric(broker, closed) == STOPPED, limit=limit, what="the end of their connections")
        wait_until(lambda: not any(map(is_open, stopped)), what="the end of what was sent to them before")
        after, alone_again = measure(broker, producer, readers, size)
        rates = f"{before:.0f} messages/s, {during:.0f} beside {STOPPED} stopped ones, {after:.0f} afterwards"
        print(f"{FAST} fast readers: {rates}")
        print(f"a thousand messages take {alone:.2f}, {beside:.2f} and {alone_again:.2f} s of processor time")
        assert not FULL or beside <= FACTOR * max(alone, alone_again)
        print(f"{grown / (1 << 20):.0f} MiB of memory for the stopped ones, which missed {missed} messages")
