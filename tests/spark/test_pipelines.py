"""Pipelines over what clients did, against a count in plain Python over the journal's own export."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from mqcore import errors
from mqcore.spark import pipelines
from mqcore.spark.pipelines import catalogue
from mqcore.spark.pipelines.lifecycle import COUNTED
from spark.eventful import Eventful
from spark.made import archive_of
from spark.made import step as made
from spark.recorded import LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT


def rows_of(path: Path) -> list[dict[str, Any]]:
    """A table that a pipeline wrote, read without Spark."""
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def self_contained(report: Path) -> str:
    page = report.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", page), "a report needs nothing beside it"
    assert "<script" not in page
    return page


def quantile(values: list[int], wanted: float) -> float:
    """Linear interpolation between neighbors, as in most libraries."""
    ordered = sorted(values)
    place = wanted * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def rounded(ms: int) -> int:
    step = 10 ** max(0, len(str(ms)) - 3)
    return ms if ms < 1000 else ms // step * step


def test_lifecycle_counts_what_the_journals_own_export_tells(
    spark: SparkSession, eventful: Eventful, tmp_path: Path
) -> None:
    reported: list[tuple[str, int, int]] = []
    outcome = pipelines.run(
        "lifecycle", spark, eventful.data_dir, tmp_path, interval=1, progress=lambda *place: reported.append(place)
    )
    assert {"latencies", "losses", "intervals", "report"} <= {what for what, _, _ in reported}
    steps = [step for life in eventful.lives().values() for step in life]
    expected: Counter[tuple[str, int, str]] = Counter()
    for step in steps:
        place = (step["queue"], int(step["time"].timestamp()))
        expected[(*place, step["kind"])] += 1
        expected[(*place, "dropped and gone")] += step["kind"] == "dropped" and step["last"]
        expected[(*place, "again")] += step["kind"] == "delivered" and step["attempt"] > 1
        expected[(*place, "body_bytes")] += step["body_bytes"] if step["kind"] in {"produced", "arrived"} else 0
    found: Counter[tuple[str, int, str]] = Counter()
    for row in rows_of(outcome.tables["intervals"]):
        place = (row["queue"], int(row["start"].timestamp()))
        for name, kind in (
            *COUNTED.items(),
            ("dropped", "dropped and gone"),
            ("redelivered", "again"),
            ("body_bytes",) * 2,
        ):
            found[(*place, kind)] += row[name]
    kinds = {*COUNTED.values(), "dropped and gone", "again", "body_bytes"}
    assert +found == +Counter({key: count for key, count in expected.items() if key[2] in kinds})
    assert outcome.figures["produced"] == 469 - eventful.dead
    assert outcome.figures["redelivered"] > 0


def test_latencies_are_those_of_each_message(spark: SparkSession, eventful: Eventful, tmp_path: Path) -> None:
    outcome = pipelines.run("lifecycle", spark, eventful.data_dir, tmp_path, interval=3600)
    took: dict[tuple[str, str], list[int]] = {}
    for life in eventful.lives().values():
        first: dict[str, Any] = {}
        for step in life:
            kind = "produced" if step["kind"] == "arrived" else step["kind"]
            first.setdefault(kind, step["time"])
        for what, begin, end in (("delivery", "produced", "delivered"), ("ack", "delivered", "acked")):
            if begin in first and end in first:
                ms = int((first[end] - first[begin]).total_seconds() * 1000 + 0.5)
                took.setdefault((life[0]["queue"], what), []).append(rounded(ms))
    assert len(took[("work/1", "ack")]) > 300
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows_of(outcome.tables["latencies"]):
        found.setdefault((row["queue"], row["what"]), []).extend([row["ms"]] * row["messages"])
    assert {key: sorted(values) for key, values in found.items()} == {key: sorted(v) for key, v in took.items()}
    intervals = [row for row in rows_of(outcome.tables["intervals"]) if row["queue"] == "work/1"]
    if len(intervals) == 1:  # Not at the turn of an hour.
        for name, wanted in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert intervals[0][f"ack_{name}"] == pytest.approx(quantile(took[("work/1", "ack")], wanted))
    page = self_contained(outcome.report)
    assert "<polyline" in page or "<circle" in page
    assert "dead-lettered: limit" in page


def fates(eventful: Eventful) -> Counter[tuple[str, str]]:
    """The outcome of each message, from its steps alone."""
    starts = {
        step["shard"]: (step["note"], step["position"])
        for step in sorted(eventful.steps(), key=lambda row: (row["note"], row["position"]))
        if step["kind"] == "started"
    }
    found: Counter[tuple[str, str]] = Counter()
    for (shard, _), life in eventful.lives().items():
        last = [step for step in life if step["last"]]
        assert len(last) < 2
        if last:
            kind, reason = last[0]["kind"], last[0]["reason"]
            fate = f"{kind}:{reason}" if kind in {"dropped", "dead-lettered"} else kind
        else:
            seen = (life[-1]["note"], life[-1]["position"])
            fate = "gone-at-restart" if seen < starts[shard] else "there"
        found[(life[0]["queue"], fate)] += 1
    return found


def test_every_message_is_accounted_for(spark: SparkSession, eventful: Eventful, tmp_path: Path) -> None:
    outcome = pipelines.run("reconcile", spark, eventful.data_dir, tmp_path)
    expected = fates(eventful)
    assert {(r["queue"], r["fate"]): r["messages"] for r in rows_of(outcome.tables["fates"])} == dict(expected)
    assert expected[("news/1", "dropped:no-consumer")] == 10
    assert expected[("latest/1", "replaced")] == 4
    assert expected[("memory/1", "gone-at-restart")] == eventful.in_memory
    assert expected[("memory/1", "there")] == 1
    assert expected[("work/1", "dead-lettered:limit")] == eventful.dead
    assert expected[("dead/9", "there")] == expected[("work/1", "dead-lettered:limit")]
    assert outcome.ok, outcome.summary
    assert outcome.figures["difference"] == outcome.figures["unaccounted"] == 0
    assert rows_of(outcome.tables["unaccounted"]) == []
    for row in rows_of(outcome.tables["balance"]):
        assert row["entered"] + row["earlier"] == sum(n for (queue, _), n in expected.items() if queue == row["queue"])
    assert "Every message is accounted for" in self_contained(outcome.report)


def life(number: int, *kinds: str, id: str | None = None) -> list[dict[str, Any]]:  # noqa: A002
    """The steps of one message; the last one ends it."""
    steps = [made(kind, number) for kind in kinds]
    steps[0]["message_id"] = id
    steps[-1]["last"] = True
    return steps


def test_messages_whose_steps_contradict_each_other_are_named(spark: SparkSession, tmp_path: Path) -> None:
    there = [made("produced", 7, message_id="seven"), made("saved", 7)]
    steps = [
        made("started"),
        *life(1, "produced", "saved", "delivered", "acked", id="one"),
        *life(2, "produced", "delivered", "acked", id="two"),
        made("acked", 2, last=True),
        *life(3, "produced", "delivered", "acked", id="three"),
        made("delivered", 3),
        *life(4, "produced", "produced", "done", id="four"),
        *life(5, "nacked", "dropped", id="five"),
        *there,
    ]
    outcome = pipelines.run("reconcile", spark, archive_of(tmp_path / "data", steps), tmp_path / "out")
    found = {(row["message_id"], row["number"], row["what"]) for row in rows_of(outcome.tables["unaccounted"])}
    assert found == {
        ("two", 2, "left-twice"),
        ("three", 3, "went-on-behind-its-end"),
        ("four", 4, "entered-twice"),
        ("five", 5, "never-entered"),
    }
    assert not outcome.ok
    (balance,) = rows_of(outcome.tables["balance"])
    # One entered twice, one left twice and one never entered: 6 came in, against 6 last steps and one that is there.
    assert (balance["entered"], balance["there"], balance["difference"]) == (6, 1, -1)
    page = self_contained(outcome.report)
    assert "left-twice" in page
    assert "Not every message is accounted for" in page


def test_events_removed_by_retention_are_accepted_but_missing_events_are_reported(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = [made("acked", 3, last=True), made("restored", 4), made("delivered", 5)]
    steps = [made("started"), *old, *life(9, "produced", "acked", id="nine")]
    outcome = pipelines.run("reconcile", spark, archive_of(tmp_path / "old", steps), tmp_path / "out")
    (balance,) = rows_of(outcome.tables["balance"])
    assert (balance["earlier"], balance["entered"], balance["acked"], balance["there"]) == (3, 1, 2, 2)
    assert outcome.ok, outcome.summary
    gap = [*steps, made("gap", missing=12)]
    outcome = pipelines.run("reconcile", spark, archive_of(tmp_path / "gap", gap, missing=2), tmp_path / "out")
    assert not outcome.ok
    assert "lacks 12 events and 2 records" in outcome.summary


def test_a_start_takes_what_was_not_restored_behind_it(spark: SparkSession, tmp_path: Path) -> None:
    steps = [
        made("started"),
        made("produced", 1),
        made("produced", 2),
        made("started"),
        made("restored", 2),
        made("produced", 3),
    ]
    outcome = pipelines.run("reconcile", spark, archive_of(tmp_path / "data", steps), tmp_path / "out")
    assert {row["fate"]: row["messages"] for row in rows_of(outcome.tables["fates"])} == {
        "gone-at-restart": 1,
        "there": 2,
    }


def test_end_undone_by_a_kill_does_not_count_as_a_second_life(spark: SparkSession, tmp_path: Path) -> None:
    steps = [
        made("started"),
        *life(1, "produced", "delivered", "acked"),
        *life(2, "produced", "delivered", "acked"),
        made("started"),
        *life(1, "restored", "delivered", "acked"),
        made("restored", 2),
        made("delivered", 2),
    ]
    outcome = pipelines.run("reconcile", spark, archive_of(tmp_path / "data", steps), tmp_path / "out")
    assert outcome.ok, outcome.summary
    assert (outcome.figures["acked"], outcome.figures["there"]) == (1, 1)


def test_a_pipeline_follows_by_running_again_when_there_is_more(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("started"), *life(1, "produced", "acked")])
    following = pipelines.follow("reconcile", spark, data, tmp_path / "out", every=0.05)
    assert next(following).figures["entered"] == 1
    shutil.rmtree(data)
    archive_of(data, [made("started"), *(row for n in range(1, 9) for row in life(n, "produced", "acked"))])
    assert next(following).figures["entered"] == 8


def test_options_that_there_are_not_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="use one of lifecycle, reconcile"):
        pipelines.run("lifecicle", spark, tmp_path, tmp_path)
    with pytest.raises(errors.ConfigError, match="there is interval"):
        catalogue.parsed(["lifecycle"], {"intervall": "3"})
    with pytest.raises(errors.ConfigError, match="interval must be a number"):
        catalogue.parsed(["lifecycle"], {"interval": "x"})
    with pytest.raises(errors.ConfigError, match="at least 1"):
        pipelines.run("lifecycle", spark, tmp_path, tmp_path, interval=0)
    with pytest.raises(errors.DataDirMissing):
        pipelines.run("lifecycle", spark, tmp_path / "nowhere", tmp_path)
    assert catalogue.parsed(["lifecycle"], {"interval": "3"}) == {"lifecycle": {"interval": 3}}
