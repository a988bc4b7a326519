"""``anomalies``: rates and latencies of each queue and hour, against the same hour of the week in earlier weeks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.destinations import queue_name
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.incidents import Alerts, Incident, merged
from mqcore.spark.pipelines.moments import moment
from mqcore.spark.pipelines.paced import check_url
from mqcore.spark.pipelines.report import Page, Series, bars, lines, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["LEAST_MESSAGES", "MEASURES", "anomalies"]


@dataclass(frozen=True)
class _Measure:
    """A measure of an hour, and the smallest deviation that counts as usual."""

    is_rate: bool
    """A number of events, which is 0 in an hour without events; else a latency in ms."""
    both: bool
    """Whether too low values are anomalies too."""
    share: float
    """Usual deviation as a share of the median."""
    least: float
    """Usual deviation, absolute."""


MEASURES: Final = {
    "published": _Measure(is_rate=True, both=True, share=0.1, least=1.0),
    "acked": _Measure(is_rate=True, both=True, share=0.1, least=1.0),
    "dead_lettered": _Measure(is_rate=True, both=False, share=0.1, least=1.0),
    "delivery_ms": _Measure(is_rate=False, both=False, share=0.25, least=5.0),
    "ack_ms": _Measure(is_rate=False, both=False, share=0.25, least=5.0),
}
"""Measures of an hour. Latencies are 95th percentiles, of the messages that were delivered or acknowledged in it."""
LEAST_MESSAGES: Final = 20
"""Messages that an hour needs for a latency."""

_HOUR: Final = 3600
_WEEK: Final = 168
_MAD_TO_DEVIATION: Final = 1.4826
"""A median absolute deviation times this is the standard deviation of a normal distribution."""
_HOURS: Final = (
    "queue string, `hour` timestamp, measure string, value double, weeks int, expected double, usual double, "
    "score double, anomalous boolean"
)
_ANOMALIES: Final = (
    "queue string, measure string, direction string, start timestamp, `end` timestamp, value double, expected double, "
    "score double, weeks int"
)
_ROWS: Final = 200
_CHARTS: Final = 4
_CHART_HOURS: Final = 72


def anomalies(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    hours: int = 168,
    weeks: int = 8,
    min_weeks: int = 3,
    threshold: float = 6.0,
    until: str = "",
    alerts: str = "",
    url: str = "",
    admin: str = "",
    token: str = "",
    progress: Progress = unseen,
) -> Outcome:
    """Compare rates and latencies of each queue and hour with the same hour (UTC) of earlier weeks.

    - `hours`: number of hours to examine, the latest complete ones (default 168).
    - `weeks`: number of earlier weeks to compare with (default 8); `min_weeks`: how many an hour needs (default 3).
    - `threshold`: deviation from the median that is an anomaly, in units of the usual deviation (default 6). That is
      1.4826 times the median absolute deviation, and at least a share of the median.
    - `until`: end of the last hour: ISO 8601 in UTC, or a time before now. Default: the last event. With ``0s``, hours
      without any event until now count as well.
    - `alerts`: queue for alerts, such as ``alerts/1``. Requires `url`. Each anomaly is announced once, however often
      the pipeline runs with the same output directory. The queue itself is not examined.
    - `url`, `admin`, `token`: broker that receives alerts. With `admin`, its admin URL, no alert is published twice
      even if a run was killed.

    Tables: ``hours`` (each examined hour and measure) and ``anomalies`` (consecutive hours as one).

    Raises `ConfigError`, `DataDirMissing`, `DataDirUnreadable`, and errors of publishing.
    """
    if hours < 1 or min_weeks < 2 or weeks < min_weeks:
        raise errors.ConfigError("hours must be at least 1, min_weeks at least 2, weeks at least min_weeks")
    if not 0 < threshold < float("inf"):
        raise errors.ConfigError(f"threshold must be more than 0, not {threshold}")
    if bool(alerts) != bool(url):
        raise errors.ConfigError("alerts and url belong together; set both (queue and broker) or none")
    target = queue_name("alerts", alerts) if alerts else ""
    if url:
        check_url(url)
    end = moment("until", until)
    history, tables = History.of(spark, data_dir), Tables(out, "anomalies")
    progress("measures", 0, 0)
    with history.by_message():
        span = _span(history, end, hours, weeks)
        rows = _empty(spark) if span is None else _examined(history, span, target, weeks, min_weeks, threshold)
        examined = tables.write("hours", rows, files=4)
    progress("anomalies", 0, 0)
    found = _incidents(examined)
    table_rows = [_row(each) for each in found]
    tables.write("anomalies", spark.createDataFrame(table_rows, _ANOMALIES), files=1)
    announced = 0
    if target:
        progress("alerts", 0, 0)
        announced = Alerts(tables.path("alerts"), target, url=url, admin=admin, token=token).announce(found)
    progress("report", 0, 0)
    figures = _figures(examined, found, announced)
    page = _page(history, span, min_weeks, threshold, examined, found, figures)
    details = {"anomalies": [each.plain() for each in found]}
    summary = _summary(figures, span, min_weeks, with_alerts=bool(target))
    return Outcome("anomalies", summary, tables.write_page(page.html()), tables.paths, figures, details=details)


@dataclass(frozen=True)
class _Span:
    """Hours in Unix seconds: the first one of the history, the first examined one, and the end of the last one."""

    first: int
    start: int
    end: int

    @property
    def known_hours(self) -> int:
        return (self.end - self.first) // _HOUR


def _span(history: History, until: int | None, hours: int, weeks: int) -> _Span | None:
    """Find the complete hours; `None` without any."""
    from pyspark.sql import functions as F  # noqa: N812

    ends = history.steps("time").agg(F.unix_micros(F.min("time")), F.unix_micros(F.max("time"))).first()
    if ends is None or ends[0] is None:
        return None
    # The first hour began before the history, and the last one may continue after it.
    first = (ends[0] // 1_000_000 // _HOUR + 1) * _HOUR
    end = (ends[1] if until is None else until) // 1_000_000 // _HOUR * _HOUR
    start = max(first, end - hours * _HOUR)
    first = max(first, start - weeks * _WEEK * _HOUR)
    return _Span(first, start, end) if start < end else None


def _empty(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], _HOURS)


def _examined(history: History, span: _Span, left_out: str, weeks: int, min_weeks: int, threshold: float) -> DataFrame:
    """Rows of the table ``hours``."""
    from pyspark.sql import functions as F  # noqa: N812

    measured = _measured(history, span, left_out)
    values = F.explode(
        F.array(*(F.struct(F.lit(name).alias("measure"), F.col(name).alias("value")) for name in MEASURES))
    )
    long = measured.select("queue", "hour", values.alias("each")).select("queue", "hour", "each.measure", "each.value")
    long = long.where("value is not null")
    later = F.explode(F.array(*(F.lit(week * _WEEK * _HOUR) for week in range(1, weeks + 1))))
    samples = (
        long.select("queue", "measure", "value", "hour", later.alias("later"))
        .select("queue", "measure", "value", (F.col("hour") + F.col("later")).alias("hour"))
        .where((F.col("hour") >= span.start) & (F.col("hour") < span.end))
        .groupBy("queue", "measure", "hour")
        .agg(F.sort_array(F.collect_list("value")).alias("samples"))
    )
    rows = long.where(F.col("hour") >= span.start).join(samples, ["queue", "measure", "hour"], "left")
    count = F.coalesce(F.size("samples"), F.lit(0))
    enough = F.col("weeks") >= min_weeks
    median = _median("samples")
    rows = rows.withColumn("weeks", F.greatest(count, F.lit(0)))
    rows = rows.withColumn("expected", F.when(enough, median))
    apart = F.sort_array(F.transform("samples", lambda value: F.abs(value - F.col("expected"))))
    rows = rows.withColumn("apart", apart)
    rows = rows.withColumn("usual", F.when(enough, _usual(_median("apart"))))
    score = (F.col("value") - F.col("expected")) / F.col("usual")
    both = F.col("measure").isin(*(name for name, measure in MEASURES.items() if measure.both))
    anomalous = (score >= threshold) | (both & (score <= -threshold))
    return rows.select(
        "queue",
        F.timestamp_seconds("hour").alias("hour"),
        "measure",
        "value",
        F.col("weeks").cast("int"),
        "expected",
        "usual",
        score.alias("score"),
        F.coalesce(anomalous, F.lit(False)).alias("anomalous"),
    ).orderBy("queue", "measure", "hour")


def _median(name: str) -> Column:
    """Median of a sorted list; `NULL` for an empty one."""
    from pyspark.sql import functions as F  # noqa: N812

    size, values = F.size(name), F.col(name)
    low, high = F.floor((size - 1) / 2).cast("int"), F.floor(size / 2).cast("int")
    return F.when(size > 0, (F.get(values, low) + F.get(values, high)) / 2)


def _usual(mad: Column) -> Column:
    """The usual deviation: robust, and not smaller than a share of the median and, for rates, than chance alone."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.lit(None).cast("double")
    for name, measure in MEASURES.items():
        parts = [mad * _MAD_TO_DEVIATION, F.col("expected") * measure.share, F.lit(measure.least)]
        if measure.is_rate:
            parts.append(F.sqrt("expected"))
        found = F.when(F.col("measure") == name, F.greatest(*parts)).otherwise(found)
    return found


