"""``lifecycle``: throughput, latencies and losses per queue and interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.fate import FATES, LOSSES, PRESENT, Shards, column_of, fate, lives, reason
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.report import Page, Series, bars, lines, others, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["COUNTED", "QUANTILES", "RESULTS", "lifecycle"]

COUNTED: Final = {
    "produced": "produced",
    "arrived": "arrived",
    "delivered": "delivered",
    "acks": "acked",
    "nacked": "nacked",
    "timed_out": "timed-out",
    "consumer_lost": "consumer-lost",
    "put_back": "put-back",
}
"""Columns that count events, and the kind of event that each counts."""
RESULTS: Final = tuple(fate for fate in FATES if fate not in PRESENT)
"""Fates that are counted in the interval in which they happened."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_MISSED: Final = "missed"
"""A loss of one consumer only: the message itself has another fate."""
_SHOWN: Final = ("lost", "dropped", "expired", "failed", "dead-lettered")
"""Losses in the report, the worst first."""
_POINTS: Final = 240
"""Maximum points of a curve; the page is not wide enough for more."""
_CURVES: Final = 6
_ROWS: Final = 200


def lifecycle(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    interval: int = 60,
    progress: Progress = unseen,
) -> Outcome:
    """Count events and fates per queue and `interval` (seconds, default 60).

    Tables: ``intervals`` (numbers of events, of messages by fate, bytes, and quantiles in ms), ``fates`` (numbers of
    messages by queue and fate), ``losses`` (messages that left without an acknowledgement, with reasons) and
    ``latencies`` (numbers of messages by latency). The latency of a delivery is the time from entering the queue to the
    first delivery. The latency of an acknowledgement is the time from there to the first acknowledgement, including all
    attempts. Latencies are exact up to 1 s, and have three digits above.

    Raises `ConfigError`, `DataDirMissing` and `DataDirUnreadable`.
    """
    from pyspark import StorageLevel

    if interval < 1:
        raise errors.ConfigError(f"interval must be at least 1 second, not {interval}")
    history, tables = History.of(spark, data_dir), Tables(out, "lifecycle")
    with history.by_message():
        progress("lives", 0, 0)
        # All events are grouped by message only once.
        ends = _ends(history, interval).persist(StorageLevel.DISK_ONLY)
        try:
            latencies = tables.write("latencies", _latencies(ends), files=4)
            progress("losses", 0, 0)
            fates = tables.write("fates", _fates(ends), files=1)
            losses = tables.write("losses", _losses(history, interval, ends), files=1)
            progress("intervals", 0, 0)
            intervals = tables.write("intervals", _intervals(history, interval, ends, latencies), files=4)
        finally:
            ends.unpersist()
        progress("report", 0, 0)
        queues = _queues(intervals, fates, latencies)
        names = (*COUNTED, "redelivered", "earlier", *map(column_of, FATES))
        total = {name: sum(int(row[name] or 0) for row in queues) for name in names}
        page = _page(history, interval, intervals, losses, queues, total)
    there = sum(total[column_of(name)] for name in PRESENT)
    summary = (
        f"{total['produced'] + total['arrived'] + total['earlier']:,} messages in {len(queues):,} queues, "
        f"{total['acked']:,} acked, {total['redelivered']:,} redeliveries, {total['dead_lettered']:,} dead-lettered, "
        f"{sum(total[column_of(name)] for name in LOSSES) - total['dead_lettered']:,} lost, {there:,} still there"
    )
    return Outcome("lifecycle", summary, tables.write_page(page.html()), tables.paths, total)


def _start(interval: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    seconds = F.unix_seconds("time")
    return F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(interval))).alias("start")


