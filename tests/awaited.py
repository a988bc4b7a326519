"""Waiting in tests of clients: for the next message, a connection or a condition, always with a timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from mqcore.client import Client
from served import wait_until

LIMIT = 10.0
"""Seconds after which a wait has failed: less than the 15 after which the broker redelivers and calls give up."""


async def next_of(stream: Any) -> Any:
    """Return what a stream brings next."""
    return await asyncio.wait_for(anext(aiter(stream)), LIMIT)


async def taken(messages: Any) -> Any:
    """Acknowledge and return what a stream brings next."""
    message = await next_of(messages)
    assert await message.ack()
    return message


async def reaches(client: Client, connects: int) -> None:
    """Wait until the client has connected so many times."""
    async with asyncio.timeout(LIMIT):
        async for state in client.states():
            if state.status == "connected" and client.counters.connects >= connects:
                return


async def loss(client: Client) -> str:
    """Wait until the client has lost its connection and waits before it tries again; return why."""
    async with asyncio.timeout(LIMIT):
        async for state in client.states():
            if state.status == "waiting":
                return state.cause or ""
    raise AssertionError("the client closed")


async def until(condition: Callable[[], bool], what: str = "the condition", *, limit: float = LIMIT) -> None:
    """Let the event loop continue until `condition()` is true, at most `limit` seconds."""
    await asyncio.to_thread(wait_until, condition, limit=limit, what=what)


def occupy(seconds: float) -> None:
    """Keep the event loop from everything else, as code that never awaits."""
    time.sleep(seconds)
