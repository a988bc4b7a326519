"""A worker: it takes jobs from a broker, lets a pool run them, and sends back what came of them."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mqcore.config import Duration, seconds
from mqcore.errors import BodyError, ConfigError, JobLost, JobRefused, JobTimeout, MqcoreError
from mqcore.jobs import wire
from mqcore.jobs.app import Jobs
from mqcore.jobs.backoff import Backoff
from mqcore.jobs.dealer import Waker
from mqcore.jobs.execution import Assignment, Ending, Registry, fault_of
from mqcore.jobs.link import Link
from mqcore.jobs.pool import Died, Pool, PoolKind, Progress

__all__ = ["JobCounts", "Running", "Worker"]

_LOG: Final = logging.getLogger("mqcore.worker")

# Jobs that may wait for their time, or to be tried again, without taking a slot's place.
_PARKED_MAX: Final = 10_000
# After it said goodbye, jobs that were on their way still arrive; none for so long: none will.
_QUIET: Final = 0.5
# How often progress is published at most, and of how many jobs it is remembered while nobody takes it.
_PROGRESS_EVERY: Final = 0.1
_UNTOLD_MAX: Final = 1000
# How often something is looked at that nothing wakes up for.
_TURN_MAX: Final = 1.0

Queues = Sequence[str | tuple[str, int]]


@dataclass(slots=True)
class JobCounts:
    """Numbers of jobs since the worker started."""

    succeeded: int = 0
    failed: int = 0
    """Jobs that failed their last attempt."""
    retried: int = 0
    """Failed attempts that are followed by another attempt."""
    lost: int = 0
    """Processes that died while they ran a job."""
    rejected: int = 0
    """Jobs of unknown tasks that the worker may not import."""


@dataclass(slots=True)
class Running:
    """A job that runs now."""

    id: str
    name: str
    queue: str
    attempt: int
    since: float
    """By `time.monotonic`."""
    progress: float | None = None
    note: str = ""


@dataclass(slots=True)
class _Work:
    """A job that the worker has."""

    id: str
    queue: str
    headers: wire.Headers
    job: bytes
    name: str
    soft: float
    hard: float
    not_before: float
    backoff: Backoff
    attempt: int = 1
    run: int = 0
    shown: Running | None = None

    @property
    def broker_counts(self) -> bool:
        """The broker keeps the job until its end is known, tries it again itself, and gives it to others if we
        vanish."""
        return self.headers.attempt > 0


@dataclass(order=True, slots=True)
class _Parked:
    due: float
    number: int
    work: _Work = field(compare=False)


class Worker:
    """Runs the jobs of a broker until it is stopped.

    `queues` are names, or names with weights such as ``("email", 40)``: of the workers that serve a queue, those with
    the larger weight get its jobs first; default is the queue ``default``. `concurrency` is how many jobs run at a
    time, `prefetch` how many more may wait here so that nobody waits for the broker; more than 0 is for many short
    jobs, because those do not go to other workers that are free. With processes, `jobs` must be an attribute of a
    module that they can import.
    """

    def __init__(
        self,
        jobs: Jobs,
        *,
        queues: Queues = ("default",),
        concurrency: int | None = None,
        pool: PoolKind | str = PoolKind.PROCESS,
        prefetch: int = 0,
        drain_timeout: Duration = 30.0,
        allow_import: Iterable[str] = (),
        schedules: bool = True,
        home: tuple[str, str] | None = None,
        on_joined: Callable[[Worker], None] | None = None,
        on_turn: Callable[[Worker], None] | None = None,
    ) -> None:
        self.jobs = jobs
        """Whose tasks it runs."""
        self.queues = tuple(queue if isinstance(queue, tuple) else (queue, 10) for queue in queues)
        """Names and weights."""
        self.concurrency = concurrency if concurrency is not None else os.cpu_count() or 1
        """Jobs at a time."""
        self.counts = JobCounts()
        """What became of jobs."""
        if not self.queues or self.concurrency < 1 or prefetch < 0:
            raise ConfigError("a worker has at least one queue and one job at a time, and prefetches 0 jobs or more")
        try:
            self.pool_kind = PoolKind(pool)
        except ValueError:
            raise ConfigError(f"there is no pool {pool!r}; there are {', '.join(PoolKind)}") from None
        self._allow_import = (*jobs.allow_import, *allow_import)
        self._registry = Registry(jobs.tasks, self._allow_import)
        self._prefetch = prefetch
        self._drain_timeout = seconds(drain_timeout)
        self._sends_schedules = schedules
        self._home = home
        self._on_joined = on_joined
        self._on_turn = on_turn
        self._runs = itertools.count(1)
        self._running: dict[int, _Work] = {}
        self._by_id: dict[str, _Work] = {}
        self._pending: deque[_Work] = deque()
        self._parked: list[_Parked] = []
        self._deadlines: list[tuple[float, int]] = []
        self._waker = Waker()
        self._stopping = False
        self._stop_now = False
        self._drain_until = 0.0
        self._last_request = 0.0
        self._said_joined = False
        self._untold: dict[str, wire.JobProgress] = {}
        self._tell_at = 0.0

    @property
    def running(self) -> list[Running]:
        """The jobs that run now."""
        return [work.shown for work in list(self._running.values()) if work.shown is not None]

    @property
    def waiting(self) -> int:
        """Jobs that are here, but do not run yet."""
        return len(self._pending) + len(self._parked)

    @property
    def identity(self) -> str:
        """As whom the broker knows it; another one each time it joins."""
        return self._link.identity

    @property
    def is_draining(self) -> bool:
        """It takes nothing new."""
        return self._stopping

    def stop(self) -> None:
        """Take nothing new, finish what is here, and end; a second time: end now. From any thread, or a signal's
        handler."""
        self._stop_now = self._stopping
        self._stopping = True
        self._waker.wake()

    def run(self) -> int:
        """Run until `stop`. Returns how many jobs it had to leave, of which the broker gives to others those that it
        keeps.

        Raises `ConfigError` if the pool cannot start, and `AuthFailed` if the broker does not let it in, or not serve
        one of its queues; once it was let in, it tries again instead.
        """
        self._link = Link(self.jobs.addresses.backend, self.queues, self.jobs.credentials)
        pool: Pool | None = None
        try:
            pool = self._make_pool()
            while not self._is_over():
                self._turn(pool)
            return self._leave_rest()
        finally:
            if pool is not None:
                pool.close()
            self._link.close()
            self._waker.close()

    def _make_pool(self) -> Pool:
        if self.pool_kind is PoolKind.THREAD:
            from mqcore.jobs.pool.thread import ThreadPool

            return ThreadPool(self.concurrency, self._registry, self._waker.wake)
        if self.pool_kind is PoolKind.ASYNCIO:
            from mqcore.jobs.pool.loop import LoopPool

            return LoopPool(self.concurrency, self._registry, self._waker.wake)
        from mqcore.jobs.pool.process import ProcessPool

        return ProcessPool(self.concurrency, self._home or _find(self.jobs), self._allow_import)

    # --- turns ------------------------------------------------------------------------------------------------------

    def _turn(self, pool: Pool) -> None:
        self._fill(pool)
        ready = self._link.poll(self._pause(), {self._waker.fileno(), *pool.descriptors()})
        if self._waker.fileno() in ready:
            self._waker.clear()
        self._link.flush()
        for message in self._link.receive():
            if message.command == b"REQUEST":
                self._take(message)
            elif message.command == b"DISCONNECT":
                _LOG.info("the broker wants this worker to end")
                self.stop()
        self._joined()
        for happened in pool.collect(ready):
            self._heard(happened)
        self._tell_progress()
        self._end_late(pool)
        self._drain()
        if self._on_turn is not None:
            self._on_turn(self)

    def _pause(self) -> float:
        """Seconds until something is due."""
        pause = _TURN_MAX if not self._stopping else 0.1
        if self._deadlines:
            pause = min(pause, self._deadlines[0][0] - time.monotonic())
        if self._untold:
            pause = min(pause, self._tell_at - time.monotonic())
        if self._parked:
            pause = min(pause, self._parked[0].due - time.time())
        return max(0.0, pause)

    def _fill(self, pool: Pool) -> None:
        """Give jobs to free slots, and let the broker send as many as there is room for."""
        now = time.time()
        while self._parked and self._parked[0].due <= now:
            self._pending.append(heapq.heappop(self._parked).work)
        while self._pending and pool.free:
            self._start(self._pending.popleft(), pool)
        if not self._stopping:
            here = len(self._running) + len(self._pending) + max(0, len(self._parked) - _PARKED_MAX)
            # While no process has started yet there is nobody to prefetch for.
            room = pool.slots + self._prefetch if pool.slots else 0
            self._link.announce(room - here - self._link.announced)

    def _joined(self) -> None:
        if self._link.is_joined and not self._said_joined:
            self._said_joined = True
            _LOG.info("joined %s as %s", self.jobs.addresses.backend, self._link.identity)
            if self._sends_schedules and self.jobs.schedules:
                self._send_schedules()
            if self._on_joined is not None:
                self._on_joined(self)

    def _send_schedules(self) -> None:
        try:
            _LOG.info("sent %d schedules", self.jobs.send_schedules())
        except MqcoreError as error:
            # They go where clients connect, which may be closed to workers; jobs come all the same.
            _LOG.error("schedules could not be sent: %s", error)

    # --- jobs that come ---------------------------------------------------------------------------------------------

    def _take(self, message: wire.Received) -> None:
        self._link.announced = max(0, self._link.announced - 1)
        self._last_request = time.monotonic()
        if len(message.body) < 3:
            _LOG.warning("a request without a job was ignored")
            return
        job_id = message.id.decode("utf-8", "backslashreplace")
        if job_id in self._by_id:
            # The broker takes it for lost, with an older connection of ours; its end will be told on this one.
            return
        headers = wire.Headers.parse(message.body[1])
        try:
            call = wire.decode_call(message.body[2])
            if not self._registry.may_run(call):
                raise JobRefused(
                    f"there is no task {call.name} here, and nothing allows to import it; --allow-import does"
                )
        except (BodyError, JobRefused) as error:
            self.counts.rejected += 1
            _LOG.warning("job %s was refused: %s", job_id, error)
            self._reply(job_id, headers, fault_of(error, final=True), b"null")
            return
        work = self._work(job_id, message.body[0].decode("utf-8", "backslashreplace"), headers, message.body[2], call)
        self._by_id[job_id] = work
        self._park(work, work.not_before)

    def _work(self, job_id: str, queue: str, headers: wire.Headers, job: bytes, call: wire.Call) -> _Work:
        task = self._registry.task(call.name)
        options = None if task is None else task.options
        soft, hard = call.mqcore.soft, call.mqcore.hard or float(headers.timeout)
        if options is not None:
            # A sender that is not ours knows nothing of them.
            soft = soft or (seconds(options.soft_timeout) if options.soft_timeout is not None else 0.0)
            hard = hard or (seconds(options.timeout) if options.timeout is not None else 0.0)
        return _Work(
            job_id,
            queue,
            headers,
            job,
            call.name,
            soft,
            hard,
            call.mqcore.not_before,
            backoff=Backoff() if options is None else options.backoff,
            attempt=max(1, headers.attempt),
        )

    def _park(self, work: _Work, due: float) -> None:
        """Let it wait for its time, if that has not come."""
        if due > time.time():
            heapq.heappush(self._parked, _Parked(due, next(self._runs), work))
        else:
            self._pending.append(work)

    def _start(self, work: _Work, pool: Pool) -> None:
        work.run = next(self._runs)
        now = time.monotonic()
        work.shown = Running(work.id, work.name, work.queue, work.attempt, now)
        self._running[work.run] = work
        if work.hard > 0:
            heapq.heappush(self._deadlines, (now + work.hard, work.run))
        pool.submit(Assignment(work.run, work.id, work.queue, work.attempt, work.job, work.soft))

    # --- what comes of them -----------------------------------------------------------------------------------------

    def _heard(self, happened: Ending | Progress | Died) -> None:
        if isinstance(happened, Progress):
            work = self._running.get(happened.run)
            if work is not None and work.shown is not None:
                work.shown.progress, work.shown.note = happened.fraction, happened.note
                self._untold[work.id] = wire.JobProgress(
                    work.id, work.name, happened.fraction, happened.note, work.attempt, self._link.identity
                )
            return
        work = self._running.pop(happened.run, None)
        if work is None:
            return
        if isinstance(happened, Died):
            self._died(work, happened.how)
        elif happened.fault is None:
            self.counts.succeeded += 1
            self._reply(work.id, work.headers, None, happened.value)
            del self._by_id[work.id]
        else:
            self._failed(work, happened.fault)

    def _tell_progress(self) -> None:
        """Let whoever watches jobs know how far they are: of each the last it said, and not more often than people can
        read. A job that nobody hears of is not held up."""
        now = time.monotonic()
        if not self._untold or now < self._tell_at:
            return
        try:
            client = self.jobs.client
        except MqcoreError as error:
            _LOG.error("how far jobs are cannot be told: %s", error)
            self._untold.clear()
            return
        if client.is_connected:
            for told in self._untold.values():
                client.offer(wire.publish_progress(told))
        if client.is_connected or len(self._untold) > _UNTOLD_MAX:
            self._untold.clear()
        self._tell_at = now + _PROGRESS_EVERY

    def _died(self, work: _Work, how: str) -> None:
        """Its process is gone, which is a failed attempt. A job that is kept gets a second one at once, retries or
        not, because it is perhaps not to blame; a third one only as a retry, because it perhaps is."""
        self.counts.lost += 1
        fault = fault_of(JobLost(f"the process of {work.name} {how}"))
        if work.attempt == 1 and work.headers.guarantee:
            _LOG.warning("job %s (%s): its process %s; it is run again", work.id, work.name, how)
            self._again(work, fault, 0.0)
        else:
            self._failed(work, fault)

    def _failed(self, work: _Work, fault: wire.Fault) -> None:
        tries_left = work.attempt <= work.headers.retry_count and not fault.final
        said = f"{fault.type}: {fault.message}"
        if not tries_left:
            self.counts.failed += 1
            _LOG.warning("job %s (%s) failed: %s", work.id, work.name, said)
            self._reply(work.id, work.headers, fault, b"null")
            del self._by_id[work.id]
            return
        wait = work.backoff.wait(work.attempt)
        _LOG.info("job %s (%s) failed in attempt %d, next in %.1f s: %s", work.id, work.name, work.attempt, wait, said)
        self._again(work, fault, wait)

    def _again(self, work: _Work, fault: wire.Fault, wait: float) -> None:
        """Let it be tried again: by the broker, if that counts attempts, so that all workers count alike."""
        self.counts.retried += 1
        if work.broker_counts:
            self._reply(work.id, work.headers, fault, b"null", retry_after=wait)
            del self._by_id[work.id]
            return
        work.attempt += 1
        self._park(work, time.time() + wait)

    def _end_late(self, pool: Pool) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, run = heapq.heappop(self._deadlines)
            work = self._running.pop(run, None)
            if work is not None:
                pool.abandon(run)
                self._failed(work, fault_of(JobTimeout(f"{work.name} took longer than its limit of {work.hard:g} s")))

    def _reply(
        self,
        job_id: str,
        headers: wire.Headers,
        fault: wire.Fault | None,
        value: bytes,
        *,
        retry_after: float | None = None,
    ) -> None:
        if headers.reply_requested:
            result = b'{"value":' + value + b"}" if fault is None else wire.encode_fault(fault, retry_after)
            self._link.send(wire.message(wire.REPLY, result, job_id.encode()))

    # --- the end ----------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if not self._stopping or self._drain_until:
            return
        now = time.monotonic()
        self._drain_until = now + self._drain_timeout
        self._last_request = now
        self._link.leave()
        kept = [parked for parked in self._parked if parked.work.broker_counts]
        for parked in kept:
            # They come back to their queue when the connection ends.
            del self._by_id[parked.work.id]
        others = [parked.work for parked in self._parked if not parked.work.broker_counts]
        self._parked.clear()
        for work in others:
            # Nobody else has them: what only waits to be tried again is tried now.
            self._park(work, work.not_before)
        here = len(self._running) + self.waiting
        if here:
            _LOG.info("draining: %d jobs are left, for up to %g s", here, self._drain_timeout)

    def _is_over(self) -> bool:
        if not self._stopping:
            return False
        now = time.monotonic()
        if self._stop_now or (self._drain_until and now >= self._drain_until):
            return True
        is_empty = not self._by_id and bool(self._drain_until)
        # Requests that were sent before the broker heard of our leaving may still come.
        return is_empty and (not self._link.is_joined or now - self._last_request > _QUIET)

    def _leave_rest(self) -> int:
        for work in self._by_id.values():
            if not work.broker_counts:
                _LOG.error("job %s (%s) was not finished in time, and nobody else has it", work.id, work.name)
                self._reply(
                    work.id, work.headers, fault_of(JobLost(f"the worker ended before {work.name} did")), b"null"
                )
        return len(self._by_id)


def _find(jobs: Jobs) -> tuple[str, str]:
    """The module and the attribute by which processes find the tasks."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is jobs:
                return name, attribute
    raise ConfigError(
        "processes find tasks by importing them: let the Jobs be an attribute of a module, or use another pool"
    )
