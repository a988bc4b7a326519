"""The tasks of a read: what each of them reads, and how."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from mqcore.spark.engine import reason_first
from mqcore.spark.origin import Piece
from mqcore.spark.plan import Plan

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Part", "rows_of", "warm_worker"]


class Part(InputPartition):
    """Input of one task."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece


def warm_worker() -> None:
    """Exclude imported modules from garbage collection: Spark collects after every task, which would take 40 ms."""
    if not hasattr(sys, "_mqcore_frozen"):
        import gc

        gc.collect()
        gc.freeze()
        sys._mqcore_frozen = True  # type: ignore[attr-defined]


def rows_of(plan: Plan, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task. Without anything to read, Spark creates one empty partition."""
    warm_worker()
    if isinstance(partition, Part):
        piece = partition.piece
        with reason_first():
            yield from plan.origin().read(plan.request(shard=piece.shard), piece, plan.options.fail_on_data_loss)
