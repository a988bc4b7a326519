"""Reads the archive as plain Parquet with Spark's own reader, without Python processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mqcore import errors
from mqcore.spark.files import FileList, Table, check_table, newest_manifest
from mqcore.spark.place import place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["archive", "newest_manifest"]


def archive(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    table: Table = "messages",
    *,
    channels: Iterable[str] | None = None,
    dates: tuple[str, str] | None = None,
) -> DataFrame:
    """Return a table of the archive as a Parquet relation, with the columns of docs/archive.md.

    `data_dir` is a data directory, or the URL of an archive on object storage.

    The result contains exactly the rows of one manifest or snapshot, so a running broker does not affect it. Rows that
    have not been archived yet are missing; ``format("mqcore")`` also reads those. `channels` and `dates` (first and
    last day in UTC, such as ``2026-11-01``) exclude files before Spark opens them.

    A query fails if retention removes one of its files; run it again then.

    Raises `DataDirMissing` if there is no archive, and `DataDirUnreadable` if it is damaged or does not answer.
    """
    check_table(table)
    place = place_of(data_dir)
    found = FileList.of(place)
    if found is None:
        raise errors.DataDirMissing(
            f"{os.fspath(place)} has no archive; run the broker with history and archive enabled"
        )
    wanted = None if channels is None else {channel.lower() for channel in channels}

    def may_have(file: Mapping[str, Any]) -> bool:
        if dates is not None and not dates[0] <= file["date"] <= dates[1]:
            return False
        # A file on object storage has rows of several channels.
        return wanted is None or file.get("queues") is not None or (file["channel"] or "").lower() in wanted

    rows = found.rows(spark, table, may_have)
    if wanted is None or found.scheme is None:
        return rows
    from pyspark.sql import functions as f

    return rows.where(f.lower(f.regexp_replace("queue", "/[0-9]+$", "")).isin(sorted(wanted)))
