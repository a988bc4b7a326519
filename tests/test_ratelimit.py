"""Rate limits from Python: in this process and through a broker, decorator, slot, and unreachable brokers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import mqcore
from mqcore import errors
from mqcore.ratelimit import Limit, LocalRateLimiter, RateLimiter, SyncRateLimiter, Verdict
from mqcore.throttr import SyncClient
from served import wait_until

WIDE = "?value=uint64"


@pytest.fixture
def url() -> Iterator[str]:
    with mqcore.Broker(listen=(f"throttr://127.0.0.1:0{WIDE}",)) as broker:
        yield broker.listeners[0] + WIDE


@pytest.fixture(params=["local", "broker"])
def limiter(request: pytest.FixtureRequest, url: str) -> Iterator[LocalRateLimiter | SyncRateLimiter]:
    if request.param == "local":
        yield RateLimiter.local()
    else:
        with SyncRateLimiter(url, on_unavailable="raise") as remote:
            yield remote


def test_limits_are_read_as_people_write_them() -> None:
    assert Limit.parse("20/m") == Limit(20, 60.0)
    assert Limit.parse("100 / 10s").nanoseconds == 10 * 10**9
    assert Limit.parse("5/1.5h").nanoseconds == 5400 * 10**9
    assert Limit.parse("1/250ms").nanoseconds == 250 * 10**6
    for wrong in ("", "20", "20/", "m/20", "20/y", "-1/s", "1/0s"):
        with pytest.raises(errors.ConfigError):
            Limit.parse(wrong)
    with pytest.raises(errors.ConfigError, match="strategy"):
        RateLimiter.local(strategy="leaky")  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["gcra", "fixed-window", "sliding-window"])
def test_a_limit_is_never_exceeded(limiter: LocalRateLimiter | SyncRateLimiter, strategy: str) -> None:
    limit = Limit(10, "1h", strategy)  # type: ignore[arg-type]
    verdicts = [limiter.check(f"k-{strategy}", limit) for _ in range(15)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 10 + [False] * 5
    assert [verdict.remaining for verdict in verdicts[:10]] == list(range(9, -1, -1))
    assert verdicts[-1].limit == 10
    # The cost in a sliding window counts in the next period as well, less and less.
    assert 0 < verdicts[-1].retry_after <= 7200
    assert verdicts[0].retry_after == 0
    assert not verdicts[-1]


def test_cost_peek_refund_and_dry_run_do_what_they_say(limiter: LocalRateLimiter | SyncRateLimiter) -> None:
    assert limiter.check("k", "10/h", cost=7, dry_run=True).remaining == 10
    assert limiter.check("k", "10/h", cost=7).remaining == 3
    assert not limiter.check("k", "10/h", cost=4)
    assert limiter.peek("k", "10/h").remaining == 3
    assert limiter.refund("k", "10/h", cost=5).remaining == 8
    assert limiter.refund("k", "10/h", cost=50).remaining == 10
    never = limiter.check("k", "10/h", cost=11)
    assert not never.allowed
    assert math.isinf(never.retry_after)


def test_several_keys_are_taken_from_together_or_not_at_all(limiter: LocalRateLimiter | SyncRateLimiter) -> None:
    parts = [("a", "5/h"), ("b", "2/h", 2)]
    assert limiter.check_all(parts, dry_run=True)[0]
    allowed, verdicts = limiter.check_all(parts)
    assert allowed
    assert [verdict.remaining for verdict in verdicts] == [4, 0]
    allowed, verdicts = limiter.check_all(parts)
    assert not allowed
    assert [verdict.remaining for verdict in verdicts] == [4, 0]
    assert limiter.peek("a", "5/h").remaining == 4


def test_a_key_that_another_strategy_counts_with_is_left_alone(limiter: LocalRateLimiter | SyncRateLimiter) -> None:
    limiter.check("k", Limit(5, "1h", "fixed-window"))
    with pytest.raises(errors.Unacceptable):
        limiter.check("k", Limit(5, "1h", "gcra"))
    assert limiter.reset("k")
    assert limiter.check("k", Limit(5, "1h", "gcra")).remaining == 4


def test_invalid_key_is_rejected() -> None:
    local = RateLimiter.local()
    assert local.check("k" * 255, "1/h")
    assert local.check(b"\0\xff", "1/h")
    with pytest.raises(errors.InvalidArgument, match="255"):
        local.check("k" * 256, "1/h")
    with pytest.raises(errors.InvalidArgument, match="text or bytes"):
        local.check(7, "1/h")  # type: ignore[arg-type]


def test_prefixes_keep_programs_apart(url: str) -> None:
    with (
        SyncRateLimiter(url, on_unavailable="raise", prefix="a:") as one,
        SyncRateLimiter(url, on_unavailable="raise", prefix="b:") as other,
        SyncRateLimiter(url, on_unavailable="raise") as bare,
    ):
        assert one.check("k", "1/h")
        assert not one.check("k", "1/h")
        assert other.check("k", "1/h")
        assert not bare.check("a:k", "1/h")


def test_threads_share_a_limiter_to_the_unit(limiter: LocalRateLimiter | SyncRateLimiter) -> None:
    allowed: list[int] = []

    def drain() -> None:
        allowed.append(sum(bool(limiter.check("k", "1000/h")) for _ in range(300)))

    threads = [threading.Thread(target=drain) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Buckets refill while it runs: one in 3.6 s.
    assert 1000 <= sum(allowed) <= 1010


async def test_processes_that_share_a_broker_share_its_limits(url: str) -> None:
    async with (
        RateLimiter(url, on_unavailable="raise", strategy="fixed-window") as one,
        RateLimiter(url, on_unavailable="raise", strategy="fixed-window") as other,
    ):
        checks = [limiter.check("k", "100/h") for limiter in (one, other) for _ in range(200)]
        verdicts = await asyncio.gather(*checks)
        assert sum(verdict.allowed for verdict in verdicts) == 100
        assert (await one.peek("k", "100/h")).remaining == 0
        assert (await one.refund("k", "100/h", cost=3)).remaining == 3
        assert (await other.check_all([("k", "100/h", 3), ("l", "1/h")]))[0]
        assert await other.reset("k")
        assert (await one.peek("k", "100/h")).remaining == 100


def test_a_decorated_function_takes_from_the_quota_of_its_key(limiter: LocalRateLimiter | SyncRateLimiter) -> None:
    @limiter.limit("2/h", key=lambda user, text: f"chat:{user}")
    def chat(user: str, text: str) -> str:
        return text.upper()

    assert [chat("a", "x"), chat("a", "y"), chat("b", "z")] == ["X", "Y", "Z"]
    with pytest.raises(errors.RateLimited, match="chat:a: the limit of 2 is reached") as caught:
        chat("a", "again")
    assert caught.value.limit == 2
    assert 0 < caught.value.retry_after <= 1800


async def test_a_decorated_coroutine_does_too_and_cost_may_depend_on_the_call(url: str) -> None:
    async with RateLimiter(url, on_unavailable="raise") as remote:
        for limiter in (remote, RateLimiter.local()):

            @limiter.limit("10/h", cost=lambda pages: pages)  # type: ignore[union-attr]
            async def render(pages: int) -> int:
                return pages

            assert await render(7) == 7
            with pytest.raises(errors.RateLimited):
                await render(4)
            assert await render(3) == 3

        with pytest.raises(errors.ConfigError, match="not async"):

            @remote.limit("1/h")
            def plain() -> None: ...


async def test_a_slot_waits_as_long_as_it_may_and_no_longer(url: str) -> None:
    local = RateLimiter.local()
    async with RateLimiter(url, on_unavailable="raise") as remote:
        async with remote.slot("k", "1/200ms"):
            pass
        began = time.monotonic()
        async with remote.slot("k", "1/200ms", wait="5s") as verdict:
            assert verdict.remaining == 0
        assert time.monotonic() - began > 0.05
        with pytest.raises(errors.RateLimited):
            async with remote.slot("k", "1/h"):
                pytest.fail("it was let in")
    with local.slot("k", "1/200ms"):
        pass
    with local.slot("k", "1/200ms", wait="5s"):
        pass
    with pytest.raises(errors.RateLimited), local.slot("k", "1/200ms"):
        pytest.fail("it was let in")


class CountingLocal(LocalRateLimiter):
    """A limiter that counts its checks."""

    checks = 0

    def check(self, *arguments: Any, **options: Any) -> Verdict:
        self.checks += 1
        return super().check(*arguments, **options)


class CountingRemote(RateLimiter):
    """The same through a broker."""

    checks = 0

    async def check(self, *arguments: Any, **options: Any) -> Verdict:
        self.checks += 1
        return await super().check(*arguments, **options)


async def test_slot_sleeps_between_checks(url: str) -> None:
    local = CountingLocal("fixed-window", "", 10, 10_000)
    for _ in range(2):
        with local.slot("k", "1/300ms", wait="20s"):
            pass
    # Three, and one more for each sleep that ends a moment too early.
    assert local.checks <= 5
    async with CountingRemote(url, on_unavailable="raise", strategy="fixed-window") as remote:
        for _ in range(2):
            async with remote.slot("k", "1/300ms", wait="20s"):
                pass
    assert remote.checks <= 5


def test_slot_does_not_wait_unless_asked(limiter: LocalRateLimiter | SyncRateLimiter) -> None:
    half_second = Limit(1, "500ms", "fixed-window")
    for number in range(10):
        began = time.monotonic()
        assert limiter.check(f"k{number}", half_second)
        try:
            with limiter.slot(f"k{number}", half_second):
                # On a busy machine, the period may be over.
                assert time.monotonic() - began > 0.49
        except errors.RateLimited:
            return
    pytest.fail("it waited ten times")


async def test_unreachable_broker_leads_to_the_chosen_result() -> None:
    with mqcore.Broker(listen=("throttr://127.0.0.1:0",)) as broker:
        gone = broker.listeners[0]
    async with RateLimiter(gone, on_unavailable="allow") as limiter:
        verdict = await limiter.check("k", "5/m")
        assert (verdict.allowed, verdict.available, verdict.limit) == (True, False, 5)
        assert (await limiter.check_all([("k", "5/m"), ("l", "5/m")]))[0]
    with SyncRateLimiter(gone, on_unavailable="deny") as denying:
        verdict = denying.check("k", "5/m")
        assert (verdict.allowed, verdict.available) == (False, False)
        with pytest.raises(errors.RateLimited, match="unreachable"), denying.slot("k", "5/m"):
            pytest.fail("it was let in")
    async with RateLimiter(gone, on_unavailable="raise") as raising:
        with pytest.raises(errors.ConnectFailed):
            await raising.check("k", "5/m")
    with pytest.raises(errors.ConfigError, match="on_unavailable"):
        RateLimiter(gone, on_unavailable="maybe")  # type: ignore[arg-type]


async def test_a_limiter_finds_its_broker_again() -> None:
    with mqcore.Broker(listen=(f"throttr://127.0.0.1:0{WIDE}",)) as broker:
        address = broker.listeners[0]
        limiter = RateLimiter(address + WIDE, on_unavailable="deny")
        assert (await limiter.check("k", "5/m")).remaining == 4
    assert not (await limiter.check("k", "5/m")).available
    with mqcore.Broker(listen=(address + WIDE,)):
        deadline = time.monotonic() + 10
        while not (await limiter.check("k", "5/m", dry_run=True)).available:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert (await limiter.check("k", "5/m")).remaining == 4
    await limiter.close()


def test_limits_that_the_listeners_width_cannot_say_are_refused_with_what_to_do() -> None:
    with (
        mqcore.Broker(listen=("throttr://127.0.0.1:0?value=uint8",)) as broker,
        SyncRateLimiter(broker.listeners[0] + "?value=uint8", on_unavailable="raise") as limiter,
    ):
        assert limiter.check("k", "255/255s").remaining == 254
        for wrong, value in (
            ("256/s", "a limit of 256 exceeds 255,"),
            ("1/256s", r"a period of 256\.0 s does not fit"),
        ):
            with pytest.raises(errors.ConfigError, match=f"{value}.*uint64"):
                limiter.check("k", wrong)
        assert limiter.check("l", "1/300m"), "5 hours"


def test_a_bound_limit_is_the_same_limit() -> None:
    limiter = RateLimiter.local()
    bound = limiter.bind("2/h")
    assert bound.check("k")
    assert limiter.check("k", "2/h")
    assert not bound.check("k", 1)
    assert len(limiter) == 1
    assert isinstance(bound.check("k"), Verdict)


# --- arguments, each distinguished from being ignored ---------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"throttr://127.0.0.1:{server.getsockname()[1]}{WIDE}"


def test_slot_takes_its_cost(limiter: LocalRateLimiter | SyncRateLimiter) -> None:
    with limiter.slot("k", "10/h") as verdict:
        assert verdict.remaining == 9
    with limiter.slot("k", "10/h", cost=7) as verdict:
        assert verdict.remaining == 2
    with pytest.raises(errors.RateLimited, match="can never be allowed"), limiter.slot("k", "10/h", cost=11):
        pytest.fail("it was let in")


async def test_awaited_limiter_takes_the_cost_and_leaves_a_dry_run_alone(url: str) -> None:
    async with RateLimiter(url, on_unavailable="raise") as limiter:
        async with limiter.slot("k", "10/h", cost=7) as verdict:
            assert verdict.remaining == 3
        assert (await limiter.check("k", "10/h", dry_run=True)).remaining == 3
        parts = [("k", "10/h", 2), ("l", "10/h", 4)]
        for _ in range(2):
            allowed, verdicts = await limiter.check_all(parts, dry_run=True)
            assert (allowed, [verdict.remaining for verdict in verdicts]) == (True, [3, 10])
        allowed, verdicts = await limiter.check_all(parts)
        assert (allowed, [verdict.remaining for verdict in verdicts]) == (True, [1, 6])
        assert (await limiter.refund("k", "10/h")).remaining == 2
        assert not await limiter.reset("missing")


def test_slot_that_would_wait_too_long_raises_at_once(limiter: LocalRateLimiter | SyncRateLimiter) -> None:
    assert limiter.check("k", Limit(1, "1h", "fixed-window"))
    began = time.monotonic()
    with (
        pytest.raises(errors.RateLimited, match="retry in"),
        limiter.slot("k", Limit(1, "1h", "fixed-window"), wait="20s"),
    ):
        pytest.fail("it was let in")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("timeout", [0.05, 1.5])
async def test_timeout_limits_the_wait_for_a_silent_broker(silent: str, timeout: float) -> None:
    """The default is 1 s."""
    lasted = []
    async with RateLimiter(silent, on_unavailable="raise", timeout=timeout) as limiter:
        # A busy machine may need more than the default once, but not each time. A timeout above the default needs no
        # repetition, and a client gives up a connection that is silent for several timeouts.
        while not lasted or (timeout < 1 <= min(lasted) and len(lasted) < 5):
            began = time.monotonic()
            with pytest.raises((errors.RequestTimeout, errors.TransportError)):
                await limiter.check("k", "5/m")
            lasted.append(time.monotonic() - began)
    assert timeout <= min(lasted)
    assert timeout >= 1 or min(lasted) < 1
    began = time.monotonic()
    with (
        SyncRateLimiter(silent, on_unavailable="raise", timeout=timeout) as blocking,
        pytest.raises((errors.RequestTimeout, errors.TransportError)),
    ):
        blocking.check("k", "5/m")
    assert timeout <= time.monotonic() - began


@pytest.mark.parametrize(("answer", "allowed", "remaining"), [("allow", True, 5), ("deny", False, 0)])
async def test_broker_that_does_not_answer_in_time_leads_to_the_chosen_result(
    silent: str, answer: Any, allowed: bool, remaining: int
) -> None:
    async with RateLimiter(silent, on_unavailable=answer, timeout="50ms") as limiter:
        verdict = await limiter.check("k", "5/m")
        assert (verdict.allowed, verdict.limit, verdict.remaining, verdict.available) == (allowed, 5, remaining, False)
        both, verdicts = await limiter.check_all([("k", "5/m"), ("l", "7/m")])
        assert (both, [verdict.limit for verdict in verdicts]) == (allowed, [5, 7])
    with SyncRateLimiter(silent, on_unavailable=answer, timeout="50ms") as blocking:
        verdict = blocking.check("k", "5/m")
        assert (verdict.allowed, verdict.limit, verdict.remaining, verdict.available) == (allowed, 5, remaining, False)
        assert verdict.retry_after == (0 if allowed else 1)
        both, verdicts = blocking.check_all([("k", "5/m"), ("l", "7/m")])
        assert (both, [verdict.limit for verdict in verdicts]) == (allowed, [5, 7])
        with pytest.raises((errors.RequestTimeout, errors.TransportError)):
            blocking.reset("k")


async def test_prefix_is_part_of_keys_of_both_types(url: str) -> None:
    async with RateLimiter(url, on_unavailable="raise", prefix="é:") as remote:
        assert await remote.check("text", "1/h")
        assert await remote.check(b"bytes", "1/h")
    with SyncRateLimiter(url, on_unavailable="raise") as bare:
        assert not bare.check("é:text", "1/h")
        assert not bare.check("é:bytes".encode(), "1/h")
        assert bare.check("bytes", "1/h")
    local = RateLimiter.local(prefix="é:")
    assert local.check(b"bytes", "1/h")
    assert not local.check("bytes", "1/h")
    # A bound limit does not add the prefix.
    assert not local.bind("1/h").check("é:bytes")
    assert local.bind("1/h").check("bytes")
    assert not local.peek(b"bytes", "1/h")


def test_cache_of_prepared_limits_has_a_maximum() -> None:
    limiter = RateLimiter.local()
    for amount in range(1, 5001):
        assert limiter.check("k", f"{amount}/h", dry_run=True).limit == amount
    assert 0 < len(limiter._ready) <= 4096
    assert limiter.check("k", "1/h").remaining == 0


@pytest.mark.parametrize("amount", [-1, 1 << 64])
def test_limit_beyond_its_bounds_is_refused(amount: int) -> None:
    with pytest.raises(errors.ConfigError, match=str(amount)):
        Limit(amount, "1h")
    assert not RateLimiter.local().check("k", Limit(0, "1h"))
    assert RateLimiter.local().check("k", Limit((1 << 64) - 1, "1h"))


def test_strategy_of_a_limit_wins_over_that_of_the_limiter() -> None:
    limiter = RateLimiter.local(strategy="fixed-window")
    assert limiter.check("fixed", "2/h").reset_after > 3590
    # A bucket that lacks one of two is full again after half a period.
    assert limiter.check("bucket", Limit(2, "1h", "gcra")).reset_after <= 1800


def test_decorated_functions_without_a_key_have_quotas_of_their_own() -> None:
    limiter = RateLimiter.local()

    @limiter.limit("1/h")
    def first() -> int:
        return 1

    @limiter.limit("1/h")
    def second() -> int:
        return 2

    assert (first(), second(), len(limiter)) == (1, 2, 2)
    with pytest.raises(errors.RateLimited, match=r"test_ratelimit\..*first: the limit of 1 is reached"):
        first()
    assert first.__name__ == "first"


async def test_peek_allows_if_at_least_one_is_left(limiter: LocalRateLimiter | SyncRateLimiter, url: str) -> None:
    for _ in range(2):
        assert limiter.peek("k", "2/h").allowed
        assert limiter.check("k", "2/h").allowed
    assert not limiter.peek("k", "2/h").allowed
    async with RateLimiter(url, on_unavailable="raise") as remote:
        for _ in range(2):
            assert (await remote.peek("awaited", "2/h")).allowed
            assert (await remote.check("awaited", "2/h")).allowed
        assert not (await remote.peek("awaited", "2/h")).allowed


async def test_closed_limiter_ends_its_connection(url: str) -> None:
    with SyncClient(url) as watcher:
        for _ in range(2):
            blocking = SyncRateLimiter(url, on_unavailable="raise")
            with contextlib.closing(blocking):
                assert blocking.check("k", "10/h")
                assert len(watcher.connections()) == 2
            remote = RateLimiter(url, on_unavailable="raise")
            async with remote:
                assert await remote.check("k", "10/h")
            wait_until(lambda: len(watcher.connections()) == 1, what="the end of both connections")
        with SyncRateLimiter(url, on_unavailable="raise") as blocking:
            assert blocking.check("k", "10/h")
        wait_until(lambda: len(watcher.connections()) == 1, what="the end of the connection")


@pytest.mark.parametrize(
    ("text", "period"),
    [("1/ms", 0.001), ("1/s", 1.0), ("1/m", 60.0), ("1/h", 3600.0), ("1/d", 86400.0), ("1/1.5h", 5400.0)],
)
def test_each_unit_of_a_limit_has_its_length(text: str, period: float) -> None:
    limit = Limit.parse(text)
    assert (limit.amount, limit.nanoseconds) == (1, round(period * 10**9))


def test_shortest_period_of_a_limit_is_a_nanosecond() -> None:
    assert Limit(1, 1e-9).nanoseconds == 1
    with pytest.raises(errors.ConfigError, match="longer than 0 s"):
        Limit(1, 0)
