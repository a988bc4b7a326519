"""``spark.read.format("mqcore")``: rows, columns and options, against what clients did and what the journal says."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqcore.spark
from depth import by_depth, choices
from mqcore import sync
from served import serving, wait_until
from spark.recorded import ARCHIVE_SECONDS, HISTORY, LENIENT, QUEUES, Recorded, archived, declare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = LENIENT


def read(spark: SparkSession, recorded: Recorded, **options: str) -> DataFrame:
    return spark.read.format("mqcore").options(**options).load(str(recorded.data_dir))


def bodies(rows: DataFrame) -> Counter[bytes]:
    return Counter(bytes(row["value"]) for row in rows.select("value").collect())


def expected(recorded: Recorded, *queues: str) -> Counter[bytes]:
    return Counter(body for queue in queues or recorded.bodies for body in recorded.bodies[queue])


def fingerprint(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_session_has_the_given_master_and_its_settings(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_every_message_is_a_row_once_wherever_it_stands_and_nothing_is_changed(
    spark: SparkSession, recorded: Recorded
) -> None:
    before = fingerprint(recorded.data_dir)
    assert "archive/_manifests" in " ".join(before)
    rows = read(spark, recorded)
    assert rows.columns == ["key", "value", "channel", "queue_id", "sequence", "timestamp", "shard"]
    assert bodies(rows) == expected(recorded)
    found = rows.collect()
    assert len({(row["shard"], row["sequence"]) for row in found}) == recorded.count
    for queue in QUEUES:
        channel, _, number = queue.rpartition("/")
        of_queue = [row for row in found if (row["channel"], row["queue_id"]) == (channel, int(number))]
        of_queue.sort(key=lambda row: row["sequence"])
        assert [bytes(row["value"]) for row in of_queue] == recorded.bodies[queue], "sequences ascend as messages came"
    assert fingerprint(recorded.data_dir) == before


def test_the_steps_are_those_that_the_journals_own_export_tells(spark: SparkSession, recorded: Recorded) -> None:
    rows = read(spark, recorded, view="steps", includeMeta="true")
    found = {(row["shard"], row["sequence"] >> 20, row["sequence"] & 0xFFFFF): row for row in rows.collect()}
    steps = recorded.steps()
    assert len(found) == len(steps) > 2 * recorded.count
    assert Counter(row["kind"] for row in steps)["acked"] == recorded.acked > 0
    for step in steps:
        row = found[(step["shard"], step["note"], step["position"])]
        for name in (
            "kind",
            "number",
            "message_id",
            "attempt",
            "last",
            "reason",
            "producer_id",
            "body_bytes",
            "missing",
        ):
            assert row[name] == step[name], name
        channel, _, number = (step["queue"] or "/").rpartition("/")
        assert (row["channel"], row["queue_id"]) == (channel or None, int(number) if number else None)
        assert row["timestamp"].replace(tzinfo=None) == step["time"].replace(tzinfo=None)


def test_columns_are_those_that_are_asked_for(spark: SparkSession, recorded: Recorded) -> None:
    named = read(spark, recorded, columns="sequence, queue_id,topic")
    assert named.columns == ["sequence", "queue_id", "topic"]
    assert {row["topic"] for row in named.select("topic").distinct().collect()} == set(QUEUES)
    own = spark.read.format("mqcore").schema("topic string, partition int, offset bigint").load(str(recorded.data_dir))
    assert own.count() == recorded.count
    with_headers = read(spark, recorded, includeHeaders="true", includeMeta="true", subscribe="logs").first()
    assert with_headers is not None
    assert [(h["key"], bytes(h["value"])) for h in with_headers["headers"]] == [("Source", b"logs/2"), ("Empty", b"")]
    assert (with_headers["kind"], with_headers["producer_protocol"]) == ("produced", "tmqp")
    assert with_headers["message_id"].encode() == bytes(with_headers["key"])


def test_queues_are_subscribed_to_by_name_and_by_pattern(spark: SparkSession, recorded: Recorded) -> None:
    assert bodies(read(spark, recorded, subscribe="orders")) == expected(recorded, "orders/1", "orders/7")
    assert bodies(read(spark, recorded, subscribe="orders/7, mixed-case/0")) == expected(
        recorded, "orders/7", "Mixed-Case/0"
    )
    assert bodies(read(spark, recorded, subscribe="*s/2")) == expected(recorded, "logs/2")
    assert bodies(read(spark, recorded, subscribePattern="(orders|logs)/[2-9]")) == expected(
        recorded, "orders/7", "logs/2"
    )
    assert read(spark, recorded, subscribe="nobody", failOnMissingQueue="false").count() == 0
    assert read(spark, recorded, subscribePattern="nobody").count() == 0


def test_stretches_of_sequences_and_of_time_join_without_a_gap_or_an_overlap(
    spark: SparkSession, recorded: Recorded
) -> None:
    rows = read(spark, recorded, columns="shard,sequence,timestamp").collect()
    middle = {}
    for shard in (0, 1):
        of_shard = sorted(row["sequence"] for row in rows if row["shard"] == shard)
        middle[str(shard)] = of_shard[len(of_shard) // 2] if of_shard else 0
    place = json.dumps(middle)
    before, behind = read(spark, recorded, endingOffsets=place), read(spark, recorded, startingOffsets=place)
    assert 0 < before.count() < recorded.count
    assert bodies(before) + bodies(behind) == expected(recorded)
    moments = sorted(row["timestamp"] for row in rows)
    cut = moments[len(moments) // 2].replace(tzinfo=UTC)
    text = cut.isoformat()
    early, late = read(spark, recorded, endingTimestamp=text), read(spark, recorded, startingTimestamp=text)
    assert early.count() == sum(moment.replace(tzinfo=UTC) < cut for moment in moments)
    assert bodies(early) + bodies(late) == expected(recorded)
    ms = str(int(cut.timestamp() * 1000))
    assert read(spark, recorded, startingTimestamp=ms).count() == late.count()


def test_filters_mean_the_same_whether_they_are_pushed_or_not(spark: SparkSession, recorded: Recorded) -> None:
    moment = read(spark, recorded, columns="timestamp").agg({"timestamp": "max"}).first()
    assert moment is not None
    rows = read(spark, recorded, view="steps")
    conditions = [
        "channel = 'orders' and queue_id = 7",
        "kind in ('acked', 'saved')",
        "kind = 'acked' and channel = 'ORDERS'",
        f"timestamp >= timestamp'{moment[0]}'",
        f"timestamp < timestamp'{moment[0]}' and shard = 1",
        "sequence > 5000000 and sequence <= 20000000",
        "channel is null",
        "not (channel = 'orders')",
    ]
    counts = [rows.where(condition).count() for condition in conditions]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        plain = read(spark, recorded, view="steps")
        assert [plain.where(condition).count() for condition in conditions] == counts
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert counts[0] == sum(step["queue"] == "orders/7" for step in recorded.steps())
    assert counts[2] == 0, "Spark compares with regard to case, whatever was left out before"


def test_partitions_are_as_many_and_as_large_as_asked_for(spark: SparkSession, recorded: Recorded) -> None:
    assert read(spark, recorded).rdd.getNumPartitions() <= 4
    many = read(spark, recorded, minPartitions="7")
    assert many.rdd.getNumPartitions() >= 7
    assert bodies(many) == expected(recorded)
    small = read(spark, recorded, maxPartitionBytes="4k")
    assert small.rdd.getNumPartitions() > 4
    assert bodies(small) == expected(recorded)


def tasks(rows: DataFrame) -> int:
    """How many tasks have rows."""
    from pyspark.sql.functions import spark_partition_id

    return rows.select(spark_partition_id()).distinct().count()


def test_tasks_are_as_many_as_the_session_runs_at_the_same_time(spark: SparkSession, tmp_path: Path) -> None:
    random = choices(__name__)
    bodies_ = [random.randbytes(1000) for _ in range(6000)]
    environment = {**HISTORY, "MQCORE_ARCHIVE": "off"}
    with serving("--data-dir", str(tmp_path), environment=environment) as served:
        with sync.connect(served.url) as mq:
            declare(mq, "orders/1")
            for first in range(0, 6000, 100):
                mq.publish_many("orders/1", bodies_[first : first + 100])
        served.terminate()
    rows = spark.read.format("mqcore").load(str(tmp_path))
    assert tasks(rows) == spark.sparkContext.defaultParallelism == 2
    assert bodies(rows) == Counter(bodies_)
    assert tasks(spark.read.format("mqcore").option("minPartitions", "1").load(str(tmp_path))) == 1
    # A session that has not registered the format: as many as there are processors.
    other = spark.newSession().read.format("mqcore").load(str(tmp_path))
    assert tasks(other) == min(12, len(os.sched_getaffinity(0)))


def test_sql_reads_it_too(spark: SparkSession, recorded: Recorded) -> None:
    spark.sql(
        f"create or replace temp view recorded using mqcore options (path '{recorded.data_dir}', subscribe 'orders')"
    )
    found = spark.sql("select queue_id, count(*) as n from recorded group by queue_id order by queue_id").collect()
    assert [(row["queue_id"], row["n"]) for row in found] == [(1, 800), (7, 800)]


def test_the_archive_alone_is_a_plain_parquet_relation(spark: SparkSession, recorded: Recorded) -> None:
    messages = mqcore.spark.archive(spark, recorded.data_dir)
    assert messages.count() == 4 * 500
    plan = messages._jdf.queryExecution().toString()
    assert "parquet" in plan.lower()
    assert "Python" not in plan
    orders = mqcore.spark.archive(spark, recorded.data_dir, channels=["ORDERS"])
    assert {row["queue"] for row in orders.select("queue").distinct().collect()} == {"orders/1", "orders/7"}
    assert mqcore.spark.archive(spark, recorded.data_dir, dates=("1999-01-01", "1999-12-31")).count() == 0
    steps = mqcore.spark.archive(spark, recorded.data_dir, "steps")
    assert steps.where("kind = 'acked'").count() == recorded.acked


def test_more_files_than_spark_looks_at_itself_are_one_relation_and_no_setting_is_left_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    with serving("--data-dir", str(tmp_path), environment=HISTORY) as served:
        with sync.connect(served.url) as mq:
            for number in range(40):
                declare(mq, f"orders/{number}")
                mq.publish(f"orders/{number}", str(number))
        wait_until(lambda: archived(tmp_path, 40), limit=ARCHIVE_SECONDS, what="the archive")
    name = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    for before in (None, "7"):
        if before is not None:
            spark.conf.set(name, before)
        messages = mqcore.spark.archive(spark, tmp_path)
        assert sorted(int(row["body"]) for row in messages.select("body").collect()) == list(range(40))
        assert spark.conf.get(name) == (before or "32")
    spark.conf.unset(name)


def test_binary_columns_are_text_if_the_schema_has_strings(spark: SparkSession, recorded: Recorded) -> None:
    rows = spark.read.format("mqcore").schema("value string, key string, channel string").load(str(recorded.data_dir))
    found = rows.collect()
    assert Counter(row["value"].encode() for row in found) == expected(recorded)
    keys = {bytes(row["key"]).decode() for row in read(spark, recorded, columns="key").collect()}
    assert {row["key"] for row in found} == keys
    with pytest.raises(Exception, match="'value' has the type binary or string, but the given schema has int"):
        spark.read.format("mqcore").schema("value int").load(str(recorded.data_dir)).count()
    with pytest.raises(Exception, match="'channel' has the type string, but the given schema has binary"):
        spark.read.format("mqcore").schema("channel binary").load(str(recorded.data_dir)).count()


def test_invalid_options_have_clear_errors(spark: SparkSession, recorded: Recorded, tmp_path: Path) -> None:
    def refused(path: Path, **options: str) -> str:
        with pytest.raises(Exception) as raised:
            spark.read.format("mqcore").options(**options).load(str(path)).count()
        return str(raised.value)

    unknown = refused(recorded.data_dir, subscribed="orders")
    assert "did you mean subscribe" in unknown.splitlines()[0], "the reason comes first"
    assert "Traceback" not in unknown
    assert "no message has ever entered the channel or queue 'order'" in refused(recorded.data_dir, subscribe="order")
    assert "the file system hdfs cannot be read" in refused(Path("hdfs://host/data"))
    assert "maxOffsetsPerTrigger is only for spark.readStream" in refused(recorded.data_dir, maxOffsetsPerTrigger="5")
    assert "use path" in refused(recorded.data_dir, nonsense="1")
    assert "unknown column 'body'" in refused(recorded.data_dir, columns="body")
    assert "is not a data directory" in refused(tmp_path)
    (tmp_path / "format").write_text("something else")
    assert "not a data directory of this version" in refused(tmp_path)
    assert "sequence for each of the shards [0, 1]" in refused(recorded.data_dir, startingOffsets='{"0": 5}')
    assert "the history ends at sequence" in refused(
        recorded.data_dir, startingOffsets=json.dumps({"0": 1 << 50, "1": 0})
    )


def copied(recorded: Recorded, tmp_path: Path) -> Recorded:
    place = tmp_path / "copy"
    shutil.copytree(recorded.data_dir, place)
    return Recorded(place, recorded.served, recorded.bodies)


def test_a_torn_tail_costs_what_is_torn_and_nothing_else(
    spark: SparkSession, recorded: Recorded, tmp_path: Path
) -> None:
    torn = copied(recorded, tmp_path)
    lost: dict[Path, int] = {}
    for segment in sorted(torn.data_dir.glob("shard-*/*.segment")):
        data = segment.read_bytes()
        end = len(data.rstrip(b"\0"))
        if end > 4096:
            segment.write_bytes(data[: end - 100] + b"\xff" * 50 + bytes(len(data) - end + 50))
            lost[segment] = end
    assert lost
    found = bodies(read(spark, torn))
    assert 0 < sum(found.values()) <= recorded.count
    assert found <= expected(recorded)
    assert read(spark, torn).where("sequence is null").count() == 0


def test_history_that_is_gone_is_an_error_unless_that_is_wanted(
    spark: SparkSession, recorded: Recorded, tmp_path: Path
) -> None:
    gone = copied(recorded, tmp_path)
    middle = max(gone.data_dir.glob("shard-0/*.segment"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))
    data = bytearray(middle.read_bytes())
    # Damage in the middle of what was durable: all the rest of it is behind the first unreadable record.
    at = len(bytes(data).rstrip(b"\0")) // 2
    data[at : at + 200] = b"\xee" * 200
    middle.write_bytes(bytes(data))
    manifest = max((gone.data_dir / "archive" / "_manifests").glob("*.json"))
    content = json.loads(manifest.read_bytes())
    dropped = next(file for file in content["files"] if file["table"] == "messages")
    content["files"].remove(dropped)
    content["number"] += 1
    reach = content["shards"][str(dropped["shard"])]
    reach["kept_from"] = dropped["max_note"] + 1
    manifest.with_name(f"{content['number']:010}.json").write_text(json.dumps(content))
    (gone.data_dir / "archive" / dropped["path"]).unlink()
    start = {"0": 0, "1": 0} | {str(dropped["shard"]): (dropped["min_note"] or 1) << 20}
    with pytest.raises(Exception, match="retention has removed"):
        read(spark, gone, startingOffsets=json.dumps(start)).count()
    rest = read(spark, gone, startingOffsets=json.dumps(start), failOnDataLoss="false")
    assert 0 < rest.count() < recorded.count
    assert bodies(rest) < expected(recorded)


def test_rows_are_there_while_they_are_written_and_carried_over(spark: SparkSession, live: Recorded) -> None:
    with sync.connect(live.served.url) as mq:
        for _ in range(by_depth(3, 6)):
            for queue in QUEUES:
                live.publish(mq, queue, 200)
            assert bodies(read(spark, live)) == expected(live), "each round, wherever the archiver is"
        wait_until(lambda: archived(live.data_dir, live.count), limit=ARCHIVE_SECONDS, what="the archive")
        live.publish(mq, "orders/1", 10)
    assert bodies(read(spark, live)) == expected(live)


def test_a_broker_elsewhere_is_read_through_its_admin_side(spark: SparkSession, live: Recorded) -> None:
    with sync.connect(live.served.url) as mq:
        for queue in QUEUES:
            live.publish(mq, queue, 300)
    options: dict[str, Any] = {"admin": live.served.admin_url}
    rows = spark.read.format("mqcore").options(**options).load()
    assert bodies(rows) == expected(live)
    assert rows.where("channel = 'logs'").count() == 300
    moment = datetime.now(UTC).isoformat()
    assert spark.read.format("mqcore").options(**options, startingTimestamp=moment).load().count() == 0
    with pytest.raises(Exception, match="does not answer"):
        spark.read.format("mqcore").options(admin="http://127.0.0.1:9", retries="0").load().count()
