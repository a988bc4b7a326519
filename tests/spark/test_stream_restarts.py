"""Streams and batches in a Spark session whose broker is killed and stopped while they run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from depth import by_depth, sample
from mqcore import sync
from served import wait_until
from spark.recorded import LENIENT, declare
from spark.test_restarts import Restarted
from spark.test_stream import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT


def test_stream_survives_a_broker_that_is_killed_and_stopped(spark: SparkSession, tmp_path: Path) -> None:
    broker, sink = Restarted(tmp_path / "data"), Sink()
    sent: list[bytes] = []

    def publish(count: int) -> None:
        bodies = [f"{len(sent) + number}".encode() for number in range(count)]
        with sync.connect(broker.served.url) as mq:
            mq.publish_many("orders/1", bodies)
        sent.extend(bodies)

    with sync.connect(broker.served.url) as mq:
        declare(mq, "orders/1")
    publish(50)
    stream = spark.readStream.format("mqcore").options(admin=broker.admin_url, startingOffsets="earliest")
    writer = stream.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        for round_ in range(by_depth(2, 6)):
            wait_until(lambda: sum(sink.bodies.values()) >= len(sent) or not query.isActive, limit=120, what="the rows")
            broker.stop(kill=round_ % 2 == 0)
            assert query.isActive
            broker.start()
            publish(50)
        wait_until(lambda: sum(sink.bodies.values()) >= len(sent) or not query.isActive, limit=120, what="the rows")
        assert query.exception() is None
        assert sink.bodies == Counter(sent)
    finally:
        query.stop()
        broker.close()


@pytest.mark.parametrize("name", sample("ends of streams", ["endingOffsets", "endingTimestamp"]))
def test_end_of_a_stream_is_an_error_with_its_reason(spark: SparkSession, tmp_path: Path, name: str) -> None:
    options = {name: "latest" if name == "endingOffsets" else "5"}
    stream = spark.readStream.format("mqcore").options(**options).load(str(tmp_path))
    query = stream.writeStream.format("noop").start()
    with pytest.raises(Exception, match=f"{name} is only for spark.read; a stream has no end") as raised:
        query.awaitTermination(120)
    assert "Traceback" not in str(raised.value)


def test_permanent_error_of_a_stream_is_its_first_line(spark: SparkSession) -> None:
    stream = spark.readStream.format("mqcore").options(admin="http://127.0.0.1:9", retries="0").load()
    query = stream.writeStream.format("noop").start()
    with pytest.raises(Exception, match="does not answer") as raised:
        query.awaitTermination(120)
    reason = str(raised.value)
    assert reason.index("does not answer") < 500
    assert "Traceback" not in reason
