"""The asyncio client: publish, consume, pull, ask, serve, administer, over TMQP; publish and consume over MQKS too.

::

    async with mqcore.connect("tmqp://localhost:2622", name="shop") as mq:
        receipt = await mq.publish("orders/1001", Order(7, "B-2", 1))
        async with mq.queue("orders", 1001).consume(Order, prefetch=50) as messages:
            async for message in messages:
                async with message.process():
                    print(message.body.sku)

The connection lives in threads that need no Python: it answers pings and reconnects while Python is busy. What a
program wants to stand (consumers, event subscriptions) stands again after every reconnect, by itself. What was under
way when a connection was lost raises `ConnectionLost`; nothing is sent twice unless `retry` allows it.

The URL says what is spoken. ``mqks://`` publishes and consumes in the same way; a name to publish to is an *event*
there, and a queue gets what is published to the events that it is bound to, see `Queue.consume`. What a protocol lacks
raises `NotSupported`.

`mqcore.sync` is the same without ``await``.
"""

from __future__ import annotations

import abc
import asyncio
import atexit
import dataclasses
import inspect
import itertools
import logging
import warnings
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, Unpack, overload

import msgspec

from mqcore import _core, bodies, credentials, errors
from mqcore.config import Binding, ChannelOptions, Duration, Interaction, QueueOptions, RouteMethod, seconds
from mqcore.tls import TLSConfig

if TYPE_CHECKING:
    from types import TracebackType
    from typing import TypedDict

    from mqcore.broker import Broker
    from mqcore.micromessage import Extension

    class _Options(TypedDict, total=False):
        id: str | None
        name: str | None
        kind: str | None
        token: str | None
        user: str | None
        password: str | None
        properties: Mapping[str, str]
        tls: TLSConfig | None
        connect_timeout: Duration
        patience: Duration
        request_timeout: Duration
        drain_timeout: Duration
        ping_interval: Duration
        pong_timeout: Duration
        backoff_first: Duration
        backoff_max: Duration
        reconnect_attempts: int | None
        max_outstanding: int
        write_buffer_bytes: int
        read_buffer_bytes: int
        frame_bytes_max: int
        extensions: Sequence[Extension] | None

    class _Terms(TypedDict, total=False):
        events: Iterable[str]
        add_events: Iterable[str]
        delete_when_unused: bool | Duration
        filter: str
        manual_ack: bool


__all__ = [
    "DEFAULT_URL",
    "Batch",
    "ChannelInformation",
    "Client",
    "ClientCounters",
    "ClientInformation",
    "ClientOptions",
    "Consumer",
    "Delivered",
    "Event",
    "Events",
    "ExtensionFrames",
    "Incoming",
    "NodeInformation",
    "Queue",
    "QueueInformation",
    "Receipt",
    "Request",
    "Requests",
    "RouterInformation",
    "RouterStep",
    "RouterTest",
    "State",
    "connect",
]

DEFAULT_URL: Final = "tmqp://127.0.0.1:2622"
"""Where a broker listens if nobody says otherwise."""

PREFETCH: Final = 100
"""Messages of one consumer that a program may hold unsettled, unless it says otherwise."""

REASON_CLOSED: Final = "consumer-closed"
"""The reason with which a consumer that ends hands back what nobody took from it."""

_BURST: Final = 256
_PUBLISH_CHUNK: Final = 8192
_FAILED: Final = 1
_LOG: Final = logging.getLogger("mqcore.client")

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_Raw = TypeVar("_Raw")

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""Header keys and values; as pairs, a key may repeat."""
Copies: TypeAlias = Iterable[str | tuple[str, str | None]]
"""Further queues for a copy: addresses, or pairs of address and message id."""
Order: TypeAlias = Literal["fifo", "lifo"]
Clear: TypeAlias = Literal["all", "high-priority", "normal"]
Outcome: TypeAlias = tuple[Literal["server", "consumer"] | None, float] | errors.MqcoreError
"""What became of one of many messages, as the core says it: who acknowledged after how many seconds, or why not."""
Subscription: TypeAlias = tuple[str, str | None, int | None]
"""An event's name, and its channel and queue where it has such a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Who a client is, how patient it is and how much it may hold. Durations are seconds, timedelta or ``"30s"``."""

    id: str | None = None
    """The id it wants; by default the broker gives one, another on every connection."""
    name: str | None = None
    """A name that several clients may share; reached as ``@name:NAME``."""
    kind: str | None = None
    """What sort of program it is; reached as ``@type:KIND``."""
    token: str | None = dataclasses.field(default=None, repr=False)
    """What authenticates it: a token of the broker's, or whatever its authenticator knows."""
    user: str | None = None
    """A user of the broker's, instead of a token."""
    password: str | None = dataclasses.field(default=None, repr=False)
    """That user's password."""
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Anything else to tell in the handshake."""
    tls: TLSConfig | None = None
    """Whom it trusts and what it proves on ``tmqps://``, unless the URL says it. Default whom the system trusts."""
    connect_timeout: Duration = 5.0
    """How long one attempt to connect may take."""
    patience: Duration = 0.0
    """How long the first connect goes on trying; 0: every address once."""
    request_timeout: Duration = 15.0
    """How long a confirmation or an answer may take, where the call says nothing else."""
    drain_timeout: Duration = 5.0
    """How long closing waits for what is under way."""
    ping_interval: Duration = 30.0
    """A broker from which nothing came for this long is pinged."""
    pong_timeout: Duration = 10.0
    """How long after a ping something has to come."""
    backoff_first: Duration = 0.1
    """The wait before the first attempt to reconnect; doubled each time, shortened at random by up to half."""
    backoff_max: Duration = 15.0
    """The longest such wait."""
    reconnect_attempts: int | None = None
    """Attempts in a row after which the client closes; by default it goes on for ever."""
    max_outstanding: int = 65_536
    """Publishes and requests that wait for an answer; further ones wait."""
    write_buffer_bytes: int = 4 * 1024 * 1024
    """Octets waiting to be written, above which publishing waits."""
    read_buffer_bytes: int = 64 * 1024 * 1024
    """Octets of received messages that nobody has taken, above which the socket is not read."""
    frame_bytes_max: int = 64 * 1024 * 1024
    """Octets of a frame, or of a line of MQKS, sent or received, at most; in MicroMessage2 also of a whole message."""
    extensions: Sequence[Extension] | None = None
    """MicroMessage2: what it offers; default `mqcore.micromessage.DEFAULTS`."""

    def __post_init__(self) -> None:
        for name in (
            "connect_timeout",
            "patience",
            "request_timeout",
            "drain_timeout",
            "ping_interval",
            "pong_timeout",
            "backoff_first",
            "backoff_max",
        ):
            object.__setattr__(self, name, seconds(getattr(self, name)))
        object.__setattr__(self, "properties", list(dict(self.properties).items()))
        object.__setattr__(self, "token", credentials.of(self.token, self.user, self.password))


