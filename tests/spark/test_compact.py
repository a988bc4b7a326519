"""Compacted archives: the same rows in fewer files, which every reader of archives can read."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mqcore.spark
from depth import FULL
from mqcore import errors, sync
from mqcore.spark import pipelines
from mqcore.spark.pipelines.compact import join_files
from mqcore.spark.pipelines.report import bars, table, tiles
from served import serving, wait_until
from spark.eventful import Eventful
from spark.made import archive_of, message
from spark.made import step as made
from spark.outcomes import parts_of, run_whole
from spark.recorded import ARCHIVE_SECONDS, HISTORY, LENIENT, archived, declare

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
        "files_unchanged": len({file["path"] for file in after} & {file["path"] for file in before}),
        "rows": sum(file["rows"] for file in after),
        "rows_removed": removed,
    }
    assert outcome.figures == figures
    same = figures["files_unchanged"]
    assert outcome.summary == (
        f"{len(before)} files of {figures['bytes_before']:,} bytes became {len(after)} of "
        f"{figures['bytes_after']:,}; {figures['rows']} rows kept, {removed} too old"
        + (f"; {same} files unchanged" if same else "")
    )
    unchanged = (
        f'<p class="say good">{same} files were copied as they are: there is only one for their queue and day, '
        "or they take less space apart.</p>"
    )
    then, now = by_queue(before), by_queue(after)
    queues = sorted(then, key=lambda queue: -then[queue][2])
    columns = ("queue", *(f"{what} {when}" for when in ("before", "after") for what in ("files", "rows", "bytes")))
    rows = [[queue, *then[queue], *now.get(queue, [0, 0, 0])] for queue in queues]
    counts = [(queue, now.get(queue, [0])[0]) for queue in queues]
    assert parts_of(outcome.report, "Compact", str(data)) == [
        tiles(*((name.replace("_", " "), count) for name, count in figures.items())),
        *([unchanged] if same else []),
        bars("Files before", "files", [(queue, then[queue][0]) for queue in queues], otherwise="There were none."),
        bars("Files after", "files", counts, otherwise="None."),
        table("Queues", columns, rows[:100], of=len(rows)),
    ]


def encodings_of(file: pq.ParquetFile) -> dict[str, tuple[str, bool, bool, bool]]:
    """Compression of each column, whether it has a dictionary or is delta-encoded, and whether it has statistics."""
    columns = [file.metadata.row_group(0).column(at) for at in range(file.metadata.num_columns)]
    return {
        column.path_in_schema: (
            column.compression,
            "RLE_DICTIONARY" in column.encodings,
            "DELTA_BINARY_PACKED" in column.encodings,
            column.is_stats_set,
        )
        for column in columns
    }


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
    sizes = [(outcome.tables["data"] / "archive" / file["path"]).stat().st_size for file in after["files"]]
    assert after["files"] == [
        {
            **{name: files[0][name] for name in PLACE},
            "path": f"{Path(files[0]['path']).parent}/0000000008-{index:05}.parquet",
            "bytes": sizes[index],
            "rows": sum(file["rows"] for file in files),
            **{name: min(file.get(name, 0) for file in files) for name in LEAST},
            **{name: max(file.get(name, 0) for file in files) for name in MOST},
        }
        if len(files) > 1
        # A file that stays alone is copied.
        else {**files[0], "bytes": sizes[index]}
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
        assert encodings_of(joined) == encodings_of(parts[0])
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
    wrong = {**file, "rows": 3}
    for sources in ([wrong], [file, wrong]):
        part = {"path": "steps/joined.parquet", "sources": sources}
        with pytest.raises(errors.DataDirUnreadable, match="rows, which differs from"):
            join_files(data / "archive", tmp_path / "target", part)
        assert not [path for path in (tmp_path / "target").rglob("*") if path.is_file()]
    # A repetition after an attempt that died replaces its file.
    (tmp_path / "target" / "steps").mkdir(parents=True, exist_ok=True)
    (tmp_path / "target" / "steps" / "joined.parquet").write_bytes(b"unfinished")
    (entry,) = join_files(data / "archive", tmp_path / "target", {**part, "sources": [file, file]})
    assert (entry["path"], entry["rows"]) == ("steps/joined.parquet", 4)
    assert pq.read_table(tmp_path / "target" / "steps" / "joined.parquet", partitioning=None).num_rows == 4


def test_files_that_would_grow_together_stay_as_they_are(tmp_path: Path) -> None:
    """The rows of one file are packed as the other one's encodings do not pack them."""
    source = tmp_path / "source"
    source.mkdir()
    few = pa.table({"number": pa.array([1], pa.int64()), "text": ["x"]})
    many = pa.table({"number": pa.array(range(50_000), pa.int64()), "text": [f"text {n}" for n in range(50_000)]})
    pq.write_table(few, source / "0.parquet", compression="none", use_dictionary=False)
    delta = {"number": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"}
    pq.write_table(many, source / "1.parquet", compression="zstd", use_dictionary=False, column_encoding=delta)
    place = {"table": "steps", "shard": 0, "channel": "a", "queue_id": 1, "date": "2026-11-01"}
    files = [
        {**place, "path": f"{index}.parquet", "rows": rows, "bytes": (source / f"{index}.parquet").stat().st_size}
        for index, rows in enumerate((1, 50_000))
    ]
    entries = join_files(source, tmp_path / "target", {"path": "joined.parquet", "sources": files})
    assert entries == files
    for file in files:
        assert (tmp_path / "target" / file["path"]).read_bytes() == (source / file["path"]).read_bytes()
    assert {path.name for path in (tmp_path / "target").iterdir()} == {"0.parquet", "1.parquet"}


def test_an_archive_of_a_broker_shrinks_and_keeps_its_encodings(spark: SparkSession, tmp_path: Path) -> None:
    """Rounds of few messages to several queues, as a broker that is hardly busy archives them."""
    data = tmp_path / "data"
    with serving("--data-dir", str(data), "--auto-create", environment=HISTORY) as served:
        with sync.connect(served.url, name="shop") as mq:
            declare(mq, "orders/1", "orders/2", "logs/1")
            for round_ in range(1, 7):
                for queue in ("orders/1", "orders/2", "logs/1"):
                    bodies = [json.dumps({"order": n * round_, "to": "Bern", "paid": n % 2 == 0}) for n in range(40)]
                    mq.publish_many(queue, bodies, headers={"Source": queue})
                    for message in mq.queue(queue).pull(40):
                        message.ack()
                wait_until(lambda r=round_: archived(data, 120 * r), limit=ARCHIVE_SECONDS, what="the archive")
        served.terminate()
    outcome = run_whole("compact", spark, data, tmp_path / "out", STEPS)
    figures = outcome.figures
    assert figures["files_after"] < figures["files_before"] / 3
    assert figures["bytes_after"] < figures["bytes_before"] / 2
    copy = outcome.tables["data"]
    assert rows_of_archive(copy) == rows_of_archive(data)
    for of in ("steps", "messages"):
        original = pq.ParquetFile(min((data / "archive" / of).rglob("channel=*/**/*.parquet")))
        joined = pq.ParquetFile(min((copy / "archive" / of).rglob("channel=*/**/*.parquet")))
        found = encodings_of(joined)
        assert found == encodings_of(original)
        assert {name: found[name][1:3] for name in ("number", "kind", "message_id")} == {
            "number": (False, True),
            "kind": (True, False),
            "message_id": (False, False),
        }
