"""MQKS as its document tells it: each sentence, by a raw peer of a real listener."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

import mqcore
import mqcore.sync
from mqcore.testing import TestBroker
from mqks_peer import ERROR, MqksPeer
from served import serving

Connect = Callable[[], MqksPeer]


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker(listen=["mqks://127.0.0.1:0"], shards=2) as broker:
        yield broker


@pytest.fixture
def connect(broker: TestBroker) -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(MqksPeer(broker.listeners[0]))


@pytest.fixture
def peer(connect: Connect) -> MqksPeer:
    return connect()


@pytest.fixture
def other(connect: Connect) -> MqksPeer:
    return connect()


def settle(broker: TestBroker, *peers: MqksPeer) -> list[list[bytes]]:
    """Messages that each peer received, once nothing is in flight."""
    early = [peer.until_now() for peer in peers]
    asyncio.run(broker.settle())
    return [lines + peer.until_now() for lines, peer in zip(early, peers, strict=True)]


def ok(peer: MqksPeer, line: str) -> None:
    """Send a request with `--confirm` and check that the broker confirms it."""
    assert peer.ask(line) == f"{line.partition(' ')[0]} ok ".encode()


def number(peer: MqksPeer, expression: str) -> int:
    """A statistic."""
    answer = peer.ask(f"ev _eval {expression}")
    assert answer.startswith(b"ev ok "), answer
    return int(answer.removeprefix(b"ev ok "))


def leave(broker: TestBroker, peer: MqksPeer) -> None:
    """Close, and wait until the broker has done what it does then."""
    peer.half_close()
    peer.rest()
    peer.close()
    asyncio.run(broker.settle())


# --- requests and answers ------------------------------------------------------------------------------------------


def test_a_request_is_one_line_of_id_action_and_data(peer: MqksPeer) -> None:
    peer.send_bytes(b"r1 ping one\nr2 ping two\n")
    assert peer.lines(2) == [b"r1 ok one", b"r2 ok two"]


def test_request_may_arrive_byte_by_byte(peer: MqksPeer) -> None:
    for byte in b"r1 ping one\nr2 ping two\n":
        peer.send_bytes(bytes([byte]))
    assert peer.lines(2) == [b"r1 ok one", b"r2 ok two"]


def test_a_request_may_be_answered_not_at_all_once_or_many_times(broker: TestBroker, peer: MqksPeer) -> None:
    peer.send("c1 consume q1 e1", "m1 publish e1 a", "m2 publish e1 b", "p1 ping once")
    (lines,) = settle(broker, peer)
    assert sorted(lines) == [b"c1 ok m1 event=e1 a", b"c1 ok m2 event=e1 b", b"p1 ok once"]


def test_an_error_is_answered_by_a_number_that_the_broker_explains(broker: TestBroker, peer: MqksPeer) -> None:
    error = peer.failed("x1 no_such_action data")
    (failed,) = broker.errors()
    assert (failed.id, failed.request, failed.protocol) == (error, "x1", "mqks")
    assert "unknown action `no_such_action`" in failed.why
    assert failed.at.strftime("%Y%m%d%H%M%S") == error[:14]


@pytest.mark.parametrize(
    "request_line",
    [
        "r1 publish --confirm e1 d1",
        "r1 consume --confirm q1 e1",
        "r1 rebind --confirm q1 e1",
        "r1 delete_queue --confirm q1",
    ],
)
def test_confirm_as_the_first_argument_is_answered_ok(peer: MqksPeer, request_line: str) -> None:
    ok(peer, request_line)


@pytest.mark.parametrize("action", ["ack", "reject"])
def test_confirm_of_a_settlement_is_answered_ok(peer: MqksPeer, action: str) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --manual-ack")
    peer.send("m1 publish e1 d1")
    assert peer.line() == b"c1 ok m1 event=e1 d1"
    peer.send(f"r1 {action} --confirm c1 m1")
    assert b"r1 ok " in peer.lines(1 if action == "ack" else 2)


def test_confirm_of_delete_consumer_is_answered_ok(peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1")
    ok(peer, "r1 delete_consumer --confirm c1")


@pytest.mark.parametrize(
    "request_line", ["r1 publish --confirm e1", "r1 consume --confirm q1 --nonsense", "r1 rebind --confirm q1"]
)
def test_confirm_as_the_first_argument_is_answered_error(peer: MqksPeer, request_line: str) -> None:
    peer.failed(request_line)


def test_confirm_elsewhere_is_not_a_flag(peer: MqksPeer) -> None:
    assert peer.ask("r1 ping data --confirm") == b"r1 ok data --confirm"
    assert peer.ask("r2 ping --confirm") == b"r2 ok --confirm"
    peer.failed("r3 consume q1 --confirm e1")


def test_the_ids_of_requests_are_those_of_messages_and_consumers(peer: MqksPeer) -> None:
    ok(peer, "my-consumer consume --confirm q1 e1 --manual-ack")
    peer.send("my-message publish e1 d1")
    assert peer.line() == b"my-consumer ok my-message event=e1 d1"
    ok(peer, "r1 ack --confirm my-consumer my-message")
    assert number(peer, "len(state.unacked)") == 0


def test_a_space_ends_an_id(broker: TestBroker, peer: MqksPeer) -> None:
    """A queue cannot be called `a b`: `b` is the first event."""
    ok(peer, "c1 consume --confirm a b")
    peer.send("m1 publish b data", "m2 publish a b")
    assert settle(broker, peer) == [[b"c1 ok m1 event=b data"]]


def test_data_of_publish_and_ping_may_have_spaces(peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1")
    assert peer.ask("m1 publish e1  two  words ") == b"c1 ok m1 event=e1  two  words"
    assert peer.ask("p1 ping  two  words ") == b"p1 ok  two  words"


def test_code_of_eval_may_have_spaces(broker: TestBroker, peer: MqksPeer) -> None:
    peer.failed("ev1 _eval len( state.queues )")
    assert "nothing is evaluated" in broker.errors()[0].why


def test_json_never_breaks_a_line(peer: MqksPeer) -> None:
    content = {"text": "tab\tand\nnewline", "list": [1, None, "\u00e9"]}
    ok(peer, "c1 consume --confirm q1 e1")
    answer = peer.ask(f"m1 publish e1 {json.dumps(content)}")
    assert json.loads(answer.removeprefix(b"c1 ok m1 event=e1 ")) == content


def test_the_hello_world_of_the_document(broker: TestBroker, connect: Connect) -> None:
    """Alice and Bob share a queue, Charlie has one of his own; Dave says hello."""
    alice, bob, charlie, dave = (connect() for _ in range(4))
    alice.send("Alice consume greetings hi hello")
    bob.send("Bob consume greetings hi hello")
    charlie.send("Charlie consume greetings-and-byes hi hello bye good-bye")
    settle(broker, alice, bob, charlie)
    dave.send("Dave publish hello world")
    to_alice, to_bob, to_charlie, to_dave = settle(broker, alice, bob, charlie, dave)
    assert to_alice + to_bob in ([b"Alice ok Dave event=hello world"], [b"Bob ok Dave event=hello world"])
    assert to_charlie == [b"Charlie ok Dave event=hello world"]
    assert to_dave == []


# --- publish -------------------------------------------------------------------------------------------------------


def test_publish_answers_nothing(broker: TestBroker, peer: MqksPeer) -> None:
    peer.send("m1 publish e1 d1")
    assert settle(broker, peer) == [[]]


def test_publish_puts_a_copy_into_each_queue_that_is_bound_to_the_event(peer: MqksPeer) -> None:
    for name in ("q1", "q2", "q3"):
        ok(peer, f"c-{name} consume --confirm {name} {'e1' if name != 'q3' else 'e2'}")
    peer.send("m1 publish e1 d1")
    assert sorted(peer.lines(2)) == [b"c-q1 ok m1 event=e1 d1", b"c-q2 ok m1 event=e1 d1"]
    assert number(peer, "state.queued") == 2


def test_publish_without_a_queue_is_counted_as_published(peer: MqksPeer) -> None:
    ok(peer, "m1 publish --confirm nobody d1")
    assert (number(peer, "state.published"), number(peer, "state.queued")) == (1, 0)


# --- consume -------------------------------------------------------------------------------------------------------


def test_consume_starts_a_consumer_that_gets_the_messages_of_its_queue(peer: MqksPeer, other: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 e2 --delete-queue-when-unused=5 --manual-ack")
    other.send("m1 publish e1 d1", "m2 publish e2 d2")
    assert peer.lines(2) == [b"c1 ok m1 event=e1 d1", b"c1 ok m2 event=e2 d2"]


def test_consumers_of_a_queue_share_it_one_after_the_other(peer: MqksPeer, other: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1")
    ok(other, "c2 consume --confirm q1 e1")
    peer.send(*(f"m{number} publish e1 d" for number in range(10)))
    assert len(peer.lines(5)) == len(other.lines(5)) == 5


def test_consume_replaces_the_events_of_its_queue(broker: TestBroker, peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1")
    ok(peer, "c1 consume --confirm q1 e2")
    peer.send("m1 publish e1 no", "m2 publish e2 yes")
    assert settle(broker, peer) == [[b"c1 ok m2 event=e2 yes"]]


def test_consume_without_events_keeps_those_of_its_queue(broker: TestBroker, peer: MqksPeer, other: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1")
    ok(other, "c2 consume --confirm q1")
    peer.send("m1 publish e1 d", "m2 publish e1 d")
    assert sum(map(len, settle(broker, peer, other))) == 2


def test_consume_adds_events_and_tells_all_consumers_of_the_queue(peer: MqksPeer, other: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1")
    other.send("c2 consume --confirm q1 --add e2")
    assert sorted(other.lines(2)) == [b"c2 ok ", b"c2 ok --update q1 e1 e2"]
    assert peer.line() == b"c1 ok --update q1 e1 e2"


def test_consumer_is_notified_of_each_rebind_with_its_own_flags(peer: MqksPeer, other: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --delete-queue-when-unused=5 --manual-ack")
    ok(other, "rb1 rebind --confirm q1 e1 e2")
    assert peer.line() == b"c1 ok --update q1 e1 e2 --delete-queue-when-unused=5.0 --manual-ack"


def test_a_queue_is_deleted_at_once_when_it_is_unused(peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --delete-queue-when-unused")
    assert number(peer, "len(state.queues)") == 1
    ok(peer, "r1 delete_consumer --confirm c1")
    assert number(peer, "len(state.queues)") == 0


def test_a_queue_is_deleted_when_it_was_unused_for_some_seconds(broker: TestBroker, peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --delete-queue-when-unused=5")
    ok(peer, "r1 delete_consumer --confirm c1")
    asyncio.run(broker.clock.advance(seconds=4.9))
    assert number(peer, "len(state.queues)") == 1
    asyncio.run(broker.clock.advance(seconds=0.2))
    assert number(peer, "len(state.queues)") == 0


def test_a_queue_that_is_used_again_in_time_is_not_deleted(broker: TestBroker, peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --delete-queue-when-unused=5")
    ok(peer, "r1 delete_consumer --confirm c1")
    asyncio.run(broker.clock.advance(seconds=4))
    ok(peer, "c2 consume --confirm q1 e1 --delete-queue-when-unused=5")
    asyncio.run(broker.clock.advance(seconds=60))
    assert number(peer, "len(state.queues)") == 1


def test_the_consumers_of_a_client_that_disconnects_are_deleted(
    broker: TestBroker, peer: MqksPeer, other: MqksPeer
) -> None:
    ok(peer, "c1 consume --confirm q1 e1")
    ok(other, "c2 consume --confirm q1 e1")
    assert number(other, "len(state.consumers)") == 2
    leave(broker, peer)
    assert number(other, "len(state.consumers)") == 1
    other.send("m1 publish e1 a", "m2 publish e1 b")
    assert other.lines(2) == [b"c2 ok m1 event=e1 a", b"c2 ok m2 event=e1 b"]


def test_a_client_that_comes_back_restarts_its_consumers(broker: TestBroker, connect: Connect) -> None:
    first, publisher = connect(), connect()
    ok(first, "c1 consume --confirm q1 e1")
    leave(broker, first)
    ok(publisher, "m1 publish --confirm e1 meanwhile")
    again = connect()
    again.send("c1 consume --confirm q1 e1")
    assert sorted(again.lines(2)) == [b"c1 ok ", b"c1 ok m1 event=e1 meanwhile"]


def test_unacknowledged_messages_of_a_manual_consumer_are_requeued_when_it_disconnects(
    broker: TestBroker, peer: MqksPeer, other: MqksPeer
) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --manual-ack")
    other.send("m1 publish e1 a", "m2 publish e1 b", "m3 publish e1 c")
    assert len(peer.lines(3)) == 3
    ok(peer, "a1 ack --confirm c1 m2")
    leave(broker, peer)
    other.send("c2 consume q1 --manual-ack")
    assert sorted(other.lines(2)) == [b"c2 ok m1 event=e1,retry=1 a", b"c2 ok m3 event=e1,retry=1 c"]


# --- rebind --------------------------------------------------------------------------------------------------------


def test_rebind_replaces_the_events(broker: TestBroker, peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 e2")
    peer.send("rb1 rebind q1 e3 e4 e5.id1.a1 e5.id2.a2")
    assert peer.line() == b"c1 ok --update q1 e3 e4 e5.id1.a1 e5.id2.a2"
    peer.send("m1 publish e1 no", "m2 publish e5.id2.a2 yes")
    assert settle(broker, peer) == [[b"c1 ok m2 event=e5.id2.a2 yes"]]


def test_rebind_removes_some_events_and_adds_others(peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e3 e4 e5.id1.a1 e5.id2.a2")
    peer.send("rb2 rebind q1 --remove e3 --add e6 e7")
    assert peer.line() == b"c1 ok --update q1 e4 e5.id1.a1 e5.id2.a2 e6 e7"


def test_rebind_removes_events_by_masks(peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e4 e5.id1.a1 e5.id2.a2 e5.id3.a3")
    peer.send("rb3 rebind q1 --remove-mask e5.*.a1 e5.*.a2 --add e8")
    assert peer.line() == b"c1 ok --update q1 e4 e5.id3.a3 e8"


@pytest.mark.parametrize(
    ("mask", "gone", "kept"),
    [
        ("*.updated", ["user.updated", "comment.updated"], ["user.created", "a.user.updated"]),
        ("document.*", ["document.created", "document.removed"], ["document", "document.a.b"]),
        ("user.*.connected", ["user.123.connected", "user.57e82b3931d9d614f0247ac7.connected"], ["user.connected"]),
        ("*.*.deleted", ["post.123.deleted", "category.subcategory.deleted"], ["post.deleted"]),
    ],
)
def test_a_star_of_a_mask_stands_for_any_characters_between_dots(
    peer: MqksPeer, mask: str, gone: list[str], kept: list[str]
) -> None:
    ok(peer, f"c1 consume --confirm q1 {' '.join(gone + kept)}")
    peer.send(f"rb1 rebind q1 --remove-mask {mask}")
    assert peer.line() == f"c1 ok --update q1 {' '.join(sorted(kept))}".encode()


def test_a_mask_works_only_for_events_with_dots(broker: TestBroker, peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 plain")
    peer.send("rb1 rebind q1 --remove-mask * pl*")
    assert settle(broker, peer) == [[]]


# --- ack and reject ------------------------------------------------------------------------------------------------


def test_ack_settles_one_message_and_answers_nothing(broker: TestBroker, peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --manual-ack")
    peer.send("m1 publish e1 a", "m2 publish e1 b")
    assert len(peer.lines(2)) == 2
    peer.send("a1 ack c1 m1")
    assert settle(broker, peer) == [[]]
    assert number(peer, "len(state.unacked)") == 1


def test_ack_settles_all_messages_of_a_consumer(broker: TestBroker, peer: MqksPeer, other: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --manual-ack")
    ok(other, "c2 consume --confirm q2 e1 --manual-ack")
    peer.send("m1 publish e1 a", "m2 publish e1 b")
    assert len(peer.lines(2)) == len(other.lines(2)) == 2
    ok(peer, "a1 ack --confirm c1 --all")
    assert number(peer, "len(state.unacked)") == 2
    leave(broker, peer)
    assert number(other, "len(state.messages)") == 0


def test_reject_returns_a_message_with_its_retry_counter(broker: TestBroker, peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --manual-ack")
    assert peer.ask("m1 publish e1 d1") == b"c1 ok m1 event=e1 d1"
    for retry in (1, 2, 3):
        assert peer.ask(f"rj{retry} reject c1 m1") == f"c1 ok m1 event=e1,retry={retry} d1".encode()
    ok(peer, "a1 ack --confirm c1 m1")
    assert settle(broker, peer) == [[]]


def test_reject_returns_all_messages_of_a_consumer(peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --manual-ack")
    peer.send("m1 publish e1 a", "m2 publish e1 b")
    assert len(peer.lines(2)) == 2
    peer.send("rj1 reject c1 --all")
    assert sorted(peer.lines(2)) == [b"c1 ok m1 event=e1,retry=1 a", b"c1 ok m2 event=e1,retry=1 b"]


def test_other_clients_may_settle_for_a_consumer(peer: MqksPeer, other: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --manual-ack")
    assert peer.ask("m1 publish e1 d1") == b"c1 ok m1 event=e1 d1"
    ok(other, "a1 ack --confirm c1 m1")
    assert number(other, "len(state.unacked)") == 0


# --- deletion ------------------------------------------------------------------------------------------------------


def test_delete_consumer_ends_its_messages_and_answers_nothing(broker: TestBroker, peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1")
    peer.send("dc1 delete_consumer c1", "m1 publish e1 d1")
    assert settle(broker, peer) == [[]]
    assert number(peer, "len(state.messages)") == 1


def test_delete_queue_is_instant_and_answers_nothing(broker: TestBroker, peer: MqksPeer) -> None:
    peer.send("c1 consume q1", "rb1 rebind q1 e1", "dc1 delete_consumer c1", "m1 publish e1 d1")
    settle(broker, peer)
    assert number(peer, "len(state.messages)") == 1
    peer.send("dq1 delete_queue q1")
    assert settle(broker, peer) == [[]]
    assert (number(peer, "len(state.queues)"), number(peer, "len(state.messages)")) == (0, 0)
    peer.send("m2 publish e1 d2")
    assert settle(broker, peer) == [[]]
    assert number(peer, "len(state.messages)") == 0


def test_consumers_of_a_deleted_queue_are_notified_that_it_has_no_events(broker: TestBroker, peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1")
    peer.send("dq1 delete_queue --confirm q1")
    assert sorted(peer.lines(2)) == [b"c1 ok --update q1", b"dq1 ok "]
    peer.send("m1 publish e1 d1")
    assert settle(broker, peer) == [[]]


# --- ping and _eval ------------------------------------------------------------------------------------------------


def test_ping_answers_its_data(peer: MqksPeer) -> None:
    assert peer.ask("pg1 ping service1") == b"pg1 ok service1"


def test_eval_tells_the_number_of_queues(peer: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1")
    assert peer.ask("ev1 _eval --worker=0 len(state.queues)") == b"ev1 ok 1"


SPELLS = {
    "state.published": 1,
    "state.queued": 1,
    "state.consumed": 1,
    "len(state.queues)": 1,
    "len([u for u in state.queues_used.itervalues() if u.is_set()])": 1,
    "len(state.queues_to_delete_when_unused)": 1,
    "state.commands_put": 0,
    "state.commands_got": 0,
    "sum(c.qsize() for c in state.commands_to_workers.itervalues())": 0,
    "sum(q.qsize() for q in state.queues.itervalues())": 0,
    "sum(len(ms) for ms in state.messages_by_consumer_ids.itervalues())": 1,
    "sum(q.qsize() for q in state.responses_by_clients.itervalues())": 0,
    "len(state.queues_by_events)": 1,
    "len(state.events_by_queues)": 1,
    "len(state.queues_by_consumer_ids)": 1,
    "sum(len(cs) for cs in state.consumers_by_queues.itervalues())": 1,
    "len(state.consumer_ids_by_clients)": 1,
    "len(set(state.clients_by_consumer_ids.itervalues()))": 1,
    "len(state.socks_by_clients)": 2,
}
"""Expressions of the original's `stats.py`, and their values with one consumer that has received a message."""


