"""Worker: takes jobs from a broker, runs them in a pool, and returns their results."""

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

from mqcore import _tracing as tracing
from mqcore.config import Duration, seconds
from mqcore.errors import BodyError, ConfigError, JobLost, JobRefused, JobTimeout, MqcoreError
from mqcore.jobs import wire
from mqcore.jobs.app import Jobs, patterns
from mqcore.jobs.backoff import Backoff
from mqcore.jobs.dealer import Waker
from mqcore.jobs.execution import Assignment, Ending, Registry, fault_of
from mqcore.jobs.limits import cancelled
from mqcore.jobs.link import Link
from mqcore.jobs.pool import Died, Pool, PoolKind, Progress, Returned
from mqcore.jobs.scheduling import ScheduleSender

__all__ = ["JobCounts", "Running", "Worker"]

_LOG: Final = logging.getLogger("mqcore.worker")

# Jobs that wait for their time or for a retry without occupying a slot.
_PARKED_JOBS_MAX: Final = 10_000
# After the worker leaves, jobs that were in transit still arrive. After this long without one, no more are expected.
_DRAIN_IDLE_SECONDS: Final = 0.5
# Time between two publications of progress.
_PROGRESS_SECONDS: Final = 0.1
# Jobs whose latest progress is kept while the broker is unreachable.
_MAX_PENDING_PROGRESS: Final = 1000
# Interval for checks that no event triggers, such as deadlines of new jobs.
_MAX_POLL_SECONDS: Final = 1.0

Queues = str | Sequence[str | tuple[str, int]]
_WEIGHT: Final = 10
_WEIGHT_MAX: Final = 10**9


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
    cancelled: int = 0
    """Jobs that were cancelled while this worker had them."""
    rejected: int = 0
    """Jobs of unknown tasks that the worker may not import."""


@dataclass(slots=True)
class Running:
    """A running job."""

    id: str
    name: str
    queue: str
    attempt: int
    since: float
    """Start of the attempt, in seconds of `time.monotonic`."""
    progress: float | None = None
    note: str = ""


@dataclass(slots=True)
class _Work:
    """A job that the worker holds, running or not."""

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
    is_cancelled: bool = False
    shown: Running | None = None
    trace: str | None = None
    """The context of its trace."""
    span: tracing.Spanned | None = None

    @property
    def is_limited(self) -> bool:
        """Whether its time is limited."""
        return self.hard > 0 or self.soft > 0

    @property
    def broker_counts(self) -> bool:
        """Whether the broker keeps the job until it is settled, schedules its retries, and requeues it if this worker
        disappears."""
        return self.headers.attempt > 0


@dataclass(order=True, slots=True)
class _Parked:
    due: float
    number: int
    work: _Work = field(compare=False)


