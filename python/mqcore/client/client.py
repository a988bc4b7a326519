"""The client: connection, direct messages, events and administration."""

from __future__ import annotations

# asyncio only
import asyncio

# end asyncio only
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack, overload

from mqcore import _tracing as tracing
from mqcore import bodies, errors
from mqcore.client.arguments import (
    address,
    new_id,
    optional_seconds,
    pairs,
    rebinding,
    route_method,
    subscriptions,
    tagged,
)
from mqcore.client.incoming import Incoming
from mqcore.client.joining import Joined
from mqcore.client.lifetime import OPEN
from mqcore.client.messages import Delivered, Request
from mqcore.client.models import (
    ChannelInformation,
    ClientCounters,
    ClientInformation,
    NodeInformation,
    QueueInformation,
    RouterInformation,
    RouterTest,
    State,
)
from mqcore.client.options import (
    DEFAULT_URL,
    PREFETCH,
    ClientOptions,
    ConnectOptions,
    EmbeddedBroker,
    Headers,
    Subscription,
    target_and_options,
)
from mqcore.client.publishing import PublishingBase
from mqcore.client.queue import Queue

# asyncio only
from mqcore.client.serving import answer

# end asyncio only
from mqcore.client.streams import Events, ExtensionFrames, Requests
from mqcore.client.topic import Topic
from mqcore.config import Binding, ChannelOptions, Duration, QueueOptions, RouteMethod

__all__ = ["Client", "connect"]

_T = TypeVar("_T")