def test_stats_of_the_original_gets_its_list(broker: TestBroker, peer: MqksPeer, other: MqksPeer) -> None:
    ok(peer, "c1 consume --confirm q1 e1 --manual-ack --delete-queue-when-unused")
    ok(other, "m1 publish --confirm e1 d1")
    assert settle(broker, peer) == [[b"c1 ok m1 event=e1 d1"]]
    assert peer.ask("w _eval WORKERS") == b"w ok 1"
    spells = ", ".join(SPELLS)
    assert peer.ask(f"s _eval --worker=0 [{spells}]") == f"s ok {list(SPELLS.values())}".encode()
    assert peer.ask("h _eval ' '.join(config['workers'])").count(b":") == 2
    peer.failed(f"s _eval [{spells}, 1 + 1]")


def test_error_numbers_of_one_moment_differ(peer: MqksPeer) -> None:
    numbers = [peer.failed(f"x{number} nothing") for number in range(20)]
    assert len({number[-4:] for number in numbers}) > 1
    assert len(set(numbers)) == len(numbers)


def test_error_numbers_of_two_starts_differ() -> None:
    ends = []
    for _ in range(2):
        with (
            serving("--listen", "mqks://127.0.0.1:0") as broker,
            MqksPeer(f"mqks://{broker.ready['listeners']['mqks']}") as peer,
        ):
            ends.append([peer.failed(f"x{number} nothing")[-4:] for number in range(3)])
    assert ends[0] != ends[1]