def _measured(history: History, span: _Span, left_out: str) -> DataFrame:
    """All measures of each queue and hour. Hours without events are rows with rates of 0."""
    from pyspark.sql import functions as F  # noqa: N812

    hour = (F.floor(F.unix_seconds("time") / _HOUR) * _HOUR).cast("long")
    steps = history.steps("time", "shard", "number", "queue", "kind").where("queue is not null")
    if left_out:
        steps = steps.where(F.lower("queue") != left_out.lower())

    def count(*kinds: str) -> Column:
        return F.count_if(F.col("kind").isin(*kinds)).cast("double")

    rates = steps.groupBy("queue", hour.alias("hour")).agg(
        count("produced", "arrived").alias("published"),
        count("acked").alias("acked"),
        count("dead-lettered").alias("dead_lettered"),
    )
    # A queue is compared from its first complete hour on.
    begins = rates.groupBy("queue").agg(F.min("hour").alias("first"))
    first = F.greatest(F.col("first") + _HOUR, F.lit(span.first).cast("long"))
    grid = begins.where(F.col("first") + _HOUR < span.end).select(
        "queue",
        F.explode(F.sequence(first, F.lit(span.end - _HOUR).cast("long"), F.lit(_HOUR).cast("long"))).alias("hour"),
    )
    both = grid.join(rates, ["queue", "hour"], "left").join(_latencies(steps), ["queue", "hour"], "left")
    known = [F.coalesce(name, F.lit(0.0)).alias(name) for name, measure in MEASURES.items() if measure.is_rate]
    return both.select("queue", "hour", *known, "delivery_ms", "ack_ms")


