"""``reconcile``: whatever came to a queue was acknowledged, died, was dropped, or is there; else it is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.report import Page, bars, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Balance", "reconcile"]

_KINDS: Final = (
    "acked",
    "nacked",
    "timed-out",
    "consumer-lost",
    "expired",
    "dead-lettered",
    "dropped",
    "replaced",
    "delivered",
    "done",
    "put-back",
    "saved",
    "restored",
    "produced",
    "arrived",
)
"""Kinds that can be the last one of a life; those of everyday first."""
_REASONS: Final = ("no-consumer", "slow", "limit", "expired", "refused", "erased", "unreadable")
_REASONED: Final = ("dropped", "dead-lettered")
_OTHER: Final = len(_REASONS) + 1
_NAMED: Final = 1000
"""Rows of messages that the report names; the table has all."""

THERE: Final = "there"
GONE: Final = "gone-at-restart"
"""Not restored by the start behind its last step: in memory only, or its end came too late to be written down."""


@dataclass
class Balance:
    """The accounts of one queue."""

    queue: str
    entered: int = 0
    """Steps ``produced`` and ``arrived``."""
    earlier: int = 0
    """Messages that were there before the history begins."""
    fates: Counter[str] = field(default_factory=Counter)
    """Last steps by kind, with the reason of those that were dropped or died; and those that are there or gone."""
    twice_entered: int = 0
    twice_left: int = 0
    never_entered: int = 0
    went_on: int = 0
    """Had steps behind their last one."""

    @property
    def difference(self) -> int:
        """What entered minus what became of it: 0 if nothing is missing and nothing too many."""
        return self.entered + self.earlier - self.fates.total()

    @property
    def unaccounted(self) -> int:
        """Messages whose steps contradict each other."""
        return self.twice_entered + self.twice_left + self.never_entered + self.went_on

    @property
    def group(self) -> dict[str, int]:
        """Fates by what an operator asks: acked, dead, dropped, there, and what went without an acknowledgement."""
        found = {"acked": 0, "sent": 0, "dead": 0, "dropped": 0, "replaced": 0, "gone": 0, "there": 0}
        for fate, count in self.fates.items():
            found[_group(fate)] += count
        return found


_GROUPS: Final = {
    "acked": "acked",
    "dead-lettered": "dead",
    "dropped": "dropped",
    "expired": "dropped",
    "replaced": "replaced",
    THERE: "there",
    GONE: "gone",
}


def _group(fate: str) -> str:
    kind = fate.partition(":")[0]
    return _GROUPS.get(kind, "sent")


def reconcile(
    spark: SparkSession, data_dir: str | os.PathLike[str], out: str | os.PathLike[str], *, progress: Progress = unseen
) -> Outcome:
    """Account for every message that came to a queue.

    Tables: ``balance`` (a row a queue), ``fates`` (a row a queue and fate) and ``unaccounted`` (a row a message whose
    steps contradict each other, with its id where a step tells one). The outcome is not `fine` if there is one, if a
    sum is not zero, or if the history says that steps are missing.

    Raises `DataDirMissing` and `DataDirUnreadable`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    history, tables = History.of(spark, data_dir), Tables(out, "reconcile")
    progress("starts and gaps", 0, 0)
    started, gaps = _shards(history)
    progress("lives", 0, 0)
    lives = _lives(history, started)
    by = ("shard", "queue", "entries", "lasts", "fate", "open", "restored", "went_on")
    classes = lives.groupBy(*by).agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum("entered").alias("entered"),
        F.sum("left").alias("left"),
        F.min("number").alias("first"),
        F.max("number").alias("latest"),
    )
    with history.by_message():
        found = [row.asDict() for row in classes.collect()]
        beginnings = _beginnings(found)
        suspects = _suspects(lives, found, beginnings, history, progress)
    balances = balance(found, beginnings, Counter((row["queue"], row["what"]) for row in suspects))
    progress("report", 0, 0)
    _write(spark, tables, balances, suspects)
    difference = sum(abs(account.difference) for account in balances)
    total: Counter[str] = Counter()
    for account in balances:
        total.update(account.group)
    figures = {
        "entered": sum(account.entered for account in balances),
        "earlier": sum(account.earlier for account in balances),
        **{name: total[name] for name in ("acked", "sent", "dead", "dropped", "replaced", "gone", "there")},
        "difference": difference,
        "unaccounted": len(suspects),
        "steps_missing": gaps,
    }
    fine = not (difference or suspects or gaps or history.missing)
    page = _page(history, balances, suspects, figures, fine)
    said = (
        f"{figures['entered']:,} messages: {total['acked']:,} acked, {total['sent']:,} sent without, "
        f"{total['dead']:,} dead, "
        f"{total['dropped']:,} dropped, {total['replaced']:,} replaced, {total['gone']:,} gone at a restart, "
        f"{total['there']:,} still there; difference {difference:,}, {len(suspects):,} unaccounted for"
    )
    if gaps or history.missing:
        said += f"; the history lacks {gaps:,} steps and {history.missing:,} notes"
    return Outcome("reconcile", said, tables.write_page(page.html()), tables.paths, figures, fine)


