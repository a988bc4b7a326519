"""``reconcile``: accounts for every message of every queue, and lists unaccounted ones."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
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
    "moved",
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
"""Kinds of final events, most frequent first."""
_REASONS: Final = ("no-consumer", "slow", "limit", "expired", "refused", "erased", "unreadable", "duplicate")
_REASONED: Final = ("dropped", "dead-lettered")
_OTHER: Final = len(_REASONS) + 1
_NAMED: Final = 1000
"""Maximum number of messages in the report; the table has all."""

THERE: Final = "there"
GONE: Final = "gone-at-restart"
"""Not restored by the start after its last event: it was in memory only, or its end was not saved in time."""


@dataclass
class Balance:
    """Balance of one queue."""

    queue: str
    entered: int = 0
    """Number of events ``produced`` and ``arrived``."""
    earlier: int = 0
    """Number of messages from before the beginning of the history."""
    fates: Counter[str] = field(default_factory=Counter)
    """Numbers of messages by final event (with the reason if dropped or dead-lettered), ``there`` or ``gone``."""
    twice_entered: int = 0
    twice_left: int = 0
    never_entered: int = 0
    went_on: int = 0
    """Number of messages with events after their final one."""

    @property
    def difference(self) -> int:
        """Entered messages minus accounted ones: 0 if none is missing and none is counted twice."""
        return self.entered + self.earlier - self.fates.total()

    @property
    def unaccounted(self) -> int:
        """Number of messages with contradictory events."""
        return self.twice_entered + self.twice_left + self.never_entered + self.went_on

    @property
    def group(self) -> dict[str, int]:
        """Fates grouped for operators: acked, dead, moved, dropped, there, and sent without acknowledgement."""
        found = {"acked": 0, "sent": 0, "dead": 0, "moved": 0, "dropped": 0, "replaced": 0, "gone": 0, "there": 0}
        for fate, count in self.fates.items():
            found[_group(fate)] += count
        return found


_GROUPS: Final = {
    "acked": "acked",
    "dead-lettered": "dead",
    "moved": "moved",
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
    """Account for every message that entered a queue.

    Tables: ``balance`` (one row per queue), ``fates`` (one row per queue and fate) and ``unaccounted`` (one row per
    message with contradictory events, with its id if an event has it). The outcome is not `ok` if there is such a
    message, if a difference is not zero, or if the history has gaps.

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
        **{name: total[name] for name in ("acked", "sent", "dead", "moved", "dropped", "replaced", "gone", "there")},
        "difference": difference,
        "unaccounted": len(suspects),
        "steps_missing": gaps,
    }
    ok = not (difference or suspects or gaps or history.missing)
    page = _page(history, balances, suspects, figures, ok)
    summary = (
        f"{figures['entered']:,} messages: {total['acked']:,} acked, {total['sent']:,} sent without, "
        f"{total['dead']:,} dead, {total['moved']:,} moved, "
        f"{total['dropped']:,} dropped, {total['replaced']:,} replaced, {total['gone']:,} gone at a restart, "
        f"{total['there']:,} still there; difference {difference:,}, {len(suspects):,} unaccounted for"
    )
    if gaps or history.missing:
        summary += f"; the history lacks {gaps:,} events and {history.missing:,} records"
    return Outcome("reconcile", summary, tables.write_page(page.html()), tables.paths, figures, ok)


def _shards(history: History) -> tuple[dict[int, int], int]:
    """Sequence of the last start by shard, and the number of events that the history reports as missing."""
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
    """One row per message. All aggregates are numbers, because Spark sorts to aggregate text."""
    from pyspark.sql import functions as F  # noqa: N812

    steps = history.steps("shard", "sequence", "kind", "queue", "number", "reason", "last")
    steps = steps.where(F.col("queue").isNotNull())
    entry, last = F.col("kind").isin("produced", "arrived"), F.coalesce("last", F.lit(False))
    lives = steps.groupBy("shard", "number", "queue").agg(
        F.count_if(entry).alias("entered"),
        F.count_if(last).alias("lasts"),
        F.min(F.when(last, F.col("sequence"))).alias("first_last"),
        # Of several, the latest: a restart may have undone the others.
        F.max_by(_code(), F.when(last, F.col("sequence"))).alias("fate"),
        F.max("sequence").alias("latest_step"),
        F.max(F.when(last, F.col("sequence"))).alias("last_step"),
        F.min("sequence").alias("first_step"),
        F.min(F.when(F.col("kind") == "restored", F.col("sequence"))).alias("restored"),
        F.max(F.when(F.col("kind") == "restored", F.col("sequence"))).alias("latest_restored"),
    )
    start = F.lit(-1).cast("long")
    for shard, sequence in started.items():
        start = F.when(F.col("shard") == shard, F.lit(sequence)).otherwise(start)
    # Its final event was saved, but not its settlement: the restart restored it, and further events followed.
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
    """A final event as a number: its kind, and its reason if it matters."""
    from pyspark.sql import functions as F  # noqa: N812

    kind = F.lit(len(_KINDS))
    for index, name in reversed(list(enumerate(_KINDS))):
        kind = F.when(F.col("kind") == name, F.lit(index)).otherwise(kind)
    reason = F.when(F.col("reason").isNull(), F.lit(0)).otherwise(F.lit(_OTHER))
    for index, name in enumerate(_REASONS, 1):
        reason = F.when(F.col("reason") == name, F.lit(index)).otherwise(reason)
    return kind * 16 + F.when(F.col("kind").isin(*_REASONED), reason).otherwise(F.lit(0))


