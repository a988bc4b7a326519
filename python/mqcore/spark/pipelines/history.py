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
"""A sequence is the number of a note, and in these lower bits the place in it."""
_STEPS_A_NOTE: Final = 64
_STEPS_A_TASK: Final = 400_000
"""Steps that one task groups by message; more do not fit a core's share of a small driver."""
_TAIL_NAMES: Final = {"time": "timestamp", "body": "value"}
"""Columns that the archive and the format ``mqcore`` call differently."""


@dataclass(frozen=True)
class History:
    """What a data directory told at one moment, made by `History.of`. It stays so while the broker goes on."""

    spark: SparkSession
    data_dir: str
    cuts: Mapping[int, int]
    """By shard the sequence at which the archive ends."""
    ends: Mapping[int, int]
    """By shard the sequence behind the last row."""
    archived: bool
    missing: int
    """Notes that were gone before anybody could archive them."""
    rows: int
    """About how many steps there are."""

    @classmethod
    def of(cls, spark: SparkSession, data_dir: str | os.PathLike[str]) -> History:
        """Look at a data directory. Raises `DataDirMissing` and `DataDirUnreadable`."""
        root = local_path("data_dir", str(Path(data_dir).absolute()))
        # The manifest first: what is archived later is found by its sequence, wherever it stands by then.
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
        """Let Spark part rows finely enough for grouping all steps by message, as long as the block runs."""
        conf, key = self.spark.conf, "spark.sql.shuffle.partitions"
        before = conf.get(key)
        conf.set(key, str(max(int(before or 0), min(2048, self.rows // _STEPS_A_TASK))))
        try:
            yield
        finally:
            conf.set(key, str(before))

    @property
    def mark(self) -> str:
        """Two snapshots with the same mark have the same rows."""
        return json.dumps(sorted(self.ends.items()))

    def steps(self, *columns: str) -> DataFrame:
        """Return steps of messages' lives: columns of the archive, and ``sequence``, which orders a shard's rows."""
        return self._rows("steps", columns)

    def messages(self, *columns: str) -> DataFrame:
        """Return messages as they came to their queues: columns of the archive, and ``sequence``."""
        return self._rows("messages", columns)

    def _rows(self, table: Literal["messages", "steps"], columns: tuple[str, ...]) -> DataFrame:
        parts = []
        if self.archived:
            parts.append(self._archived(table, columns))
        if any(self.cuts[shard] < end for shard, end in self.ends.items()) or not parts:
            parts.append(self._tail(table, columns))
        return reduce(lambda left, right: left.unionByName(right), parts)

    def _archived(self, table: Literal["messages", "steps"], columns: tuple[str, ...]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

        rows = archive(self.spark, self.data_dir, table)
        rows = rows.withColumn("sequence", F.col("note") * (1 << _POSITION_BITS) + F.col("position"))
        # The archive may have grown since the snapshot; that part is told by the tail.
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
            # What is gone is counted in `missing`; a report about the rest is better than none.
            .option("failOnDataLoss", "false")
            .load(self.data_dir)
        )
        return rows.toDF(*columns)
