"""Bytes that no client should send, peers that do not read, and what others notice of them: nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import mqcore
from mqcore.testing import TestBroker
from protocols.conversation import metrics
from served import wait_until
from throttr_peer import (
    CHANNELS,
    CONNECTION,
    CONNECTIONS,
    CONSUME,
    CONSUME_ALL,
    DECREASE,
    EVENT,
    GET,
    INFO,
    INSERT,
    LIST,
    PUBLISH,
    PURGE,
    QUERY,
    QUOTA,
    SET,
    STAT,
    STATS,
    SUBSCRIBE,
    WHOAMI,
    Cut,
    S,
    ThrottrPeer,
)

KNOWN = {*range(1, 10), *range(0x10, 0x19), CONSUME, CONSUME_ALL}

Connect = Callable[[], ThrottrPeer]


@contextlib.contextmanager
def serving(options: str = "", **config: object) -> Iterator[tuple[mqcore.Broker, Connect]]:
    """A broker with a Throttr listener, and a function that connects to it."""
    listen = [f"throttr://127.0.0.1:0?{options}"]
    with mqcore.Broker(listen=listen, admin="http://127.0.0.1:0", shards=2, **config) as broker:  # type: ignore[arg-type]
        host, _, port = broker.listeners[0].removeprefix("throttr://").rpartition(":")
        width = {"uint8": 1, "uint32": 4, "uint64": 8}.get(options.partition("value=")[2].partition("&")[0], 2)
        with contextlib.ExitStack() as stack:
            yield broker, lambda: stack.enter_context(ThrottrPeer((host, int(port)), width))


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects to a listener of family 7.3."""
    with serving("protocol=7.3") as (_, connect):
        yield connect


def requests(peer: ThrottrPeer) -> list[tuple[bytes, int]]:
    """One request of each kind, and how long its answer is, to an empty store."""
    rule = peer.rule(b"rule", 5, 1, 60)
    return [
        (peer.insert(b"key", 7, 60), 1),
        (peer.keyed(QUERY, b"key"), 6),
        (peer.update(b"key", QUOTA, DECREASE, 1), 1),
        (peer.set(b"buffer", b"value", 60), 1),
        (peer.keyed(GET, b"buffer"), 11),
        (peer.keyed(STAT, b"key"), 33),
        (bytes([LIST]), 9 + 16 + 2 * 13 + 9),
        (bytes([STATS]), 9 + 16 + 2 * 33 + 9),
        (peer.keyed(PURGE, b"key"), 1),
        (peer.keyed(SUBSCRIBE, b"news"), 1),
        (peer.publish(b"nobody", b"payload"), 1),
        (bytes([INFO]), 433),
        (bytes([WHOAMI]), 17),
        (bytes([CONNECTION]) + bytes(16), 1),
        (bytes([CONSUME, 0]) + rule, 21),
        (bytes([CONSUME_ALL, 0, 1]) + rule, 23),
        (peer.event(b"*", peer.insert(b"inside", 7, 60)), 2),
    ]


@pytest.mark.parametrize("family", ["7.1", "7.3"])
def test_every_byte_is_a_known_code_or_closes_only_its_connection(family: str) -> None:
    known = KNOWN | ({EVENT} if family == "7.3" else set())
    with serving(f"protocol={family}") as (broker, connect):
        witness = connect()
        for code in range(256):
            with connect() as peer:
                peer.send(bytes([code]))
                if code not in known:
                    assert peer.is_cut(), hex(code)
        assert witness.whoami()
        ended = metrics(broker)['mqcore_connections_closed_total{protocol="throttr",reason="protocol-error"}']
        assert ended == 256 - len(known)


def test_request_split_at_every_byte_is_answered_once_complete(connect: Connect) -> None:
    peer = connect()
    # The first round makes what later ones find, so that answers are as long each time.
    for request, size in requests(peer):
        peer.ask(request, size)
    for request, size in requests(peer):
        if request[0] in (LIST, STATS, PURGE):
            continue
        for cut in range(1, len(request)):
            peer.send(request[:cut])
            peer.send(request[cut:])
            assert len(peer.read(size)) == size, (request, cut)
            if request[0] == INSERT:
                peer.status(peer.update(b"key", QUOTA, 0, 1000))
    assert peer.whoami()


def test_requests_sent_byte_by_byte_are_answered(connect: Connect) -> None:
    peer = connect()
    for request, size in requests(peer):
        for at in range(len(request)):
            peer.send(request[at : at + 1])
        assert len(peer.read(size)) == size


