"""Common parts of all pipelines: names and options, progress, tables, and what they read of a history."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from mqcore import errors, sync
from mqcore.spark import pipelines
from mqcore.spark.pipelines import catalogue
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import watched
from served import serving
from spark.made import archive_of, message
from spark.made import step as made
from spark.recorded import LENIENT, Recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT

PARTITIONS = "spark.sql.shuffle.partitions"


def test_options_of_the_command_line_are_those_of_the_functions() -> None:
    parsed = catalogue.parsed
    assert {name: catalogue.option_names(name) for name in pipelines.NAMES} == {
        "lifecycle": {"interval": int},
        "reconcile": {},
        "deadletters": dict.fromkeys(("redrive", "clusters", "run", "admin"), str),
        "limits": {"by": str, "window": int, "limit": int, "headroom": float, "admin": str},
        "sessions": {"gap": int},
        "features": {"queue": str, "days": int, "sample": int, "columns": int, "copies": bool},
        "compact": {"target_mb": int, "keep_days": int},
        "replay": dict.fromkeys(("since", "until", "where", "kind", "to", "ids"), str)
        | {"rate": float}
        | dict.fromkeys(("url", "run", "admin", "token"), str),
        "quality": dict.fromkeys(("queue", "period", "baseline", "schema"), str) | {"moved": float, "fields": int},
        "cost": dict.fromkeys(("since", "until", "currency"), str)
        | dict.fromkeys(("price_per_gb", "price_per_million", "price_per_gb_month"), float),
        "anomalies": dict.fromkeys(("hours", "weeks", "min_weeks"), int)
        | {"threshold": float}
        | dict.fromkeys(("until", "alerts", "url", "admin", "token"), str),
    }
    assert parsed(["lifecycle", "limits"], {"interval": "3", "by": "id"}) == {
        "lifecycle": {"interval": 3},
        "limits": {"by": "id"},
    }
    assert parsed(["limits"], {"headroom": "1.25"}) == {"limits": {"headroom": 1.25}}
    assert parsed(["reconcile"], {}) == {"reconcile": {}}
    assert parsed(["features"], {"copies": "Yes"}) == {"features": {"copies": True}}
    assert parsed(["features"], {"copies": "no"}) == {"features": {"copies": False}}
    with pytest.raises(errors.ConfigError, match=r"^copies must be yes or no, not '1'$"):
        parsed(["features"], {"copies": "1"})
    with pytest.raises(errors.ConfigError, match="unknown pipeline 'lifecicle'; use one of lifecycle, reconcile, dead"):
        catalogue.known("lifecicle")
    with pytest.raises(errors.ConfigError, match="unknown pipeline 'lifecicle'"):
        catalogue.option_names("lifecicle")
    with pytest.raises(
        errors.ConfigError, match=r"^unknown option 'intervall' for lifecycle, sessions; there is gap, interval$"
    ):
        parsed(["lifecycle", "sessions"], {"intervall": "3"})
    with pytest.raises(errors.ConfigError, match=r"^unknown option 'x' for reconcile; there is none$"):
        parsed(["reconcile"], {"x": "3"})
    with pytest.raises(errors.ConfigError, match=r"^interval must be a number, not 'x'$"):
        parsed(["lifecycle"], {"interval": "x"})


def test_a_run_needs_a_pipeline_its_options_and_a_directory(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="unknown pipeline 'lifecicle'"):
        pipelines.run("lifecicle", spark, tmp_path, tmp_path)
    with pytest.raises(errors.ConfigError, match=r"^unknown option 'a' for pipeline lifecycle$"):
        pipelines.run("lifecycle", spark, tmp_path, tmp_path, interval=1, b=2, a=1)
    with pytest.raises(errors.DataDirMissing):
        pipelines.run("lifecycle", spark, tmp_path / "nowhere", tmp_path)


class Clock:
    """A clock that sleeping moves, and a test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        assert len(self.slept) < 20, "it sleeps for ever"
        self.now += seconds


