"""`mqcore.spark.read`: the archive on object storage by Spark's own reader, and the rest by the data source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqcore.spark
from mqcore import errors, sync
from served import ServedBroker, serving, wait_until
from spark.recorded import HISTORY, declare

pytest.importorskip("pyspark")

pytestmark = pytest.mark.timeout(240)
ARCHIVED = 60.0
"""Seconds until history is archived: the thread has a low priority and is slow while others use all processors."""


def publish(broker: ServedBroker, first: int, count: int) -> dict[str, str]:
    """Publish to three queues. Return the queue of each body."""
    sent = {}
    with sync.connect(broker.url) as mq:
        for number in range(first, first + count):
            queue = f"orders/{number % 3}"
            mq.publish(queue, str(number), headers={"N": str(number)})
            sent[str(number)] = queue
    return sent


@pytest.fixture(scope="module")
def halves(
    tmp_path_factory: pytest.TempPathFactory, spark: Any
) -> Iterator[tuple[ServedBroker, Path, str, dict[str, str]]]:
    """A broker, its data directory, the URL of its archive, and what is in the archive or in the journal."""
    root = tmp_path_factory.mktemp("bulk")
    (root / "lake").mkdir()
    url, directory = (root / "lake").as_uri(), root / "data"
    settings = {**HISTORY, "MQCORE_SHARDS": "2", "MQCORE_ARCHIVE_URL": url}
    serve = ("--data-dir", str(directory), "--admin", "http://127.0.0.1:0")
    with serving(*serve, environment={**settings, "MQCORE_ARCHIVE_INTERVAL": "100ms"}) as broker:
        with sync.connect(broker.url) as mq:
            for number in range(3):
                declare(mq, f"orders/{number}")
        sent = publish(broker, 0, 30)
        wait_until(lambda: count(spark, url) == 30, limit=ARCHIVED, what="the archive of all messages")
        broker.terminate()
    with serving(*serve, environment={**settings, "MQCORE_ARCHIVE_INTERVAL": "1h"}) as broker:
        sent |= publish(broker, 30, 20)
        yield broker, directory, url, sent


def count(spark: Any, url: str) -> int:
    """How many messages the archive has."""
    try:
        return int(mqcore.spark.read(spark, url).count())
    except errors.DataDirMissing:
        return 0


def queues(frame: Any) -> list[tuple[str, str]]:
    return sorted((row["body"].decode(), row["queue"]) for row in frame.select("body", "queue").collect())


def test_archive_and_journal_are_one_table_in_which_each_message_is_once(halves: Any, spark: Any) -> None:
    broker, directory, url, sent = halves
    assert count(spark, url) == 30
    for frame in (mqcore.spark.read(spark, url, admin=broker.admin_url), mqcore.spark.read(spark, directory)):
        assert queues(frame) == sorted(sent.items())
        assert frame.columns == mqcore.spark.read(spark, url).columns
        places = frame.select("shard", "note", "position").collect()
        assert len(set(places)) == len(sent)
        headers = {row["body"].decode(): row["headers"] for row in frame.collect()}
        assert all(dict(map(tuple, headers[body]))["N"] == body.encode() for body in sent)


def test_both_readers_agree_about_every_column(halves: Any, spark: Any) -> None:
    _, directory, _, sent = halves
    source = spark.read.format("mqcore").option("includeMeta", "true").load(str(directory))
    bulk = mqcore.spark.read(spark, directory)
    names = [
        "kind",
        "number",
        "message_id",
        "high_priority",
        "content_type",
        "producer_id",
        "body_bytes",
        "header_bytes",
    ]
    assert Counter(source.select(*names).collect()) == Counter(bulk.select(*names).collect())
    assert source.select("timestamp").exceptAll(bulk.select("time")).count() == 0
    assert bulk.count() == len(sent)


def test_steps_are_complete_too(halves: Any, spark: Any) -> None:
    broker, directory, url, sent = halves
    for frame in (
        mqcore.spark.read(spark, directory, "steps"),
        mqcore.spark.read(spark, url, "steps", admin=broker.admin_url),
    ):
        produced = frame.where("kind = 'produced'")
        assert produced.count() == len(sent)
        assert produced.select("queue").distinct().count() == 3


def test_named_queues_are_all_that_is_read(halves: Any, spark: Any) -> None:
    _, directory, url, sent = halves
    frame = mqcore.spark.read(spark, directory, queues=["Orders/1"])
    assert queues(frame) == sorted(item for item in sent.items() if item[1] == "orders/1")
    assert mqcore.spark.read(spark, url, queues=["other/1"]).count() == 0


NAMES = ("2024-events/0", "Orders/0", "audit/0")
"""Queues of one file, in its order."""


@pytest.mark.parametrize(
    ("names", "queue", "read"),
    [
        *((NAMES, name, True) for name in (*NAMES, "ORDERS/0", "Audit/0", "2024-EVENTS/0")),
        (NAMES, "2023-events/0", False),
        (NAMES, "payments/0", True),
        (NAMES, "audit/1", True),
        (("audit/0", "orders/0"), "payments/0", False),
        (("audit/0", "orders/0"), "archive/0", False),
        (("audit/0", "oZ/0", "orders/0"), "oz/0", True),
        (("2024/0", "2024/9"), "2024/90", False),
        (("2024/00", "2024/9"), "2024/0", False),
        (("Orders/0", "Orders/0"), "orders/0", True),
        (("Orders/0", "Orders/0"), "orders/1", False),
        (("Ärger/0", "Über/0"), "ärger/0", True),
        (("az/0", "a\N{KELVIN SIGN}/0"), "ak/0", True),
    ],
    ids=str,
)
def test_file_is_read_if_a_name_between_its_first_and_last_can_be_wanted(
    names: tuple[str, ...], queue: str, read: bool
) -> None:
    """The order in files distinguishes capitals, and queries do not."""
    from mqcore.spark.bulk import _may_have

    file = {"queues": [names[0], names[-1]], "channel": None, "queue_id": None}
    assert list(names) == sorted(names, key=str.encode)
    assert _may_have(file, ["/1", queue.lower()]) is read


def test_what_does_not_exist_is_a_clear_error(tmp_path: Path, spark: Any) -> None:
    with pytest.raises(errors.DataDirMissing, match="archive_url="):
        mqcore.spark.read(spark, tmp_path.as_uri())
    with pytest.raises(errors.ConfigError, match="use messages or steps"):
        mqcore.spark.read(spark, tmp_path.as_uri(), "rows")  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="write name=value"):
        mqcore.spark.read(spark, tmp_path.as_uri(), options=["region"])
