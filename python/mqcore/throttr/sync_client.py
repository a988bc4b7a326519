# Generated from python/mqcore/throttr/client.py by tools/generate_sync.py: change that, then run `make generate`.
"""The client of Throttr, and its pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from mqcore import _core
from mqcore._core import Verdict
from mqcore.config import Duration, seconds
from mqcore.throttr import requests
from mqcore.throttr.base import Gathering
from mqcore.throttr.models import (
    Buffer,
    ChannelInformation,
    Connection,
    Counter,
    Information,
    Key,
    Message,
    Mode,
    Name,
    Rule,
    Subscriber,
    Unit,
    Uses,
)
from mqcore.throttr.requests import Ask, read_all

if TYPE_CHECKING:
    from mqcore.tls import TLSConfig

__all__ = ["SyncClient", "SyncPipeline"]

_TAKE_MAX: Final = 256

_T = TypeVar("_T")
# A client has a method called `list`.
_List = list


class SyncPipeline(Gathering):
    """Requests of a client that are sent with one write: at the end of ``with``, or with `execute`."""

    def __init__(self, core: _core.BlockingThrottrClient) -> None:
        super().__init__()
        self._core = core

    def execute(self, *, timeout: float | None = None) -> _List[Any]:
        """Send the gathered requests and wait for all answers, up to `timeout` seconds. Return and keep `results`."""
        asked = self._gathered()
        answers = self._core.ask([ask.fields for ask in asked], timeout)
        self.results = read_all(answers, asked)
        return self.results

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.execute()


class SyncClient:
    """A client of a Throttr listener. Concurrent callers may share it; their requests share one connection.

    `url` is the URL of the listener, `tls` the trust for ``throttrs://``. `connect_timeout` limits one attempt to
    connect, `request_timeout` the wait for an answer. After a failed attempt, calls fail at once with the same
    error for 100 ms, doubled with every failure up to 2 s, so that calls do not wait for a broker that is down.

    Every method raises `ConnectFailed`, `TLSError`, `VersionMismatch` (if the listener has values of another width than
    ``value`` in the URL, or speaks another protocol), `ConnectionLost`, `RequestTimeout`, `Draining` (after `close`),
    `InvalidArgument` for a value that the width of the listener does not allow, and `TooLarge`.
    """

    def __init__(
        self,
        url: str = "throttr://127.0.0.1:9000",
        *,
        tls: TLSConfig | None = None,
        connect_timeout: Duration = 5.0,
        request_timeout: Duration = 15.0,
    ) -> None:
        self._core = _core.BlockingThrottrClient(url, tls, seconds(connect_timeout), seconds(request_timeout))
        self._value_max = self._core.value_max
        self._protocol = self._core.protocol

    @property
    def value_max(self) -> int:
        """The largest quota, time to live and size that the value width of the listener allows."""
        return self._value_max

    @property
    def protocol(self) -> str:
        """The protocol version: ``7.1`` or ``7.3``."""
        return self._protocol

    @property
    def connects(self) -> int:
        """Successful connects."""
        return self._core.connects

    @property
    def dropped(self) -> int:
        """Messages dropped because 65,536 of them, or 64 MiB, were not taken yet."""
        return self._core.dropped

    @property
    def is_closed(self) -> bool:
        """Whether it is closed."""
        return self._core.is_closed

    def connect(self) -> Self:
        """Connect now, to find errors of the URL early. Every other call connects by itself."""
        self.whoami()
        return self

    def pipeline(self) -> SyncPipeline:
        """Return a pipeline: requests that are sent with one write."""
        return SyncPipeline(self._core)

    def messages(self, *, idle_timeout: Duration | None = None) -> Iterator[Message]:
        """Yield messages of subscribed channels, until the client is closed or no message came for `idle_timeout`."""
        idle = None if idle_timeout is None else seconds(idle_timeout)
        while True:
            taken = self._core.take(_TAKE_MAX)
            for channel, payload in taken:
                yield Message(channel, payload)
            if not taken and (self.is_closed or not self._core.wait(idle)):
                return

    def close(self) -> None:
        """Close the connection when all requests are answered."""
        self._core.close()

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _one(self, ask: Ask[_T]) -> _T:
        (answer,) = self._core.ask([ask.fields])
        return ask.read(answer)

    def insert(self, key: Name, quota: int, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> bool:
        """Create a counter. False if the key is taken."""
        return self._one(requests.insert(key, quota, ttl, unit=unit))

    def query(self, key: Name) -> Counter | None:
        """Read a counter; ``None`` if there is none. A buffer reads as a counter of 0."""
        return self._one(requests.query(key))

    def update(self, key: Name, quota: int) -> bool:
        """Replace the remaining quota. False if there is no such counter."""
        return self._one(requests.update(key, quota))

    def increase(self, key: Name, by: int = 1) -> bool:
        """Add to the remaining quota.

        False if there is no such counter. It wraps at the value width, unless the listener saturates.
        """
        return self._one(requests.increase(key, by))

    def decrease(self, key: Name, by: int = 1) -> bool:
        """Subtract from the remaining quota in one step.

        False, and no change, if too little is left or there is no such counter.
        """
        return self._one(requests.decrease(key, by))

    def update_ttl(self, key: Name, ttl: int) -> bool:
        """Replace the time to live of an entry, in its own unit. False if there is none."""
        return self._one(requests.update_ttl(key, ttl))

    def increase_ttl(self, key: Name, by: int) -> bool:
        """Extend the time to live of an entry, in its own unit. False if there is none."""
        return self._one(requests.increase_ttl(key, by))

    def decrease_ttl(self, key: Name, by: int) -> bool:
        """Shorten the time to live of an entry, in its own unit. False if there is none."""
        return self._one(requests.decrease_ttl(key, by))

    def purge(self, key: Name) -> bool:
        """Remove an entry. False if there is none."""
        return self._one(requests.purge(key))

    def set(self, key: Name, value: bytes, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> bool:
        """Create or replace a buffer. False if a counter has the key."""
        return self._one(requests.set_(key, value, ttl, unit=unit))

    def get(self, key: Name) -> Buffer | None:
        """Read a buffer; ``None`` if there is none. A counter reads as an empty one."""
        return self._one(requests.get(key))

    def list(self) -> _List[Key]:
        """Return all entries in the order of creation."""
        return self._one(requests.list_())

    def info(self) -> Information:
        """Return the counters of the server."""
        return self._one(requests.info())

    def stat(self, key: Name) -> Uses | None:
        """Return the uses of an entry; ``None`` if there is none."""
        return self._one(requests.stat(key))

    def stats(self) -> dict[bytes, Uses]:
        """Return the uses of every entry."""
        return self._one(requests.stats())

    def subscribe(self, channel: Name) -> bool:
        """Subscribe to a channel. `messages` returns what is published to it."""
        return self._one(requests.subscribe(channel))

    def unsubscribe(self, channel: Name) -> bool:
        """Unsubscribe from a channel. False if it was not subscribed to."""
        return self._one(requests.unsubscribe(channel))

    def publish(self, channel: Name, payload: bytes) -> bool:
        """Publish to the subscribers of a channel. False if it has none."""
        return self._one(requests.publish(channel, payload))

    def connections(self) -> _List[Connection]:
        """Return the connections of the server."""
        return self._one(requests.connections())

    def connection(self, identity: bytes) -> Connection | None:
        """Return the connection of this id; ``None`` if there is none."""
        return self._one(requests.connection(identity))

    def channels(self) -> _List[ChannelInformation]:
        """Return the channels that have subscribers."""
        return self._one(requests.channels())

    def channel(self, channel: Name) -> _List[Subscriber] | None:
        """Return the subscribers of a channel; ``None`` if it has none."""
        return self._one(requests.channel(channel))

    def whoami(self) -> bytes:
        """Return the id of this connection: 16 bytes, others after a reconnect."""
        return self._one(requests.whoami())

    def consume(self, rule: Rule, mode: Mode = Mode.TAKE) -> Verdict:
        """Create, check and subtract in one step. Raises `Unacceptable` if the key holds something else."""
        return self._one(requests.consume(rule, mode))

    def consume_all(self, rules: Sequence[Rule], mode: Mode = Mode.TAKE) -> tuple[bool, _List[Verdict]]:
        """Do the same for up to 32 keys, all or none. Return whether it was allowed, and the verdict for each key."""
        return self._one(requests.consume_all(rules, mode))
