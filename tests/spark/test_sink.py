"""Writing: what reaches the broker, once, whatever is killed, repeated or cut into other tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqcore import QueueOptions, QueueStatus, sync
from spark.recorded import LENIENT, Recorded, declare, drain, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = LENIENT


def write(rows: DataFrame, live: Recorded, staging: Path, **options: str) -> None:
    writer = rows.write.format("mqcore").mode("append").option("url", live.served.url)
    writer.option("stagingLocation", str(staging)).options(**options).save()


def numbers(spark: SparkSession, count: int, parts: int = 3) -> DataFrame:
    return spark.range(0, count, 1, parts).selectExpr("cast(id as string) as value")


def test_rows_are_messages_once_and_in_the_order_of_their_partitions(
    spark: SparkSession, live: Recorded, tmp_path: Path
) -> None:
    write(numbers(spark, 20_000), live, tmp_path, queue="target/1", admin=live.served.admin_url)
    assert [int(body) for body in drain(live.served.url, "target/1")] == list(range(20_000))
    assert not list(tmp_path.rglob("*.arrow")), "nothing that was staged is left"


def test_columns_say_where_and_what(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    rows = spark.createDataFrame(
        [
            (bytearray(b"\x00\xff"), "one", "target", 1, [("A", "1"), ("B", "2")], False),
            (bytearray(b"two"), "two", "target", 2, [], True),
        ],
        "value binary, key string, channel string, queue_id int, headers array<struct<key:string,value:string>>, "
        "high_priority boolean",
    )
    write(rows, live, tmp_path)
    with sync.connect(live.served.url) as mq:
        (one,) = mq.queue("target/1").pull(10)
        (two,) = mq.queue("target/2").pull(10)
    assert (one.raw, one.id, one.headers.get("A"), one.headers.get("B")) == (b"\x00\xff", "one", "1", "2")
    assert (two.raw, two.id, two.high_priority) == (b"two", "two", True)
    with pytest.raises(Exception, match="unknown column 'extra'; rows can have value"):
        write(rows.selectExpr("value", "1 as extra"), live, tmp_path, queue="target/1")
    with pytest.raises(Exception, match="say where rows go"):
        write(rows.select("value"), live, tmp_path)
    with pytest.raises(Exception, match=r"mode\('append'\)"):
        rows.write.format("mqcore").mode("overwrite").option("url", live.served.url).save()


def test_invalid_rows_fail_a_write_before_any_is_published(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    rows = numbers(spark, 3000).selectExpr(
        "if(value = '2999', null, value) as value", "if(value = '17', repeat('k', 300), 'same') as key"
    )
    with pytest.raises(Exception, match=r"2 of 3,000 rows of batch 0 are invalid") as refusal:
        write(rows, live, tmp_path, queue="target/1", admin=live.served.admin_url)
    for text in ("row 17 of 0-00000-", "key-too-long: the key has 300 bytes", "row 999 of 0-00002-", "value-null"):
        assert text in str(refusal.value)
    assert drain(live.served.url, "target/1") == []
    with pytest.raises(Exception, match="the column value is of type bigint; convert it to string or binary"):
        write(spark.range(3).selectExpr("id as value"), live, tmp_path, queue="target/1")


def test_nulls_and_other_invalid_values_of_all_columns_go_to_the_queue_of_rejected_rows(
    spark: SparkSession, live: Recorded, tmp_path: Path
) -> None:
    kinds = (
        "value binary, key binary, queue string, channel string, queue_id int, headers map<string,binary>, "
        "high_priority boolean"
    )
    rows: list[tuple[Any, ...]] = [
        (bytearray(b"0"), None, "target/1", None, None, None, None),
        (bytearray(b"1"), bytearray(), None, "target", 1, {}, True),
        (bytearray(b"2"), bytearray(b"k"), None, "target", 1, {"A": None}, False),
        (None, None, None, None, None, None, None),
        (bytearray(b"4"), bytearray(b"\xff"), "target/1", None, None, None, None),
        (bytearray(b"5"), None, None, "target", 65_536, None, None),
        (bytearray(b"6"), None, "target/1", None, None, {"A": bytearray(b"a\nb")}, None),
        (bytearray(b"7"), bytearray(b"k"), "target/1", None, None, {"A": bytearray(b"a")}, None),
    ]
    with sync.connect(live.served.url) as mq:
        declare(mq, "bad/1")
    write(spark.createDataFrame(rows, kinds), live, tmp_path, rejectedQueue="bad/1", admin=live.served.admin_url)
    assert sorted(drain(live.served.url, "target/1")) == [b"0", b"1", b"2", b"7"]
    with sync.connect(live.served.url) as mq:
        found = {message.raw: message.headers.get("Rejected-Reason") for message in mq.queue("bad/1").pull(9)}
    assert found == {b"": "value-null", b"4": "key-not-text", b"5": "queue-invalid", b"6": "header-invalid"}


def test_a_queue_with_redriven_letters_is_copied_with_keys_and_headers(
    spark: SparkSession, live: Recorded, tmp_path: Path
) -> None:
    """The history has the same message id several times: published, dead-lettered, and published again."""
    with sync.connect(live.served.url) as mq:
        mq.create_queue(
            "work/1",
            QueueOptions(
                status=QueueStatus.PULL,
                request_acknowledge=True,
                put_back_limit=1,
                retry_delay=0,
                delivery_handler="at-least-once",
            ),
        )
        for number in range(20):
            mq.publish("work/1", str(number), id=f"id {number}", headers={"N": str(number)})
        letters = mq.queue("work/65535")
        for _ in range(40):
            for message in mq.queue("work/1").pull(1):
                message.nack("broken")
        eventually(lambda: letters.information().messages == 20)
        for message in letters.pull(20):
            mq.publish("work/1", message.raw, id=message.id, headers=dict(message.headers))
            message.ack()
    source = spark.read.format("mqcore").options(subscribe="work", includeHeaders="true").load(str(live.data_dir))
    rows = source.select("key", "value", "headers").orderBy("sequence")
    assert rows.count() == 60
    write(rows, live, tmp_path, queue="target/1", admin=live.served.admin_url)
    with sync.connect(live.served.url) as mq:
        found = list(mq.queue("target/1").pull(100))
    expected = Counter({f"id {number}": 3 for number in range(20)})
    assert Counter(message.id for message in found) == expected
    assert Counter(f"id {message.headers.get('N')}" for message in found) == expected
    assert Counter(message.headers.get("Dead-Letter-Queue") for message in found) == {None: 20, "work/1": 40}


def test_a_queue_that_is_not_there_fails_the_write_with_its_name(
    spark: SparkSession, live: Recorded, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="nobody/1"):
        write(numbers(spark, 1), live, tmp_path, queue="nobody/1")
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        write(
            numbers(spark, 1),
            live,
            tmp_path,
            url="tmqp://127.0.0.1:9",
            queue="target/1",
            timeout="1",
            retries="0",
        )


def test_a_write_with_a_version_is_written_once(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    for _ in range(3):
        write(numbers(spark, 100), live, tmp_path, queue="target/1", txnAppId="daily", txnVersion="7")
    write(numbers(spark, 10), live, tmp_path, queue="target/1", txnAppId="daily", txnVersion="8")
    assert len(drain(live.served.url, "target/1")) == 110


@pytest.mark.full("10 s; test_ledger.py repeats batches that were cut into other tasks")
def test_a_task_that_fails_once_doubles_nothing(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    from pyspark import TaskContext
    from pyspark.sql.functions import udf

    @udf("string")
    def stumbling(value: str) -> str:
        context: Any = TaskContext.get()
        if context.attemptNumber() == 0 and value.endswith("99"):
            raise RuntimeError("the first attempt fails")
        return value

    rows = numbers(spark, 3000).select(stumbling("value").alias("value"))
    write(rows, live, tmp_path, queue="target/1", admin=live.served.admin_url)
    assert Counter(map(int, drain(live.served.url, "target/1"))) == Counter(range(3000))


def test_a_stream_is_written_once_and_a_restart_writes_nothing_again(
    spark: SparkSession, live: Recorded, tmp_path: Path
) -> None:
    with sync.connect(live.served.url) as mq:
        for _ in range(2):
            live.publish(mq, "orders/1", 1000)
            source = (
                spark.readStream.format("mqcore").option("subscribe", "orders").option("maxOffsetsPerTrigger", "400")
            )
            rows = source.option("startingOffsets", "earliest").load(str(live.data_dir)).select("value")
            writer = rows.writeStream.format("mqcore").option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer = writer.options(url=live.served.url, queue="target/1", admin=live.served.admin_url)
            assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert drain(live.served.url, "target/1") == live.bodies["orders/1"]


@pytest.mark.full("10 s; test_two_publishers_of_one_sink_do_not_publish_side_by_side")
def test_two_queries_with_one_checkpoint_double_nothing(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    def start() -> Any:
        source = spark.readStream.format("mqcore").option("subscribe", "orders").option("startingOffsets", "earliest")
        rows = source.load(str(live.data_dir)).select("value")
        writer = rows.writeStream.format("mqcore").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.options(url=live.served.url, queue="target/1", admin=live.served.admin_url)
        return writer.trigger(processingTime="100 milliseconds").start()

    with sync.connect(live.served.url) as mq:
        live.publish(mq, "orders/1", 500)
        first = start()
        eventually(lambda: mq.queue("target/1").information().messages >= 500)
        # Spark stops the first one, wherever that is in a batch.
        live.publish(mq, "orders/1", 500)
        second = start()
        try:
            live.publish(mq, "orders/1", 500)
            eventually(lambda: mq.queue("target/1").information().messages >= 1500)
            assert not first.isActive
            second.processAllAvailable()
        finally:
            second.stop()
    assert Counter(drain(live.served.url, "target/1")) == Counter(live.bodies["orders/1"])
