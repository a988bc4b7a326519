"""Batches of a sink as tasks stage them and the driver commits them, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqcore.spark.checks import Rules, Survey
from mqcore.spark.ledger import Batch, Ledger, Staged, Stager, row_prefix
from mqcore.spark.options import WriteOptions
from mqcore.spark.publisher import Publisher, history_ends
from mqcore.spark.sink import StagedMessage, commit
from spark.recorded import Recorded

SINK = "sink"
TYPES = {
    "queue": pa.string(),
    "channel": pa.string(),
    "queue_id": pa.int32(),
    "key": pa.string(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
}


def options_of(live: Recorded, place: Path, **more: str) -> WriteOptions:
    given = {"url": live.served.url, "admin": live.served.admin_url, "stagingLocation": str(place)}
    return WriteOptions.parse({**given, **more}, streaming=True)


def table(columns: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
    arrays = [pa.array(values, TYPES.get(name)) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def cut(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows.num_rows, size):
        yield rows.slice(first, size)


def staged(
    setting: WriteOptions, columns: Mapping[str, Sequence[Any]], number: int = 0, parts: int = 1
) -> list[Staged]:
    """Rows of a batch, staged and checked by as many tasks."""
    rows, found = table(columns), []
    each = max(1, -(-rows.num_rows // parts))
    for partition in range(parts):
        survey = Survey(Rules(setting.queue, row_prefix(SINK, number), setting.message_bytes))
        batches = survey.passing(cut(rows.slice(partition * each, each), 50))
        part = Stager(setting.staging, SINK, number, partition, 0).write(batches)
        found.append(replace(part, contents=survey.contents()))
    return found


def write(setting: WriteOptions, columns: Mapping[str, Sequence[Any]], number: int = 0, parts: int = 1) -> None:
    """Write a batch as the driver does."""
    commit(setting, [StagedMessage(part) for part in staged(setting, columns, number, parts)], number)


class Crashed(Exception):
    """Simulates a power loss."""


def crash_after(setting: WriteOptions, rows: int) -> None:
    """Publish batch 0 until so many rows are published, and end before that is recorded, as a kill would."""

    class Mortal(Ledger):
        def advance(self, number: int, published: int) -> None:
            if published >= rows:
                raise Crashed
            super().advance(number, published)

    ledger = Mortal(setting.staging, SINK)
    batch = ledger.find(0)
    assert batch is not None
    with pytest.raises(Crashed):
        Publisher(setting, ledger).publish(batch, fresh=False)


def promised(setting: WriteOptions, columns: Mapping[str, Sequence[Any]], parts: int = 1) -> Batch:
    """Commit batch 0 to the ledger, and publish nothing."""
    ledger = Ledger(setting.staging, SINK)
    batch, ours = ledger.promise(0, staged(setting, columns, 0, parts), history_ends(setting))
    assert ours
    return batch


def finish(setting: WriteOptions) -> None:
    """Publish the rest of batch 0, as a restarted driver does."""
    ledger = Ledger(setting.staging, SINK)
    batch = ledger.find(0)
    assert batch is not None
    Publisher(setting, ledger).publish(batch, fresh=False)
    assert ledger.published(0) == batch.rows
