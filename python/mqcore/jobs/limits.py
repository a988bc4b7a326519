"""Soft limits: an exception inside of the job that has taken too long, so that it can end in order."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mqcore.errors import JobTimeout

__all__ = ["SoftTimeLimit", "soft_limit"]


class SoftTimeLimit(JobTimeout):
    """Raised inside of a job that has reached its soft limit. Catch it to end in order."""


@contextmanager
def soft_limit(seconds: float) -> Iterator[None]:
    """Raise `SoftTimeLimit` in the block if it takes longer than `seconds`; 0: never.

    In a main thread, where the system has signals, it also ends what waits in a system call, such as `time.sleep`;
    elsewhere it comes with the next step of Python.
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
    return SoftTimeLimit(f"the job took longer than its soft limit of {seconds:g} s")


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
        # Without the lock it could hit whatever the thread does after the block.
        with over:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SoftTimeLimit))

    timer = threading.Timer(seconds, raise_there)
    timer.daemon = True
    timer.start()
    try:
        yield
    except SoftTimeLimit as error:
        # What is raised from outside has no text.
        raise _reached(seconds) from error
    finally:
        with over:
            is_over = True
            # One that was raised, and not felt yet, would hit what comes after.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
        timer.cancel()
