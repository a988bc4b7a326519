"""Bulk reads: the archive by Spark's own Parquet reader, and the newest rows by the data source, as one DataFrame."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqcore import errors
from mqcore.spark.files import FileList, Table, check_table, table_schema
from mqcore.spark.place import ObjectArchive, local_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["read"]

_POSITION_BITS = 20
"""Bits of a sequence below the number of its note."""
_TAIL = {"time": "timestamp", "body": "value"}
"""Columns of the archive that the data source names differently."""


def read(
    spark: SparkSession,
    source: str | os.PathLike[str],
    table: Table = "messages",
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

    The columns are those of the archive (docs/archive.md). A query fails if retention or a merge of files removes one
    of its files meanwhile; call `read` again then. On object storage, files stay for ``archive_snapshot_max_age``.

    Raises `DataDirMissing` if there is no archive and no broker to read from, `DataDirUnreadable` if the archive is
    damaged or does not answer, and `ConfigError` for an unknown table or option.

    ::

        orders = mqcore.spark.read(spark, "s3://company-data/mqcore/orders", admin="http://broker:2627")
        orders.groupBy("queue").count().show()
    """
    from pyspark.sql import functions as f

    place = _place(source, tuple(options))
    check_table(table)
    is_archive = False
    if isinstance(place, ObjectArchive):
        is_archive = True
        admin, token = admin or place.admin, token or place.token
    found = FileList.of(place, options)
    if found is None and is_archive and admin is None:
        raise errors.DataDirMissing(f"{source} has no archive; run the broker with archive_url={os.fspath(place)}")
    wanted = None if queues is None else sorted({queue.lower() for queue in queues})
    if found is None:
        rows = spark.createDataFrame([], table_schema(table))
    else:
        rows = found.rows(spark, table, lambda file: _may_have(file, wanted))
    if admin is not None or not is_archive:
        load = {"path": str(place)} if admin is None else {"admin": admin} | ({"token": token} if token else {})
        rows = _with_others(spark, rows, load, table, found)
    return rows if wanted is None else rows.where(f.lower("queue").isin(wanted))


def _place(source: str | os.PathLike[str], options: tuple[str, ...]) -> ObjectArchive | Path:
    """Return what `source` names. A URL is always that of an archive."""
    if isinstance(source, ObjectArchive):
        return replace(source, options=(*source.options, *options))
    text = str(source)
    return ObjectArchive(text, options=options) if "://" in text else Path(local_path("source", text))


def _with_others(
    spark: SparkSession, rows: DataFrame, load: Mapping[str, str], table: Table, archived: FileList | None
) -> DataFrame:
    """Add the rows that are not in the archive: later ones, and those of an earlier archive."""
    from mqcore.spark.options import ReadOptions
    from mqcore.spark.plan import Plan

    if archived is None:
        return rows.unionByName(_others(spark, load, table, rows.columns))
    ends = Plan.of(ReadOptions.parse(load, streaming=False), [("sequence", "bigint")]).origin().ends()
    begins, reaches = archived.extent(ends, load.get("admin"))
    columns = rows.columns
    rows = rows.unionByName(_others(spark, load, table, columns, startingOffsets=_sequences(reaches)))
    if any(begins.values()):
        rows = rows.unionByName(_others(spark, load, table, columns, endingOffsets=_sequences(begins)))
    return rows


def _sequences(notes: Mapping[int, int]) -> str:
    return json.dumps({str(shard): number << _POSITION_BITS for shard, number in notes.items()})


def _may_have(file: Mapping[str, Any], wanted: list[str] | None) -> bool:
    """Whether a file may have rows of one of these queues."""
    if wanted is None:
        return True
    if file.get("queues") is not None:
        first, last = file["queues"]
        # The lower-case forms of other letters than ASCII do not tell all of their other forms.
        return any(not queue.isascii() or _is_between(first, last, queue) for queue in wanted)
    return file["channel"] is not None and f"{file['channel']}/{file['queue_id']}".lower() in wanted


def _is_between(first: str, last: str | None, queue: str) -> bool:
    """Whether a name whose lower-case form is `queue` can be from `first` to `last`; `None`: there is no last name.

    Names are in the order of their characters: the lower-case form of a name in this range can be outside of it.
    """
    if not queue or (not first and last is None):
        return not first
    forms = {queue[0], queue[0].upper()} | ({"\N{KELVIN SIGN}"} if queue[0] == "k" else set())
    return any(
        _is_between(
            first[1:] if form == first[:1] else "",
            last[1:] if last is not None and form == last[:1] else None,
            queue[1:],
        )
        for form in forms
        if form >= first[:1] and (last is None or form <= last[:1])
    )


def _others(spark: SparkSession, load: Mapping[str, str], table: Table, columns: list[str], **bounds: str) -> DataFrame:
    """Return rows of the data source with the columns of the archive."""
    from pyspark.sql import functions as f

    reader = spark.read.format("mqcore").option("view", table).option("includeMeta", "true")
    if table == "messages":
        reader = reader.option("includeHeaders", "true")
    found = reader.options(**{**load, **bounds}).load()
    made: dict[str, Column] = {
        "note": f.shiftright("sequence", _POSITION_BITS),
        "position": f.col("sequence").bitwiseAND((1 << _POSITION_BITS) - 1).cast("int"),
        "queue": f.concat_ws("/", "channel", f.col("queue_id").cast("string")),
    }
    made["queue"] = f.when(f.col("channel").isNotNull(), made["queue"])
    return found.select(*(made.get(name, f.col(_TAIL.get(name, name))).alias(name) for name in columns))
