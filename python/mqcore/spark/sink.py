"""Writers: tasks stage their rows, then the driver commits the batch to the ledger and publishes it.

Nothing reaches the broker from a task, because a task may run twice, or never finish, and a repeated batch may have
other tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from mqcore import errors
from mqcore.spark.checks import Rules, Survey, queue_problem
from mqcore.spark.engine import DataSourceStreamArrowWriter
from mqcore.spark.ledger import Ledger, Staged, Stager, row_prefix, sink_name
from mqcore.spark.options import WriteOptions
from mqcore.spark.publisher import Publisher, history_ends
from mqcore.spark.rows import check_columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "StreamWriter"]


@dataclass
class StagedMessage(WriterCommitMessage):
    """A task's message to the driver."""

    staged: Staged


def check_setup(options: WriteOptions, columns: Sequence[tuple[str, str]]) -> None:
    """Raise `ConfigError` for columns that make no message, and for queues of options that have no valid name."""
    check_columns(columns, options.queue)
    for option, queue in (("queue", options.queue), ("rejectedQueue", options.rejected)):
        if queue is not None and (problem := queue_problem(queue)) is not None:
            raise errors.ConfigError(f"the option {option} is {queue!r}: {problem}")
    if options.rejected is not None and options.rejected == options.queue:
        raise errors.ConfigError(f"rejectedQueue and queue are both {options.queue!r}; set another rejectedQueue")


def stage(
    options: WriteOptions, sink: str, batch: int, context: TaskContext, rows: Iterator[pa.RecordBatch]
) -> StagedMessage:
    """Stage and check the rows of a task."""
    from mqcore.spark.source import warm_worker

    warm_worker()
    survey = Survey(Rules(options.queue, row_prefix(sink, batch), options.message_bytes))
    stager = Stager(options.staging, sink, batch, context.partitionId(), context.taskAttemptId())
    staged = stager.write(survey.passing(rows))
    return StagedMessage(replace(staged, contents=survey.contents()))


def commit(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], number: int, *, ascending: bool = False
) -> None:
    """Commit a batch to the ledger, unless that has happened before, and publish its remaining rows.

    A batch is checked before it is committed, so that another attempt may have other rows. `ascending`: see
    `Ledger.sweep`.
    """
    staged = [message.staged for message in messages if isinstance(message, StagedMessage)]
    if not staged:
        return
    ledger = Ledger(options.staging, staged[0].sink)
    batch, fresh = ledger.find(number), False
    with Publisher(options, ledger) as publisher:
        if batch is None:
            publisher.check(ledger.draft(number, staged))
            batch, fresh = ledger.promise(number, staged, history_ends(options))
        publisher.publish(batch, fresh=fresh)
    ledger.sweep(number, ascending=ascending)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise errors.ConfigError("rows can only be written by Spark tasks")
    return context


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each row once if the broker records its history."""

    def __init__(self, options: WriteOptions, columns: Sequence[tuple[str, str]]) -> None:
        check_setup(options, columns)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        context = _context()
        # Spark passes the writer neither of them. It sets these undocumented properties.
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise errors.ConfigError(
                "this Spark does not tell which batch of which query a task is of; "
                "write with foreachBatch, df.write and the options txnAppId and txnVersion"
            )
        return stage(self.options, sink_name(query, self.options.sink), int(batch), context, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (as in Spark)
        """Publish a batch after its tasks have finished."""
        commit(self.options, messages, batchId, ascending=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (as in Spark)
        """Keep everything: a committed batch stays committed, and the next finished batch removes staged rows."""


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame. With txnAppId and txnVersion, a repeated write publishes only the remaining rows."""

    def __init__(self, options: WriteOptions, columns: Sequence[tuple[str, str]]) -> None:
        check_setup(options, columns)
        self.options = options
        # Chosen once and pickled, so that tasks and the driver use the same name.
        self.sink = sink_name(None, options.sink) if options.version is not None else f"write-{uuid.uuid4().hex}"
        self.number = options.version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        return stage(self.options, self.sink, self.number, _context(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the staged rows."""
        commit(self.options, messages, self.number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keep everything: a committed write stays committed, and its next attempt removes staged rows."""
