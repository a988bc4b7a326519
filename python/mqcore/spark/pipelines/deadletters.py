"""``deadletters``: groups dead letters by cause, with samples, and publishes chosen ones again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.fate import FATES, PRESENT, Shards, column_of, fate, lives
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.report import Page, bars, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["deadletters"]

_SAMPLES: Final = 3
_SAMPLE_BYTES: Final = 400
_CLUSTERS: Final = 200
"""Maximum number of clusters in the report; the table has all."""
_LIKE: Final = (
    # Identifiers first, because they contain numbers.
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<id>"),
    (r"\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b", "<id>"),
    (r"[0-9]+([.,:][0-9]+)*", "#"),
)
"""Patterns of variable parts in errors of the same kind, and their replacements."""
_RUN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_QUEUES_NAMED: Final = 200
"""Maximum number of dead-letter queues by which events are filtered; with more, all events are read."""


def deadletters(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    redrive: str = "",
    clusters: str = "",
    run: str = "",
    admin: str = "",
    progress: Progress = unseen,
) -> Outcome:
    """Group dead letters by reason and by the consumer's last error. Numbers and ids in errors count as equal.

    Tables: ``clusters``, and ``letters`` (one row per dead letter with its fate, without its body). A letter that
    returned to its original queue has left the dead-letter queue, so its fate there is ``moved``.

    `redrive` is the URL of a broker. The pipeline publishes the letters of `clusters` (names separated by commas, or
    ``all``) to their original queues there. It requires `run`, a name for this action: repeated with the same name, it
    publishes the remaining letters, and runs with other names skip these letters. With `admin`, the broker's admin URL,
    no letter is published twice even if a run was killed. The letters also stay in the dead-letter queue.

    Raises `ConfigError`, `DataDirMissing`, `DataDirUnreadable`, and errors of publishing.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if bool(redrive) != bool(run) or bool(redrive) != bool(clusters):
        raise errors.ConfigError(
            "redrive, clusters and run belong together; set all of them (broker, letters and a name) or none"
        )
    if run and not _RUN.fullmatch(run):
        raise errors.ConfigError(f"run must have 1 to 64 letters, digits, dots, dashes and underscores, not {run!r}")
    history, tables = History.of(spark, data_dir), Tables(out, "deadletters")
    with history.by_message():
        progress("letters", 0, 0)
        letters = tables.write("letters", _letters(history), files=4)
        progress("clusters", 0, 0)
        found = _clusters(letters)
        tables.write("clusters", found, files=1)
        rows = found.collect()
        redriven = 0
        if redrive:
            progress("re-drive", 0, 0)
            redriven = _redrive(history, tables, letters, redrive, clusters, run, admin)
        progress("report", 0, 0)
        samples = _samples(history, letters)
        known = {row["fate"]: row["n"] for row in letters.groupBy("fate").agg(F.count(F.lit(1)).alias("n")).collect()}
    fates = {column_of(name): known[name] for name in FATES if name in known}
    total = {
        "letters": sum(row["messages"] for row in rows),
        "there": sum(row["there"] for row in rows),
        "lost": sum(row["lost"] for row in rows),
        "clusters": len(rows),
        "redriven": redriven,
    }
    page = _page(history, rows, samples, fates)
    left = total["letters"] - total["there"] - total["lost"]
    summary = (
        f"{total['letters']:,} dead letters of {total['clusters']:,} kinds: {total['there']:,} still there, "
        f"{left:,} consumed or removed, {total['lost']:,} lost at a restart"
    )
    if redrive:
        summary += f"; run {run} published {redriven:,} again"
    return Outcome("deadletters", summary, tables.write_page(page.html()), tables.paths, {**fates, **total})


def _header(name: str) -> Column:
    """The last header with a name; a letter that was dead-lettered twice has two."""
    from pyspark.sql import functions as F  # noqa: N812

    fitting = F.filter("headers", lambda header: F.lower(header["key"]) == name.lower())
    return F.when(F.size(fitting) > 0, F.element_at(fitting, -1)["value"].cast("string"))


