"""One test for each promise of the original's tests; docs/protocols/throttr.md lists which is which.

Each defect of the original also has a test that would find it here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mqcore
from mqcore.testing import TestBroker
from throttr_peer import (
    CHANNEL,
    CHANNELS,
    CONNECTION,
    CONNECTIONS,
    DECREASE,
    EVENT,
    GET,
    HOURS,
    INCREASE,
    INFO,
    LIST,
    MINUTES,
    MS,
    NS,
    PATCH,
    PURGE,
    QUERY,
    QUOTA,
    STATS,
    SUBSCRIBE,
    TTL,
    UNSUBSCRIBE,
    US,
    WHOAMI,
    WIDTHS,
    S,
    ThrottrPeer,
)

UNITS = {NS: 1, US: 1_000, MS: 1_000_000, S: 10**9, MINUTES: 60 * 10**9, HOURS: 3600 * 10**9}


class Throttr:
    """A broker that speaks Throttr, whose clock the test turns."""

    def __init__(self, broker: TestBroker, width: int) -> None:
        self.broker = broker
        self.width = width
        self.peers = contextlib.ExitStack()

    def connect(self) -> ThrottrPeer:
        """One more connection."""
        host, _, port = self.broker.listeners[0].removeprefix("throttr://").rpartition(":")
        return self.peers.enter_context(ThrottrPeer((host, int(port)), self.width))

    def turn(self, seconds: float) -> None:
        """Let time pass."""
        asyncio.run(self.broker.clock.advance(seconds=seconds))


Start = Callable[..., Throttr]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers: `start(value="uint64", protocol="7.3")`."""
    with contextlib.ExitStack() as stack:

        def start(value: str = "uint16", protocol: str = "7.1", **options: str) -> Throttr:
            more = "".join(f"&{name}={value}" for name, value in options.items())
            listen = f"throttr://127.0.0.1:0?value={value}&protocol={protocol}{more}"
            server = Throttr(stack.enter_context(TestBroker(listen=[listen], shards=2)), WIDTHS[value])
            stack.enter_context(server.peers)
            return server

        yield start


@pytest.fixture
def server(start: Start) -> Throttr:
    """A server as it is by default."""
    return start()


@pytest.fixture
def peer(server: Throttr) -> ThrottrPeer:
    """A connection to it."""
    return server.connect()


# --- counters -----------------------------------------------------------------------------------------------------


def test_insert_is_answered_by_one_byte_and_does_not_overwrite(peer: ThrottrPeer) -> None:
    assert [peer.status(peer.insert(key, 7, 60)) for key in (b"a", b"b", b"a")] == [True, True, False]
    assert peer.is_quiet()


def test_a_query_returns_quota_unit_and_what_is_left(server: Throttr, peer: ThrottrPeer) -> None:
    peer.status(peer.insert(b"key", 32, 30, HOURS))
    assert peer.query(b"key") == (32, HOURS, 29)
    assert peer.query(b"missing") is None
    assert len(peer.ask(peer.keyed(QUERY, b"key"), 2 + 2 * server.width)) == 6
    assert peer.is_quiet()


def test_a_counter_is_there_until_its_time_has_come(server: Throttr, peer: ThrottrPeer) -> None:
    peer.status(peer.insert(b"short", 1, 1))
    peer.status(peer.insert(b"long", 32, 3))
    server.turn(1.5)
    assert peer.query(b"short") is None
    assert peer.query(b"long") == (32, S, 1)
    server.turn(1.6)
    assert peer.query(b"long") is None


def test_a_quota_is_increased_decreased_and_replaced(peer: ThrottrPeer) -> None:
    peer.status(peer.insert(b"key", 32, 60))
    for change, by, quota in [
        (INCREASE, 20, 52),
        (DECREASE, 12, 40),
        (PATCH, 7, 7),
        (DECREASE, 7, 0),
        (INCREASE, 1, 1),
    ]:
        assert peer.status(peer.update(b"key", QUOTA, change, by))
        assert peer.query(b"key") == (quota, S, 59)
    assert not peer.status(peer.update(b"key", QUOTA, DECREASE, 2))
    assert peer.query(b"key") == (1, S, 59)
    assert not peer.status(peer.update(b"missing", QUOTA, PATCH, 1))


