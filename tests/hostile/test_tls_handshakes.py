"""TLS handshakes that stop half way, and connections that change their keys all the time."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

import pytest

from authority import Authority
from depth import by_depth
from hostile.attacks import tls_hello, tmqp_hello
from hostile.crowd import Usage, is_open, processor_seconds, raise_descriptor_limit
from hostile.key_updates import KeyUpdater
from metrics import metric
from served import ServedBroker, serving
from test_unfinished_input import endpoint
from tmqp_peer import ACCEPTED, PING_FRAME, PREAMBLE, TmqpPeer

KIB = 1 << 10
HANDSHAKES = by_depth(300, 5000)
"""Handshakes that stop after the first message of the client."""
BYTES_PER_HANDSHAKE = 32 * KIB
UPDATES = by_depth(2000, 100_000)
"""Key updates of one connection."""
UPDATES_BYTES = 16 << 20
"""Memory that they may take: twice what may wait for a connection."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def broker_with(authority: Authority, **options: str) -> contextlib.AbstractContextManager[ServedBroker]:
    listen = ("--listen", "tmqps://127.0.0.1:0", "--listen", "tmqp://127.0.0.1:0", "--tls-cert", str(authority.issue()))
    environment = {f"MQCORE_{name.upper()}": value for name, value in options.items()}
    return serving(*listen, "--admin", "http://127.0.0.1:0", environment=environment)


def logs_in(broker: ServedBroker, authority: Authority) -> None:
    """Check that another client gets through TLS."""
    with TmqpPeer(*endpoint(broker, "tmqps"), tls=authority.context()) as peer:
        assert peer.hello().content_type == ACCEPTED


def half_handshake(broker: ServedBroker, hello: bytes) -> socket.socket:
    """A connection whose handshake the broker has answered."""
    peer = socket.create_connection(endpoint(broker, "tmqps"), timeout=10)
    peer.sendall(hello)
    assert peer.recv(1), "the broker answers with its certificate"
    return peer


@pytest.mark.timeout(120)
def test_half_handshakes_cost_little_memory(authority: Authority) -> None:
    raise_descriptor_limit()
    with (
        broker_with(authority, tls_handshakes_max=str(HANDSHAKES + 10), handshake_timeout="5m") as broker,
        contextlib.ExitStack() as stack,
    ):
        logs_in(broker, authority)
        before, hello = Usage.of(broker.process.pid), tls_hello()
        peers = [stack.enter_context(half_handshake(broker, hello)) for _ in range(HANDSHAKES)]
        logs_in(broker, authority)
        grown = Usage.of(broker.process.pid).resident - before.resident
        assert all(map(is_open, peers)), "all of them were measured"
        print(f"{HANDSHAKES} half handshakes: {grown / HANDSHAKES / KIB:.1f} KiB each")
        assert grown <= HANDSHAKES * BYTES_PER_HANDSHAKE


def test_one_handshake_above_the_limit_replaces_the_oldest(authority: Authority) -> None:
    with (
        broker_with(authority, tls_handshakes_max="20", handshake_timeout="5m") as broker,
        contextlib.ExitStack() as stack,
    ):
        hello = tls_hello()
        peers = [stack.enter_context(half_handshake(broker, hello)) for _ in range(50)]
        logs_in(broker, authority)
        assert [is_open(peer) for peer in peers[:29]] == [False] * 29


@pytest.mark.parametrize("every", [0, 16])
def test_key_updates_cost_no_memory_and_do_not_stop_others(every: int, authority: Authority) -> None:
    """A peer asks for new keys again and again, with a PING behind some of them, and reads none of the answers."""
    with broker_with(authority) as broker:
        logs_in(broker, authority)
        stream = socket.create_connection(endpoint(broker, "tmqps"), timeout=20)
        # OpenSSL must wait by itself, so the socket has a timeout of the system.
        stream.settimeout(None)
        with contextlib.closing(KeyUpdater(stream)) as peer:
            assert peer.write(PREAMBLE + tmqp_hello())
            before, used, began = Usage.of(broker.process.pid), processor_seconds(broker.process.pid), time.monotonic()
            updates = 0
            while updates < UPDATES and peer.update():
                updates += 1
                if every and updates % every == 0 and not peer.write(PING_FRAME):
                    break
            seconds = time.monotonic() - began
            logs_in(broker, authority)
            used = processor_seconds(broker.process.pid) - used
            grown = Usage.of(broker.process.pid).resident - before.resident
        print(f"{updates} key updates in {seconds:.2f} s, {used:.2f} s of processor time, {grown / KIB:.0f} KiB more")
        assert grown <= UPDATES_BYTES
        assert every or updates < UPDATES, "the broker ends a connection that does nothing else"
        assert metric(broker, 'mqcore_connections_closed_total{protocol="tmqp",reason="fault"}') == 0
        logs_in(broker, authority)
