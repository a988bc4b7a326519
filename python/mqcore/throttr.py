"""A client of Throttr: counters and buffers that expire, channels, and numbers about all of it.

::

    from mqcore.throttr import Client

    async with Client("throttr://127.0.0.1:9000?value=uint64") as client:
        await client.insert("user:7", quota=100, ttl=60)
        if await client.decrease("user:7", 1):
            ...
        async with client.pipeline() as pipe:            # one write, one trip
            pipe.insert("user:8", quota=100, ttl=60)
            pipe.decrease("user:8", 1)
        print(pipe.results)

`SyncClient` is the same without ``await``. What nothing on the wire announces stands in the URL, as in that of the
listener: ``value`` (``uint8``, ``uint16``, ``uint32``, ``uint64``; default ``uint16``), ``protocol`` (``7.1``, ``7.3``)
and ``metrics``. ``throttrs://`` is TLS, ``throttr+unix:///path`` a Unix socket.

A client connects when it is first used, and again after a loss. What was under way then raises
`mqcore.errors.ConnectionLost`: nothing is ever sent twice. Subscriptions are made again by themselves.
"""

from __future__ import annotations

import atexit
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from mqcore import _core
from mqcore._core import Verdict
from mqcore.config import Duration, seconds
from mqcore.errors import InvalidArgument, Unacceptable

if TYPE_CHECKING:
    from types import TracebackType

    from mqcore.tls import TLSConfig

__all__ = [
    "Algorithm",
    "Buffer",
    "ChannelInformation",
    "Client",
    "Connection",
    "Counter",
    "Information",
    "Key",
    "Message",
    "Mode",
    "Pipeline",
    "Rule",
    "Subscriber",
    "SyncClient",
    "SyncPipeline",
    "Unit",
    "Uses",
]

_T = TypeVar("_T")
# Clients have a method of the name `list`.
_List = list

_INSERT, _QUERY, _UPDATE, _PURGE, _SET, _GET, _LIST, _INFO, _STAT = range(1, 10)
_STATS, _SUBSCRIBE, _UNSUBSCRIBE, _PUBLISH, _CONNECTIONS, _CONNECTION, _CHANNELS, _CHANNEL, _WHOAMI = range(0x10, 0x19)
_CONSUME, _CONSUME_ALL = 0xC0, 0xC1
_QUOTA, _TTL = 0, 1
_PATCH, _INCREASE, _DECREASE = 0, 1, 2
_IMPOSSIBLE = 2
_BURST = 256

Name = str | bytes
"""A key or a channel, up to 255 octets; text is UTF-8."""


class Unit(IntEnum):
    """In what a time to live is said and told."""

    NANOSECONDS = 1
    MICROSECONDS = 2
    MILLISECONDS = 3
    SECONDS = 4
    MINUTES = 5
    HOURS = 6

    @property
    def nanoseconds(self) -> int:
        """How many nanoseconds one is."""
        return _NANOSECONDS[self]


_NANOSECONDS: Final = {1: 1, 2: 10**3, 3: 10**6, 4: 10**9, 5: 60 * 10**9, 6: 3600 * 10**9}


class Algorithm(StrEnum):
    """How a quota is spent; docs/limits.md compares them."""

    FIXED_WINDOW = "fixed-window"
    """A period begins with the first that is taken; around the border of two, twice the limit fits."""
    SLIDING_WINDOW = "sliding-window"
    """The limit holds in any period, what was spent in the one before counted as spread evenly."""
    GCRA = "gcra"
    """A bucket that refills evenly."""

    @property
    def code(self) -> int:
        """Its number on the wire."""
        return (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW, Algorithm.GCRA).index(self)


class Mode(IntEnum):
    """What becomes of what a rule asks for."""

    TAKE = 0
    PEEK = 1
    DRY_RUN = 2
    REFUND = 3


@dataclass(frozen=True, slots=True)
class Rule:
    """How much of one key's quota is asked for."""

    key: Name
    limit: int
    """How much may be taken in a period."""
    period: int
    """In `unit`."""
    unit: Unit = Unit.SECONDS
    cost: int = 1
    algorithm: Algorithm = Algorithm.FIXED_WINDOW

    def _fields(self) -> tuple[int, int, int, int, int]:
        return self.algorithm.code, self.limit, self.cost, self.unit, self.period