def test_many_requests_of_every_kind_are_answered_in_one_stream(connect: Connect) -> None:
    one, many = connect(), connect()
    for request, size in requests(one):
        one.ask(request, size)
    # All exist by now, so each answer is as long as the last time, but for INSERT's answer and the numbers inside.
    batch = b"".join(request for request, _ in requests(many) if request[0] not in (LIST, STATS, PURGE, INFO))
    sizes = sum(size for request, size in requests(many) if request[0] not in (LIST, STATS, PURGE, INFO))
    sender = threading.Thread(target=many.send, args=(batch * 1000 + bytes([WHOAMI]),))
    many.send(many.insert(b"key", 7, 60))
    many.read(1)
    sender.start()
    # The quota of 7 is used up on the way; what is refused is one byte, as what is allowed.
    many.read(sizes * 1000)
    sender.join()
    assert many.read(17)[1:] == many.whoami()


def test_keys_of_0_and_255_bytes_are_valid(connect: Connect) -> None:
    peer = connect()
    for key in (b"", b"\x00", os.urandom(255), b"\xff" * 255):
        assert peer.status(peer.insert(key, 3, 60))
        assert peer.query(key) == (3, S, 59)
        assert peer.consume(peer.rule(key, 3, 1, 60))[:3] == (1, 3, 2)
        assert peer.status(peer.keyed(PURGE, key))
        assert peer.status(peer.keyed(SUBSCRIBE, key))
        assert peer.ask(peer.publish(key, b"x"), 4 + len(key) + 2)[-1] == 1


@pytest.mark.parametrize("code", [SET, PUBLISH, EVENT])
def test_sizes_at_the_limit_are_taken_and_beyond_it_end_the_connection(code: int) -> None:
    limit = 100_000
    with serving("protocol=7.3&value=uint32", frame_bytes_max=limit) as (_, connect):

        def request(peer: ThrottrPeer, size: int) -> bytes:
            if code == SET:
                return peer.set(b"key", bytes(size - 14), 60)
            if code == PUBLISH:
                return peer.publish(b"key", bytes(size - 9))
            return peer.event(b"key", bytes(size - 9))

        peer = connect()
        assert len(request(peer, limit)) == limit
        assert peer.status(request(peer, limit)) == (code == SET)
        with contextlib.suppress(ConnectionError):
            peer.send(request(peer, limit + 1))
        with contextlib.suppress(ConnectionError, Cut):
            assert peer.is_cut()
        assert connect().whoami()


def test_an_announced_size_reserves_nothing(connect: Connect) -> None:
    with serving("value=uint64") as (_, connect_wide):
        peer = connect_wide()
        peer.send(bytes([SET, S]) + peer.number(60) + b"\x03" + peer.number(1 << 62))
        assert peer.is_cut()
        assert connect_wide().whoami()
    assert connect().whoami()


def test_a_rule_too_many_or_too_few_ends_the_connection(connect: Connect) -> None:
    for count in (0, 33, 255):
        with connect() as peer:
            peer.send(bytes([CONSUME_ALL, 0, count]))
            assert peer.is_cut()


def test_a_peer_that_does_not_read_is_not_read_and_gets_every_answer_later() -> None:
    with serving("value=uint32") as (_, connect):
        peer, other = connect(), connect()
        assert peer.status(peer.set(b"key", b"v" * 60_000, 3600))
        many = 2_000
        sender = threading.Thread(target=peer.send, args=(peer.keyed(GET, b"key") * many + bytes([WHOAMI]),))
        sender.start()
        # These requests cause 120 MB of answers; other clients do not notice.
        for _ in range(50):
            assert other.whoami()
        for _ in range(many):
            answer = peer.read(10 + 60_000)
            assert answer[:2] == b"\x01\x04"
            assert answer.endswith(b"vvvv")
        assert peer.read(17)[0] == 1
        sender.join()


def test_half_closed_connection_still_receives_its_answers(connect: Connect) -> None:
    peer = connect()
    keys = [f"{number:08}".encode() for number in range(20_000)]
    peer.send(b"".join(peer.insert(key, 1, 60) for key in keys))
    peer.read(20_000)
    peer.send(peer.publish(b"nobody", b"x") + bytes([LIST]) + bytes([WHOAMI]))
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.read(1) == b"\x00"
    assert peer.read(1) == b"\x01"
    fragments = int.from_bytes(peer.read(8), "little")
    listed = []
    for _ in range(fragments):
        peer.read(8)
        records = [peer.read(13) for _ in range(int.from_bytes(peer.read(8), "little"))]
        listed += [peer.read(record[0]) for record in records]
    assert listed == keys
    assert peer.read(17)[0] == 1
    assert peer.is_cut()


def test_long_list_is_complete_and_does_not_block_other_clients(connect: Connect) -> None:
    peer, other = connect(), connect()
    keys = [f"{number:08}".encode() for number in range(30_000)]
    peer.send(b"".join(peer.insert(key, 1, 600) for key in keys))
    peer.read(30_000)
    peer.send(bytes([LIST]))
    assert peer.read(1) == b"\x01"
    fragments = int.from_bytes(peer.read(8), "little")
    # It is in flight, and larger than the sockets hold.
    for number in range(0, 30_000, 10):
        assert other.status(other.keyed(PURGE, keys[number]))
        assert other.status(other.insert(b"later-%d" % number, 1, 600))
    listed = []
    for number in range(1, fragments + 1):
        assert int.from_bytes(peer.read(8), "little") == number
        records = [peer.read(13) for _ in range(int.from_bytes(peer.read(8), "little"))]
        listed += [peer.read(record[0]) for record in records]
    assert listed == sorted(listed)
    stayed = {key for number, key in enumerate(keys) if number % 10}
    assert stayed <= set(listed) <= set(keys)
    assert peer.whoami()


