"""Compacted archives: the same rows in fewer files, which every reader of archives can read."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import mqcore.spark
from depth import FULL
from mqcore import errors
from mqcore.spark import pipelines
from mqcore.spark.pipelines.compact import join_files
from mqcore.spark.pipelines.report import bars, table, tiles
from spark.eventful import Eventful
from spark.made import archive_of, message
from spark.made import step as made
from spark.outcomes import parts_of, run_whole
from spark.recorded import LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT


def rows_of_archive(data_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row that the newest manifest names, by table, in the order of the shard; and the manifest must be true."""
    manifest = json.loads(max((data_dir / "archive" / "_manifests").glob("*.json")).read_bytes())
    found: dict[str, list[dict[str, Any]]] = {"steps": [], "messages": []}
    for file in manifest["files"]:
        path = data_dir / "archive" / file["path"]
        rows = pq.ParquetFile(path).read().to_pylist()
        assert (len(rows), path.stat().st_size) == (file["rows"], file["bytes"])
        notes = [row["note"] for row in rows]
        assert (min(notes), max(notes)) == (file["min_note"], file["max_note"])
        assert notes == sorted(notes)
        found[file["table"]] += rows
    for rows in found.values():
        rows.sort(key=lambda row: (row["shard"], row["note"], row["position"]))
    return found


def test_a_compacted_archive_has_the_same_rows_in_fewer_files(
    spark: SparkSession, eventful: Eventful, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in sorted(eventful.data_dir.rglob("*")) if path.is_file()}
    outcome = pipelines.run("compact", spark, eventful.data_dir, tmp_path)
    data = outcome.tables["data"]
    assert rows_of_archive(data) == rows_of_archive(eventful.data_dir)
    assert outcome.figures["files_after"] <= outcome.figures["files_before"]
    assert {path: path.stat().st_mtime_ns for path in sorted(eventful.data_dir.rglob("*")) if path.is_file()} == before
    archived = rows_of_archive(eventful.data_dir)
    assert mqcore.spark.archive(spark, data).count() == len(archived["messages"])
    steps = spark.read.format("mqcore").option("view", "steps").load(str(data))
    assert steps.count() == len(archived["steps"])
    if not FULL:
        return
    again = pipelines.run("compact", spark, data, tmp_path / "again")
    assert again.figures["files_before"] == again.figures["files_after"] == outcome.figures["files_after"]


MIB = 1 << 20
STEPS = ("files", "report")
PLACE = ("table", "shard", "channel", "queue_id", "date")
LEAST, MOST = ("min_time_ms", "min_number", "min_note"), ("max_time_ms", "max_number", "max_note")


def manifest_of(data_dir: Path, number: int) -> tuple[Path, dict[str, Any]]:
    path = data_dir / "archive" / "_manifests" / f"{number:010}.json"
    return path, json.loads(path.read_bytes())


