"""Names of clients in the history, and the producer of each message also across restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from mqcore.spark.pipelines.history import History

__all__ = ["PRODUCER", "client", "named", "producers"]

PRODUCER = ("producer_id", "producer_name", "producer_protocol")
"""Columns of the history that describe a producer."""


def client(who: str) -> Column:
    """Return the name of the ``producer`` or ``consumer``, its id if it has no name, null if neither is known."""
    from pyspark.sql import functions as F  # noqa: N812

    def filled(name: str) -> Column:
        return F.when(F.col(name) != "", F.col(name))

    return F.coalesce(filled(f"{who}_name"), filled(f"{who}_id"))


def named(rows: DataFrame) -> DataFrame:
    """Replace the columns `PRODUCER` with ``producer`` and ``from_protocol``."""
    from pyspark.sql import functions as F  # noqa: N812

    added = rows.withColumn("producer", client("producer"))
    return added.withColumn("from_protocol", F.col("producer_protocol")).drop(*PRODUCER)


def producers(history: History) -> DataFrame:
    """Return ``shard``, ``number``, ``queue``, ``producer`` and ``from_protocol`` of each message that entered a queue.

    After a restart, the broker does not know the producers of its messages. The event with which a message entered
    names it. A message that entered another queue after a restart, as a dead letter or because an operator moved it, is
    found by its id: its producer is the one that published this id last before.
    """
    from pyspark.sql import functions as F  # noqa: N812

    place = ("shard", "number", "queue")
    entries = named(
        history.steps(*place, "time", "kind", "message_id", *PRODUCER).where(F.col("kind").isin("produced", "arrived"))
    )
    known = entries.where("producer is not null")
    later = entries.where("producer is null and kind = 'arrived' and message_id <> ''")
    published = known.where("kind = 'produced' and message_id <> ''").select(
        F.col("message_id").alias("id"), F.col("time").alias("published"), "producer", "from_protocol"
    )
    same = (F.col("message_id") == F.col("id")) & (F.col("published") <= F.col("time"))
    found = (
        later.drop("producer", "from_protocol")
        .join(published, same)
        .groupBy(*place)
        .agg(F.max_by(F.struct("producer", "from_protocol"), "published").alias("by"))
        .select(*place, "by.producer", "by.from_protocol")
    )
    # An event that is in the history twice must not double what is joined with this.
    return known.select(*place, "producer", "from_protocol").unionByName(found).dropDuplicates(list(place))
