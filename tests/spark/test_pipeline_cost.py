"""Bytes, requests and storage by queue and client, against an account of a real broker's history without Spark."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqcore import errors
from mqcore.cli.program import run
from mqcore.spark import pipelines
from mqcore.spark.pipelines.storage import divided, stored
from spark.eventful import Eventful
from spark.made import archive_of, at
from spark.made import step as made
from spark.outcomes import rows_of, run_whole, self_contained
from spark.recorded import IN_TURN, LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT, IN_TURN]

STEPS = ("use", "storage", "shares", "report")
Sums = dict[str, Counter[str]]


def account(steps: list[dict[str, Any]], by: str) -> Sums:
    """Sums of events and bytes by queue or client, in plain Python."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for step in steps:
        kind = step["kind"]
        if kind not in {"produced", "delivered", "acked", "nacked"}:
            continue
        who = "producer" if kind == "produced" else "consumer"
        client = step.get(f"{who}_name") or step.get(f"{who}_id") or "-"
        size = (step.get("header_bytes") or 0) + (step.get("body_bytes") or 0)
        counts = found[step["queue"] if by == "queue" else client]
        names = {"produced": ["published"], "delivered": ["delivered"]}.get(kind, [])
        if kind == "delivered" and step["attempt"] > 1:
            names.append("redelivered")
        for name in names:
            counts[name] += 1
            counts[f"{name}_bytes"] += size
        if kind in {"acked", "nacked"}:
            counts[kind] += 1
    return dict(found)


def check(rows: list[dict[str, Any]], column: str, sums: Sums) -> None:
    """Compare the counts of a table, and its sums and shares."""
    counted = (
        *("published", "delivered", "redelivered", "published_bytes", "delivered_bytes", "redelivered_bytes"),
        *("acked", "nacked"),
    )
    for row in rows:
        assert {name: row[name] for name in counted} == {
            name: sums.get(row[column], Counter())[name] for name in counted
        }
        assert row["requests"] == row["published"] + row["acked"] + row["nacked"]
        assert row["bytes"] == row["published_bytes"] + row["delivered_bytes"]
        assert row["storage_bytes"] == row["archive_bytes"] + row["journal_bytes"]
    assert set(sums) <= {row[column] for row in rows}
    for share, name in (("bytes_share", "bytes"), ("requests_share", "requests"), ("storage_share", "storage_bytes")):
        total = sum(row[name] for row in rows)
        assert [row[share] for row in rows] == pytest.approx([row[name] / total for row in rows])


def occupied(directory: Path) -> int:
    """Bytes that the files of a directory occupy, at most their lengths."""
    stats = [path.stat() for path in directory.rglob("*") if path.is_file()]
    return sum(min(stat.st_size, stat.st_blocks * 512) for stat in stats)


def test_sums_of_a_real_broker_equal_the_account_without_spark(
    spark: SparkSession, eventful: Eventful, tmp_path: Path
) -> None:
    steps = [step for life in eventful.lives().values() for step in life]
    outcome = run_whole("cost", spark, eventful.data_dir, tmp_path, STEPS)
    queues, clients = rows_of(outcome.tables["queues"]), rows_of(outcome.tables["clients"])
    check(queues, "queue", account(steps, "queue"))
    check(clients, "client", account(steps, "client"))
    assert {row["client"] for row in clients if row["published"]} == {"shop"}
    (work,) = [row for row in queues if row["queue"] == "work/1"]
    assert work["published"] == 401
    assert work["redelivered"] > 0 < work["redelivered_bytes"] < work["delivered_bytes"]
    assert sum(row["published_bytes"] for row in rows_of(outcome.tables["use"])) == outcome.figures["published_bytes"]

    # Every byte of the directory belongs to one row, of the queues as well as of the clients.
    size = occupied(eventful.data_dir)
    manifest = json.loads(max((eventful.data_dir / "archive" / "_manifests").glob("*.json")).read_bytes())
    in_archive: Counter[str] = Counter()
    for file in manifest["files"]:
        if file["channel"] is not None:
            in_archive[f"{file['channel']}/{file['queue_id']}"] += file["bytes"]
    assert {row["queue"]: row["archive_bytes"] for row in queues if row["archive_bytes"]} == dict(in_archive)
    for rows in (queues, clients):
        assert sum(row["storage_bytes"] for row in rows) == size
        assert sum(row["archive_bytes"] for row in rows) == in_archive.total() == outcome.figures["archive_bytes"]
    assert outcome.figures["journal_bytes"] == size - in_archive.total()
    # The shop published everything that is stored, apart from what belongs to no queue.
    of_shop = next(row for row in clients if row["client"] == "shop")
    assert of_shop["archive_bytes"] == in_archive.total() - in_archive["dead/9"]
    assert "Cost" in self_contained(outcome.report)


def producer(name: str) -> dict[str, Any]:
    return {"producer_name": name, "producer_id": f"id of {name}"}


def consumer(name: str | None) -> dict[str, Any]:
    return {"consumer_name": name, "consumer_id": "" if name is None else f"id of {name}"}


