"""Where jobs run: in processes, in threads, or in an event loop. What all of them offer to a worker."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mqcore.jobs.execution import Assignment, Ending

__all__ = ["Died", "Pool", "PoolKind", "Progress"]


class PoolKind(StrEnum):
    """How a worker runs its jobs."""

    PROCESS = "process"
    """Each in a process of its own kind: for work that needs the processor, may crash, or must be ended when it takes
    too long."""
    THREAD = "thread"
    """In threads of one process: for work that waits."""
    ASYNCIO = "asyncio"
    """In one event loop: for ``async`` functions that wait."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job says that it is."""

    run: int
    fraction: float
    note: str


@dataclass(frozen=True, slots=True)
class Died:
    """A job is gone with the process that ran it."""

    run: int
    how: str


class Pool(Protocol):
    """A number of slots, each for one job at a time. For one thread."""

    @property
    def slots(self) -> int:
        """Those that could run a job now or do so; less than there should be while processes start."""

    @property
    def free(self) -> int:
        """Those of them that run none."""

    def submit(self, assignment: Assignment) -> None:
        """Run a job in a free slot."""

    def descriptors(self) -> Collection[int]:
        """File descriptors that tell when `collect` has something; they may differ after each call of it."""

    def collect(self, ready: Collection[int]) -> list[Ending | Progress | Died]:
        """What has happened since; `ready` are those of `descriptors` where something is."""

    def abandon(self, run: int) -> None:
        """End an attempt, or at least give its slot to others. Nothing more is heard of it."""

    def close(self) -> None:
        """End everything, whatever runs."""
