"""A pool that runs jobs concurrently in one event loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Final

from mqcore._daemon_threads import DaemonThreads
from mqcore._raised import ends_task, run_loop
from mqcore.jobs.execution import Assignment, Ending, Registry, fault_of, run_async
from mqcore.jobs.limits import cancelled
from mqcore.jobs.pool import Died, Progress, Returned, Unbatched

__all__ = ["LoopPool"]

_LOG: Final = logging.getLogger("mqcore.worker")
# Time for cancelled jobs to end, and for the loop to stop.
_CANCEL_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 2.0


class LoopPool(Unbatched):
    """Runs up to `size` jobs at a time. Calls `wake` from the loop's thread when `collect` has events.

    Abandoned jobs are cancelled. Functions that are not ``async`` run in threads and cannot be cancelled; their results
    are dropped.
    """

    def __init__(self, size: int, registry: Registry, wake: Callable[[], None]) -> None:
        self._registry = registry
        self._wake = wake
        self._size = size
        self._events: queue.SimpleQueue[Ending | Progress] = queue.SimpleQueue()
        self._running: set[int] = set()
        # Of the loop's thread.
        self._interrupted: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(DaemonThreads(size, "mqcore-job"))
        self._closing: asyncio.Task[None] | None = None
        self._is_closed = False
        # Daemon threads, so that a job that never ends does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="mqcore-jobs-loop", daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self._size

    @property
    def free(self) -> int:
        """Number of slots without a job."""
        return self._size - len(self._running)

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Start jobs."""
        for assignment in assignments:
            self._running.add(assignment.run)
            self._loop.call_soon_threadsafe(self._begin, assignment)

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
            if event.run not in self._running:
                continue
            if isinstance(event, Ending):
                self._running.discard(event.run)
            events.append(event)

    def interrupt(self, run: int) -> None:
        """Cancel a job and report how it ends. Functions that are not ``async`` continue unobserved."""
        if run in self._running:
            self._loop.call_soon_threadsafe(self._interrupt, run)

    def abandon(self, run: int) -> None:
        """Cancel a job."""
        if run in self._running:
            self._running.discard(run)
            self._loop.call_soon_threadsafe(self._cancel, run)

    def close(self) -> None:
        """Cancel all jobs and stop the loop. If a job blocks it, return after 2 s; it stops when the job returns."""
        self._loop.call_soon_threadsafe(self._close_soon)
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        run_loop(self._loop, lambda: self._is_closed, _LOG)
        self._loop.close()

    def _close_soon(self) -> None:
        self._closing = self._loop.create_task(self._close())

    def _begin(self, assignment: Assignment) -> None:
        task = self._loop.create_task(self._serve(assignment))
        self._tasks[assignment.run] = task
        task.add_done_callback(lambda _: self._tasks.pop(assignment.run, None))

    def _interrupt(self, run: int) -> None:
        if run in self._tasks:
            self._interrupted.add(run)
            self._cancel(run)

    def _cancel(self, run: int) -> None:
        if (task := self._tasks.get(run)) is not None:
            task.cancel()

    async def _close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_CANCEL_SECONDS) if tasks else None
        # Only here, so that the run that stops is the last one.
        self._is_closed = True
        self._loop.stop()

    async def _serve(self, assignment: Assignment) -> None:
        def report(fraction: float, note: str) -> None:
            self._emit(Progress(assignment.run, fraction, note))

        task = asyncio.current_task()
        try:
            ending = await run_async(assignment, self._registry, report)
        except (asyncio.CancelledError, GeneratorExit) as error:
            if isinstance(error, GeneratorExit) and ends_task(task, error):
                raise
            # The job raised it, or it was abandoned and `collect` drops this event. `GeneratorExit` of a worker thread
            # closes `run_async` and arrives here.
            raised = cancelled() if assignment.run in self._interrupted else error
            ending = Ending(assignment.run, b"null", fault_of(raised))
        self._interrupted.discard(assignment.run)
        self._emit(ending)

    def _emit(self, event: Ending | Progress) -> None:
        self._events.put(event)
        self._wake()