class Client(PublishingBase):
    """A client of a broker, made by `connect`.

    Every call raises `ConnectionLost` if there is no connection within its timeout, and `RequestTimeout` if no answer
    comes in time. Administrative calls raise `Unauthorized` if this client lacks the permission, and `NotFound` if the
    object does not exist.
    """

    # --- the connection --------------------------------------------------------------------------------------------

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, drain: Duration | None = None) -> None:
        """Close: reject new calls, and let in-flight ones finish for `drain` (default: the option `drain_timeout`).

        Consumers return the messages they hold and then end. Closing twice is allowed.
        """
        if self._core is not None:
            OPEN.discard(self)
            await self._core.close(optional_seconds(drain))

    @property
    def id(self) -> str:
        """The client id that the broker assigned; empty in MQKS and MicroMessage2, which have none."""
        return self._connected().id

    @property
    def protocol(self) -> Literal["tmqp", "mqks", "mm2"]:
        """The protocol of the connection."""
        return self._connected().protocol

    @property
    def agreed(self) -> dict[str, dict[str, str]]:
        """The agreed extensions with their properties; of the last connection, if there is none now. Only in
        MicroMessage2.
        """
        return {name: dict(properties) for name, properties in self._connected().extensions}

    @property
    def state(self) -> State:
        """The current state of the connection."""
        return self._connected().state

    async def states(self, idle_timeout: Duration | None = None) -> AsyncIterator[State]:
        """Yield the current state and every later one, until the client is closed or its state stays the same for
        `idle_timeout`. A slow reader misses states between, and sees the latest.
        """
        states = self._connected().states()
        idle = optional_seconds(idle_timeout)
        while True:
            if (state := states.take()) is None:
                if not await states.wait_async(idle):
                    return
                continue
            yield state
            if state.status == "closed":
                return

    @property
    def counters(self) -> ClientCounters:
        """Counters since the client was created."""
        return self._connected().counters

    # --- queues ----------------------------------------------------------------------------------------------------

    def queue(self, channel: str, id: int | None = None) -> Queue:  # noqa: A002 (as in the protocol)
        """Return a queue: ``queue("orders", 1001)`` or ``queue("orders/1001")``."""
        return Queue(self, address(channel, id))

    def topic(self, name: str) -> Topic:
        """Return a topic: ``topic("orders.new")``, or the topics of a pattern: ``topic("orders.*")``."""
        return Topic(self, name)

    # --- clients ---------------------------------------------------------------------------------------------------

    async def send(
        self,
        target: str,
        body: object = b"",
        *,
        content_type: int = 0,
        id: str | None = None,  # noqa: A002 (as in the protocol)
        headers: Headers = (),
        high_priority: bool = False,
        one: bool = False,
        confirm: bool = False,
        timeout: Duration | None = None,
    ) -> None:
        """Send a direct message to a client id, ``@name:NAME`` or ``@type:KIND``, or to a router, ``@router:NAME``.

        With `one`, only the oldest matching client gets it. With `confirm`, wait until the receiver acknowledges. A
        message to a topic, ``@topic:NAME``, is always confirmed: it raises `Nacked` if there is neither a subscriber
        nor a queue.
        """
        with tracing.sending("send", target, headers, 1) as headers:
            await self._connected().send(
                target,
                bodies.encode(body),
                content_type=content_type,
                message_id=new_id(id, self._options),
                headers=pairs(headers),
                high_priority=high_priority,
                only_first=one,
                confirm=confirm,
                timeout=optional_seconds(timeout),
            )

    @overload
    async def request(
        self,
        target: str,
        body: object = ...,
        *,
        content_type: int = ...,
        headers: Headers = ...,
        one: bool = ...,
        timeout: Duration | None = ...,
    ) -> Incoming[bytes]: ...
    @overload
    async def request(
        self,
        target: str,
        body: object = ...,
        *,
        reply: type[_T],
        content_type: int = ...,
        headers: Headers = ...,
        one: bool = ...,
        timeout: Duration | None = ...,
    ) -> _T: ...
    async def request(
        self,
        target: str,
        body: object = b"",
        *,
        reply: type[Any] | None = None,
        content_type: int = 0,
        headers: Headers = (),
        one: bool = True,
        timeout: Duration | None = None,
    ) -> Any:
        """Send a request to a client and return its response: the body decoded as `reply`, or without it the message.

        If several clients match, only the oldest gets the request, unless `one` is false; then the first response wins.

        >>> await mq.request("@name:clock", b"What time is it?", reply=str)
        'noon'
        """
        with tracing.sending("request", target, headers, 1) as headers:
            core = await self._connected().request(
                target,
                bodies.encode(body),
                content_type=content_type,
                headers=pairs(headers),
                only_first=one,
                timeout=optional_seconds(timeout),
            )
        return Incoming(core, bytes) if reply is None else Incoming(core, reply).body

    @overload
    def requests(self, *, idle_timeout: Duration | None = ...) -> Requests[bytes]: ...
    @overload
    def requests(self, wanted: type[_T], *, idle_timeout: Duration | None = ...) -> Requests[_T]: ...
    def requests(self, wanted: type[Any] = bytes, *, idle_timeout: Duration | None = None) -> Requests[Any]:
        """Return the direct messages to this client for ``async for``, which opens the stream if it is not open."""
        return Requests(self, wanted, optional_seconds(idle_timeout))

    # asyncio only
    @overload
    async def serve(
        self, handler: Callable[[Request[bytes]], object | Awaitable[object]], *, concurrency: int = ...
    ) -> None: ...
    @overload
    async def serve(
        self, handler: Callable[[Request[_T]], object | Awaitable[object]], wanted: type[_T], *, concurrency: int = ...
    ) -> None: ...
    async def serve(
        self,
        handler: Callable[[Request[Any]], object | Awaitable[object]],
        wanted: type[Any] = bytes,
        *,
        concurrency: int = 16,
    ) -> None:
        """Answer each direct message with what `handler` returns, until the client closes or the task is cancelled.

        Plain functions run in worker threads; up to `concurrency` messages are handled at once. If a handler raises
        anything, even `SystemExit`, the client logs the exception and responds with status 1.
        """
        gate = asyncio.Semaphore(concurrency)
        async with self.requests(wanted) as requests, asyncio.TaskGroup() as tasks:
            async for request in requests:
                await gate.acquire()
                task = tasks.create_task(answer(handler, request))
                task.add_done_callback(lambda _: gate.release())

    # end asyncio only

    # --- events ----------------------------------------------------------------------------------------------------

    def events(
        self,
        kind: str | Iterable[Subscription],
        channel: str | None = None,
        queue: int | None = None,
        *,
        idle_timeout: Duration | None = None,
    ) -> Events:
        """Return events of the broker: of one kind, with the channel and queue it belongs to, or of several kinds.

        Take them with ``async for``. ``async with`` subscribes before the loop.
        """
        return Events(self, subscriptions(kind, channel, queue), optional_seconds(idle_timeout))

    def extension(self, name: str, *, idle_timeout: Duration | None = None) -> ExtensionFrames:
        """Return the frames of a vendor's extension: ``async for`` takes them, and `ExtensionFrames.send` sends them.

        Opening it raises `NotSupported` if the two sides did not agree on the extension. Only in MicroMessage2.
        """
        return ExtensionFrames(self, name, optional_seconds(idle_timeout))

    # --- administration --------------------------------------------------------------------------------------------

    async def declare(
        self,
        channel: str,
        id: int,  # noqa: A002 (as in the protocol)
        options: QueueOptions | None = None,
        *,
        tag: str | None = None,
    ) -> bool:
        """Create a queue unless it exists. Return whether it was created; an existing queue is not changed.

        >>> await mq.declare("invoices", 1, mqcore.QueueOptions(status="pull"))
        True
        >>> await mq.declare("invoices", 1)
        False
        """
        try:
            await self.create_queue(address(channel, id), tagged(options, tag))
        except errors.AlreadyExists:
            return False
        return True

    async def create_channel(self, channel: str, options: ChannelOptions | None = None) -> None:
        """Create a channel. Raises `AlreadyExists` if it exists."""
        await self._connected().create_channel(channel, options or ChannelOptions())

    async def remove_channel(self, channel: str) -> None:
        """Remove a channel with its queues and their messages."""
        await self._connected().remove_channel(channel)

    async def channel_information(self, channel: str) -> ChannelInformation:
        """Describe a channel."""
        return await self._connected().channel_information(channel)

    async def channels(self, pattern: str | None = None) -> list[ChannelInformation]:
        """Describe the channels whose name matches: ``x*`` begins, ``*x`` ends with, ``*x*`` contains, else equals."""
        return await self._connected().channels(pattern)

    async def channel_consumers(self, channel: str) -> list[ClientInformation]:
        """Describe the clients that have joined a channel."""
        return await self._connected().channel_consumers(channel)

    async def create_queue(self, queue: str, options: QueueOptions | None = None) -> None:
        """Create a queue, and its channel if it is missing. Raises `AlreadyExists` if the queue exists."""
        await self._connected().create_queue(queue, options or QueueOptions())

    async def update_queue(self, queue: str, options: QueueOptions) -> None:
        """Change the options of a queue that are not ``None``."""
        await self._connected().update_queue(queue, options)

    async def remove_queue(self, queue: str) -> None:
        """Remove a queue with its messages."""
        await self._connected().remove_queue(queue)

    async def rebind(
        self,
        queue: str,
        events: str | Iterable[str] | None = None,
        *,
        remove: str | Iterable[str] = (),
        remove_masks: str | Iterable[str] = (),
        add: str | Iterable[str] = (),
    ) -> None:
        """Change the bindings of a queue. Only in MQKS.

        In this order, `events` replaces all bindings, `remove` and the matches of `remove_masks`
        (``user.*.connected``) are removed, and `add` is added.
        """
        await self._connected().rebind(queue, **rebinding(events, remove, remove_masks, add))

    async def statistic(self, expression: str) -> int:
        """Return the value of a statistics expression such as ``len(state.queues)``. Only in MQKS, whose page
        docs/protocols/mqks.md lists the expressions.
        """
        return await self._connected().statistic(expression)

    async def clear_queue(self, queue: str, *, high_priority: bool = True, normal: bool = True) -> None:
        """Remove stored messages of a queue: those with high priority, the others, or both."""
        await self._connected().clear_queue(queue, high_priority, normal)

    async def queue_information(self, queue: str) -> QueueInformation:
        """Describe a queue."""
        return await self._connected().queue_information(queue)

    async def queues(self, channel: str) -> list[QueueInformation]:
        """Describe the queues of a channel."""
        return await self._connected().queues(channel)

    async def clients(self, pattern: str | None = None) -> list[ClientInformation]:
        """Describe the connected clients, or those whose type matches."""
        return await self._connected().clients(pattern)

    async def create_router(self, router: str, method: RouteMethod | str = RouteMethod.DISTRIBUTE) -> None:
        """Create a router. If it exists with this method, nothing changes; with another, raises `AlreadyExists`."""
        await self._connected().create_router(router, route_method(method))

    async def remove_router(self, router: str) -> None:
        """Remove a router with its bindings. If it does not exist, nothing changes."""
        await self._connected().remove_router(router)

    async def routers(self, pattern: str | None = None) -> list[RouterInformation]:
        """Describe the routers, or those whose name matches."""
        return await self._connected().routers(pattern)

    async def bindings(self, router: str) -> list[Binding]:
        """Return the bindings of a router, the highest priority first. Raises `NotFound` if there is no such router."""
        return await self._connected().bindings(router)

    async def bind(self, router: str, binding: Binding | str) -> None:
        """Add a binding, or a binding to a target, to a router.

        Raises `NotFound` if the router does not exist, `AlreadyExists` if it has a binding of that name.
        """
        await self._connected().add_binding(router, Binding(binding) if isinstance(binding, str) else binding)

    async def unbind(self, router: str, binding: str) -> None:
        """Remove the binding of this name from a router. If it has none, nothing changes."""
        await self._connected().remove_binding(router, binding)

    async def test_router(self, router: str, body: object = b"", *, headers: Headers = ()) -> RouterTest:
        """Return the route that a message would take, and why. Nothing is sent, but handlers of routers are called."""
        return await self._connected().test_router(router, bodies.encode(body), pairs(headers))

    async def nodes(self) -> list[NodeInformation]:
        """Describe the nodes of the cluster."""
        return await self._connected().nodes()

    @overload
    def join(self, channel: str) -> Joined[bytes]: ...
    @overload
    def join(
        self,
        channel: str,
        handlers: Mapping[int, Callable[[Delivered[bytes]], object]],
        *,
        prefetch: int = ...,
        concurrency: int = ...,
    ) -> Joined[bytes]: ...
    @overload
    def join(
        self,
        channel: str,
        handlers: Mapping[int, Callable[[Delivered[_T]], object]],
        wanted: type[_T],
        *,
        prefetch: int = ...,
        concurrency: int = ...,
    ) -> Joined[_T]: ...
    def join(
        self,
        channel: str,
        handlers: Mapping[int, Callable[[Delivered[Any]], object]] | None = None,
        wanted: type[Any] = bytes,
        *,
        prefetch: int = PREFETCH,
        concurrency: int = 1,
    ) -> Joined[Any]:
        """Join a channel during a block: for pulls, and with `handlers` to consume its queues.

        Without `handlers` the block only keeps the channel joined; otherwise every pull joins and leaves it.

        `handlers` maps queue ids to functions. During the block each message of such a queue goes to its function,
        which runs in a worker thread unless it is a coroutine function. A message is acknowledged when the function
        returns, and rejected with the exception's name if it raises anything, even `SystemExit`. Up to `concurrency`
        messages of a queue are handled at once, and `prefetch` applies to each queue. Messages of other queues stay
        where they are.

        At the end of the block, messages that were not started return to their queues, and running functions finish;
        coroutines are cancelled if the block raises. Entering raises `NotFound` for a missing queue.
        """
        return Joined(self, channel, handlers or {}, wanted, prefetch, concurrency)


def connect(urls: str | Sequence[str] | EmbeddedBroker = DEFAULT_URL, **options: Unpack[ConnectOptions]) -> Client:
    """Return a client of the broker at `urls`. Several URLs are tried in turn.

    An embedded `mqcore.Broker` in place of URLs is reached without a socket. Keyword arguments are the fields of
    `mqcore.client.ClientOptions`. A URL may hold credentials: ``tmqp://user:password@host``, ``tmqp://token@host``.
    ``mqks://`` speaks MQKS and ``mm2://`` MicroMessage2; ``tmqps://``, ``mqkss://`` and ``mm2s://`` use TLS. All URLs
    of a client have the same protocol.

    Connecting raises `ConnectFailed` if no broker answers, `TLSError` or its subclass `CertificateError` if the TLS
    handshake fails, and `AuthFailed` if the broker denies access. After that the client reconnects when a connection is
    lost.

    >>> async with mqcore.connect(broker.listeners[0], name="shop") as client:
    ...     print(client.state.status)
    connected
    """
    return Client(*target_and_options(urls, ClientOptions(**options)))