@pytest.mark.parametrize("unit", UNITS)
def test_a_time_to_live_is_replaced_increased_and_decreased_in_its_own_unit(start: Start, unit: int) -> None:
    server = start("uint64")
    peer = server.connect()
    peer.status(peer.insert(b"key", 9, 100, unit))
    for change, by, left in [(PATCH, 64, 63), (INCREASE, 30, 93), (DECREASE, 50, 43)]:
        assert peer.status(peer.update(b"key", TTL, change, by))
        assert peer.query(b"key") == (9, unit, left)


@pytest.mark.parametrize("unit", [0, 7, 255])
def test_an_unknown_unit_means_seconds_also_when_a_time_to_live_is_changed(start: Start, unit: int) -> None:
    server = start("uint64")
    peer = server.connect()
    peer.status(peer.insert(b"key", 9, 100, unit))
    for change, by, left in [(PATCH, 64, 63), (INCREASE, 30, 93), (DECREASE, 50, 43)]:
        assert peer.status(peer.update(b"key", TTL, change, by))
        assert peer.query(b"key") == (9, unit, left)
    server.turn(43)
    assert peer.query(b"key") == (9, unit, 0)
    server.turn(1)
    assert peer.query(b"key") is None


@pytest.mark.parametrize(("value", "unit"), [("uint32", HOURS), ("uint32", MINUTES), ("uint64", S), ("uint64", MS)])
def test_time_to_live_that_never_ends_is_reported_as_the_largest_value(start: Start, value: str, unit: int) -> None:
    server = start(value)
    peer = server.connect()
    top = (1 << (8 * server.width)) - 1
    peer.status(peer.insert(b"key", 9, top, unit))
    assert peer.query(b"key") == (9, unit, top)
    server.turn(1e6)
    assert peer.query(b"key") == (9, unit, top)
    # Nothing finite shortens it, but a new time to live replaces it.
    for change, by, left in [(DECREASE, 5, top), (INCREASE, 5, top), (PATCH, 64, 63)]:
        assert peer.status(peer.update(b"key", TTL, change, by))
        assert peer.query(b"key") == (9, unit, left)


@pytest.mark.parametrize("unit", [MS, S, MINUTES, HOURS])
def test_remaining_quota_is_never_negative(start: Start, unit: int) -> None:
    server = start("uint64")
    peer = server.connect()
    peer.status(peer.insert(b"key", 9, 2000, unit))
    seconds = UNITS[unit] / 1e9
    server.turn(1999 * seconds)
    assert peer.query(b"key") == (9, unit, 0)
    server.turn(seconds)
    assert peer.query(b"key") is None


@pytest.mark.parametrize("value", WIDTHS)
def test_values_of_every_width_come_back_as_they_were(start: Start, value: str) -> None:
    server = start(value)
    peer = server.connect()
    top = (1 << (8 * server.width)) - 1
    for quota in {0, 1, 0x80, 0xFF, top - 1, top}:
        key = str(quota).encode()
        assert peer.status(peer.insert(key, quota, 100))
        assert peer.query(key) == (quota, S, 99)


def test_a_purge_removes_and_a_missing_key_cannot_be_purged(peer: ThrottrPeer) -> None:
    peer.status(peer.insert(b"key", 1, 60))
    assert peer.status(peer.keyed(PURGE, b"key"))
    assert peer.query(b"key") is None
    assert not peer.status(peer.keyed(PURGE, b"key"))


# --- buffers ------------------------------------------------------------------------------------------------------


def test_a_buffer_is_set_read_and_set_again(server: Throttr, peer: ThrottrPeer) -> None:
    assert peer.status(peer.set(b"key", b"EHLO", 30))
    assert peer.get(b"key") == (S, 29, b"EHLO")
    assert len(peer.ask(peer.keyed(GET, b"key"), 2 + 2 * server.width + 4)) == 10
    assert peer.is_quiet()
    assert peer.status(peer.set(b"key", b"world", 60, MINUTES))
    assert peer.get(b"key") == (MINUTES, 59, b"world")
    assert peer.get(b"missing") is None


# --- listings -----------------------------------------------------------------------------------------------------


