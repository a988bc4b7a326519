"""Use by key and window of made-up producers, and of a real one, against a model in plain Python."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqcore import errors
from mqcore.spark import pipelines
from mqcore.spark.pipelines.report import Series, bars, lines, table, tiles
from spark.eventful import Eventful
from spark.made import START, archive_of, at
from spark.made import step as made
from spark.outcomes import in_order, ordered, parts_of, quantile, run_whole
from spark.recorded import LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT

STEPS = ("windows", "keys", "report")
COLUMNS = ("key", "windows", "messages", "body_bytes", "most", "p50", "p99", "refused", "suggested")
FIRST = int(START.timestamp())


def producer(name: str | None, id: str | None) -> dict[str, Any]:  # noqa: A002
    return {"producer_name": name, "producer_id": id}


def history() -> list[dict[str, Any]]:
    """Eight busy producers, of which the third exceeds a limit of 5 most, and more keys than the report's table has."""
    steps = [made("started"), made("delivered", 1, **producer("p0", "0"), body_bytes=9)]
    for number, counts in enumerate(((3, 4, 2, 6), (6, 5), (11,), (5, 2), (1, 1, 1, 1, 1), (4,), (4,), (2,))):
        for index, count in enumerate(counts):
            # The last second of the history is 480 s behind the first one.
            second = 480 if number == 0 and index == 3 else 7 * index
            for each in range(count):
                steps.append(
                    made(
                        "produced",
                        len(steps),
                        **producer(f"p{number}", str(number)),
                        body_bytes=10 * number + each,
                        time=at(second + each / 20),
                        queue=f"queue/{number % 2}",
                        shard=number % 2,
                    )
                )
    steps.append(made("produced", 500, **producer("", "nameless"), body_bytes=1, time=at(3)))
    steps.append(made("produced", 501, **producer(None, ""), body_bytes=2, time=at(3.999999)))
    steps += [made("produced", 600 + n, **producer(f"q{n:03}", "q"), body_bytes=0, time=at(1)) for n in range(100)]
    return steps


