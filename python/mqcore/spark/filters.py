"""Filters that Spark pushes to a batch query, since 4.1: they reduce what is read, and Spark applies them again."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from mqcore.spark.plan import Plan

__all__ = ["narrow"]

_NAMES_MAX: Final = 1_024
"""Number of queues that a request to the core can name."""
_NAMES_BYTES_MAX: Final = 8 << 10
"""Size of the names in a request to the admin side, which can have 12 KiB with columns, ranges and segments."""


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
    if column in {"channel", "queue", "topic"} and len(texts) == len(values) and _fit(plan, texts):
        # A request can contain one condition on queues. The first one already reduces the input.
        plan.queues = texts if plan.queues is None else plan.queues
    elif column == "kind" and len(texts) == len(values) and _fit(plan, texts):
        plan.kinds = texts if plan.kinds is None else plan.kinds
    elif column in {"shard", "partition"} and len(numbers) == len(set(values)):
        bounds = plan.bounds
        bounds.shards = numbers if bounds.shards is None else bounds.shards & numbers
    elif values and not any(value is None for value in values):
        _bound(plan, column, min(values), max(values))


def _fit(plan: Plan, texts: tuple[str, ...]) -> bool:
    """Whether a request can contain these texts. If not, rows of all others are read too, and Spark removes them."""
    if len(texts) > _NAMES_MAX:
        return False
    # The request is a text in the JSON of a question to the admin side.
    return plan.options.admin is None or len(json.dumps(json.dumps(texts))) <= _NAMES_BYTES_MAX


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
