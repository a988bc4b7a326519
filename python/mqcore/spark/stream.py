"""Readers of streaming queries. They follow the history, and only the checkpoint contains their offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mqcore import errors
from mqcore.spark.engine import LIMITS_BATCHES, reason_first, require_limits
from mqcore.spark.options import Positions
from mqcore.spark.origin import Ends, Origin
from mqcore.spark.plan import Offsets, Plan
from mqcore.spark.subscription import check_history, check_start
from mqcore.spark.tasks import Part, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Follower", "RefusingReader", "UnlimitedReader", "stream_reader"]


def stream_reader(plan: Plan) -> DataSourceStreamReader:
    """Return the reader for this Spark. Raises `NotSupported` for limits that this Spark does not know."""
    for option, value in (
        ("maxOffsetsPerTrigger", plan.options.rows_per_trigger),
        ("minOffsetsPerTrigger", plan.options.min_rows_per_trigger),
    ):
        if value is not None:
            require_limits(option)
    if not LIMITS_BATCHES:
        return UnlimitedReader(plan)
    from mqcore.spark.limited import LimitedReader

    return LimitedReader(plan)


class Follower(DataSourceStreamReader):
    """The common part of the readers for all versions."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._origin: Origin | None = None
        self._beginning: Offsets | None = None
        """The beginning of the query. Spark asks more than once, and new rows must not move it meanwhile."""
        self._ends: list[Ends] | None = None
        """Extent of the history when Spark last asked for it. The batch that follows needs no further question."""
        self.reached: Offsets = {}
        """Where the last batch ends, as far as this process knows: not in the first batch after a restart."""

    def origin(self) -> Origin:
        """Return the source of history. It stays open for the whole query."""
        if self._origin is None or self.plan.options.admin is None:
            self._origin = self.plan.origin()
        return self._origin

    @reason_first()
    def initialOffset(self) -> Offsets:  # noqa: N802 (as in Spark)
        """Return where a query without a checkpoint begins."""
        if self._beginning is None:
            self._beginning = self._first()
        return self._beginning

    def _first(self) -> Offsets:
        options, origin = self.plan.options, self.origin()
        ends = origin.ends()
        check_start(self.plan, origin, ends)
        # With a starting time, a stream begins there; otherwise it begins with new rows.
        timed = options.since_us is not None or options.since_by_shard is not None
        default: Positions = "earliest" if timed else "latest"
        return self.plan.positions(ends, options.starting or default, "startingOffsets")

    def ends(self) -> list[Ends]:
        """Return the extent of the history now."""
        self._ends = self.origin().ends()
        return self._ends

    def latest(self) -> Offsets:
        """Return the offsets after the last row."""
        return self.plan.positions(self.ends(), "latest", "startingOffsets")

    @reason_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the input of each task of a batch."""
        origin = self.origin()
        ends, self._ends = self._ends or origin.ends(), None
        begin = self.plan.checked(start, ends)
        # The next batch would begin without the shard, and repeat all of its rows.
        self.plan.missing(start, end, "the checkpoint has a batch that was planned while the shard was missing")
        self.reached = self.reached or {**start, **end}
        return [Part(piece) for piece in self.plan.pieces(origin, self.plan.stretches(begin, end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return rows_of(self.plan, partition)


class RefusingReader(DataSourceStreamReader):
    """Raises an error when Spark uses it.

    If an error is raised instead of returning a reader, Spark fails to stop the reader that it does not have, and
    reports this failure only.
    """

    def __init__(self, reason: errors.MqcoreError) -> None:
        self.reason = reason

    @reason_first()
    def initialOffset(self) -> Offsets:  # noqa: N802 (as in Spark)
        """Raise the error."""
        raise self.reason

    @reason_first()
    def latestOffset(self, *_given: Any) -> Offsets:  # noqa: N802 (as in Spark)
        """Raise the error."""
        raise self.reason

    @reason_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self.reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self.reason


class UnlimitedReader(Follower):
    """The reader for Spark 4.0 and 4.1: each batch has all new rows."""

    @reason_first()
    def latestOffset(self) -> Offsets:  # type: ignore[override]  # noqa: N802 (as in Spark before 4.2)
        """Return where a batch ends that begins now."""
        ends = self.ends()
        # These versions do not tell where the batch begins, so that a loss would be known only after they have stored
        # its end in the checkpoint. A restart continues at this end.
        begin = self.plan.checked(self.reached, ends)
        if not begin:
            check_history(self.plan, ends)
        self.reached = begin | self.plan.positions(ends, "latest", "startingOffsets")
        return self.reached
