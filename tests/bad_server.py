"""A listener that answers what a test says, whatever it is asked: brokers as bad as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def playing(play: Play, scheme: str) -> AsyncIterator[str]:
    """Listen, and let `play` have each connection, which is closed when it returns. Yields the URL."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await play(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            # The client left in the middle of the play.
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def saying(data: bytes, *, after: int = 1, stays: bool = False) -> Play:
    """Say these bytes once so many have come, and close, or stay and be silent."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(after)
        writer.write(data)
        await writer.drain()
        if stays:
            while await reader.read(1 << 16):
                pass

    return play
