"""The client without ``await``: the same Rust core, called by blocking.

::

    import mqcore.sync as mq

    with mq.connect("tmqp://localhost:2622", name="script") as client:
        client.publish("orders/1001", Order(1, "A", 2))
        for message in client.queue("orders", 1001).consume(Order, idle_timeout=5.0):
            with message.process():
                print(message.body)

No event loop is involved, so it works in threads, and where an event loop is running (which it then blocks). Blocking
calls let other threads run, and Ctrl-C raises `KeyboardInterrupt` within a tenth of a second. Clients may be shared by
threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, Unpack, overload

from mqcore import _core, bodies, errors
from mqcore import client as shared
from mqcore.client import (
    DEFAULT_URL,
    PREFETCH,
    ChannelInformation,
    ClientCounters,
    ClientInformation,
    ClientOptions,
    Event,
    Incoming,
    NodeInformation,
    QueueInformation,
    Receipt,
    RouterInformation,
    RouterTest,
    State,
)
from mqcore.config import Binding, ChannelOptions, Duration, QueueOptions, RouteMethod

if TYPE_CHECKING:
    from types import TracebackType

    from mqcore.broker import Broker
    from mqcore.client import Clear, Copies, Headers, Order, Outcome, Subscription, _Options, _Terms

__all__ = [
    "Batch",
    "Client",
    "Consumer",
    "Delivered",
    "Events",
    "ExtensionFrames",
    "Queue",
    "Request",
    "Requests",
    "connect",
]

_BURST = 256

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Delivered(Incoming[_T_co]):
    """A message of a queue, to be settled once if the queue asks for it."""

    __slots__ = ()

    @property
    def address(self) -> str:
        """The queue: ``orders/1001``."""
        return f"{self.target}/{self.content_type}"

    @property
    def wants_acknowledge(self) -> bool:
        """Whether the queue asks for an acknowledgement. Without it, settling does nothing."""
        return self._core.wants_acknowledge

    @property
    def is_settled(self) -> bool:
        """Whether it was settled here."""
        return self._core.is_settled

    def ack(self) -> bool:
        """Acknowledge it; return whether that was sent. False is no error; see `mqcore.client.Delivered.ack`."""
        return self._core.ack() == "sent"

    def nack(self, reason: str = "none") -> bool:
        """Refuse it; its queue's delivery handler decides what becomes of it. Return whether that was sent."""
        return self._core.nack(reason) == "sent"

    @contextmanager
    def process(self) -> Iterator[Self]:
        """Acknowledge when the block succeeds; refuse with the exception's name, and let it pass, when it raises."""
        try:
            yield self
        except BaseException as error:
            self._core.nack(type(error).__name__)
            raise
        self._core.ack()


class Request(Incoming[_T_co]):
    """A direct message to this client."""

    __slots__ = ("_client",)

    def __init__(self, core: _core.Received, wanted: type[_T_co], client: _core.Client) -> None:
        super().__init__(core, wanted)
        self._client = client

    @property
    def wants_response(self) -> bool:
        """Whether its sender waits for a response."""
        return self._core.wants_response

    @property
    def wants_acknowledge(self) -> bool:
        """Whether its sender waits for an acknowledgement."""
        return self._core.wants_acknowledge

    def respond(self, body: object = b"", *, status: int = 0) -> None:
        """Answer it. Status 0 is success; from 1000 on they belong to applications."""
        self._client.respond(self._core, status, bodies.encode(body))

    def ack(self) -> None:
        """Acknowledge it to its sender."""
        self._client.acknowledge_direct(self._core)

    def nack(self, reason: str = "none") -> None:
        """Refuse it to its sender."""
        self._client.acknowledge_direct(self._core, reason)


class Batch(Sequence[Delivered[_T]]):
    """What a pull brought."""

    def __init__(self, messages: list[Delivered[_T]], remaining: int | None, complete: bool) -> None:
        self._messages = messages
        self.remaining = remaining
        """Messages left in the queue, if the broker said so."""
        self.complete = complete
        """Whether this is all that was there; if not, the time was over or the connection was lost."""

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Delivered[_T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Delivered[_T]]: ...
    def __getitem__(self, index: int | slice) -> Delivered[_T] | list[Delivered[_T]]:
        return self._messages[index]


