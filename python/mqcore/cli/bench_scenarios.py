"""Scenarios of `mqcore bench`: each measures one kind of work against a running broker, in a channel of its own."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import mqcore
from mqcore import errors
from mqcore.cli.bench_results import Figure

__all__ = ["SCENARIOS", "Plan", "measure"]

_CHUNK_MESSAGES: Final = 500
"""Messages between two looks at the clock."""
_PREFETCH: Final = 4000
_WINDOW: Final = 512
"""Messages of the scenario `durable` that wait for their confirmations."""
_WARM_UP_CALLS: Final = 20
_LATE_SECONDS: Final = 30.0
"""How long the scenario `latency` waits for messages after the last was published."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of a measurement."""

    url: str
    token: str | None
    timeout: float
    """Seconds to wait for each answer."""
    channel: str
    """A channel that exists only during the run."""
    seconds: float
    body_bytes: int
    rate: int
    """Messages a second of the scenario `latency`."""
    messages: int
    """Messages of the scenario `consume`."""

    def client(self, name: str = "mqcore-bench") -> mqcore.Client:
        """Return a client that connects to the broker with ``async with``."""
        return mqcore.connect(self.url, token=self.token, request_timeout=self.timeout, name=name, kind="mqcore-cli")

    @property
    def body(self) -> bytes:
        """The body of every message."""
        return b"x" * self.body_bytes


_Measure = Callable[[Plan], Coroutine[Any, Any, list[Figure]]]


def measure(plan: Plan, names: Iterable[str], report: Callable[[str], None]) -> tuple[list[Figure], dict[str, str]]:
    """Measure scenarios one after the other. Return the figures, and why scenarios were skipped, by name.

    Removes the plan's channel at the end, also after an error. Raises `mqcore.errors.MqcoreError` if the broker is
    unreachable or rejects a request.
    """
    return asyncio.run(_measure(plan, names, report))


async def _measure(
    plan: Plan, names: Iterable[str], report: Callable[[str], None]
) -> tuple[list[Figure], dict[str, str]]:
    figures: list[Figure] = []
    skipped: dict[str, str] = {}
    async with plan.client() as client:
        try:
            await client.create_channel(plan.channel)
            for name in names:
                report(name)
                try:
                    figures += await SCENARIOS[name](plan)
                except errors.Unacceptable as error:
                    # A broker without a data directory saves nothing.
                    skipped[name] = str(error)
        finally:
            # It does not exist if its creation failed.
            with contextlib.suppress(errors.NotFound):
                await client.remove_channel(plan.channel)
    return figures, skipped


async def _queue(plan: Plan, client: mqcore.Client, number: int, **options: Any) -> str:
    """Create a queue in the plan's channel and return its address. It saves nothing unless `options` name a policy."""
    terms: dict[str, Any] = {"delivery_handler": "memory", **options}
    await client.declare(plan.channel, number, mqcore.QueueOptions(**terms))
    return f"{plan.channel}/{number}"