def _latencies(steps: DataFrame) -> DataFrame:
    """95th percentiles by queue and hour: from entry to the first delivery, and from there to the first ack."""
    from pyspark.sql import functions as F  # noqa: N812

    def first(*kinds: str) -> Column:
        return F.min(F.when(F.col("kind").isin(*kinds), F.unix_micros("time")))

    lives = (
        steps.where(F.col("kind").isin("produced", "arrived", "delivered", "acked"))
        .groupBy("shard", "number", "queue")
        .agg(
            first("produced", "arrived").alias("entered"),
            first("delivered").alias("delivered"),
            first("acked").alias("acked"),
        )
    )

    def spans(name: str, begin: str, end: str) -> Column:
        return F.struct(F.lit(name).alias("what"), F.col(begin).alias("begin"), F.col(end).alias("end"))

    both = F.explode(F.array(spans("delivery", "entered", "delivered"), spans("ack", "delivered", "acked")))
    took = lives.select("queue", both.alias("span"))
    took = took.where(F.col("span.begin").isNotNull() & F.col("span.end").isNotNull())
    at = (F.floor(F.col("span.end") / (_HOUR * 1_000_000)) * _HOUR).cast("long")
    ms = F.greatest(F.col("span.end") - F.col("span.begin"), F.lit(0)) / 1000

    def p95(what: str) -> Column:
        chosen = F.when(F.col("span.what") == what, ms)
        quantile = F.percentile_approx(chosen, F.lit(0.95), F.lit(10_000))
        return F.when(F.count(chosen) >= LEAST_MESSAGES, quantile)

    return took.groupBy("queue", at.alias("hour")).agg(p95("delivery").alias("delivery_ms"), p95("ack").alias("ack_ms"))


def _incidents(examined: DataFrame) -> list[Incident]:
    from pyspark.sql import functions as F  # noqa: N812

    rows = examined.where("anomalous").withColumn("at", F.unix_seconds("hour")).collect()
    return merged(
        Incident(
            queue=row["queue"],
            measure=row["measure"],
            direction="high" if row["score"] > 0 else "low",
            start=row["at"],
            end=row["at"] + _HOUR,
            value=row["value"],
            expected=row["expected"],
            score=row["score"],
            weeks=row["weeks"],
        )
        for row in rows
    )


def _row(each: Incident) -> tuple[Any, ...]:
    times = (_time(each.start), _time(each.end))
    return (each.queue, each.measure, each.direction, *times, each.value, each.expected, each.score, each.weeks)


def _time(seconds: int) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC)


# --- report ---------------------------------------------------------------------------------------------------------


def _figures(examined: DataFrame, found: Sequence[Incident], announced: int) -> dict[str, int]:
    from pyspark.sql import functions as F  # noqa: N812

    sums = examined.agg(
        F.count_distinct("queue").alias("queues"),
        F.count_if(F.col("score").isNotNull()).alias("examined"),
        F.count_if(F.col("score").isNull()).alias("too_new"),
    ).first()
    assert sums is not None
    return {**sums.asDict(), "anomalies": len(found), "alerts": announced}