class Consumer(Generic[_T]):
    """Messages of a queue, as they come: iterate over it. With ``with`` it ends with the block, without with the loop.

    It goes on over reconnects. Ending it hands back what nobody took.
    """

    def __init__(
        self,
        client: Client,
        address: str,
        wanted: type[_T],
        prefetch: int,
        idle_timeout: float | None,
        terms: dict[str, Any],
    ) -> None:
        if prefetch < 1:
            raise errors.InvalidArgument(f"prefetch is at least 1, not {prefetch}")
        self._client = client
        self._address = address
        self._wanted = wanted
        self._prefetch = prefetch
        self._terms = terms
        self._idle_timeout = idle_timeout
        self._core: _core.Consumer | None = None
        self._taken: deque[_core.Received] = deque()

    def __enter__(self) -> Self:
        self._core = self._client._connected().consume(self._address, self._prefetch, **self._terms)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        core, self._core = self._core, None
        shared.hand_back(core, self._taken)

    def __iter__(self) -> Iterator[Delivered[_T]]:
        """Yield messages; end with the consumer, the client, or after the idle timeout."""
        if self._core is not None:
            yield from self._messages()
            return
        with self:
            yield from self._messages()

    def batches(self, size: int = _BURST) -> Iterator[list[Delivered[_T]]]:
        """Yield lists of up to `size` messages: what is there, at least one. Enter the consumer with ``with`` first."""
        while batch := self._take(size):
            yield [Delivered(core, self._wanted) for core in batch]

    def _messages(self) -> Iterator[Delivered[_T]]:
        while True:
            if not self._taken:
                self._taken.extend(self._take(min(self._prefetch, _BURST)))
            if not self._taken:
                return
            yield Delivered(self._taken.popleft(), self._wanted)

    def _take(self, most: int) -> list[_core.Received]:
        while (core := self._core) is not None:
            closed = core.is_closed
            if batch := core.take(most):
                return batch
            if closed or not core.wait(self._idle_timeout):
                break
        return []


class Requests(Generic[_T]):
    """Direct messages to this client, as they come. There is one such stream a client: the newest gets them."""

    def __init__(self, client: Client, wanted: type[_T], idle_timeout: float | None) -> None:
        self._client = client
        self._wanted = wanted
        self._idle_timeout = idle_timeout
        self._core: _core.Incoming | None = None

    def __enter__(self) -> Self:
        self._core = self._client._connected().incoming()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.close()

    def __iter__(self) -> Iterator[Request[_T]]:
        """Yield messages; end with the stream, the client, or after the idle timeout."""
        while (core := self._core) is not None:
            closed = core.is_closed
            messages = core.take(_BURST)
            for message in messages:
                yield Request(message, self._wanted, self._client._connected())
            if not messages and (closed or not core.wait(self._idle_timeout)):
                return


class Events:
    """Events of the broker, as they come: ``with`` subscribes, iterating takes them."""

    def __init__(self, client: Client, subscriptions: list[Subscription], idle_timeout: float | None) -> None:
        self._client = client
        self._subscriptions = subscriptions
        self._idle_timeout = idle_timeout
        self._core: _core.EventStream | None = None

    def __enter__(self) -> Self:
        self._core = self._client._connected().subscribe_events(self._subscriptions)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.close()

    def __iter__(self) -> Iterator[Event]:
        """Yield events; end with the stream, the client, or after the idle timeout."""
        while (core := self._core) is not None:
            closed = core.is_closed
            events = core.take(_BURST)
            for event in events:
                yield Event(**event)
            if not events and (closed or not core.wait(self._idle_timeout)):
                return


