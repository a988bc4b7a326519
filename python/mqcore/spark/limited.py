"""The reader of streaming queries for Spark 4.2 and later, whose batches can have a size."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from mqcore.spark.admission import Admission
from mqcore.spark.engine import reason_first
from mqcore.spark.plan import Offsets, Plan
from mqcore.spark.stream import Follower

__all__ = ["LimitedReader"]


class LimitedReader(Follower, SupportsTriggerAvailableNow):
    """Limits the rows of a batch."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.target: Offsets | None = None
        """The end of a query that reads only the rows available now."""
        self.admission = Admission(plan)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (as in Spark)
        """Return the size of a batch."""
        rows = self.plan.options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    @reason_first()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (as in Spark)
        """End the query at the rows that exist now."""
        self.target = self.latest()

    @reason_first()
    def reportLatestOffset(self) -> Offsets:  # noqa: N802 (as in Spark)
        """Return the end of the history, for the progress of the query: as `latestOffset` has found it just before."""
        return self.plan.positions(self._ends or self.ends(), "latest", "startingOffsets")

    @reason_first()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offsets:  # noqa: N802 (as in Spark)
        """Return where a batch ends that begins at `start`; `start` itself if it has to wait."""
        origin, ends = self.origin(), self.ends()
        begin = self.plan.checked(start, ends)
        # With the shards that are missing now, or were when the target was set.
        end = begin | (self.target or self.plan.positions(ends, "latest", "startingOffsets"))
        # A query that ends waits for no further rows.
        if self.target is None and self.admission.waits(origin, begin, end):
            return start
        return self.admission.limited(origin, begin, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end
