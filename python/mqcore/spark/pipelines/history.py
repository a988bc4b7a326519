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

from mqcore.spark.archive import archive, newest_manifest
from mqcore.spark.options import local_path
from mqcore.spark.origin import Directory

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["History"]

_POSITION_BITS: Final = 20
"""Lower bits of a sequence: the position within a record. The upper bits are the record's number."""
_STEPS_A_NOTE: Final = 64
_STEPS_A_TASK: Final = 400_000
"""Events that one task groups by message. More do not fit into a core's share of a small driver."""
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
        """Take a snapshot of a data directory. Raises `DataDirMissing` and `DataDirUnreadable`."""
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

    @contextmanager
    def by_message(self) -> Iterator[None]:
        """Give Spark enough partitions for grouping all events by message, while the block runs."""
        conf, key = self.spark.conf, "spark.sql.shuffle.partitions"
        before = conf.get(key)
        conf.set(key, str(max(int(before or 0), min(2048, self.rows // _STEPS_A_TASK))))
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
            .load(self.data_dir)
        )
        return rows.toDF(*columns)