@dataclass(frozen=True, slots=True)
class Counter:
    """What QUERY tells."""

    quota: int
    """What is left."""
    unit: int
    """A `Unit`, or what else it was made with."""
    ttl: int
    """What is left of its time, in its unit, rounded down."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """What GET tells."""

    value: bytes
    unit: int
    """A `Unit`, or what else it was made with."""
    ttl: int
    """What is left of its time, in its unit, rounded down."""


@dataclass(frozen=True, slots=True)
class Key:
    """One entry, as LIST tells of it."""

    key: bytes
    is_buffer: bool
    """Whether it is a buffer; a counter if not."""
    unit: int
    expires: int
    """Unix nanoseconds."""
    octets: int
    """How many its value has."""


@dataclass(frozen=True, slots=True)
class Uses:
    """How often an entry was used, by whole minutes; zeros at a listener without metrics."""

    reads_per_minute: int
    writes_per_minute: int
    reads: int
    writes: int


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection to a listener."""

    id: bytes
    is_unix: bool
    """Whether it comes through a Unix socket. Only protocol 7.3 tells; false in 7.1."""
    address: str
    """As text, cut at 16 characters."""
    port: int
    since: int
    """Unix nanoseconds."""
    numbers: dict[str, int]
    """Octets (``read``, ``written``, ``published``, ``received``, ``allocated``, ``consumed``) and requests by name."""


@dataclass(frozen=True, slots=True)
class ChannelInformation:
    """One channel that has subscribers."""

    name: bytes
    read: int
    """Octets that its subscribers were sent."""
    written: int
    """Octets that its subscribers published to it."""
    subscriptions: int


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One subscriber of a channel."""

    id: bytes
    """Of its connection."""
    since: int
    """Unix nanoseconds."""
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class Information:
    """What a server counts; totals since it started, and of the last whole minute where the name says so."""

    numbers: dict[str, int]
    version: str

    def __getitem__(self, name: str) -> int:
        return self.numbers[name]


@dataclass(frozen=True, slots=True)
class Message:
    """What was published to a subscribed channel."""

    channel: bytes | None
    """Which; protocol 7.1 does not say."""
    payload: bytes


_REQUESTS: Final = (
    *("insert", "query", "update", "purge", "get", "set", "list", "info", "stats", "stat", "subscribe", "unsubscribe"),
    *("publish", "channel", "channels", "whoami", "connection", "connections"),
)
_INFORMATION: Final = (
    "timestamp",
    "requests",
    "requests_per_minute",
    *(name for request in _REQUESTS for name in (request, f"{request}_per_minute")),
    *("read_bytes", "read_bytes_per_minute", "written_bytes", "written_bytes_per_minute"),
    *("keys", "counters", "buffers", "counter_bytes", "buffer_bytes"),
    *("total_subscriptions", "total_channels", "running_since", "total_connections"),
)
_CONNECTION_NUMBERS: Final = (
    *("read", "written", "published", "received", "allocated", "consumed"),
    *("insert", "set", "query", "get", "update", "purge", "list", "info", "stat", "stats", "publish", "subscribe"),
    *("unsubscribe", "connections", "connection", "channels", "channel", "whoami"),
)
_Request = tuple[Any, ...]
_Read = Callable[[Any], _T]


def _name(name: Name) -> bytes:
    octets = name.encode() if isinstance(name, str) else bytes(name)
    if len(octets) > 255:
        raise InvalidArgument(f"a name of {len(octets)} octets is longer than 255")
    return octets


def _number(value: int, what: str) -> int:
    if not 0 <= value < 1 << 64:
        raise InvalidArgument(f"{what} cannot be {value}; it is at least 0 and has at most 64 bits")
    return value


def _connection(row: tuple[bytes, bool, str, int, int, _List[int]]) -> Connection:
    identity, is_unix, address, port, since, numbers = row
    named = dict(zip(_CONNECTION_NUMBERS, numbers, strict=True))
    return Connection(identity, is_unix, address, port, since, named)


def _verdict(answer: Verdict | None) -> Verdict:
    if answer is None:
        raise _impossible()
    return answer


def _verdicts(answer: tuple[int, list[Verdict]]) -> tuple[bool, list[Verdict]]:
    status, verdicts = answer
    if status == _IMPOSSIBLE:
        raise _impossible()
    return status == 1, verdicts


def _impossible() -> Unacceptable:
    return Unacceptable(
        "the rule cannot be applied: its key holds something that its algorithm does not count with, a key stands "
        "twice, or the period is 0",
        406,
    )


# The thread that wakes event loops must be gone before Python is. Whoever comes second finds nothing to do.
atexit.register(_core.end_delivering)


class _Common:
    """What both clients are made of."""

    _blocking = False

    def __init__(
        self,
        url: str = "throttr://127.0.0.1:9000",
        *,
        tls: TLSConfig | None = None,
        connect_timeout: Duration = 5.0,
        request_timeout: Duration = 15.0,
    ) -> None:
        self._core = _core.ThrottrClient(url, tls, seconds(connect_timeout), seconds(request_timeout), self._blocking)
        self._value_max = self._core.value_max
        self._protocol = self._core.protocol

    @property
    def value_max(self) -> int:
        """The largest quota, time to live and size that the listener's width can say."""
        return self._value_max

    @property
    def protocol(self) -> str:
        """``7.1`` or ``7.3``."""
        return self._protocol

    @property
    def connects(self) -> int:
        """How often it has connected so far."""
        return self._core.connects

    @property
    def dropped(self) -> int:
        """Messages that were dropped because 65,536 waited already, or 64 MiB of them."""
        return self._core.dropped

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._core.is_closed


