"""Readers and writers of the data source as Spark calls them, without a Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqcore import errors, sync
from served import serving, wait_until
from spark.recorded import HISTORY, declare

pytest.importorskip("pyspark")

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

import mqcore.spark
from mqcore.spark import bundle
from mqcore.spark.sink import BatchWriter, StreamWriter
from mqcore.spark.source import MqcoreSource

BODIES = [str(number) for number in range(30)]
SCHEMA = StructType([StructField("value", StringType()), StructField("sequence", LongType())])


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stopped broker's history with 30 messages of one queue, one record each."""
    path = tmp_path_factory.mktemp("history")
    with serving("--data-dir", str(path), environment={**HISTORY, "MQCORE_ARCHIVE": "off"}) as served:
        with sync.connect(served.url) as mq:
            declare(mq, "orders/1")
            for body in BODIES:
                mq.publish("orders/1", body)
        served.terminate()
    return str(path)


def values(reader: Any, partitions: Any) -> list[str]:
    rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    return [row["value"] for row in sorted(rows, key=lambda row: row["sequence"])]


def stream(data_dir: str, **options: str) -> Any:
    return MqcoreSource({"path": data_dir, **options}).streamReader(SCHEMA)


def test_schema_is_that_of_the_chosen_columns(data_dir: str) -> None:
    assert MqcoreSource.name() == "mqcore"
    assert MqcoreSource({"path": data_dir, "columns": "key,sequence"}).schema() == "`key` binary, `sequence` bigint"


def test_batch_reader_reads_what_is_between_two_positions(data_dir: str) -> None:
    reader = MqcoreSource({"path": data_dir}).reader(SCHEMA)
    # Spark fails a query whose reader could take filters unless it wants to push some.
    assert type(reader).pushFilters is DataSourceReader.pushFilters
    assert values(reader, reader.partitions()) == BODIES
    later = MqcoreSource({"path": data_dir, "startingOffsets": "latest"}).reader(SCHEMA)
    assert later.partitions() == []
    many = MqcoreSource({"path": data_dir, "minPartitions": "4"}).reader(SCHEMA)
    assert len(many.partitions()) >= 4
    assert values(many, many.partitions()) == BODIES


def test_stream_begins_at_the_end_unless_a_position_or_a_time_is_given(data_dir: str) -> None:
    end = stream(data_dir).reportLatestOffset()
    assert stream(data_dir).initialOffset() == end
    assert stream(data_dir, startingOffsets="latest").initialOffset() == end
    beginning = {shard: {**place, "sequence": 0} for shard, place in end.items()}
    assert stream(data_dir, startingOffsets="earliest").initialOffset() == beginning
    assert stream(data_dir, startingTimestamp="0").initialOffset() == beginning


def test_stream_reads_batches_of_the_largest_number_of_rows(data_dir: str) -> None:
    assert isinstance(stream(data_dir).getDefaultReadLimit(), ReadAllAvailable)
    reader = stream(data_dir, startingOffsets="earliest", maxOffsetsPerTrigger="12")
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert limit.max_rows == 12
    offset, found, sizes = reader.initialOffset(), [], []
    while (behind := reader.latestOffset(offset, limit)) != offset:
        rows = values(reader, reader.partitions(offset, behind))
        found += rows
        sizes.append(len(rows))
        offset = behind
    # Which of them is the smallest depends on the shards of the queues, and these on a random key.
    assert (found, max(sizes)) == (BODIES, 12)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == reader.reportLatestOffset()


def test_stream_of_available_rows_ends_where_it_was_prepared(tmp_path: Path) -> None:
    environment = {**HISTORY, "MQCORE_ARCHIVE": "off"}
    with serving("--data-dir", str(tmp_path), environment=environment) as served, sync.connect(served.url) as mq:
        declare(mq, "orders/1")
        mq.publish("orders/1", "before")
        reader = stream(str(tmp_path), startingOffsets="earliest")
        offset = reader.initialOffset()

        def latest() -> Any:
            return stream(str(tmp_path)).initialOffset()

        wait_until(lambda: latest() != offset, what="the history")
        following = stream(str(tmp_path))
        reader.prepareForTriggerAvailableNow()
        prepared = reader.latestOffset(offset, ReadAllAvailable())
        beginning = following.initialOffset()
        mq.publish("orders/1", "later")
        wait_until(lambda: latest() != prepared, what="the later event")
        assert following.initialOffset() == beginning
        assert reader.latestOffset(offset, ReadAllAvailable()) == prepared


def test_writers_have_the_options_and_columns_of_the_query(tmp_path: Path) -> None:
    source = MqcoreSource({"url": "tmqp://127.0.0.1", "queue": "orders/1", "stagingLocation": str(tmp_path)})
    schema = StructType([StructField("value", BinaryType())])
    assert isinstance(source.writer(schema, False), BatchWriter)
    assert isinstance(source.streamWriter(schema, False), StreamWriter)
    with pytest.raises(errors.ConfigError, match="cannot be overwritten"):
        source.writer(schema, True)
    with pytest.raises(errors.ConfigError, match="the column value is missing"):
        source.writer(StructType([StructField("key", BinaryType())]), False)


def test_archive_that_cannot_be_read_is_an_error_before_spark_is_used(tmp_path: Path) -> None:
    unused: Any = None
    with pytest.raises(errors.ConfigError, match="unknown table 'rows'; use messages or steps"):
        mqcore.spark.archive(unused, tmp_path, "rows")  # type: ignore[arg-type]
    with pytest.raises(errors.DataDirMissing, match="has no archive"):
        mqcore.spark.archive(unused, tmp_path)


@pytest.mark.parametrize("arguments", [[], ["one.tar.gz", "two.tar.gz"], ["--help"]])
def test_bundle_without_one_file_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m mqcore.spark.bundle FILE.tar.gz\n"
