"""Soft time limits and cancellation: exceptions raised inside a job from outside, so that it can clean up."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mqcore.errors import JobCancelled, JobTimeout

__all__ = ["Interruptions", "SoftTimeLimit", "soft_limit"]


class SoftTimeLimit(JobTimeout):
    """Raised inside a job that exceeds its soft time limit. Catch it to clean up."""


@contextmanager
def soft_limit(seconds: float) -> Iterator[None]:
    """Raise `SoftTimeLimit` in the block if it takes longer than `seconds`; 0: no limit.

    In the main thread of a Unix process it also interrupts system calls such as `time.sleep`. Elsewhere the exception
    appears when the thread next executes Python code.
    """
    if seconds <= 0:
        yield
    elif hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        with _by_signal(seconds):
            yield
    else:
        with _by_thread(seconds):
            yield


def _reached(seconds: float) -> SoftTimeLimit:
    return SoftTimeLimit(f"the job exceeded its soft time limit of {seconds:g} s")


@contextmanager
def _by_signal(seconds: float) -> Iterator[None]:
    def reached(_number: int, _frame: FrameType | None) -> None:
        raise _reached(seconds)

    before = signal.signal(signal.SIGALRM, reached)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _by_thread(seconds: float) -> Iterator[None]:
    thread = threading.get_ident()
    over = threading.Lock()
    is_over = False

    def raise_there() -> None:
        # The lock keeps the exception from being raised after the block has ended.
        with over:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SoftTimeLimit))

    timer = threading.Timer(seconds, raise_there)
    timer.daemon = True
    timer.start()
    try:
        yield
    except SoftTimeLimit as error:
        # PyThreadState_SetAsyncExc raises the exception without a message.
        raise _reached(seconds) from error
    finally:
        with over:
            is_over = True
            # Cancel a pending exception, which would otherwise be raised in later code.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
        timer.cancel()


class Interruptions:
    """Raises `JobCancelled` in threads that run jobs. Attempts are identified by their numbers.

    With `by_signal`, jobs run in the main thread of a Unix process only, and system calls such as `time.sleep` are
    interrupted. Elsewhere the exception appears when the thread next executes Python code.
    """

    def __init__(self, *, by_signal: bool = False) -> None:
        self._lock = threading.Lock()
        self._stops: dict[int, Callable[[], None]] = {}
        # Attempts that were interrupted, among them some that have not begun.
        self._interrupted: set[int] = set()
        self._by_signal = by_signal and hasattr(signal, "pthread_kill")
        self._raising: int | None = None
        if self._by_signal:
            self._main = threading.get_ident()
            # Stays installed, because the signal may arrive when the job has ended.
            signal.signal(signal.SIGUSR1, self._signalled)

    def interrupt(self, run: int) -> None:
        """Raise `JobCancelled` in an attempt, at once or when it begins."""
        with self._lock:
            self._interrupted.add(run)
            if (stop := self._stops.get(run)) is not None:
                stop()

    def was_interrupted(self, run: int) -> bool:
        """Whether `interrupt` was called for a current attempt."""
        return run in self._interrupted

    @contextmanager
    def by(self, run: int, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` if the attempt is interrupted during the block, or was before. Any thread may call it."""
        with self._lock:
            self._stops[run] = stop
            if run in self._interrupted:
                stop()
        try:
            yield
        finally:
            with self._lock:
                del self._stops[run]

    @contextmanager
    def raised_in(self, run: int) -> Iterator[None]:
        """Raise `JobCancelled` in this thread if the attempt is interrupted during the block."""
        if self._by_signal and threading.get_ident() == self._main:
            self._raising = run
            try:
                with self.by(run, lambda: signal.pthread_kill(self._main, signal.SIGUSR1)):
                    yield
            finally:
                self._raising = None
            return
        thread = threading.get_ident()
        kind = ctypes.py_object(JobCancelled)
        try:
            with self.by(run, lambda: _raise_in(thread, kind)):
                yield
        except JobCancelled as error:
            # PyThreadState_SetAsyncExc raises the exception without a message.
            raise cancelled() from error
        finally:
            # Cancel a pending exception, which would otherwise be raised in later code.
            _raise_in(thread, None)

    def forget(self, run: int) -> None:
        """The attempt has ended."""
        with self._lock:
            self._interrupted.discard(run)

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        if self._raising is not None and self._raising in self._interrupted:
            self._raising = None
            raise cancelled()


def _raise_in(thread: int, kind: object) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)


def cancelled() -> JobCancelled:
    """The exception in a cancelled job."""
    return JobCancelled("the job was cancelled")
