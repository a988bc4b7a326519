"""Abilities of the installed Spark. Python data sources exist since 4.0, and later versions gave them more abilities.

| ability | since |
|---|---|
| filters reduce what a batch reads | 4.1 |
| the tasks of a stream write Arrow | 4.1 |
| batches of a stream have a maximum size; `Trigger.AvailableNow` keeps it | 4.2 |

Spark runs data sources in Python processes of its own, so the version here is the one of those processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamWriter

from mqcore import errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

__all__ = [
    "LIMITS_BATCHES",
    "WRITES_ARROW",
    "DataSourceStreamArrowWriter",
    "RowStreamWriter",
    "reason_first",
    "require_limits",
]

LIMITS_BATCHES: Final = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")
"""Whether a stream reader learns where a batch begins, which it needs to limit its size."""
WRITES_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
"""Whether the tasks of a stream can write Arrow. Otherwise they get rows."""

_ROWS_PER_BATCH: Final = 8_192

if TYPE_CHECKING or WRITES_ARROW:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter):
        """Spark 4.0 has no such class. `RowStreamWriter` calls its methods instead of Spark."""


class RowStreamWriter(DataSourceStreamWriter):
    """Converts the rows that Spark 4.0 passes to the tasks of a stream to Arrow, for a writer that needs Arrow."""

    def __init__(self, writer: DataSourceStreamArrowWriter, schema: StructType) -> None:
        self.writer = writer
        self.schema = schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Write the rows of one task."""
        return self.writer.write(_batches(iterator, self.schema))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (as in Spark)
        """See the writer."""
        self.writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (as in Spark)
        """See the writer."""
        self.writer.abort(messages, batchId)


def _batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema)
    columns: list[list[Any]] = [[] for _ in arrow]
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(list(value.items()) if isinstance(value, dict) else value)
        if len(columns[0]) == _ROWS_PER_BATCH:
            yield pa.record_batch(columns, schema=arrow)
            columns = [[] for _ in arrow]
    if columns and columns[0]:
        yield pa.record_batch(columns, schema=arrow)


def require_limits(option: str) -> None:
    """Raise `NotSupported` if this Spark cannot limit the batches of a stream, as `option` demands."""
    if not LIMITS_BATCHES:
        raise errors.NotSupported(
            f"{option} needs Spark 4.2 or newer, and this is {pyspark.__version__}, which does not tell a Python "
            f"source where a batch begins; remove {option}, so that each batch has all new rows, or update Spark"
        )


@contextmanager
def reason_first() -> Iterator[None]:
    """Make Spark report an error of mqcore as its reason only, without the traceback of Spark's Python process.

    That process ends after an error, so the setting affects nothing else. In other processes this does nothing.
    """
    try:
        yield
    except errors.MqcoreError:
        if _is_process_of_spark():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _is_process_of_spark() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and str(spec.name).startswith("pyspark.")