def without_credentials(urls: Sequence[str], options: ClientOptions) -> tuple[list[str], ClientOptions]:
    """Take ``user:password@`` or ``token@`` out of URLs, into the options.

    Raises `ConfigError` if URLs disagree, or if the options say who it is too.
    """
    found: set[str] = set()
    plain = []
    for url in urls:
        address, said = credentials.split(url)
        plain.append(address)
        if said is not None:
            found.add(said)
    if not found:
        return plain, options
    if len(found) > 1 or options.token is not None:
        raise errors.ConfigError("say once who the client is: the same in every URL, or as token, user and password")
    return plain, dataclasses.replace(options, token=found.pop())


@dataclass(frozen=True, slots=True)
class Receipt:
    """That a message was taken."""

    by: Literal["server", "consumer", "nobody"]
    """Who said so; ``nobody`` was asked if the message was published without confirmation."""
    latency: float
    """Seconds from the call to the acknowledgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where the connection is. What follows a loss is by itself: nobody has to act on it."""

    status: Literal["connecting", "connected", "waiting", "closed"]
    """``waiting``: it was lost, and the next attempt follows."""
    address: str | None = None
    """With whom it stands."""
    client_id: str | None = None
    """What the broker calls this client."""
    cause: str | None = None
    """Why it does not stand."""
    attempt: int | None = None
    """Which attempt in a row."""
    retry_in: float | None = None
    """Seconds from the loss to that attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCounters:
    """What a client has counted since it was made. Nothing is dropped without one of these."""

    connects: int
    """Connections made."""
    unclaimed: int
    """Messages of queues that nobody consumes here, because their channel was joined for another queue."""
    unclaimed_direct: int
    """Direct messages that came while nobody listened for them."""
    stale_settlements: int
    """Acknowledgements not sent because the connection of their message was gone; the broker delivers it again."""
    stale_discarded: int
    """Messages thrown away with their connection before anybody took them; the broker delivers them again."""
    dropped_events: int
    """Events thrown away because nobody took those before them."""
    late_answers: int
    """Answers that nobody waited for any more."""
    refused_unconfirmed: int
    """Messages published without confirmation that the broker refused."""
    late_pulled: int
    """Pulled messages that nobody waited for any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelInformation:
    """A channel as it is now. Options of queues are what its new queues start with."""

    name: str
    queues: tuple[int, ...] = ()
    """Ids of its queues."""
    allow_multiple_queues: bool = True
    allowed_queues: tuple[int, ...] | None = None
    """Which queue ids it may have; ``None``: all."""
    only_first_acquirer: bool = False
    request_acknowledge: bool = False
    acknowledge_timeout: float = 0.0
    """Seconds."""
    message_timeout: float = 0.0
    """Seconds; 0: for ever."""
    use_message_id: bool = True
    wait_for_acknowledge: bool = False
    hide_client_names: bool = False
    active_clients: int = 0
    """Clients joined."""
    client_limit: int = 0
    """0: no limit."""
    queue_limit: int = 0
    """0: no limit."""
    destroy_when_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInformation:
    """A queue as it is now: what is in it, its options, and what it has counted."""

    channel: str
    id: int
    tag_name: str | None = None
    """A word for people and for routers."""
    status: str = ""
    """``broadcast``, ``push``, ``roundrobin``, ``pull``, ``cache``, ``paused`` or ``stopped``."""
    priority_messages: int = 0
    """Stored messages of high priority."""
    messages: int = 0
    """The other stored messages."""
    only_first_acquirer: bool = False
    request_acknowledge: bool = False
    acknowledge_timeout: float = 0.0
    """Seconds."""
    message_timeout: float = 0.0
    """Seconds; 0: for ever."""
    use_message_id: bool = True
    wait_for_acknowledge: bool = False
    hide_client_names: bool = False
    received_messages: int = 0
    sent_messages: int = 0
    """Messages handed out, each once however many consumers got it."""
    deliveries: int = 0
    """Messages handed out, once a consumer."""
    acks: int = 0
    negative_acks: int = 0
    """Refusals, and acknowledgements that did not come."""
    timeout_messages: int = 0
    """Messages that waited too long."""
    saved_messages: int = 0
    removed_messages: int = 0
    errors: int = 0
    """Failures of its delivery handler."""
    last_message_received: float | None = None
    """Unix time; ``None``: never."""
    last_message_sent: float | None = None
    """Unix time; ``None``: never."""
    message_limit: int = 0
    """0: no limit."""
    message_size_limit: int = 0
    """Octets; 0: no limit."""
    publish_limit: str | None = None
    """How much may be published to it, ``"100/s"``; ``None``: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInformation:
    """A client that is connected, or has joined a channel."""

    id: str
    name: str | None = None
    kind: str | None = None
    """What sort of program it is."""
    online: float = 0.0
    """Seconds since it connected, or joined."""
    is_authenticated: bool = False
    """Whether an authenticator let it in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterInformation:
    """A router."""

    name: str
    method: RouteMethod
    """Which of its bindings get a message."""
    enabled: bool
    """Whether it takes messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStep:
    """What a router would do at one binding."""

    binding: str | None
    """The binding; ``None`` for a target that a router in Python named."""
    target: str
    """Where it leads."""
    takes: bool
    """Whether it would take the message."""
    why: str
    """Why, or why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterTest:
    """Where a message would go."""

    method: RouteMethod
    """How the router chooses."""
    taken: bool
    """Whether anybody would take it."""
    refusal: str | None
    """Why nobody would, if so."""
    steps: tuple[RouterStep, ...]
    """What would be tried, in this order."""
    skipped: tuple[str, ...]
    """Bindings that would not be reached, because another one takes the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInformation:
    """A node of the cluster."""

    id: str
    name: str = ""
    host: str = ""
    slave: bool = False
    """Whether it dialled this one."""
    connected: bool = False
    lifetime: float = 0.0
    """Seconds since the link stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in the broker. Members that do not belong to its kind are ``None``."""

    kind: str
    """``ClientConnected``, ``QueueCreated``, ``MessageProduced``, ..."""
    channel: str | None = None
    queue: int | None = None
    client_id: str | None = None
    client_name: str | None = None
    client_kind: str | None = None
    active_clients: int | None = None
    client_limit: int | None = None
    tag: str | None = None
    status: str | None = None
    priority_messages: int | None = None
    messages: int | None = None
    message_id: str | None = None
    saved: bool | None = None
    producer_id: str | None = None


class Incoming(Generic[_T_co]):
    """A received message. Its body is decoded when it is looked at."""

    __slots__ = ("_body", "_core", "_wanted")

    def __init__(self, core: _core.Received, wanted: type[_T_co]) -> None:
        self._core = core
        self._wanted = wanted
        self._body: _T_co | _Unread = _UNREAD

    @property
    def id(self) -> str:
        """Its id."""
        return self._core.id

    @property
    def source(self) -> str | None:
        """The id of the client that sent it; ``None`` if its queue hides names."""
        return self._core.source

    @property
    def target(self) -> str:
        """The channel, or whom a direct message was for."""
        return self._core.target

    @property
    def content_type(self) -> int:
        """The queue's id, the status of a response, or what sender and receiver of a direct message agreed on."""
        return self._core.content_type

    @property
    def headers(self) -> _core.Headers:
        """Its headers; keys compare without regard to case."""
        return self._core.headers

    @property
    def high_priority(self) -> bool:
        """Whether it goes before all messages that are not."""
        return self._core.high_priority

    @property
    def raw(self) -> bytes:
        """The octets of its body."""
        return self._core.body

    @property
    def body(self) -> _T_co:
        """Its body, as the type that was asked for. Raises `BodyError` if it is not that."""
        if isinstance(self._body, _Unread):
            self._body = bodies.decode(self._core.body, self._wanted)
        return self._body

    def __len__(self) -> int:
        """Octets of its body."""
        return len(self._core)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} id={self.id!r} source={self.source!r} body={len(self)} bytes>"


