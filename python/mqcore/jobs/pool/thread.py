"""A pool of threads, each of which runs one job at a time."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Collection, Sequence

from mqcore.jobs.execution import Assignment, Ending, Registry, run
from mqcore.jobs.limits import Interruptions
from mqcore.jobs.pool import Died, Progress, Returned, Unbatched

__all__ = ["ThreadPool"]


class ThreadPool(Unbatched):
    """Runs jobs in `size` threads, which call `wake` when `collect` has events.

    A thread cannot be killed: an abandoned job keeps running, its result is dropped, and a new thread takes its slot.
    """

    def __init__(self, size: int, registry: Registry, wake: Callable[[], None]) -> None:
        self._registry = registry
        self._wake = wake
        self._size = size
        self._assignments: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Ending | Progress] = queue.SimpleQueue()
        self._running: set[int] = set()
        self._abandoned: set[int] = set()
        self._interruptions = Interruptions()
        for _ in range(size):
            self._start()

    @property
    def slots(self) -> int:
        """Number of threads, without those of abandoned jobs."""
        return self._size

    @property
    def free(self) -> int:
        """Number of threads without a job."""
        return self._size - len(self._running)

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Queue jobs for the next free threads."""
        for assignment in assignments:
            self._running.add(assignment.run)
            self._assignments.put(assignment)

    def descriptors(self) -> Collection[int]:
        """Return none: the pool calls `wake` instead."""
        return ()

    def collect(self, ready: Collection[int]) -> list[Ending | Progress | Died | Returned]:
        """Return the events since the last call."""
        events: list[Ending | Progress | Died | Returned] = []
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return events
            if isinstance(event, Progress):
                if event.run in self._running:
                    events.append(event)
            elif event.run in self._abandoned:
                # `abandon` started a thread in place of this one, so stop one of them.
                self._abandoned.discard(event.run)
                self._assignments.put(None)
            else:
                self._running.discard(event.run)
                events.append(event)

    def interrupt(self, run: int) -> None:
        """Raise `JobCancelled` in the thread at its next step."""
        if run in self._running:
            self._interruptions.interrupt(run)

    def abandon(self, run: int) -> None:
        """Start another thread in place of the one that runs this attempt."""
        if run in self._running:
            self._running.discard(run)
            self._abandoned.add(run)
            self._start()

    def close(self) -> None:
        """Stop each thread after its current job, without waiting."""
        for _ in range(self._size):
            self._assignments.put(None)

    def _start(self) -> None:
        # A daemon thread, so that a job that never ends does not keep the process alive.
        threading.Thread(target=self._serve, name="mqcore-job", daemon=True).start()

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            while (assignment := self._assignments.get()) is not None:

                def report(fraction: float, note: str, number: int = assignment.run) -> None:
                    self._emit(Progress(number, fraction, note))

                self._emit(run(assignment, self._registry, report, runner, self._interruptions))

    def _emit(self, event: Ending | Progress) -> None:
        self._events.put(event)
        self._wake()
