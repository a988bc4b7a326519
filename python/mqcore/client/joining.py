"""Joined channels, and their queues with a handler each: what `mqcore.sync.joining` does in another way."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from mqcore import errors
from mqcore._raised import call_in_thread, ends_task, reason_of
from mqcore.client.arguments import consume_options, queue_handlers
from mqcore.client.base import ClientBase
from mqcore.client.messages import Delivered
from mqcore.client.streams import Consumer

__all__ = ["Joined"]

_LOG: Final = logging.getLogger("mqcore.client")

_T = TypeVar("_T")


class Joined(Generic[_T]):
    """A joined channel, made by `Client.join`: ``async with`` joins and leaves it."""

    def __init__(
        self,
        client: ClientBase,
        channel: str,
        handlers: Mapping[int, Callable[[Delivered[_T]], object]],
        wanted: type[_T],
        prefetch: int,
        concurrency: int,
    ) -> None:
        if concurrency < 1:
            raise errors.InvalidArgument(f"concurrency must be at least 1, not {concurrency}")
        self._client = client
        self._channel = channel
        options = consume_options({})
        self._consumers = [
            (Consumer(client, f"{channel}/{queue}", wanted, prefetch, None, options), handler)
            for queue, handler in queue_handlers(handlers)
        ]
        self._concurrency = concurrency
        self._open = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        async with AsyncExitStack() as opening:
            membership = await self._client._connected().join(self._channel)
            opening.callback(membership.leave)
            for consumer, _ in self._consumers:
                await opening.enter_async_context(consumer)
            self._open = opening.pop_all()
        self._tasks = [asyncio.create_task(self._handle(*each)) for each in self._consumers]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, []
        # Closes the consumers, and so ends their tasks when the running handlers have finished.
        await self._open.aclose()
        if error is not None:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(self, consumer: Consumer[_T], handler: Callable[[Delivered[_T]], object]) -> None:
        gate = asyncio.Semaphore(self._concurrency)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await gate.acquire()
                message = await anext(consumer, None)
                if message is None:
                    return
                task = tasks.create_task(_settle(handler, message))
                task.add_done_callback(lambda _: gate.release())


async def _settle(handler: Callable[[Delivered[Any]], object], message: Delivered[Any]) -> None:
    """Call the handler, then acknowledge or reject the message."""
    task = asyncio.current_task()
    try:
        if inspect.iscoroutinefunction(handler):
            await handler(message)
        else:
            # An object whose `__call__` is async, and a lambda around an async function, return an awaitable.
            if inspect.isawaitable(started := await asyncio.to_thread(call_in_thread, handler, message)):
                await started
    # A handler that raises SystemExit or KeyboardInterrupt would end the loop, and with it the program.
    except BaseException as error:
        if ends_task(task, error):
            raise
        _LOG.exception("%s failed for %r", getattr(handler, "__qualname__", handler), message)
        await message.nack(reason_of(error))
        return
    await message.ack()