class _Unread:
    """Marks a body that nobody has looked at."""


_UNREAD: Final = _Unread()


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

    async def ack(self) -> bool:
        """Acknowledge it; return whether that was sent.

        False is no error: the queue does not ask for it, it was settled before, or the connection over which the
        message came is gone and the broker delivers it again.
        """
        return self._core.ack() == "sent"

    async def nack(self, reason: str = "none") -> bool:
        """Refuse it; its queue's delivery handler decides what becomes of it. Return whether that was sent."""
        return self._core.nack(reason) == "sent"

    @asynccontextmanager
    async def process(self) -> AsyncIterator[Self]:
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

    async def respond(self, body: object = b"", *, status: int = 0) -> None:
        """Answer it. Status 0 is success; from 1000 on they belong to applications."""
        await self._client.respond(self._core, status, bodies.encode(body))

    async def ack(self) -> None:
        """Acknowledge it to its sender."""
        await self._client.acknowledge_direct(self._core)

    async def nack(self, reason: str = "none") -> None:
        """Refuse it to its sender."""
        await self._client.acknowledge_direct(self._core, reason)


class Batch(Generic[_T]):
    """What a pull brought. Iterate over it with ``for`` or ``async for``."""

    def __init__(self, messages: list[Delivered[_T]], remaining: int | None, complete: bool) -> None:
        self._messages = messages
        self.remaining = remaining
        """Messages left in the queue, if the broker said so."""
        self.complete = complete
        """Whether this is all that was there; if not, the time was over or the connection was lost."""

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> Delivered[_T]:
        return self._messages[index]

    def __iter__(self) -> Iterator[Delivered[_T]]:
        return iter(self._messages)

    async def __aiter__(self) -> AsyncIterator[Delivered[_T]]:
        for message in self._messages:
            yield message


