"""Archives of made-up steps that a broker never writes, to test that readers report them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

_STEPS: Final = pa.schema(
    [
        pa.field("time", pa.timestamp("us", tz="UTC")),
        *(pa.field(name, pa.int32()) for name in ("shard", "position")),
        *(pa.field(name, pa.int64()) for name in ("note", "number", "missing", "header_bytes", "body_bytes")),
        *(pa.field(name, pa.string()) for name in ("kind", "queue", "message_id", "reason", "target")),
        pa.field("attempt", pa.int32()),
        pa.field("last", pa.bool_()),
        *(
            pa.field(f"{who}_{what}", pa.string())
            for who in ("producer", "consumer")
            for what in ("id", "name", "type", "protocol")
        ),
    ]
)
START: Final = datetime(2026, 11, 1, 12, tzinfo=UTC)


def step(kind: str, number: int | None = None, **more: Any) -> dict[str, Any]:
    """A step, in the order in which they are made."""
    queue = None if number is None else "orders/1"
    return {"kind": kind, "number": number, "queue": queue, "last": False, "time": START} | more


def archive_of(data_dir: Path, steps: Sequence[Mapping[str, Any]], *, missing: int = 0) -> Path:
    """Write a data directory of one shard that has these steps in its archive, and no journal."""
    rows = [{"shard": 0, "note": 1 + at // 10, "position": at % 10} | dict(row) for at, row in enumerate(steps)]
    path = Path("steps/channel=orders/queue_id=1/date=2026-11-01/0000000001-00000.parquet")
    (data_dir / "archive" / path).parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=_STEPS), data_dir / "archive" / path, compression="zstd")
    notes = max(row["note"] for row in rows) + 1
    numbers = [row["number"] for row in rows if row["number"] is not None]
    file = {
        "table": "steps",
        "path": str(path),
        "shard": 0,
        "channel": "orders",
        "queue_id": 1,
        "date": "2026-11-01",
        "bytes": (data_dir / "archive" / path).stat().st_size,
        "rows": len(rows),
        "min_time_ms": int(START.timestamp() * 1000),
        "max_time_ms": int(START.timestamp() * 1000),
        "min_number": min(numbers, default=0),
        "max_number": max(numbers, default=0),
        "min_note": 1,
        "max_note": notes - 1,
    }
    manifest = {
        "format": "mqcore.archive/1",
        "schema_version": 1,
        "number": 1,
        "written_ms": file["max_time_ms"],
        "shards": {"0": {"journal": "00000000000000aa", "notes": notes, "missing": missing, "kept_from": 0}},
        "removed": {"files": 0, "rows": 0, "bytes": 0},
        "files": [file],
    }
    manifests = data_dir / "archive" / "_manifests"
    manifests.mkdir()
    (manifests / "0000000001.json").write_text(json.dumps(manifest))
    (data_dir / "format").write_text("mqcore data 1, shards 1\n")
    return data_dir