def test_a_pipeline_follows_by_running_again_when_there_is_more(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(catalogue, "time", clock)
    data = archive_of(tmp_path / "data", [made("started"), made("produced", 1)])
    more = archive_of(tmp_path / "more", [made("started"), *(made("produced", number) for number in range(40))])

    def grow() -> None:
        (data / "archive").rename(tmp_path / "former")
        (more / "archive").rename(data / "archive")

    def sleep(seconds: float) -> None:
        Clock.sleep(clock, seconds)
        if len(clock.slept) == 3:
            grow()

    monkeypatch.setattr(clock, "sleep", sleep)
    following = pipelines.follow("limits", spark, data, tmp_path / "out", every=5.0)
    assert next(following).figures["messages"] == 1
    assert clock.slept == []
    clock.now += 3.5
    assert next(following).figures["messages"] == 40
    # The rest of the interval, and whole ones in which nothing had grown.
    assert clock.slept == [1.5, 5.0, 5.0]
    (tmp_path / "former").rename(data / "again")
    clock.now += 6
    more = archive_of(tmp_path / "third", [made("started"), *(made("produced", number) for number in range(80))])
    (data / "archive").rename(tmp_path / "second")
    (more / "archive").rename(data / "archive")
    assert next(following).figures["messages"] == 80
    assert clock.slept[3:] == [0.0], "a run that took longer than the interval is followed by the next one"


def test_progress_counts_the_tasks_of_the_running_step(spark: SparkSession, tmp_path: Path) -> None:
    """Two of four tasks wait until the progress says that the other two have finished."""
    go_on, seen = tmp_path / "go on", list[tuple[str, int, int]]()
    path = str(go_on)

    def progress(*place: Any) -> None:
        seen.append(place)
        if place == ("wait", 2, 4):
            go_on.touch()

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            limit = time.monotonic() + 40
            while batch.column("id")[0].as_py() > 1 and not Path(path).exists() and time.monotonic() < limit:
                time.sleep(0.05)
            yield batch

    with watched(spark, progress) as name:
        name("first", 1, 2)
        name("wait", 0, 0)
        assert spark.range(0, 4, 1, 4).mapInArrow(task, "id long").count() == 4
    assert seen[:2] == [("first", 1, 2), ("wait", 0, 0)]
    assert ("wait", 2, 4) in seen
    assert all(what == "wait" and 0 <= done <= known > 0 for what, done, known in seen[2:])
    assert not [each for each in threading.enumerate() if each.name == "mqcore-pipeline-progress"]
    with watched(spark, None) as name:
        name("unseen", 0, 0)
        assert not [each for each in threading.enumerate() if each.name == "mqcore-pipeline-progress"]


def test_a_table_is_replaced_as_a_whole(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(tmp_path / "new" / "out", "limits")
    assert Tables(tmp_path / "new" / "out", "limits").path("x") == tables.path("x")
    place = tmp_path / "new" / "out" / "limits"
    assert tables.write("each", spark.range(0, 10, 1, 3)).count() == 10
    assert len(list((place / "each").glob("*.parquet"))) == 3
    written = tables.write("each", spark.range(0, 10, 1, 3), files=1)
    assert (written.schema.simpleString(), written.count()) == ("struct<id:bigint>", 10)
    (file,) = (place / "each").glob("*.parquet")
    assert sorted(pq.read_table(file).column("id").to_pylist()) == list(range(10))
    tables.write("of/another", spark.range(1), files=1)
    tables.write("of/more", spark.range(1), files=1)
    assert tables.paths == {"each": place / "each", "of/another": place / "of/another", "of/more": place / "of/more"}
    # A table that cannot be written leaves the former one, and nothing else.
    broken = spark.range(1).selectExpr("raise_error('broken') AS id")
    with pytest.raises(Exception, match="broken"):
        tables.write("each", broken)
    assert written.count() == 10
    assert {path.name for path in place.iterdir()} == {"each", "of"}
    assert tables.write_page("<p>ä</p>") == tmp_path / "new" / "out" / "limits.html"
    tables.write_page("<p>ö</p>")
    assert (tmp_path / "new" / "out" / "limits.html").read_bytes() == "<p>ö</p>".encode()
    assert {path.name for path in (tmp_path / "new" / "out").iterdir()} == {"limits", "limits.html"}


def test_a_snapshot_of_an_archive_alone(spark: SparkSession, tmp_path: Path) -> None:
    steps = [made("produced", number) for number in range(25)] + [made("produced", 1, shard=1)]
    data = archive_of(tmp_path / "data", steps, [message(1, b"x")], missing=3, shards=2)
    history = History.of(spark, str(data))
    assert (history.data_dir, history.missing, history.rows) == (str(data), 6, 26)
    assert history.files is not None
    assert history.cuts == history.ends == {0: 4 << 20, 1: 2 << 20}
    assert json.loads(history.mark) == [[0, 4 << 20], [1, 2 << 20]]
    found = [(row[0], row[1]) for row in history.steps("shard", "sequence").collect()]
    assert sorted(found) == [*((0, (1 + at // 10 << 20) + at % 10) for at in range(25)), (1, 1 << 20)]


def test_a_snapshot_of_archive_and_journal_has_each_row_once(spark: SparkSession, recorded: Recorded) -> None:
    steps = recorded.steps()
    manifest = json.loads(max((recorded.data_dir / "archive" / "_manifests").glob("*.json")).read_bytes())
    history = History.of(spark, recorded.data_dir)
    assert history.cuts == {shard: manifest["shards"][str(shard)]["notes"] << 20 for shard in (0, 1)}
    assert all(history.ends[shard] > cut for shard, cut in history.cuts.items())
    assert history.missing == 0
    assert history.files is not None
    archived = sum(file["rows"] for file in manifest["files"] if file["table"] == "steps")
    tail = sum(history.ends[shard] - cut >> 20 for shard, cut in history.cuts.items())
    assert history.rows == archived + 64 * tail
    found = [tuple(row) for row in history.steps("shard", "sequence", "number").collect()]
    assert sorted(found, key=str) == sorted(
        ((row["shard"], (row["note"] << 20) + row["position"], row["number"]) for row in steps), key=str
    )
    assert history.messages("number").count() == recorded.count


def test_events_are_grouped_in_as_many_tasks_as_cores_and_events_need(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partitions(rows: int) -> str | None:
        history = History(spark, "", {}, {}, 0, rows, {}, None)
        with history.by_message():
            return spark.conf.get(PARTITIONS)

    before = spark.conf.get(PARTITIONS)
    assert (spark.sparkContext.defaultParallelism, before) == (2, "2")
    assert [partitions(rows) for rows in (0, 1_199_999, 1_200_000, 10**9)] == ["2", "2", "3", "2048"]
    monkeypatch.setattr(type(spark.sparkContext), "defaultParallelism", 16)
    assert [partitions(rows) for rows in (0, 100_000, 400_000, 10**7)] == ["2", "5", "16", "25"]
    assert spark.conf.get(PARTITIONS) == before


def test_a_directory_without_a_history_is_an_error_that_says_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "data"), "--auto-create") as served, sync.connect(served.url) as mq:
        mq.publish("orders/1", b"not recorded")
    for name in pipelines.NAMES:
        # Each pipeline by itself. Compacting needs an archive.
        wanted = "has no archive" if name == "compact" else "has no history; run the broker with --history"
        with pytest.raises(errors.DataDirMissing, match=wanted):
            pipelines.run(name, spark, tmp_path / "data", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.html"))