class Consumer(Generic[_T]):
    """Messages of a queue, as they come: ``async with`` begins and ends it, ``async for`` takes them.

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
        self._entered = False
        self._taken: deque[_core.Received] = deque()

    async def __aenter__(self) -> Self:
        self._entered = True
        self._core = await self._client._connected().consume(self._address, self._prefetch, **self._terms)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        core, self._core = self._core, None
        hand_back(core, self._taken)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivered[_T]:
        """Wait for a message; end with the consumer, the client, or after the idle timeout."""
        if not self._taken:
            self._taken.extend(await self._take(min(self._prefetch, _BURST)))
        if not self._taken:
            raise StopAsyncIteration
        return Delivered(self._taken.popleft(), self._wanted)

    async def batches(self, size: int = _BURST) -> AsyncIterator[list[Delivered[_T]]]:
        """Yield lists of up to `size` messages: what is there, at least one."""
        while batch := await self._take(size):
            yield [Delivered(core, self._wanted) for core in batch]

    async def _take(self, most: int) -> list[_core.Received]:
        if not self._entered:
            raise errors.InvalidArgument("the consumer is not open; enter it with 'async with'")
        while (core := self._core) is not None:
            closed = core.is_closed
            if batch := core.take(most):
                return batch
            if closed or not await core.wait(self._idle_timeout):
                break
        return []


def hand_back(core: _core.Consumer | None, taken: deque[_core.Received]) -> None:
    """Close a consumer, and refuse what was taken from it and not given to the program."""
    if core is not None:
        core.close()
    for message in taken:
        message.nack(REASON_CLOSED)
    taken.clear()


class _Source(Protocol[_Raw]):
    """Where the core keeps what came, until it is taken."""

    def take(self, count: int, /) -> list[_Raw]: ...
    def wait(self, timeout: float | None = None, /) -> Any: ...
    @property
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...


class _Stream(abc.ABC, Generic[_Raw, _T_co]):
    """What comes to a client by itself: ``async with`` begins to take it, ``async for`` takes it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._source: _Source[_Raw] | None = None
        self._taken: deque[_Raw] = deque()

    @abc.abstractmethod
    async def _open(self) -> _Source[_Raw]:
        """Begin."""

    @abc.abstractmethod
    def _read(self, raw: _Raw) -> _T_co:
        """Make of what came what the program gets."""

    async def __aenter__(self) -> Self:
        self._source = await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T_co:
        """Wait for the next one; end with the stream or the client."""
        while not self._taken and (source := self._source) is not None:
            closed = source.is_closed
            self._taken.extend(source.take(_BURST))
            if self._taken or closed:
                break
            await source.wait()
        if not self._taken:
            raise StopAsyncIteration
        return self._read(self._taken.popleft())


class Requests(_Stream["_core.Received", "Request[_T]"], Generic[_T]):
    """Direct messages to this client, as they come. There is one such stream a client: the newest gets them."""

    def __init__(self, client: Client, wanted: type[_T]) -> None:
        super().__init__(client)
        self._wanted = wanted

    async def _open(self) -> _core.Incoming:
        return self._client._connected().incoming()

    def _read(self, raw: _core.Received) -> Request[_T]:
        return Request(raw, self._wanted, self._client._connected())


class Events(_Stream[dict[str, Any], Event]):
    """Events of the broker, as they come: ``async with`` subscribes, ``async for`` takes them."""

    def __init__(self, client: Client, subscriptions: list[Subscription]) -> None:
        super().__init__(client)
        self._subscriptions = subscriptions

    async def _open(self) -> _core.EventStream:
        stream: _core.EventStream = await self._client._connected().subscribe_events(self._subscriptions)
        return stream

    def _read(self, raw: dict[str, Any]) -> Event:
        return Event(**raw)


class ExtensionFrames(_Stream[bytes, bytes]):
    """Frames of a vendor's extension of MicroMessage2: ``async with`` begins to take them, ``async for`` takes them."""

    def __init__(self, client: Client, name: str) -> None:
        super().__init__(client)
        self._name = name

    async def send(self, payload: bytes) -> None:
        """Send one; return once it is on its way."""
        await self._client._connected().send_extension(self._name, payload)

    async def serve(self, handler: Callable[[bytes], bytes | Awaitable[bytes | None] | None]) -> None:
        """Give each frame that comes to `handler`, one after the other, and send back what it returns, if that is not
        ``None``, until the client closes or this is cancelled. A handler that raises ends it.
        """
        async with self as frames:
            async for payload in frames:
                answer = handler(payload)
                if inspect.isawaitable(answer):
                    answer = await answer
                if answer is not None:
                    await self.send(answer)

    async def _open(self) -> _core.ExtensionFrames:
        return self._client._connected().extension(self._name)

    def _read(self, raw: bytes) -> bytes:
        return raw


