"""One snapshot of a broker's history as DataFrames: the archive as Spark's own Parquet, and what it does not have yet.

Both parts are cut at the same sequence, so a row is in one of them and never in both, whatever is archived meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from mqcore import errors
from mqcore.spark.archive import archive, newest_manifest
from mqcore.spark.options import local_path
from mqcore.spark.origin import Directory
from mqcore.spark.pipelines.fate import STEP_COLUMNS

if TYPE_CHECKING:
    import os

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
    """A snapshot of a data directory's history, created by `History.of`. A running broker does not change it."""

    spark: SparkSession
    data_dir: str
    cuts: Mapping[int, int]
    """End of the archive by shard, as a sequence."""
    ends: Mapping[int, int]
    """Sequence after the last row by shard."""
    archived: bool
    missing: int
    """Number of records that were removed before they were archived."""
    rows: int
    """Approximate number of events."""

    @classmethod
    def of(cls, spark: SparkSession, data_dir: str | os.PathLike[str]) -> History:
        """Take a snapshot of a data directory.

        Raises `DataDirMissing` if there is no directory or no history in it, and `DataDirUnreadable`.
        """
        root = local_path("data_dir", str(Path(data_dir).absolute()))
        # The manifest first: rows that are archived later are found by their sequence in the journal or the archive.
        manifest = newest_manifest(Path(root) / "archive") or {"shards": {}, "files": []}
        ends = Directory(root).ends()
        cuts: dict[int, int] = {}
        lost = 0
        for end in ends:
            reach = manifest["shards"].get(str(end.shard))
            cut = reach["notes"] << _POSITION_BITS if reach and reach["journal"] == end.journal else 0
            cuts[end.shard] = min(cut, end.latest)
            lost += max(0, (end.earliest >> _POSITION_BITS) - (cut >> _POSITION_BITS)) if cut else 0
        if not manifest["files"] and not any(end.latest for end in ends):
            raise errors.DataDirMissing(
                f"{root} has no history; run the broker with --history (history = on), and run the pipeline after it "
                "has recorded messages"
            )
        rows = sum(file["rows"] for file in manifest["files"] if file["table"] == "steps")
        rows += sum((end.latest - cuts[end.shard] >> _POSITION_BITS) * _STEPS_A_NOTE for end in ends)
        return cls(
            spark,
            root,
            cuts,
            {end.shard: end.latest for end in ends},
            bool(manifest["files"]),
            sum(reach["missing"] for reach in manifest["shards"].values()) + lost,
            rows,
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

    def _rows(self, table: Literal["messages", "steps"], columns: tuple[str, ...]) -> DataFrame:
        parts = []
        if self.archived:
            parts.append(self._archived(table, columns))
        if any(self.cuts[shard] < end for shard, end in self.ends.items()) or not parts:
            parts.append(self._tail(table, columns))
        return reduce(lambda left, right: left.unionByName(right), parts)

    def _archived(self, table: Literal["messages", "steps"], columns: tuple[str, ...]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 (the usual name)

        rows = archive(self.spark, self.data_dir, table)
        rows = rows.withColumn("sequence", F.col("note") * (1 << _POSITION_BITS) + F.col("position"))
        # The archive may have grown since the snapshot; `_tail` returns those rows.
        cut = F.lit(0).cast("long")
        for shard, sequence in self.cuts.items():
            cut = F.when(F.col("shard") == shard, F.lit(sequence >> _POSITION_BITS)).otherwise(cut)
        return rows.where(F.col("note") < cut).select(*columns)

    def _tail(self, table: Literal["messages", "steps"], columns: tuple[str, ...]) -> DataFrame:
        names = [_TAIL_NAMES.get(name, name) for name in columns]
        rows = (
            self.spark.read.format("mqcore")
            .option("view", table)
            .option("columns", ",".join(names))
            .option("startingOffsets", json.dumps({str(shard): cut for shard, cut in self.cuts.items()}))
            .option("endingOffsets", json.dumps({str(shard): end for shard, end in self.ends.items()}))
            # Removed rows are counted in `missing`. A report about the rest is better than none.
            .option("failOnDataLoss", "false")
            .option("minPartitions", str(self.tasks))
            .load(self.data_dir)
        )
        return rows.toDF(*columns)
