"""What a job can know of itself while it runs, and tell about how far it is."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

__all__ = ["JobContext", "current"]


def _untold(_fraction: float, _note: str) -> None:
    return


@dataclass(frozen=True, slots=True)
class JobContext:
    """The job that runs here."""

    id: str
    """The same in all attempts."""
    name: str
    """The task's."""
    queue: str
    """The queue that its sender named."""
    attempt: int
    """1 at first."""
    _tell: Callable[[float, str], None] = field(default=_untold, repr=False)

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the job is, 0 to 1, for whoever watches the worker."""
        self._tell(min(1.0, max(0.0, float(fraction))), note)


CURRENT: ContextVar[JobContext] = ContextVar("mqcore.jobs.current")


def current() -> JobContext:
    """Return the job that runs here. Raises `LookupError` where none does."""
    try:
        return CURRENT.get()
    except LookupError:
        raise LookupError("no job runs here; mqcore.jobs.current() is for functions that a worker calls") from None
