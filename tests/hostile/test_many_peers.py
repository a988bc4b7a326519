"""Thousands of peers at once: frames that never come, handshakes byte by byte, connections that only come and go."""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from authority import Authority
from depth import by_depth
from hostile import flood
from hostile.attacks import LISTENERS, LYING, OPENINGS, address
from hostile.crowd import Usage, is_open, raise_descriptor_limit
from metrics import metric
from mqcore import QueueOptions, QueueStatus
from mqcore.sync import connect
from served import ServedBroker, serving, wait_until
from test_unfinished_input import endpoint, url
from tmqp_peer import TmqpPeer

KIB, MIB = 1 << 10, 1 << 20

LYING_PEERS = by_depth(200, 2000)
"""Peers that announce the largest frame."""
RESIDENT_PER_PEER, VIRTUAL_PER_PEER = 16 * KIB, 64 * KIB
"""Memory and address space that each of them may cost."""
VIRTUAL_MIN = 160 * MIB
"""Address space that may grow for other reasons: allocators reserve it in pieces of 64 MiB."""
RESIDENT_MIN = 8 * MIB

SLOW_PEERS = by_depth(300, 10_000)
"""Peers that send a byte a second."""
HANDSHAKE_SECONDS = by_depth(2, 10)
"""Time for a handshake; 10 s is the default."""
SLOW_RESIDENT = 160 * MIB
"""Memory of the whole broker while all of them are there."""
SLACK_SECONDS = 10.0
"""How late a busy machine may be."""

FLOOD_SECONDS = by_depth(1.5, 60.0)


def first_bytes(protocol: str) -> bytes:
    """The first byte of each protocol's handshake."""
    return OPENINGS[protocol][0][:1]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    listen = [argument for each in LISTENERS for argument in ("--listen", each)]
    tls = ("--tls-cert", str(Authority(tmp_path / "certificates").issue()))
    environment = {"MQCORE_HANDSHAKE_TIMEOUT": f"{HANDSHAKE_SECONDS}s"}
    others = ("--admin", "http://127.0.0.1:0", "--auto-create", "--data-dir", str(tmp_path / "data"))
    with serving(*listen, *tls, *others, environment=environment) as running:
        yield running


def works(broker: ServedBroker, seconds: float = 0.0) -> float:
    """Publish, receive and settle saved messages for a while, at least one; how many a second."""
    saving = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")
    began, count = time.monotonic(), 0
    with connect(url(broker, "tmqp")) as client:
        client.declare("calm", 1, saving)
        with client.join("calm"):
            while not count or time.monotonic() - began < seconds:
                client.publish("calm/1", b"x" * 100, confirm=True)
                (message,) = client.queue("calm/1").pull(1)
                assert message.ack()
                count += 1
    return count / (time.monotonic() - began)


def connections(broker: ServedBroker, protocol: str) -> int:
    """Open connections of a protocol."""
    states = ("client", "half-open")
    return sum(metric(broker, f'mqcore_connections{{protocol="{protocol}",state="{state}"}}') for state in states)


def check_memory(before: Usage, now: Usage, peers: int, what: str) -> None:
    """Compare the growth with what each peer may cost, and print it."""
    resident, virtual = now.resident - before.resident, now.virtual - before.virtual
    print(f"{what}: {peers} peers, each {resident / peers / KIB:.1f} KiB resident, {virtual / peers / KIB:.1f} virtual")
    assert resident <= max(peers * RESIDENT_PER_PEER, RESIDENT_MIN)
    assert virtual <= max(peers * VIRTUAL_PER_PEER, VIRTUAL_MIN)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("protocol", LYING)
def test_announced_frames_cost_no_memory(protocol: str, broker: ServedBroker) -> None:
    """Peers that are accepted announce 64 MB each and send one byte of it."""
    raise_descriptor_limit()
    seconds = by_depth(0.0, 3.0)
    quiet = works(broker, seconds)
    before = Usage.of(broker.process.pid)
    with contextlib.ExitStack() as stack:
        peers = []
        for _ in range(LYING_PEERS):
            peers.append(stack.enter_context(contextlib.closing(LYING[protocol](broker))))
            peers[-1].sendall(b"x")
        wait_until(lambda: connections(broker, protocol) >= LYING_PEERS, what="all connections accepted")
        busy = works(broker, seconds)
        assert sum(map(is_open, peers)) == LYING_PEERS, "the broker disconnected none, so all of them were measured"
        check_memory(before, Usage.of(broker.process.pid), LYING_PEERS, protocol)
        if seconds:
            print(f"{protocol}: a client settles {quiet:.0f} messages/s before, {busy:.0f} meanwhile")