class Queue:
    """One queue, as this client reaches it."""

    def __init__(self, client: Client, address: str) -> None:
        self._client = client
        self.address = address
        """``orders/1001``."""

    async def publish(self, body: object, **options: Any) -> Receipt:
        """Publish to it; see `Client.publish`."""
        return await self._client.publish(self.address, body, **options)

    async def publish_many(self, bodies: Iterable[object], **options: Any) -> list[Receipt]:
        """Publish many messages to it; see `Client.publish_many`."""
        published: list[Receipt] = await self._client.publish_many(self.address, bodies, **options)
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
        """Become a consumer, with ``async with``, of messages whose bodies are `wanted`.

        The program holds up to `prefetch` messages unsettled, if the queue asks for acknowledgements; further ones
        wait in the client. The stream ends when nothing came for `idle_timeout`.

        In TMQP one joins channels and not queues: messages of the channel's other queues arrive too, and are counted
        as unclaimed unless this client consumes them. It has no `terms`.

        In MQKS, `terms` say what the queue is bound to: `events` instead of all it was (none: it keeps that),
        `add_events` in addition; without either the event of its own name in addition. ``delete_when_unused=True``, or
        a duration, deletes the queue when, or so long after, nobody consumes it any more. ``manual_ack=False`` lets the
        broker forget messages as soon as they are sent. After a reconnect the queue is bound to what the broker said
        last that it is. The headers ``Topic`` and ``Retry`` of a message name its event, and count how often it came
        back.

        In MicroMessage2 a destination is a queue, or ``topic/NAME``, and `filter` says which messages of a topic are
        wanted by their properties: ``price>N10;region=Teu``. ``manual_ack=False`` acknowledges messages as they come.
        Without ``pub-sub`` agreed on it raises `NotSupported`.
        """
        idle = optional_seconds(idle_timeout)
        return Consumer(self._client, self.address, wanted, prefetch, idle, consume_terms(terms))

    @overload
    async def pull(
        self, count: int = ..., *, order: Order = ..., clear: Clear | None = ..., timeout: Duration | None = ...
    ) -> Batch[bytes]: ...
    @overload
    async def pull(
        self,
        count: int,
        wanted: type[_T],
        *,
        order: Order = ...,
        clear: Clear | None = ...,
        timeout: Duration | None = ...,
    ) -> Batch[_T]: ...
    async def pull(
        self,
        count: int = 1,
        wanted: type[Any] = bytes,
        *,
        order: Order = "fifo",
        clear: Clear | None = None,
        timeout: Duration | None = None,
    ) -> Batch[Any]:
        """Take up to `count` messages out of a pull queue, oldest first unless `order` is ``lifo``.

        `clear` names what to remove from the queue afterwards. An empty queue answers with an empty batch.
        """
        answer = await self._client._connected().pull(self.address, count, **pull_options(order, clear, timeout))
        messages, remaining, complete = answer
        return Batch([Delivered(core, wanted) for core in messages], total(remaining), complete)

    @overload
    async def get_cached(self, *, timeout: Duration | None = ...) -> Incoming[bytes] | None: ...
    @overload
    async def get_cached(self, wanted: type[_T], *, timeout: Duration | None = ...) -> Incoming[_T] | None: ...
    async def get_cached(self, wanted: type[Any] = bytes, *, timeout: Duration | None = None) -> Incoming[Any] | None:
        """Return the message of a cache queue, which stays there; ``None`` while there is none."""
        core = await self._client._connected().get_cached(self.address, timeout=optional_seconds(timeout))
        return None if core is None else Incoming(core, wanted)

    async def information(self) -> QueueInformation:
        """Describe it."""
        return await self._client.queue_information(self.address)

    def __repr__(self) -> str:
        return f"<Queue {self.address}>"