def test_requests_behind_a_publish_keep_their_place(connect: Connect) -> None:
    peer = connect()
    batch = b"".join(
        peer.publish(b"nobody", b"x") + peer.insert(str(number).encode(), 1, 60) + bytes([WHOAMI])
        for number in range(5_000)
    )
    sender = threading.Thread(target=peer.send, args=(batch,))
    sender.start()
    answers = peer.read(5_000 * 19)
    sender.join()
    assert all(answers[at : at + 3] == b"\x00\x01\x01" for at in range(0, len(answers), 19))


def test_subscriber_that_does_not_read_is_disconnected_and_blocks_no_other() -> None:
    with serving("protocol=7.3", output_bytes_max=1 << 20, slow_consumer_timeout=2.0) as (broker, connect):
        slow, quick, publisher = connect(), connect(), connect()
        for peer in (slow, quick):
            assert peer.status(peer.keyed(SUBSCRIBE, b"news"))
        message = publisher.publish(b"news", b"m" * 10_000)
        for _ in range(20):
            # No more at a time than the quick one may leave unread, however late it gets a processor.
            for _ in range(50):
                assert publisher.status(message)
            quick.read(50 * 10_008)
        closed = 'mqcore_connections_closed_total{protocol="throttr",reason="slow-consumer"}'
        wait_until(lambda: metrics(broker).get(closed, 0) == 1)
        assert publisher.whoami()


def test_a_message_too_long_for_a_subscribers_width_is_not_cut() -> None:
    listen = ["throttr://127.0.0.1:0?value=uint8&protocol=7.3", "throttr://127.0.0.1:0?value=uint32&protocol=7.3"]
    with mqcore.Broker(listen=listen, shards=2) as broker:
        ports = [int(url.rpartition(":")[2]) for url in broker.listeners]
        with ThrottrPeer(("127.0.0.1", ports[0]), 1) as narrow, ThrottrPeer(("127.0.0.1", ports[1]), 4) as wide:
            assert narrow.status(narrow.keyed(SUBSCRIBE, b"news"))
            assert wide.status(wide.publish(b"news", bytes(256)))
            assert wide.status(wide.publish(b"news", b"fits"))
            assert narrow.read(3 + 4 + 4) == b"\x19\x04\x04newsfits"


def test_listeners_of_all_widths_answer_from_one_store() -> None:
    listen = [f"throttr://127.0.0.1:0?value=uint{bits}" for bits in (8, 16, 32, 64)]
    with TestBroker(listen=listen, shards=2) as broker, contextlib.ExitStack() as stack:
        ports = [int(url.rpartition(":")[2]) for url in broker.listeners]
        peers = [stack.enter_context(ThrottrPeer(("127.0.0.1", port), 1 << n)) for n, port in enumerate(ports)]
        assert peers[3].status(peers[3].insert(b"key", 70_000, 3600))
        assert [found and found[0] for found in (peer.query(b"key") for peer in peers)] == [255, 65_535, 70_000, 70_000]
        assert peers[0].status(peers[0].update(b"key", QUOTA, DECREASE, 100))
        assert peers[3].query(b"key") == (69_900, S, 3599)
        assert peers[3].status(peers[3].set(b"buffer", bytes(300), 3600))
        assert peers[0].get(b"buffer") is None
        assert peers[1].get(b"buffer") == (S, 3599, bytes(300))


def test_fifty_that_insert_and_leave_at_random_leave_a_store_that_adds_up(connect: Connect) -> None:
    def work(number: int) -> None:
        with connect() as peer:
            for step in range(200):
                key = b"%d-%d" % (number, step)
                peer.send(peer.insert(key, 1, 600) + peer.keyed(PURGE, key) * (step % 2))
                peer.read(1 + step % 2)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    peer = connect()
    assert len(peer.list_keys()) == 5_000
    assert peer.info()[0][43] == 5_000
    wait_until(lambda: len([0 for part in peer.fragments(CONNECTIONS, 237) for _ in part]) == 1)
    assert len([0 for part in peer.fragments(CHANNELS, 25) for _ in part]) == 2


def test_expired_entries_release_their_memory(connect: Connect) -> None:
    peer = connect()
    peer.send(b"".join(peer.insert(b"%d" % number, 1, 50, unit=3) for number in range(5_000)))
    peer.read(5_000)
    began = time.monotonic()
    wait_until(lambda: peer.info()[0][43] == 0)
    assert time.monotonic() - began < 10
