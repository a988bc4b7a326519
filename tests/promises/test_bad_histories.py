"""The model finds each kind of broken promise in a handwritten history, and none in the same history repaired."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from promises.check import check
from promises.history import Event, History
from promises.model import QueueRules, World

QUEUE = "orders/1"
SHARED = QueueRules(QUEUE, status="roundrobin", acks=True)
SAVED = QueueRules(QUEUE, status="roundrobin", acks=True, policy="at-least-once", storage=True)


def event(kind: str, at: float, **fields: Any) -> Event:
    """An event that lasts a millisecond, in the one queue."""
    fields.setdefault("queue", "" if kind in {"fence", "crash", "stop", "cut", "start"} else QUEUE)
    return Event(kind, at, fields.pop("until", at + 0.001), **fields)  # type: ignore[arg-type]


def published(label: str, at: float, outcome: str = "confirmed", **fields: Any) -> Event:
    return event("publish", at, client="p", label=label, outcome=outcome, asked=True, **fields)


def joined(at: float, client: str = "k", prefetch: int = 10) -> Event:
    return event("join", at, client=client, count=prefetch)


def delivered(label: str, at: float, client: str = "k") -> Event:
    return event("deliver", at, client=client, label=label)


def settled(label: str, at: float, outcome: str = "ack", client: str = "k") -> Event:
    return event("settle", at, client=client, label=label, outcome=outcome)


def rules_found(rules: QueueRules, *events: Event, others: tuple[QueueRules, ...] = ()) -> list[str]:
    """The names of the broken rules."""
    world = World({each.address: each for each in (rules, *others)})
    return [finding.rule for finding in check(world, History(list(events)))]


WORKED = (published("a", 1), joined(2), delivered("a", 3), settled("a", 4))


def test_message_that_was_published_consumed_and_acknowledged_breaks_nothing() -> None:
    assert rules_found(SHARED, *WORKED) == []
    assert rules_found(SAVED, *WORKED, event("crash", 5)) == []


# --- lost ----------------------------------------------------------------------------------------------------------


def test_confirmed_message_that_is_missing_is_found() -> None:
    assert rules_found(SHARED, published("a", 1)) == ["lost"]
    assert rules_found(SHARED, published("a", 1), event("stored", 9, label="a")) == []
    assert rules_found(SHARED, published("a", 1, "unknown")) == []


def test_message_of_a_queue_that_no_client_consumes_is_not_excused_by_a_sibling() -> None:
    sibling = QueueRules("orders/2", status="push")
    joins = event("join", 0, client="k", queue="orders/2")
    leaves = event("leave", 5, client="k", queue="orders/2", outcome="closed")
    assert rules_found(QueueRules(QUEUE), joins, published("a", 1), leaves, others=(sibling,)) == ["lost"]


def test_message_that_is_missing_after_a_crash_is_found_if_it_was_saved() -> None:
    assert rules_found(SAVED, published("a", 1), event("crash", 2)) == ["lost"]
    assert rules_found(SHARED, published("a", 1), event("crash", 2)) == []
    assert rules_found(SAVED, published("a", 1, "accepted"), event("crash", 2)) == []


def test_copy_for_a_topic_must_survive_a_crash_once_it_is_confirmed() -> None:
    assert rules_found(SAVED, published("a", 1, via="topic"), event("crash", 2)) == ["lost"]


def test_unconfirmed_message_must_exist_if_a_later_one_of_its_connection_was_confirmed() -> None:
    later = (published("b", 2), event("stored", 9, label="b"))
    assert rules_found(SHARED, published("a", 1, "sent"), *later) == ["lost"]
    assert rules_found(SHARED, published("a", 1, "sent")) == []


def test_message_in_flight_at_a_consumer_that_left_must_return() -> None:
    left = event("leave", 4, client="k", outcome="died")
    assert rules_found(SHARED, published("a", 1), joined(2), delivered("a", 3), left) == ["lost"]
    without_acks = QueueRules(QUEUE, status="roundrobin")
    assert rules_found(without_acks, published("a", 1), joined(2), left) == []


def test_pulled_message_that_never_reached_the_program_is_found() -> None:
    rules = QueueRules(QUEUE, status="pull")
    pulls = (joined(0, prefetch=0), event("leave", 5, client="k", outcome="pulled"))
    assert rules_found(rules, published("a", 1), *pulls) == ["lost"]


def test_missing_messages_are_allowed_if_as_many_remain_unread() -> None:
    assert rules_found(SHARED, published("a", 1), event("remaining", 9, count=1)) == []
    assert rules_found(SHARED, published("a", 1), published("b", 1), event("remaining", 9, count=1)) == ["lost"]


def test_cache_without_its_newest_message_is_found() -> None:
    rules = QueueRules(QUEUE, status="cache")
    both = (published("a", 1), published("b", 2))
    assert rules_found(rules, *both, event("stored", 9, label="a")) == ["lost"]
    assert rules_found(rules, *both) == ["lost"]
    assert rules_found(rules, *both, event("stored", 9, label="b")) == []
    # A message without a confirmation may have arrived later.
    late = (published("a", 1, outcome="sent"), published("b", 2))
    assert rules_found(rules, *late, event("stored", 9, label="a")) == []


def test_saved_messages_that_are_fewer_after_a_crash_are_found() -> None:
    rules = QueueRules(QUEUE, status="pull", policy="at-least-once", storage=True)
    assert rules_found(rules, event("saved", 1, count=20), event("crash", 2), event("remaining", 9, count=10)) == [
        "lost"
    ]
    assert rules_found(rules, event("saved", 1, count=20), event("crash", 2), event("remaining", 9, count=20)) == []


def test_an_ack_that_was_late_for_its_client_may_have_settled_the_message() -> None:
    assert rules_found(SHARED, *WORKED[:3], settled("a", 3, outcome="late"), event("leave", 9, client="k")) == []
    assert rules_found(SHARED, *WORKED[:3], settled("a", 3, outcome=""), event("leave", 9, client="k")) == ["lost"]


def test_two_saved_copies_of_one_message_count_as_two() -> None:
    rules = QueueRules(QUEUE, status="pull", policy="at-least-once", storage=True)
    copies = (published("a", 1), event("stored", 9, label="a"), event("stored", 9, label="a", count=1))
    assert "lost" in rules_found(rules, *copies, event("saved", 2, count=3))
    # Dead letters of two queues, as a third queue sees them.
    assert "lost" not in rules_found(rules, *copies, event("saved", 2, count=2))


# --- drops ---------------------------------------------------------------------------------------------------------


def test_drop_that_no_option_explains_is_found() -> None:
    for reason in ("no-consumer", "slow", "limit", "expired", "refused", "erased", "unreadable", "duplicate"):
        assert rules_found(SHARED, *WORKED, event("dropped", 9, outcome=reason, count=1)) == ["drop"], reason


def test_drops_that_an_option_explains_break_nothing() -> None:
    dropped = event("dropped", 9, outcome="refused", count=1)
    refusing = QueueRules(QUEUE, status="roundrobin", acks=True, policy="ack-on-consume")
    refused = (published("a", 1, "nacked"), joined(2), delivered("a", 3), settled("a", 4, "nack"))
    assert rules_found(refusing, *refused, dropped) == []
    mortal = QueueRules(QUEUE, status="roundrobin", message_timeout=0.1)
    assert rules_found(mortal, published("a", 1), event("dropped", 9, outcome="expired", count=1)) == []
    once = QueueRules(QUEUE, status="roundrobin", acks=True, put_back_limit=1)
    attempts = (published("a", 1), joined(2), delivered("a", 3), settled("a", 4, "nack"))
    assert rules_found(once, *attempts, event("dropped", 9, outcome="limit", count=1)) == []


def test_dead_letter_that_did_not_arrive_is_found() -> None:
    rules = QueueRules(QUEUE, status="roundrobin", acks=True, put_back_limit=1, dead_letter="graves/1")
    graves = QueueRules("graves/1", status="pull")
    attempts = (published("a", 1), joined(2), delivered("a", 3), settled("a", 4, "nack"))
    buried = event("stored", 9, queue="graves/1", label="a")
    assert rules_found(rules, *attempts, others=(graves,)) == ["lost"]
    assert rules_found(rules, *attempts) == ["lost"], "there is no such queue"
    assert rules_found(rules, *attempts, buried, others=(graves,)) == []
    assert rules_found(rules, published("a", 1), buried, others=(graves,)) == ["drop"], "no attempt was made"


def test_message_that_no_client_published_is_found() -> None:
    assert rules_found(SHARED, *WORKED, event("stored", 9, label="b")) == ["stranger"]


# --- repetitions ---------------------------------------------------------------------------------------------------


def test_message_delivered_twice_without_a_reason_is_found() -> None:
    again = (published("a", 1), joined(2), joined(2, "l"), delivered("a", 3), delivered("a", 4, "l"), settled("a", 5))
    assert rules_found(SHARED, *again) == ["doubled"]
    assert rules_found(QueueRules(QUEUE, status="push", acks=True), *again) == []


def test_message_delivered_twice_to_one_consumer_of_a_push_queue_is_found() -> None:
    again = (published("a", 1), joined(2), delivered("a", 3), delivered("a", 4), settled("a", 5))
    assert rules_found(QueueRules(QUEUE, status="push", acks=True), *again) == ["doubled"]


@pytest.mark.parametrize("reason", ["nack", "leave", "crash", "cut", "timeout"])
def test_redelivery_with_a_reason_breaks_nothing(reason: str) -> None:
    rules = QueueRules(QUEUE, status="roundrobin", acks=True, acknowledge_timeout=1.0 if reason == "timeout" else 60.0)
    causes = {
        "nack": [settled("a", 4, "nack")],
        "leave": [event("leave", 4, client="k", outcome="died")],
        "crash": [event("crash", 4)],
        "cut": [event("cut", 4)],
        "timeout": [],
    }[reason]
    again = (joined(2), delivered("a", 3), *causes, joined(2, "l"), delivered("a", 5, "l"), settled("a", 6, client="l"))
    assert rules_found(rules, published("a", 1), *again) == []


def test_one_nack_explains_one_redelivery() -> None:
    rules = QueueRules(QUEUE, status="roundrobin", acks=True, acknowledge_timeout=60.0)
    twice = (delivered("a", 3), settled("a", 4, "nack"), delivered("a", 5), delivered("a", 6), settled("a", 7))
    assert rules_found(rules, published("a", 1), joined(2), *twice) == ["doubled"]


def test_redelivery_after_a_nack_is_found_if_the_policy_drops_what_was_nacked() -> None:
    rules = QueueRules(QUEUE, status="roundrobin", acks=True, policy="at-most-once", acknowledge_timeout=60.0)
    nacked = (published("a", 1), joined(2), delivered("a", 3), settled("a", 4, "nack"), delivered("a", 5))
    assert rules_found(rules, *nacked) == ["doubled"]
    asked = event("settle", 4, client="k", label="a", outcome="nack", detail="requeue")
    assert rules_found(rules, *nacked[:3], asked, delivered("a", 5)) == []


def test_redelivery_before_its_delay_is_found() -> None:
    rules = QueueRules(QUEUE, status="roundrobin", acks=True, acknowledge_timeout=60.0, first_backoff=0.5)
    nacked = (published("a", 1), joined(2), delivered("a", 3), settled("a", 4, "nack"))
    assert rules_found(rules, *nacked, delivered("a", 4.2), settled("a", 5)) == ["early"]
    assert rules_found(rules, *nacked, delivered("a", 4.6), settled("a", 5)) == []


def test_settled_message_that_returns_is_found() -> None:
    fenced = (*WORKED, event("fence", 5, client="k"))
    again = (joined(5, "l"), delivered("a", 6, "l"))
    assert "settled-returns" in rules_found(SHARED, *fenced, *again)
    assert rules_found(SHARED, *fenced, event("stored", 9, label="a")) == ["settled-returns"]
    assert rules_found(SHARED, *WORKED, event("stored", 9, label="a")) == [], "the ack may not have arrived"


def test_settled_message_that_returns_after_a_crash_is_found_if_its_settlement_was_saved() -> None:
    after = (event("crash", 6), event("stored", 9, label="a"))
    assert rules_found(SAVED, *WORKED, event("fence", 5, client="k", outcome="saved"), *after) == ["settled-returns"]
    assert rules_found(SAVED, *WORKED, event("fence", 5, client="k"), *after) == []


def test_more_messages_in_flight_than_prefetch_allows_is_found() -> None:
    assert rules_found(SHARED, *WORKED, event("in-flight", 5, count=11)) == ["prefetch"]
    assert rules_found(SHARED, *WORKED, event("in-flight", 5, count=10)) == []
    assert rules_found(SHARED, *WORKED, joined(3, "raw", 0), event("in-flight", 5, count=11)) == []


# --- order ---------------------------------------------------------------------------------------------------------


def test_messages_in_another_order_are_found() -> None:
    queue = QueueRules(QUEUE, status="roundrobin")
    both = (published("a", 1), published("b", 2), joined(3))
    assert rules_found(queue, *both, delivered("b", 4), delivered("a", 5)) == ["order"]
    assert rules_found(queue, *both, delivered("a", 4), delivered("b", 5)) == []


def test_high_priority_overtakes_and_is_in_order_itself() -> None:
    queue = QueueRules(QUEUE, status="roundrobin")
    mixed = (published("a", 1), published("b", 2, high=True), published("c", 3, high=True), joined(4))
    assert rules_found(queue, *mixed, delivered("b", 5), delivered("c", 6), delivered("a", 7)) == []
    assert rules_found(queue, *mixed, delivered("c", 5), delivered("b", 6), delivered("a", 7)) == ["order"]


def test_concurrent_messages_have_no_order() -> None:
    queue = QueueRules(QUEUE, status="roundrobin")
    both = (published("a", 1, until=3), published("b", 2, until=2.5), joined(4))
    assert rules_found(queue, *both, delivered("b", 5), delivered("a", 6)) == []


def test_restart_that_changes_the_order_is_found() -> None:
    rules = QueueRules(QUEUE, status="pull", policy="at-least-once", storage=True)
    both = (published("a", 1), published("b", 2), event("crash", 3))
    stored = (event("stored", 4, label="b", count=0), event("stored", 4, label="a", count=1))
    assert rules_found(rules, *both, *stored) == ["order"]


# --- delays, expiries, priorities ------------------------------------------------------------------------------------


def test_message_delivered_before_its_delay_is_over_is_found() -> None:
    delayed = (published("a", 1, delay=5.0), joined(2))
    assert rules_found(SHARED, *delayed, delivered("a", 4), settled("a", 5)) == ["premature"]
    assert rules_found(SHARED, *delayed, delivered("a", 6), settled("a", 7)) == []
    stored = event("stored", 4, label="a")
    assert rules_found(QueueRules(QUEUE, status="pull"), published("a", 1, delay=5.0), stored) == ["premature"]


def test_restart_that_shortens_a_delay_is_found() -> None:
    rules = QueueRules(QUEUE, status="pull", policy="at-least-once", storage=True)
    delayed = (published("a", 1, delay=5.0), event("crash", 2))
    assert rules_found(rules, *delayed, event("stored", 3, label="a")) == ["premature"]
    assert rules_found(rules, *delayed, event("remaining", 3, count=1)) == []


def test_message_that_stays_when_its_delay_is_over_is_found() -> None:
    rules = QueueRules(QUEUE, status="pull")
    delayed = (published("a", 1, delay=5.0), published("b", 1, delay=60.0))
    assert rules_found(rules, *delayed, event("remaining", 9, count=2)) == ["stuck"]
    assert rules_found(rules, *delayed, event("stored", 9, label="a"), event("remaining", 9, count=1)) == []
    assert rules_found(rules, *delayed, event("remaining", 3, count=2)) == []


def test_delayed_message_that_is_missing_is_found() -> None:
    assert rules_found(SHARED, published("a", 1, delay=60.0)) == ["lost"]


def test_message_that_expires_may_be_missing_and_is_a_drop_with_a_reason() -> None:
    pulled = QueueRules(QUEUE, status="pull")
    mortal = (published("a", 1, expires_in=2.0), event("remaining", 9))
    assert rules_found(pulled, *mortal) == []
    assert rules_found(pulled, *mortal, event("dropped", 9, outcome="expired", count=1)) == []
    assert rules_found(pulled, *mortal, event("dropped", 9, outcome="expired", count=2)) == ["drop"]
    early = (published("a", 1, expires_in=60.0), event("remaining", 9))
    assert rules_found(pulled, *early) == ["lost"], "long before it expires"


def test_message_delivered_after_it_expired_is_found() -> None:
    mortal = published("a", 1, expires_in=2.0)
    late = (joined(5), delivered("a", 6), settled("a", 7))
    assert rules_found(SHARED, mortal, *late) == ["expired"]
    assert rules_found(SHARED, mortal, joined(2), *late[1:]) == [], "its client had it in time"
    assert rules_found(SHARED, published("a", 1, expires_in=60.0), *late) == []
    assert rules_found(QueueRules(QUEUE, status="pull"), mortal, event("stored", 5, label="a")) == ["expired"]


def test_expired_message_must_be_in_the_dead_letter_queue_if_there_is_one() -> None:
    rules = QueueRules(QUEUE, status="pull", dead_letter="graves/1", expired_to="graves/1")
    graves = QueueRules("graves/1", status="pull")
    mortal = (published("a", 1, expires_in=2.0), event("remaining", 9))
    assert rules_found(rules, *mortal, others=(graves,)) == ["lost"]
    buried = event("stored", 9, queue="graves/1", label="a")
    assert rules_found(rules, *mortal, buried, others=(graves,)) == []


def test_priorities_in_another_order_are_found() -> None:
    queue = QueueRules(QUEUE, status="roundrobin")
    both = (published("low", 1, priority=3), published("top", 2, priority=200), joined(3))
    assert rules_found(queue, *both, delivered("low", 4), delivered("top", 5)) == ["order"]
    assert rules_found(queue, *both, delivered("top", 4), delivered("low", 5)) == []
    waiting = (joined(0), *both[:2])
    assert rules_found(queue, *waiting, delivered("low", 4), delivered("top", 5)) == [], "it was free before"
    stored = (event("stored", 9, label="low", count=0), event("stored", 9, label="top", count=1))
    assert rules_found(QueueRules(QUEUE, status="pull"), *both[:2], *stored) == ["order"]


def test_messages_of_one_priority_are_in_order() -> None:
    queue = QueueRules(QUEUE, status="roundrobin")
    both = (published("a", 1, priority=3), published("b", 2, priority=3), joined(3))
    assert rules_found(queue, *both, delivered("b", 4), delivered("a", 5)) == ["order"]
    delayed = (published("a", 1, priority=3, delay=0.5), *both[1:])
    assert rules_found(queue, *delayed, delivered("b", 4), delivered("a", 5)) == []


def test_delay_in_a_queue_that_stores_nothing_must_be_rejected() -> None:
    cache = QueueRules(QUEUE, status="cache")
    stored = event("stored", 9, label="a")
    assert rules_found(cache, published("a", 1, delay=0.5), stored) == ["terms"]
    assert rules_found(cache, published("a", 1, "rejected", delay=0.5)) == []
    assert rules_found(SHARED, published("a", 1, "rejected", delay=0.5)) == ["rejected"]


# --- duplicates ------------------------------------------------------------------------------------------------------


RECOGNIZING = QueueRules(QUEUE, status="pull", policy="at-least-once", storage=True, deduplication_window=60.0)
TWICE = (published("a", 1, identity="i"), published("b", 2, identity="i"))
STORED_BOTH = (event("stored", 9, label="a", count=0), event("stored", 9, label="b", count=1))


def test_duplicate_that_a_queue_took_is_found() -> None:
    assert rules_found(RECOGNIZING, *TWICE, *STORED_BOTH) == ["duplicate"]
    assert rules_found(RECOGNIZING, *TWICE, STORED_BOTH[0]) == []
    assert rules_found(QueueRules(QUEUE, status="pull"), *TWICE, *STORED_BOTH) == [], "it recognizes none"
    assert rules_found(QueueRules(QUEUE, status="pull"), *TWICE, STORED_BOTH[0]) == ["lost"]
    short = QueueRules(QUEUE, status="pull", deduplication_window=0.5)
    assert rules_found(short, *TWICE, *STORED_BOTH) == [], "its window is over"
    assert rules_found(short, *TWICE, STORED_BOTH[0]) == ["lost"]


@pytest.mark.parametrize("unconfirmed", [0, 1])
def test_message_without_a_confirmation_may_arrive_when_the_window_is_over(unconfirmed: int) -> None:
    """Seed 877955634: a connection that was cut."""
    outcomes = ["confirmed", "confirmed"]
    outcomes[unconfirmed] = "sent"
    twice = [
        published(label, at, outcome, identity="i") for label, at, outcome in zip("ab", (1, 2), outcomes, strict=True)
    ]
    assert rules_found(RECOGNIZING, *twice, *STORED_BOTH) == ["duplicate"], "the run is shorter than the window"
    short = QueueRules(QUEUE, status="pull", policy="at-least-once", storage=True, deduplication_window=5.0)
    assert rules_found(short, *TWICE, *STORED_BOTH) == ["duplicate"]
    assert rules_found(short, *twice, *STORED_BOTH) == []


def test_duplicate_of_a_message_that_left_its_queue_is_found() -> None:
    left = (joined(1.2), delivered("a", 1.4), event("leave", 1.6, client="k", outcome="pulled"))
    assert rules_found(RECOGNIZING, *TWICE, *left, STORED_BOTH[1]) == ["duplicate"]
    assert rules_found(RECOGNIZING, *TWICE, *left) == []


def test_duplicate_after_a_crash_is_found_if_the_first_message_was_saved() -> None:
    crash = event("crash", 1.5)
    assert rules_found(RECOGNIZING, *TWICE, crash, *STORED_BOTH) == ["duplicate"]
    unknown = (published("a", 1, "unknown", identity="i"), TWICE[1])
    assert rules_found(RECOGNIZING, *unknown, crash, *STORED_BOTH) == []
    memory = QueueRules(QUEUE, status="pull", deduplication_window=60.0)
    left = (joined(1.1), delivered("a", 1.2), event("leave", 1.3, client="k", outcome="pulled"))
    assert rules_found(memory, *TWICE, *left, crash, STORED_BOTH[1]) == []


def test_message_is_lost_if_it_and_its_duplicate_are_missing() -> None:
    assert rules_found(RECOGNIZING, *TWICE) == ["lost"]
    unknown = (published("a", 1, "unknown", identity="i"), TWICE[1])
    assert rules_found(RECOGNIZING, *unknown) == ["lost"]
    assert rules_found(RECOGNIZING, *unknown, STORED_BOTH[0]) == []


def test_duplicate_of_a_message_that_remains_or_is_a_dead_letter_is_not_lost() -> None:
    """Seeds 765760182 and 765760198."""
    delayed = (published("a", 1, identity="i", delay=600.0), published("b", 2, identity="i", delay=600.0))
    assert rules_found(RECOGNIZING, *delayed, event("remaining", 9, count=1)) == []
    mortal = (published("a", 1, identity="i", expires_in=0.05), published("b", 1.01, identity="i", expires_in=0.05))
    graves = QueueRules("graves/1", status="pull")
    rules = QueueRules(QUEUE, status="pull", deduplication_window=0.15, dead_letter="graves/1", expired_to="graves/1")
    buried = event("stored", 9, queue="graves/1", label="a")
    assert rules_found(rules, *mortal, buried, others=(graves,)) == []
    assert rules_found(rules, *mortal, others=(graves,)) == ["lost"]


def test_message_that_its_client_published_again_is_found_twice() -> None:
    again = (event("stored", 9, label="a", count=0), event("stored", 9, label="a", count=1))
    cut = event("cut", 1)
    assert rules_found(RECOGNIZING, published("a", 1), cut, *again) == ["doubled"]
    assert rules_found(RECOGNIZING, published("a", 1), cut, again[0]) == []
    plain = QueueRules(QUEUE, status="pull")
    assert rules_found(plain, published("a", 1, retried=True), cut, *again) == [], "its program allowed that"


def test_drops_of_duplicates_are_explained_by_publishes_with_one_id() -> None:
    dropped = event("dropped", 9, outcome="duplicate", count=1)
    assert rules_found(RECOGNIZING, *TWICE, STORED_BOTH[0], dropped) == []
    assert rules_found(RECOGNIZING, TWICE[0], STORED_BOTH[0], dropped) == ["drop"]
    assert rules_found(QueueRules(QUEUE, status="pull"), *TWICE, *STORED_BOTH, dropped) == ["drop"]


# --- answers and counters ------------------------------------------------------------------------------------------


def test_rejection_that_no_option_explains_is_found() -> None:
    assert rules_found(SHARED, published("a", 1, "rejected", detail="NotFound")) == ["rejected"]
    limited = QueueRules(QUEUE, status="roundrobin", message_limit=1)
    assert rules_found(limited, published("a", 1, "rejected")) == []


def test_missing_confirmation_is_found() -> None:
    assert rules_found(SHARED, published("a", 1, "timeout")) == ["unconfirmed"]
    late = QueueRules(QUEUE, status="roundrobin", policy="ack-on-send")
    assert rules_found(late, published("a", 1, "timeout")) == []


def test_copy_for_a_queue_that_does_not_exist_must_be_reported() -> None:
    copy = published("a", 1, queue="missing/9", via="cc")
    assert rules_found(SHARED, *WORKED, copy) == ["unreported"]
    assert rules_found(SHARED, *WORKED, published("a", 1, "rejected", queue="missing/9", via="cc")) == []


def test_confirmation_without_the_queues_handler_is_found() -> None:
    rules = QueueRules(QUEUE, status="roundrobin", handler=True)
    started = (event("crash", 1), event("start", 2, outcome="without-handlers"))
    assert rules_found(rules, *started, published("a", 3), event("stored", 9, label="a")) == ["handler"]
    assert rules_found(rules, *started, published("a", 3, "rejected")) == []


def test_confirmation_after_the_handler_was_registered_again_is_none() -> None:
    """Seed 1126: two ends of the broker, and only between them no handler."""
    rules = QueueRules(QUEUE, status="roundrobin", handler=True)
    between = (event("stop", 1), event("start", 2, outcome="without-handlers"), event("stop", 4), event("start", 5))
    stored = event("stored", 9, label="a")
    assert rules_found(rules, *between, published("a", 6), stored) == []
    assert rules_found(rules, *between, published("a", 3), stored) == ["handler"]


def test_messages_dropped_because_their_handler_raised_are_explained_if_their_producer_asked() -> None:
    """Seed 52817278: a producer over MicroMessage2, which acknowledges every message."""
    rules = QueueRules(QUEUE, status="paused", handler=True)
    dropped = event("dropped", 9, outcome="refused", count=1)
    assert rules_found(rules, published("a", 1, "sent", verdict="raise"), dropped) == []
    unasked = Event("publish", 1, 1.1, client="p", queue=QUEUE, label="a", outcome="sent", verdict="raise")
    assert rules_found(rules, unasked, dropped) == ["drop"]


def test_message_that_a_full_queue_may_reject_without_an_answer_is_not_lost() -> None:
    """Seed 2226: the producer learns only that the broker read its messages."""
    limited = QueueRules(QUEUE, status="pull", message_limit=5)
    assert rules_found(limited, published("a", 1, "accepted")) == []
    assert rules_found(limited, published("a", 1)) == ["lost"]
    assert rules_found(QueueRules(QUEUE, status="pull"), published("a", 1, "accepted")) == ["lost"]


def test_counters_that_contradict_the_history_are_found() -> None:
    assert rules_found(SHARED, *WORKED, event("counter", 9, outcome="received", count=2)) == ["counter"]
    assert rules_found(SHARED, *WORKED, event("counter", 9, outcome="received", count=0)) == ["counter"]
    assert rules_found(SHARED, *WORKED, event("counter", 9, outcome="acks", count=2)) == ["counter"]
    assert rules_found(SHARED, *WORKED, event("counter", 9, outcome="received", count=1)) == []


def test_message_that_its_client_may_have_published_again_may_be_counted_twice() -> None:
    """Seed 765761810: a queue that recognizes no duplicates."""
    counted = event("counter", 9, outcome="received", count=2)
    again = published("a", 1, retried=True)
    assert rules_found(SHARED, again, *WORKED[1:], event("cut", 1), counted) == []
    assert rules_found(SHARED, again, *WORKED[1:], counted) == ["counter"]


# --- jobs ----------------------------------------------------------------------------------------------------------


def test_jobs_without_a_result_and_jobs_that_run_twice_are_found() -> None:
    job = {"queue": "work", "label": "j"}
    ran = event("job-run", 2, label="j")
    assert rules_found(SHARED, event("job", 1, outcome="timeout", **job)) == ["lost"]
    assert rules_found(SHARED, event("job", 1, outcome="result", **job)) == ["stranger"]
    assert rules_found(SHARED, event("job", 1, outcome="result", **job), ran, ran) == ["doubled"]
    assert rules_found(SHARED, event("job", 1, outcome="result", **job), ran) == []


def test_schedules_that_run_too_often_or_too_seldom_are_found() -> None:
    twice = event("schedule", 1, label="s", count=2)
    ran = event("job-run", 2, label="s")
    assert rules_found(SHARED, twice, ran) == ["lost"]
    assert rules_found(SHARED, twice, ran, ran) == []
    assert rules_found(SHARED, twice, ran, ran, ran) == ["doubled"]


def test_model_does_not_import_what_it_checks() -> None:
    here = Path(__file__).parent
    for name in (
        "history",
        "model",
        "lives",
        "loss",
        "repeats",
        "jobs_check",
        "check",
        "plan",
        "choose",
        "focus",
        "shrink",
        "terms",
        "terms_check",
    ):
        tree = ast.parse((here / f"{name}.py").read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not [module for module in imported if module.partition(".")[0] == "mqcore"], name