def _unit(unit: int) -> int:
    if not 0 <= unit <= 255:
        raise InvalidArgument(f"a unit cannot be {unit}; see mqcore.throttr.Unit")
    return int(unit)


def _counter(answer: tuple[int, int, int] | None) -> Counter | None:
    return None if answer is None else Counter(*answer)


def _buffer(answer: tuple[bytes, int, int] | None) -> Buffer | None:
    return None if answer is None else Buffer(*answer)


def _keys(rows: _List[tuple[bytes, int, int, int, int]]) -> _List[Key]:
    return [Key(key, kind == 1, unit, expires, octets) for key, kind, unit, expires, octets in rows]


def _information(answer: tuple[_List[int], str]) -> Information:
    numbers, version = answer
    return Information(dict(zip(_INFORMATION, numbers, strict=True)), version)


def _uses(answer: tuple[int, int, int, int] | None) -> Uses | None:
    return None if answer is None else Uses(*answer)


def _all_uses(rows: _List[tuple[bytes, tuple[int, int, int, int]]]) -> dict[bytes, Uses]:
    return {key: Uses(*numbers) for key, numbers in rows}


def _connections(rows: _List[Any]) -> _List[Connection]:
    return [_connection(row) for row in rows]


def _one_connection(row: Any) -> Connection | None:
    return None if row is None else _connection(row)


def _channels(rows: _List[tuple[bytes, _List[int]]]) -> _List[ChannelInformation]:
    return [ChannelInformation(name, *numbers) for name, numbers in rows]


def _subscribers(rows: _List[tuple[bytes, int, int, int]] | None) -> _List[Subscriber] | None:
    return None if rows is None else [Subscriber(*row) for row in rows]


def _read_all(answers: _List[Any], readers: Iterable[_Read[Any]]) -> _List[Any]:
    """Answers one by one; a rule that cannot be applied stands as its exception, and hides no other answer."""
    results: _List[Any] = []
    for answer, read in zip(answers, readers, strict=True):
        try:
            results.append(read(answer))
        except Unacceptable as error:
            results.append(error)
    return results


