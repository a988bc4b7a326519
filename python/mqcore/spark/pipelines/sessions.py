"""``sessions``: activity of each client over all protocols, and conversations between clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.clients import PRODUCER, client, named, producers
from mqcore.spark.pipelines.fate import FATES, Shards, column_of, fate, lives
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.report import Page, bars, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["sessions"]

_ROWS: Final = 100
_DID: Final = ("produced", "delivered", "acked", "nacked")
_PAIR: Final = ("producer", "from_protocol", "consumer", "to_protocol", "queue")
"""Columns that identify a conversation."""
_UNKNOWN: Final = "(unknown)"
"""A producer in the report that no event names: the message entered before the history begins."""


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

    Tables: ``sessions`` (client, start, end, ids, protocols, queues and numbers of events), ``conversations``
    (producer, consumer, queue, protocols, and numbers of messages, of deliveries and of messages that the consumer
    acknowledged) and ``producers`` (fates of the messages of each producer). Producers are known across restarts.

    Raises `ConfigError`, `DataDirMissing` and `DataDirUnreadable`.
    """
    if gap < 1:
        raise errors.ConfigError(f"gap must be at least 1 second, not {gap}")
    history, tables = History.of(spark, data_dir), Tables(out, "sessions")
    with history.by_message():
        progress("sessions", 0, 0)
        found = tables.write("sessions", _sessions(history, gap), files=4)
        progress("conversations", 0, 0)
        spoken = tables.write("conversations", _conversations(history), files=1)
        progress("producers", 0, 0)
        made = tables.write("producers", _producers(history), files=1)
        progress("report", 0, 0)
        page, figures = _page(history, found, spoken, made)
    summary = (
        f"{figures['sessions']:,} sessions of {figures['clients']:,} clients, "
        f"{figures['over_several_protocols']:,} over several protocols; {figures['conversations']:,} conversations"
    )
    return Outcome("sessions", summary, tables.write_page(page.html()), tables.paths, figures)


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
            client(who).alias("client"),
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

    place = ("shard", "number", "queue")
    events = named(
        history.steps("time", "kind", *place, *PRODUCER, *_told("consumer")).where(
            F.col("kind").isin("delivered", "acked")
        )
    )
    known = events.where("producer is not null")
    # After a restart, events do not name the producer.
    later = (
        events.where("producer is null").drop("producer", "from_protocol").join(producers(history), [*place], "left")
    )
    of_message = (
        known.unionByName(later)
        .withColumn("consumer", client("consumer"))
        .withColumn("to_protocol", F.col("consumer_protocol"))
        .groupBy(*_PAIR, "shard", "number")
        .agg(
            F.count_if(F.col("kind") == "delivered").alias("deliveries"),
            F.count_if(F.col("kind") == "acked").alias("acked"),
            F.min(F.when(F.col("kind") == "delivered", F.col("time"))).alias("first"),
            F.max(F.when(F.col("kind") == "delivered", F.col("time"))).alias("latest"),
        )
    )
    return (
        of_message.where("deliveries > 0")
        .groupBy(*_PAIR)
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("deliveries").alias("deliveries"),
            F.count_if(F.col("acked") > 0).alias("acked"),
            F.min("first").alias("first"),
            F.max("latest").alias("latest"),
        )
        .orderBy(F.desc("messages"), *_PAIR)
    )


def _producers(history: History) -> DataFrame:
    """Fates of the messages of each producer. Messages from before the history have none."""
    from pyspark.sql import functions as F  # noqa: N812

    fates = lives(history.fate_steps(), Shards.of(history)).select(
        "shard", "number", "queue", "results", fate().alias("fate")
    )
    both = fates.join(producers(history), ["shard", "number", "queue"], "left")
    found = both.groupBy("producer").agg(
        F.sum("results").alias("messages"),
        *(
            F.coalesce(F.sum(F.when(F.col("fate") == name, F.col("results"))), F.lit(0)).alias(column_of(name))
            for name in FATES
        ),
    )
    return found.orderBy(F.desc("messages"), "producer")


def _page(history: History, found: DataFrame, spoken: DataFrame, made: DataFrame) -> tuple[Page, dict[str, int]]:
    from pyspark.sql import functions as F  # noqa: N812

    sums = found.agg(F.count(F.lit(1)), F.count_distinct("client"), F.count_if(F.size("protocols") > 1)).first()
    assert sums is not None
    figures = {
        "sessions": sums[0],
        "clients": sums[1],
        "over_several_protocols": sums[2],
        "conversations": spoken.count(),
    }
    page = Page("Sessions", history.data_dir)
    page.add(tiles(*((name.replace("_", " "), count) for name, count in figures.items())))
    busiest = found.groupBy("client").agg(F.sum(F.col("produced") + F.col("delivered")).alias("n"))
    heard = [(row["client"], row["n"]) for row in busiest.orderBy(F.desc("n"), "client").limit(_ROWS).collect()]
    otherwise = "No client was active."
    page.add(bars("Messages produced and received", "messages", heard, otherwise=otherwise, of=figures["clients"]))
    talks: list[Any] = spoken.orderBy(F.desc("messages"), *_PAIR).limit(_ROWS).collect()
    columns = (*_PAIR, "messages", "deliveries", "acked")
    shown = [[_UNKNOWN if row[name] is None else row[name] for name in columns] for row in talks]
    page.add(table("Conversations", columns, shown, of=figures["conversations"]))
    page.add(_fates(made))
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


def _fates(made: DataFrame) -> str:
    """Table of the fates that occur, by producer."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = made.orderBy(F.desc("messages"), "producer").limit(_ROWS).collect()
    names = [name for name in FATES if any(row[column_of(name)] for row in rows)]
    body = [[row["producer"] or _UNKNOWN, row["messages"], *(row[column_of(name)] for name in names)] for row in rows]
    return table("Fates by producer", ["producer", "messages", *names], body, of=made.count())
