"""One fate for each message: all reports count the same, and as an account without Spark."""

from __future__ import annotations

import json
import tarfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from depth import sample
from mqcore import QueueOptions, QueueStatus, sync
from mqcore.spark import pipelines
from mqcore.spark.pipelines import fate
from mqcore.spark.pipelines.history import History
from served import serving, wait_until
from spark.eventful import Eventful
from spark.fates import FATES, PRESENT, columns, lives_of, numbers_of, totals_of
from spark.made import archive_of, at, restored
from spark.made import step as made
from spark.outcomes import rows_of
from spark.recorded import ARCHIVE_SECONDS, HISTORY, IN_TURN, LENIENT, Recorded, archived, declare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT, IN_TURN]


def numbers(figures: Any) -> dict[str, int]:
    """Numbers of messages by fate."""
    return {name: figures[column] for name, column in zip(FATES, columns(FATES), strict=True) if figures[column]}


def check_agreement(spark: SparkSession, recorded: Recorded, out: Path) -> Counter[str]:
    """Run all reports that count fates, compare them with each other and with the model, and return the totals."""
    steps = sorted(recorded.steps(), key=lambda row: (row["note"], row["position"]))
    lives = lives_of(steps)
    totals = totals_of(lives)
    of_queue = Counter((life.queue, life.fate[0]) for life in lives)

    reconciled = pipelines.run("reconcile", spark, recorded.data_dir, out)
    assert reconciled.ok, reconciled.summary
    assert numbers(reconciled.figures) == dict(totals)
    entered = reconciled.figures["entered"] + reconciled.figures["earlier"]
    assert entered == totals.total() == len(lives)
    rows = rows_of(reconciled.tables["fates"])
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        found[(row["queue"], row["fate"])] += row["messages"]
    assert found == of_queue

    living = pipelines.run("lifecycle", spark, recorded.data_dir, out, interval=1)
    assert numbers(living.figures) == dict(totals)
    assert living.figures["produced"] + living.figures["arrived"] + living.figures["earlier"] == entered
    assert {(row["queue"], row["fate"]): row["messages"] for row in rows_of(living.tables["fates"])} == of_queue
    intervals = rows_of(living.tables["intervals"])
    left = {name: sum(row[column] for row in intervals) for name, column in zip(FATES, columns(FATES), strict=True)
            if name not in PRESENT}  # fmt: skip
    assert {name: count for name, count in left.items() if count} == {
        name: count for name, count in totals.items() if name not in PRESENT
    }

    producers = rows_of(pipelines.run("sessions", spark, recorded.data_dir, out).tables["producers"])
    assert numbers({column: sum(row[column] for row in producers) for column in columns(FATES)}) == dict(totals)
    assert sum(row["messages"] for row in producers) == entered
    assert all(row["producer"] for row in producers), "producers are known across restarts"

    letters = pipelines.run("deadletters", spark, recorded.data_dir, out)
    assert letters.figures["letters"] == totals["dead-lettered"]
    dead = {row["queue"] for row in rows_of(letters.tables["letters"])}
    expected = {fate_: sum(of_queue[(queue, fate_)] for queue in dead) for fate_ in FATES}
    assert Counter(row["fate"] for row in rows_of(letters.tables["letters"])) == Counter(expected)

    featured = pipelines.run("features", spark, recorded.data_dir, out, copies=True)
    assert featured.figures["messages"] == entered - reconciled.figures["earlier"]
    by_place = {(life.shard, life.number, life.queue): life.fate[0] for life in lives}
    for row in rows_of(featured.tables["features"]):
        assert row["fate"] == by_place[(row["shard"], row["number"], row["queue"])]
    return totals


@pytest.mark.full("runs five reports; test_pipeline_reconcile.py accounts for each message of the same broker")
def test_all_reports_agree_about_every_message_of_a_broker_that_was_killed(
    spark: SparkSession, eventful: Eventful, tmp_path: Path
) -> None:
    totals = check_agreement(spark, eventful, tmp_path)
    # The cache had its last message in memory, too.
    assert totals["lost"] == eventful.in_memory + 1
    assert totals["dead-lettered"] == eventful.dead
    assert totals["acked"] == 150 + 150 - eventful.dead + 30


@pytest.mark.full("runs five reports; test_pipeline_reconcile.py has a model of every fate")
def test_all_reports_agree_about_a_history_without_failures(
    spark: SparkSession, recorded: Recorded, tmp_path: Path
) -> None:
    totals = check_agreement(spark, recorded, tmp_path)
    assert totals == {"acked": recorded.acked, "waiting": recorded.count - recorded.acked}


def test_codes_name_each_fate_that_documentation_lists() -> None:
    # Four bits for the reason, of which ten values are used.
    codes = [*(code for code in range(17 << 4) if code & 15 < 10), *range(1024, 1028)]
    assert {fate.fate_of(code)[0] for code in codes} == set(fate.FATES) == set(FATES)
    documented = {line.split("``")[1] for line in (fate.__doc__ or "").splitlines() if line.startswith("| ``")}
    assert documented == set(FATES)
    assert set(fate.LOSSES) | set(fate.PRESENT) < set(FATES)
    assert fate.column_of("in-flight") == "in_flight"


