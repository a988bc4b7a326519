"""Requests as the core takes them, each with what reads its answer. One function for each method of the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from mqcore._core import Verdict
from mqcore.errors import InvalidArgument, Unacceptable
from mqcore.throttr.models import (
    Buffer,
    ChannelInformation,
    Connection,
    Counter,
    Information,
    Key,
    Mode,
    Name,
    Rule,
    Subscriber,
    Unit,
    Uses,
)

__all__ = ["Ask", "read_all"]

_T = TypeVar("_T")

_INSERT, _QUERY, _UPDATE, _PURGE, _SET, _GET, _LIST, _INFO, _STAT = range(1, 10)
_STATS, _SUBSCRIBE, _UNSUBSCRIBE, _PUBLISH, _CONNECTIONS, _CONNECTION, _CHANNELS, _CHANNEL, _WHOAMI = range(0x10, 0x19)
_CONSUME, _CONSUME_ALL = 0xC0, 0xC1
_QUOTA, _TTL = 0, 1
_PATCH, _INCREASE, _DECREASE = 0, 1, 2
_IMPOSSIBLE = 2


@dataclass(frozen=True, slots=True)
class Ask(Generic[_T]):
    """A request: its fields for the core, and what makes the result of its answer."""

    fields: tuple[Any, ...]
    read: Callable[[Any], _T]


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


def _name(name: Name) -> bytes:
    encoded = name.encode() if isinstance(name, str) else bytes(name)
    if len(encoded) > 255:
        raise InvalidArgument(f"a name of {len(encoded)} bytes is longer than 255 bytes")
    return encoded


def _number(value: int, what: str) -> int:
    if not 0 <= value < 1 << 64:
        raise InvalidArgument(f"{what} cannot be {value}; it is at least 0 and has at most 64 bits")
    return value


def _connection(row: tuple[bytes, bool, str, int, int, list[int]]) -> Connection:
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


def _unit(unit: int) -> int:
    if not 0 <= unit <= 255:
        raise InvalidArgument(f"a unit cannot be {unit}; see mqcore.throttr.Unit")
    return int(unit)


def _counter(answer: tuple[int, int, int] | None) -> Counter | None:
    return None if answer is None else Counter(*answer)


def _buffer(answer: tuple[bytes, int, int] | None) -> Buffer | None:
    return None if answer is None else Buffer(*answer)


def _keys(rows: list[tuple[bytes, int, int, int, int]]) -> list[Key]:
    return [Key(key, kind == 1, unit, expires, size) for key, kind, unit, expires, size in rows]


def _information(answer: tuple[list[int], str]) -> Information:
    numbers, version = answer
    return Information(dict(zip(_INFORMATION, numbers, strict=True)), version)


def _uses(answer: tuple[int, int, int, int] | None) -> Uses | None:
    return None if answer is None else Uses(*answer)


def _all_uses(rows: list[tuple[bytes, tuple[int, int, int, int]]]) -> dict[bytes, Uses]:
    return {key: Uses(*numbers) for key, numbers in rows}


def _connections(rows: list[Any]) -> list[Connection]:
    return [_connection(row) for row in rows]


def _one_connection(row: Any) -> Connection | None:
    return None if row is None else _connection(row)


def _channels(rows: list[tuple[bytes, list[int]]]) -> list[ChannelInformation]:
    return [ChannelInformation(name, *numbers) for name, numbers in rows]


def _subscribers(rows: list[tuple[bytes, int, int, int]] | None) -> list[Subscriber] | None:
    return None if rows is None else [Subscriber(*row) for row in rows]


def read_all(answers: list[Any], asked: Iterable[Ask[Any]]) -> list[Any]:
    """Read answers one by one. The result of a rule that cannot be applied is its exception."""
    results: list[Any] = []
    for answer, ask in zip(answers, asked, strict=True):
        try:
            results.append(ask.read(answer))
        except Unacceptable as error:
            results.append(error)
    return results


def insert(key: Name, quota: int, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> Ask[bool]:
    """Build INSERT."""
    return Ask((_INSERT, _name(key), _number(quota, "quota"), _unit(unit), _number(ttl, "ttl")), bool)


def query(key: Name) -> Ask[Counter | None]:
    """Build QUERY."""
    return Ask((_QUERY, _name(key)), _counter)


def update(key: Name, quota: int) -> Ask[bool]:
    """Build UPDATE."""
    return Ask((_UPDATE, _name(key), _QUOTA, _PATCH, _number(quota, "quota")), bool)


def increase(key: Name, by: int) -> Ask[bool]:
    """Build INCREASE."""
    return Ask((_UPDATE, _name(key), _QUOTA, _INCREASE, _number(by, "by")), bool)


def decrease(key: Name, by: int) -> Ask[bool]:
    """Build DECREASE."""
    return Ask((_UPDATE, _name(key), _QUOTA, _DECREASE, _number(by, "by")), bool)


def update_ttl(key: Name, ttl: int) -> Ask[bool]:
    """Build UPDATE TTL."""
    return Ask((_UPDATE, _name(key), _TTL, _PATCH, _number(ttl, "ttl")), bool)


def increase_ttl(key: Name, by: int) -> Ask[bool]:
    """Build INCREASE TTL."""
    return Ask((_UPDATE, _name(key), _TTL, _INCREASE, _number(by, "by")), bool)


def decrease_ttl(key: Name, by: int) -> Ask[bool]:
    """Build DECREASE TTL."""
    return Ask((_UPDATE, _name(key), _TTL, _DECREASE, _number(by, "by")), bool)


def purge(key: Name) -> Ask[bool]:
    """Build PURGE."""
    return Ask((_PURGE, _name(key)), bool)


def set_(key: Name, value: bytes, ttl: int, *, unit: Unit | int = Unit.SECONDS) -> Ask[bool]:
    """Build SET."""
    return Ask((_SET, _name(key), bytes(value), _unit(unit), _number(ttl, "ttl")), bool)


def get(key: Name) -> Ask[Buffer | None]:
    """Build GET."""
    return Ask((_GET, _name(key)), _buffer)


def list_() -> Ask[list[Key]]:
    """Build LIST."""
    return Ask((_LIST,), _keys)


def info() -> Ask[Information]:
    """Build INFO."""
    return Ask((_INFO,), _information)


def stat(key: Name) -> Ask[Uses | None]:
    """Build STAT."""
    return Ask((_STAT, _name(key)), _uses)


def stats() -> Ask[dict[bytes, Uses]]:
    """Build STATS."""
    return Ask((_STATS,), _all_uses)


def subscribe(channel: Name) -> Ask[bool]:
    """Build SUBSCRIBE."""
    return Ask((_SUBSCRIBE, _name(channel)), bool)


def unsubscribe(channel: Name) -> Ask[bool]:
    """Build UNSUBSCRIBE."""
    return Ask((_UNSUBSCRIBE, _name(channel)), bool)


def publish(channel: Name, payload: bytes) -> Ask[bool]:
    """Build PUBLISH."""
    return Ask((_PUBLISH, _name(channel), bytes(payload)), bool)


def connections() -> Ask[list[Connection]]:
    """Build CONNECTIONS."""
    return Ask((_CONNECTIONS,), _connections)


def connection(identity: bytes) -> Ask[Connection | None]:
    """Build CONNECTION."""
    return Ask((_CONNECTION, bytes(identity)), _one_connection)


def channels() -> Ask[list[ChannelInformation]]:
    """Build CHANNELS."""
    return Ask((_CHANNELS,), _channels)


def channel(channel: Name) -> Ask[list[Subscriber] | None]:
    """Build CHANNEL."""
    return Ask((_CHANNEL, _name(channel)), _subscribers)


def whoami() -> Ask[bytes]:
    """Build WHOAMI."""
    return Ask((_WHOAMI,), bytes)


def consume(rule: Rule, mode: Mode = Mode.TAKE) -> Ask[Verdict]:
    """Build CONSUME."""
    return Ask((_CONSUME, _name(rule.key), int(mode), *rule.fields()), _verdict)


def consume_all(rules: Sequence[Rule], mode: Mode = Mode.TAKE) -> Ask[tuple[bool, list[Verdict]]]:
    """Build CONSUME ALL."""
    return Ask((_CONSUME_ALL, int(mode), [(_name(rule.key), *rule.fields()) for rule in rules]), _verdicts)
