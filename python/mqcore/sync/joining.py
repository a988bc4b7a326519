"""Joined channels, and their queues with a handler each: what `mqcore.client.joining` does in another way."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from mqcore import errors
from mqcore._raised import reason_of, refuse_awaitable
from mqcore.client.arguments import consume_options, queue_handlers
from mqcore.sync.base import ClientBase
from mqcore.sync.messages import Delivered
from mqcore.sync.streams import Consumer

__all__ = ["Joined"]

_LOG: Final = logging.getLogger("mqcore.client")

_T = TypeVar("_T")


class Joined(Generic[_T]):
    """A joined channel, made by `Client.join`: ``with`` joins and leaves it. Handlers run in threads."""

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
        self._open = ExitStack()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> None:
        with ExitStack() as opening:
            membership = self._client._connected().join(self._channel)
            opening.callback(membership.leave)
            for consumer, _ in self._consumers:
                opening.enter_context(consumer)
            self._open = opening.pop_all()
        self._threads = [threading.Thread(target=self._handle, args=each) for each in self._consumers]
        for thread in self._threads:
            thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        threads, self._threads = self._threads, []
        # Closes the consumers, and so ends their threads when the running handlers have finished.
        self._open.close()
        for thread in threads:
            thread.join()

    def _handle(self, consumer: Consumer[_T], handler: Callable[[Delivered[_T]], object]) -> None:
        gate = threading.Semaphore(self._concurrency)

        def settle(message: Delivered[_T]) -> None:
            try:
                _settle(handler, message)
            finally:
                gate.release()

        with ThreadPoolExecutor(self._concurrency, "mqcore-join") as pool:
            while True:
                gate.acquire()
                message = next(consumer, None)
                if message is None:
                    return
                # The handler continues the trace of its message.
                pool.submit(contextvars.copy_context().run, settle, message)


def _settle(handler: Callable[[Delivered[Any]], object], message: Delivered[Any]) -> None:
    """Call the handler, then acknowledge or reject the message."""
    try:
        refuse_awaitable(handler, handler(message))
    except BaseException as error:
        # This thread only runs handlers: sys.exit() in a handler fails its message and must not end the program.
        _LOG.exception("%s failed for %r", getattr(handler, "__qualname__", handler), message)
        message.nack(reason_of(error))
        return
    message.ack()