def made_up() -> list[dict[str, Any]]:
    """Steps of two days, with sizes that make prices easy to compute."""
    sizes: Mapping[str, int] = {"header_bytes": 100, "body_bytes": 900}
    steps = []
    for number in range(20):
        late = 86_400.0 if number >= 10 else 0.0
        queue = {"queue": "a/1" if number % 4 else "b/2"}
        steps.append(made("produced", number, time=at(late), **producer(f"p{number % 2}"), **sizes, **queue))
        who = consumer("c" if number < 15 else None)
        steps.append(made("delivered", number, time=at(late + 1), attempt=1, **who, **sizes, **queue))
        if number % 5 == 0:
            steps.append(made("nacked", number, time=at(late + 2), **who, **sizes, **queue))
            steps.append(made("delivered", number, time=at(late + 3), attempt=2, **who, **sizes, **queue))
        steps.append(made("acked", number, time=at(late + 4), last=True, **who, **sizes, **queue))
    return steps


@pytest.mark.full("runs the pipeline three times; test_the_command_takes_prices has a price and a period")
def test_prices_are_multiplied_and_periods_are_cut(spark: SparkSession, tmp_path: Path) -> None:
    steps = made_up()
    data = archive_of(tmp_path / "data", steps)
    prices = {"price_per_gb": 1e6, "price_per_million": 1e6, "price_per_gb_month": 1e3, "currency": "EUR"}
    outcome = run_whole("cost", spark, data, tmp_path / "out", STEPS, **prices)
    for table, column in (("queues", "queue"), ("clients", "client")):
        rows = rows_of(outcome.tables[table])
        check(rows, column, account(steps, column))
        for row in rows:
            assert row["traffic_cost"] == pytest.approx(row["bytes"] / 1e9 * 1e6)
            assert row["request_cost"] == pytest.approx(row["requests"] + row["delivered"])
            assert row["storage_cost"] == pytest.approx(row["storage_bytes"] / 1e9 * 1e3)
            assert row["cost"] == pytest.approx(row["traffic_cost"] + row["request_cost"] + row["storage_cost"])
        assert sum(row["cost_share"] for row in rows) == pytest.approx(1)
        assert sum(row["cost"] for row in rows) == pytest.approx(outcome.figures["cost"])
    assert rows_of(outcome.tables["queues"])[0]["queue"] == "a/1", "the most expensive one is first"
    # 20 messages published, 24 deliveries, each of 1000 bytes; 20 publishes, 20 acks, 4 nacks.
    stored_bytes = outcome.figures["archive_bytes"] + outcome.figures["journal_bytes"]
    assert outcome.figures["cost"] == pytest.approx(44_000 / 1e9 * 1e6 + 44 + 24 + stored_bytes / 1e9 * 1e3)
    assert outcome.summary.endswith(f"; cost {outcome.figures['cost']:,.2f} EUR")
    assert "EUR" in self_contained(outcome.report)

    second = pipelines.run("cost", spark, data, tmp_path / "out", since="2026-11-02")
    later = [step for step in steps if step["time"] >= datetime(2026, 11, 2, tzinfo=UTC)]
    check(rows_of(second.tables["queues"]), "queue", account(later, "queue"))
    assert (second.figures["published"], second.figures["cost"]) == (10, 0)
    assert "cost" not in second.summary
    none = pipelines.run("cost", spark, data, tmp_path / "out", until="2026-11-01")
    assert none.figures["published"] == 0
    assert "No message was published or delivered in the period" in self_contained(none.report)


def test_storage_is_divided_without_a_rest(tmp_path: Path) -> None:
    assert divided(10, {"b": 1, "a": 1, "c": 1}) == {"a": 3, "b": 3, "c": 4}
    assert sum(divided(1_000_003, {f"q{n}": n * n for n in range(50)}).values()) == 1_000_003
    assert divided(10, {}) == divided(10, {"a": 0}) == {}
    for name in ("shard-0/1.seg", "shard-12/1.seg", "limits/1.seg", "format"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(name))
    found = stored(tmp_path / "data")
    assert (found.archive, found.journals, found.shared) == ({}, {0: 13, 12: 14}, 18)
    assert found.total == occupied(tmp_path / "data")


def test_the_command_takes_prices(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _session: None)
    data = archive_of(tmp_path / "data", made_up())
    place = ["pipeline", "cost", "--journal", str(data), "--out", str(tmp_path / "out"), "--json"]
    assert run([*place, "--price-per-million", "1000000", "--until", "2026-11-02"]) == 0
    content = json.loads(capsys.readouterr()[0])
    assert (content["schema"], content["name"]) == ("mqcore.pipeline.run/1", "cost")
    assert content["figures"]["cost"] == 10 + 12 + 10 + 2
    assert {row["name"] for row in content["details"]["queues"]} == {"a/1", "b/2", "-"}


def test_prices_must_not_be_negative(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("price_per_gb", "price_per_million", "price_per_gb_month"):
        with pytest.raises(errors.ConfigError, match=rf"^{name} must be at least 0, not -1.0$"):
            pipelines.run("cost", spark, tmp_path, tmp_path, **{name: -1.0})