def _shortage(span: _Span | None, min_weeks: int) -> str:
    """Why nothing could be compared."""
    known = 0 if span is None else span.known_hours
    return (
        f"nothing could be compared: the history has {known / 24:,.1f} days of complete hours, "
        f"and {min_weeks} earlier weeks need more than {7 * min_weeks} days"
    )


def _summary(figures: Mapping[str, int], span: _Span | None, min_weeks: int, *, with_alerts: bool) -> str:
    if not figures["examined"]:
        return _shortage(span, min_weeks)
    text = f"{figures['anomalies']:,} anomalies in {figures['examined']:,} values of {figures['queues']:,} queues"
    if figures["too_new"]:
        text += f"; {figures['too_new']:,} values have fewer than {min_weeks} earlier weeks"
    return f"{text}; {figures['alerts']:,} alerts published" if with_alerts else text


def _page(
    history: History,
    span: _Span | None,
    min_weeks: int,
    threshold: float,
    examined: DataFrame,
    found: Sequence[Incident],
    figures: Mapping[str, int],
) -> Page:
    about = history.data_dir
    if span is not None:
        about += f", {_time(span.start):%Y-%m-%d %H:%M} to {_time(span.end):%Y-%m-%d %H:%M}, hours in UTC"
    page = Page("Anomalies", about)
    page.add(tiles(*((name.replace("_", " "), value) for name, value in figures.items())))
    if not figures["examined"]:
        text = _shortage(span, min_weeks)
        return page.say(f"{text[0].upper()}{text[1:]}.")
    if history.missing:
        page.say(f"{history.missing} records of the history are missing, so some rates are too low.")
    if figures["too_new"]:
        page.say(f"{figures['too_new']:,} values are not compared, because they have fewer than {min_weeks} weeks.")
    if not found:
        page.say("Every value is within the usual range.", good=True)
    worst = [(f"{each.queue} {each.measure} {each.direction}", abs(each.score)) for each in found]
    page.add(bars("Anomalies", "usual deviations", worst, otherwise="There are none."))
    for each in found[:_CHARTS]:
        page.add(_chart(examined, each, threshold))
    if not found:
        page.add(_largest(examined))
    columns = ("queue", "measure", "direction", "start", "end", "value", "expected", "score", "weeks")
    rows = [_row(each) for each in found[:_ROWS]]
    return page.add(table("Anomalies by hour", columns, rows, of=len(found)))


def _chart(examined: DataFrame, each: Incident, threshold: float) -> str:
    """The hours around an anomaly with their usual range."""
    from pyspark.sql import functions as F  # noqa: N812

    around = _CHART_HOURS * _HOUR // 2
    at = F.unix_seconds("hour")
    rows = (
        examined.where((F.col("queue") == each.queue) & (F.col("measure") == each.measure))
        .where((at >= each.start - around) & (at < each.end + around))
        .select(at.alias("at"), "value", "expected", "usual")
        .orderBy("at")
        .collect()
    )
    usual = [(row["at"], row["expected"], row["usual"] * threshold if row["usual"] else None) for row in rows]
    curves = [
        Series(each.measure, [(row["at"], row["value"]) for row in rows]),
        Series("expected", [(moment_, expected) for moment_, expected, _ in usual]),
        Series("highest usual", [(moment_, None if room is None else mid + room) for moment_, mid, room in usual]),
        Series(
            "lowest usual", [(moment_, None if room is None else max(0.0, mid - room)) for moment_, mid, room in usual]
        ),
    ]
    unit = "messages in 1 h" if MEASURES[each.measure].is_rate else "ms, 95th percentile"
    shown = curves if MEASURES[each.measure].both else curves[:3]
    return lines(f"{each.queue}: {each.measure}", unit, shown, times=True)


def _largest(examined: DataFrame) -> str:
    """The deviations of the queue and measure that come closest to an anomaly."""
    from pyspark.sql import functions as F  # noqa: N812

    row = examined.where("score is not null").orderBy(F.desc(F.abs("score")), "queue", "measure").first()
    assert row is not None
    same = examined.where((F.col("queue") == row["queue"]) & (F.col("measure") == row["measure"])).orderBy("hour")
    points = same.select(F.unix_seconds("hour").alias("at"), F.abs("score").alias("score")).collect()
    title = f"Largest deviation: {row['queue']} {row['measure']}"
    return lines(title, "usual deviations", [Series("score", [(p["at"], p["score"]) for p in points])], times=True)