@pytest.mark.timeout(180)
def test_connections_that_have_sent_one_byte_cost_no_memory(broker: ServedBroker) -> None:
    """Peers of all listeners, TLS too, that have not finished their handshake."""
    raise_descriptor_limit()
    works(broker)
    before = Usage.of(broker.process.pid)
    protocols = [protocol for protocol in OPENINGS if protocol != "admin"]
    with contextlib.ExitStack() as stack:
        for _, protocol in zip(range(LYING_PEERS), itertools.cycle(protocols), strict=False):
            peer = stack.enter_context(socket.create_connection(address(broker, protocol), timeout=10))
            peer.sendall(first_bytes(protocol))
        # The client above may have had a descriptor before.
        accepted = before.descriptors + LYING_PEERS - 1
        wait_until(lambda: Usage.of(broker.process.pid).descriptors >= accepted, what="all connections accepted")
        check_memory(before, Usage.of(broker.process.pid), LYING_PEERS, "half-open")
        works(broker)


class SlowPeer:
    """A connection that sends a handshake byte by byte."""

    def __init__(self, broker: ServedBroker, protocol: str) -> None:
        self.protocol = protocol
        # The last byte is never sent. Bytes of a body that never ends follow in its place.
        self.rest = iter(b"".join(OPENINGS[protocol])[:-1])
        self.socket = socket.create_connection(address(broker, protocol), timeout=10)
        self.since = time.monotonic()
        self.cut_after: float | None = None

    def step(self) -> None:
        """Notice the end of the connection, or send the next byte."""
        if self.cut_after is None and not is_open(self.socket):
            self.cut_after = time.monotonic() - self.since
            self.socket.close()
        elif self.cut_after is None and (byte := next(self.rest, None)) is not None:
            with contextlib.suppress(OSError):
                self.socket.send(bytes([byte]))


@pytest.mark.timeout(300)
def test_handshakes_byte_by_byte_are_cut_in_time(broker: ServedBroker) -> None:
    peers_max = min(SLOW_PEERS, raise_descriptor_limit())
    works(broker)
    protocols = itertools.cycle(name for name in OPENINGS if name not in ("admin", "throttr", "mqks"))
    logins: list[float] = []
    is_over = threading.Event()

    def log_in() -> None:
        while not is_over.wait(0.01):
            began = time.monotonic()
            with TmqpPeer(*endpoint(broker, "tmqp"), timeout=30.0) as peer:
                peer.hello()
            logins.append(time.monotonic() - began)

    good = threading.Thread(target=log_in)
    good.start()
    try:
        peers = [SlowPeer(broker, next(protocols)) for _ in range(peers_max)]
        most = Usage.of(broker.process.pid).resident
        deadline = time.monotonic() + 3 * HANDSHAKE_SECONDS + SLACK_SECONDS
        while any(peer.cut_after is None for peer in peers):
            assert time.monotonic() < deadline, "peers are still connected"
            began = time.monotonic()
            for peer in peers:
                peer.step()
            most = max(most, Usage.of(broker.process.pid).resident)
            time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
    finally:
        is_over.set()
        good.join()
    cuts = sorted(peer.cut_after or 0.0 for peer in peers)
    # TLS has the time of a handshake for itself.
    assert cuts[-1] <= 2 * HANDSHAKE_SECONDS + SLACK_SECONDS
    # Of TLS handshakes, one above the limit replaces the oldest. All other peers have their whole time.
    assert min(peer.cut_after or 0.0 for peer in peers if peer.protocol != "tmqps") >= HANDSHAKE_SECONDS - 0.5
    logins.sort()
    print(
        f"{len(peers)} slow peers, cut after {cuts[0]:.1f} to {cuts[-1]:.1f} s; at most {most / MIB:.0f} MiB resident"
    )
    p50, p99 = logins[len(logins) // 2], logins[len(logins) * 99 // 100]
    print(f"{len(logins)} logins of a good client meanwhile: p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms")
    assert most <= SLOW_RESIDENT
    works(broker)


@pytest.mark.timeout(180)
def test_a_flood_of_connections_leaks_no_descriptor(broker: ServedBroker) -> None:
    quiet = works(broker, FLOOD_SECONDS / 10)
    before = Usage.of(broker.process.pid)
    host, port = endpoint(broker, "tmqp")
    command = [sys.executable, str(Path(flood.__file__)), host, str(port), str(FLOOD_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flooding:
        try:
            busy = works(broker, FLOOD_SECONDS * 0.9)
        finally:
            text, _ = flooding.communicate(timeout=FLOOD_SECONDS + 30)
    count, failed = map(int, text.split())
    assert count > 100
    print(
        f"{count / FLOOD_SECONDS:.0f} connections/s, {failed} failed; a client: {quiet:.0f} messages/s, then {busy:.0f}"
    )
    wait_until(
        lambda: Usage.of(broker.process.pid).descriptors <= before.descriptors, what="all descriptors are closed"
    )
    works(broker)