def small_files(data_dir: Path) -> dict[str, Any]:
    """Write an archive of many files, whose manifest names sizes around 1 MiB, and return its manifest."""
    now = datetime.now(UTC)
    old = now - timedelta(days=6)
    steps = [made("started", time=old), made("started", shard=1, time=now), made("started", shard=2, time=old)]
    for number in range(12):
        steps.append(made("produced", number, time=now))
        steps.append(made("produced", number, time=old if number < 6 else now, queue="logs/2", shard=1))
    messages = [message(number, bytes(range(256)), {"a": "b"}, time=now) for number in range(12)]
    archive_of(data_dir, steps, messages, shards=3, parts=6)
    path, manifest = manifest_of(data_dir, 1)
    sizes = iter([MIB // 2, MIB // 2, 1, MIB, MIB + 1, 1])
    for file in manifest["files"]:
        if file["table"] == "steps" and file["channel"] == "orders":
            file["bytes"] = next(sizes)
    # Archives of older versions name no notes.
    for file in manifest["files"]:
        if file["channel"] is None and file["shard"]:
            del file["min_note"], file["max_note"]
    del manifest["shards"]["1"]["kept_from"]
    manifest["shards"]["0"]["kept_from"] = 2
    manifest |= {"number": 7, "removed": {"files": 1, "rows": 2, "bytes": 3}}
    path.write_text(json.dumps(manifest))
    return manifest


def packed(files: list[dict[str, Any]], most: int) -> list[list[dict[str, Any]]]:
    """Files that become one: those of one place that follow each other, as many as fit."""
    found: list[list[dict[str, Any]]] = []
    latest: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for file in files:
        place = tuple(file[name] for name in PLACE)
        if place in latest and sum(each["bytes"] for each in latest[place]) + file["bytes"] <= most:
            latest[place].append(file)
        else:
            latest[place] = [file]
            found.append(latest[place])
    return found


def by_queue(files: list[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for file in files:
        name = "(shard)" if file["channel"] is None else f"{file['channel']}/{file['queue_id']}"
        sums = found.setdefault(name, [0, 0, 0])
        found[name] = [sums[0] + 1, sums[1] + file["rows"], sums[2] + file["bytes"]]
    return found


def check_page(
    outcome: pipelines.Outcome, data: Path, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    """Compare figures, summary and report."""
    removed = sum(file["rows"] for file in before) - sum(file["rows"] for file in after)
    figures = {
        "files_before": len(before),
        "files_after": len(after),
        "bytes_before": sum(file["bytes"] for file in before),
        "bytes_after": sum(file["bytes"] for file in after),
        "rows": sum(file["rows"] for file in after),
        "rows_removed": removed,
    }
    assert outcome.figures == figures
    assert outcome.summary == (
        f"{len(before)} files of {figures['bytes_before']:,} bytes became {len(after)} of "
        f"{figures['bytes_after']:,}; {figures['rows']} rows kept, {removed} too old"
    )
    then, now = by_queue(before), by_queue(after)
    queues = sorted(then, key=lambda queue: -then[queue][2])
    columns = ("queue", *(f"{what} {when}" for when in ("before", "after") for what in ("files", "rows", "bytes")))
    rows = [[queue, *then[queue], *now.get(queue, [0, 0, 0])] for queue in queues]
    counts = [(queue, now.get(queue, [0])[0]) for queue in queues]
    assert parts_of(outcome.report, "Compact", str(data)) == [
        tiles(*figures.items()),
        bars("Files before", "files", [(queue, then[queue][0]) for queue in queues], otherwise="There were none."),
        bars("Files after", "files", counts, otherwise="None."),
        table("Queues", columns, rows[:100], of=len(rows)),
    ]


def test_small_files_of_one_queue_and_day_become_few(spark: SparkSession, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    before = small_files(data)
    old = int((time.time() - 5 * 86_400) * 1000)
    kept = [file for file in before["files"] if file["max_time_ms"] >= old]
    gone = [file for file in before["files"] if file["max_time_ms"] < old]
    work = packed(kept, MIB)
    assert [len(files) for files in work] == [1, 2, 1, 1, 1, 1, 6, 6]
    outcome = run_whole("compact", spark, data, out, STEPS, {"files": 8}, target_mb=1, keep_days=5)
    assert outcome.tables == {"data": out / "compact" / "data"}
    path, after = manifest_of(outcome.tables["data"], 8)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert after["files"] == [
        {
            **{name: files[0][name] for name in PLACE},
            "path": f"{Path(files[0]['path']).parent}/0000000008-{index:05}.parquet",
            "bytes": (outcome.tables["data"] / "archive" / after["files"][index]["path"]).stat().st_size,
            "rows": sum(file["rows"] for file in files),
            **{name: min(file.get(name, 0) for file in files) for name in LEAST},
            **{name: max(file.get(name, 0) for file in files) for name in MOST},
        }
        for index, files in enumerate(work)
    ]
    size = sum(file["bytes"] for file in gone)
    removed = {"files": 1 + len(gone), "rows": 2 + sum(file["rows"] for file in gone), "bytes": 3 + size}
    assert len(gone) == 8
    assert before["written_ms"] < after["written_ms"] <= time.time() * 1000
    shards = {name: dict(reach) for name, reach in before["shards"].items()}
    # The note behind the last one that is gone; without its number, no later one than the first.
    shards["0"]["kept_from"] = 2
    shards["1"]["kept_from"] = 1 + max(file["max_note"] for file in gone if file["shard"] == 1)
    shards["2"]["kept_from"] = 1
    assert {**after, "files": [], "written_ms": 0} == {
        **before,
        "files": [],
        "written_ms": 0,
        "number": 8,
        "removed": removed,
        "shards": shards,
    }
    check_page(outcome, data, before["files"], after["files"])
    for files, entry in zip(work, after["files"], strict=True):
        joined = pq.ParquetFile(outcome.tables["data"] / "archive" / entry["path"])
        parts = [pq.ParquetFile(data / "archive" / file["path"]) for file in files]
        assert joined.read().to_pylist() == [row for part in parts for row in part.read().to_pylist()]
        assert joined.schema_arrow == parts[0].schema_arrow
        columns = [joined.metadata.row_group(0).column(at) for at in range(joined.metadata.num_columns)]
        assert {column.compression for column in columns} == {"ZSTD"}
        unmeasured = {column.path_in_schema.partition(".")[0] for column in columns if not column.is_stats_set}
        assert unmeasured == ({"body", "headers"} if entry["table"] == "messages" else set())
    assert (outcome.tables["data"] / "format").read_bytes() == (data / "format").read_bytes()


def test_an_archive_that_is_too_old_is_left_out_as_a_whole(spark: SparkSession, tmp_path: Path) -> None:
    steps = [made("produced", number, queue=f"queue/{number}") for number in range(101)]
    data = archive_of(tmp_path / "data", steps)
    before = manifest_of(data, 1)[1]
    outcome = run_whole("compact", spark, data, tmp_path / "out", STEPS, keep_days=1)
    after = manifest_of(outcome.tables["data"], 2)[1]
    assert (after["files"], after["removed"]["rows"]) == ([], 101)
    assert after["shards"]["0"]["kept_from"] == after["shards"]["0"]["notes"]
    check_page(outcome, data, before["files"], [])
    for wrong in ({"keep_days": -1}, {"target_mb": 0}):
        with pytest.raises(errors.ConfigError, match="target_mb must be at least 1, and keep_days at least 0"):
            pipelines.run("compact", spark, data, tmp_path, **wrong)
    with pytest.raises(errors.DataDirMissing, match="has no archive"):
        pipelines.run("compact", spark, tmp_path, tmp_path)


def test_a_file_with_fewer_rows_than_its_manifest_says_is_not_taken(tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("produced", 1), made("acked", 1)])
    (file,) = manifest_of(data, 1)[1]["files"]
    part = {"path": "steps/joined.parquet", "sources": [{**file, "rows": 3}]}
    (tmp_path / "target" / "steps").mkdir(parents=True)
    with pytest.raises(errors.DataDirUnreadable, match="2 rows"):
        join_files(data / "archive", tmp_path / "target", part)
    assert not (tmp_path / "target" / "steps" / "joined.parquet").exists()
    # A repetition after an attempt that died replaces its file.
    (tmp_path / "target" / "steps" / "joined.parquet").write_bytes(b"unfinished")
    part["sources"] = [file, file]
    assert join_files(data / "archive", tmp_path / "target", part)["rows"] == 4
    assert pq.read_table(tmp_path / "target" / "steps" / "joined.parquet", partitioning=None).num_rows == 4
