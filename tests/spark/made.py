"""Archives of made-up rows, also of such that a broker never writes, to test readers and pipelines."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

_PLACED: Final = (
    pa.field("time", pa.timestamp("us", tz="UTC")),
    *(pa.field(name, pa.int32()) for name in ("shard", "position")),
    *(pa.field(name, pa.int64()) for name in ("note", "number", "header_bytes", "body_bytes")),
    *(pa.field(name, pa.string()) for name in ("kind", "queue", "message_id")),
    *(pa.field(f"producer_{what}", pa.string()) for what in ("id", "name", "type", "protocol")),
)
_SCHEMAS: Final = {
    "steps": pa.schema(
        [
            *_PLACED,
            pa.field("missing", pa.int64()),
            *(pa.field(name, pa.string()) for name in ("reason", "target")),
            pa.field("attempt", pa.int32()),
            pa.field("last", pa.bool_()),
            *(pa.field(f"consumer_{what}", pa.string()) for what in ("id", "name", "type", "protocol")),
        ]
    ),
    "messages": pa.schema(
        [
            *_PLACED,
            pa.field("high_priority", pa.bool_()),
            pa.field("content_type", pa.int32()),
            pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            pa.field("body", pa.binary()),
        ]
    ),
}
_NUMBERS: Final = (
    pa.field("messages", pa.int64()),
    pa.field("numbers", pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))),
)
"""Columns that files of the first version of the schema do not have."""
START: Final = datetime(2026, 11, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """A time so many seconds behind the beginning."""
    return START + timedelta(seconds=seconds)


def step(kind: str, number: int | None = None, **more: Any) -> dict[str, Any]:
    """A step, in the order in which they are made."""
    queue = None if number is None else "orders/1"
    return {"kind": kind, "number": number, "queue": queue, "last": False, "time": START} | more


def restored(*numbers: int | tuple[int, int], **more: Any) -> dict[str, Any]:
    """The step of a restart that restored messages with these numbers, single or from first to last."""
    parts = [(part, part) if isinstance(part, int) else part for part in numbers]
    ranges = [{"first": first, "last": last} for first, last in parts]
    count = sum(last - first + 1 for first, last in parts)
    return step("restored", parts[0][0], messages=count, numbers=ranges) | more


def message(number: int, body: bytes | None, headers: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A message that was published to its queue."""
    pairs = [{"key": key, "value": value.encode()} for key, value in (headers or {}).items()]
    row = {"kind": "produced", "number": number, "queue": "orders/1", "time": START, "body": body, "headers": pairs}
    return row | {"high_priority": False, "body_bytes": len(body or b"")} | more


def archive_of(
    data_dir: Path,
    steps: Sequence[Mapping[str, Any]],
    messages: Sequence[Mapping[str, Any]] = (),
    *,
    missing: int = 0,
    shards: int = 1,
    parts: int = 1,
    together: bool = False,
) -> Path:
    """Write a data directory that has these rows in its archive, and no journal.

    Rows are in the order of their shard, by default 0. Those of a table, shard, queue and day are in `parts` files;
    `together`, those of all queues.
    """
    notes = [1] * shards
    files: list[dict[str, Any]] = []
    for table, given in (("steps", steps), ("messages", messages)):
        counts: defaultdict[int, int] = defaultdict(int)
        places: defaultdict[tuple[int, str | None, str], list[dict[str, Any]]] = defaultdict(list)
        for row in given:
            shard = row.get("shard", 0)
            place = {"shard": shard, "note": 1 + counts[shard] // 10, "position": counts[shard] % 10}
            counts[shard] += 1
            notes[shard] = max(notes[shard], place["note"] + 1)
            places[(shard, None if together else row["queue"], row["time"].date().isoformat())].append(
                place | dict(row)
            )
        for (shard, queue, date), rows in places.items():
            each = -(-len(rows) // parts)
            for first in range(0, len(rows), each):
                files.append(_file(data_dir, table, shard, queue, date, rows[first : first + each], len(files)))
    manifest = {
        "format": "mqcore.archive/1",
        "schema_version": 1,
        "number": 1,
        "written_ms": int(START.timestamp() * 1000),
        "shards": {
            str(shard): {"journal": "00000000000000aa", "notes": notes[shard], "missing": missing, "kept_from": 0}
            for shard in range(shards)
        },
        "removed": {"files": 0, "rows": 0, "bytes": 0},
        "files": files,
    }
    manifests = data_dir / "archive" / "_manifests"
    manifests.mkdir(parents=True)
    (manifests / "0000000001.json").write_text(json.dumps(manifest))
    (data_dir / "format").write_text(f"mqcore data 1, shards {shards}\n")
    return data_dir


def _file(
    data_dir: Path, table: str, shard: int, queue: str | None, date: str, rows: list[dict[str, Any]], number: int
) -> dict[str, Any]:
    """Write one file, and return its entry in the manifest."""
    channel, _, queue_id = (queue or "").rpartition("/")
    folder = f"channel={channel}/queue_id={queue_id}" if queue else f"shard={shard}"
    path = Path(f"{table}/{folder}/date={date}/0000000001-{number:05}.parquet")
    (data_dir / "archive" / path).parent.mkdir(parents=True, exist_ok=True)
    schema = _SCHEMAS[table]
    if any("numbers" in row for row in rows):
        for field in _NUMBERS:
            schema = schema.append(field)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), data_dir / "archive" / path, compression="zstd")
    numbers = [row["number"] for row in rows if row["number"] is not None]
    times = [int(row["time"].timestamp() * 1000) for row in rows]
    return {
        "table": table,
        "path": str(path),
        "shard": shard,
        "channel": channel if queue else None,
        "queue_id": int(queue_id) if queue else None,
        "date": date,
        "bytes": (data_dir / "archive" / path).stat().st_size,
        "rows": len(rows),
        "min_time_ms": min(times),
        "max_time_ms": max(times),
        "min_number": min(numbers, default=0),
        "max_number": max(numbers, default=0),
        "min_note": min(row["note"] for row in rows),
        "max_note": max(row["note"] for row in rows),
    }
