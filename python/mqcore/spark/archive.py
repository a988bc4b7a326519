"""Reads the archive as plain Parquet with Spark's own reader, without Python processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mqcore import errors
from mqcore.spark.options import local_path

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["archive", "newest_manifest"]

_ATTEMPTS = 8
TABLES = frozenset({"messages", "steps"})
"""Tables of an archive."""
_LISTED_HERE = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_FILES_MAX = 10_000
"""Number of files beyond which listing them in tasks is faster than in the driver."""


def newest_manifest(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the newest manifest of an archive (format in docs/storage.md), or `None` if it has none.

    `directory` is the archive itself. Raises `DataDirUnreadable` for one that is damaged or of a later version.
    """
    for _ in range(_ATTEMPTS):
        paths = sorted((Path(directory) / "_manifests").glob("*.json"))
        if not paths:
            return None
        try:
            manifest: dict[str, Any] = json.loads(paths[-1].read_bytes())
        except FileNotFoundError:
            continue  # A newer manifest replaced it.
        except ValueError as error:
            raise errors.DataDirUnreadable(f"damaged manifest {paths[-1]}: {error}") from error
        if manifest.get("format") != "mqcore.archive/1":
            raise errors.DataDirUnreadable(f"unsupported format {manifest.get('format')!r} of manifest {paths[-1]}")
        return manifest
    raise errors.DataDirUnreadable(
        f"cannot read the manifests of {directory}: each was replaced during the read; retry"
    )


def archive(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    table: Literal["messages", "steps"] = "messages",
    *,
    channels: Iterable[str] | None = None,
    dates: tuple[str, str] | None = None,
) -> DataFrame:
    """Return a table of the archive as a Parquet relation, with the columns of docs/storage.md.

    It contains exactly the rows of one manifest, so a running broker does not affect it. Rows that have not been
    archived yet are missing; ``format("mqcore")`` also reads those. `channels` and `dates` (first and last day in UTC,
    such as ``2026-11-01``) exclude files before Spark opens them.

    A query fails if retention removes one of its files; run it again then.

    Raises `DataDirMissing` if there is no archive, and `DataDirUnreadable` if its manifest is damaged.
    """
    if table not in TABLES:
        raise errors.ConfigError(f"unknown table {table!r}; use messages or steps")
    root = Path(local_path("data_dir", str(data_dir))) / "archive"
    manifest = newest_manifest(root)
    if manifest is None:
        raise errors.DataDirMissing(f"{root} has no archive; run the broker with history and archive enabled")
    wanted = None if channels is None else {channel.lower() for channel in channels}
    files = [
        str(root / file["path"])
        for file in manifest["files"]
        if file["table"] == table
        and (wanted is None or (file["channel"] or "").lower() in wanted)
        and (dates is None or dates[0] <= file["date"] <= dates[1])
    ]
    schema = table_schema(table)
    if not files:
        return spark.createDataFrame([], schema)
    with listed_in_driver(spark):
        return spark.read.schema(schema).parquet(*files)


def table_schema(table: str) -> Any:
    """Return the Spark schema of a table of the archive. Raises `ConfigError` for an unknown table."""
    from pyspark.sql.types import _parse_datatype_string

    if table not in TABLES:
        raise errors.ConfigError(f"unknown table {table!r}; use messages or steps")
    return _parse_datatype_string(_MESSAGES if table == "messages" else _STEPS)


@contextmanager
def listed_in_driver(spark: SparkSession) -> Iterator[None]:
    """Make Spark list files in the driver. For more than 32 files it would start a job, which takes longer."""
    before = spark.conf.get(_LISTED_HERE, None)
    spark.conf.set(_LISTED_HERE, str(_FILES_MAX))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_LISTED_HERE)
        else:
            spark.conf.set(_LISTED_HERE, before)


_PLACED = (
    "time timestamp, shard int, note bigint, position int, kind string, queue string, number bigint, message_id string"
)
_PRODUCER = "producer_id string, producer_name string, producer_type string, producer_protocol string"
_MESSAGES = (
    f"{_PLACED}, high_priority boolean, content_type int, {_PRODUCER}, headers array<struct<key:string,value:binary>>, "
    "header_bytes bigint, body binary, body_bytes bigint"
)
_STEPS = (
    f"{_PLACED}, attempt int, last boolean, reason string, target string, header_bytes bigint, body_bytes bigint, "
    f"{_PRODUCER}, consumer_id string, consumer_name string, consumer_type string, consumer_protocol string, "
    "missing bigint, messages bigint, numbers array<struct<first:bigint,last:bigint>>"
)
