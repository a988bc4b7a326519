"""Checked by mypy, never run: tasks as users write them, and mistakes that have to be found."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from mqcore.jobs import Backoff, BoundCall, Flow, FlowJob, Job, Jobs

jobs = Jobs()


@jobs.task
def bare(to: str, count: int = 1) -> int:
    return len(to) * count


@jobs.task(queue="email", retries=3, backoff=Backoff("1s"), timeout="30s", raises=(ValueError,))
def with_options(to: str, *, subject: str) -> list[str]:
    return [to, subject]


@jobs.task
async def awaited(to: str) -> float:
    return len(to) / 2


async def uses() -> None:
    assert_type(bare("a", count=2), int)
    assert_type(bare.enqueue("a", count=2), Job[int])
    assert_type(bare.delay("a").result(timeout="10s"), int)
    assert_type(await bare.enqueue("a"), int)
    assert_type(await with_options.aenqueue("a", subject="b"), Job[list[str]])
    assert_type(with_options.using(priority=3).enqueue("a", subject="b").result(), list[str])
    assert_type(await awaited("a"), float)
    assert_type(await awaited.enqueue("a"), float)
    coroutine: Coroutine[Any, Any, float] = awaited("a")
    coroutine.close()
    jobs.every("30s", bare.bind("a"), nohaste=True)


@jobs.task
def doubled(number: int, *, times: int = 2) -> float:
    return float(number * times)


@jobs.task
async def added(numbers: list[int], start: int = 0) -> int:
    return sum(numbers, start)


def flows(job_id: str) -> None:
    assert_type(bare.bind("a"), BoundCall[int])
    assert_type(bare.bind("a").then(doubled, times=3), Flow[float])
    assert_type(bare.bind("a").then(doubled).enqueue(), FlowJob[float])
    group = jobs.group(bare.bind(text) for text in ("a", "b"))
    assert_type(group.enqueue().result(), list[int])
    assert_type(group.then(added, 5).then(doubled).enqueue().result(), float)
    assert_type(jobs.fetch(job_id, awaited).result("1s"), float)
    assert_type(bare.enqueue("a").cancel(hard=True), bool)
    bare.bind("a").then(with_options)  # type: ignore[arg-type, call-arg]
    bare.bind("a").then(doubled, times="3")  # type: ignore[arg-type]
    bare.bind("a").then(doubled, 3)  # type: ignore[call-arg]
    bare.bind("a").then(added)  # type: ignore[arg-type]
    group.then(doubled)  # type: ignore[arg-type]
    jobs.group([bare])  # type: ignore[arg-type]


def mistakes() -> None:
    """Each line is one; a checker that does not find it fails, because the ignore would be unused."""
    bare.enqueue(1)  # type: ignore[arg-type]
    bare.enqueue()  # type: ignore[call-arg]
    with_options.enqueue("a", "b")  # type: ignore[call-arg]
    with_options.delay("a", subject=1)  # type: ignore[arg-type]
    bare.bind("a", cont=2)  # type: ignore[call-arg]
    text: str = bare.enqueue("a").result()  # type: ignore[assignment]
    del text
    jobs.every("30s", bare)  # type: ignore[arg-type]
