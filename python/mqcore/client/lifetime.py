"""Clients that a program has not closed, and what happens to them when Python ends."""

from __future__ import annotations

import atexit
import warnings
import weakref
from typing import Final, Protocol

from mqcore import _core

__all__ = ["OPEN", "Abortable", "warn_if_open"]


class Abortable(Protocol):
    """A client that can close without waiting."""

    def _abort(self) -> None: ...


OPEN: Final[weakref.WeakSet[Abortable]] = weakref.WeakSet()
"""Clients that a program has not closed."""


@atexit.register
def _abort_all() -> None:
    """Close open clients and join the thread that wakes event loops: no thread may touch Python after it ended."""
    for client in tuple(OPEN):
        client._abort()
    _core.end_delivering()


def warn_if_open(client: Abortable) -> None:
    """Warn that a client was never closed, and close it."""
    if client in OPEN:
        warnings.warn(f"{client!r} was never closed", ResourceWarning, stacklevel=3, source=client)
        client._abort()
