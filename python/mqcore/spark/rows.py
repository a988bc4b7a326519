"""Converts rows of a DataFrame to messages, and checks their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from mqcore import errors

__all__ = ["COLUMNS", "NAME_HEADER", "Outgoing", "check_columns", "outgoing", "queues_of"]

NAME_HEADER: Final = "Mqcore-Sink"
"""Header with the name of a row, for rows whose message ids the user chose."""

COLUMNS: Final = ("value", "key", "queue", "channel", "queue_id", "headers", "high_priority")
"""Columns that a written DataFrame may have; ``value`` is required."""


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


def check_columns(names: Sequence[str], queue: str | None) -> None:
    """Raise `ConfigError` unless the columns contain a body, and a queue if no option names one."""
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise errors.ConfigError(f"unknown column {unknown[0]!r}; rows can have {', '.join(COLUMNS)}")
    if "value" not in names:
        raise errors.ConfigError("the column value is missing; rows need it as string or binary")
    if queue is None and "queue" not in names and "channel" not in names:
        raise errors.ConfigError(
            "say where rows go: by the option queue or channel, or by a column queue (orders/1001), "
            "or by the columns channel and queue_id"
        )


def outgoing(rows: pa.RecordBatch, first: int, prefix: str, queue: str | None) -> Iterator[Outgoing]:
    """Yield the messages of rows, numbered from `first`. An option that names a queue overrides the columns.

    Raises `InvalidArgument` for a row that says no queue.
    """
    names = rows.schema.names

    def column(name: str) -> list[Any]:
        return rows.column(name).to_pylist() if name in names else [None] * rows.num_rows

    queues = (
        [queue] * rows.num_rows
        if queue is not None
        else _queues(column("queue"), column("channel"), column("queue_id"))
    )
    parts = zip(column("value"), column("key"), queues, column("headers"), column("high_priority"), strict=True)
    for number, (value, key, place, headers, high) in enumerate(parts, first):
        if place is None:
            raise errors.InvalidArgument(f"row {number} of {prefix} names no queue; fill the column queue or channel")
        name = f"{prefix}{number}"
        pairs = _pairs(headers)
        if key is not None:
            pairs.append((NAME_HEADER, name))
        id_ = name if key is None else key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
        body = value.encode() if isinstance(value, str) else value or b""
        yield Outgoing(name, number, place, id_, body, pairs, bool(high))


def queues_of(rows: pa.RecordBatch) -> set[str]:
    """Return the queues named in the rows, without building messages."""
    columns = [name for name in ("queue", "channel", "queue_id") if name in rows.schema.names]
    if not columns:
        return set()
    kinds = pa.Table.from_batches([rows]).select(columns).group_by(columns).aggregate([]).to_pylist()
    parts = ([kind.get(name) for kind in kinds] for name in ("queue", "channel", "queue_id"))
    return {queue for queue in _queues(*parts) if queue is not None}


def _queues(queues: list[Any], channels: list[Any], ids: list[Any]) -> list[str | None]:
    return [
        queue if queue is not None else None if channel is None else f"{channel}/{id_ or 0}"
        for queue, channel, id_ in zip(queues, channels, ids, strict=True)
    ]


def _pairs(headers: Any) -> list[tuple[str, str]]:
    """Convert headers from a map, or from a list of structs with key and value."""
    if not headers:
        return []
    pairs = [(part["key"], part["value"]) if isinstance(part, dict) else part for part in headers]
    return [
        (str(key), value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or ""))
        for key, value in pairs
    ]