def _letters(history: History) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    came = (
        history.messages("time", "shard", "number", "kind", "queue", "message_id", "headers", "body_bytes")
        .where("kind = 'arrived'")
        .select(
            "time",
            "shard",
            "number",
            "queue",
            "message_id",
            "body_bytes",
            _header("Dead-Letter-Reason").alias("reason"),
            _header("Dead-Letter-Queue").alias("origin"),
            # A header of a client may be anything.
            _header("Dead-Letter-Attempts").try_cast("int").alias("attempts"),
            _header("Dead-Letter-Error").alias("said"),
        )
    )
    # A message that an operator moved is not a new dead letter.
    moved = (
        history.steps("kind", "target", "message_id")
        .where("kind = 'moved' and message_id <> ''")
        .select(F.lower("target").alias("moved_to"), F.col("message_id").alias("moved"))
        .distinct()
    )
    to_here = (F.lower("queue") == F.col("moved_to")) & (F.col("message_id") == F.col("moved"))
    came = came.where("reason is not null or origin is not null").join(moved, to_here, "left_anti")
    summary = (
        history.steps("sequence", "kind", "queue", "message_id", "reason")
        .where("kind = 'nacked' and message_id is not null")
        .groupBy(F.lower("queue").alias("died_in"), F.col("message_id").alias("refused"))
        .agg(F.max_by("reason", "sequence").alias("error"))
    )
    known = came.join(
        summary, (F.lower("origin") == F.col("died_in")) & (F.col("message_id") == F.col("refused")), "left"
    ).drop("died_in", "refused")
    known = known.withColumn("error", F.coalesce("said", "error")).drop("said")
    known = known.join(_fates(history), ["shard", "number", "queue"], "left")
    like = F.coalesce("error", F.lit(""))
    for pattern, instead in _LIKE:
        like = F.regexp_replace(like, pattern, instead)
    name = F.substring(
        F.sha2(F.concat_ws("\n", F.coalesce("origin", F.lit("")), F.coalesce("reason", F.lit("")), like), 256), 1, 8
    )
    return known.select(
        name.alias("cluster"),
        "time",
        "shard",
        "number",
        "queue",
        "origin",
        "message_id",
        "reason",
        "attempts",
        "error",
        like.alias("like"),
        "body_bytes",
        "fate",
        F.col("fate").isin(*PRESENT).alias("there"),
    )


def _fates(history: History) -> DataFrame:
    """The fate of each message of the queues that have dead letters."""
    from pyspark.sql import functions as F  # noqa: N812

    steps = history.fate_steps()
    arrivals = history.steps("kind", "queue").where("kind = 'arrived'").select("queue").distinct()
    queues = [row["queue"] for row in arrivals.limit(_QUEUES_NAMED + 1).collect()]
    if len(queues) <= _QUEUES_NAMED:
        # Queues without letters are left out before events are grouped.
        steps = steps.where(F.col("queue").isin(queues))
    return lives(steps, Shards.of(history)).select("shard", "number", "queue", fate().alias("fate"))


