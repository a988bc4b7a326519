"""Columns of written DataFrames, and their rows as messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from mqcore import errors

__all__ = [
    "COLUMNS",
    "NAME_HEADER",
    "NOT_COPIED",
    "Outgoing",
    "Row",
    "check_columns",
    "is_keyed",
    "outgoing",
    "queue_names",
    "raw_rows",
]

NAME_HEADER: Final = "Mqcore-Sink"
"""Header with the name of a row, for rows whose message ids the user chose."""

_WORD: Final = r"(string( collate \w+)?|varchar\(\d+\)|char\(\d+\))"
_TEXT: Final = rf"({_WORD}|binary)"
_INTEGER: Final = r"(tinyint|smallint|int|bigint)"
_PAIR: Final = rf"struct<(key:{_WORD},value:{_TEXT}|value:{_TEXT},key:{_WORD})>"

COLUMNS: Final = {
    "value": (_TEXT, "string or binary"),
    "key": (rf"{_TEXT}|{_INTEGER}", "string, binary or an integer"),
    "queue": (_WORD, "string"),
    "channel": (_WORD, "string"),
    "queue_id": (_INTEGER, "an integer"),
    "headers": (
        rf"array<{_PAIR}>|map<{_WORD},{_TEXT}>",
        "array<struct<key:string,value:string>> or map<string,string>; values may be binary",
    ),
    "high_priority": ("boolean", "boolean"),
}
"""Columns that a written DataFrame may have, with a pattern of their Spark types and its words. ``value`` is
required."""

NOT_COPIED: Final = frozenset({NAME_HEADER.lower(), "cc", "request-id", "no-content"})
"""Headers that a row cannot have: the sink's own, copies to other queues, which the sink could not confirm, and those
that belong to one pull. A message that was pulled and published again has them, and earlier versions of the broker did
not return it to later pulls."""
_NOT_COPIED_BYTES: Final = {len(name) for name in NOT_COPIED}


class Row(NamedTuple):
    """A row before it is a message, with the values of its columns."""

    value: Any
    key: Any
    queue: str | None
    headers: Any
    high_priority: Any


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A row as a message to publish."""

    name: str
    number: int
    """Number of the row in the batch, from 0."""
    queue: str
    id: str
    body: bytes
    headers: list[tuple[str, str]]
    high_priority: bool
    is_rejected: bool = False
    """Whether it goes to the queue of rejected rows."""


def check_columns(columns: Sequence[tuple[str, str]], queue: str | None) -> None:
    """Check names and Spark types of columns.

    Raises `ConfigError` unless they contain a body, and a queue if no option names one, each of a type that a message
    can have.
    """
    names = [name for name, _ in columns]
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise errors.ConfigError(f"unknown column {unknown[0]!r}; rows can have {', '.join(COLUMNS)}")
    if "value" not in names:
        raise errors.ConfigError("the column value is missing; rows need it as string or binary")
    for name, kind in columns:
        pattern, words = COLUMNS[name]
        if re.fullmatch(pattern, kind) is None:
            raise errors.ConfigError(f"the column {name} is of type {kind}; convert it to {words}")
    if queue is None and "queue" not in names and "channel" not in names:
        raise errors.ConfigError(
            "say where rows go: by the option queue or channel, or by a column queue (orders/1001), "
            "or by the columns channel and queue_id"
        )


def is_keyed(rows: pa.RecordBatch) -> bool:
    """Whether a row may have a key, so that message ids may repeat."""
    return "key" in rows.schema.names and rows.column("key").null_count < rows.num_rows


def raw_rows(rows: pa.RecordBatch, queue: str | None) -> Iterator[Row]:
    """Yield the values of rows. An option that names a queue overrides the columns."""
    return map(Row._make, zip(*_columns(rows, queue), strict=True))


def outgoing(
    rows: pa.RecordBatch,
    first: int,
    prefix: str,
    queue: str | None,
    rejected: Mapping[int, Callable[[str, int, Row], Outgoing]] | None = None,
) -> Iterator[Outgoing]:
    """Yield the messages of valid rows, numbered from `first`. An option that names a queue overrides the columns.

    `rejected`: by its index, how an invalid row becomes a message from its name, number and values. Raises
    `InvalidArgument` for another row that says no queue.
    """
    for number, (value, key, place, headers, high) in enumerate(zip(*_columns(rows, queue), strict=True), first):
        name = f"{prefix}{number}"
        if rejected and (reject := rejected.get(number - first)) is not None:
            yield reject(name, number, Row(value, key, place, headers, high))
            continue
        if place is None:
            raise errors.InvalidArgument(f"row {number} of {prefix} names no queue; fill the column queue or channel")
        pairs = _pairs(headers)
        # An empty message id cannot be confirmed, so an empty key counts as none. The number 0 is a key.
        if key is None or (not key and not isinstance(key, int)):
            id_ = name
        else:
            pairs.append((NAME_HEADER, name))
            id_ = key.decode() if isinstance(key, bytes) else str(key)
        body = value.encode() if isinstance(value, str) else value
        yield Outgoing(name, number, place, id_, body, pairs, bool(high))


def queue_names(rows: pa.RecordBatch | pa.Table) -> list[str | None]:
    """Return the queue that the columns of each row name; ``None``: they name none."""
    names = rows.schema.names
    columns = (
        rows.column(name).to_pylist() if name in names else [None] * rows.num_rows
        for name in ("queue", "channel", "queue_id")
    )
    return [
        queue if queue is not None else None if channel is None else f"{channel}/{id_ or 0}"
        for queue, channel, id_ in zip(*columns, strict=True)
    ]


def _columns(rows: pa.RecordBatch, queue: str | None) -> tuple[list[Any], list[Any], list[Any], list[Any], list[Any]]:
    names = rows.schema.names

    def column(name: str) -> list[Any]:
        return rows.column(name).to_pylist() if name in names else [None] * rows.num_rows

    queues = queue_names(rows) if queue is None else [queue] * rows.num_rows
    return column("value"), column("key"), queues, column("headers"), column("high_priority")


def _pairs(headers: Any) -> list[tuple[str, str]]:
    """Convert valid headers from a map, or from a list of structs with key and value."""
    if not headers:
        return []
    pairs = [(part["key"], part["value"]) if isinstance(part, dict) else part for part in headers]
    return [
        (key, value.decode() if isinstance(value, bytes) else value or "")
        for key, value in pairs
        if len(key) not in _NOT_COPIED_BYTES or key.lower() not in NOT_COPIED
    ]
