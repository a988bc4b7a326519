"""Compacted archives: the same rows in fewer files, which every reader of archives can read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import mqcore.spark
from depth import FULL
from mqcore import errors
from mqcore.spark import pipelines
from mqcore.spark.pipelines.compact import join_files
from spark.eventful import Eventful
from spark.made import START, archive_of
from spark.made import step as made
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


def test_small_files_of_one_queue_and_day_become_one(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("started"), *(made("produced", number) for number in range(1, 100))])
    path = data / "archive" / "_manifests" / "0000000001.json"
    manifest = json.loads(path.read_bytes())
    (whole,) = manifest["files"]
    table = pq.read_table(data / "archive" / whole["path"], partitioning=None)
    manifest["files"] = []
    for index in range(10):
        part = table.slice(index * 10, 10)
        name = whole["path"].replace("-00000", f"-{index + 1:05}")
        pq.write_table(part, data / "archive" / name)
        notes, size = part.column("note").to_pylist(), (data / "archive" / name).stat().st_size
        numbers = {"min_note": min(notes), "max_note": max(notes), "rows": 10, "bytes": size}
        manifest["files"].append({**whole, **numbers, "path": name})
    path.write_text(json.dumps(manifest))
    outcome = pipelines.run("compact", spark, data, tmp_path / "out")
    assert (outcome.figures["files_before"], outcome.figures["files_after"]) == (10, 1)
    assert rows_of_archive(outcome.tables["data"]) == rows_of_archive(data)


def test_compact_drops_old_rows_and_reports_them(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("started"), made("produced", 1)])
    age = int((time.time() - START.timestamp()) // 86_400)
    assert age > 1
    kept = pipelines.run("compact", spark, data, tmp_path / "kept", keep_days=age + 2)
    assert (kept.figures["rows"], kept.figures["rows_removed"]) == (2, 0)
    gone = pipelines.run("compact", spark, data, tmp_path / "gone", keep_days=1)
    assert (gone.figures["rows"], gone.figures["rows_removed"]) == (0, 2)
    manifest = json.loads((gone.tables["data"] / "archive" / "_manifests" / "0000000002.json").read_bytes())
    assert manifest["removed"]["rows"] == 2
    assert manifest["shards"]["0"]["kept_from"] == manifest["shards"]["0"]["notes"]
    with pytest.raises(errors.ConfigError, match="keep_days"):
        pipelines.run("compact", spark, data, tmp_path, keep_days=-1)


def test_a_file_with_fewer_rows_than_its_manifest_says_is_not_taken(tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("started"), made("produced", 1)])
    (file,) = json.loads((data / "archive" / "_manifests" / "0000000001.json").read_bytes())["files"]
    part = {"path": "steps/joined.parquet", "sources": [{**file, "rows": 3}]}
    with pytest.raises(errors.DataDirUnreadable, match="2 rows"):
        join_files(data / "archive", tmp_path / "target", part)