class _Gathering:
    """Requests that wait to be sent together."""

    def __init__(self) -> None:
        self._requests: _List[_Request] = []
        self._readers: _List[_Read[Any]] = []
        self.results: _List[Any] = []
        """The answers, in the order of the requests, once the block has ended. In place of the verdict of a rule that
        cannot be applied stands the `Unacceptable` that a call of its own would raise."""

    def __len__(self) -> int:
        return len(self._requests)

    def _add(self, request: _Request, read: _Read[Any]) -> Self:
        self._requests.append(request)
        self._readers.append(read)
        return self

    def _gathered(self) -> tuple[_List[_Request], _List[_Read[Any]]]:
        gathered = self._requests, self._readers
        self._requests, self._readers = [], []
        return gathered

    def insert(self, key: Name, quota: int, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> Self:
        """Add `Client.insert`; it answers with a ``bool``."""
        return self._add((_INSERT, _name(key), _number(quota, "quota"), _unit(unit), _number(ttl, "ttl")), bool)

    def query(self, key: Name) -> Self:
        """Add `Client.query`; it answers with a ``Counter | None``."""
        return self._add((_QUERY, _name(key)), _counter)

    def update(self, key: Name, quota: int) -> Self:
        """Add `Client.update`; it answers with a ``bool``."""
        return self._add((_UPDATE, _name(key), _QUOTA, _PATCH, _number(quota, "quota")), bool)

    def increase(self, key: Name, by: int = 1) -> Self:
        """Add `Client.increase`; it answers with a ``bool``."""
        return self._add((_UPDATE, _name(key), _QUOTA, _INCREASE, _number(by, "by")), bool)

    def decrease(self, key: Name, by: int = 1) -> Self:
        """Add `Client.decrease`; it answers with a ``bool``."""
        return self._add((_UPDATE, _name(key), _QUOTA, _DECREASE, _number(by, "by")), bool)

    def update_ttl(self, key: Name, ttl: int) -> Self:
        """Add `Client.update_ttl`; it answers with a ``bool``."""
        return self._add((_UPDATE, _name(key), _TTL, _PATCH, _number(ttl, "ttl")), bool)

    def increase_ttl(self, key: Name, by: int) -> Self:
        """Add `Client.increase_ttl`; it answers with a ``bool``."""
        return self._add((_UPDATE, _name(key), _TTL, _INCREASE, _number(by, "by")), bool)

    def decrease_ttl(self, key: Name, by: int) -> Self:
        """Add `Client.decrease_ttl`; it answers with a ``bool``."""
        return self._add((_UPDATE, _name(key), _TTL, _DECREASE, _number(by, "by")), bool)

    def purge(self, key: Name) -> Self:
        """Add `Client.purge`; it answers with a ``bool``."""
        return self._add((_PURGE, _name(key)), bool)

    def set(self, key: Name, value: bytes, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> Self:
        """Add `Client.set`; it answers with a ``bool``."""
        return self._add((_SET, _name(key), bytes(value), _unit(unit), _number(ttl, "ttl")), bool)

    def get(self, key: Name) -> Self:
        """Add `Client.get`; it answers with a ``Buffer | None``."""
        return self._add((_GET, _name(key)), _buffer)

    def list(self) -> Self:
        """Add `Client.list`; it answers with a ``list[Key]``."""
        return self._add((_LIST,), _keys)

    def info(self) -> Self:
        """Add `Client.info`; it answers with a ``Information``."""
        return self._add((_INFO,), _information)

    def stat(self, key: Name) -> Self:
        """Add `Client.stat`; it answers with a ``Uses | None``."""
        return self._add((_STAT, _name(key)), _uses)

    def stats(self) -> Self:
        """Add `Client.stats`; it answers with a ``dict[bytes, Uses]``."""
        return self._add((_STATS,), _all_uses)

    def subscribe(self, channel: Name) -> Self:
        """Add `Client.subscribe`; it answers with a ``bool``."""
        return self._add((_SUBSCRIBE, _name(channel)), bool)

    def unsubscribe(self, channel: Name) -> Self:
        """Add `Client.unsubscribe`; it answers with a ``bool``."""
        return self._add((_UNSUBSCRIBE, _name(channel)), bool)

    def publish(self, channel: Name, payload: bytes) -> Self:
        """Add `Client.publish`; it answers with a ``bool``."""
        return self._add((_PUBLISH, _name(channel), bytes(payload)), bool)

    def connections(self) -> Self:
        """Add `Client.connections`; it answers with a ``list[Connection]``."""
        return self._add((_CONNECTIONS,), _connections)

    def connection(self, identity: bytes) -> Self:
        """Add `Client.connection`; it answers with a ``Connection | None``."""
        return self._add((_CONNECTION, bytes(identity)), _one_connection)

    def channels(self) -> Self:
        """Add `Client.channels`; it answers with a ``list[ChannelInformation]``."""
        return self._add((_CHANNELS,), _channels)

    def channel(self, channel: Name) -> Self:
        """Add `Client.channel`; it answers with a ``list[Subscriber] | None``."""
        return self._add((_CHANNEL, _name(channel)), _subscribers)

    def whoami(self) -> Self:
        """Add `Client.whoami`; it answers with a ``bytes``."""
        return self._add((_WHOAMI,), bytes)

    def consume(self, rule: Rule, mode: Mode = Mode.TAKE) -> Self:
        """Add `Client.consume`; it answers with a ``Verdict``."""
        return self._add((_CONSUME, _name(rule.key), int(mode), *rule._fields()), _verdict)

    def consume_all(self, rules: Sequence[Rule], mode: Mode = Mode.TAKE) -> Self:
        """Add `Client.consume_all`; it answers with a ``tuple[bool, list[Verdict]]``."""
        return self._add((_CONSUME_ALL, int(mode), [(_name(rule.key), *rule._fields()) for rule in rules]), _verdicts)


class Pipeline(_Gathering):
    """Requests of a `Client` that go out with one write: at the end of ``async with``, or with `execute`."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    async def execute(self, *, timeout: float | None = None) -> _List[Any]:
        """Send what was gathered and wait for all answers, `timeout` seconds at most; also kept in `results`."""
        requests, readers = self._gathered()
        answers = await self._client._core.ask(requests, timeout)
        self.results = _read_all(answers, readers)
        return self.results

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self.execute()


class SyncPipeline(_Gathering):
    """Requests of a `SyncClient` that go out with one write: at the end of ``with``, or with `execute`."""

    def __init__(self, client: SyncClient) -> None:
        super().__init__()
        self._client = client

    def execute(self, *, timeout: float | None = None) -> _List[Any]:
        """Send what was gathered and wait for all answers, `timeout` seconds at most; also kept in `results`."""
        requests, readers = self._gathered()
        answers = self._client._core.ask(requests, timeout)
        self.results = _read_all(answers, readers)
        return self.results

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.execute()


class Client(_Common):
    """A client for asyncio; any number of tasks may share it, their requests share one connection.

    `url` is that of the listener; `tls` whom to trust on ``throttrs://``; `connect_timeout` what one attempt to connect
    may take, `request_timeout` what an answer may. After a failed attempt calls are refused for a moment (100 ms,
    doubled up to 2 s) with the same error, so that a broker that is away costs no call more than that.

    Every method raises `ConnectFailed`, `TLSError`, `ConnectionLost`, `RequestTimeout`, `Draining` (after `close`),
    `InvalidArgument` for what the listener's width cannot say, and `TooLarge`.
    """

    async def connect(self) -> Self:
        """Make sure that a connection stands. Nothing else needs it; it shows at once what is wrong with the URL."""
        await self.whoami()
        return self

    def pipeline(self) -> Pipeline:
        """Begin to gather requests that go out together."""
        return Pipeline(self)

    async def messages(self, *, idle_timeout: Duration | None = None) -> AsyncIterator[Message]:
        """What is published to the channels that were subscribed to, until the client is closed or nothing came for
        `idle_timeout`, if that is given."""
        patience = None if idle_timeout is None else seconds(idle_timeout)
        while True:
            taken = self._core.take(_BURST)
            for channel, payload in taken:
                yield Message(channel, payload)
            if not taken and (self.is_closed or not await self._core.wait(patience)):
                return

    async def close(self) -> None:
        """End the connection once everything that was asked is answered."""
        self._core.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _one(self, request: _Request, read: _Read[Any]) -> Any:
        (answer,) = await self._core.ask([request])
        return read(answer)

    async def insert(self, key: Name, quota: int, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> bool:
        """Create a counter; false if the key is taken."""
        answer: bool = await self._one(
            (_INSERT, _name(key), _number(quota, "quota"), _unit(unit), _number(ttl, "ttl")), bool
        )
        return answer

    async def query(self, key: Name) -> Counter | None:
        """Read a counter; None if there is none. A buffer reads as one of 0."""
        answer: Counter | None = await self._one((_QUERY, _name(key)), _counter)
        return answer

    async def update(self, key: Name, quota: int) -> bool:
        """Replace what is left of a quota; false if there is no such counter."""
        answer: bool = await self._one((_UPDATE, _name(key), _QUOTA, _PATCH, _number(quota, "quota")), bool)
        return answer

    async def increase(self, key: Name, by: int = 1) -> bool:
        """Add to a quota; false if there is no such counter. It wraps at its width, unless the listener saturates."""
        answer: bool = await self._one((_UPDATE, _name(key), _QUOTA, _INCREASE, _number(by, "by")), bool)
        return answer

    async def decrease(self, key: Name, by: int = 1) -> bool:
        """Subtract from a quota in one step; false, and no change, if there is not enough or no such counter."""
        answer: bool = await self._one((_UPDATE, _name(key), _QUOTA, _DECREASE, _number(by, "by")), bool)
        return answer

    async def update_ttl(self, key: Name, ttl: int) -> bool:
        """Let an entry live so long from now on, in its own unit; false if there is none."""
        answer: bool = await self._one((_UPDATE, _name(key), _TTL, _PATCH, _number(ttl, "ttl")), bool)
        return answer

    async def increase_ttl(self, key: Name, by: int) -> bool:
        """Let an entry live longer, in its own unit; false if there is none."""
        answer: bool = await self._one((_UPDATE, _name(key), _TTL, _INCREASE, _number(by, "by")), bool)
        return answer

    async def decrease_ttl(self, key: Name, by: int) -> bool:
        """Let an entry live shorter, in its own unit; false if there is none."""
        answer: bool = await self._one((_UPDATE, _name(key), _TTL, _DECREASE, _number(by, "by")), bool)
        return answer

    async def purge(self, key: Name) -> bool:
        """Remove an entry; false if there is none."""
        answer: bool = await self._one((_PURGE, _name(key)), bool)
        return answer

    async def set(self, key: Name, value: bytes, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> bool:
        """Create or replace a buffer; false if a counter has the key."""
        answer: bool = await self._one((_SET, _name(key), bytes(value), _unit(unit), _number(ttl, "ttl")), bool)
        return answer

    async def get(self, key: Name) -> Buffer | None:
        """Read a buffer; None if there is none. A counter reads as an empty one."""
        answer: Buffer | None = await self._one((_GET, _name(key)), _buffer)
        return answer

    async def list(self) -> _List[Key]:
        """Everything that is stored, in the order of creation."""
        answer: _List[Key] = await self._one((_LIST,), _keys)
        return answer

    async def info(self) -> Information:
        """What the server counts."""
        answer: Information = await self._one((_INFO,), _information)
        return answer

    async def stat(self, key: Name) -> Uses | None:
        """How often an entry was used; None if there is none."""
        answer: Uses | None = await self._one((_STAT, _name(key)), _uses)
        return answer

    async def stats(self) -> dict[bytes, Uses]:
        """The same of every entry."""
        answer: dict[bytes, Uses] = await self._one((_STATS,), _all_uses)
        return answer

    async def subscribe(self, channel: Name) -> bool:
        """Receive what is published to a channel; see `messages`."""
        answer: bool = await self._one((_SUBSCRIBE, _name(channel)), bool)
        return answer

    async def unsubscribe(self, channel: Name) -> bool:
        """No longer; false if it was not subscribed to."""
        answer: bool = await self._one((_UNSUBSCRIBE, _name(channel)), bool)
        return answer

    async def publish(self, channel: Name, payload: bytes) -> bool:
        """Send to whoever has subscribed; false if nobody has."""
        answer: bool = await self._one((_PUBLISH, _name(channel), bytes(payload)), bool)
        return answer

    async def connections(self) -> _List[Connection]:
        """Who is connected."""
        answer: _List[Connection] = await self._one((_CONNECTIONS,), _connections)
        return answer

    async def connection(self, identity: bytes) -> Connection | None:
        """One of them; None if there is none of this id."""
        answer: Connection | None = await self._one((_CONNECTION, bytes(identity)), _one_connection)
        return answer

    async def channels(self) -> _List[ChannelInformation]:
        """Which channels have subscribers."""
        answer: _List[ChannelInformation] = await self._one((_CHANNELS,), _channels)
        return answer

    async def channel(self, channel: Name) -> _List[Subscriber] | None:
        """The subscribers of a channel; None if it has none."""
        answer: _List[Subscriber] | None = await self._one((_CHANNEL, _name(channel)), _subscribers)
        return answer

    async def whoami(self) -> bytes:
        """The id of this connection: 16 octets, others after a reconnect."""
        answer: bytes = await self._one((_WHOAMI,), bytes)
        return answer

    async def consume(self, rule: Rule, mode: Mode = Mode.TAKE) -> Verdict:
        """Create, check and subtract in one step. Raises `Unacceptable` if the key holds something else."""
        answer: Verdict = await self._one((_CONSUME, _name(rule.key), int(mode), *rule._fields()), _verdict)
        return answer

    async def consume_all(self, rules: Sequence[Rule], mode: Mode = Mode.TAKE) -> tuple[bool, _List[Verdict]]:
        """The same for up to 32 keys, all or none; whether it was allowed, and what holds for each."""
        answer: tuple[bool, _List[Verdict]] = await self._one(
            (_CONSUME_ALL, int(mode), [(_name(rule.key), *rule._fields()) for rule in rules]), _verdicts
        )
        return answer


class SyncClient(_Common):
    """The same without ``await``, for threads, which may share it; see `Client`."""

    _blocking = True

    def connect(self) -> Self:
        """Make sure that a connection stands. Nothing else needs it; it shows at once what is wrong with the URL."""
        self.whoami()
        return self

    def pipeline(self) -> SyncPipeline:
        """Begin to gather requests that go out together."""
        return SyncPipeline(self)

    def messages(self, *, idle_timeout: Duration | None = None) -> Iterator[Message]:
        """What is published to the channels that were subscribed to, until the client is closed or nothing came for
        `idle_timeout`, if that is given."""
        patience = None if idle_timeout is None else seconds(idle_timeout)
        while True:
            taken = self._core.take(_BURST)
            for channel, payload in taken:
                yield Message(channel, payload)
            if not taken and (self.is_closed or not self._core.wait(patience)):
                return

    def close(self) -> None:
        """End the connection once everything that was asked is answered."""
        self._core.close()

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _one(self, request: _Request, read: _Read[Any]) -> Any:
        (answer,) = self._core.ask([request])
        return read(answer)

    def insert(self, key: Name, quota: int, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> bool:
        """Create a counter; false if the key is taken."""
        answer: bool = self._one((_INSERT, _name(key), _number(quota, "quota"), _unit(unit), _number(ttl, "ttl")), bool)
        return answer

    def query(self, key: Name) -> Counter | None:
        """Read a counter; None if there is none. A buffer reads as one of 0."""
        answer: Counter | None = self._one((_QUERY, _name(key)), _counter)
        return answer

    def update(self, key: Name, quota: int) -> bool:
        """Replace what is left of a quota; false if there is no such counter."""
        answer: bool = self._one((_UPDATE, _name(key), _QUOTA, _PATCH, _number(quota, "quota")), bool)
        return answer

    def increase(self, key: Name, by: int = 1) -> bool:
        """Add to a quota; false if there is no such counter. It wraps at its width, unless the listener saturates."""
        answer: bool = self._one((_UPDATE, _name(key), _QUOTA, _INCREASE, _number(by, "by")), bool)
        return answer

    def decrease(self, key: Name, by: int = 1) -> bool:
        """Subtract from a quota in one step; false, and no change, if there is not enough or no such counter."""
        answer: bool = self._one((_UPDATE, _name(key), _QUOTA, _DECREASE, _number(by, "by")), bool)
        return answer

    def update_ttl(self, key: Name, ttl: int) -> bool:
        """Let an entry live so long from now on, in its own unit; false if there is none."""
        answer: bool = self._one((_UPDATE, _name(key), _TTL, _PATCH, _number(ttl, "ttl")), bool)
        return answer

    def increase_ttl(self, key: Name, by: int) -> bool:
        """Let an entry live longer, in its own unit; false if there is none."""
        answer: bool = self._one((_UPDATE, _name(key), _TTL, _INCREASE, _number(by, "by")), bool)
        return answer

    def decrease_ttl(self, key: Name, by: int) -> bool:
        """Let an entry live shorter, in its own unit; false if there is none."""
        answer: bool = self._one((_UPDATE, _name(key), _TTL, _DECREASE, _number(by, "by")), bool)
        return answer

    def purge(self, key: Name) -> bool:
        """Remove an entry; false if there is none."""
        answer: bool = self._one((_PURGE, _name(key)), bool)
        return answer

    def set(self, key: Name, value: bytes, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> bool:
        """Create or replace a buffer; false if a counter has the key."""
        answer: bool = self._one((_SET, _name(key), bytes(value), _unit(unit), _number(ttl, "ttl")), bool)
        return answer

    def get(self, key: Name) -> Buffer | None:
        """Read a buffer; None if there is none. A counter reads as an empty one."""
        answer: Buffer | None = self._one((_GET, _name(key)), _buffer)
        return answer

    def list(self) -> _List[Key]:
        """Everything that is stored, in the order of creation."""
        answer: _List[Key] = self._one((_LIST,), _keys)
        return answer

    def info(self) -> Information:
        """What the server counts."""
        answer: Information = self._one((_INFO,), _information)
        return answer

    def stat(self, key: Name) -> Uses | None:
        """How often an entry was used; None if there is none."""
        answer: Uses | None = self._one((_STAT, _name(key)), _uses)
        return answer

    def stats(self) -> dict[bytes, Uses]:
        """The same of every entry."""
        answer: dict[bytes, Uses] = self._one((_STATS,), _all_uses)
        return answer

    def subscribe(self, channel: Name) -> bool:
        """Receive what is published to a channel; see `messages`."""
        answer: bool = self._one((_SUBSCRIBE, _name(channel)), bool)
        return answer

    def unsubscribe(self, channel: Name) -> bool:
        """No longer; false if it was not subscribed to."""
        answer: bool = self._one((_UNSUBSCRIBE, _name(channel)), bool)
        return answer

    def publish(self, channel: Name, payload: bytes) -> bool:
        """Send to whoever has subscribed; false if nobody has."""
        answer: bool = self._one((_PUBLISH, _name(channel), bytes(payload)), bool)
        return answer

    def connections(self) -> _List[Connection]:
        """Who is connected."""
        answer: _List[Connection] = self._one((_CONNECTIONS,), _connections)
        return answer

    def connection(self, identity: bytes) -> Connection | None:
        """One of them; None if there is none of this id."""
        answer: Connection | None = self._one((_CONNECTION, bytes(identity)), _one_connection)
        return answer

    def channels(self) -> _List[ChannelInformation]:
        """Which channels have subscribers."""
        answer: _List[ChannelInformation] = self._one((_CHANNELS,), _channels)
        return answer

    def channel(self, channel: Name) -> _List[Subscriber] | None:
        """The subscribers of a channel; None if it has none."""
        answer: _List[Subscriber] | None = self._one((_CHANNEL, _name(channel)), _subscribers)
        return answer

    def whoami(self) -> bytes:
        """The id of this connection: 16 octets, others after a reconnect."""
        answer: bytes = self._one((_WHOAMI,), bytes)
        return answer

    def consume(self, rule: Rule, mode: Mode = Mode.TAKE) -> Verdict:
        """Create, check and subtract in one step. Raises `Unacceptable` if the key holds something else."""
        answer: Verdict = self._one((_CONSUME, _name(rule.key), int(mode), *rule._fields()), _verdict)
        return answer

    def consume_all(self, rules: Sequence[Rule], mode: Mode = Mode.TAKE) -> tuple[bool, _List[Verdict]]:
        """The same for up to 32 keys, all or none; whether it was allowed, and what holds for each."""
        answer: tuple[bool, _List[Verdict]] = self._one(
            (_CONSUME_ALL, int(mode), [(_name(rule.key), *rule._fields()) for rule in rules]), _verdicts
        )
        return answer
