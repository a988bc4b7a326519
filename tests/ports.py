"""Ports for programs that need a port number before they listen, and that keep it over a restart."""

from __future__ import annotations

import atexit
import contextlib
import random
import socket
from collections import deque

# Below the ports that systems give to connections by themselves (Linux from 32768, others from 49152): between the
# choice of a port and its use, no connection and no listener with port 0 can take it.
FIRST_PORT, LAST_PORT = 20_000, 32_000
BLOCK = 200

# Each process chooses from a block of its own, and holds the first port of the block as long as it lives. Otherwise a
# client of one test could find the broker of another one, while its own broker starts again.
_guard: socket.socket | None = None
# The ports given last, oldest first. Older ones may be given again: their programs have ended.
_given: deque[int] = deque(maxlen=BLOCK // 2)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, no two alike, and none that was returned lately."""
    first = _block() + 1
    found: list[int] = []
    for port in random.sample(range(first, first + BLOCK - 1), BLOCK - 1):
        if len(found) == count:
            break
        if port not in _given and _is_free(port):
            found.append(port)
    _given.extend(found)
    if len(found) < count:
        raise RuntimeError(f"fewer than {count} free ports from {first} to {first + BLOCK - 2}")
    return found


def free_port() -> int:
    """One port that nothing listens on."""
    return free_ports(1)[0]


def _block() -> int:
    """The first port of this process's block."""
    global _guard
    if _guard is None:
        for first in random.sample(range(FIRST_PORT, LAST_PORT, BLOCK), (LAST_PORT - FIRST_PORT) // BLOCK):
            guard = socket.socket()
            try:
                guard.bind(("127.0.0.1", first))
                guard.listen(1)
            except OSError:
                guard.close()
            else:
                _guard = guard
                atexit.register(guard.close)
                return first
        raise RuntimeError("all blocks of ports are in use by other processes")
    return int(_guard.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        # As servers do. Otherwise a port stays taken for a minute after its connections have ended.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False
