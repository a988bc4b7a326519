"""Runs of pipelines whose outcome is looked at as a whole: steps, figures, tables, and the parts of the report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from mqcore.spark import pipelines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_of(path: Path) -> list[dict[str, Any]]:
    """A table that a pipeline wrote, read without Spark."""
    rows = pq.read_table(path, coerce_int96_timestamp_unit="us").to_pylist()
    return [{name: _in_utc(value) for name, value in row.items()} for row in rows]


def _in_utc(value: Any) -> Any:
    """Spark's timestamps have no zone in Parquet."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def in_order(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows to compare: in one order, with as many digits as additions in another order keep."""
    return sorted((tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in rows), key=repr)


def ordered(path: Path, *names: str) -> list[tuple[Any, ...]]:
    """A table that a pipeline wrote, in the order of `in_order`. Its columns must have these names."""
    rows = rows_of(path)
    assert {tuple(row) for row in rows} <= {names}
    return in_order(row.values() for row in rows)


def self_contained(report: Path) -> str:
    page = report.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", page), "a report needs nothing beside it"
    assert "<script" not in page
    return page


def parts_of(report: Path, title: str, about: str) -> list[str]:
    """The parts of a report with this title, in their order, one in each line."""
    head, _, body = self_contained(report).partition("</head><body>\n")
    assert f"<title>{title}</title>" in head
    way_back, heading, described, *parts = body.splitlines()
    assert way_back == '<nav><a href="index.html">All reports</a></nav>'
    assert heading == f"<h1>{title}</h1>"
    assert re.fullmatch(rf'<p class="soft">{re.escape(about)}<br>[0-9: -]+ UTC</p>', described)
    assert parts.pop() == "</body></html>"
    return parts


def run_whole(
    name: str,
    spark: SparkSession,
    data_dir: Path,
    out: Path,
    steps: Sequence[str],
    tasks: Mapping[str, int] = MappingProxyType({}),
    **options: Any,
) -> pipelines.Outcome:
    """Run a pipeline. It must report these steps and no others, and leave its tables and its report only.

    `tasks` are the numbers of tasks that it knows when some steps begin.
    """
    reported: list[tuple[str, int, int]] = []
    outcome = pipelines.run(name, spark, data_dir, out, progress=lambda *place: reported.append(place), **options)
    assert list(dict.fromkeys(step for step, _, _ in reported if step in steps)) == list(steps)
    # Numbers of tasks are also polled, which depends on the time.
    assert {(step, 0, count) for step, count in tasks.items()} <= set(reported)
    assert {what for what, _, _ in reported} <= {"start", *steps}
    assert outcome.name == name
    assert outcome.report == out / f"{name}.html"
    assert outcome.tables == {table: out / name / table for table in outcome.tables}
    assert {path.name for path in (out / name).iterdir()} == set(outcome.tables)
    of_each = {f"{each}{suffix}" for each in pipelines.NAMES for suffix in ("", ".html", ".report.json")}
    assert {path.name for path in out.iterdir()} <= {"index.html", *of_each}
    return outcome


def quantile(values: Sequence[int], wanted: float) -> float:
    """Linear interpolation between neighbors, as in most libraries."""
    values = sorted(values)
    place = wanted * (len(values) - 1)
    low, high = math.floor(place), math.ceil(place)
    return values[low] if low == high else (high - place) * values[low] + (place - low) * values[high]