class Client:
    """A client of a broker. Made by `connect`; ``await`` it, or enter it with ``async with``, to connect.

    Every call raises `ConnectionLost` if there is no connection within its timeout, and `RequestTimeout` if no answer
    came. Calls of administration raise `Unauthorized` if this client may not, `NotFound` for what is not there.
    """

    def __init__(self, target: list[str] | _core.Broker, options: ClientOptions) -> None:
        self._target = target
        self._options = options
        self._core: _core.Client | None = None

    # --- the connection --------------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        if self._core is None:
            self._core = await _core.connect(self._target, self._options, False)
            OPEN.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, drain: Duration | None = None) -> None:
        """Close: take nothing new, let what is under way finish for `drain` (default: the option `drain_timeout`).

        Consumers get what is there and then end. Closing twice is fine.
        """
        if self._core is not None:
            OPEN.discard(self)
            await self._core.close(optional_seconds(drain))

    def _abort(self) -> None:
        if self._core is not None:
            OPEN.discard(self)
            self._core.abort()

    def _connected(self) -> _core.Client:
        if self._core is None:
            raise errors.InvalidArgument("the client is not connected; await it, or enter it with 'async with'")
        return self._core

    def __del__(self) -> None:
        warn_if_open(self)

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
        """The extensions that are in force, with their properties; on the last connection, if none stands. Only in
        MicroMessage2.
        """
        return {name: dict(properties) for name, properties in self._connected().extensions}

    @property
    def state(self) -> State:
        """Where the connection is now."""
        return State(**self._connected().state)

    async def states(self) -> AsyncIterator[State]:
        """Yield the state now and every one that follows, until the client is closed; a slow reader sees the latest."""
        states = self._connected().states()
        while True:
            if (state := states.take()) is None:
                await states.wait()
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
        return Queue(self, address(channel, id))

    async def publish(
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
        """Publish a message and wait until it was taken.

        Raises `NotFound` for no such queue, `Nacked` if it was refused, `ConfirmTimeout` if nobody spoke in time.
        With ``confirm=False`` nobody is asked: it returns once the message is on its way, and refusals only count.
        ``retry=True``, which needs an `id`, publishes again when the connection was lost before the acknowledgement.

        In MQKS `queue` is an event, and the broker takes the message whether or not a queue is bound to that. Headers,
        priorities and copies raise `NotSupported` there; an empty body and one with line ends, TABs or white space at
        its end, which a line cannot say, raise `InvalidArgument`.

        In MicroMessage2 it is a destination: a queue, or ``topic/NAME``. Headers are properties of the message,
        `mqcore.micromessage.headers` gives them types. The receipt is the broker's acknowledgement; ``confirm=True``
        raises `NotSupported` where none was agreed on, ids, priorities and copies raise it in any case.
        """
        by, latency = await self._connected().publish(
            queue,
            bodies.encode(body),
            message_id=id,
            headers=pairs(headers),
            high_priority=high_priority,
            confirm=confirm,
            cc=copies(cc),
            timeout=optional_seconds(timeout),
            retry=retry,
        )
        return Receipt(by or "nobody", latency)

    @overload
    async def publish_many(
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
    async def publish_many(
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
    async def publish_many(
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
        """Publish many messages, in their order, as few writes as possible; return their receipts in that order.

        If some fail, the others are published all the same, and the first failure is raised with a note how many there
        were; with `return_exceptions`, exceptions stand among the receipts instead.
        """
        options = publish_options(headers, high_priority, confirm, cc, timeout)
        outcomes: list[Outcome] = []
        for chunk in chunks(bodies):
            outcomes += await self._connected().publish_many(queue, chunk, **options)
        return receipts(outcomes, return_exceptions)

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
        """Send a message to a client: its id, ``@name:NAME`` or ``@type:KIND``; of those only the oldest with `one`.
        ``@router:NAME`` sends it to a router.

        With `confirm`, wait until the receiver acknowledges.
        """
        await self._connected().send(
            target,
            bodies.encode(body),
            content_type=content_type,
            message_id=id,
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
        """Ask a client and return its response: the body as `reply`, or without it the message.

        If several clients match, only the oldest is asked unless `one` is false; the first response counts.
        """
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
    def requests(self) -> Requests[bytes]: ...
    @overload
    def requests(self, wanted: type[_T]) -> Requests[_T]: ...
    def requests(self, wanted: type[Any] = bytes) -> Requests[Any]:
        """Take direct messages to this client, with ``async with`` and ``async for``."""
        return Requests(self, wanted)

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
        """Answer direct messages with what `handler` returns for each, until the client closes or this is cancelled.

        Plain functions run in worker threads; up to `concurrency` messages are worked on at once. A handler that raises
        is logged and answered with status 1.
        """
        gate = asyncio.Semaphore(concurrency)
        async with self.requests(wanted) as requests, asyncio.TaskGroup() as tasks:
            async for request in requests:
                await gate.acquire()
                task = tasks.create_task(_answer(handler, request))
                task.add_done_callback(lambda _: gate.release())

    # --- events ----------------------------------------------------------------------------------------------------

    def events(
        self, kind: str | Iterable[Subscription], channel: str | None = None, queue: int | None = None
    ) -> Events:
        """Hear of events: of one kind, with its channel and queue where it has such a place, or of several."""
        return Events(self, subscriptions(kind, channel, queue))

    def extension(self, name: str) -> ExtensionFrames:
        """Take and send frames of a vendor's extension, with ``async with`` and ``async for``. Raises `NotSupported`
        unless both sides agreed on it, in MicroMessage2.
        """
        return ExtensionFrames(self, name)

    # --- administration --------------------------------------------------------------------------------------------

    async def declare(
        self,
        channel: str,
        id: int,  # noqa: A002 (as in the protocol)
        options: QueueOptions | None = None,
        *,
        tag: str | None = None,
    ) -> bool:
        """Make sure that there is a queue; return whether it was created. One that exists stays as it is."""
        try:
            await self.create_queue(address(channel, id), tagged(options, tag))
        except errors.AlreadyExists:
            return False
        return True

    async def create_channel(self, channel: str, options: ChannelOptions | None = None) -> None:
        """Create a channel. Raises `AlreadyExists` if there is one."""
        await self._connected().create_channel(channel, options or ChannelOptions())

    async def remove_channel(self, channel: str) -> None:
        """Remove a channel with its queues and their messages."""
        await self._connected().remove_channel(channel)

    async def channel_information(self, channel: str) -> ChannelInformation:
        """Describe a channel."""
        return one(ChannelInformation, await self._connected().channel_information(channel))

    async def channels(self, pattern: str | None = None) -> list[ChannelInformation]:
        """Describe the channels whose name matches: ``*x*`` contains, ``x*`` begins, ``*x`` ends with, else equals."""
        return many(ChannelInformation, await self._connected().channels(pattern))

    async def channel_consumers(self, channel: str) -> list[ClientInformation]:
        """Describe the clients that have joined a channel."""
        return many(ClientInformation, await self._connected().channel_consumers(channel))

    async def create_queue(self, queue: str, options: QueueOptions | None = None) -> None:
        """Create a queue, and its channel if that is missing. Raises `AlreadyExists` if there is one."""
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
        events: Iterable[str] | None = None,
        *,
        remove: Iterable[str] = (),
        remove_masks: Iterable[str] = (),
        add: Iterable[str] = (),
    ) -> None:
        """Change what a queue is bound to, in this order: `events` instead of all it was, without `remove` and what
        matches `remove_masks` (``user.*.connected``), and `add` in addition. Only in MQKS.
        """
        await self._connected().rebind(queue, **rebinding(events, remove, remove_masks, add))

    async def statistic(self, expression: str) -> int:
        """Ask for a number by one of the expressions that the broker knows, ``len(state.queues)`` for example. Only in
        MQKS; docs/protocols/mqks.md lists them.
        """
        told: int = await self._connected().statistic(expression)
        return told

    async def clear_queue(self, queue: str, *, high_priority: bool = True, normal: bool = True) -> None:
        """Remove the stored messages of a queue: those of high priority, the others, or both."""
        await self._connected().clear_queue(queue, high_priority, normal)

    async def queue_information(self, queue: str) -> QueueInformation:
        """Describe a queue."""
        return one(QueueInformation, await self._connected().queue_information(queue))

    async def queues(self, channel: str) -> list[QueueInformation]:
        """Describe the queues of a channel."""
        return many(QueueInformation, await self._connected().queues(channel))

    async def clients(self, pattern: str | None = None) -> list[ClientInformation]:
        """Describe the connected clients, or those whose type matches."""
        return many(ClientInformation, await self._connected().clients(pattern))

    async def create_router(self, router: str, method: RouteMethod | str = RouteMethod.DISTRIBUTE) -> None:
        """Create a router; fine if there is one of this name and method, else raises `AlreadyExists`."""
        await self._connected().create_router(router, RouteMethod(method))

    async def remove_router(self, router: str) -> None:
        """Remove a router with its bindings; fine if there is none."""
        await self._connected().remove_router(router)

    async def routers(self, pattern: str | None = None) -> list[RouterInformation]:
        """Describe the routers, or those whose name matches."""
        return many_routers(await self._connected().routers(pattern))

    async def bindings(self, router: str) -> list[Binding]:
        """Return the bindings of a router, the highest priority first. Raises `NotFound` for no such router."""
        return many_bindings(await self._connected().bindings(router))

    async def bind(self, router: str, binding: Binding | str) -> None:
        """Add a binding, or a target, to a router.

        Raises `NotFound` for no such router, `AlreadyExists` for a second binding of one name.
        """
        await self._connected().add_binding(router, binding_json(binding))

    async def unbind(self, router: str, binding: str) -> None:
        """Remove the binding of this name from a router; fine if there is none."""
        await self._connected().remove_binding(router, binding)

    async def test_router(self, router: str, body: object = b"", *, headers: Headers = ()) -> RouterTest:
        """Ask where a message would go, and why; nothing is sent, but routers in Python are asked."""
        return router_test(await self._connected().test_router(router, bodies.encode(body), pairs(headers)))

    async def nodes(self) -> list[NodeInformation]:
        """Describe the nodes of the cluster."""
        return many(NodeInformation, await self._connected().nodes())

    @asynccontextmanager
    async def join(self, channel: str) -> AsyncIterator[None]:
        """Keep a channel joined for a block, for many pulls from it: each would join and leave for itself."""
        membership = await self._connected().join(channel)
        try:
            yield
        finally:
            membership.leave()


def connect(urls: str | Sequence[str] | Broker = DEFAULT_URL, **options: Unpack[_Options]) -> Client:
    """Return a client of the broker at `urls`, several of which are tried in turn: ``await`` or ``async with`` it.

    An embedded `mqcore.Broker` in the place of URLs is reached without a socket.

    Keyword arguments are the fields of `ClientOptions`. Raises `ConnectFailed` if no broker is there, `TLSError` or its
    `CertificateError` if the two do not come to terms on TLS, `AuthFailed` if it does not let the client in. From then
    on the connection is kept: lost ones are made again. A URL may say who
    the client is: ``tmqp://user:password@host``, ``tmqp://token@host``. ``mqks://`` speaks MQKS and ``mm2://``
    MicroMessage2, ``mqkss://`` and ``mm2s://`` over TLS; all URLs of a client are of one protocol.
    """
    return Client(*reached(urls, ClientOptions(**options)))


# --- shared with mqcore.sync ---------------------------------------------------------------------------------------

OPEN: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Clients that a program has not closed."""


@atexit.register
def _abort_all() -> None:
    """Close what a program left open, and join the thread that wakes event loops: nothing may meet an ended Python."""
    for client in tuple(OPEN):
        client._abort()
    _core.end_delivering()


def warn_if_open(client: Any) -> None:
    """Say that a client was never closed, and close it."""
    if client in OPEN:
        warnings.warn(f"{client!r} was never closed", ResourceWarning, stacklevel=3, source=client)
        client._abort()


def reached(
    urls: str | Sequence[str] | Broker, options: ClientOptions
) -> tuple[list[str] | _core.Broker, ClientOptions]:
    """Return what the core connects to, a list of URLs or an embedded broker, and with which options."""
    if isinstance(urls, str):
        return without_credentials([urls], options)
    from mqcore.broker import Broker

    return (urls._core, options) if isinstance(urls, Broker) else without_credentials(urls, options)


def address(channel: str, id: int | None) -> str:  # noqa: A002 (as in the protocol)
    """Return a queue's address."""
    return channel if id is None else f"{channel}/{id}"


def optional_seconds(duration: Duration | None) -> float | None:
    """Return seconds, or nothing."""
    return None if duration is None else seconds(duration)


def pairs(headers: Headers) -> list[tuple[str, str]]:
    """Return headers as pairs."""
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers)


def copies(cc: Copies) -> list[tuple[str, str | None]]:
    """Return further queues with their message ids."""
    return [(copy, None) if isinstance(copy, str) else copy for copy in cc]


def publish_options(
    headers: Headers, high_priority: bool, confirm: bool, cc: Copies, timeout: Duration | None
) -> dict[str, Any]:
    """Return the arguments of the core that many messages share."""
    return {
        "headers": pairs(headers),
        "high_priority": high_priority,
        "confirm": confirm,
        "cc": copies(cc),
        "timeout": optional_seconds(timeout),
    }


def chunks(values: Iterable[object]) -> Iterator[list[bytes]]:
    """Yield encoded bodies in lists that are short enough to be held."""
    remaining = iter(values)
    while chunk := [bodies.encode(value) for value in itertools.islice(remaining, _PUBLISH_CHUNK)]:
        yield chunk


def receipts(outcomes: list[Outcome], return_exceptions: bool) -> list[Receipt] | list[Receipt | errors.MqcoreError]:
    """Return outcomes as receipts; raise the first failure unless they may stand among them."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, errors.MqcoreError)]
    if failures and not return_exceptions:
        failures[0].add_note(f"{len(failures)} of {len(outcomes)} messages were not published; this is the first")
        raise failures[0]
    return [
        outcome if isinstance(outcome, errors.MqcoreError) else Receipt(outcome[0] or "nobody", outcome[1])
        for outcome in outcomes
    ]


def consume_terms(terms: _Terms) -> dict[str, Any]:
    """Return the core's arguments for what a consumer agrees on with the broker."""
    unused = terms.get("delete_when_unused", False)
    return {
        "events": list(terms["events"]) if "events" in terms else None,
        "add_events": list(terms.get("add_events", ())),
        "delete_unused": (0.0 if unused else None) if isinstance(unused, bool) else seconds(unused),
        "filter": terms.get("filter"),
        "manual_ack": terms.get("manual_ack", True),
    }


def rebinding(
    events: Iterable[str] | None, remove: Iterable[str], remove_masks: Iterable[str], add: Iterable[str]
) -> dict[str, Any]:
    """Return the core's arguments of a change of bindings."""
    return {
        "replace": None if events is None else list(events),
        "remove": list(remove),
        "remove_masks": list(remove_masks),
        "add": list(add),
    }


def pull_options(order: Order, clear: Clear | None, timeout: Duration | None) -> dict[str, Any]:
    """Return the core's arguments of a pull."""
    if order not in {"fifo", "lifo"}:
        raise errors.InvalidArgument(f"the order of a pull is 'fifo' or 'lifo', not {order!r}")
    if clear not in {None, "all", "high-priority", "normal"}:
        raise errors.InvalidArgument(f"a pull clears 'all', 'high-priority' or 'normal', not {clear!r}")
    return {
        "lifo": order == "lifo",
        "clear_high_priority": clear in {"all", "high-priority"},
        "clear_normal": clear in {"all", "normal"},
        "timeout": optional_seconds(timeout),
    }


def total(remaining: tuple[int, int] | None) -> int | None:
    """Return messages of both priorities together."""
    return None if remaining is None else sum(remaining)


def subscriptions(kind: str | Iterable[Subscription], channel: str | None, queue: int | None) -> list[Subscription]:
    """Return one event with its place, or several."""
    return [(kind, channel, queue)] if isinstance(kind, str) else list(kind)


def tagged(options: QueueOptions | None, tag: str | None) -> QueueOptions:
    """Return options with a tag."""
    options = options or QueueOptions()
    return options if tag is None else dataclasses.replace(options, tag=tag)


_I = TypeVar("_I", ChannelInformation, QueueInformation, ClientInformation, NodeInformation)

# Members that are milliseconds on the wire, and are seconds here; and those that are instants, 0 being never.
_MILLISECONDS: Final = frozenset({"acknowledge_timeout", "message_timeout", "online", "lifetime"})
_INSTANTS: Final = frozenset({"last_message_received", "last_message_sent"})


def one(kind: type[_I], octets: bytes) -> _I:
    """Read one thing that the broker described."""
    return _information(kind, msgspec.json.decode(octets))


def many(kind: type[_I], octets: bytes) -> list[_I]:
    """Read a list of things that the broker described."""
    return [_information(kind, members) for members in msgspec.json.decode(octets)]


_METHODS: Final = (RouteMethod.DISTRIBUTE, RouteMethod.ROUND_ROBIN, RouteMethod.ONLY_FIRST)
_INTERACTIONS: Final = (Interaction.NONE, Interaction.ACKNOWLEDGE, Interaction.RESPONSE)


def many_routers(octets: bytes) -> list[RouterInformation]:
    """Read a list of routers."""
    return [
        RouterInformation(name=each["Name"], method=_METHODS[each["Method"]], enabled=each["IsEnabled"])
        for each in msgspec.json.decode(octets)
    ]


def many_bindings(octets: bytes) -> list[Binding]:
    """Read a list of bindings."""
    return [
        Binding(
            each["Address"],
            each["Name"],
            priority=each["Priority"],
            interaction=_INTERACTIONS[each["Interaction"]],
            content_type=each["ContentType"],
            method=_METHODS[each["Method"]],
        )
        for each in msgspec.json.decode(octets)
    ]


def binding_json(binding: Binding | str) -> bytes:
    """Write a binding as the protocol has it."""
    if isinstance(binding, str):
        binding = Binding(binding)
    members: dict[str, object] = {
        "Name": binding.name,
        "Target": binding.target,
        "Priority": binding.priority,
        "Interaction": binding.interaction.value,
        "Method": binding.method.value,
    }
    if binding.content_type is not None:
        members["ContentType"] = binding.content_type
    return msgspec.json.encode(members)


def router_test(octets: bytes) -> RouterTest:
    """Read where a message would go."""
    told = msgspec.json.decode(octets)
    steps = (
        RouterStep(binding=each["Binding"], target=each["Target"], takes=each["Takes"], why=each["Why"])
        for each in told["Steps"]
    )
    return RouterTest(
        method=RouteMethod(told["Method"]),
        taken=told["Taken"],
        refusal=told["Refusal"],
        steps=tuple(steps),
        skipped=tuple(told["Skipped"]),
    )


def _information(kind: type[_I], members: dict[str, Any]) -> _I:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        name = "Type" if field.name == "kind" else field.name.title().replace("_", "")
        if name not in members:
            continue
        value = members[name]
        if field.name in _MILLISECONDS:
            value /= 1000
        elif field.name in _INSTANTS:
            value = value / 1000 if value else None
        elif isinstance(value, list):
            value = tuple(value)
        values[field.name] = value
    return kind(**values)


async def _answer(handler: Callable[[Request[Any]], object | Awaitable[object]], request: Request[Any]) -> None:
    try:
        if inspect.iscoroutinefunction(handler):
            result = await handler(request)
        else:
            result = await asyncio.to_thread(handler, request)
    except Exception as error:
        _LOG.exception("%s failed for %r", getattr(handler, "__qualname__", handler), request)
        if request.wants_response:
            await _unless_lost(request.respond(str(error), status=_FAILED))
        elif request.wants_acknowledge:
            await _unless_lost(request.nack(type(error).__name__))
        return
    if request.wants_response:
        await _unless_lost(request.respond(b"" if result is None else result))
    elif request.wants_acknowledge:
        await _unless_lost(request.ack())


async def _unless_lost(answer: Awaitable[None]) -> None:
    """Answer, unless the connection is gone by now: then nobody waits for it any more."""
    try:
        await answer
    except errors.TransportError as error:
        _LOG.warning("a request was not answered: %s", error)
