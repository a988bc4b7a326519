"""``spark.readStream.format("mqcore")``: offsets, limits, checkpoints, and what comes while a query runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from depth import by_depth
from mqcore import sync
from spark.recorded import LENIENT, QUEUES, Recorded, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = LENIENT


class Sink:
    """Keeps the bodies of each batch, in the driver."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []

    def __call__(self, rows: DataFrame, _number: int) -> None:
        self.batches.append([bytes(row["value"]) for row in rows.select("value").collect()])

    @property
    def bodies(self) -> Counter[bytes]:
        return Counter(body for batch in self.batches for body in batch)


@pytest.fixture
def follow(spark: SparkSession, tmp_path: Path) -> Any:
    running: list[StreamingQuery] = []

    def start(recorded: Recorded, sink: Callable[..., None], trigger: dict[str, Any], **options: str) -> StreamingQuery:
        stream = spark.readStream.format("mqcore").options(**options)
        rows = stream.load() if "admin" in options else stream.load(str(recorded.data_dir))
        writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        running.append(writer.trigger(**trigger).start())
        return running[-1]

    yield start
    for query in running:
        query.stop()


def expected(recorded: Recorded) -> Counter[bytes]:
    return Counter(body for bodies in recorded.bodies.values() for body in bodies)


NOW: dict[str, Any] = {"availableNow": True}


def test_available_rows_arrive_in_batches_of_the_requested_size(recorded: Recorded, follow: Any) -> None:
    sink = Sink()
    query = follow(recorded, sink, NOW, startingOffsets="earliest", maxOffsetsPerTrigger="700")
    assert query.awaitTermination(120)
    assert sink.bodies == expected(recorded)
    sizes = [len(batch) for batch in sink.batches if batch]
    assert max(sizes) <= 700
    assert len(sizes) >= recorded.count // 700
    assert sizes[0] > 300, "a limit is used, and not only kept"


def test_query_resumes_at_its_checkpoint_without_duplicates(live: Recorded, follow: Any) -> None:
    sink = Sink()
    with sync.connect(live.served.url) as mq:
        for round_ in range(by_depth(2, 3)):
            for queue in QUEUES:
                live.publish(mq, queue, 50 * (round_ + 1))
            query = follow(live, sink, NOW, startingOffsets="earliest")
            assert query.awaitTermination(120)
            assert sink.bodies == expected(live), f"after round {round_}"
    offsets = json.loads(query.lastProgress["sources"][0]["endOffset"]) if query.lastProgress else {}
    assert set(offsets) <= {"0", "1"}


def test_a_stream_begins_with_what_is_to_come_and_sees_it_soon(live: Recorded, follow: Any) -> None:
    sink = Sink()
    with sync.connect(live.served.url) as mq:
        live.publish(mq, "orders/1", 100)
        query = follow(live, sink, {"processingTime": "200 milliseconds"}, subscribe="orders")
        eventually(lambda: query.lastProgress is not None)
        before = expected(live)
        live.publish(mq, "orders/7", 30)
        live.publish(mq, "logs/2", 30)
        eventually(lambda: sum(sink.bodies.values()) >= 30)
        assert sink.bodies == Counter(live.bodies["orders/7"])
        assert not sink.bodies & before


def test_a_broker_elsewhere_is_followed_through_its_admin_side(live: Recorded, follow: Any) -> None:
    sink = Sink()
    with sync.connect(live.served.url) as mq:
        for queue in QUEUES:
            live.publish(mq, queue, 100)
    options = {"admin": live.served.admin_url, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"}
    assert follow(live, sink, NOW, **options).awaitTermination(120)
    assert sink.bodies == expected(live)
    assert max(map(len, sink.batches)) <= 150


def test_a_checkpoint_of_another_journal_is_refused(live: Recorded, recorded: Recorded, follow: Any) -> None:
    sink = Sink()
    assert follow(recorded, sink, NOW, startingOffsets="earliest").awaitTermination(120)
    with sync.connect(live.served.url) as mq:
        live.publish(mq, "orders/1", 10)
    with pytest.raises(Exception, match="the journal has changed"):
        follow(live, sink, NOW, startingOffsets="earliest").awaitTermination(120)


@pytest.mark.full("10 s; test_query_resumes_at_its_checkpoint_without_duplicates in the same session")
def test_checkpoints_of_other_sessions_are_continued(live: Recorded, follow: Any, spark: SparkSession) -> None:
    """Local sessions write checkpoints with fewer programs, in the same format."""
    key, sink = "spark.sql.streaming.checkpointFileManagerClass", Sink()
    ours = spark.conf.get(key)
    assert ours is not None
    package, _, name = ours.rpartition(".")
    assert name == "FileSystemBasedCheckpointFileManager"
    with sync.connect(live.served.url) as mq:
        for manager in (f"{package}.FileContextBasedCheckpointFileManager", ours):
            live.publish(mq, "orders/1", 20)
            spark.conf.set(key, manager)
            try:
                assert follow(live, sink, NOW, startingOffsets="earliest").awaitTermination(120)
            finally:
                spark.conf.set(key, ours)
            assert sink.bodies == expected(live)
