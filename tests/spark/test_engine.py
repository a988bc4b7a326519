"""Abilities that older versions of Spark lack: Arrow for the tasks of a stream, and Python data sources at all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from served import clean_environment

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from mqcore.spark.engine import DataSourceStreamArrowWriter, RowStreamWriter
from mqcore.spark.rows import outgoing

PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


class Kept(DataSourceStreamArrowWriter):
    """Keeps what a sink would make of the rows."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.calls: list[Any] = []

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        self.found += [message for batch in iterator for message in outgoing(batch, len(self.found), "s/", "q/1")]

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 (as in Spark)
        self.calls.append(("commit", messages, batchId))

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803 (as in Spark)
        self.calls.append(("abort", messages, batchId))


def written(schema: StructType, *rows: tuple[Any, ...]) -> list[Any]:
    kept = Kept()
    RowStreamWriter(kept, schema).write(Row(*row) for row in rows)
    return kept.found


def test_rows_become_the_messages_that_arrow_would_become() -> None:
    schema = StructType(
        [
            StructField("value", StringType()),
            StructField("headers", ArrayType(PAIR)),
            StructField("high_priority", BooleanType()),
        ]
    )
    first, second = written(schema, ("é", [Row(key="a", value=bytearray(b"1"))], True), (None, None, False))
    assert (first.body, first.headers, first.high_priority) == ("é".encode(), [("a", "1")], True)
    assert (second.headers, second.high_priority) == ([], False)
    as_map = StructType(
        [StructField("value", BinaryType()), StructField("headers", MapType(StringType(), StringType()))]
    )
    (message,) = written(as_map, (bytearray(b"b"), {"x": "1", "y": "2"}))
    assert (message.body, message.headers) == (b"b", [("x", "1"), ("y", "2")])


def test_many_rows_are_written_in_order() -> None:
    schema = StructType([StructField("value", StringType())])
    found = written(schema, *((str(number),) for number in range(20_000)))
    assert [message.body for message in found] == [str(number).encode() for number in range(20_000)]
    assert written(schema) == []


def test_batches_are_committed_and_aborted_by_the_writer() -> None:
    kept = Kept()
    writer = RowStreamWriter(kept, StructType())
    writer.commit([None], 3)
    writer.abort([None], 4)
    assert kept.calls == [("commit", [None], 3), ("abort", [None], 4)]


def test_older_spark_is_an_error_before_anything_starts() -> None:
    program = (
        "import json, pyspark, mqcore.spark\n"
        "pyspark.__version__ = '3.5.9'\n"
        "try: mqcore.spark.session('local[1]')\n"
        "except Exception as error: print(json.dumps(str(error)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=clean_environment(), timeout=60
    )
    assert "pyspark 3.5.9 is too old: it has no Python data sources. Install 4.0 or newer" in json.loads(done.stdout)
