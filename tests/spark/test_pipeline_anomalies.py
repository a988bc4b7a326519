"""Unusual hours of made-up weeks, against a model in plain Python, and alerts to a broker that runs."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from depth import by_depth
from mqcore import errors, sync
from mqcore.cli.program import run
from mqcore.spark import pipelines
from mqcore.spark.pipelines.incidents import Alerts, Incident, merged
from spark.made import START, archive_of, at
from spark.made import step as made
from spark.outcomes import rows_of, run_whole, self_contained
from spark.recorded import IN_TURN, LENIENT, Recorded
from spark.weeks import DEAD, HOUR, LENGTH, PLANTED, SILENCE, SLOW, SPIKE, WEEK, Weeks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT, IN_TURN]

STEPS = ("measures", "anomalies", "report")


def hour_of(moment: datetime) -> int:
    return round((moment - START).total_seconds()) // HOUR


@pytest.fixture(scope="module")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Weeks]:
    """A queue with planted anomalies, and a calm one."""
    made_weeks = Weeks(1)
    made_weeks.add("orders/1", 60, PLANTED)
    made_weeks.add("calm/1", 40, {})
    return archive_of(tmp_path_factory.mktemp("weeks") / "data", made_weeks.steps, together=True), made_weeks


@pytest.mark.full("30 s; test_the_command_publishes_alerts finds all seven of them and nothing else")
def test_planted_anomalies_are_found_and_nothing_else(
    spark: SparkSession, weeks: tuple[Path, Weeks], tmp_path: Path
) -> None:
    data, model = weeks
    outcome = run_whole("anomalies", spark, data, tmp_path, STEPS, hours=48)
    expected = model.expected(48, 6)
    rows = {(row["queue"], row["measure"], hour_of(row["hour"])): row for row in rows_of(outcome.tables["hours"])}
    compared = {place: row for place, row in rows.items() if row["score"] is not None}
    assert set(compared) == set(expected)
    for place, (value, median, anomalous) in expected.items():
        row = compared[place]
        assert (row["value"], row["expected"]) == (pytest.approx(value, rel=0.01), pytest.approx(median, rel=0.01)), (
            place
        )
        assert row["anomalous"] is anomalous, place
    found = {
        (row["queue"], row["measure"], row["direction"], hour_of(row["start"]), hour_of(row["end"]))
        for row in rows_of(outcome.tables["anomalies"])
    }
    assert found == {
        ("orders/1", "published", "high", SPIKE, SPIKE + 1),
        ("orders/1", "acked", "high", SPIKE, SPIKE + 1),
        ("orders/1", "published", "low", SILENCE, SILENCE + 3),
        ("orders/1", "acked", "low", SILENCE, SILENCE + 3),
        ("orders/1", "delivery_ms", "high", SLOW, SLOW + 1),
        ("orders/1", "acked", "low", DEAD, DEAD + 1),
        ("orders/1", "dead_lettered", "high", DEAD, DEAD + 1),
    }
    assert outcome.figures["anomalies"] == len(outcome.details["anomalies"]) == 7
    assert outcome.figures["examined"] == len(expected)
    assert outcome.ok
    page = self_contained(outcome.report)
    assert "orders/1: published" in page
    assert "lowest usual" in page


@pytest.mark.parametrize("seed", range(by_depth(1, 5)))
@pytest.mark.full("10 s; the queues of test_the_command_publishes_alerts include a calm one")
def test_calm_weeks_have_no_anomaly(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    calm = Weeks(100 + seed)
    calm.add("calm/1", 60, {})
    calm.add("rare/1", 4, {})
    # An anomaly in an earlier week does not change what is usual.
    calm.add("once/1", 30, {LENGTH - 40 - WEEK: {"times": 5, "slow": 9}})
    data = archive_of(tmp_path / "data", calm.steps, together=True)
    outcome = run_whole("anomalies", spark, data, tmp_path / "out", STEPS, hours=48)
    assert outcome.details["anomalies"] == []
    assert outcome.figures["examined"] > 48 * 3 * 3
    page = self_contained(outcome.report)
    assert "Every value is within the usual range." in page
    assert "Largest deviation" in page


@pytest.mark.full("runs the pipeline three times; test_the_command_publishes_alerts runs it with enough weeks")
def test_too_short_a_history_is_stated(spark: SparkSession, weeks: tuple[Path, Weeks], tmp_path: Path) -> None:
    data, _ = weeks
    short = pipelines.run("anomalies", spark, data, tmp_path, hours=48, weeks=8, min_weeks=5)
    assert short.figures["examined"] == short.figures["anomalies"] == 0
    assert short.summary == (
        "nothing could be compared: the history has 30.0 days of complete hours, "
        "and 5 earlier weeks need more than 35 days"
    )
    assert "Nothing could be compared" in self_contained(short.report)
    # Hours of the second week have one earlier week; those of the fourth week three.
    partly = pipelines.run("anomalies", spark, data, tmp_path, hours=2 * WEEK, until="2026-11-24T12:00")
    assert partly.figures["examined"] > 0
    assert f"; {partly.figures['too_new']:,} values have fewer than 3 earlier weeks" in partly.summary
    empty = archive_of(tmp_path / "empty", [made("started")])
    assert "the history has 0.0 days" in pipelines.run("anomalies", spark, empty, tmp_path).summary


@pytest.mark.full("runs the pipeline again; test_the_command_publishes_alerts finds a silence")
def test_silence_until_now_is_an_anomaly(spark: SparkSession, weeks: tuple[Path, Weeks], tmp_path: Path) -> None:
    data, _ = weeks
    moment = at((LENGTH + 5) * HOUR).isoformat()
    outcome = pipelines.run("anomalies", spark, data, tmp_path, hours=4, until=moment)
    found = {(row["queue"], row["measure"], row["direction"]) for row in outcome.details["anomalies"]}
    assert {("orders/1", "published", "low"), ("orders/1", "acked", "low")} <= found
    assert all(row["value"] == 0 for row in outcome.details["anomalies"])


def alerts_of(mq: sync.Client, queue: str) -> list[tuple[str, dict[str, Any]]]:
    """Id and body of all alerts; they are acknowledged."""
    found = []
    while left := mq.queue(queue).information().messages:
        for each in mq.queue(queue).pull(left):
            found.append((each.id, json.loads(each.raw)))
            each.ack()
    return found


class Interrupted(Exception):
    """Raised in the middle of publishing."""


@pytest.mark.full("runs the pipeline four times; the tests of alerts and of the command below announce once")
def test_each_anomaly_is_announced_once(
    spark: SparkSession, live: Recorded, weeks: tuple[Path, Weeks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqcore.spark.ledger import Ledger

    data, _ = weeks
    access = {"alerts": "target/1", "url": live.served.url, "admin": live.served.admin_url}
    until = at((SILENCE + 1) * HOUR).isoformat()
    with sync.connect(live.served.url) as mq:
        first = pipelines.run("anomalies", spark, data, tmp_path, hours=20, until=until, **access)
        # Of the silence, only the first hour is examined.
        assert {(row["measure"], row["direction"]) for row in first.details["anomalies"]} == {
            *((measure, direction) for measure in ("published", "acked") for direction in ("high", "low"))
        }
        assert first.figures["alerts"] == 4
        alerts = alerts_of(mq, "target/1")
        assert {body["schema"] for _, body in alerts} == {"mqcore.alert.anomaly/1"}
        assert len({id_ for id_, _ in alerts}) == 4
        assert sorted((body["measure"], body["start"]) for _, body in alerts) == sorted(
            (row["measure"], row["start"]) for row in first.details["anomalies"]
        )

        def stop(*_: Any) -> None:
            raise Interrupted

        # Published, but killed before that was recorded.
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "advance", stop)
            with pytest.raises(Interrupted):
                pipelines.run("anomalies", spark, data, tmp_path, hours=48, **access)
        again = pipelines.run("anomalies", spark, data, tmp_path, hours=48, **access)
        assert again.figures["anomalies"] == 7
        late = alerts_of(mq, "target/1")
        # The spike and the silence are known; slow deliveries and dead letters are new.
        assert sorted(body["measure"] for _, body in late) == ["acked", "dead_lettered", "delivery_ms"]
        third = pipelines.run("anomalies", spark, data, tmp_path, hours=48, **access)
        assert (third.figures["anomalies"], third.figures["alerts"]) == (7, 0)
        assert alerts_of(mq, "target/1") == []


@pytest.mark.full("10 s; test_the_command_publishes_alerts runs with a queue of alerts")
def test_the_queue_of_alerts_is_not_examined(
    spark: SparkSession, live: Recorded, weeks: tuple[Path, Weeks], tmp_path: Path
) -> None:
    data, _ = weeks
    access = {"alerts": "Orders/1", "url": live.served.url}
    outcome = pipelines.run("anomalies", spark, data, tmp_path, hours=48, **access)
    assert {row["queue"] for row in rows_of(outcome.tables["hours"])} == {"calm/1"}
    assert (outcome.figures["anomalies"], outcome.figures["alerts"]) == (0, 0)


def incident(start: int, end: int, score: float = 7.0, **more: Any) -> Incident:
    values: dict[str, Any] = {"queue": "a/1", "measure": "published", "direction": "high"} | more
    return Incident(start=start * HOUR, end=end * HOUR, value=score, expected=1.0, score=score, weeks=4, **values)


def test_consecutive_hours_are_one_anomaly() -> None:
    hours = [incident(5, 6, 7), incident(7, 8, 8), incident(6, 7, 9), incident(9, 10, 8)]
    hours += [incident(6, 7, -7, direction="low"), incident(6, 7, 6, queue="b/1")]
    found = [(each.queue, each.direction, each.start // HOUR, each.end // HOUR, each.score) for each in merged(hours)]
    assert found == [
        ("a/1", "high", 5, 8, 9),
        ("a/1", "high", 9, 10, 8),
        ("a/1", "low", 6, 7, -7),
        ("b/1", "high", 6, 7, 6),
    ]
    assert merged([]) == []


def test_an_anomaly_that_continues_is_not_a_new_one(live: Recorded, tmp_path: Path) -> None:
    def announce(*incidents: Incident) -> int:
        alerts = Alerts(tmp_path / "alerts", "target/1", url=live.served.url, admin=live.served.admin_url, token="")
        return alerts.announce(incidents)

    assert announce() == 0
    assert announce(incident(5, 6)) == 1
    assert announce(incident(5, 8)) == 0
    assert announce(incident(7, 9)) == 0, "examined from a later hour on"
    assert announce(incident(9, 10)) == 0
    assert announce(incident(11, 12), incident(9, 10)) == 1, "a pause of an hour ends an anomaly"
    assert announce(incident(9, 10, -7, direction="low")) == 1
    with sync.connect(live.served.url) as mq:
        assert [body["start"] for _, body in alerts_of(mq, "target/1")] == [
            "1970-01-01T05:00:00Z",
            "1970-01-01T11:00:00Z",
            "1970-01-01T09:00:00Z",
        ]
    (tmp_path / "alerts" / "alerts.json").write_text("{")
    with pytest.raises(errors.DataDirDamaged, match="cannot read the record of alerts"):
        announce()


def test_the_command_publishes_alerts(
    spark: SparkSession,
    live: Recorded,
    weeks: tuple[Path, Weeks],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _session: None)
    data, _ = weeks
    place = ["pipeline", "anomalies", "--journal", str(data), "--out", str(tmp_path), "--hours", "48", "--json"]
    access = ["--alerts-to", "target/2", "--url", live.served.url, "--admin", live.served.admin_url]
    for published in (7, 0):
        assert run([*place, *access]) == 0
        printed, talk = capsys.readouterr()
        assert "no --admin" not in talk
        content = json.loads(printed)
        assert (content["schema"], content["name"]) == ("mqcore.pipeline.run/1", "anomalies")
        assert content["figures"]["alerts"] == published
    with sync.connect(live.served.url) as mq:
        assert len(alerts_of(mq, "target/2")) == 7


def test_wrong_options_are_errors_with_the_reason_first(spark: SparkSession, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"hours": 0}, r"^hours must be at least 1, min_weeks at least 2, weeks at least min_weeks$"),
        ({"min_weeks": 1}, r"^hours must be at least 1, min_weeks at least 2"),
        ({"weeks": 2}, r"^hours must be at least 1, min_weeks at least 2"),
        ({"threshold": 0.0}, r"^threshold must be more than 0, not 0.0$"),
        ({"alerts": "a/1"}, r"^alerts and url belong together; set both \(queue and broker\) or none$"),
        ({"alerts": "a/x", "url": "tmqp://x"}, r"^alerts has an invalid queue 'a/x'; use CHANNEL/ID"),
        ({"alerts": "a/1", "url": "mm2://x"}, r"^url is 'mm2://x', but messages are published over TMQP"),
        ({"until": "soon"}, r"^until is an invalid time 'soon'; use ISO 8601"),
    ]
    for options, reason in cases:
        with pytest.raises(errors.ConfigError, match=reason):
            pipelines.run("anomalies", spark, tmp_path, tmp_path / "out", **options)
