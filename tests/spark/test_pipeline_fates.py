"""One fate for each message: all reports count the same, and as an account without Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqcore.spark import pipelines
from mqcore.spark.pipelines import fate
from mqcore.spark.pipelines.history import History
from spark.eventful import Eventful
from spark.fates import FATES, PRESENT, columns, lives_of, totals_of
from spark.made import archive_of, at
from spark.made import step as made
from spark.outcomes import rows_of
from spark.recorded import LENIENT, Recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT


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


def test_all_reports_agree_about_every_message_of_a_broker_that_was_killed(
    spark: SparkSession, eventful: Eventful, tmp_path: Path
) -> None:
    totals = check_agreement(spark, eventful, tmp_path)
    # The cache had its last message in memory, too.
    assert totals["lost"] == eventful.in_memory + 1
    assert totals["dead-lettered"] == eventful.dead
    assert totals["acked"] == 150 + 150 - eventful.dead + 30


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


def test_an_event_of_a_restart_can_stand_for_many_messages(spark: SparkSession, tmp_path: Path) -> None:
    """One event for each run of consecutive numbers means the same as one for each message."""
    steps = [made("started")] + [made("produced", number, time=at(1)) for number in range(1, 11)]
    steps += [made("acked", 4, last=True, time=at(2)), made("started", time=at(3))]
    single = [*steps, *(made("restored", number, time=at(3)) for number in (1, 2, 3, 4, 7))]
    runs = [*steps, *({**made("restored", first, time=at(3)), "messages": count} for first, count in ((1, 4), (7, 1)))]
    wanted = {life.number: life.fate[0] for life in lives_of(single)}
    assert Counter(wanted.values()) == {"waiting": 5, "lost": 5}
    data = archive_of(tmp_path / "data", single)
    history = History.of(spark, data)
    names = (*fate.STEP_COLUMNS, "messages")
    schema = "shard int, sequence long, kind string, queue string, number long, reason string, last boolean"
    rows = [
        tuple(
            {"shard": 0, "sequence": (1 << 20) + at_, "reason": None, "messages": None, **step}[name] for name in names
        )
        for at_, step in enumerate(runs)
    ]
    summarized = spark.createDataFrame(rows, f"{schema}, messages long")
    starts = {0: ((1 << 20, 0), ((1 << 20) + 12, 0))}
    for events, shards in (
        (history.fate_steps(), fate.Shards.of(history)),
        (summarized, fate.Shards(starts, 0)),
    ):
        lives = fate.lives(events, shards).select("number", fate.fate().alias("fate")).collect()
        assert {row["number"]: row["fate"] for row in lives} == wanted
