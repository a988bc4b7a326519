"""``compact``: copies an archive of many small files to few large ones, without old rows."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.files import newest_manifest
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.report import Page, bars, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen
from mqcore.spark.place import ObjectArchive, place_of

if TYPE_CHECKING:
    import os

    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession

__all__ = ["compact"]

_DAY_MS: Final = 86_400_000
_ROWS: Final = 100
_PLACE: Final = ("table", "shard", "channel", "queue_id", "date")
"""Columns with one value per file; the archive's directories are named after them."""
_DELTA: Final = "DELTA_BINARY_PACKED"
_EFFORT: Final = 3
"""Zstandard level. The broker uses 2; the result is written once and read often."""
_GROUP_ROWS: Final = 256 * 1024
"""Maximum rows of a row group, as the broker writes them. Small groups compress badly."""
_GROUP_BYTES: Final = 64 << 20
"""Size of rows in memory at which a row group is written."""


def compact(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    target_mb: int = 128,
    keep_days: int = 0,
    progress: Progress = unseen,
) -> Outcome:
    """Copy the archive to ``OUT/compact/data``, in files of about `target_mb` MB (default 128).

    Files keep the encodings of the archive. Files that would become larger together are copied as they are, so the copy
    is never larger than the archive.

    The copy has a manifest: ``mqcore.spark.archive``, ``format("mqcore")`` and pipelines can read it. Files whose
    latest row is older than `keep_days` days are left out (default 0: none). The broker's own archive is not changed;
    its retention is an option of the broker.

    Raises `ConfigError`, `DataDirMissing` without an archive, and `DataDirUnreadable` if files are damaged or rows
    would be lost.
    """
    if target_mb < 1 or keep_days < 0:
        raise errors.ConfigError("target_mb must be at least 1, and keep_days at least 0")
    root = place_of(data_dir)
    if isinstance(root, ObjectArchive):
        raise errors.ConfigError(
            f"compact copies the archive in a data directory, and {root.url} is on object storage, where the broker "
            "merges small files itself (archive_file_bytes)"
        )
    manifest = newest_manifest(root / "archive")
    if manifest is None:
        raise errors.DataDirMissing(f"{root} has no archive; run the broker with history and archive enabled")
    tables = Tables(out, "compact")
    oldest_ms = int(time.time() * 1000) - keep_days * _DAY_MS if keep_days else 0
    kept = [file for file in manifest["files"] if file["max_time_ms"] >= oldest_ms]
    gone = [file for file in manifest["files"] if file["max_time_ms"] < oldest_ms]
    number = manifest["number"] + 1
    work = _packed(kept, target_mb << 20, number)
    unfinished = tables.path(f".data-{uuid.uuid4().hex}")
    try:
        (unfinished / "archive" / "_manifests").mkdir(parents=True)
        progress("files", 0, len(work))
        files = _run(spark, root / "archive", unfinished / "archive", work)
        _finish(root, unfinished, manifest, number, files, gone)
        tables.put(unfinished, "data")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    progress("report", 0, 0)
    figures = {
        "files_before": len(manifest["files"]),
        "files_after": len(files),
        "bytes_before": sum(file["bytes"] for file in manifest["files"]),
        "bytes_after": sum(file["bytes"] for file in files),
        "files_unchanged": sum(file["path"] in {source["path"] for source in kept} for file in files),
        "rows": sum(file["rows"] for file in files),
        "rows_removed": sum(file["rows"] for file in gone),
    }
    summary = (
        f"{figures['files_before']:,} files of {figures['bytes_before']:,} bytes became {figures['files_after']:,} of "
        f"{figures['bytes_after']:,}; {figures['rows']:,} rows kept, {figures['rows_removed']:,} too old"
    )
    if figures["files_unchanged"]:
        summary += f"; {figures['files_unchanged']:,} files unchanged"
    page = _page(root, manifest["files"], files, figures)
    return Outcome("compact", summary, tables.write_page(page.html()), tables.paths, figures)


