"""Signals that stop an app: the first one drains, the second one cancels."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

__all__ = ["stopping_on_signals"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_on_signals(
    first: Callable[[], object], again: Callable[[], object], *, enabled: bool = True
) -> Iterator[None]:
    """Call `first` on the event loop at the first SIGTERM or Ctrl-C of the block, and `again` at each later one.

    Only the main thread gets signals; in others, and with ``enabled=False``, this does nothing.
    """
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    seen = 0

    def react() -> None:
        nonlocal seen
        seen += 1
        (first if seen == 1 else again)()

    def handle(_number: int, _frame: Any) -> None:
        loop.call_soon_threadsafe(react)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # Event loops of Windows have no handlers of their own.
    for number in _SIGNALS:
        try:
            loop.add_signal_handler(number, react)
        except NotImplementedError:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)
