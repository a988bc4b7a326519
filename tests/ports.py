"""Ports for programs that need a port number before they listen, and that keep it over a restart."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import deque

# Below the ports that systems give to connections by themselves (Linux from 32768, others from 49152): between the
# choice of a port and its use, no connection and no listener with port 0 can take it.
FIRST_PORT, LAST_PORT = 20_000, 32_000

# Each worker of pytest-xdist chooses from a part of its own.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PARTS = max(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), 1)
# The ports given last, oldest first. Older ones may be given again: their programs have ended.
_given: deque[int] = deque(maxlen=(LAST_PORT - FIRST_PORT) // _PARTS // 2)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, no two alike, and none that was returned lately."""
    width = (LAST_PORT - FIRST_PORT) // _PARTS
    first = FIRST_PORT + _WORKER * width
    found: list[int] = []
    for port in random.sample(range(first, first + width), width):
        if len(found) == count:
            break
        if port not in _given and _is_free(port):
            found.append(port)
    _given.extend(found)
    if len(found) < count:
        raise RuntimeError(f"fewer than {count} free ports from {first} to {first + width}")
    return found


def free_port() -> int:
    """One port that nothing listens on."""
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
