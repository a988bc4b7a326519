"""A job that was sent: what to wait for its result by."""

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

# Ends of jobs that are the worker's word, not an exception of the function's.
_ENDS: Final[dict[str, type[JobError]]] = {
    "mqcore.errors.JobTimeout": JobTimeout,
    "mqcore.jobs.limits.SoftTimeLimit": JobTimeout,
    "mqcore.errors.JobLost": JobLost,
    "mqcore.errors.JobRefused": JobRefused,
    # The broker's word.
    "Duplicate": JobDuplicate,
    "Denied": JobRefused,
}

# Making a future for each job would cost more than sending it; few are waited for at any time.
_LOCK: Final = threading.Lock()


class Job(Generic[R]):
    """A job that was sent. ``job.result(timeout=10)`` waits for what it results in, as does ``await job``.

    Results come to the client that sent the job and to no other, while somebody holds this object.
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
        """Its id, the same in logs of broker and workers."""
        self.name = name
        """The task's."""
        self.is_dispatched = False
        """The broker has said that it has handed it out, or, where it keeps it for a worker, that it has it."""
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
        """Its result is here, or it is known that none will come."""
        return self._end is not None

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the result, `timeout` seconds at most, and return it as the type that the task returns.

        Raises what the task declares in `TaskOptions.raises`; `JobFailed` for any other exception of the job,
        `JobTimeout`, `JobLost`, `JobRefused`, `JobDuplicate`; `RequestTimeout` if nothing came in time;
        `ConnectionLost` if the connection broke on which the result was to come; `AuthFailed` if the broker does not
        let us in any more; `BodyError` if it is not what the task returns.
        """
        if (future := self._wait_for()) is not None:
            try:
                future.result(None if timeout is None else seconds(timeout))
            except TimeoutError:
                raise self._late(timeout) from None
        return self._read()

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Do as `result`, without holding up the event loop."""
        if (future := self._wait_for()) is not None:
            limit = None if timeout is None else seconds(timeout)
            # The future itself is everybody's: who stops waiting must not end it for others.
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), limit)
            except TimeoutError:
                raise self._late(timeout) from None
        return self._read()

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    def end(self, end: bytes | Exception) -> None:
        """Called by the connection: the JSON of a result came, or it is known that none will come."""
        with _LOCK:
            if self._end is not None:
                return
            self._end = end
            future = self._future
        if future is not None:
            future.set_result(None)

    def _wait_for(self) -> Future[None] | None:
        if not self._wants_result:
            raise RequestTimeout(f"job {self.id} was sent with result=False: no result of it will come")
        with _LOCK:
            if self._end is not None:
                return None
            if self._future is None:
                self._future = Future()
                # Nobody can cancel it, as it is shared.
                self._future.set_running_or_notify_cancel()
            return self._future

    def _late(self, timeout: Duration | None) -> RequestTimeout:
        why = "" if self.is_dispatched else "; no worker has taken it so far"
        return RequestTimeout(f"no result of job {self.id} ({self.name}) within {timeout}{why}")

    def _read(self) -> R:
        if isinstance(self._end, Exception):
            raise self._end
        assert self._end is not None
        try:
            result = _RESULT.decode(self._end)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BodyError(f"the result of job {self.id} is none: {error}", self._end, wire.Result) from error
        if result.error is not None:
            raise self._error(result.error)
        return self._decode(bytes(result.value))

    def _error(self, fault: wire.Fault) -> Exception:
        for kind in self._raises:
            if fault.type == full_name(kind):
                try:
                    declared = kind(*fault.args)
                except Exception:
                    # Its initializer wants something else; the text is better than nothing.
                    break
                declared.__cause__ = self._failed(fault)
                return declared
        if (end := _ENDS.get(fault.type)) is not None:
            return end(fault.message, self.id)
        return self._failed(fault)

    def _failed(self, fault: wire.Fault) -> JobFailed:
        text = f"job {self.id} ({self.name}) failed: {fault.type}: {fault.message}"
        return JobFailed(text, self.id, fault.type, fault.traceback)
