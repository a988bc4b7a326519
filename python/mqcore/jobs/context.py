"""Context of a running job: its attributes, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

__all__ = ["JobContext", "current"]


def _discard(_fraction: float, _note: str) -> None:
    return


@dataclass(frozen=True, slots=True)
class JobContext:
    """The running job."""

    id: str
    """Id of the job, the same in all attempts."""
    name: str
    """Name of the task."""
    queue: str
    """Queue to which the job was sent."""
    attempt: int
    """Number of the attempt, from 1."""
    _report: Callable[[float, str], None] = field(default=_discard, repr=False)

    def progress(self, fraction: float, note: str = "") -> None:
        """Report the progress of the job as a fraction from 0 to 1, with an optional note.

        `Jobs.watch`, ``mqcore jobs watch`` and the worker's terminal show it. Values outside of the range are clamped.
        """
        self._report(min(1.0, max(0.0, float(fraction))), note)


CURRENT: ContextVar[JobContext] = ContextVar("mqcore.jobs.current")


def current() -> JobContext:
    """Return the job that runs in this thread or task. Raises `LookupError` outside of a job."""
    try:
        return CURRENT.get()
    except LookupError:
        raise LookupError(
            "no job is running; call mqcore.jobs.current() only in functions that a worker runs"
        ) from None
