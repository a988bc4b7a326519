"""How far a query is behind: from its progress, from its checkpoint, and by a listener."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqcore.spark
from mqcore import errors, sync
from mqcore.spark import ShardLag
from served import wait_until
from spark.recorded import LENIENT, Recorded
from spark.test_stream import NOW, Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT


def rows(found: list[ShardLag]) -> int:
    return sum(shard.rows for shard in found)


def test_lag_of_queries_checkpoints_and_listeners(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    checkpoint, options = str(tmp_path / "checkpoint"), {"path": str(live.data_dir), "subscribe": "orders"}
    reports: list[tuple[str, list[ShardLag]]] = []
    listener = mqcore.spark.lag_listener(options, lambda query, found: reports.append((query, found)), query="tail")
    with sync.connect(live.served.url) as mq:
        live.publish(mq, "orders/1", 60)
        live.publish(mq, "logs/2", 25)
        wait_until(lambda: waiting(options) == 60, what="the history")
        spark.streams.addListener(listener)
        try:
            stream = spark.readStream.format("mqcore").options(startingOffsets="earliest", **options).load()
            writer = stream.writeStream.foreachBatch(Sink()).option("checkpointLocation", checkpoint)
            query = writer.queryName("tail").trigger(**NOW).start()
            assert query.awaitTermination(120)
            wait_until(lambda: bool(reports) and rows(reports[-1][1]) == 0, limit=60, what="the report")
        finally:
            spark.streams.removeListener(listener)
        assert reports[-1][0] == "tail"
        assert rows(mqcore.spark.lag(query, options)) == 0
        behind = time.time()
        live.publish(mq, "orders/7", 40)
        live.publish(mq, "logs/2", 40)
        wait_until(lambda: rows(mqcore.spark.lag(checkpoint, options)) == 40, what="the history")
    for position in (checkpoint, Path(checkpoint), query, query.lastProgress["sources"][0]["endOffset"]):
        place = json.loads(position) if isinstance(position, str) and position.startswith("{") else position
        found = mqcore.spark.lag(place, options)
        assert rows(found) == 40
        late = max(shard.seconds for shard in found)
        assert 0 < late <= time.time() - behind + 1
        assert all((shard.rows == 0) == (shard.seconds == 0) for shard in found)
        assert [shard.shard for shard in found] == [0, 1]
        assert all(shard.position <= shard.latest for shard in found)
    remote = {"admin": live.served.admin_url, "subscribe": "orders"}
    assert rows(mqcore.spark.lag(checkpoint, remote)) == 40
    assert rows(mqcore.spark.lag(checkpoint, {"admin": live.served.admin_url})) == 80, "of all queues"


def waiting(options: dict[str, str]) -> int:
    beginning = {str(shard): {"journal": "", "sequence": 0} for shard in (0, 1)}
    return rows(mqcore.spark.lag(beginning, options))


def test_what_has_no_position_is_an_error(tmp_path: Path) -> None:
    options = {"path": str(tmp_path)}
    with pytest.raises(errors.ConfigError, match="is not the checkpoint of a query with a finished batch"):
        mqcore.spark.lag(tmp_path, options)
    with pytest.raises(errors.ConfigError, match="the mapping has no offsets of the format mqcore"):
        mqcore.spark.lag({"topic": {"0": 5}}, options)
    with pytest.raises(errors.ConfigError, match="endingOffsets is only for"):
        mqcore.spark.lag({}, {**options, "endingOffsets": "latest"})


def test_sources_of_a_checkpoint_are_numbered(recorded: Recorded, tmp_path: Path) -> None:
    def place(sequence: int) -> dict[str, Any]:
        return {str(shard): {"journal": "", "sequence": sequence} for shard in (0, 1)}

    for name, lines in (
        ("commits/7", ["v1", "{}"]),
        ("commits/.7.crc", ["x"]),
        (
            "offsets/7",
            ["v1", '{"batchWatermarkMs":0}', json.dumps(place(0)), '{"logOffset":3}', json.dumps(place(1 << 40))],
        ),
        ("offsets/8", ["v1", "{}", json.dumps(place(5))]),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines))
    options = {"path": str(recorded.data_dir), "failOnDataLoss": "false"}
    with pytest.raises(errors.ConfigError, match="has 2 sources of the format mqcore; choose one by source=0"):
        mqcore.spark.lag(tmp_path, options)
    assert rows(mqcore.spark.lag(tmp_path, options, source=0)) == recorded.count
    assert rows(mqcore.spark.lag(tmp_path, options, source=1)) == 0
    with pytest.raises(errors.ConfigError, match="has no source 2; it has 2"):
        mqcore.spark.lag(tmp_path, options, source=2)