@pytest.mark.parametrize("together", sample("events of a restart", [True, False]))
def test_an_event_of_a_restart_stands_for_many_messages(spark: SparkSession, tmp_path: Path, together: bool) -> None:
    """One event for all messages of a queue means the same as one for each message, in one history or in both."""
    steps = [made("started")] + [made("produced", number, time=at(1)) for number in range(1, 11)]
    steps += [made("produced", number, time=at(1), queue="logs/2") for number in range(11, 14)]
    steps += [made("acked", 4, last=True, time=at(2)), made("started", time=at(3))]
    single = [*steps, *(made("restored", number, time=at(3)) for number in (1, 2, 3, 4, 7))]
    single += [made("restored", number, time=at(3), queue="logs/2") for number in (11, 13)]
    all_at_once = [*steps, restored((1, 4), 7, time=at(3)), restored(11, 13, time=at(3), queue="logs/2")]
    # A second start of a later version: 2 was in flight and its acknowledgement was saved, 13 is still there.
    later = [made("started", time=at(4)), made("acked", 2, last=True, time=at(3.5)), made("started", time=at(4))]
    later += [restored(1, 3, 7, time=at(4)), restored(13, time=at(4), queue="logs/2")]
    later += [made("restored", 4, time=at(4)), made("acked", 4, last=True, time=at(5))]
    for at_, events in enumerate((single, all_at_once, [*single, *later], [*all_at_once, *later])):
        lives = lives_of(events)
        wanted = {(life.queue, life.number): life.fate[0] for life in lives}
        lost, waiting, acked = (6, 7, 0) if at_ < 2 else (7, 4, 2)
        assert Counter(wanted.values()) == Counter(waiting=waiting, lost=lost, acked=acked)
        data = archive_of(tmp_path / f"data-{at_}", events, together=together, parts=3)
        history = History.of(spark, data)
        found = fate.lives(history.fate_steps(), fate.Shards.of(history))
        rows = found.select("queue", "number", fate.fate().alias("fate")).collect()
        assert {(row["queue"], row["number"]): row["fate"] for row in rows} == wanted
        outcome = pipelines.run("reconcile", spark, data, tmp_path / f"out-{at_}")
        assert numbers(outcome.figures) == dict(totals_of(lives))
        assert outcome.ok, outcome.summary


@pytest.mark.full("runs five reports; test_an_event_of_a_restart_stands_for_many_messages has restarts")
def test_ten_thousand_messages_wait_over_three_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """Each start records one event for each queue, and the reports are those of the model."""
    import pyarrow.parquet  # noqa: F401 (used by Recorded)

    data = tmp_path / "data"
    environment = {**HISTORY, "MQCORE_SHARDS": "1"}
    acked = 0
    for start in range(4):
        with serving("--data-dir", str(data), environment=environment) as served:
            with sync.connect(served.url, name="shop") as mq:
                if not start:
                    declare(mq, "orders/1", "logs/2")
                    mq.declare("memory", 3, QueueOptions(status=QueueStatus.PULL))
                    for _ in range(20):
                        for queue in ("orders/1", "logs/2"):
                            mq.publish_many(queue, [b"waits"] * 250)
                mq.publish_many("memory/3", [b"in memory"] * 5)
                # Every second one, so that the numbers of the others are many ranges.
                for index, message in enumerate(mq.queue("orders/1").pull(20)):
                    if index % 2:
                        message.ack()
                        acked += 1
            wait_until(lambda start=start: archived(data, 10_000 + 5 * (start + 1)), limit=ARCHIVE_SECONDS)
            served.terminate()
    recorded = Recorded(data, served, acked=acked)
    steps = recorded.steps()
    restarts = Counter(step["queue"] for step in steps if step["kind"] == "restored")
    assert restarts == {"orders/1": 3, "logs/2": 3}
    counts = sorted(step["messages"] for step in steps if step["kind"] == "restored" and step["queue"] == "orders/1")
    assert counts == [4970, 4980, 4990]
    assert all(len(numbers_of(step)) == step["messages"] for step in steps if step["kind"] == "restored")
    totals = check_agreement(spark, recorded, tmp_path / "out")
    # Messages that were in flight at a restart wait; those of the last run were requeued.
    assert totals == {"acked": acked, "waiting": 10_000 - acked - 10 + 5, "requeued": 10, "lost": 15}
    assert acked == 40


@pytest.mark.full("runs ten reports; test_an_event_of_a_restart_... has events of both versions")
def test_history_of_an_earlier_version_continues(spark: SparkSession, tmp_path: Path) -> None:
    """Starts of an earlier version have an event for each message, in the archive and in the journal."""
    import pyarrow.parquet  # noqa: F401 (used by Recorded)

    data = tmp_path / "data"
    vector = Path(__file__).parent.parent / "vectors" / "restored_each"
    with tarfile.open(vector / "data.tar.gz") as packed:
        packed.extractall(data, filter="data")
    expected = json.loads((vector / "manifest.json").read_text())["fates"]
    for start in range(2):
        environment = {**HISTORY, "MQCORE_ARCHIVE": "on" if start else "off"}
        with serving("--data-dir", str(data), environment=environment) as served:
            recorded = Recorded(data, served)
            if start:
                # The archive gets files with more columns than those that it has.
                wait_until(lambda: archived(data, 73), limit=ARCHIVE_SECONDS, what="the archive")
            served.terminate()
        steps = recorded.steps()
        kinds = Counter(step.get("numbers") is None for step in steps if step["kind"] == "restored")
        assert kinds == {True: 153, False: 2 * (start + 1)}
        check_agreement(spark, recorded, tmp_path / f"out-{start}")
        of_queue: dict[str, Counter[str]] = defaultdict(Counter)
        for life in lives_of(sorted(steps, key=lambda row: (row["note"], row["position"]))):
            of_queue[life.queue][life.fate[0]] += 1
        assert of_queue == expected
        copied = pipelines.run("compact", spark, data, tmp_path / f"copy-{start}")
        assert copied.ok, copied.summary
    copy = tmp_path / "copy-1" / "compact" / "data"
    outcome = pipelines.run("reconcile", spark, copy, tmp_path / "out-copy")
    assert outcome.ok, outcome.summary
    assert outcome.figures["waiting"] == 46
