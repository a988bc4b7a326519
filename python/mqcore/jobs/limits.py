"""Soft time limits: an exception raised inside a job that runs too long, so that it can clean up."""

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