def _packed(files: Iterable[Mapping[str, Any]], target: int, number: int) -> list[dict[str, Any]]:
    """Group files that become one: consecutive files of a directory, up to the target size."""
    work: list[dict[str, Any]] = []
    open_at: dict[tuple[Any, ...], dict[str, Any]] = {}
    for file in files:
        place = tuple(file[name] for name in _PLACE)
        present = open_at.get(place)
        if present is None or present["bytes"] + file["bytes"] > target:
            directory = str(Path(file["path"]).parent)
            present = {"path": f"{directory}/{number:010}-{len(work):05}.parquet", "bytes": 0, "sources": []}
            open_at[place] = present
            work.append(present)
        present["bytes"] += file["bytes"]
        present["sources"].append(dict(file))
    return work


def _run(spark: SparkSession, source: Path, target: Path, work: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Write each file in a task of its own. Spark's rows contain only the assignments and the results."""
    if not work:
        return []
    rows = [(index, json.dumps(part)) for index, part in enumerate(work)]
    parts = spark.createDataFrame(rows, "at int, work string").repartition(len(rows), "at")
    done = parts.mapInArrow(_writer(str(source), str(target)), "at int, entries string").collect()
    return [entry for row in sorted(done, key=lambda row: int(row["at"])) for entry in json.loads(row["entries"])]


def _writer(source: str, target: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for executors. It contains plain values only, because Spark pickles it."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            parts = [json.loads(text) for text in batch.column("work").to_pylist()]
            entries = [json.dumps(join_files(Path(source), Path(target), part)) for part in parts]
            yield pa.RecordBatch.from_arrays([batch.column("at"), pa.array(entries, pa.string())], ["at", "entries"])

    return write


def join_files(source: Path, target: Path, part: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Merge several files into one in order, and return its manifest entry; or copy them if they are smaller.

    Raises `DataDirUnreadable` if the files have other numbers of rows than their entries.
    """
    sources: list[dict[str, Any]] = part["sources"]
    if len(sources) == 1:
        return [_copied(source, target, sources[0])]
    final = target / part["path"]
    final.parent.mkdir(parents=True, exist_ok=True)
    # An attempt that died may have left a file, and another attempt may be writing at the same time.
    unfinished = final.with_name(f".{final.name}-{uuid.uuid4().hex}")
    try:
        rows = _merge([source / file["path"] for file in sources], unfinished)
        if rows != sum(file["rows"] for file in sources):
            raise errors.DataDirUnreadable(
                f"{part['path']} has {rows} rows, which differs from the manifest entries of its sources"
            )
        size = unfinished.stat().st_size
        if size > sum((source / file["path"]).stat().st_size for file in sources):
            return [_copied(source, target, file) for file in sources]
        unfinished.replace(final)
    finally:
        unfinished.unlink(missing_ok=True)
    least = {name: min(file.get(name, 0) for file in sources) for name in ("min_time_ms", "min_number", "min_note")}
    most = {name: max(file.get(name, 0) for file in sources) for name in ("max_time_ms", "max_number", "max_note")}
    place = {name: sources[0][name] for name in _PLACE}
    return [{**place, "path": part["path"], "bytes": size, "rows": rows, **least, **most}]


def _copied(source: Path, target: Path, file: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a file, and return its entry."""
    import pyarrow.parquet as pq

    final = target / file["path"]
    final.parent.mkdir(parents=True, exist_ok=True)
    unfinished = final.with_name(f".{final.name}-{uuid.uuid4().hex}")
    try:
        shutil.copyfile(source / file["path"], unfinished)
        if (rows := pq.read_metadata(unfinished).num_rows) != file["rows"]:
            raise errors.DataDirUnreadable(
                f"{file['path']} has {rows} rows, which differs from its manifest entry ({file['rows']} rows)"
            )
        size = unfinished.stat().st_size
        unfinished.replace(final)
    finally:
        unfinished.unlink(missing_ok=True)
    return {**file, "bytes": size}


def _merge(sources: Sequence[Path], target: Path) -> int:
    """Write the rows of several files to one, with the encodings of the file with most columns; return their number.

    Files of earlier versions have fewer columns. Their rows get nulls.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, waiting, waiting_rows, waiting_bytes = 0, list[pa.Table](), 0, 0
    widest = max((pq.read_metadata(path) for path in sources), key=lambda metadata: metadata.num_columns)
    schema = widest.schema.to_arrow_schema()

    def write(into: pq.ParquetWriter) -> None:
        nonlocal rows, waiting, waiting_rows, waiting_bytes
        found = pa.concat_tables([schema.empty_table(), *waiting], promote_options="default")
        into.write_table(found.cast(schema), row_group_size=_GROUP_ROWS)
        rows, waiting, waiting_rows, waiting_bytes = rows + waiting_rows, [], 0, 0

    with pq.ParquetWriter(target, schema, **_properties(widest)) as writer:
        for path in sources:
            with pq.ParquetFile(path) as reader:
                for batch in reader.iter_batches():
                    waiting.append(pa.Table.from_batches([batch]))
                    waiting_rows += batch.num_rows
                    waiting_bytes += batch.nbytes
                    if waiting_rows >= _GROUP_ROWS or waiting_bytes >= _GROUP_BYTES:
                        write(writer)
        if waiting:
            write(writer)
    return rows


def _properties(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Options of a writer with the encodings and statistics of a file, compressed with Zstandard."""
    encodings: dict[str, set[str]] = {}
    measured: set[str] = set()
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            column = metadata.row_group(group).column(at)
            encodings.setdefault(column.path_in_schema, set()).update(column.encodings)
            if column.is_stats_set:
                measured.add(column.path_in_schema)
    return {
        "compression": "zstd",
        "compression_level": _EFFORT,
        "use_dictionary": [name for name, used in encodings.items() if used & {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}],
        "column_encoding": {name: _DELTA for name, used in encodings.items() if _DELTA in used},
        "write_statistics": sorted(measured),
    }


def _finish(
    root: Path,
    target: Path,
    manifest: Mapping[str, Any],
    number: int,
    files: list[dict[str, Any]],
    gone: Sequence[Mapping[str, Any]],
) -> None:
    """Write the manifest of the new archive."""
    shards = {shard: dict(reach) for shard, reach in manifest["shards"].items()}
    for file in gone:
        reach = shards[str(file["shard"])]
        reach["kept_from"] = max(reach.get("kept_from", 0), min(file.get("max_note", 0) + 1, reach["notes"]))
    removed = dict(manifest["removed"])
    removed["files"] += len(gone)
    removed["rows"] += sum(file["rows"] for file in gone)
    removed["bytes"] += sum(file["bytes"] for file in gone)
    stored = {
        **manifest,
        "number": number,
        "written_ms": int(time.time() * 1000),
        "shards": shards,
        "removed": removed,
    }
    path = target / "archive" / "_manifests" / f"{number:010}.json"
    path.write_text(json.dumps({**stored, "files": files}, indent=2), encoding="utf-8")
    shutil.copyfile(root / "format", target / "format")


def _page(
    root: Path, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], figures: Mapping[str, int]
) -> Page:
    page = Page("Compact", str(root))
    page.add(tiles(*((name.replace("_", " "), count) for name, count in figures.items())))
    if figures["files_unchanged"]:
        page.say(
            f"{figures['files_unchanged']:,} files were copied as they are: there is only one for their queue and day, "
            "or they take less space apart.",
            good=True,
        )

    def by_queue(files: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int, int]]:
        found: dict[str, tuple[int, int, int]] = {}
        for file in files:
            queue = "(shard)" if file["channel"] is None else f"{file['channel']}/{file['queue_id']}"
            count, rows, size = found.get(queue, (0, 0, 0))
            found[queue] = (count + 1, rows + file["rows"], size + file["bytes"])
        return found

    then, now = by_queue(before), by_queue(after)
    largest = sorted(then, key=lambda queue: -then[queue][2])
    page.add(
        bars("Files before", "files", [(queue, then[queue][0]) for queue in largest], otherwise="There were none.")
    )
    page.add(bars("Files after", "files", [(queue, now.get(queue, (0,))[0]) for queue in largest], otherwise="None."))
    columns = ("queue", "files before", "rows before", "bytes before", "files after", "rows after", "bytes after")
    rows = [[queue, *then[queue], *now.get(queue, (0, 0, 0))] for queue in largest[:_ROWS]]
    return page.add(table("Queues", columns, rows, of=len(largest)))
