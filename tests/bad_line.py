"""A way between two programs that a test can make bad: cut, slow, or losing what goes in one direction."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from enum import Enum

READ_BYTES = 64 * 1024
HELD_CHUNKS = 256
"""Reads that may be on their way in one direction of a connection; then the sender has to wait, as on a full line."""


class Direction(Enum):
    """Seen from the one who dials."""

    THERE = "what the one who dials sends"
    BACK = "what comes back"


class Proxy:
    """Listens on a port of its own and passes on to `port`, both on loopback.

    It is good at first; `cut`, `slow` and `lose` make it bad, `mend` makes it good again.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        """Where it listens, once it does."""
        self.connections = 0
        """Those taken so far."""
        self._is_cut = False
        self._delay = (0.0, 0.0)
        self._lost: frozenset[Direction] = frozenset()
        self._open: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """End all connections, and let none come about."""
        self._is_cut = True
        self._abort()

    def slow(self, shortest: float, longest: float) -> None:
        """Let everything take so many seconds, in each direction, in its order."""
        self._delay = (shortest, longest)

    def lose(self, *directions: Direction) -> None:
        """Drop all data in these directions, including the end of a connection, without notice to either side."""
        self._lost = frozenset(directions)

    def mend(self) -> None:
        """Pass all data of new connections. Older connections stay broken, because their lost data is not resent."""
        self._is_cut = False
        self._delay = (0.0, 0.0)
        self._lost = frozenset()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self._abort()
            for task in list(self._open):
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self._writers.add(writer)
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(there_writer)
            await asyncio.gather(
                self._carry(reader, there_writer, Direction.THERE), self._carry(there_reader, writer, Direction.BACK)
            )
        except (OSError, asyncio.CancelledError):
            # Cancelled only at the end of `listening`; the server's own callback would report it as an error.
            writer.transport.abort()
        finally:
            self._open.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        """One direction of one connection. A hole in it is never closed: what comes behind it does not arrive."""
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_CHUNKS)
        carrying = asyncio.create_task(self._deliver(held, writer))
        loop = asyncio.get_running_loop()
        due, torn = 0.0, False
        try:
            while True:
                data = b""
                with contextlib.suppress(OSError):
                    data = await reader.read(READ_BYTES)
                torn = torn or direction in self._lost
                if not torn:
                    due = max(due, loop.time() + random.uniform(*self._delay))
                    await held.put((due, data))
                if not data:
                    break
            if not torn:
                await carrying
        finally:
            carrying.cancel()

    async def _deliver(self, held: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                due, data = await held.get()
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
