"""``lifecycle``: throughput, latencies and losses per queue and interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.report import Page, Series, bars, lines, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["COUNTED", "QUANTILES", "lifecycle"]

COUNTED: Final = {
    "produced": "produced",
    "arrived": "arrived",
    "delivered": "delivered",
    "acked": "acked",
    "nacked": "nacked",
    "timed_out": "timed-out",
    "consumer_lost": "consumer-lost",
    "put_back": "put-back",
    "expired": "expired",
    "dead_lettered": "dead-lettered",
    "replaced": "replaced",
}
"""Columns that count events, and the kind of event that each counts."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_LOST: Final = ("dropped", "dead-lettered", "expired")
_POINTS: Final = 240
"""Maximum points of a curve; the page is not wide enough for more."""
_CURVES: Final = 6
_ROWS: Final = 50


def lifecycle(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    interval: int = 60,
    progress: Progress = unseen,
) -> Outcome:
    """Count events per queue and `interval` (seconds, default 60).

    Tables: ``intervals`` (numbers of events, bytes, and quantiles in ms), ``losses`` (dropped, dead-lettered and
    expired messages with reasons) and ``latencies`` (numbers of messages by latency). The latency of a delivery is the
    time from entering the queue to the first delivery. The latency of an acknowledgement is the time from there to the
    first acknowledgement, including all attempts. Latencies are exact up to 1 s, and have three digits above.

    Raises `ConfigError`, `DataDirMissing` and `DataDirUnreadable`.
    """
    if interval < 1:
        raise errors.ConfigError(f"interval must be at least 1 second, not {interval}")
    history, tables = History.of(spark, data_dir), Tables(out, "lifecycle")
    progress("latencies", 0, 0)
    with history.by_message():
        latencies = tables.write("latencies", _latencies(history, interval))
    progress("losses", 0, 0)
    losses = tables.write("losses", _losses(history, interval), files=1)
    progress("intervals", 0, 0)
    intervals = tables.write("intervals", _intervals(history, interval, latencies), files=4)
    progress("report", 0, 0)
    queues = _queues(intervals, latencies)
    total = {name: sum(int(row[name] or 0) for row in queues) for name in (*COUNTED, "dropped", "redelivered")}
    page = _page(history, interval, intervals, losses, queues, total)
    summary = (
        f"{total['produced']:,} messages to {len(queues)} queues, {total['acked']:,} acknowledgements, "
        f"{total['redelivered']:,} redeliveries, {total['dropped']:,} dropped, "
        f"{total['dead_lettered']:,} dead letters"
    )
    return Outcome("lifecycle", summary, tables.write_page(page.html()), tables.paths, total)


def _start(interval: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    seconds = F.unix_seconds("time")
    return F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(interval))).alias("start")