class Worker:
    """Runs the jobs of a broker until it is stopped.

    - `queues`: a name, or a list of names and of names with weights such as ``[("email", 40), "reports"]``. The broker
      prefers workers with a larger weight for a queue. Defaults: the queue ``default``, weight 10.
    - `concurrency`: maximum number of jobs that run at a time. Default: the number of processors.
    - `prefetch`: jobs fetched in addition, so that slots do not wait for the broker (default 0). Increase it for many
      short jobs; prefetched jobs cannot go to other workers that are free.
    - `pool`: run jobs in processes (default), threads or an event loop. With processes, `jobs` must be an attribute of
      a module that they can import.
    - `drain_timeout`: time for running jobs to finish after `stop` (default 30 s).
    - `allow_import`: name patterns of functions that may run although they are not tasks, in addition to those of
      `jobs`.

    Raises `ConfigError` for an invalid argument.
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
        allow_import: str | Iterable[str] = (),
        schedules: bool = True,
        home: tuple[str, str] | None = None,
        on_joined: Callable[[Worker], None] | None = None,
        on_turn: Callable[[Worker], None] | None = None,
    ) -> None:
        self.jobs = jobs
        """The tasks, and the address of the broker."""
        self.queues = _weighted(queues)
        """Names and weights of the queues."""
        self.concurrency = concurrency if concurrency is not None else os.cpu_count() or 1
        """Maximum number of jobs that run at a time."""
        self.counts = JobCounts()
        """Numbers of jobs since the worker started."""
        if self.concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, not {self.concurrency}")
        if prefetch < 0:
            raise ConfigError(f"prefetch must be at least 0, not {prefetch}")
        try:
            self.pool_kind = PoolKind(pool)
        except ValueError:
            raise ConfigError(f"unknown pool {pool!r}; use one of {', '.join(PoolKind)}") from None
        self._allow_import = (*jobs.allow_import, *patterns(allow_import))
        self._registry = Registry(jobs.tasks, self._allow_import)
        self._prefetch = prefetch
        self._drain_timeout = seconds(drain_timeout)
        self._schedules = ScheduleSender(jobs) if schedules else None
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
        self._reported_joined = False
        self._pending_progress: dict[str, wire.JobProgress] = {}
        self._publish_at = 0.0

    @property
    def running(self) -> list[Running]:
        """The running jobs."""
        return [work.shown for work in list(self._running.values()) if work.shown is not None]

    @property
    def waiting(self) -> int:
        """Number of jobs that the worker holds but has not started."""
        return len(self._pending) + len(self._parked)

    @property
    def identity(self) -> str:
        """The worker's name at the broker. It changes with each connection."""
        return self._link.identity

    @property
    def is_draining(self) -> bool:
        """Whether the worker has been asked to stop and accepts no new jobs."""
        return self._stopping

    def stop(self) -> None:
        """Stop after finishing the jobs that the worker holds; a second call stops it immediately.

        Can be called from any thread and from signal handlers.
        """
        self._stop_now = self._stopping
        self._stopping = True
        self._waker.wake()

    def run(self) -> int:
        """Run until `stop`. Return the number of unfinished jobs; the broker requeues those sent with `guarantee`.

        Raises `ConfigError` if the pool cannot start, and `AuthFailed` if the broker rejects the credentials or denies
        a queue. Once the worker has joined, it logs rejections and retries instead.
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

    # --- event loop -------------------------------------------------------------------------------------------------

    def _turn(self, pool: Pool) -> None:
        self._fill(pool)
        ready = self._link.poll(min(self._pause(), pool.recall()), {self._waker.fileno(), *pool.descriptors()})
        if self._waker.fileno() in ready:
            self._waker.clear()
        self._link.flush()
        for message in self._link.receive():
            if message.command == b"REQUEST":
                self._take(message)
            elif message.command == b"CANCEL":
                self._cancel(message, pool)
            elif message.command == b"DISCONNECT":
                _LOG.info("the broker asked this worker to stop")
                self.stop()
        self._joined()
        for event in pool.collect(ready):
            self._handle(event)
        self._publish_progress()
        self._end_late(pool)
        self._drain()
        if self._on_turn is not None:
            self._on_turn(self)

    def _pause(self) -> float:
        """Seconds until the next deadline, retry or publication of progress."""
        pause = _MAX_POLL_SECONDS if not self._stopping else 0.1
        if self._deadlines:
            pause = min(pause, self._deadlines[0][0] - time.monotonic())
        if self._pending_progress:
            pause = min(pause, self._publish_at - time.monotonic())
        if self._parked:
            pause = min(pause, self._parked[0].due - time.time())
        if self._schedules is not None and self._link.is_joined:
            pause = min(pause, self._schedules.pause)
        return max(0.0, pause)

    def _fill(self, pool: Pool) -> None:
        """Start waiting jobs in free slots, and request as many jobs as there is room for."""
        now = time.time()
        while self._parked and self._parked[0].due <= now:
            self._pending.append(heapq.heappop(self._parked).work)
        while self._pending and pool.free:
            pool.submit([self._start(work) for work in self._next_batch(pool)])
        if not self._stopping:
            here = len(self._running) + len(self._pending) + max(0, len(self._parked) - _PARKED_JOBS_MAX)
            # Until the first process has started, prefetched jobs could not run.
            room = pool.slots + self._prefetch if pool.slots else 0
            self._link.announce(room - here - self._link.announced)

    def _next_batch(self, pool: Pool) -> list[_Work]:
        """Take jobs for a slot: several if all slots get some. One with a limit goes alone: its time begins now."""
        most = min(pool.depth, len(self._pending) // pool.free)
        batch = [self._pending.popleft()]
        while len(batch) < most and not batch[-1].is_limited and self._pending and not self._pending[0].is_limited:
            batch.append(self._pending.popleft())
        return batch

    def _joined(self) -> None:
        if not self._link.is_joined:
            return
        if not self._reported_joined:
            self._reported_joined = True
            _LOG.info("joined %s as %s", self.jobs.addresses.backend, self._link.identity)
            if self._on_joined is not None:
                self._on_joined(self)
        if self._schedules is not None and not self._stopping:
            self._schedules.send(self._link.identity)

    # --- incoming jobs ----------------------------------------------------------------------------------------------

    def _take(self, message: wire.Received) -> None:
        self._link.announced = max(0, self._link.announced - 1)
        self._last_request = time.monotonic()
        if len(message.body) < 3:
            _LOG.warning("ignored a malformed request: it has %d frames, at least 3 are required", len(message.body))
            return
        job_id = message.id.decode("utf-8", "backslashreplace")
        if job_id in self._by_id:
            # The broker lost the connection on which it sent this job before. The result goes out on the new one.
            return
        headers = wire.Headers.parse(message.body[1])
        try:
            call = wire.decode_call(message.body[2])
            if not self._registry.may_run(call):
                raise JobRefused(f"unknown task {call.name}; define it, or permit it with --allow-import {call.name}")
        except (BodyError, JobRefused) as error:
            self.counts.rejected += 1
            _LOG.warning("rejected job %s: %s", job_id, error)
            # Another worker may know the task, for example while programs are replaced one by one.
            self._reply(job_id, headers, fault_of(error, final=isinstance(error, BodyError)), b"null")
            return
        work = self._work(job_id, message.body[0].decode("utf-8", "backslashreplace"), headers, message.body[2], call)
        if tracing.active is not None:
            work.trace = wire.trace_of(message.body[1])
        self._by_id[job_id] = work
        self._park(work, work.not_before)

    def _cancel(self, message: wire.Received, pool: Pool) -> None:
        """Cancel a job: softly, by an exception in the job, or hard, by killing its process. Others continue."""
        job_id = message.body[0].decode("utf-8", "backslashreplace") if message.body else ""
        work = self._by_id.get(job_id)
        if work is None:
            return
        work.is_cancelled = True
        if work.run not in self._running:
            if work in self._pending:
                self._pending.remove(work)
            self._parked = [parked for parked in self._parked if parked.work is not work]
            heapq.heapify(self._parked)
            self._failed(work, fault_of(cancelled()))
        elif message.body[-1] == b"hard":
            del self._running[work.run]
            pool.abandon(work.run)
            self._failed(work, fault_of(cancelled()))
        else:
            pool.interrupt(work.run)

    def _work(self, job_id: str, queue: str, headers: wire.Headers, job: bytes, call: wire.Call) -> _Work:
        task = self._registry.task(call.name)
        options = None if task is None else task.options
        soft, hard = call.mqcore.soft, call.mqcore.hard or float(headers.timeout)
        if options is not None:
            # Senders other than mqcore do not send these limits.
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
        """Queue the job, or hold it back until `due` (seconds since 1970)."""
        if due > time.time():
            heapq.heappush(self._parked, _Parked(due, next(self._runs), work))
        else:
            self._pending.append(work)

    def _start(self, work: _Work) -> Assignment:
        work.run = next(self._runs)
        now = time.monotonic()
        work.shown = Running(work.id, work.name, work.queue, work.attempt, now)
        self._running[work.run] = work
        if tracing.active is not None:
            work.span = tracing.active.working(work.queue, work.id, work.name, work.attempt, work.trace)
        if work.hard > 0:
            heapq.heappush(self._deadlines, (now + work.hard, work.run))
        return Assignment(work.run, work.id, work.queue, work.attempt, work.job, work.soft)

    # --- results ----------------------------------------------------------------------------------------------------

    def _handle(self, event: Ending | Progress | Died | Returned) -> None:
        if isinstance(event, Progress):
            work = self._running.get(event.run)
            if work is not None and work.shown is not None:
                work.shown.progress, work.shown.note = event.fraction, event.note
                self._pending_progress[work.id] = wire.JobProgress(
                    work.id, work.name, event.fraction, event.note, work.attempt, self._link.identity
                )
            return
        work = self._running.pop(event.run, None)
        if work is None:
            return
        if isinstance(event, Returned):
            if work.span is not None:
                work.span.end("returned", "an earlier job kept its process busy")
            self._pending.appendleft(work)
        elif isinstance(event, Died):
            self._died(work, event.how)
        elif event.fault is None:
            self.counts.succeeded += 1
            if work.span is not None:
                work.span.end("succeeded")
            self._reply(work.id, work.headers, None, event.value)
            del self._by_id[work.id]
        else:
            self._failed(work, event.fault)

    def _publish_progress(self) -> None:
        """Publish the latest progress of each job, at most every 0.1 s. An unreachable broker does not delay jobs."""
        now = time.monotonic()
        if not self._pending_progress or now < self._publish_at:
            return
        try:
            client = self.jobs.client
        except MqcoreError as error:
            _LOG.error("cannot publish the progress of jobs: %s", error)
            self._pending_progress.clear()
            return
        if client.is_connected:
            for progress in self._pending_progress.values():
                client.offer(wire.publish_progress(progress))
        if client.is_connected or len(self._pending_progress) > _MAX_PENDING_PROGRESS:
            self._pending_progress.clear()
        self._publish_at = now + _PROGRESS_SECONDS

    def _died(self, work: _Work, how: str) -> None:
        """Handle the death of the job's process as a failed attempt.

        A job sent with `guarantee` gets a second attempt immediately, because the job may not be the cause. Further
        attempts count as retries, because then it may be.
        """
        self.counts.lost += 1
        fault = fault_of(JobLost(f"the process of {work.name} {how}"))
        if work.attempt == 1 and work.headers.guarantee and not work.is_cancelled:
            _LOG.warning("job %s (%s): its process %s; running it again", work.id, work.name, how)
            if work.span is not None:
                work.span.end("retried", how)
            self._again(work, fault, 0.0)
        else:
            self._failed(work, fault)

    def _failed(self, work: _Work, fault: wire.Fault) -> None:
        tries_left = work.attempt <= work.headers.retry_count and not fault.final and not work.is_cancelled
        reason = f"{fault.type}: {fault.message}"
        if work.span is not None:
            work.span.end("retried" if tries_left else "failed", reason)
        if not tries_left:
            if work.is_cancelled:
                self.counts.cancelled += 1
                _LOG.info("job %s (%s) was cancelled: %s", work.id, work.name, reason)
            else:
                self.counts.failed += 1
                _LOG.warning("job %s (%s) failed: %s", work.id, work.name, reason)
            self._reply(work.id, work.headers, fault, b"null")
            del self._by_id[work.id]
            return
        wait = work.backoff.wait(work.attempt)
        _LOG.info("job %s (%s) failed attempt %d, retry in %.1f s: %s", work.id, work.name, work.attempt, wait, reason)
        self._again(work, fault, wait)

    def _again(self, work: _Work, fault: wire.Fault, wait: float) -> None:
        """Retry the job: through the broker if it counts attempts, so that all workers share the count, else here."""
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
                self._failed(work, fault_of(JobTimeout(f"{work.name} exceeded its time limit of {work.hard:g} s")))

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

    # --- shutdown ---------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if not self._stopping or self._drain_until:
            return
        now = time.monotonic()
        self._drain_until = now + self._drain_timeout
        self._last_request = now
        self._link.leave()
        kept = [parked for parked in self._parked if parked.work.broker_counts]
        for parked in kept:
            # The broker requeues them when the connection closes.
            del self._by_id[parked.work.id]
        others = [parked.work for parked in self._parked if not parked.work.broker_counts]
        self._parked.clear()
        for work in others:
            # No other worker can run them, so retries happen now instead of after their delay.
            self._park(work, work.not_before)
        here = len(self._running) + self.waiting
        if here:
            _LOG.info("draining: finishing %d jobs for up to %g s", here, self._drain_timeout)

    def _is_over(self) -> bool:
        if not self._stopping:
            return False
        now = time.monotonic()
        if self._stop_now or (self._drain_until and now >= self._drain_until):
            return True
        is_empty = not self._by_id and bool(self._drain_until)
        # Jobs that the broker sent before it received the goodbye may still arrive.
        return is_empty and (not self._link.is_joined or now - self._last_request > _DRAIN_IDLE_SECONDS)

    def _leave_rest(self) -> int:
        for running in self._running.values():
            if running.span is not None:
                running.span.end("abandoned", "the worker ended")
        for work in self._by_id.values():
            if not work.broker_counts:
                _LOG.error("job %s (%s) did not finish in time and is lost", work.id, work.name)
                self._reply(
                    work.id, work.headers, fault_of(JobLost(f"the worker ended before {work.name} did")), b"null"
                )
        return len(self._by_id)


def _weighted(queues: Queues) -> tuple[tuple[str, int], ...]:
    """The queues of a worker with their weights. Raises `ConfigError`."""
    listed = [queues] if isinstance(queues, str) else list(queues)
    if not listed:
        raise ConfigError("queues must contain at least one queue")
    weighted: dict[str, int] = {}
    for queue in listed:
        name, weight = queue if isinstance(queue, tuple) and len(queue) == 2 else (queue, _WEIGHT)
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"invalid queue {queue!r}; use a name or a name with a weight, such as "
                f'queues=["reports", ("email", 40)]'
            )
        if not isinstance(weight, int) or not 0 <= weight <= _WEIGHT_MAX:
            raise ConfigError(f"invalid weight {weight!r} of queue {name!r}; use an integer from 0 to {_WEIGHT_MAX:,}")
        if name in weighted:
            raise ConfigError(f"queue {name!r} is listed twice; list it once")
        weighted[name] = weight
    return tuple(weighted.items())


def _find(jobs: Jobs) -> tuple[str, str]:
    """The module and the attribute under which child processes import the tasks. Raises `ConfigError`."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is jobs:
                return name, attribute
    raise ConfigError(
        "child processes cannot import the tasks; make the Jobs object an attribute of a module, or use another pool"
    )