def windows_of(steps: list[dict[str, Any]], by: str, window: int) -> dict[tuple[str, int], tuple[int, int]]:
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for step in steps:
        if step["kind"] == "produced":
            name, id_ = step.get("producer_name") or None, step.get("producer_id") or "-"
            key = {"client": name or id_, "id": id_, "queue": step["queue"]}[by]
            place = (key, int(step["time"].timestamp()) // window * window)
            messages, size = found.get(place, (0, 0))
            found[place] = (messages + 1, size + step["body_bytes"])
    return found


def keys_of(
    windows: dict[tuple[str, int], tuple[int, int]], limit: int, headroom: float
) -> dict[str, tuple[int | float | str, ...]]:
    """Rows of the table ``keys``, busiest first."""
    of: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for (key, _), figures in windows.items():
        of[key].append(figures)
    found = {}
    for key, rows in sorted(of.items(), key=lambda pair: (-sum(each[0] for each in pair[1]), pair[0])):
        counts = [each[0] for each in rows]
        over = [count - limit for count in counts if limit and count > limit]
        p99 = quantile(counts, 0.99)
        found[key] = (
            *(key, len(rows), sum(counts), sum(each[1] for each in rows), max(counts), quantile(counts, 0.5), p99),
            *(sum(over), len(over), math.ceil(p99 * headroom)),
        )
    return found


def check(
    spark: SparkSession, data: Path, out: Path, steps: list[dict[str, Any]], *, width: int, **options: Any
) -> list[str]:
    """Compare everything; the curves have a point for each `width` seconds. Return the parts of the report."""
    by, window, limit = options.get("by", "client"), options.get("window", 60), options.get("limit", 0)
    outcome = run_whole("limits", spark, data, out, STEPS, **options)
    windows = windows_of(steps, by, window)
    keys = keys_of(windows, limit, options.get("headroom", 1.5))
    assert ordered(outcome.tables["windows"], "key", "start", "messages", "body_bytes") == in_order(
        ((key, datetime.fromtimestamp(start, UTC), *figures) for (key, start), figures in windows.items())
    )
    names = (*COLUMNS[:-1], "windows_over", COLUMNS[-1])
    assert ordered(outcome.tables["keys"], *names) == in_order(keys.values())
    messages, refused = sum(row[2] for row in keys.values()), sum(row[7] for row in keys.values())
    assert outcome.figures == {"keys": len(keys), "messages": messages, "refused": refused}
    more = f"; {limit:,} in {window} s would have rejected {refused}" if limit else ""
    assert outcome.summary == f"{messages} messages of {len(keys)} keys{more}"

    first, last = min(start for _, start in windows), max(start for _, start in windows)
    grid = range(first, last + 1, width)
    peaks: Counter[tuple[str, int]] = Counter()
    for (key, start), (count, _) in windows.items():
        place = (key, first + (start - first) // width * width)
        peaks[place] = max(peaks[place], count)
    curves = [Series(key, [(moment, float(peaks[(key, moment)])) for moment in grid]) for key in list(keys)[:6]]
    if limit:
        curves.append(Series(f"limit {limit:,}", [(first, limit), (max(last, first + 1), limit)]))
    expected = [
        tiles(("keys", len(keys)), ("messages", messages), ("refused", refused)),
        lines("Use", f"messages in {window} s", curves, times=True),
    ]
    if limit:
        over = sorted(((key, row[7]) for key, row in keys.items() if row[7]), key=lambda pair: -pair[1])
        none = "No message would have been rejected."
        expected.append(bars("Messages that would have been rejected", "messages", over, otherwise=none))
    rows = [[each for place, each in enumerate(row) if place != 8] for row in list(keys.values())[:100]]
    expected.append(table("Keys", COLUMNS, rows, of=len(keys)))
    parts = parts_of(outcome.report, "Limits", f"{data}, by {by} and {window} s")
    assert parts == expected
    return parts


def test_use_refusals_and_quotas_are_those_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    steps = history()
    data = archive_of(tmp_path / "data", steps, shards=2)
    parts = check(spark, data, tmp_path / "a", steps, width=3, window=1, limit=5)
    assert [f"<title>{each.partition('</title>')[0]}" for each in parts[2].split("<title>")[1:]] == [
        "<title>p2: 6 messages",
        "<title>p0: 1 messages",
        "<title>p1: 1 messages",
    ]
    check(spark, data, tmp_path / "b", steps, width=3600, by="queue", window=3600, limit=1000, headroom=1)
    check(spark, data, tmp_path / "c", steps, width=60, by="id")


def test_use_of_a_real_producer_is_counted_by_its_name(spark: SparkSession, eventful: Eventful, tmp_path: Path) -> None:
    steps = [step for life in eventful.lives().values() for step in life]
    seconds = [int(step["time"].timestamp()) for step in steps if step["kind"] == "produced"]
    width = -(-(max(seconds) - min(seconds) + 1) // 240)
    check(spark, eventful.data_dir, tmp_path, steps, width=width, window=1, limit=50)


def test_a_history_without_producers_has_no_keys(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [made("started")])
    outcome = run_whole("limits", spark, data, tmp_path / "out", STEPS)
    assert ordered(outcome.tables["windows"]) == ordered(outcome.tables["keys"]) == []
    assert parts_of(outcome.report, "Limits", f"{data}, by client and 60 s") == [
        tiles(("keys", 0), ("messages", 0), ("refused", 0)),
        '<p class="say">The history is empty: no message was published, or the broker runs without history.</p>',
    ]
    with pytest.raises(errors.ConfigError, match="by must be one of client, id, queue, not 'colour'"):
        pipelines.run("limits", spark, data, tmp_path, by="colour")
    for wrong in ({"window": 0}, {"limit": -1}, {"headroom": 0.99}):
        with pytest.raises(errors.ConfigError, match="window must be at least 1 s, limit at least 0, headroom at"):
            pipelines.run("limits", spark, data, tmp_path, **wrong)
