"""Flows: jobs that the broker starts when other jobs have ended."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import msgspec

from mqcore import _tracing as tracing
from mqcore.config import Duration, seconds
from mqcore.errors import ConfigError, InvalidArgument, RequestTimeout
from mqcore.jobs import wire
from mqcore.jobs.job import Job
from mqcore.jobs.signature import encode_arguments
from mqcore.jobs.state import answer_of
from mqcore.jobs.task import BoundCall, Follows, Task, TaskOptions

__all__ = ["Flow", "FlowJob", "Group", "GroupJob"]

Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")

# Stands for results in the JSON of a job until the broker has them.
_PLACE: Final = "mqcore.jobs.flow:2f9f0b1c"
_STEPS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Step:
    """A job of a flow."""

    task: Task[..., Any, Any]
    args: bytes
    kwargs: bytes
    after: tuple[int, ...] = ()
    gathers: bool = False

    def encode(self, job_id: str, trace: Iterable[tuple[str, str]]) -> dict[str, Any]:
        options = self.task.options
        headers = dataclasses.replace(options, guarantee=True).headers(self.task.name, self.args, self.kwargs)
        job = wire.encode_call(self.task.name, self.args, self.kwargs, options.terms()).decode()
        head, _, tail = job.partition(f'"{_PLACE}"')
        return {
            "id": job_id,
            "queue": options.queue,
            "headers": wire.with_trace(headers.encode(), trace).decode(),
            "head": head,
            "tail": tail,
            "after": self.after,
            "gathers": self.gathers,
        }

    def moved(self, by: int) -> _Step:
        return dataclasses.replace(self, after=tuple(each + by for each in self.after))


class Flow(Generic[R]):
    """Jobs that follow each other: the broker starts each when those before it have returned their results.

    `Task.bind` and `then` make one, `enqueue` sends it. mqcore's broker keeps the whole flow, so it continues after a
    crash of the broker, of workers, and of the program that sent it. If a job fails for good or is cancelled, those
    that follow it end with the same error and do not run.

    ::

        job = fetch.bind(url).then(parse).then(store, table="pages").enqueue()
        print(job.result(timeout="1m"))
    """

    def __init__(self, steps: tuple[_Step, ...], ends: tuple[int, ...], *, gathers: bool = False) -> None:
        self._steps = steps
        self._ends = ends
        self._gathers = gathers

    @classmethod
    def of(cls, call: BoundCall[S]) -> Flow[S]:
        """Return a flow of one job. Raises `ConfigError` for options that jobs of flows cannot have."""
        _check(call.name, call.options)
        task = call.task if call.task.options == call.options else call.task.using(**_fields(call.options))
        return Flow((_Step(task, call.args, call.kwargs),), (0,))

    def __len__(self) -> int:
        return len(self._steps)

    def then(self, task: Follows[Concatenate[R, Q], S], *args: Q.args, **kwargs: Q.kwargs) -> Flow[S]:
        """Return a longer flow: a job of `task` follows, with the result as its first argument.

        `args` and `kwargs` are its further arguments. Raises `TypeError` and `InvalidArgument` for arguments like
        `Task.enqueue`, and `ConfigError` for a task with `unique` or without `result`.
        """
        if not isinstance(task, Task):
            raise InvalidArgument(f"{task!r} is not a task; decorate the function with @jobs.task")
        _check(task.name, task.options)
        try:
            task.signature.check((None, *args), kwargs)
        except TypeError as error:
            raise TypeError(f"{task.name}: {error}") from None
        encoded = encode_arguments((_PLACE, *args), kwargs)
        following = _Step(task, *encoded, self._ends, self._gathers)
        return Flow((*self._steps, following), (len(self._steps),))

    def enqueue(self, timeout: Duration = 5.0) -> FlowJob[R]:
        """Send the flow and return its last job. The broker has saved the flow when this returns.

        Raises `JobRefused` if the broker rejects it, `RequestTimeout` if the broker does not answer within `timeout`,
        as the original's does not, and otherwise like `Task.enqueue`. After `RequestTimeout` and `ConnectionLost`, the
        flow may have begun.
        """
        (end,) = self._ends
        jobs = self._send(timeout)
        return FlowJob(jobs[end], jobs)

    async def aenqueue(self, timeout: Duration = 5.0) -> FlowJob[R]:
        """Like `enqueue`, without blocking the event loop."""
        return await asyncio.to_thread(self.enqueue, timeout)

    def _send(self, timeout: Duration) -> list[Job[Any]]:
        jobs = [step.task.job(wire.new_id(), is_remote=True) for step in self._steps]
        if not jobs:
            return []
        if len(jobs) > _STEPS_MAX:
            raise InvalidArgument(f"a flow has at most {_STEPS_MAX:,} jobs, not {len(jobs):,}; split it")
        app = self._steps[-1].task.app
        with tracing.enqueuing(self._steps[-1].task.options.queue) as trace:
            listed = tuple(trace)
            steps = [step.encode(job.id, listed) for step, job in zip(self._steps, jobs, strict=True)]
            flow = msgspec.json.encode({"id": wire.new_id(), "steps": steps})
            answer_of(app.client.ask(b"FLOW", flow, timeout=seconds(timeout)), jobs[-1].id)
        return jobs


class Group(Flow[list[R]]):
    """Jobs that run side by side. `then` adds a job that gets the list of their results when all have ended."""

    def __init__(self, flows: Iterable[Flow[R]]) -> None:
        steps: list[_Step] = []
        ends: list[int] = []
        for flow in flows:
            if isinstance(flow, Group):
                raise InvalidArgument("a group cannot contain a group; let a job follow the inner one with then")
            ends += [end + len(steps) for end in flow._ends]
            steps += [step.moved(len(steps)) for step in flow._steps]
        super().__init__(tuple(steps), tuple(ends), gathers=True)

    def enqueue(self, timeout: Duration = 5.0) -> GroupJob[R]:  # type: ignore[override]
        """Send the group and return its jobs. Raises like `Flow.enqueue`."""
        jobs = self._send(timeout)
        return GroupJob([jobs[end] for end in self._ends], jobs)

    async def aenqueue(self, timeout: Duration = 5.0) -> GroupJob[R]:  # type: ignore[override]
        """Like `enqueue`, without blocking the event loop."""
        return await asyncio.to_thread(self.enqueue, timeout)


class FlowJob(Job[R]):
    """The last job of a flow."""

    __slots__ = ("steps",)

    def __init__(self, last: Job[R], steps: list[Job[Any]]) -> None:
        super().__init__(
            last.id, last.name, last._decode, last._raises, jobs=last._jobs, queue=last.queue, is_remote=True
        )
        self.steps = steps
        """All jobs of the flow; each comes after those that it follows."""

    def cancel(self, *, hard: bool = False, timeout: Duration = 5.0) -> bool:
        """Cancel all jobs of the flow; false if the last one has ended already. Raises like `Job.cancel`."""
        is_cancelled = super().cancel(hard=hard, timeout=timeout)
        for step in self.steps[-2::-1]:
            step.cancel(hard=hard, timeout=timeout)
        return is_cancelled


class GroupJob(Generic[R]):
    """The jobs of a group."""

    def __init__(self, jobs: list[Job[R]], steps: list[Job[Any]]) -> None:
        self.jobs: list[FlowJob[R]] = [FlowJob(job, [job]) for job in jobs]
        """The last job of each member, in the order of the group."""
        self.steps = steps
        """All jobs of the group."""

    def __len__(self) -> int:
        return len(self.jobs)

    def result(self, timeout: Duration | None = None) -> list[R]:
        """Wait up to `timeout` for all results, and return them in the order of the group. Raises like `Job.result`."""
        if not self.jobs:
            return []
        return asyncio.run(self.aresult(timeout)) if _has_no_loop() else _in_thread(self, timeout)

    async def aresult(self, timeout: Duration | None = None) -> list[R]:
        """Like `result`, without blocking the event loop."""
        limit = None if timeout is None else seconds(timeout)
        try:
            return await asyncio.wait_for(asyncio.gather(*(job.aresult() for job in self.jobs)), limit)
        except TimeoutError:
            left = sum(not job.is_done for job in self.jobs)
            raise RequestTimeout(f"{left} of {len(self.jobs)} jobs have no result within {timeout}") from None

    def cancel(self, *, hard: bool = False, timeout: Duration = 5.0) -> int:
        """Cancel all jobs, and return how many had not ended. Raises like `Job.cancel`."""
        return sum(step.cancel(hard=hard, timeout=timeout) for step in reversed(self.steps))


def _has_no_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def _in_thread(job: GroupJob[R], timeout: Duration | None) -> list[R]:
    with ThreadPoolExecutor(1) as pool:
        waited: Future[list[R]] = pool.submit(lambda: asyncio.run(job.aresult(timeout)))
        return waited.result()


def _check(name: str, options: TaskOptions) -> None:
    if options.unique:
        raise ConfigError(f"{name} is unique, so a flow could stop at a duplicate; use {name}.using(unique=False)")
    if not options.keeps_result:
        raise ConfigError(f"{name} has no result for the next job; use {name}.using(result=True, result_ttl='1h')")


def _fields(options: TaskOptions) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
