"""A sent job, with which the sender waits for the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

import msgspec

from mqcore.config import Duration, seconds
from mqcore.errors import BodyError, JobDuplicate, JobError, JobFailed, JobLost, JobRefused, JobTimeout, RequestTimeout
from mqcore.jobs import wire
from mqcore.jobs.naming import full_name

__all__ = ["Job"]

R = TypeVar("R")

_RESULT: Final = msgspec.json.Decoder(wire.Result)

# Outcomes that the worker reports itself, not exceptions of the task.
_ENDS: Final[dict[str, type[JobError]]] = {
    "mqcore.errors.JobTimeout": JobTimeout,
    "mqcore.jobs.limits.SoftTimeLimit": JobTimeout,
    "mqcore.errors.JobLost": JobLost,
    "mqcore.errors.JobRefused": JobRefused,
    # Reported by the broker.
    "Duplicate": JobDuplicate,
    "Denied": JobRefused,
    "Rejected": JobRefused,
    "Lost": JobLost,
    "Timeout": JobTimeout,
}

# One lock for all jobs. A future is created only for a job that is waited for, because it costs more than sending one.
_LOCK: Final = threading.Lock()


class Job(Generic[R]):
    """A sent job. ``job.result(timeout=10)`` and ``await job`` wait for its result.

    The result arrives only at the client that sent the job, and only while the program holds this object.
    """

    __slots__ = ("__weakref__", "_decode", "_end", "_future", "_raises", "_wants_result", "id", "is_dispatched", "name")

    def __init__(
        self,
        job_id: str,
        name: str,
        decode: Callable[[bytes], R],
        raises: tuple[type[Exception], ...] = (),
        wants_result: bool = True,
    ) -> None:
        self.id = job_id
        """Id of the job, the same in the logs of broker and workers."""
        self.name = name
        """Name of the task."""
        self.is_dispatched = False
        """Whether the broker has sent the job to a worker, or has stored it (`TaskOptions.guarantee`)."""
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
          run it, `JobDuplicate` if a job with the same `unique` key was waiting or running;
        - `RequestTimeout` if no result arrived in time, or the job was sent with ``result=False``;
        - `ConnectionLost` if the connection was lost before the result arrived, `AuthFailed` if the broker rejects
          the credentials on reconnecting;
        - `BodyError` if the result is not of the task's return type.
        """
        if (future := self._wait_for()) is not None:
            try:
                future.result(None if timeout is None else seconds(timeout))
            except TimeoutError:
                raise self._late(timeout) from None
        return self._read()

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Like `result`, without blocking the event loop."""
        if (future := self._wait_for()) is not None:
            limit = None if timeout is None else seconds(timeout)
            # All waiters share the future, so cancelling one of them must not cancel the future.
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), limit)
            except TimeoutError:
                raise self._late(timeout) from None
        return self._read()

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
            if self._end is not None:
                return None
            if self._future is None:
                self._future = Future()
                # All waiters share it, so none may cancel it.
                self._future.set_running_or_notify_cancel()
            return self._future

    def _late(self, timeout: Duration | None) -> RequestTimeout:
        why = "" if self.is_dispatched else "; no worker has started it yet"
        return RequestTimeout(f"no result of job {self.id} ({self.name}) within {timeout}{why}")

    def _read(self) -> R:
        if isinstance(self._end, Exception):
            raise self._end
        assert self._end is not None
        try:
            result = _RESULT.decode(self._end)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