def _clusters(letters: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    grouped = letters.groupBy("cluster", "origin", "reason", "like").agg(
        F.count(F.lit(1)).alias("messages"),
        F.count_if("there").alias("there"),
        F.count_if(F.col("fate") == "lost").alias("lost"),
        F.min("time").alias("first"),
        F.max("time").alias("latest"),
        F.min("error").alias("example"),
    )
    return grouped.orderBy(F.desc("messages"), "cluster")


def _samples(history: History, letters: DataFrame) -> dict[str, list[str]]:
    """Sample bodies of each cluster, if they are text."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    place = F.row_number().over(Window.partitionBy("cluster").orderBy("shard", "number"))
    few = letters.withColumn("place", place).where(F.col("place") <= _SAMPLES).select("cluster", "shard", "number")
    bodies = history.messages("shard", "number", "kind", "body").where("kind = 'arrived'").drop("kind")
    beginning = F.substring("body", 1, _SAMPLE_BYTES).alias("body")
    found: dict[str, list[str]] = {}
    sampled = bodies.join(F.broadcast(few), ["shard", "number"]).orderBy("shard", "number")
    for row in sampled.select("cluster", beginning).collect():
        found.setdefault(row["cluster"], []).append(bytes(row["body"] or b"").decode("utf-8", "replace"))
    return found


def _redrive(
    history: History, tables: Tables, letters: DataFrame, url: str, clusters: str, run: str, admin: str
) -> int:
    from pyspark.sql import functions as F  # noqa: N812

    runs = tables.path("runs")
    chosen = runs / run
    if not chosen.exists():
        # Saved before publishing, so that no other run takes these letters, and a repetition takes the same ones.
        wanted = letters.where("there and origin is not null")
        if clusters != "all":
            names = [name.strip() for name in clusters.split(",")]
            known = {row["cluster"] for row in letters.select("cluster").distinct().collect()}
            if unknown := [name for name in names if name not in known]:
                raise errors.ConfigError(f"unknown cluster {unknown[0]!r}; the table clusters lists the names")
            wanted = wanted.where(F.col("cluster").isin(*names))
        wanted = wanted.select("shard", "number", "origin")
        if runs.is_dir() and (others := [str(path) for path in runs.iterdir() if not path.name.startswith(".")]):
            taken = history.spark.read.parquet(*others).select("shard", "number")
            wanted = wanted.join(taken, ["shard", "number"], "left_anti")
        tables.write(f"runs/{run}", wanted, files=1)
        tables.paths.pop(f"runs/{run}")
    mine = history.spark.read.schema("shard int, number bigint, origin string").parquet(str(chosen))
    bodies = history.messages("shard", "number", "kind", "message_id", "headers", "high_priority", "body")
    rows = bodies.where("kind = 'arrived' and body is not null").join(F.broadcast(mine), ["shard", "number"])
    own = F.filter("headers", lambda header: ~F.lower(header["key"]).startswith("dead-letter-"))
    outgoing = rows.orderBy("shard", "number").select(
        F.col("body").alias("value"),
        F.when(F.col("message_id") != "", F.col("message_id")).alias("key"),
        F.col("origin").alias("queue"),
        own.alias("headers"),
        "high_priority",
    )
    count = outgoing.count()
    writer = outgoing.write.format("mqcore").mode("append").option("url", url)
    writer = writer.option("stagingLocation", str(tables.path("staging")))
    writer = writer.option("txnAppId", f"redrive-{run}").option("txnVersion", "0")
    (writer.option("admin", admin) if admin else writer).save()
    return count


def _page(history: History, rows: list[Any], samples: dict[str, list[str]], fates: dict[str, int]) -> Page:
    page = Page("Dead letters", history.data_dir)
    letters = sum(row["messages"] for row in rows)
    # The fates add up to the letters.
    page.add(tiles(("letters", letters), *((name.replace("_", " "), count) for name, count in fates.items())))
    if lost := sum(row["lost"] for row in rows):
        page.say(f"{lost:,} letters were in memory only, and a restart of the broker lost them.")
    named = [(f"{row['origin'] or '?'}: {row['like'] or row['reason'] or '-'}", row["messages"]) for row in rows]
    page.add(bars("Dead letters by cause", "messages", named, otherwise="There are no dead letters."))
    columns = ("cluster", "origin", "reason", "like", "messages", "there", "lost", "first", "latest")
    body = [[row[name] for name in columns] for row in rows[:_CLUSTERS]]
    page.add(table("Kinds", columns, body, of=len(rows)))
    for row in rows[:_CLUSTERS]:
        if texts := samples.get(row["cluster"]):
            page.add(table(f"Samples of {row['cluster']}", ["body"], [[text] for text in texts]))
    return page
