"""The stacks of a delivery handler, for operators who look for the reason why it is blocked."""

from __future__ import annotations

import sys
import traceback
from typing import Any, Final

__all__ = ["of_handler"]

_FRAMES_MAX: Final = 64

Frame = tuple[str, int, str, str]
"""File, line, function and source line."""


def of_handler(thread: int, loop_thread: int) -> list[tuple[str, list[Frame]]]:
    """Return the frames of the handler's thread and of the event loop that awaits its coroutines, the innermost last.

    A thread that runs no Python code has none. Both arguments are identifiers of threads; 0: there is none.
    """
    running = sys._current_frames()
    found = [("handler", _frames(running.get(thread)))]
    if loop_thread:
        found.append(("event loop", _frames(running.get(loop_thread))))
    return found


def _frames(frame: Any) -> list[Frame]:
    if frame is None:
        return []
    summary = traceback.extract_stack(frame)[-_FRAMES_MAX:]
    return [(found.filename, found.lineno or 0, found.name, found.line or "") for found in summary]
