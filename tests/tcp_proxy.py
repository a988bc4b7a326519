"""A TCP proxy in front of a broker that cuts, stalls and half-opens connections on request of a test."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class TcpProxy:
    """Passes bytes both ways between clients and one address, until a method changes that."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._held = bytearray()
        self._holds_more = asyncio.Event()
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.accepted = 0

    @property
    def url(self) -> str:
        return f"tmqp://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.refuse()
        await self.cut()

    async def listen(self) -> None:
        """Accept connections, on the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Accept no more connections; those that stand continue."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def cut(self) -> None:
        """End every connection, without a goodbye in the protocol."""
        writers = [writer for pair in self._pairs for writer in pair]
        for writer in writers:
            writer.transport.abort()
        self._pairs.clear()
        self._held.clear()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    def stall(self) -> None:
        """Pass nothing on, in either direction, and close nothing: what a dead network looks like."""
        self._flowing.clear()

    def flow(self) -> None:
        """Pass on again, beginning with what was held back."""
        self._held.clear()
        self._flowing.set()

    async def holds(self, part: bytes, limit: float = 10.0) -> None:
        """Wait until the stalled proxy holds back these bytes, whichever way they go."""
        async with asyncio.timeout(limit):
            while part not in self._held:
                self._holds_more.clear()
                await self._holds_more.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            onward_reader, onward_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._pairs.add((writer, onward_writer))
        for source, sink in ((reader, onward_writer), (onward_reader, writer)):
            task = asyncio.ensure_future(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if not self._flowing.is_set():
                    self._held += data
                    self._holds_more.set()
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        sink.close()
