"""The data source ``mqcore``: schema, batch and stream readers, and writers.

Spark creates these objects in other processes and pickles them for executors, so they contain plain values only. Each
process opens the files and connections that it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from mqcore import errors
from mqcore.spark.engine import WRITES_ARROW, RowStreamWriter, reason_first
from mqcore.spark.options import ReadOptions, WriteOptions
from mqcore.spark.plan import Plan, columns_of, ddl
from mqcore.spark.subscription import check_start
from mqcore.spark.tasks import Part, rows_of, warm_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter, Filter
    from pyspark.sql.types import StructType

__all__ = ["MqcoreSource", "warm_worker"]

_PUSHDOWN_HELPER = "pyspark.sql.worker.data_source_pushdown_filters"
"""Runs only where Spark wants to push filters. Elsewhere a reader that could take some would make the query fail.
Spark 4.0 has no such helper, and filters all rows itself."""


class MqcoreSource(DataSource):
    """``format("mqcore")``: history as rows, and queues as where rows go. docs/spark.md tells options and columns."""

    cores: ClassVar[int | None] = None
    """Tasks that the session runs at the same time, if it has registered the format; see `mqcore.spark.register`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source."""
        return "mqcore"

    @reason_first()
    def schema(self) -> str:
        """Return the columns if the user names no schema."""
        return ddl(columns_of(ReadOptions.parse(self.options)))

    @reason_first()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        plan = Plan.of(ReadOptions.parse(self.options, streaming=False), typed(schema), self.cores)
        return (FilteringReader if _PUSHDOWN_HELPER in sys.modules else Reader)(plan)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (as in Spark)
        """Return the reader of a streaming query. Invalid options are errors of the reader, when it is used."""
        from mqcore.spark.stream import RefusingReader, stream_reader

        try:
            return stream_reader(Plan.of(ReadOptions.parse(self.options, streaming=True), typed(schema), self.cores))
        except errors.MqcoreError as error:
            return RefusingReader(error)

    @reason_first()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame. Raises `ConfigError` for the mode overwrite."""
        from mqcore.spark.sink import BatchWriter

        if overwrite:
            raise errors.ConfigError("queues cannot be overwritten; use mode('append')")
        return BatchWriter(WriteOptions.parse(self.options, streaming=False), typed(schema))

    @reason_first()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (as in Spark)
        """Return the writer of a streaming query."""
        from mqcore.spark.sink import StreamWriter

        writer = StreamWriter(WriteOptions.parse(self.options, streaming=True), typed(schema))
        return writer if WRITES_ARROW else RowStreamWriter(writer, schema)


def typed(schema: StructType) -> list[tuple[str, str]]:
    """Return names and types of a schema's columns."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


class Reader(DataSourceReader):
    """Reads the history that existed when the query was planned."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @reason_first()
    def partitions(self) -> Sequence[InputPartition]:
        plan, origin = self.plan, self.plan.origin()
        ends = origin.ends()
        check_start(plan, origin, ends)
        begin = plan.positions(ends, plan.options.starting or "earliest", "startingOffsets")
        start = plan.checked(begin, ends)
        end = plan.checked(plan.positions(ends, plan.options.ending, "endingOffsets"), ends)
        return [Part(piece) for piece in plan.pieces(origin, plan.stretches(start, end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(self.plan, partition)


class FilteringReader(Reader):
    """Skips rows that supported filters exclude. Spark applies all filters again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (as in Spark)
        from mqcore.spark.filters import narrow

        for wanted in filters:
            narrow(self.plan, wanted)
        return filters
