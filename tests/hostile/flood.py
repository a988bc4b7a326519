"""Connects and closes as fast as possible: `python flood.py HOST PORT SECONDS` prints how often it did.

It runs in a process of its own, so that it does not slow down the clients that a test measures.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

NO_LINGER = struct.pack("ii", 1, 0)
"""Close with a reset, which leaves no port that waits."""


def flood(host: str, port: int, seconds: float) -> tuple[int, int]:
    """Connect and close for a while; return how many connections there were, and how many failed."""
    end, count, failed = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        for number in range(50):
            peer = socket.socket()
            try:
                # Every tenth one ends in order. All of them would use up the ports of this machine.
                if number % 10:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                peer.connect((host, port))
                count += 1
            except OSError:
                failed += 1
            finally:
                peer.close()
    return count, failed


if __name__ == "__main__":
    print(*flood(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])), flush=True)