def fate_of(code: int) -> str:
    """Return the text of a number from `_code`."""
    kind, reason = divmod(code, 16)
    name = _KINDS[kind] if kind < len(_KINDS) else "unknown"
    if name not in _REASONED:
        return name
    return f"{name}:{_REASONS[reason - 1] if 0 < reason <= len(_REASONS) else 'other' if reason else '-'}"


def _beginnings(classes: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], int]:
    """Number of the first message with a complete history, by shard and queue. Retention removes older events."""
    found: dict[tuple[int, str], int] = {}
    for row in classes:
        if row["entries"]:
            place = (row["shard"], row["queue"])
            found[place] = min(found.get(place, row["first"]), row["first"])
    return found


def _suspects(
    lives: DataFrame,
    classes: Sequence[Mapping[str, Any]],
    beginnings: Mapping[tuple[int, str], int],
    history: History,
    progress: Progress,
) -> list[dict[str, Any]]:
    """List messages with contradictory events. Reads the events a second time only if there is one."""
    from pyspark.sql import functions as F  # noqa: N812

    conditions: list[Column] = []
    # Classes are many, so each kind of condition is in the query once.
    if any(row["entries"] > 1 or row["lasts"] > 1 or row["went_on"] for row in classes):
        conditions.append((F.col("entries") > 1) | (F.col("lasts") > 1) | F.col("went_on"))
    places: set[tuple[int, str]] = set()
    for row in classes:
        place = (row["shard"], row["queue"])
        if row["entries"] == 0 and not row["restored"] and row["latest"] > beginnings.get(place, 1 << 62):
            places.add(place)
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
    progress("names of unaccounted messages", 0, 0)
    wrong = lives.where(reduce(operator.or_, conditions)).select(
        "shard", "number", "queue", "entries", "lasts", "went_on", "entered", "left"
    )
    ids = history.steps("shard", "number", "message_id").where("message_id is not null and message_id <> ''")
    named = wrong.join(ids, ["shard", "number"], "left").groupBy(*wrong.columns).agg(F.min("message_id").alias("id"))
    return [_suspect(row) for row in named.orderBy("shard", "number", "queue").collect()]


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
    """Add up classes of messages to the balance of each queue. Does not need Spark."""
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
                # Not from before the history, yet without an event of entering: contradictory.
                account.never_entered += count
                account.earlier -= count
            case _:
                account.went_on += count
    return sorted(accounts.values(), key=lambda account: (-account.entered, account.queue))


_BALANCE: Final = (
    "queue string, entered long, earlier long, acked long, sent long, dead long, moved long, dropped long, "
    "replaced long, gone long, there long, difference long, unaccounted long"
)
_SUSPECT: Final = "queue string, shard int, number long, message_id string, what string, entered long, left long"


def _write(spark: SparkSession, tables: Tables, balances: list[Balance], suspects: list[dict[str, Any]]) -> None:
    rows = [(a.queue, a.entered, a.earlier, *a.group.values(), a.difference, a.unaccounted) for a in balances]
    tables.write("balance", spark.createDataFrame(rows, _BALANCE), files=1)
    fates = [(a.queue, fate, count) for a in balances for fate, count in sorted(a.fates.items())]
    tables.write("fates", spark.createDataFrame(fates, "queue string, fate string, messages long"), files=1)
    tables.write("unaccounted", spark.createDataFrame([tuple(s.values()) for s in suspects], _SUSPECT), files=1)


def _page(
    history: History, balances: list[Balance], suspects: list[dict[str, Any]], figures: Mapping[str, int], ok: bool
) -> Page:
    page = Page("Reconcile", history.data_dir)
    names = ("entered", "acked", "sent", "dead", "dropped", "there", "difference", "unaccounted")
    page.add(tiles(*((name, figures[name]) for name in names)))
    page.say(
        "Every message is accounted for: entered and accounted numbers are equal."
        if ok
        else "Not every message is accounted for; see the differences below.",
        good=ok,
    )
    if figures["steps_missing"] or history.missing:
        page.say(f"The history lacks {figures['steps_missing']:,} events and {history.missing:,} records.")
    fates: Counter[str] = Counter()
    for account in balances:
        fates.update(account.fates)
    ordered = sorted(fates.items(), key=lambda pair: (-pair[1], pair[0]))
    page.add(bars("Messages by fate", "messages", ordered, otherwise="No message entered a queue."))
    groups = ("acked", "sent", "dead", "moved", "dropped", "replaced", "gone", "there")
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