def _ends(history: History, interval: int) -> DataFrame:
    """Numbers of messages by queue, interval, and ``what`` happened then: ``delivery`` or ``ack`` after ``ms``, or a
    ``fate`` with its ``reason``. The fates of messages that are still there have no interval.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def first(*kinds: str) -> Column:
        return F.min(F.when(F.col("kind").isin(*kinds), F.unix_micros("time")))

    every = lives(
        history.fate_steps("time"),
        Shards.of(history),
        came=first("produced", "arrived"),
        delivered=first("delivered"),
        settled=first("acked"),
    )
    spans = F.array(
        _span("delivery", "came", "delivered"),
        _span("ack", "delivered", "settled"),
        F.struct(
            F.lit("fate").alias("what"),
            F.unix_micros("ended").alias("until"),
            F.lit(None).cast("long").alias("ms"),
            F.col("code").alias("code"),
            F.col("results").alias("messages"),
            (F.col("entered") == 0).cast("long").alias("earlier"),
        ),
    )
    return (
        every.select("queue", F.explode(spans).alias("span"))
        .select("queue", "span.*", F.timestamp_micros("span.until").alias("time"))
        .where("what = 'fate' or ms is not null")
        .groupBy("queue", _start(interval), "what", "ms", "code")
        .agg(F.sum("messages").alias("messages"), F.sum("earlier").alias("earlier"))
    )


def _span(what: str, begin: str, end: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    took = F.floor(F.greatest(F.col(end) - F.col(begin), F.lit(0)) / 1000)
    # Three digits above one second, so that months of slow messages do not need one row each.
    digits = F.pow(F.lit(10.0), F.greatest(F.floor(F.log10(F.greatest(took, F.lit(1)).cast("double"))) - 2, F.lit(0)))
    known = F.col(begin).isNotNull() & F.col(end).isNotNull()
    return F.struct(
        F.lit(what).alias("what"),
        F.col(end).alias("until"),
        F.when(known, (F.floor(took / digits) * digits).cast("long")).alias("ms"),
        F.lit(None).cast("int").alias("code"),
        F.lit(1).cast("long").alias("messages"),
        F.lit(0).cast("long").alias("earlier"),
    )


def _latencies(ends: DataFrame) -> DataFrame:
    return ends.where("what <> 'fate'").select("queue", "start", "what", "ms", "messages")


def _fates(ends: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    every = ends.where("what = 'fate'").withColumn("fate", fate())
    return every.groupBy("queue", "fate").agg(F.sum("messages").alias("messages"), F.sum("earlier").alias("earlier"))


def _losses(history: History, interval: int, ends: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    every = ends.where("what = 'fate'").select(
        "queue", "start", fate().alias("fate"), reason().alias("reason"), "messages"
    )
    missed = (
        history.steps("time", "queue", "kind", "reason", "last")
        .where("kind = 'dropped' and not coalesce(last, false)")
        .select(
            "queue", _start(interval), F.lit(_MISSED).alias("fate"), "reason", F.lit(1).cast("long").alias("messages")
        )
    )
    found = every.where(F.col("fate").isin(*LOSSES)).unionByName(missed)
    by = ("queue", "start", "fate", "reason")
    return found.groupBy(*by).agg(F.sum("messages").alias("messages")).orderBy("start", "queue", "fate", "reason")


def _intervals(history: History, interval: int, ends: DataFrame, latencies: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    entry = F.col("kind").isin("produced", "arrived")
    counted = (
        history.steps("time", "queue", "kind", "attempt", "body_bytes")
        # In a history of an earlier version, a restart has an event for each waiting message. They do not count here.
        .where(F.col("queue").isNotNull() & F.col("kind").isin(*COUNTED.values()))
        .groupBy("queue", _start(interval))
        .agg(
            *(F.count_if(F.col("kind") == kind).alias(name) for name, kind in COUNTED.items()),
            F.count_if((F.col("kind") == "delivered") & (F.col("attempt") > 1)).alias("redelivered"),
            F.coalesce(F.sum(F.when(entry, F.col("body_bytes"))), F.lit(0)).alias("body_bytes"),
        )
    )
    results = (
        ends.where("what = 'fate' and start is not null")
        .withColumn("fate", fate())
        .groupBy("queue", "start")
        .agg(
            *(
                F.coalesce(F.sum(F.when(F.col("fate") == name, F.col("messages"))), F.lit(0)).alias(column_of(name))
                for name in RESULTS
            )
        )
    )
    both = counted.join(results, ["queue", "start"], "full")
    numbers = [name for name in both.columns if name not in {"queue", "start"}]
    filled = both.select("queue", "start", *(F.coalesce(name, F.lit(0)).alias(name) for name in numbers))
    return filled.join(_quantiles(latencies, "queue", "start"), ["queue", "start"], "left").orderBy("start", "queue")


def _quantiles(latencies: DataFrame, *by: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    wanted = F.array(*(F.lit(quantile) for quantile in QUANTILES.values()))

    def found(what: str) -> Column:
        return F.percentile(F.when(F.col("what") == what, F.col("ms")), wanted, F.col("messages"))

    found_both = latencies.groupBy(*by).agg(found("delivery").alias("delivery"), found("ack").alias("ack"))
    return found_both.select(
        *by,
        *(
            F.col(what)[index].alias(f"{what}_{name}")
            for what in ("delivery", "ack")
            for index, name in enumerate(QUANTILES)
        ),
    )


def _queues(intervals: DataFrame, fates: DataFrame, latencies: DataFrame) -> list[Any]:
    """Totals of each queue, busiest first."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = (*COUNTED, "redelivered", "body_bytes")
    events = intervals.groupBy("queue").agg(*(F.sum(name).alias(name) for name in counts))
    results = fates.groupBy("queue").agg(
        F.sum("earlier").alias("earlier"),
        *(F.sum(F.when(F.col("fate") == name, F.col("messages"))).alias(column_of(name)) for name in FATES),
    )
    rows = results.join(events, "queue", "full").join(_quantiles(latencies, "queue"), "queue", "left")
    came = F.coalesce("produced", F.lit(0)) + F.coalesce("arrived", F.lit(0))
    return rows.orderBy(F.desc(came), "queue").collect()


