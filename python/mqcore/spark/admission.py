"""How far the next batch of a stream reaches. Nothing here knows Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from mqcore.spark.origin import Origin
from mqcore.spark.plan import Offsets, Plan

__all__ = ["Admission"]


class Admission:
    """Applies ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger`` and ``maxTriggerDelay`` to the batches of one query.

    `clock` returns monotonic seconds.
    """

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._clock = clock
        self._last = clock()
        """When the last batch was admitted."""
        self._counted: Offsets = {}
        """Up to where rows are counted, so that each is counted once although Spark asks continually."""
        self._begin: Mapping[str, Any] = {}
        self._rows = 0

    def waits(self, origin: Origin, begin: Mapping[str, Any], end: Offsets) -> bool:
        """Return whether the batch between two offsets has too few rows, and must not begin yet."""
        least = self._plan.options.min_rows_per_trigger
        if least is None or not self._plan.stretches(begin, end):
            return False
        now = self._clock()
        if now - self._last < self._plan.options.trigger_delay and not self._has_rows(origin, begin, end, least):
            return True
        self._last = now
        return False

    def limited(self, origin: Origin, begin: Mapping[str, Any], end: Offsets, rows: int) -> Offsets:
        """Return the end of a batch of at most `rows` rows."""
        stretches = self._plan.stretches(begin, end)
        reached = self._plan.advance(origin, stretches, rows) if stretches else []
        limited = {shard: dict(place) for shard, place in end.items()}
        for (shard, _, _), sequence in zip(stretches, reached, strict=True):
            limited[str(shard)]["sequence"] = sequence
        return limited

    def _has_rows(self, origin: Origin, begin: Mapping[str, Any], end: Offsets, least: int) -> bool:
        if begin != self._begin:
            self._begin, self._counted, self._rows = begin, {**begin}, 0
        if self._rows < least:
            for found in self._plan.counted(origin, self._plan.stretches(self._counted, end)):
                self._rows += found
                if self._rows >= least:
                    break
            self._counted = end
        return self._rows >= least
