"""An executor whose threads do not keep the process alive, for functions of the program that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

__all__ = ["DaemonThreads"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Call: TypeAlias = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(ThreadPoolExecutor):
    """Runs calls in up to `size` daemon threads.

    When a process ends, Python waits for the threads of every `ThreadPoolExecutor`. That is the base only because event
    loops accept no other default executor: this class starts its own threads.
    """

    def __init__(self, size: int, name: str) -> None:
        super().__init__(size, name)
        self._size = size
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started: list[threading.Thread] = []
        self._free = 0
        """Threads without a call, minus calls without a thread."""
        self._is_closed = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a call in a free thread, or in the next one that becomes free."""
        future: Future[_T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot run a call after the shutdown of its threads")
            self._calls.put((future, partial(fn, *args, **kwargs)))
            if self._free > 0 or len(self._started) == self._size:
                self._free -= 1
            else:
                name = f"{self._name}_{len(self._started)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                thread.start()
                self._started.append(thread)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End each thread after its calls, or with `cancel_futures` after the one that runs."""
        with self._lock:
            self._is_closed = True
            if cancel_futures:
                self._cancel_waiting()
            for _ in self._started:
                self._calls.put(None)
        if wait:
            for thread in self._started:
                thread.join()

    def _cancel_waiting(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                return
            if call is not None:
                call[0].cancel()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            _run(*call)
            # Not until the next call: its arguments may be large.
            del call
            with self._lock:
                self._free += 1


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
        # The traceback refers to this frame.
        del future
    else:
        future.set_result(result)