def _microseconds(scenario: str, seconds: list[float], shares: Mapping[str, float]) -> list[Figure]:
    """Percentiles of times."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return [
        Figure(scenario, f"{name} us", ordered[min(last, int(len(ordered) * share))] * 1e6, "lower")
        for name, share in shares.items()
    ]


async def _closed_loop(step: Callable[[], Awaitable[object]], seconds: float) -> list[float]:
    """Seconds of each call, one after the other."""
    for _ in range(_WARM_UP_CALLS):
        await step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        await step()
        times.append(time.perf_counter() - start)
    return times


async def _publish(plan: Plan) -> list[Figure]:
    async with plan.client() as client:
        # It keeps the last message only, so that the broker's memory does not grow.
        address = await _queue(plan, client, 1, status="cache")
        body = plan.body
        await client.publish(address, body)
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + plan.seconds:
            for _ in range(_CHUNK_MESSAGES):
                await client.publish(address, body, confirm=False)
            count += _CHUNK_MESSAGES
        # Confirmed after all that came before it.
        await client.publish(address, body)
        return [Figure("publish", "messages/s", count / (time.perf_counter() - start), "higher")]


async def _confirmed(plan: Plan) -> list[Figure]:
    async with plan.client() as client:
        address = await _queue(plan, client, 2, status="cache")
        body = plan.body
        times = await _closed_loop(lambda: client.publish(address, body), plan.seconds)
        return _microseconds("confirmed", times, {"p50": 0.5, "p99": 0.99})


async def _consume(plan: Plan) -> list[Figure]:
    async with plan.client() as client:
        address = await _queue(plan, client, 3, status="push", request_acknowledge=True)
        body = plan.body
        for done in range(0, plan.messages, _CHUNK_MESSAGES):
            await client.publish_many(address, [body] * min(_CHUNK_MESSAGES, plan.messages - done))
        count, start = 0, time.perf_counter()
        async with client.queue(address).consume(prefetch=_PREFETCH, idle_timeout=plan.timeout) as messages:
            async for message in messages:
                await message.ack()
                count += 1
                if count == plan.messages:
                    break
        elapsed = time.perf_counter() - start
        if count < plan.messages:
            raise errors.RequestTimeout(
                f"scenario consume received {count} of {plan.messages} messages, then none for {plan.timeout:g} s"
            )
        return [Figure("consume", "messages/s", count / elapsed, "higher")]


async def _latency(plan: Plan) -> list[Figure]:
    """Age of each message from the time at which it was due, so that a pause counts for all messages due during it."""
    interval, total = 1 / plan.rate, max(1, round(plan.rate * plan.seconds))
    padding = b"x" * max(0, plan.body_bytes - 8)
    ages: list[float] = []
    async with plan.client() as producer, plan.client() as consumer:
        address = await _queue(plan, producer, 4, status="broadcast")

        async with consumer.queue(address).consume(idle_timeout=_LATE_SECONDS) as messages:
            start = time.perf_counter()

            async def publish() -> None:
                for number in range(total):
                    due = start + number * interval
                    # A producer that is late catches up without a pause, but lets the consumer run.
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    stamp = number.to_bytes(8, "little")
                    await producer.publish(address, stamp + padding, confirm=False)

            publishing = asyncio.create_task(publish())
            try:
                async for message in messages:
                    number = int.from_bytes(message.body[:8], "little")
                    ages.append(time.perf_counter() - start - number * interval)
                    if len(ages) == total:
                        break
            finally:
                publishing.cancel()
                await asyncio.gather(publishing, return_exceptions=True)
    if len(ages) < total:
        raise errors.RequestTimeout(
            f"scenario latency received {len(ages)} of {total} messages within {_LATE_SECONDS:g} s of each other"
        )
    return _microseconds("latency", ages, {"p50": 0.5, "p99": 0.99, "p999": 0.999})


async def _request(plan: Plan) -> list[Figure]:
    # Other clients may serve the same name: the channel's name is random.
    name = f"{plan.channel}-echo"
    body = plan.body
    async with plan.client(name) as server, plan.client() as client:
        async with server.requests() as requests:

            async def respond() -> None:
                async for request in requests:
                    await request.respond(request.body)

            responding = asyncio.create_task(respond())
            try:
                times = await _closed_loop(lambda: client.request(f"@name:{name}", body), plan.seconds)
            finally:
                responding.cancel()
                await asyncio.gather(responding, return_exceptions=True)
        return _microseconds("request", times, {"p50": 0.5, "p99": 0.99})


async def _durable(plan: Plan) -> list[Figure]:
    async with plan.client() as client:
        address = await _queue(plan, client, 5, status="pull", delivery_handler="at-least-once")
        body = plan.body
        await client.publish(address, body)
        times: list[float] = []
        start = time.perf_counter()

        async def publish() -> None:
            while (began := time.perf_counter()) < start + plan.seconds:
                await client.publish(address, body)
                times.append(time.perf_counter() - began)

        await asyncio.gather(*(publish() for _ in range(_WINDOW)))
        rate = len(times) / (time.perf_counter() - start)
        median = statistics.median(times) * 1e6 if times else 0.0
        return [Figure("durable", "messages/s", rate, "higher"), Figure("durable", "p50 us", median, "lower")]


SCENARIOS: Final[Mapping[str, _Measure]] = {
    "publish": _publish,
    "confirmed": _confirmed,
    "consume": _consume,
    "latency": _latency,
    "request": _request,
    "durable": _durable,
}
"""All scenarios by name, in the order in which they run."""