class ExtensionFrames:
    """Frames of a vendor's extension of MicroMessage2: ``with`` begins to take them, iterating takes them."""

    def __init__(self, client: Client, name: str, idle_timeout: float | None) -> None:
        self._client = client
        self._name = name
        self._idle_timeout = idle_timeout
        self._core: _core.ExtensionFrames | None = None

    def send(self, payload: bytes) -> None:
        """Send one; return once it is on its way."""
        self._client._connected().send_extension(self._name, payload)

    def __enter__(self) -> Self:
        self._core = self._client._connected().extension(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield frames; end with the stream, the client, or after the idle timeout."""
        while (core := self._core) is not None:
            closed = core.is_closed
            frames = core.take(_BURST)
            yield from frames
            if not frames and (closed or not core.wait(self._idle_timeout)):
                return


class Queue:
    """One queue, as this client reaches it."""

    def __init__(self, client: Client, address: str) -> None:
        self._client = client
        self.address = address
        """``orders/1001``."""

    def publish(self, body: object, **options: Any) -> Receipt:
        """Publish to it; see `Client.publish`."""
        return self._client.publish(self.address, body, **options)

    def publish_many(self, bodies: Iterable[object], **options: Any) -> list[Receipt]:
        """Publish many messages to it; see `Client.publish_many`."""
        published: list[Receipt] = self._client.publish_many(self.address, bodies, **options)
        return published

    @overload
    def consume(
        self, *, prefetch: int = ..., idle_timeout: Duration | None = ..., **terms: Unpack[_Terms]
    ) -> Consumer[bytes]: ...
    @overload
    def consume(
        self, wanted: type[_T], *, prefetch: int = ..., idle_timeout: Duration | None = ..., **terms: Unpack[_Terms]
    ) -> Consumer[_T]: ...
    def consume(
        self,
        wanted: type[Any] = bytes,
        *,
        prefetch: int = PREFETCH,
        idle_timeout: Duration | None = None,
        **terms: Unpack[_Terms],
    ) -> Consumer[Any]:
        """Take messages as they come, with bodies that are `wanted`; see `mqcore.client.Queue.consume`."""
        idle = shared.optional_seconds(idle_timeout)
        return Consumer(self._client, self.address, wanted, prefetch, idle, shared.consume_terms(terms))

    @overload
    def pull(
        self, count: int = ..., *, order: Order = ..., clear: Clear | None = ..., timeout: Duration | None = ...
    ) -> Batch[bytes]: ...
    @overload
    def pull(
        self,
        count: int,
        wanted: type[_T],
        *,
        order: Order = ...,
        clear: Clear | None = ...,
        timeout: Duration | None = ...,
    ) -> Batch[_T]: ...
    def pull(
        self,
        count: int = 1,
        wanted: type[Any] = bytes,
        *,
        order: Order = "fifo",
        clear: Clear | None = None,
        timeout: Duration | None = None,
    ) -> Batch[Any]:
        """Take up to `count` messages out of a pull queue; see `mqcore.client.Queue.pull`."""
        answer = self._client._connected().pull(self.address, count, **shared.pull_options(order, clear, timeout))
        messages, remaining, complete = answer
        return Batch([Delivered(core, wanted) for core in messages], shared.total(remaining), complete)

    @overload
    def get_cached(self, *, timeout: Duration | None = ...) -> Incoming[bytes] | None: ...
    @overload
    def get_cached(self, wanted: type[_T], *, timeout: Duration | None = ...) -> Incoming[_T] | None: ...
    def get_cached(self, wanted: type[Any] = bytes, *, timeout: Duration | None = None) -> Incoming[Any] | None:
        """Return the message of a cache queue, which stays there; ``None`` while there is none."""
        core = self._client._connected().get_cached(self.address, timeout=shared.optional_seconds(timeout))
        return None if core is None else Incoming(core, wanted)

    def information(self) -> QueueInformation:
        """Describe it."""
        return self._client.queue_information(self.address)

    def __repr__(self) -> str:
        return f"<Queue {self.address}>"


class Client:
    """A connected client; close it, or use it with ``with``. Its calls raise what `mqcore.client.Client`'s raise."""

    def __init__(self, target: list[str] | _core.Broker, options: ClientOptions) -> None:
        self._core: _core.Client | None = None
        self._core = _core.connect(target, options, True)
        shared.OPEN.add(self)

    # --- the connection --------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self, drain: Duration | None = None) -> None:
        """Close: take nothing new, let what is under way finish for `drain` (default: the option `drain_timeout`).

        Consumers get what is there and then end. Closing twice is fine.
        """
        if self._core is not None:
            shared.OPEN.discard(self)
            self._core.close(shared.optional_seconds(drain))

    def _abort(self) -> None:
        if self._core is not None:
            shared.OPEN.discard(self)
            self._core.abort()

    def _connected(self) -> _core.Client:
        assert self._core is not None
        return self._core

    def __del__(self) -> None:
        shared.warn_if_open(self)

    @property
    def id(self) -> str:
        """What the broker calls this client; empty in MQKS and MicroMessage2, where it calls it nothing."""
        return self._connected().id

    @property
    def protocol(self) -> Literal["tmqp", "mqks", "mm2"]:
        """What is spoken with the broker."""
        return self._connected().protocol

    @property
    def agreed(self) -> dict[str, dict[str, str]]:
        """The extensions that are in force; see `mqcore.client.Client.agreed`. Only in MicroMessage2."""
        return {name: dict(properties) for name, properties in self._connected().extensions}

    @property
    def state(self) -> State:
        """Where the connection is now."""
        return State(**self._connected().state)

    def states(self, idle_timeout: Duration | None = None) -> Iterator[State]:
        """Yield the state now and every one that follows, until the client is closed; a slow reader sees the latest."""
        states = self._connected().states()
        idle = shared.optional_seconds(idle_timeout)
        while True:
            if (state := states.take()) is None:
                if not states.wait(idle):
                    return
                continue
            yield State(**state)
            if state["status"] == "closed":
                return

    @property
    def counters(self) -> ClientCounters:
        """What it has counted."""
        return ClientCounters(**self._connected().stats())

    # --- queues ----------------------------------------------------------------------------------------------------

    def queue(self, channel: str, id: int | None = None) -> Queue:  # noqa: A002 (as in the protocol)
        """Return a queue: ``queue("orders", 1001)`` or ``queue("orders/1001")``."""
        return Queue(self, shared.address(channel, id))

    def publish(
        self,
        queue: str,
        body: object,
        *,
        id: str | None = None,  # noqa: A002 (as in the protocol)
        headers: Headers = (),
        high_priority: bool = False,
        confirm: bool = True,
        cc: Copies = (),
        timeout: Duration | None = None,
        retry: bool = False,
    ) -> Receipt:
        """Publish a message and wait until it was taken; see `mqcore.client.Client.publish`."""
        by, latency = self._connected().publish(
            queue,
            bodies.encode(body),
            message_id=id,
            headers=shared.pairs(headers),
            high_priority=high_priority,
            confirm=confirm,
            cc=shared.copies(cc),
            timeout=shared.optional_seconds(timeout),
            retry=retry,
        )
        return Receipt(by or "nobody", latency)

    @overload
    def publish_many(
        self,
        queue: str,
        bodies: Iterable[object],
        *,
        headers: Headers = ...,
        high_priority: bool = ...,
        confirm: bool = ...,
        cc: Copies = ...,
        timeout: Duration | None = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[Receipt]: ...
    @overload
    def publish_many(
        self,
        queue: str,
        bodies: Iterable[object],
        *,
        headers: Headers = ...,
        high_priority: bool = ...,
        confirm: bool = ...,
        cc: Copies = ...,
        timeout: Duration | None = ...,
        return_exceptions: Literal[True],
    ) -> list[Receipt | errors.MqcoreError]: ...
    def publish_many(
        self,
        queue: str,
        bodies: Iterable[object],
        *,
        headers: Headers = (),
        high_priority: bool = False,
        confirm: bool = True,
        cc: Copies = (),
        timeout: Duration | None = None,
        return_exceptions: bool = False,
    ) -> list[Receipt] | list[Receipt | errors.MqcoreError]:
        """Publish many messages, in their order; see `mqcore.client.Client.publish_many`."""
        options = shared.publish_options(headers, high_priority, confirm, cc, timeout)
        outcomes: list[Outcome] = []
        for chunk in shared.chunks(bodies):
            outcomes += self._connected().publish_many(queue, chunk, **options)
        return shared.receipts(outcomes, return_exceptions)

    # --- clients ---------------------------------------------------------------------------------------------------

    def send(
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
        """Send a message to a client; see `mqcore.client.Client.send`."""
        self._connected().send(
            target,
            bodies.encode(body),
            content_type=content_type,
            message_id=id,
            headers=shared.pairs(headers),
            high_priority=high_priority,
            only_first=one,
            confirm=confirm,
            timeout=shared.optional_seconds(timeout),
        )

    @overload
    def request(
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
    def request(
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
    def request(
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
        """Ask a client and return its response; see `mqcore.client.Client.request`."""
        core = self._connected().request(
            target,
            bodies.encode(body),
            content_type=content_type,
            headers=shared.pairs(headers),
            only_first=one,
            timeout=shared.optional_seconds(timeout),
        )
        return Incoming(core, bytes) if reply is None else Incoming(core, reply).body

    @overload
    def requests(self, *, idle_timeout: Duration | None = ...) -> Requests[bytes]: ...
    @overload
    def requests(self, wanted: type[_T], *, idle_timeout: Duration | None = ...) -> Requests[_T]: ...
    def requests(self, wanted: type[Any] = bytes, *, idle_timeout: Duration | None = None) -> Requests[Any]:
        """Take direct messages to this client, with ``with`` and ``for``."""
        return Requests(self, wanted, shared.optional_seconds(idle_timeout))

    # --- events ----------------------------------------------------------------------------------------------------

    def events(
        self,
        kind: str | Iterable[Subscription],
        channel: str | None = None,
        queue: int | None = None,
        *,
        idle_timeout: Duration | None = None,
    ) -> Events:
        """Hear of events: of one kind, with its channel and queue where it has such a place, or of several."""
        wanted = shared.subscriptions(kind, channel, queue)
        return Events(self, wanted, shared.optional_seconds(idle_timeout))

    def extension(self, name: str, *, idle_timeout: Duration | None = None) -> ExtensionFrames:
        """Take and send frames of a vendor's extension; see `mqcore.client.Client.extension`. Only in MicroMessage2."""
        return ExtensionFrames(self, name, shared.optional_seconds(idle_timeout))

    # --- administration --------------------------------------------------------------------------------------------

    def declare(
        self,
        channel: str,
        id: int,  # noqa: A002 (as in the protocol)
        options: QueueOptions | None = None,
        *,
        tag: str | None = None,
    ) -> bool:
        """Make sure that there is a queue; return whether it was created. One that exists stays as it is."""
        try:
            self.create_queue(shared.address(channel, id), shared.tagged(options, tag))
        except errors.AlreadyExists:
            return False
        return True

    def create_channel(self, channel: str, options: ChannelOptions | None = None) -> None:
        """Create a channel. Raises `AlreadyExists` if there is one."""
        self._connected().create_channel(channel, options or ChannelOptions())

    def remove_channel(self, channel: str) -> None:
        """Remove a channel with its queues and their messages."""
        self._connected().remove_channel(channel)

    def channel_information(self, channel: str) -> ChannelInformation:
        """Describe a channel."""
        return shared.one(ChannelInformation, self._connected().channel_information(channel))

    def channels(self, pattern: str | None = None) -> list[ChannelInformation]:
        """Describe the channels whose name matches: ``*x*`` contains, ``x*`` begins, ``*x`` ends with, else equals."""
        return shared.many(ChannelInformation, self._connected().channels(pattern))

    def channel_consumers(self, channel: str) -> list[ClientInformation]:
        """Describe the clients that have joined a channel."""
        return shared.many(ClientInformation, self._connected().channel_consumers(channel))

    def create_queue(self, queue: str, options: QueueOptions | None = None) -> None:
        """Create a queue, and its channel if that is missing. Raises `AlreadyExists` if there is one."""
        self._connected().create_queue(queue, options or QueueOptions())

    def update_queue(self, queue: str, options: QueueOptions) -> None:
        """Change the options of a queue that are not ``None``."""
        self._connected().update_queue(queue, options)

    def remove_queue(self, queue: str) -> None:
        """Remove a queue with its messages."""
        self._connected().remove_queue(queue)

    def rebind(
        self,
        queue: str,
        events: Iterable[str] | None = None,
        *,
        remove: Iterable[str] = (),
        remove_masks: Iterable[str] = (),
        add: Iterable[str] = (),
    ) -> None:
        """Change what a queue is bound to; see `mqcore.client.Client.rebind`. Only in MQKS."""
        self._connected().rebind(queue, **shared.rebinding(events, remove, remove_masks, add))

    def statistic(self, expression: str) -> int:
        """Ask for a number by an expression; see `mqcore.client.Client.statistic`. Only in MQKS."""
        told: int = self._connected().statistic(expression)
        return told

    def clear_queue(self, queue: str, *, high_priority: bool = True, normal: bool = True) -> None:
        """Remove the stored messages of a queue: those of high priority, the others, or both."""
        self._connected().clear_queue(queue, high_priority, normal)

    def queue_information(self, queue: str) -> QueueInformation:
        """Describe a queue."""
        return shared.one(QueueInformation, self._connected().queue_information(queue))

    def queues(self, channel: str) -> list[QueueInformation]:
        """Describe the queues of a channel."""
        return shared.many(QueueInformation, self._connected().queues(channel))

    def clients(self, pattern: str | None = None) -> list[ClientInformation]:
        """Describe the connected clients, or those whose type matches."""
        return shared.many(ClientInformation, self._connected().clients(pattern))

    def create_router(self, router: str, method: RouteMethod | str = RouteMethod.DISTRIBUTE) -> None:
        """Create a router; fine if there is one of this name and method, else raises `AlreadyExists`."""
        self._connected().create_router(router, RouteMethod(method))

    def remove_router(self, router: str) -> None:
        """Remove a router with its bindings; fine if there is none."""
        self._connected().remove_router(router)

    def routers(self, pattern: str | None = None) -> list[RouterInformation]:
        """Describe the routers, or those whose name matches."""
        return shared.many_routers(self._connected().routers(pattern))

    def bindings(self, router: str) -> list[Binding]:
        """Return the bindings of a router, the highest priority first. Raises `NotFound` for no such router."""
        return shared.many_bindings(self._connected().bindings(router))

    def bind(self, router: str, binding: Binding | str) -> None:
        """Add a binding, or a target, to a router.

        Raises `NotFound` for no such router, `AlreadyExists` for a second binding of one name.
        """
        self._connected().add_binding(router, shared.binding_json(binding))

    def unbind(self, router: str, binding: str) -> None:
        """Remove the binding of this name from a router; fine if there is none."""
        self._connected().remove_binding(router, binding)

    def test_router(self, router: str, body: object = b"", *, headers: Headers = ()) -> RouterTest:
        """Ask where a message would go, and why; nothing is sent, but routers in Python are asked."""
        return shared.router_test(self._connected().test_router(router, bodies.encode(body), shared.pairs(headers)))

    def nodes(self) -> list[NodeInformation]:
        """Describe the nodes of the cluster."""
        return shared.many(NodeInformation, self._connected().nodes())

    @contextmanager
    def join(self, channel: str) -> Iterator[None]:
        """Keep a channel joined for a block, for many pulls from it: each would join and leave for itself."""
        membership = self._connected().join(channel)
        try:
            yield
        finally:
            membership.leave()


def connect(urls: str | Sequence[str] | Broker = DEFAULT_URL, **options: Unpack[_Options]) -> Client:
    """Connect to the broker at `urls`, several of which are tried in turn.

    Keyword arguments are the fields of `mqcore.client.ClientOptions`. Raises `ConnectFailed` if no broker is there,
    `TLSError` or its `CertificateError` if the two do not come to terms on TLS, `AuthFailed` if it does not let the
    client in. From then on the connection is kept: lost ones are made again. A URL may say who
    the client is: ``tmqp://user:password@host``, ``tmqp://token@host``. ``mqks://`` speaks MQKS and ``mm2://``
    MicroMessage2, ``mqkss://`` and ``mm2s://`` over TLS.
    """
    return Client(*shared.reached(urls, ClientOptions(**options)))
