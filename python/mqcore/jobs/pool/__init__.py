"""Pools in which workers run jobs: processes, threads or an event loop, behind one interface."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mqcore.jobs.execution import Assignment, Ending

__all__ = ["Died", "Pool", "PoolKind", "Progress", "Returned", "Unbatched"]


class PoolKind(StrEnum):
    """How a worker runs its jobs."""

    PROCESS = "process"
    """In child processes, one job at a time each: for CPU-bound jobs, and jobs that may crash or must be killed at
    their time limit."""
    THREAD = "thread"
    """In threads of one process: for IO-bound functions."""
    ASYNCIO = "asyncio"
    """In one event loop: for IO-bound ``async`` functions."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress report of a job."""

    run: int
    fraction: float
    note: str


@dataclass(frozen=True, slots=True)
class Died:
    """The process that ran the job died."""

    run: int
    how: str


@dataclass(frozen=True, slots=True)
class Returned:
    """A slot did not begin the job, which waits again."""

    run: int


class Unbatched:
    """The part of a pool whose slots take one job at once."""

    @property
    def depth(self) -> int:
        """One: a job that waits in a slot would wait for another one."""
        return 1

    def recall(self) -> float:
        """Take no job back: none waits in a slot."""
        return math.inf


class Pool(Protocol):
    """A number of slots, each of which runs one job at a time. Not thread-safe."""

    @property
    def slots(self) -> int:
        """Number of slots that run a job or could run one now. Fewer than configured while processes start."""

    @property
    def free(self) -> int:
        """Number of slots without a job."""

    @property
    def depth(self) -> int:
        """Maximum number of jobs that a free slot takes at once."""

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Run jobs in a free slot, one after the other."""

    def descriptors(self) -> Collection[int]:
        """File descriptors that become readable when `collect` has events. They may change with each call of it."""

    def recall(self) -> float:
        """Take jobs back that wait behind one which takes long; `collect` returns them. Return in how many seconds to
        do so again; 0: `collect` has events.
        """

    def collect(self, ready: Collection[int]) -> list[Ending | Progress | Died | Returned]:
        """Return the events since the last call. `ready` are the readable ones of `descriptors`."""

    def interrupt(self, run: int) -> None:
        """Raise `JobCancelled` inside an attempt, or cancel its coroutine. `collect` returns how it ends."""

    def abandon(self, run: int) -> None:
        """Stop an attempt, or at least free its slot. `collect` returns no more events of it."""

    def close(self) -> None:
        """Close the pool, including running jobs."""
