"""Bulk reads: the archive by Spark's own Parquet reader, and the newest rows by the data source, as one DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mqcore import _core, errors
from mqcore.spark.archive import listed_in_driver, newest_manifest, table_schema
from mqcore.spark.options import local_path

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["read"]

_POSITION_BITS = 20
"""Bits of a sequence below the number of its note."""
_TAIL = {"time": "timestamp", "body": "value"}
"""Columns of the archive that the data source names differently."""


def read(
    spark: SparkSession,
    source: str | os.PathLike[str],
    table: Literal["messages", "steps"] = "messages",
    *,
    admin: str | None = None,
    token: str | None = None,
    queues: Iterable[str] | None = None,
    options: Sequence[str] = (),
) -> DataFrame:
    """Return the messages or lifecycle events of a broker at the speed of Spark's own Parquet reader.

    `source` is the URL of an archive on object storage (``archive_url`` of the broker), or a data directory. The
    archive is a Parquet relation, so that Spark selects columns, pushes filters down and uses statistics without
    Python. Rows that are not archived yet come through ``format("mqcore")``: from the data directory, or from the
    broker whose admin side is `admin`. Without either, the result ends where the archive ends. Each row
    appears exactly once.

    `queues` (``channel/id``) selects queues and excludes files of others. `options` are settings of the object store,
    ``name=value``, for the driver; executors use Spark's own settings (docs/spark.md).

    The columns are those of the archive (docs/storage.md). A query fails if retention or a merge of files removes one
    of its files meanwhile; call `read` again then. On object storage, files stay for ``archive_snapshot_max_age``.

    Raises `DataDirMissing` if there is no archive and no broker to read from, `DataDirUnreadable` if the archive is
    damaged or does not answer, and `ConfigError` for an unknown table or option.

    ::

        orders = mqcore.spark.read(spark, "s3://company-data/mqcore/orders", admin="http://broker:2627")
        orders.groupBy("queue").count().show()
    """
    from pyspark.sql import functions as f

    schema = table_schema(table)
    manifest, root = _manifest(source, options)
    if manifest is None and root is None and admin is None:
        raise errors.DataDirMissing(f"{source} has no archive; run the broker with archive_url={source}")
    reaches = {int(shard): reach["notes"] for shard, reach in (manifest or {}).get("shards", {}).items()}
    wanted = None if queues is None else sorted({queue.lower() for queue in queues})
    files = [file for file in (manifest or {}).get("files", ()) if file["table"] == table and _may_have(file, wanted)]
    if files:
        with listed_in_driver(spark):
            rows = spark.read.schema(schema).parquet(*(_path(root, file["path"]) for file in files))
        rows = rows.where(_archived(files, reaches))
    else:
        rows = spark.createDataFrame([], schema)
    if root is not None or admin is not None:
        rows = rows.unionByName(_tail(spark, root, admin, token, table, reaches, rows.columns))
    return rows if wanted is None else rows.where(f.lower("queue").isin(wanted))


def _manifest(source: str | os.PathLike[str], options: Sequence[str]) -> tuple[dict[str, Any] | None, Path | None]:
    """Return the newest list of files, and the data directory unless `source` is a URL."""
    text = str(source)
    if "://" in text:
        return _remote(text, options), None
    root = Path(local_path("source", text))
    location = root / "archive.json"
    if not location.exists():
        return newest_manifest(root / "archive"), root
    known = json.loads(location.read_bytes())
    own = [f"{name}={value}" for name, value in known["options"].items()]
    remote = _remote(known["url"], [*own, *options])
    earlier = newest_manifest(root / "archive")
    if remote is None or earlier is None:
        return remote or earlier, root
    for shard, reach in earlier["shards"].items():
        later = remote["shards"].setdefault(shard, reach)
        if later["journal"] == reach["journal"]:
            later["notes"] = max(later["notes"], reach["notes"])
    remote["files"] = [*earlier["files"], *remote["files"]]
    return remote, root


def _remote(url: str, options: Sequence[str]) -> dict[str, Any] | None:
    manifest = _core.object_archive_manifest(url, list(options))
    return None if manifest is None else json.loads(manifest)


def _path(root: Path | None, path: str) -> str:
    """Return a file's path as Spark needs it: Hadoop knows S3 as ``s3a``."""
    if ":/" not in path:
        assert root is not None
        return str(root / "archive" / path)
    return path.replace("s3://", "s3a://", 1) if path.startswith("s3://") else path


def _may_have(file: dict[str, Any], wanted: list[str] | None) -> bool:
    """Whether a file may have rows of one of these queues."""
    if wanted is None:
        return True
    if file.get("queues") is not None:
        first, last = file["queues"]
        # The order of names with upper-case letters says nothing about their lower-case forms.
        if first != first.lower() or last != last.lower():
            return True
        return any(first <= queue <= last for queue in wanted)
    return file["channel"] is not None and f"{file['channel']}/{file['queue_id']}".lower() in wanted


def _archived(files: list[dict[str, Any]], reaches: dict[int, int]) -> Column:
    """Select rows below the end of the archive; an interrupted round may have committed more to one of the tables."""
    from pyspark.sql import functions as f

    condition = f.lit(True)
    for shard, reach in reaches.items():
        if any(file["shard"] == shard and file["max_note"] >= reach for file in files):
            condition = condition & ((f.col("shard") != shard) | (f.col("note") < reach))
    return condition


def _tail(
    spark: SparkSession,
    root: Path | None,
    admin: str | None,
    token: str | None,
    table: str,
    reaches: dict[int, int],
    columns: list[str],
) -> DataFrame:
    """Return the rows that are not in the archive, with its columns."""
    from pyspark.sql import functions as f

    starts = {str(shard): reach << _POSITION_BITS for shard, reach in reaches.items()}
    reader = spark.read.format("mqcore").option("view", table).option("includeMeta", "true")
    if table == "messages":
        reader = reader.option("includeHeaders", "true")
    if starts:
        reader = reader.option("startingOffsets", json.dumps(starts))
    if token is not None:
        reader = reader.option("token", token)
    found = reader.option("admin", admin).load() if admin is not None else reader.load(str(root))
    made: dict[str, Column] = {
        "note": f.shiftright("sequence", _POSITION_BITS),
        "position": f.col("sequence").bitwiseAND((1 << _POSITION_BITS) - 1).cast("int"),
        "queue": f.concat_ws("/", "channel", f.col("queue_id").cast("string")),
    }
    made["queue"] = f.when(f.col("channel").isNotNull(), made["queue"])
    return found.select(*(made.get(name, f.col(_TAIL.get(name, name))).alias(name) for name in columns))
