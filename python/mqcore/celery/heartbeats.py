"""Keeps idle connections open: a thread sends a heartbeat on each.

A worker of the solo pool, or a producer between two messages, does not read for minutes. Without this thread, the
broker would close its connection and redeliver what it works on.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final, Protocol

__all__ = ["keep_alive"]

# A quarter of the broker's default `ping_interval` would be enough; brokers with shorter ones exist.
_INTERVAL_SECONDS: Final = 5.0


class _Beating(Protocol):
    def beat(self) -> None: ...


class _Heart:
    """The connections of one process, and their thread."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.connections: weakref.WeakSet[_Beating] = weakref.WeakSet()
        threading.Thread(target=self._run, name="mqcore-heartbeats", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_INTERVAL_SECONDS)
            for connection in list(self.connections):
                connection.beat()


_LOCK = threading.Lock()
_heart: _Heart | None = None


def keep_alive(connection: _Beating) -> None:
    """Call ``connection.beat()`` every few seconds, as long as the connection exists."""
    global _heart
    with _LOCK:
        # The thread of a parent does not exist in a forked child.
        if _heart is None or _heart.process != os.getpid():
            _heart = _Heart()
        _heart.connections.add(connection)


def _forget() -> None:
    global _LOCK, _heart
    _LOCK, _heart = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