def test_a_list_tells_what_is_there_in_the_order_in_which_it_came(server: Throttr, peer: ThrottrPeer) -> None:
    peer.status(peer.set(b"abc", b"EHLO", 30))
    peer.status(peer.set(b"EHLO", b"a longer one", 30, MINUTES))
    peer.status(peer.insert(b"counter", 9, 30, HOURS))
    (fragment,) = peer.fragments(LIST, 11 + server.width)
    assert [name for _, name in fragment] == [b"abc", b"EHLO", b"counter"]
    assert [(record[0], record[1], record[2]) for record, _ in fragment] == [(3, 1, S), (4, 1, MINUTES), (7, 0, HOURS)]
    assert [int.from_bytes(record[11:], "little") for record, _ in fragment] == [4, 12, 2]
    now = peer.info()[0][0]
    deadlines = [int.from_bytes(record[3:11], "little") / 1e9 for record, _ in fragment]
    assert [round(deadline - now) for deadline in deadlines] == [30, 1800, 108_000]
    assert peer.is_quiet()


def test_a_long_list_comes_in_fragments_and_in_order(server: Throttr, peer: ThrottrPeer) -> None:
    keys = [f"key-{number:06}".encode() for number in range(1000)]
    peer.send(b"".join(peer.insert(key, 1, 60) for key in keys))
    assert peer.read(1000) == b"\x01" * 1000
    fragments = peer.fragments(LIST, 11 + server.width)
    assert [name for fragment in fragments for _, name in fragment] == keys
    assert all(len(fragment) == 2048 // (11 + server.width + 10) for fragment in fragments[:-1])


def test_reads_and_writes_are_reported_after_their_minute(server: Throttr, peer: ThrottrPeer) -> None:
    peer.status(peer.insert(b"key", 1, 5, MINUTES))
    for _ in range(3):
        peer.query(b"key")
    peer.status(peer.update(b"key", QUOTA, INCREASE, 1))
    assert peer.stat(b"key") == (0, 0, 0, 0)
    server.turn(65)
    assert peer.stat(b"key") == (6, 2, 6, 2)
    assert peer.stat(b"missing") is None


def test_stats_list_every_key(peer: ThrottrPeer) -> None:
    keys = [f"{number:030}".encode() for number in range(100)]
    peer.send(b"".join(peer.insert(key, 1, 60) for key in keys))
    peer.read(100)
    fragments = peer.fragments(STATS, 33)
    assert len(fragments) > 1
    assert [name for fragment in fragments for _, name in fragment] == keys


def test_a_list_grows_and_shrinks_with_what_is_there(peer: ThrottrPeer) -> None:
    assert peer.list_keys() == []
    peer.status(peer.insert(b"key", 1, 60))
    assert peer.list_keys() == [b"key"]
    peer.status(peer.keyed(PURGE, b"key"))
    assert peer.list_keys() == []


# --- channels -----------------------------------------------------------------------------------------------------


def test_a_subscription_holds_until_it_is_ended(peer: ThrottrPeer) -> None:
    subscribe, unsubscribe = peer.keyed(SUBSCRIBE, b"news"), peer.keyed(UNSUBSCRIBE, b"news")
    assert [peer.status(one) for one in (unsubscribe, subscribe, subscribe, unsubscribe, unsubscribe)] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_a_message_reaches_subscribers_on_tcp_and_unix_sockets(tmp_path: Path) -> None:
    path = tmp_path / "throttr.sock"
    listen = ["throttr://127.0.0.1:0?protocol=7.3", f"throttr+unix://{path}?protocol=7.3"]
    with mqcore.Broker(listen=listen, shards=2) as broker:
        host, _, port = broker.listeners[0].removeprefix("throttr://").rpartition(":")
        with ThrottrPeer((host, int(port))) as tcp, ThrottrPeer(str(path)) as unix, ThrottrPeer(str(path)) as other:
            for subscriber in (tcp, unix):
                assert subscriber.status(subscriber.keyed(SUBSCRIBE, b"news"))
            assert other.status(other.publish(b"news", b"hello"))
            for subscriber in (tcp, unix):
                assert subscriber.read(13) == b"\x19\x04\x05\x00newshello"
            for one, kind in ((tcp, 0), (unix, 1)):
                record = one.ask(bytes([CONNECTION]) + one.whoami(), 238)
                assert (record[17], record[18], record[19]) == (0, kind, 4)
                assert int.from_bytes(record[36:38], "little") > 0


def test_a_message_does_not_reach_who_has_unsubscribed(server: Throttr, peer: ThrottrPeer) -> None:
    other = server.connect()
    peer.status(peer.keyed(SUBSCRIBE, b"news"))
    peer.status(peer.keyed(UNSUBSCRIBE, b"news"))
    assert not other.status(other.publish(b"news", b"hello"))
    assert peer.is_quiet()


def test_a_channel_tells_who_has_subscribed(server: Throttr, peer: ThrottrPeer) -> None:
    assert not peer.status(peer.keyed(CHANNEL, b"news"))
    began = time.time_ns()
    assert began
    peer.status(peer.keyed(SUBSCRIBE, b"news"))
    answer = peer.ask(peer.keyed(CHANNEL, b"news"), 49)
    assert answer[:9] == b"\x01" + (1).to_bytes(8, "little")
    assert answer[9:25] == peer.whoami()
    subscribed_at = int.from_bytes(answer[25:33], "little") / 1e9
    assert subscribed_at == pytest.approx(peer.info()[0][0], abs=1)


def test_channels_are_listed_by_name_with_their_subscribers(start: Start) -> None:
    server = start(protocol="7.3")
    peer, other = server.connect(), server.connect()
    peer.status(peer.keyed(SUBSCRIBE, b"news"))
    (fragment,) = peer.fragments(CHANNELS, 25)
    ids = [one.whoami().hex().encode() for one in (peer, other)]
    assert [name for _, name in fragment] == sorted([b"*", b"news", *ids])
    assert {name: int.from_bytes(record[17:], "little") for record, name in fragment}[b"*"] == 2


def test_many_channels_come_in_fragments(peer: ThrottrPeer) -> None:
    names = [f"{number:04}".encode() for number in range(200)]
    peer.send(b"".join(peer.keyed(SUBSCRIBE, name) for name in names))
    assert peer.read(200) == b"\x01" * 200
    fragments = peer.fragments(CHANNELS, 25)
    assert [len(fragment) for fragment in fragments] == [81, 81, 38]
    assert [name for fragment in fragments for _, name in fragment] == names


# --- the server ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "size", "each"), [("7.1", 235, 9), ("7.3", 237, 8)])
def test_connections_lists_all_clients(start: Start, family: str, size: int, each: int) -> None:
    server = start(protocol=family)
    peers = [server.connect() for _ in range(12)]
    ids = [peer.whoami() for peer in peers]
    assert len(set(ids)) == 12
    fragments = peers[0].fragments(CONNECTIONS, size)
    assert [len(fragment) for fragment in fragments] == [each, 12 - each]
    assert [record[:16] for fragment in fragments for record, _ in fragment] == ids


def test_a_connection_is_known_by_its_id_and_only_by_that(server: Throttr, peer: ThrottrPeer) -> None:
    assert any(peer.whoami())
    record = peer.ask(bytes([CONNECTION]) + peer.whoami(), 236)
    assert record[1:17] == peer.whoami()
    assert record[17] == 4
    assert record[18:34].rstrip(b"\x00") == b"127.0.0.1"
    assert not peer.status(bytes([CONNECTION]) + bytes(16))


def test_a_connections_numbers_are_true(server: Throttr, peer: ThrottrPeer) -> None:
    other = server.connect()
    peer.status(peer.insert(b"key", 1, 60))
    peer.query(b"key")
    peer.query(b"none")
    peer.status(peer.keyed(SUBSCRIBE, b"news"))
    other.status(other.publish(b"news", b"hello"))
    assert peer.read(8) == b"\x03\x05\x00hello"
    record = peer.ask(bytes([CONNECTION]) + peer.whoami(), 236)[1:]
    numbers = [int.from_bytes(record[at : at + 8], "little") for at in range(43, 235, 8)]
    read, written, published, received = numbers[:4]
    assert (published, received) == (0, 5)
    assert read == 10 + 5 + 6 + 6 + 1 + 17
    assert written == 1 + 6 + 1 + 1 + 8 + 17
    assert numbers[6:] == [1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1]


def test_info_has_every_number_and_they_are_true(server: Throttr, peer: ThrottrPeer) -> None:
    assert len(peer.ask(bytes([INFO]), 433)) == 433
    other = server.connect()
    peer.status(peer.insert(b"key", 1, 60))
    peer.status(peer.set(b"buffer", b"12345", 600))
    peer.status(peer.keyed(SUBSCRIBE, b"news"))
    other.status(other.keyed(SUBSCRIBE, b"news"))
    server.turn(61)
    peer.status(peer.insert(b"key", 1, 60))
    numbers, version = peer.info()
    # Requests in all and in the last whole minute; the INFO that asks is the seventh.
    assert numbers[1:5] == (7, 5, 2, 1)
    assert numbers[13:15] == (1, 1)
    assert numbers[23:25] == (2, 2)
    assert numbers[43:48] == (2, 1, 1, 2, 5)
    assert numbers[48:50] == (2, 1)
    assert numbers[51] == 2
    assert numbers[0] - numbers[50] // 10**9 == 61
    assert numbers[40] > 0
    assert numbers[42] > 0
    assert version.startswith(b"mqcore ")


def test_an_event_answers_for_itself_and_for_what_is_inside(start: Start) -> None:
    peer = start(protocol="7.3").connect()
    assert peer.ask(peer.event(b"*", peer.insert(b"key", 1, 60)), 2) == b"\x01\x01"
    assert peer.ask(peer.event(b"*", peer.insert(b"key", 1, 60)), 2) == b"\x01\x00"


def test_requests_in_one_write_are_answered_in_their_order(peer: ThrottrPeer) -> None:
    assert peer.ask(peer.insert(b"a", 1, 60) + peer.insert(b"b", 1, 60), 2) == b"\x01\x01"
    assert peer.ask(peer.insert(b"a", 1, 60) + peer.update(b"a", QUOTA, DECREASE, 1), 2) == b"\x00\x01"
    assert peer.ask(peer.insert(b"a", 1, 60) + peer.update(b"a", QUOTA, DECREASE, 1), 2) == b"\x00\x00"


def test_a_counter_lives_a_whole_life(peer: ThrottrPeer) -> None:
    assert peer.status(peer.insert(b"life", 7, 60))
    assert peer.query(b"life") == (7, S, 59)
    assert peer.status(peer.update(b"life", QUOTA, DECREASE, 7))
    assert peer.status(peer.update(b"life", QUOTA, PATCH, 10))
    assert peer.status(peer.update(b"life", QUOTA, INCREASE, 20))
    assert peer.query(b"life") == (30, S, 59)
    assert peer.status(peer.update(b"life", TTL, INCREASE, 60))
    assert peer.status(peer.update(b"life", TTL, DECREASE, 60))
    assert peer.status(peer.update(b"life", TTL, PATCH, 90))
    assert peer.query(b"life") == (30, S, 89)
    assert peer.status(peer.keyed(PURGE, b"life"))
    assert peer.query(b"life") is None


# --- what was wrong with the original -----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0x20, 0x30, 0x40, 0x7F, 0x80, 0xFF])
def test_no_code_ends_the_server(server: Throttr, peer: ThrottrPeer, code: int) -> None:
    peer.send(bytes([code]))
    assert peer.is_cut()
    assert server.connect().whoami()


@pytest.mark.parametrize("size", [8_091, 8_210, 20_010, 65_535])
def test_a_large_buffer_is_stored(peer: ThrottrPeer, size: int) -> None:
    value = os.urandom(size - 10)
    assert peer.status(peer.set(b"key", value, 60))
    assert peer.get(b"key") == (S, 59, value)


def test_no_answer_of_twenty_thousand_is_lost_or_reordered(start: Start) -> None:
    for family in ("7.1", "7.3"):
        peer = start(protocol=family).connect()
        keys = [f"{number:05}".encode() for number in range(20_000)]
        requests = b"".join(
            peer.insert(key, number % 1000, 60) + peer.keyed(QUERY, key) + bytes([WHOAMI])
            for number, key in enumerate(keys)
        )
        sender = threading.Thread(target=peer.send, args=(requests,))
        sender.start()
        answers = peer.read(20_000 * (1 + 6 + 17))
        sender.join()
        for number in range(20_000):
            answer = answers[number * 24 : number * 24 + 7]
            assert answer == b"\x01\x01" + (number % 1000).to_bytes(2, "little") + b"\x04\x3b\x00"


def test_an_unknown_code_ends_the_connection_instead_of_blocking_it(server: Throttr, peer: ThrottrPeer) -> None:
    peer.send(peer.insert(b"key", 1, 60) + b"\x0b" + bytes([WHOAMI]))
    assert peer.read(1) == b"\x01"
    assert peer.is_cut()


def test_unsubscribe_without_subscription_fails(server: Throttr) -> None:
    peers = [server.connect() for _ in range(12)]
    for peer in peers[::2]:
        assert peer.status(peer.keyed(SUBSCRIBE, b"news"))
    for peer in peers[1::2]:
        assert peer.status(peer.keyed(SUBSCRIBE, b"other"))
        assert not peer.status(peer.keyed(UNSUBSCRIBE, b"news"))


def test_the_name_of_what_has_expired_is_free_at_once(server: Throttr, peer: ThrottrPeer) -> None:
    peer.status(peer.insert(b"key", 1, 1))
    server.turn(1)
    assert peer.status(peer.insert(b"key", 2, 60))
    assert peer.query(b"key") == (2, S, 59)


def test_shortened_time_to_live_takes_effect(server: Throttr, peer: ThrottrPeer) -> None:
    peer.status(peer.insert(b"key", 1, 60))
    peer.status(peer.update(b"key", TTL, PATCH, 1))
    server.turn(1)
    assert peer.query(b"key") is None


def test_a_buffer_set_after_it_expired_is_there(server: Throttr, peer: ThrottrPeer) -> None:
    peer.status(peer.set(b"key", b"old", 1))
    server.turn(1)
    assert peer.status(peer.set(b"key", b"new", 60))
    assert peer.get(b"key") == (S, 59, b"new")


def test_missing_stat_is_one_byte(peer: ThrottrPeer) -> None:
    assert peer.stat(b"missing") is None
    assert peer.is_quiet()


def test_event_with_empty_or_invalid_content_is_rejected(start: Start) -> None:
    peer = start(protocol="7.3").connect()
    nested = peer.event(b"", peer.event(b"", bytes([WHOAMI])))
    for inside in (b"", b"\x01", b"\xff", bytes([WHOAMI]) * 2):
        assert not peer.status(peer.event(b"*", inside))
    assert not peer.status(nested)
    assert peer.whoami()


def test_two_who_subtract_at_once_never_both_get_the_last_unit(start: Start) -> None:
    server = start("uint32")
    first = server.connect()
    first.status(first.insert(b"key", 5_000, 3600))
    request = first.update(b"key", QUOTA, DECREASE, 1)
    taken = []

    def drain() -> None:
        with server.connect() as peer:
            peer.send(request * 2_000)
            taken.append(peer.read(2_000).count(1))

    threads = [threading.Thread(target=drain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 5_000
    assert first.query(b"key") == (0, S, 3599)


@pytest.mark.parametrize("overflow", ["wrap", "saturate"])
def test_increase_beyond_the_top_does_what_the_listener_says(start: Start, overflow: str) -> None:
    peer = start("uint8", overflow=overflow).connect()
    peer.status(peer.insert(b"key", 250, 60))
    assert peer.status(peer.update(b"key", QUOTA, INCREASE, 10))
    assert peer.query(b"key") == (4 if overflow == "wrap" else 255, S, 59)


def test_messages_do_not_overtake_answers_to_earlier_requests() -> None:
    """Each channel belongs to one of four shards, which answer and publish independently of each other."""
    channels = [b"c%04d" % number for number in range(1500)]
    with mqcore.Broker(listen="throttr://127.0.0.1:0?protocol=7.3", shards=4) as broker:
        host, _, port = broker.listeners[0].removeprefix("throttr://").rpartition(":")
        done = threading.Event()

        def publish() -> None:
            with ThrottrPeer((host, int(port))) as peer:
                while not done.is_set():
                    peer.send(b"".join(peer.publish(channel, channel) for channel in channels))
                    peer.read(len(channels))

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            between = 0
            # So many messages come between answers that some would overtake one if they could.
            while between < 300:
                with ThrottrPeer((host, int(port))) as peer:
                    peer.send(b"".join(peer.keyed(SUBSCRIBE, channel) for channel in channels))
                    between += _messages_between_answers(peer, channels)
        finally:
            done.set()
            publisher.join()


def _messages_between_answers(peer: ThrottrPeer, channels: list[bytes]) -> int:
    """How many messages of these channels come before the last answer to subscribing to them, one after the other."""
    answered = messages = 0
    while answered < len(channels):
        first = peer.read(1)
        if first != bytes([EVENT]):
            assert first == b"\x01"
            answered += 1
            continue
        size = peer.read(1)[0]
        body = int.from_bytes(peer.read(peer.width), "little")
        channel = peer.read(size)
        assert peer.read(body) == channel
        assert channels.index(channel) < answered, f"a message of {channel!r} came before its answer {answered}"
        messages += 1
    return messages
