"""CONSUME and CONSUME ALL on the wire: what the rules do is tested where they live."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from metrics import metric
from mqcore.testing import TestBroker
from served import wait_until
from throttr_peer import (
    DECREASE,
    DRY_RUN,
    FIXED,
    GCRA,
    PEEK,
    QUOTA,
    REFUND,
    SLIDING,
    TAKE,
    WIDTHS,
    S,
    ThrottrPeer,
)

SECOND = 10**9
NEVER = (1 << 64) - 1


@contextlib.contextmanager
def serving(value: str = "uint16") -> Iterator[tuple[TestBroker, ThrottrPeer]]:
    """A broker whose clock the test turns, and a connection to it."""
    with TestBroker(listen=[f"throttr://127.0.0.1:0?value={value}"], shards=2) as broker:
        port = int(broker.listeners[0].rpartition(":")[2])
        with ThrottrPeer(("127.0.0.1", port), WIDTHS[value]) as peer:
            yield broker, peer


def turn(broker: TestBroker, seconds: float) -> None:
    asyncio.run(broker.clock.advance(seconds=seconds))


@pytest.mark.parametrize("value", WIDTHS)
def test_a_rule_creates_checks_and_subtracts_in_every_width(value: str) -> None:
    with serving(value) as (broker, peer):
        rule = peer.rule(b"user", 3, 2, 10)
        assert peer.consume(rule) == (1, 3, 1, 0, 10 * SECOND)
        assert peer.consume(rule) == (0, 3, 1, 10 * SECOND, 10 * SECOND)
        turn(broker, 10)
        assert peer.consume(rule)[0] == 1


def test_a_fixed_window_is_a_counter_for_every_other_request() -> None:
    with serving() as (_, peer):
        peer.consume(peer.rule(b"user", 10, 4, 60))
        assert peer.query(b"user") == (6, S, 59)
        assert peer.status(peer.update(b"user", QUOTA, DECREASE, 6))
        assert peer.consume(peer.rule(b"user", 10, 1, 60))[0] == 0
        assert peer.list_keys() == [b"user"]


def test_windows_and_buckets_recover_in_their_own_way() -> None:
    with serving() as (broker, peer):
        left = {}
        for algorithm in (FIXED, SLIDING, GCRA):
            key = bytes([algorithm])
            assert peer.consume(peer.rule(key, 10, 10, 10, algorithm))[0] == 1
            left[algorithm] = []
        for _ in range(4):
            turn(broker, 5)
            for algorithm, found in left.items():
                found.append(peer.consume(peer.rule(bytes([algorithm]), 10, 1, 10, algorithm), PEEK)[2])
        assert left == {FIXED: [0, 10, 10, 10], SLIDING: [0, 0, 5, 10], GCRA: [5, 10, 10, 10]}


def test_looking_and_trying_take_nothing_and_a_refund_gives_back() -> None:
    with serving() as (_, peer):
        rule = peer.rule(b"user", 5, 3, 60)
        for mode in (PEEK, DRY_RUN):
            assert peer.consume(rule, mode) == (1, 5, 5, 0, 0)
        assert peer.list_keys() == []
        assert peer.consume(rule, TAKE)[2] == 2
        assert peer.consume(rule, DRY_RUN)[:3] == (0, 5, 2)
        assert peer.consume(rule, REFUND)[2] == 5
        assert peer.consume(rule, REFUND)[2] == 5


def test_cost_over_the_limit_is_never_allowed_and_reported() -> None:
    with serving() as (_, peer):
        assert peer.consume(peer.rule(b"user", 5, 6, 60))[:4] == (0, 5, 5, NEVER)


def test_several_keys_are_spent_from_together_or_not_at_all() -> None:
    with serving() as (_, peer):
        rules = [
            peer.rule(b"user", 2, 1, 60),
            peer.rule(b"tenant", 9, 1, 60, GCRA),
            peer.rule(b"all", 9, 1, 60, SLIDING),
        ]
        for _ in range(2):
            assert peer.consume_all(rules)[0] == 1
        status, verdicts = peer.consume_all(rules)
        assert status == 0
        assert [verdict[:3] for verdict in verdicts] == [(0, 2, 0), (1, 9, 7), (1, 9, 7)]


def test_metrics_count_requests_and_rejected_quota() -> None:
    rejected = "mqcore_limiter_rejected_total"
    kinds = {name: f'mqcore_limiter_requests_total{{request="{name}"}}' for name in ("consume", "consume-all", "query")}
    with TestBroker(listen=["throttr://127.0.0.1:0"], shards=1, admin="http://127.0.0.1:0") as broker:
        port = int(broker.listeners[0].rpartition(":")[2])
        with ThrottrPeer(("127.0.0.1", port), WIDTHS["uint16"]) as peer:
            rules = [peer.rule(b"user", 1, 1, 60), peer.rule(b"tenant", 9, 1, 60)]
            assert [peer.consume_all(rules)[0] for _ in range(3)] == [1, 0, 0]
            assert [peer.consume(rules[0])[0] for _ in range(4)] == [0] * 4
            assert peer.query(b"user") is not None
            wait_until(lambda: metric(broker, kinds["query"]) == 1, what="the counts of this connection")
            assert [metric(broker, kinds[name]) for name in ("consume", "consume-all")] == [4, 3]
            assert metric(broker, rejected) == 6


def test_inapplicable_request_is_impossible_and_changes_nothing() -> None:
    with serving() as (_, peer):
        peer.status(peer.set(b"buffer", b"value", 60))
        fine = peer.rule(b"fine", 5, 1, 60)
        impossible = [
            peer.rule(b"buffer", 5, 1, 60),
            peer.rule(b"other", 5, 1, 0),
            peer.rule(b"other", 5, 1, 60, algorithm=3),
        ]
        for rule in impossible:
            assert peer.consume(rule) == (2, 0, 0, 0, 0)
            assert peer.consume_all([fine, rule]) == (2, [(2, 0, 0, 0, 0)] * 2)
        assert peer.consume(fine, mode=4)[0] == 2
        assert peer.consume_all([fine, fine])[0] == 2
        assert peer.list_keys() == [b"buffer"]


def test_a_limit_holds_to_the_unit_under_many_connections() -> None:
    with serving("uint32") as (broker, peer):
        rules = [peer.rule(b"user", 3_000, 1, 3600, algorithm) for algorithm in (FIXED,)] + [
            peer.rule(b"tenant", 5_000, 1, 3600, GCRA)
        ]
        allowed = []

        def spend() -> None:
            port = int(broker.listeners[0].rpartition(":")[2])
            with ThrottrPeer(("127.0.0.1", port), 4) as one:
                allowed.append(sum(one.consume_all(rules)[0] for _ in range(500)))

        threads = [threading.Thread(target=spend) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(allowed) == 3_000
        assert peer.consume(rules[1], PEEK)[2] == 2_000