def _page(
    history: History, interval: int, intervals: DataFrame, losses: DataFrame, queues: list[Any], total: dict[str, int]
) -> Page:
    from pyspark.sql import functions as F  # noqa: N812

    page = Page("Lifecycle", f"{history.data_dir}, by {interval} s")
    # The first ones are all fates together: the reader can add them up.
    shown = [name for name in ("arrived", "earlier", *map(column_of, FATES)) if total[name]]
    page.add(tiles(*((name.replace("_", " "), total[name]) for name in ("produced", *shown))))
    if not queues:
        return page.say("The history is empty: no message was published.")
    if history.missing:
        page.say(f"{history.missing} records of the history are missing, so the counts are too low.")
    if lost := total["lost"]:
        page.say(f"{lost:,} messages were in memory only, and a restart of the broker lost them.")
    span = intervals.agg(F.unix_seconds(F.min("start")), F.unix_seconds(F.max("start"))).first()
    assert span is not None
    if span[0] is not None:
        _plot(page, interval, intervals, [row["queue"] for row in queues], int(span[0]), int(span[1]))
    order = (F.desc("n"), "fate", "reason")
    why = losses.groupBy("fate", "reason").agg(F.sum("messages").alias("n")).orderBy(*order).collect()
    reasons = [(f"{row['fate']}: {row['reason'] or '-'}", int(row["n"])) for row in why]
    page.add(bars("Losses by reason", "messages", reasons, otherwise="No message was lost."))
    names = ("queue", "produced", "arrived", "acked", *(column_of(name) for name in _SHOWN), "delivered", "redelivered")
    quantiles = ("delivery_p50", "delivery_p99", "ack_p50", "ack_p99")
    page.add(
        table(
            "Queues",
            [name.replace("_", " ") + (" ms" if name in quantiles else "") for name in (*names, *quantiles)],
            [
                [
                    *(row[name] if name == "queue" else row[name] or 0 for name in names),
                    *(row[name] for name in quantiles),
                ]
                for row in queues[:_ROWS]
            ],
            of=len(queues),
        )
    )
    return page


def _plot(page: Page, interval: int, intervals: DataFrame, queues: list[str], first: int, last: int) -> None:
    """Add curves of the busiest queues, and of the others together."""
    from pyspark.sql import functions as F  # noqa: N812

    width = interval * max(1, -(-(last - first + interval) // (interval * _POINTS)))
    grid = [first + at * width for at in range((last - first) // width + 1)]
    busiest = queues[:_CURVES]
    at = (F.floor((F.unix_seconds("start") - first) / width) * width + first).cast("long").alias("at")
    curve = F.when(F.col("queue").isin(busiest), F.col("queue")).alias("curve")
    points = (
        intervals.groupBy(curve, at)
        .agg(
            F.sum(F.col("produced") + F.col("arrived")).alias("came"),
            F.sum("acked").alias("acked"),
            F.max("delivery_p99").alias("delivery"),
            F.max("ack_p99").alias("ack"),
        )
        .collect()
    )
    known = {(row["curve"], row["at"]): row for row in points}
    names: list[str | None] = [*busiest, *([None] if len(queues) > len(busiest) else [])]

    def curves(column: str, per: float | None) -> list[Series]:
        def value(queue: str | None, moment: int) -> float | None:
            row = known.get((queue, moment))
            found = None if row is None else row[column]
            if per is None:
                return None if found is None else float(found)
            return float(found or 0) / per

        rest = others(len(queues) - len(busiest), "queue")
        return [Series(queue or rest, [(moment, value(queue, moment)) for moment in grid]) for queue in names]

    page.add(lines("Published to queues", "messages/s", curves("came", width), times=True))
    page.add(lines("Acknowledged", "messages/s", curves("acked", width), times=True))
    page.add(lines("Time to the first delivery, 99th percentile", "ms", curves("delivery", None), times=True))
    page.add(lines("Time from delivery to acknowledgement, 99th percentile", "ms", curves("ack", None), times=True))
