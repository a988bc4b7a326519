"""Units, rules, and the answers of a Throttr listener."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

__all__ = [
    "Algorithm",
    "Buffer",
    "ChannelInformation",
    "Connection",
    "Counter",
    "Information",
    "Key",
    "Message",
    "Mode",
    "Name",
    "Rule",
    "Subscriber",
    "Unit",
    "Uses",
]

Name: TypeAlias = str | bytes
"""A key or a channel of up to 255 bytes; text is encoded as UTF-8."""


class Unit(IntEnum):
    """The unit of a time to live."""

    NANOSECONDS = 1
    MICROSECONDS = 2
    MILLISECONDS = 3
    SECONDS = 4
    MINUTES = 5
    HOURS = 6

    @property
    def nanoseconds(self) -> int:
        """The nanoseconds of one unit."""
        return _NANOSECONDS[self]


_NANOSECONDS: Final = {1: 1, 2: 10**3, 3: 10**6, 4: 10**9, 5: 60 * 10**9, 6: 3600 * 10**9}


class Algorithm(StrEnum):
    """How a quota is spent; docs/limits.md compares the algorithms."""

    FIXED_WINDOW = "fixed-window"
    """A period begins with the first use. Around the border of two periods, up to twice the limit is allowed."""
    SLIDING_WINDOW = "sliding-window"
    """The limit holds in any period. Use in the period before counts as spread evenly."""
    GCRA = "gcra"
    """A bucket that refills evenly."""

    @property
    def code(self) -> int:
        """The number on the wire."""
        return (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW, Algorithm.GCRA).index(self)


class Mode(IntEnum):
    """The effect of a request with a rule on the quota."""

    TAKE = 0
    PEEK = 1
    DRY_RUN = 2
    REFUND = 3


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit for one key, and the cost of one use."""

    key: Name
    limit: int
    """The quota of one period."""
    period: int
    """The length of the period in `unit`."""
    unit: Unit = Unit.SECONDS
    cost: int = 1
    algorithm: Algorithm = Algorithm.FIXED_WINDOW

    def fields(self) -> tuple[int, int, int, int, int]:
        """Return algorithm, limit, cost, unit and period as the core takes them."""
        return self.algorithm.code, self.limit, self.cost, self.unit, self.period


@dataclass(frozen=True, slots=True)
class Counter:
    """The answer to QUERY."""

    quota: int
    """The remaining quota."""
    unit: int
    """A `Unit`, or another number if it was created with one."""
    ttl: int
    """The remaining time to live in its unit, rounded down."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """The answer to GET."""

    value: bytes
    unit: int
    """A `Unit`, or another number if it was created with one."""
    ttl: int
    """The remaining time to live in its unit, rounded down."""


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of the answer to LIST."""

    key: bytes
    is_buffer: bool
    """Whether it is a buffer; otherwise a counter."""
    unit: int
    expires: int
    """Unix time in nanoseconds."""
    size: int
    """Size of its value in bytes."""


@dataclass(frozen=True, slots=True)
class Uses:
    """Uses of an entry, in whole minutes and in total; zeros if the listener has no metrics."""

    reads_per_minute: int
    writes_per_minute: int
    reads: int
    writes: int


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection to a listener."""

    id: bytes
    is_unix: bool
    """Whether it uses a Unix socket. Always false in protocol 7.1, which does not send it."""
    address: str
    """Text of at most 16 characters."""
    port: int
    since: int
    """Unix time in nanoseconds."""
    numbers: dict[str, int]
    """Bytes (``read``, ``written``, ``published``, ``received``, ``allocated``, ``consumed``), and requests by name."""


@dataclass(frozen=True, slots=True)
class ChannelInformation:
    """A channel with subscribers."""

    name: bytes
    read: int
    """Bytes sent to its subscribers."""
    written: int
    """Bytes that its subscribers published."""
    subscriptions: int


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A subscriber of a channel."""

    id: bytes
    """The id of its connection."""
    since: int
    """Unix time in nanoseconds."""
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class Information:
    """Counters of a server: totals since its start; names in ``_per_minute`` are of the last whole minute."""

    numbers: dict[str, int]
    version: str

    def __getitem__(self, name: str) -> int:
        return self.numbers[name]


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was published to a subscribed channel."""

    channel: bytes | None
    """The channel; ``None`` in protocol 7.1, which does not send it."""
    payload: bytes
