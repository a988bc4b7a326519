"""A pool of threads, each of which runs one job at a time."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Collection

from mqcore.jobs.execution import Assignment, Ending, Registry, run
from mqcore.jobs.pool import Died, Progress

__all__ = ["ThreadPool"]


class ThreadPool:
    """So many threads; `wake` is called from them when `collect` has something.

    A thread cannot be killed: a job that is abandoned goes on, unheard, and a new thread takes its slot.
    """

    def __init__(self, size: int, registry: Registry, wake: Callable[[], None]) -> None:
        self._registry = registry
        self._wake = wake
        self._size = size
        self._assignments: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self._happened: queue.SimpleQueue[Ending | Progress] = queue.SimpleQueue()
        self._running: set[int] = set()
        self._abandoned: set[int] = set()
        for _ in range(size):
            self._start()

    @property
    def slots(self) -> int:
        """All threads but those whose jobs were abandoned."""
        return self._size

    @property
    def free(self) -> int:
        """Those without a job."""
        return self._size - len(self._running)

    def submit(self, assignment: Assignment) -> None:
        """Give a job to whichever thread takes it."""
        self._running.add(assignment.run)
        self._assignments.put(assignment)

    def descriptors(self) -> Collection[int]:
        """None: `wake` tells."""
        return ()

    def collect(self, ready: Collection[int]) -> list[Ending | Progress | Died]:
        """What the threads have said."""
        happened: list[Ending | Progress | Died] = []
        while True:
            try:
                said = self._happened.get_nowait()
            except queue.Empty:
                return happened
            if isinstance(said, Progress):
                if said.run in self._running:
                    happened.append(said)
            elif said.run in self._abandoned:
                # There is a thread more than there are slots now.
                self._abandoned.discard(said.run)
                self._assignments.put(None)
            else:
                self._running.discard(said.run)
                happened.append(said)

    def abandon(self, run: int) -> None:
        """Let another thread take the slot of this job's."""
        if run in self._running:
            self._running.discard(run)
            self._abandoned.add(run)
            self._start()

    def close(self) -> None:
        """Let the threads end, each after its job."""
        for _ in range(self._size):
            self._assignments.put(None)

    def _start(self) -> None:
        # A daemon, so that a job that never ends does not keep the process.
        threading.Thread(target=self._serve, name="mqcore-job", daemon=True).start()

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            while (assignment := self._assignments.get()) is not None:

                def tell(fraction: float, note: str, number: int = assignment.run) -> None:
                    self._say(Progress(number, fraction, note))

                self._say(run(assignment, self._registry, tell, runner))

    def _say(self, said: Ending | Progress) -> None:
        self._happened.put(said)
        self._wake()