def _latencies(history: History, interval: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    entry = F.col("kind").isin("produced", "arrived")

    def first(condition: Column) -> Column:
        return F.min(F.when(condition, F.unix_micros("time")))

    lives = (
        history.steps("time", "shard", "number", "queue", "kind")
        .where(F.col("kind").isin("produced", "arrived", "delivered", "acked"))
        .groupBy("shard", "number", "queue")
        .agg(
            first(entry).alias("entered"),
            first(F.col("kind") == "delivered").alias("delivered"),
            first(F.col("kind") == "acked").alias("acked"),
        )
    )
    spans = F.array(
        F.struct(F.lit("delivery").alias("what"), F.col("entered").alias("from"), F.col("delivered").alias("until")),
        F.struct(F.lit("ack").alias("what"), F.col("delivered").alias("from"), F.col("acked").alias("until")),
    )
    took = F.floor(F.greatest(F.col("span.until") - F.col("span.from"), F.lit(0)) / 1000)
    # Three digits above one second, so that months of slow messages do not need one row each.
    digits = F.pow(F.lit(10.0), F.greatest(F.floor(F.log10(F.greatest(took, F.lit(1)).cast("double"))) - 2, F.lit(0)))
    rounded = F.floor(took / digits) * digits
    return (
        lives.select("queue", F.explode(spans).alias("span"))
        .where(F.col("span.from").isNotNull() & F.col("span.until").isNotNull())
        .select(
            "queue",
            F.timestamp_micros("span.until").alias("time"),
            F.col("span.what").alias("what"),
            rounded.cast("long").alias("ms"),
        )
        .groupBy("queue", _start(interval), "what", "ms")
        .agg(F.count(F.lit(1)).alias("messages"))
    )


def _losses(history: History, interval: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return (
        history.steps("time", "queue", "kind", "reason", "last")
        .where(F.col("kind").isin(*_LOST))
        .groupBy("queue", _start(interval), "kind", "reason", F.coalesce("last", F.lit(False)).alias("last"))
        .agg(F.count(F.lit(1)).alias("messages"))
        .orderBy("start", "queue", "kind", "reason")
    )


def _intervals(history: History, interval: int, latencies: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    entry = F.col("kind").isin("produced", "arrived")
    counted = (
        history.steps("time", "queue", "kind", "attempt", "last", "body_bytes")
        .where(F.col("queue").isNotNull())
        .groupBy("queue", _start(interval))
        .agg(
            *(F.count_if(F.col("kind") == kind).alias(name) for name, kind in COUNTED.items()),
            F.count_if((F.col("kind") == "dropped") & F.col("last")).alias("dropped"),
            F.count_if((F.col("kind") == "delivered") & (F.col("attempt") > 1)).alias("redelivered"),
            F.coalesce(F.sum(F.when(entry, F.col("body_bytes"))), F.lit(0)).alias("body_bytes"),
        )
    )
    return counted.join(_quantiles(latencies, "queue", "start"), ["queue", "start"], "left").orderBy("start", "queue")


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


def _queues(intervals: DataFrame, latencies: DataFrame) -> list[Any]:
    """Totals of each queue, busiest first."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = (*COUNTED, "dropped", "redelivered", "body_bytes")
    sums = intervals.groupBy("queue").agg(*(F.sum(name).alias(name) for name in counts))
    rows = sums.join(_quantiles(latencies, "queue"), "queue", "left")
    return rows.orderBy(F.desc(F.col("produced") + F.col("arrived")), "queue").collect()


def _page(
    history: History, interval: int, intervals: DataFrame, losses: DataFrame, queues: list[Any], total: dict[str, int]
) -> Page:
    from pyspark.sql import functions as F  # noqa: N812

    page = Page("Lifecycle", f"{history.data_dir}, by {interval} s")
    page.add(
        tiles(
            ("produced", total["produced"]),
            ("acked", total["acked"]),
            ("redelivered", total["redelivered"]),
            ("dropped", total["dropped"]),
            ("dead letters", total["dead_lettered"]),
        )
    )
    if not queues:
        return page.say("The history is empty: no message was published, or the broker runs without history = on.")
    if history.missing:
        page.say(f"{history.missing} records of the history are missing, so the counts are too low.")
    span = intervals.agg(F.unix_seconds(F.min("start")), F.unix_seconds(F.max("start"))).first()
    assert span is not None
    first, last = int(span[0]), int(span[1])
    width = interval * max(1, -(-(last - first + interval) // (interval * _POINTS)))
    grid = [first + at * width for at in range((last - first) // width + 1)]
    busiest = [row["queue"] for row in queues[:_CURVES]]
    at = (F.floor((F.unix_seconds("start") - first) / width) * width + first).cast("long").alias("at")
    shown = intervals.where(F.col("queue").isin(busiest)).groupBy("queue", at)
    points = shown.agg(
        F.sum(F.col("produced") + F.col("arrived")).alias("came"),
        F.sum("acked").alias("acked"),
        F.max("delivery_p99").alias("delivery"),
        F.max("ack_p99").alias("ack"),
    ).collect()
    known = {(row["queue"], row["at"]): row for row in points}

    def curves(column: str, per: float | None) -> list[Series]:
        def value(queue: str, moment: int) -> float | None:
            row = known.get((queue, moment))
            found = None if row is None else row[column]
            if per is None:
                return None if found is None else float(found)
            return float(found or 0) / per

        return [Series(queue, [(moment, value(queue, moment)) for moment in grid]) for queue in busiest]

    page.add(lines("Published to queues", "messages/s", curves("came", width), times=True))
    page.add(lines("Acknowledged", "messages/s", curves("acked", width), times=True))
    page.add(lines("Time to the first delivery, 99th percentile", "ms", curves("delivery", None), times=True))
    page.add(lines("Time from delivery to acknowledgement, 99th percentile", "ms", curves("ack", None), times=True))
    why = losses.where("last or kind = 'dead-lettered'").groupBy("kind", "reason").agg(F.sum("messages").alias("n"))
    order = (F.desc("n"), "kind", "reason")
    reasons = [(f"{row['kind']}: {row['reason'] or '-'}", int(row["n"])) for row in why.orderBy(*order).collect()]
    page.add(bars("Losses by reason", "messages", reasons, otherwise="No message was lost."))
    names = ("queue", "produced", "arrived", "delivered", "acked", "redelivered", "dropped", "dead_lettered")
    quantiles = ("delivery_p50", "delivery_p99", "ack_p50", "ack_p99")
    page.add(
        table(
            "Queues",
            [name.replace("_", " ") + (" ms" if name in quantiles else "") for name in (*names, *quantiles)],
            [[row[name] for name in (*names, *quantiles)] for row in queues[:_ROWS]],
            of=len(queues),
        )
    )
    return page