def _shards(history: History) -> tuple[dict[int, int], int]:
    """By shard the sequence of its last start, and how many steps the history says that it lacks."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = (
        history.steps("shard", "sequence", "kind", "missing")
        .where(F.col("kind").isin("started", "gap"))
        .groupBy("shard")
        .agg(F.max(F.when(F.col("kind") == "started", F.col("sequence"))).alias("started"), F.sum("missing").alias("n"))
        .collect()
    )
    started = {row["shard"]: row["started"] for row in rows if row["started"] is not None}
    return started, sum(row["n"] or 0 for row in rows)


def _lives(history: History, started: Mapping[int, int]) -> DataFrame:
    """A row a message. Everything that is aggregated is a number, because Spark sorts where it aggregates text."""
    from pyspark.sql import functions as F  # noqa: N812

    steps = history.steps("shard", "sequence", "kind", "queue", "number", "reason", "last")
    steps = steps.where(F.col("queue").isNotNull())
    entry, last = F.col("kind").isin("produced", "arrived"), F.coalesce("last", F.lit(False))
    lives = steps.groupBy("shard", "number", "queue").agg(
        F.count_if(entry).alias("entered"),
        F.count_if(last).alias("lasts"),
        F.min(F.when(last, F.col("sequence"))).alias("first_last"),
        F.max(F.when(last, _code())).alias("fate"),
        F.max("sequence").alias("latest_step"),
        F.max(F.when(last, F.col("sequence"))).alias("last_step"),
        F.min("sequence").alias("first_step"),
        F.min(F.when(F.col("kind") == "restored", F.col("sequence"))).alias("restored"),
        F.max(F.when(F.col("kind") == "restored", F.col("sequence"))).alias("latest_restored"),
    )
    start = F.lit(-1).cast("long")
    for shard, sequence in started.items():
        start = F.when(F.col("shard") == shard, F.lit(sequence)).otherwise(start)
    # Its end was written down and not what makes it durable: the start brought it back, and its life went on.
    undone = F.coalesce(F.col("first_last") < F.col("latest_restored"), F.lit(False))
    again = (F.col("last_step") > F.col("latest_restored")).cast("long")
    lives = lives.withColumn("left", F.when(undone, again).otherwise(F.col("lasts")))
    return lives.select(
        "shard",
        "number",
        "queue",
        "entered",
        "left",
        F.least("entered", F.lit(2)).alias("entries"),
        F.least("left", F.lit(2)).alias("lasts"),
        F.coalesce("fate", F.lit(-1)).alias("fate"),
        F.when(F.col("left") > 0, 0).when(F.col("latest_step") < start, 2).otherwise(1).alias("open"),
        F.coalesce(F.col("restored") == F.col("first_step"), F.lit(False)).alias("restored"),
        ((F.col("left") > 0) & (F.col("latest_step") > F.col("last_step"))).alias("went_on"),
    )


def _code() -> Column:
    """A last step as a number: its kind, and its reason where that matters."""
    from pyspark.sql import functions as F  # noqa: N812

    kind = F.lit(len(_KINDS))
    for index, name in reversed(list(enumerate(_KINDS))):
        kind = F.when(F.col("kind") == name, F.lit(index)).otherwise(kind)
    reason = F.when(F.col("reason").isNull(), F.lit(0)).otherwise(F.lit(_OTHER))
    for index, name in enumerate(_REASONS, 1):
        reason = F.when(F.col("reason") == name, F.lit(index)).otherwise(reason)
    return kind * 16 + F.when(F.col("kind").isin(*_REASONED), reason).otherwise(F.lit(0))


def fate_of(code: int) -> str:
    """Return what a number of `_code` says."""
    kind, reason = divmod(code, 16)
    name = _KINDS[kind] if kind < len(_KINDS) else "unknown"
    if name not in _REASONED:
        return name
    return f"{name}:{_REASONS[reason - 1] if 0 < reason <= len(_REASONS) else 'other' if reason else '-'}"


def _beginnings(classes: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], int]:
    """By shard and queue the number of the first message whose coming is told. Retention takes away what is older."""
    found: dict[tuple[int, str], int] = {}
    for row in classes:
        if row["entries"]:
            place = (row["shard"], row["queue"])
            found[place] = min(found.get(place, row["first"]), row["first"])
    return found


def _suspects(
    lives: DataFrame,
    classes: Iterable[Mapping[str, Any]],
    beginnings: Mapping[tuple[int, str], int],
    history: History,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Name the messages whose steps contradict each other. Lives are read a second time only if there is one."""
    from pyspark.sql import functions as F  # noqa: N812

    conditions: list[Column] = []
    places: set[tuple[int, str]] = set()
    for row in classes:
        place = (row["shard"], row["queue"])
        unborn = row["entries"] == 0 and not row["restored"] and row["latest"] > beginnings.get(place, 1 << 62)
        if unborn:
            places.add(place)
        if row["entries"] > 1 or row["lasts"] > 1 or row["went_on"]:
            conditions.append((F.col("entries") > 1) | (F.col("lasts") > 1) | F.col("went_on"))
    for shard, queue in places:
        conditions.append(
            (F.col("shard") == shard)
            & (F.col("queue") == queue)
            & (F.col("entries") == 0)
            & ~F.col("restored")
            & (F.col("number") > beginnings[(shard, queue)])
        )
    if not conditions:
        return []
    progress("names of what is unaccounted for", 0, 0)
    any_of = conditions[0]
    for condition in conditions[1:]:
        any_of = any_of | condition
    wrong = lives.where(any_of).select("shard", "number", "queue", "entries", "lasts", "went_on", "entered", "left")
    ids = history.steps("shard", "number", "message_id").where("message_id is not null and message_id <> ''")
    named = wrong.join(ids, ["shard", "number"], "left").groupBy(*wrong.columns).agg(F.min("message_id").alias("id"))
    return [_suspect(row) for row in named.orderBy("shard", "number").collect()]


