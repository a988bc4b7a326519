"""The data source ``mqcore``: schema, batch and stream readers, and writers.

Spark creates these objects in other processes and pickles them for executors, so they contain plain values only. Each
process opens the files and connections that it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from mqcore import errors
from mqcore.spark.options import Positions, ReadOptions, WriteOptions
from mqcore.spark.origin import Piece
from mqcore.spark.plan import Offsets, Plan, columns_of, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["MqcoreSource"]

_PUSHDOWN_HELPER = "pyspark.sql.worker.data_source_pushdown_filters"
"""Runs only where Spark wants to push filters. Elsewhere a reader that could take some would make the query fail."""


class MqcoreSource(DataSource):
    """``format("mqcore")``: history as rows, and queues as where rows go. docs/spark.md tells options and columns."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source."""
        return "mqcore"

    def schema(self) -> str:
        """Return the columns if the user names no schema."""
        return ddl(columns_of(ReadOptions.parse(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        plan = Plan.of(ReadOptions.parse(self.options), typed(schema))
        return (FilteringReader if _PUSHDOWN_HELPER in sys.modules else Reader)(plan)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (as in Spark)
        """Return the reader of a streaming query."""
        return StreamReader(Plan.of(ReadOptions.parse(self.options), typed(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame. Raises `ConfigError` for the mode overwrite."""
        from mqcore.spark.sink import BatchWriter

        if overwrite:
            raise errors.ConfigError("queues cannot be overwritten; use mode('append')")
        return BatchWriter(WriteOptions.parse(self.options, streaming=False), typed(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (as in Spark)
        """Return the writer of a streaming query."""
        from mqcore.spark.sink import StreamWriter

        return StreamWriter(WriteOptions.parse(self.options, streaming=True), typed(schema))


def typed(schema: StructType) -> list[tuple[str, str]]:
    """Return names and types of a schema's columns."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


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
        yield from plan.origin().read(plan.request(), partition.piece, plan.options.fail_on_data_loss)


class Reader(DataSourceReader):
    """Reads the history that existed when the query was planned."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        plan, origin = self.plan, self.plan.origin()
        ends = origin.ends()
        begin = plan.positions(ends, plan.options.starting or "earliest", "startingOffsets")
        start = plan.checked(begin, ends)
        end = plan.checked(plan.positions(ends, plan.options.ending, "endingOffsets"), ends)
        return [Part(piece) for piece in plan.pieces(origin, plan.stretches(start, end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(self.plan, partition)


class FilteringReader(Reader):
    """Skips rows that supported filters exclude. Spark applies all filters again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (as in Spark)
        for wanted in filters:
            narrow(self.plan, wanted)
        return filters


def narrow(plan: Plan, wanted: Filter) -> None:
    """Restrict a plan to rows that can match a filter."""
    match wanted:
        case EqualTo((column,), value):
            _equal(plan, column, (value,))
        case In((column,), values):
            _equal(plan, column, tuple(values))
        case GreaterThan((column,), value) | GreaterThanOrEqual((column,), value):
            _bound(plan, column, value, None)
        case LessThan((column,), value) | LessThanOrEqual((column,), value):
            _bound(plan, column, None, value)
        case _:
            pass


def _equal(plan: Plan, column: str, values: tuple[Any, ...]) -> None:
    texts = tuple(value for value in values if isinstance(value, str))
    numbers = frozenset(value for value in values if isinstance(value, int))
    if column in {"channel", "queue", "topic"} and len(texts) == len(values):
        # A request can contain one condition on queues. The first one already reduces the input.
        plan.queues = texts if plan.queues is None else plan.queues
    elif column == "kind" and len(texts) == len(values):
        plan.kinds = texts if plan.kinds is None else plan.kinds
    elif column in {"shard", "partition"} and len(numbers) == len(set(values)):
        bounds = plan.bounds
        bounds.shards = numbers if bounds.shards is None else bounds.shards & numbers
    elif values and not any(value is None for value in values):
        _bound(plan, column, min(values), max(values))


def _bound(plan: Plan, column: str, least: Any, most: Any) -> None:
    if column in {"sequence", "offset"}:
        if isinstance(least, int):
            plan.bounds.first = max(plan.bounds.first, least)
        if isinstance(most, int):
            plan.bounds.behind = min(plan.bounds.behind, most + 1)
    elif column == "timestamp":
        if isinstance(least, datetime) and least.tzinfo is not None:
            since = _microseconds(least)
            plan.since_us = since if plan.since_us is None else max(plan.since_us, since)
        if isinstance(most, datetime) and most.tzinfo is not None:
            until = _microseconds(most) + 1
            plan.until_us = until if plan.until_us is None else min(plan.until_us, until)


def _microseconds(moment: datetime) -> int:
    whole = moment.replace(microsecond=0)
    return int(whole.timestamp()) * 1_000_000 + moment.microsecond


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the history. Only the checkpoint contains its offsets."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.target: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 (as in Spark)
        options, ends = self.plan.options, self.plan.origin().ends()
        # With startingTimestamp, a stream begins there; otherwise it begins with new rows.
        default: Positions = "latest" if options.since_us is None else "earliest"
        return self.plan.positions(ends, options.starting or default, "startingOffsets")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (as in Spark)
        rows = self.plan.options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (as in Spark)
        self.target = self._latest()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802 (as in Spark)
        return self._latest()

    def _latest(self) -> Offsets:
        return self.plan.positions(self.plan.origin().ends(), "latest", "startingOffsets")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offsets:  # noqa: N802 (as in Spark)
        origin = self.plan.origin()
        ends = origin.ends()
        begin = self.plan.checked(start, ends)
        end = self.target or self.plan.positions(ends, "latest", "startingOffsets")
        if not isinstance(limit, ReadMaxRows):
            return end
        stretches = self.plan.stretches(begin, end)
        counting, fail = self.plan.request(["sequence"]), self.plan.options.fail_on_data_loss
        reached = origin.advance(counting, stretches, limit.max_rows, fail) if stretches else []
        limited = {shard: dict(place) for shard, place in end.items()}
        for (shard, _, _), sequence in zip(stretches, reached, strict=True):
            limited[str(shard)]["sequence"] = sequence
        return limited

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        origin = self.plan.origin()
        begin = self.plan.checked(start, origin.ends())
        return [Part(piece) for piece in self.plan.pieces(origin, self.plan.stretches(begin, end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(self.plan, partition)
