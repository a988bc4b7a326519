"""One snapshot of a broker's history as DataFrames: the archive as Spark's own Parquet, and what it does not have yet.

Both parts are cut at the same sequence, so a row is in one of them and never in both, whatever is archived meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqcore import errors
from mqcore.spark.files import FileList, Table
from mqcore.spark.options import ReadOptions
from mqcore.spark.pipelines.fate import STEP_COLUMNS
from mqcore.spark.place import ObjectArchive, place_of
from mqcore.spark.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["History"]

_POSITION_BITS: Final = 20
"""Lower bits of a sequence: the position within a record. The upper bits are the record's number."""
_STEPS_A_NOTE: Final = 64
_STEPS_A_TASK: Final = 400_000
"""Events that one task groups by message. More do not fit into a core's share of a small driver."""
_STEPS_WORTH_A_TASK: Final = 20_000
"""Fewer events than this are not split further: starting a task would take longer."""
_TASKS_MAX: Final = 2048
_TAIL_NAMES: Final = {"time": "timestamp", "body": "value"}
"""Columns with different names in the archive and in the format ``mqcore``."""


@dataclass(frozen=True)
class History:
    """A snapshot of a broker's history, created by `History.of`. A running broker does not change it."""

    spark: SparkSession
    data_dir: str
    """Path of the data directory, or URL of the archive on object storage."""
    cuts: Mapping[int, int]
    """End of the archive by shard, as a sequence."""
    ends: Mapping[int, int]
    """Sequence after the last row by shard."""
    missing: int
    """Number of records that were removed before they were archived."""
    rows: int
    """Approximate number of events."""
    load: Mapping[str, str]
    """Options of the data source that reads all of it."""
    files: FileList | None
    """The archive, if Spark itself can read it."""

    @classmethod
    def of(cls, spark: SparkSession, data_dir: str | os.PathLike[str]) -> History:
        """Take a snapshot of a history: a data directory, or an archive on object storage (`ObjectArchive`).

        Spark reads an archive on object storage itself if it has a Hadoop file system for it. Otherwise its rows come
        through the data source.

        Raises `DataDirMissing` if there is no directory or no history in it, `DataDirUnreadable`, and `ConfigError` if
        an archive belongs to another broker.
        """
        place = place_of(data_dir)
        # The manifest first: rows that are archived later are found by their sequence in the journal or the archive.
        files = FileList.of(place)
        load = _options(place)
        ends = Plan.of(ReadOptions.parse(load, streaming=False), [("sequence", "bigint")]).origin().ends()
        if not (files and files.files) and not any(end.latest for end in ends):
            raise errors.DataDirMissing(
                f"{os.fspath(place)} has no history; run the broker with --history (history = on), and run the "
                "pipeline after it has recorded messages"
            )
        begins, reaches = files.extent(ends, load.get("admin")) if files else ({}, {})
        lost = sum(
            max(0, (end.earliest >> _POSITION_BITS) - reaches[end.shard]) for end in ends if reaches.get(end.shard)
        )
        rows = sum(int(file["rows"]) for file in files.files if file["table"] == "steps") if files else 0
        rows += sum(((end.latest >> _POSITION_BITS) - reaches.get(end.shard, 0)) * _STEPS_A_NOTE for end in ends)
        is_native = files is not None and bool(files.files) and not any(begins.values()) and _opens(spark, files.scheme)
        cuts = {end.shard: min(reaches.get(end.shard, 0) << _POSITION_BITS, end.latest) for end in ends}
        return cls(
            spark,
            os.fspath(place),
            cuts,
            {end.shard: end.latest for end in ends},
            (sum(int(reach["missing"]) for reach in files.shards.values()) if files else 0) + lost,
            rows,
            load,
            files if is_native else None,
        )

    @property
    def cores(self) -> int:
        """Number of tasks that Spark runs at a time."""
        try:
            return int(self.spark.sparkContext.defaultParallelism)
        except Exception:  # Spark Connect does not tell. Its error has no public type in all versions.
            return 1

    @property
    def tasks(self) -> int:
        """Number of tasks for grouping all events: one for each core if there is enough to do, more for many events."""
        return max(
            1, min(_TASKS_MAX, max(min(self.cores, self.rows // _STEPS_WORTH_A_TASK), self.rows // _STEPS_A_TASK))
        )

    @contextmanager
    def by_message(self) -> Iterator[None]:
        """Make Spark group events in `tasks` tasks, or more if it is configured so, while the block runs."""
        conf, key = self.spark.conf, "spark.sql.shuffle.partitions"
        before = conf.get(key)
        conf.set(key, str(max(int(before or 0), self.tasks)))
        try:
            yield
        finally:
            conf.set(key, str(before))

    @property
    def mark(self) -> str:
        """Identifier of the snapshot: equal marks mean equal rows."""
        return json.dumps(sorted(self.ends.items()))

    def steps(self, *columns: str) -> DataFrame:
        """Return lifecycle events: the columns of the archive, and ``sequence``, which orders the rows of a shard."""
        return self._rows("steps", columns)

    def fate_steps(self, *more: str) -> DataFrame:
        """Return lifecycle events with the columns that `mqcore.spark.pipelines.fate.lives` needs, and `more`."""
        return self.steps(*STEP_COLUMNS, *more)

    def messages(self, *columns: str) -> DataFrame:
        """Return messages as published to their queues: the columns of the archive, and ``sequence``."""
        return self._rows("messages", columns)

    def _rows(self, table: Table, columns: tuple[str, ...]) -> DataFrame:
        parts = []
        if self.files is not None:
            parts.append(self._archived(self.files, table, columns))
        if any(self._starts[shard] < end for shard, end in self.ends.items()) or not parts:
            parts.append(self._tail(table, columns))
        return reduce(lambda left, right: left.unionByName(right), parts)

    @property
    def _starts(self) -> Mapping[int, int]:
        """First sequence by shard that comes through the data source."""
        return self.cuts if self.files is not None else dict.fromkeys(self.cuts, 0)

    def _archived(self, files: FileList, table: Table, columns: tuple[str, ...]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 (the usual name)

        rows = files.rows(self.spark, table)
        return rows.withColumn("sequence", F.col("note") * (1 << _POSITION_BITS) + F.col("position")).select(*columns)

    def _tail(self, table: Table, columns: tuple[str, ...]) -> DataFrame:
        names = [_TAIL_NAMES.get(name, name) for name in columns]
        rows = (
            self.spark.read.format("mqcore")
            .options(**self.load)
            .option("view", table)
            .option("columns", ",".join(names))
            .option("startingOffsets", json.dumps({str(shard): start for shard, start in self._starts.items()}))
            .option("endingOffsets", json.dumps({str(shard): end for shard, end in self.ends.items()}))
            # Removed rows are counted in `missing`. A report about the rest is better than none.
            .option("failOnDataLoss", "false")
            .option("minPartitions", str(self.tasks))
            .load()
        )
        return rows.toDF(*columns)


def _options(place: ObjectArchive | Path) -> dict[str, str]:
    """Return the options of the data source that name a history."""
    if isinstance(place, Path):
        return {"path": str(place)}
    settings = dict(option.split("=", 1) for option in place.options)
    given = {"archive": place.url, "admin": place.admin, "token": place.token}
    given["archiveOptions"] = json.dumps(settings) if settings else None
    return {name: value for name, value in given.items() if value is not None}


def _opens(spark: SparkSession, scheme: str | None) -> bool:
    """Whether Spark has a Hadoop file system for URLs of a scheme; `None`: files of this machine."""
    if scheme in {None, "file"}:
        return True
    from pyspark.errors import PySparkException

    try:
        context = spark.sparkContext
    except PySparkException:  # Spark Connect does not tell.
        return False
    try:
        assert context._jvm is not None
        context._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, context._jsc.hadoopConfiguration())
    except Exception:  # Py4J's error for a missing class, or for a scheme without one.
        return False
    return True
