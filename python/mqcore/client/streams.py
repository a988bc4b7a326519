"""Streams of a client: deliveries, direct messages, events, frames of an extension."""

from __future__ import annotations

import abc
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from mqcore import _tracing as tracing
from mqcore import errors
from mqcore._tracing import SpanHolder
from mqcore.client.arguments import total
from mqcore.client.base import ClientBase, ConsumerBase
from mqcore.client.incoming import Incoming
from mqcore.client.messages import Batch, Delivered, Request
from mqcore.config import Duration, seconds

if TYPE_CHECKING:
    from mqcore import _core
    from mqcore.client.models import Event
    from mqcore.client.options import Subscription

__all__ = ["REASON_CLOSED", "Consumer", "CustomMessages", "Events", "ExtensionFrames", "PullStream", "Requests"]

REASON_CLOSED: Final = "consumer-closed"
"""The reason with which a consumer that closes returns the deliveries that the program did not take."""

_TAKE_MAX: Final = 256

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_Raw = TypeVar("_Raw")


class Consumer(SpanHolder, ConsumerBase[Delivered[_T]]):
    """Messages of a queue as they come: ``async for`` takes them, and opens and closes the consumer.

    To keep it open for several loops, enter it with ``async with``. `batches` takes many messages at once.
    It continues after reconnects. When it closes, the deliveries that the program did not take return to their queue
    at once, and do not count as attempts. So do they when the loop is left with ``break`` or its task is cancelled.
    """

    def __init__(
        self,
        client: ClientBase,
        address: str,
        wanted: type[_T],
        prefetch: int,
        idle_timeout: float | None,
        options: dict[str, Any],
    ) -> None:
        if prefetch < 1:
            raise errors.InvalidArgument(f"prefetch is at least 1, not {prefetch}")
        self._client = client
        self._address = address
        self._wanted = wanted
        self._prefetch = prefetch
        self._options = options
        self._idle_timeout = idle_timeout
        self._core: _core.Consumer | None = None
        self._was_opened = False
        self._taken: deque[_core.Received] = deque()

    async def __aenter__(self) -> Self:
        self._was_opened = True
        self._core = await self._client._connected().consume(self._address, self._prefetch, **self._options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.close()
        self._taken.clear()
        self._leave_span()

    async def __anext__(self) -> Delivered[_T]:
        """Wait for a message; end with the consumer, the client, or after the idle timeout."""
        if self._span is not None:
            self._leave_span()
        # asyncio only
        if monotonic() >= self._yields_at:
            await self._let_others_run()
        # end asyncio only
        raw = self._taken.popleft() if self._taken else self._take()
        if raw is None and (raw := await self._wait()) is None:
            raise StopAsyncIteration
        message = Delivered(raw, self._wanted)
        if tracing.active is not None:
            message._span = self._begin_span(self._address, (message,), message.wants_acknowledge)
        return message

    def _take(self) -> _core.Received | None:
        """Take a message that is here. Others to acknowledge stay in the core, which extends their timeouts."""
        core = self._core or self._opened_core()
        if core is None or not (taken := core.take_next(_TAKE_MAX)):
            return None
        if len(taken) > 1:
            self._taken.extend(taken[1:])
        return taken[0]

    async def _wait(self) -> _core.Received | None:
        """Wait for a message; ``None``: the stream has ended, or the idle timeout has passed."""
        while (core := self._opened_core()) is not None:
            # Before the messages: none comes after the end.
            closed = core.is_closed
            if (raw := self._take()) is not None or closed or not await core.wait_async(self._idle_timeout):
                return raw
        return None

    def batches(self, max: int = _TAKE_MAX, *, wait: Duration = 0) -> AsyncIterator[Batch[_T]]:  # noqa: A002
        """Return batches of 1 to `max` messages for ``async for``, which opens the consumer if it is not open.

        A batch has the messages that have come; if there are fewer than `max`, it waits for more, at most `wait` after
        the first. `prefetch` limits the messages that are not settled, so it limits batches too: with twice `max`, the
        broker sends the next batch while the program works on this one.

        >>> receipts = await mq.publish_many("orders/2", ["apples", "pears"])
        >>> messages = mq.queue("orders/2").consume(str, prefetch=2000, idle_timeout=0.5)
        >>> async for batch in messages.batches(max=1000, wait="5ms"):
        ...     print(batch.bodies, await batch.ack())
        ['apples', 'pears'] 2
        """
        if max < 1:
            raise errors.InvalidArgument(f"max is at least 1, not {max}")
        return self._batches(max, seconds(wait))

    async def _batches(self, max: int, wait: float) -> AsyncIterator[Batch[_T]]:  # noqa: A002
        if self._core is None:
            async with self:
                # asyncio only
                async for batch in self._batches(max, wait):
                    yield batch
                # end asyncio only
                # blocking: yield from self._batches(max, wait)
            return
        while (core := self._core) is not None:
            if self._span is not None:
                self._leave_span()
            # asyncio only
            if monotonic() >= self._yields_at:
                await self._let_others_run()
            # end asyncio only
            closed = core.is_closed
            # Messages that are here need no wait, which costs a switch to another thread.
            taken = core.take_batch(max) if core.waiting >= (max if wait else 1) else None
            if taken is None:
                came = await core.wait_batch_async(max, wait, self._idle_timeout)
                taken = core.take_batch(max)
                if taken is None and (closed or not came):
                    return
            if taken is not None:
                batch = Batch(taken, self._wanted)
                if tracing.active is not None:
                    batch._span = self._begin_span(self._address, batch, False)
                yield batch

    def _opened_core(self) -> _core.Consumer | None:
        if not self._was_opened:
            raise errors.InvalidArgument("the consumer is not open; enter it with 'async with'")
        return self._core


class PullStream(SpanHolder, ConsumerBase[Delivered[_T]]):
    """The messages of one pull as they come: ``async for`` takes them, and opens and closes the stream.

    Taking messages raises what `Queue.pull` raises.
    """

    def __init__(self, client: ClientBase, address: str, count: int, wanted: type[_T], options: dict[str, Any]) -> None:
        self._client = client
        self._address = address
        self._count = count
        self._wanted = wanted
        self._options = options
        self._core: _core.PullStream | None = None
        self.remaining: int | None = None
        """Messages left in the queue, if the broker sent their number; known after the last message."""
        self.complete = False
        """Whether the broker sent all it had; known after the last message."""

    async def __aenter__(self) -> Self:
        self._core = await self._client._connected().pull_stream(self._address, self._count, **self._options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.close()
        self._leave_span()

    async def __anext__(self) -> Delivered[_T]:
        """Wait for a message; end with the pull."""
        if self._span is not None:
            self._leave_span()
        # asyncio only
        if monotonic() >= self._yields_at:
            await self._let_others_run()
        # end asyncio only
        while (core := self._core) is not None:
            closed = core.is_closed
            # One by one: the others wait in the core, which returns them if the loop ends.
            if taken := core.take(1):
                message = Delivered(taken[0], self._wanted)
                if tracing.active is not None:
                    message._span = self._begin_span(self._address, (message,), message.wants_acknowledge)
                return message
            if closed:
                remaining, self.complete = core.end()
                self.remaining = total(remaining)
                await self.__aexit__(None, None, None)
                break
            await core.wait_async()
        raise StopAsyncIteration


class _Source(Protocol[_Raw]):
    """A stream of the core: it keeps elements until they are taken."""

    def take(self, count: int, /) -> list[_Raw]: ...
    def wait_async(self, timeout: float | None = None, /) -> Awaitable[bool]: ...
    @property
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...


class _Stream(ConsumerBase[_T_co], Generic[_Raw, _T_co]):
    """A stream that ``async for`` opens, reads and closes. ``async with`` opens it before, and for several loops."""

    def __init__(self, client: ClientBase, idle_timeout: float | None) -> None:
        self._client = client
        self._idle_timeout = idle_timeout
        self._core: _Source[_Raw] | None = None
        self._was_opened = False
        self._taken: deque[_Raw] = deque()

    @abc.abstractmethod
    async def _open(self) -> _Source[_Raw]:
        """Open the stream of the core."""

    @abc.abstractmethod
    def _read(self, raw: _Raw) -> _T_co:
        """Make a public object of an element."""

    async def __aenter__(self) -> Self:
        self._core = await self._open()
        self._was_opened = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.close()
        # Not cleared: a loop of another thread may be taking from it.
        self._taken = deque()

    async def __anext__(self) -> _T_co:
        """Wait for the next element; end with the stream, the client, or after the idle timeout."""
        # asyncio only
        if monotonic() >= self._yields_at:
            await self._let_others_run()
        # end asyncio only
        taken = self._taken
        while not taken and (core := self._opened_core()) is not None:
            closed = core.is_closed
            taken.extend(core.take(_TAKE_MAX))
            if taken or closed or not await core.wait_async(self._idle_timeout):
                break
        if not taken:
            raise StopAsyncIteration
        return self._read(taken.popleft())

    def _opened_core(self) -> _Source[_Raw] | None:
        if not self._was_opened:
            raise errors.InvalidArgument("the stream is not open; enter it with 'async with'")
        return self._core


class Requests(_Stream["_core.Received", "Request[_T]"], Generic[_T]):
    """Direct messages to this client as they come. A client has one such stream: the newest gets the messages."""

    def __init__(self, client: ClientBase, wanted: type[_T], idle_timeout: float | None) -> None:
        super().__init__(client, idle_timeout)
        self._wanted = wanted

    async def _open(self) -> _core.Incoming:
        return self._client._connected().incoming()

    def _read(self, raw: _core.Received) -> Request[_T]:
        return Request(raw, self._wanted, self._client._connected())


class CustomMessages(_Stream["_core.Received", "Incoming[_T]"], Generic[_T]):
    """Custom messages of the broker as they come. A client has one such stream: the newest gets the messages."""

    def __init__(self, client: ClientBase, wanted: type[_T], idle_timeout: float | None) -> None:
        super().__init__(client, idle_timeout)
        self._wanted = wanted

    async def _open(self) -> _core.Incoming:
        return self._client._connected().incoming(custom=True)

    def _read(self, raw: _core.Received) -> Incoming[_T]:
        return Incoming(raw, self._wanted)


class Events(_Stream["Event", "Event"]):
    """Events of the broker as they come: ``async for`` subscribes and takes them.

    ``async with`` subscribes before the loop, so that no event of what happens meanwhile is missed.
    """

    def __init__(self, client: ClientBase, subscriptions: list[Subscription], idle_timeout: float | None) -> None:
        super().__init__(client, idle_timeout)
        self._subscriptions = subscriptions

    async def _open(self) -> _core.EventStream:
        return await self._client._connected().subscribe_events(self._subscriptions)

    def _read(self, raw: Event) -> Event:
        return raw


class ExtensionFrames(_Stream[bytes, bytes]):
    """Frames of a vendor's MicroMessage2 extension: ``async for`` takes them, and opens and closes the stream.

    ``async with`` opens it before the loop, so that no answer to a frame that is sent meanwhile is missed.
    """

    def __init__(self, client: ClientBase, name: str, idle_timeout: float | None) -> None:
        super().__init__(client, idle_timeout)
        self._name = name

    async def send(self, payload: bytes) -> None:
        """Send a frame; return when it is queued for writing."""
        await self._client._connected().send_extension(self._name, payload)

    # asyncio only
    async def serve(self, handler: Callable[[bytes], bytes | Awaitable[bytes | None] | None]) -> None:
        """Pass each frame to `handler`, one after the other, and send back what it returns unless that is ``None``.

        It runs until the client closes or the task is cancelled. It raises what the handler raises.
        """
        async with self as frames:
            async for payload in frames:
                answer = handler(payload)
                if inspect.isawaitable(answer):
                    answer = await answer
                if answer is not None:
                    await self.send(answer)

    # end asyncio only

    async def _open(self) -> _core.ExtensionFrames:
        return self._client._connected().extension(self._name)

    def _read(self, raw: bytes) -> bytes:
        return raw
