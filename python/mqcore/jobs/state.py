"""State of a job at the broker."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from mqcore.config import Duration
from mqcore.errors import BodyError, JobRefused
from mqcore.jobs import wire

__all__ = ["JobSource", "JobState", "JobStatus", "answer_of"]


class JobStatus(StrEnum):
    """Status of a job."""

    UNKNOWN = "unknown"
    """The job waits in a queue, its result has expired or is not kept, or there is no such job."""
    WAITING = "waiting"
    """The job is part of a flow, and waits for other jobs or in its queue."""
    RUNNING = "running"
    """A worker has the job."""
    DONE = "done"
    """The job has returned a value, which the broker keeps."""
    FAILED = "failed"
    """The last attempt of the job has failed."""
    CANCELLED = "cancelled"
    """The job was cancelled."""


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a job at the broker."""

    id: str
    """Id of the job."""
    status: JobStatus
    """Its status."""
    queue: str | None = None
    """Queue of the job, if the broker knows it."""
    progress: wire.JobProgress | None = None
    """Last progress report of a running job."""
    expires: datetime | None = None
    """When the broker forgets the result, in UTC."""


class JobSource(Protocol):
    """The part of `Jobs` that a `Job` uses."""

    def expect(self, job: Any, *, wait: bool) -> None:
        """See `Jobs.expect`."""

    def state(self, job_id: str, timeout: Duration = 5.0) -> JobState:
        """See `Jobs.state`."""

    def cancel(self, job_id: str, *, queue: str | None = None, hard: bool = False, timeout: Duration = 5.0) -> bool:
        """See `Jobs.cancel`."""


class _Failure(msgspec.Struct):
    type: str
    message: str


class _Answer(msgspec.Struct):
    state: JobStatus = JobStatus.UNKNOWN
    queue: str | None = None
    progress: wire.JobProgress | None = None
    expires_ms: int | None = None
    cancelled: bool = False
    error: _Failure | None = None


def answer_of(answer: bytes, job_id: str) -> tuple[JobState, bool]:
    """Parse the answer to a request about a job: its state, and whether it is cancelled.

    Raises `JobRefused` for a request that the broker rejected, and `BodyError` for an answer that cannot be parsed.
    """
    try:
        found = msgspec.json.decode(answer, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"invalid answer from the broker: {error}", answer, _Answer) from error
    if found.error is not None:
        raise JobRefused(found.error.message, job_id)
    expires = None if found.expires_ms is None else datetime.fromtimestamp(found.expires_ms / 1000, UTC)
    queue = None if found.queue is None else found.queue.removesuffix("/0")
    state = JobState(id=job_id, status=found.state, queue=queue, progress=found.progress, expires=expires)
    return state, found.cancelled
