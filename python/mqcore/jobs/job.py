"""A sent job, with which the sender waits for the result."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

import msgspec

from mqcore.bodies import JSON_ERRORS
from mqcore.config import Duration, seconds
from mqcore.errors import (
    BodyError,
    ConnectionLost,
    JobCancelled,
    JobDuplicate,
    JobError,
    JobFailed,
    JobLost,
    JobRefused,
    JobTimeout,
    RequestTimeout,
)
from mqcore.jobs import wire
from mqcore.jobs.naming import full_name
from mqcore.jobs.state import JobSource, JobState

__all__ = ["Job"]

R = TypeVar("R")

_RESULT: Final = msgspec.json.Decoder(wire.Result)

# Outcomes that the worker reports itself, not exceptions of the task.
_ENDS: Final[dict[str, type[JobError]]] = {
    "mqcore.errors.JobTimeout": JobTimeout,
    "mqcore.jobs.limits.SoftTimeLimit": JobTimeout,
    "mqcore.errors.JobLost": JobLost,
    "mqcore.errors.JobRefused": JobRefused,
    "mqcore.errors.JobCancelled": JobCancelled,
    # Reported by the broker.
    "Cancelled": JobCancelled,
    "Duplicate": JobDuplicate,
    "Denied": JobRefused,
    "Rejected": JobRefused,
    "Lost": JobLost,
    "Timeout": JobTimeout,
}

# Time before the first and each further request for a result that has not arrived by itself.
_FIRST_PAUSE_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 10.0

# One lock for all jobs. A future is created only for a job that is waited for, because it costs more than sending one.
_LOCK: Final = threading.Lock()


class Job(Generic[R]):
    """A sent job. ``job.result(timeout=10)`` and ``await job`` wait for its result.

    While the broker keeps the result, `Jobs.fetch` returns another object for it, in any program. Otherwise it arrives
    only at the client that sent the job, and only while the program holds this object.
    """

    __slots__ = (
        "__weakref__",
        "_decode",
        "_end",
        "_future",
        "_is_kept",
        "_is_remote",
        "_is_told",
        "_jobs",
        "_raises",
        "_wants_result",
        "id",
        "is_dispatched",
        "name",
        "queue",
    )

    def __init__(
        self,
        job_id: str,
        name: str,
        decode: Callable[[bytes], R],
        raises: tuple[type[Exception], ...] = (),
        wants_result: bool = True,
        *,
        jobs: JobSource | None = None,
        queue: str | None = None,
        is_kept: bool = False,
        is_remote: bool = False,
    ) -> None:
        self.id = job_id
        """Id of the job, the same in the logs of broker and workers."""
        self.name = name
        """Name of the task."""
        self.is_dispatched = False
        """Whether the broker has sent the job to a worker, or has stored it (`TaskOptions.guarantee`)."""
        self.queue = queue
        """Queue of the job; `None` if it is not known."""
        self._jobs = jobs
        # The broker keeps the result and sends it on request.
        self._is_kept = is_kept or is_remote
        # It sends the result only on request.
        self._is_remote = is_remote
        # The program knows that the connection was lost.
        self._is_told = False
        self._decode = decode
        self._raises = raises
        self._wants_result = wants_result
        self._end: bytes | Exception | None = None
        self._future: Future[None] | None = None

    def __repr__(self) -> str:
        state = "ended" if self.is_done else "dispatched" if self.is_dispatched else "sent"
        return f"<job {self.id}, {self.name}, {state}>"

    @property
    def is_done(self) -> bool:
        """Whether the result has arrived, or can no longer arrive."""
        return self._end is not None

    def result(self, timeout: Duration | None = None) -> R:
        """Wait up to `timeout` (default: no limit) for the result, and return it as the task's return type.

        Raises:

        - exceptions of `TaskOptions.raises` as themselves, and `JobFailed` for other exceptions of the job;
        - `JobTimeout` if the job exceeded its time limit, `JobLost` if its worker died, `JobRefused` if no worker may
          run it, `JobDuplicate` if a job with the same `unique` key was waiting or running, `JobCancelled` if it was
          cancelled;
        - `RequestTimeout` if no result arrived in time, or the job was sent with ``result=False``;
        - `ConnectionLost` if the connection was lost before the result arrived, `AuthFailed` if the broker rejects
          the credentials on reconnecting;
        - `BodyError` if the result is not of the task's return type.
        """
        if (future := self._wait_for()) is not None:
            limit = math.inf if timeout is None else seconds(timeout)
            until = time.monotonic() + limit
            if self._is_remote:
                self._ask_again(wait=True)
            for pause in self._pauses():
                left = min(pause, until - time.monotonic())
                try:
                    future.result(None if left == math.inf else max(0.0, left))
                    break
                except TimeoutError:
                    if time.monotonic() >= until:
                        raise self._late(timeout) from None
                self._ask_again(wait=False)
        return self._read()

    def _pauses(self) -> Iterator[float]:
        """How long to wait before each further request for a result that the broker keeps.

        It usually arrives by itself. It does not if another program cancels the job, or if the connection was lost.
        """
        if not self._is_kept:
            return itertools.repeat(math.inf)
        return itertools.chain((_FIRST_PAUSE_SECONDS,), itertools.repeat(_PAUSE_SECONDS))

    def _ask_again(self, *, wait: bool) -> None:
        """Ask for the result. Without `wait`, only if there is a connection; without one, waiting ends by itself."""
        if self._is_kept and self._jobs is not None:
            self._jobs.expect(self, wait=wait)

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Like `result`, without blocking the event loop."""
        if (future := self._wait_for()) is not None:
            limit = None if timeout is None else seconds(timeout)
            until = time.monotonic() + (math.inf if limit is None else limit)
            if self._is_remote:
                await asyncio.to_thread(self._ask_again, wait=True)
            for pause in self._pauses():
                left = min(pause, until - time.monotonic())
                # All waiters share the future, so cancelling one of them must not cancel the future.
                try:
                    waiter = asyncio.shield(asyncio.wrap_future(future))
                    await asyncio.wait_for(waiter, None if left == math.inf else max(0.0, left))
                    break
                except TimeoutError:
                    if time.monotonic() >= until:
                        raise self._late(timeout) from None
                self._ask_again(wait=False)
        return self._read()

    def cancel(self, *, hard: bool = False, timeout: Duration = 5.0) -> bool:
        """Cancel the job; false if it has ended already. `result` then raises `JobCancelled`.

        A waiting job is not run. Inside a running job `JobCancelled` is raised, or its coroutine is cancelled, so that
        it can clean up; with `hard`, its process is killed. Raises `JobRefused` without the right to publish to its
        queue and while the broker cannot save anything, and `RequestTimeout` if the broker does not answer, as the
        original's does not.
        """
        return self._app().cancel(self.id, queue=self.queue, hard=hard, timeout=timeout)

    async def acancel(self, *, hard: bool = False, timeout: Duration = 5.0) -> bool:
        """Like `cancel`, without blocking the event loop."""
        return await asyncio.to_thread(self.cancel, hard=hard, timeout=timeout)

    def state(self, timeout: Duration = 5.0) -> JobState:
        """Return what the broker knows about the job, such as its progress. Raises like `Jobs.state`."""
        return self._app().state(self.id, timeout=timeout)

    def _app(self) -> JobSource:
        if self._jobs is None:
            raise JobError(f"job {self.id} was not sent by a Jobs object", self.id)
        return self._jobs

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    def end(self, end: bytes | Exception) -> None:
        """Complete the job with the JSON of its result, or with the reason why none can arrive. For `JobClient`."""
        with _LOCK:
            if self._end is not None:
                return
            self._end = end
            future = self._future
        if future is not None:
            future.set_result(None)

    def _wait_for(self) -> Future[None] | None:
        if not self._wants_result:
            raise RequestTimeout(f"job {self.id} was sent with result=False, so no result can arrive")
        with _LOCK:
            is_lost = isinstance(self._end, ConnectionLost) and self._is_kept and self._is_told
            if self._end is not None and not is_lost:
                return None
            if is_lost:
                # The broker has the result, or will have it.
                self._end = self._future = None
                self._is_remote = True
            if self._future is None:
                self._future = Future()
                # All waiters share it, so none may cancel it.
                self._future.set_running_or_notify_cancel()
            return self._future

    def _late(self, timeout: Duration | None) -> RequestTimeout:
        if self._is_remote:
            return RequestTimeout(
                f"no result of job {self.id} within {timeout}; it has not ended, its result has expired, "
                "or there is no such job"
            )
        why = "" if self.is_dispatched else "; no worker has started it yet"
        return RequestTimeout(f"no result of job {self.id} ({self.name}) within {timeout}{why}")

    def _read(self) -> R:
        if isinstance(self._end, Exception):
            self._is_told = True
            raise self._end
        assert self._end is not None
        try:
            result = _RESULT.decode(self._end)
        except JSON_ERRORS as error:
            raise BodyError(f"invalid result of job {self.id}: {error}", self._end, wire.Result) from error
        if result.error is not None:
            raise self._error(result.error)
        return self._decode(bytes(result.value))

    def _error(self, fault: wire.Fault) -> Exception:
        for kind in self._raises:
            if fault.type == full_name(kind):
                try:
                    declared = kind(*fault.args)
                except Exception:
                    # Its initializer does not accept these arguments, so raise JobFailed with the message instead.
                    break
                declared.__cause__ = self._failed(fault)
                return declared
        if (end := _ENDS.get(fault.type)) is not None:
            return end(fault.message, self.id)
        return self._failed(fault)

    def _failed(self, fault: wire.Fault) -> JobFailed:
        text = f"job {self.id} ({self.name}) failed: {fault.type}: {fault.message}"
        return JobFailed(text, self.id, fault.type, fault.traceback)