def test_error_numbers_of_a_real_clock_have_microseconds() -> None:
    with mqcore.Broker(listen="mqks://127.0.0.1:0") as broker, MqksPeer(broker.listeners[0]) as peer:
        numbers = [peer.failed(f"x{number} nothing") for number in range(20)]
    assert any(number[17:20] != "000" for number in numbers), numbers


@pytest.mark.parametrize(
    "code",
    ["1 + 1", "__import__('os').getpid()", "len(state.queues) ", "len(state.queues)+0", "state", "len(state.Queues)"],
)
def test_eval_evaluates_nothing(broker: TestBroker, peer: MqksPeer, code: str) -> None:
    if code.strip() == "len(state.queues)":
        # White space at the end of a line is not part of it.
        assert peer.ask(f"ev1 _eval {code}") == b"ev1 ok 0"
        return
    error = peer.failed(f"ev1 _eval {code}")
    assert broker.errors()[0].id == error
    assert "known expressions: len(state.queues), " in broker.errors()[0].why


def test_eval_for_another_worker_is_an_error(peer: MqksPeer) -> None:
    peer.failed("ev1 _eval --worker=1 len(state.queues)")


def test_the_error_line_of_the_document_is_the_form_of_every_error(peer: MqksPeer) -> None:
    assert ERROR.match(peer.ask("rb1 rebind q1"))


@pytest.mark.parametrize("identity", ["order 7", "--all", "%:x", "a\tb", "100%", ""])
def test_a_message_of_another_protocol_is_settled_whatever_its_id(identity: str) -> None:
    listeners = ("tmqp://127.0.0.1:0", "mqks://127.0.0.1:0")
    with TestBroker(listen=listeners) as broker, MqksPeer(broker.listeners[1]) as peer:
        with mqcore.sync.connect(broker.listeners[0]) as client:
            options = mqcore.QueueOptions(status="roundrobin", use_message_id=False)
            client.declare("orders", 0, options)
            for body in ("first", "second"):
                client.publish("orders/0", body, id=identity, confirm=False)
            while client.queue_information("orders/0").messages < 2:
                asyncio.run(broker.settle())
        peer.send("c consume orders --manual-ack")
        words = [peer.line().split(b" ") for _ in range(2)]
        assert [word[-1] for word in words] == [b"first", b"second"]
        assert {len(word) for word in words} == {5}, "the id is one word"
        peer.send(f"a ack --confirm c {words[0][2].decode()}")
        assert peer.line() == b"a ok "
        asyncio.run(broker.settle())
        counters = broker.stats().queue("orders/0")
        assert (counters.acks, counters.in_flight) == (1, 1)