def _suspect(row: Any) -> dict[str, Any]:
    what = (
        "left-twice"
        if row["lasts"] > 1
        else "entered-twice"
        if row["entries"] > 1
        else "went-on-behind-its-end"
        if row["went_on"]
        else "never-entered"
    )
    return {
        "queue": row["queue"],
        "shard": row["shard"],
        "number": row["number"],
        "message_id": row["id"],
        "what": what,
        "entered": row["entered"],
        "left": row["left"],
    }


def balance(
    classes: Iterable[Mapping[str, Any]],
    beginnings: Mapping[tuple[int, str], int],
    suspects: Mapping[tuple[str, str], int],
) -> list[Balance]:
    """Sum up classes of messages to the accounts of each queue. Nothing here knows Spark."""
    accounts: dict[str, Balance] = {}
    for row in classes:
        account = accounts.setdefault(row["queue"], Balance(row["queue"]))
        account.entered += row["entered"]
        if row["entries"] == 0:
            account.earlier += row["messages"]
        if row["open"]:
            account.fates[THERE if row["open"] == 1 else GONE] += row["messages"]
        else:
            account.fates[fate_of(row["fate"])] += row["left"]
    for (queue, what), count in suspects.items():
        account = accounts[queue]
        match what:
            case "left-twice":
                account.twice_left += count
            case "entered-twice":
                account.twice_entered += count
            case "never-entered":
                # Not from before the history: nobody saw it come, and yet it was there.
                account.never_entered += count
                account.earlier -= count
            case _:
                account.went_on += count
    return sorted(accounts.values(), key=lambda account: (-account.entered, account.queue))


_BALANCE: Final = (
    "queue string, entered long, earlier long, acked long, sent long, dead long, dropped long, replaced long, "
    "gone long, there long, difference long, unaccounted long"
)
_SUSPECT: Final = "queue string, shard int, number long, message_id string, what string, entered long, left long"


def _write(spark: SparkSession, tables: Tables, balances: list[Balance], suspects: list[dict[str, Any]]) -> None:
    rows = [(a.queue, a.entered, a.earlier, *a.group.values(), a.difference, a.unaccounted) for a in balances]
    tables.write("balance", spark.createDataFrame(rows, _BALANCE), files=1)
    fates = [(a.queue, fate, count) for a in balances for fate, count in sorted(a.fates.items())]
    tables.write("fates", spark.createDataFrame(fates, "queue string, fate string, messages long"), files=1)
    tables.write("unaccounted", spark.createDataFrame([tuple(s.values()) for s in suspects], _SUSPECT), files=1)


def _page(
    history: History, balances: list[Balance], suspects: list[dict[str, Any]], figures: Mapping[str, int], fine: bool
) -> Page:
    page = Page("Reconcile", history.data_dir)
    names = ("entered", "acked", "sent", "dead", "dropped", "there", "difference", "unaccounted")
    page.add(tiles(*((name, figures[name]) for name in names)))
    page.say(
        "Every message is accounted for: what entered is what became of it."
        if fine
        else "Not every message is accounted for; what is wrong stands below.",
        good=fine,
    )
    if figures["steps_missing"] or history.missing:
        page.say(f"The history lacks {figures['steps_missing']:,} steps and {history.missing:,} notes.")
    fates: Counter[str] = Counter()
    for account in balances:
        fates.update(account.fates)
    page.add(bars("What became of them", "messages", fates.most_common(), otherwise="Nothing came to any queue."))
    groups = ("acked", "sent", "dead", "dropped", "replaced", "gone", "there")
    page.add(
        table(
            "Queues",
            ["queue", "entered", "earlier", *groups, "difference", "unaccounted"],
            [
                [a.queue, a.entered, a.earlier, *(a.group[name] for name in groups), a.difference, a.unaccounted]
                for a in balances[:200]
            ],
            of=len(balances),
        )
    )
    if suspects:
        columns = ["queue", "shard", "number", "message_id", "what", "entered", "left"]
        page.add(
            table(
                "Unaccounted for",
                columns,
                [[row[name] for name in columns] for row in suspects[:_NAMED]],
                of=len(suspects),
            )
        )
    return page
