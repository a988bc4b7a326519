"""A pool that is one event loop, in a thread of its own, in which jobs run side by side."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from mqcore.jobs.execution import Assignment, Ending, Registry, fault_of, run_async
from mqcore.jobs.pool import Died, Progress

__all__ = ["LoopPool"]


class LoopPool:
    """So many jobs at a time; `wake` is called from the loop's thread when `collect` has something.

    A job that is abandoned is cancelled; plain functions run in threads, and go on unheard.
    """

    def __init__(self, size: int, registry: Registry, wake: Callable[[], None]) -> None:
        self._registry = registry
        self._wake = wake
        self._size = size
        self._happened: queue.SimpleQueue[Ending | Progress] = queue.SimpleQueue()
        self._running: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(size, "mqcore-job"))
        self._thread = threading.Thread(target=self._loop.run_forever, name="mqcore-jobs-loop", daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        """All."""
        return self._size

    @property
    def free(self) -> int:
        """Those without a job."""
        return self._size - len(self._running)

    def submit(self, assignment: Assignment) -> None:
        """Begin a job."""
        self._running.add(assignment.run)
        self._loop.call_soon_threadsafe(self._begin, assignment)

    def descriptors(self) -> Collection[int]:
        """None: `wake` tells."""
        return ()

    def collect(self, ready: Collection[int]) -> list[Ending | Progress | Died]:
        """What jobs have said."""
        happened: list[Ending | Progress | Died] = []
        while True:
            try:
                said = self._happened.get_nowait()
            except queue.Empty:
                return happened
            if said.run not in self._running:
                continue
            if isinstance(said, Ending):
                self._running.discard(said.run)
            happened.append(said)

    def abandon(self, run: int) -> None:
        """Cancel a job."""
        if run in self._running:
            self._running.discard(run)
            self._loop.call_soon_threadsafe(self._cancel, run)

    def close(self) -> None:
        """Cancel all jobs, and end the loop."""
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _begin(self, assignment: Assignment) -> None:
        task = self._loop.create_task(self._serve(assignment))
        self._tasks[assignment.run] = task
        task.add_done_callback(lambda _: self._tasks.pop(assignment.run, None))

    def _cancel(self, run: int) -> None:
        if (task := self._tasks.get(run)) is not None:
            task.cancel()

    async def _cancel_all(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1.0) if tasks else None

    async def _serve(self, assignment: Assignment) -> None:
        def tell(fraction: float, note: str) -> None:
            self._say(Progress(assignment.run, fraction, note))

        try:
            ending = await run_async(assignment, self._registry, tell)
        except asyncio.CancelledError as error:
            # By the job itself, or because it was abandoned; then nobody listens.
            ending = Ending(assignment.run, b"null", fault_of(error))
        self._say(ending)

    def _say(self, said: Ending | Progress) -> None:
        self._happened.put(said)
        self._wake()
