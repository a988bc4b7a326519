"""``sessions``: activity of each client over all protocols, and conversations between clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.report import Page, bars, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["sessions"]

_ROWS: Final = 100
_DID: Final = ("produced", "delivered", "acked", "nacked")
_PAIR: Final = ("producer", "from_protocol", "consumer", "to_protocol", "queue")
"""Columns that identify a conversation."""


def sessions(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    gap: int = 1800,
    progress: Progress = unseen,
) -> Outcome:
    """Group the events of each client into sessions, across connections and protocols.

    Clients are identified by name, or by id if they have none. A session ends after `gap` seconds without an event
    (default 1800).

    Tables: ``sessions`` (client, start, end, ids, protocols, queues and numbers of events) and ``conversations``
    (producer, consumer, queue, protocols and numbers of messages).

    Raises `ConfigError`, `DataDirMissing` and `DataDirUnreadable`.
    """
    if gap < 1:
        raise errors.ConfigError(f"gap must be at least 1 second, not {gap}")
    history, tables = History.of(spark, data_dir), Tables(out, "sessions")
    progress("sessions", 0, 0)
    found = tables.write("sessions", _sessions(history, gap), files=4)
    progress("conversations", 0, 0)
    spoken = tables.write("conversations", _conversations(history), files=1)
    progress("report", 0, 0)
    page, figures = _page(history, found, spoken)
    summary = (
        f"{figures['sessions']:,} sessions of {figures['clients']:,} clients, "
        f"{figures['over several protocols']:,} over several protocols; {figures['conversations']:,} conversations"
    )
    return Outcome("sessions", summary, tables.write_page(page.html()), tables.paths, figures)


def _client(who: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    def filled(name: str) -> Column:
        return F.when(F.col(name) != "", F.col(name))

    return F.coalesce(filled(f"{who}_name"), filled(f"{who}_id"))


def _told(who: str) -> tuple[str, ...]:
    return f"{who}_id", f"{who}_name", f"{who}_protocol"


def _sessions(history: History, gap: int) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    def acts(who: str, *kinds: str) -> DataFrame:
        rows = history.steps("time", "shard", "sequence", "kind", "queue", *_told(who)).where(
            F.col("kind").isin(*kinds)
        )
        named = rows.select(
            _client(who).alias("client"),
            F.col(f"{who}_id").alias("id"),
            F.col(f"{who}_protocol").alias("protocol"),
            *("time", "shard", "sequence", "kind", "queue"),
        )
        return named.where("client is not null")

    every = acts("producer", "produced").unionByName(acts("consumer", "delivered", "acked", "nacked"))
    # Many events share a time; shard and sequence make the order deterministic.
    in_order = Window.partitionBy("client").orderBy("time", "shard", "sequence")
    silence = F.unix_micros("time") - F.lag(F.unix_micros("time")).over(in_order)
    begins = F.when(silence.isNull() | (silence > gap * 1_000_000), 1).otherwise(0)
    numbered = every.withColumn("begins", begins).withColumn("session", F.sum("begins").over(in_order))
    return (
        numbered.groupBy("client", "session")
        .agg(
            F.min("time").alias("start"),
            F.max("time").alias("end"),
            F.count_distinct("id").alias("ids"),
            F.sort_array(F.collect_set("protocol")).alias("protocols"),
            F.sort_array(F.collect_set("queue")).alias("queues"),
            *(F.count_if(F.col("kind") == kind).alias(kind) for kind in _DID),
        )
        .orderBy("start", "client")
    )


def _conversations(history: History) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return (
        history.steps("time", "kind", "queue", *_told("producer"), *_told("consumer"))
        .where("kind = 'delivered'")
        .select(
            _client("producer").alias("producer"),
            F.col("producer_protocol").alias("from_protocol"),
            _client("consumer").alias("consumer"),
            F.col("consumer_protocol").alias("to_protocol"),
            *("queue", "time"),
        )
        .groupBy(*_PAIR)
        .agg(F.count(F.lit(1)).alias("messages"), F.min("time").alias("first"), F.max("time").alias("latest"))
        .orderBy(F.desc("messages"), *_PAIR)
    )


def _page(history: History, found: DataFrame, spoken: DataFrame) -> tuple[Page, dict[str, int]]:
    from pyspark.sql import functions as F  # noqa: N812

    sums = found.agg(F.count(F.lit(1)), F.count_distinct("client"), F.count_if(F.size("protocols") > 1)).first()
    assert sums is not None
    figures = {
        "sessions": sums[0],
        "clients": sums[1],
        "over several protocols": sums[2],
        "conversations": spoken.count(),
    }
    page = Page("Sessions", history.data_dir)
    page.add(tiles(*figures.items()))
    busiest = found.groupBy("client").agg(F.sum(F.col("produced") + F.col("delivered")).alias("n"))
    heard = [(row["client"], row["n"]) for row in busiest.orderBy(F.desc("n"), "client").limit(_ROWS).collect()]
    otherwise = "No client was active."
    page.add(bars("Messages produced and received", "messages", heard, otherwise=otherwise, of=figures["clients"]))
    talks: list[Any] = spoken.orderBy(F.desc("messages"), *_PAIR).limit(_ROWS).collect()
    columns = (*_PAIR, "messages")
    shown = [[row[name] if row[name] is not None else "" for name in columns] for row in talks]
    page.add(table("Conversations", columns, shown, of=figures["conversations"]))
    latest = found.orderBy(F.desc("end"), "client").limit(_ROWS).collect()
    rows = [
        [
            row["client"],
            row["start"],
            row["end"],
            row["ids"],
            ", ".join(row["protocols"]),
            *(row[kind] for kind in _DID),
        ]
        for row in latest
    ]
    page.add(table("Sessions", ["client", "start", "end", "ids", "protocols", *_DID], rows, of=figures["sessions"]))
    return page, figures
