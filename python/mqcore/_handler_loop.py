"""The event loop of a broker's awaitable handlers."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import Final

from mqcore._daemon_threads import DaemonThreads
from mqcore._raised import run_loop

_LOG: Final = logging.getLogger("mqcore.broker")
# As many as an event loop starts by itself.
_THREADS_MAX: Final = min(32, (os.cpu_count() or 1) + 4)


class HandlerLoop:
    """The event loop on which awaitable handlers run: the one that entered the broker, or one of our own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._loop = loop

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A function that a handler has passed to `asyncio.to_thread` may not return before the program ends.
                self._loop.set_default_executor(DaemonThreads(_THREADS_MAX, "mqcore-handler"))
                self._stopping = threading.Event()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop, self._stopping), name="mqcore-handler-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def stop(self, patience: float) -> bool:
        """Forget the loop; end it if it is ours. Return whether it ended within `patience` seconds."""
        with self._lock:
            loop, thread, stopping = self._loop, self._thread, self._stopping
            self._loop = self._thread = None
        if loop is None or thread is None:
            return True
        loop.call_soon_threadsafe(_end, loop, stopping)
        if thread is not threading.current_thread():
            thread.join(patience)
            return not thread.is_alive()
        return True


def _end(loop: asyncio.AbstractEventLoop, stopping: threading.Event) -> None:
    # Both in the loop: the request to stop must end the run that sees the event, not the next one.
    stopping.set()
    loop.stop()


def _run(loop: asyncio.AbstractEventLoop, stopping: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    try:
        run_loop(loop, stopping.is_set, _LOG)
        # Starts the calls that were submitted before the stop, so that canceling them sends an answer.
        loop.run_until_complete(asyncio.sleep(0))
        # A task that is canceled leaves the coroutines that it has not begun to another one.
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    finally:
        loop.close()
