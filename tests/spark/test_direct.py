"""`format("mqcore")` in Spark: the archive on object storage, and the newest rows from the broker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqcore.spark
from object_stores import ObjectStore, moto_server, relaying
from served import wait_until
from spark.lakes import Lake, store_options
from spark.recorded import LENIENT
from spark.test_stream import NOW, Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("moto")
pytest.importorskip("pyiceberg")

pytestmark = LENIENT


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with moto_server() as running:
        yield running


@pytest.fixture(scope="module")
def lake(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Lake:
    """An archive, and a data directory with further messages; the broker is down."""
    made = Lake(store, tmp_path_factory.mktemp("direct") / "data", "direct")
    with made.serving("100ms") as broker:
        made.publish(broker, 400)
        made.wait()
        assert broker.terminate() == 0
    return made


def bodies(rows: Any) -> Counter[str]:
    return Counter(row["value"].decode() for row in rows.select("value").collect())


def test_a_query_reads_the_archive_while_the_broker_is_down_and_the_rest_from_the_broker(
    lake: Lake, spark: SparkSession
) -> None:
    archived = list(lake.sent)
    reader = spark.read.format("mqcore").option("archiveOptions", store_options(lake.store))
    alone = reader.load(lake.url)
    assert bodies(alone) == Counter(archived)
    # Filters reach the data source, whose rows Spark filters again.
    chosen = alone.where("channel = 'orders-1' AND queue_id = 0")
    assert bodies(chosen) == Counter(archived[1::8])
    assert {row["timestamp"] is None for row in alone.select("timestamp").collect()} == {False}
    steps = spark.read.format("mqcore").options(**lake.options(view="steps")).load()
    assert steps.where("kind = 'produced'").count() == len(archived)
    with lake.serving("1h") as broker, relaying(broker.admin_url) as (admin, between):
        lake.publish(broker, 30)
        again = spark.read.format("mqcore").options(**lake.options(admin=admin)).load()
        assert bodies(again) == Counter(lake.sent)
        # The broker sends the tail: a relay that saw nothing would prove nothing.
        sent = between.sent
        assert sent > 30 * 10
        whole = spark.read.format("mqcore").options(admin=admin).load()
        assert bodies(whole) == Counter(lake.sent)
        assert between.sent - sent > sent
        named = {"archive": lake.url, "admin": admin, "archiveOptions": store_options(lake.store)}
        missing = spark.read.format("mqcore").options(**named, subscribe="orders-9")
        with pytest.raises(Exception, match="no message has ever entered the channel or queue 'orders-9'") as raised:
            missing.load().count()
        assert "Traceback" not in str(raised.value)
        assert broker.terminate() == 0


def test_a_stream_begins_with_the_table_and_follows_the_broker(
    store: ObjectStore, spark: SparkSession, tmp_path: Path
) -> None:
    lake, sink = Lake(store, tmp_path / "data", "followed"), Sink()
    with lake.serving("100ms") as broker:
        lake.publish(broker, 160)
        lake.wait()
        assert broker.terminate() == 0

    def started(trigger: dict[str, Any], **options: str) -> Any:
        stream = spark.readStream.format("mqcore").options(**lake.options(startingOffsets="earliest", **options))
        writer = stream.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(**trigger).start()

    def count() -> int:
        return sink.bodies.total()

    # Without the broker, the stream ends where the archive ends.
    assert started(NOW, maxOffsetsPerTrigger="50").awaitTermination(120)
    assert sink.bodies == Counter(body.encode() for body in lake.sent)
    assert max(map(len, sink.batches)) <= 50
    with lake.serving("1h") as broker:
        lake.publish(broker, 40)
        query = started({"processingTime": "100 milliseconds"}, admin=broker.admin_url)
        try:
            wait_until(lambda: count() >= 200, limit=120, what="the rows of the broker")
            lake.publish(broker, 40)
            wait_until(lambda: count() >= 240, limit=120, what="later rows")
            # A query that stops within a batch repeats it later, and this sink keeps both.
            query.processAllAvailable()
            # The offsets are those of every other source of this history.
            offsets = json.loads(query.lastProgress["sources"][0]["endOffset"])
            assert set(offsets) == {"0", "1"}
            assert {len(place["journal"]) for place in offsets.values()} == {16}
        finally:
            query.stop()
        assert broker.terminate() == 0
    # Rows that came from the broker are archived now, and are not read again.
    with lake.serving("100ms") as broker:
        lake.publish(broker, 40)
        lake.wait()
        assert broker.terminate() == 0
    assert started(NOW).awaitTermination(120)
    assert sink.bodies == Counter(body.encode() for body in lake.sent)
    behind = mqcore.spark.lag(tmp_path / "checkpoint", lake.options())
    assert sum(shard.rows for shard in behind) == 0


def test_starting_time_selects_rows_of_the_table(lake: Lake, spark: SparkSession) -> None:
    reader = spark.read.format("mqcore").options(**lake.options())
    times = sorted(row["timestamp"] for row in reader.load().select("timestamp").collect())
    middle = times[len(times) // 2]
    later = reader.option("startingTimestamp", f"{middle.isoformat()}Z").load()
    assert later.count() == sum(time >= middle for time in times)
