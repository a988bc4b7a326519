"""``reconcile``: accounts for every message of every queue, and lists unaccounted ones."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.fate import FATES, PRESENT, Shards, column_of, fate_of, lives
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.report import Page, bars, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Balance", "reconcile"]

_NAMED: Final = 1000
"""Maximum number of messages in the report; the table has all."""
_QUEUES: Final = 200
"""Maximum number of queues in the report; the table has all."""


@dataclass
class Balance:
    """Balance of one queue."""

    queue: str
    entered: int = 0
    """Number of events ``produced`` and ``arrived``."""
    earlier: int = 0
    """Number of messages from before the beginning of the history."""
    fates: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    """Numbers of messages by fate and detail, as `fate_of` returns them."""
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
    def sums(self) -> dict[str, int]:
        """Numbers of messages by fate; each fate is present."""
        found = dict.fromkeys(FATES, 0)
        for (fate, _), count in self.fates.items():
            found[fate] += count
        return found


def reconcile(
    spark: SparkSession, data_dir: str | os.PathLike[str], out: str | os.PathLike[str], *, progress: Progress = unseen
) -> Outcome:
    """Account for every message that entered a queue.

    Tables: ``balance`` (one row per queue), ``fates`` (one row per queue, fate and detail) and ``unaccounted`` (one row
    per message with contradictory events, with its id if an event has it). The outcome is not `ok` if there is such a
    message, if a difference is not zero, or if the history has gaps.

    Raises `DataDirMissing` and `DataDirUnreadable`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    history, tables = History.of(spark, data_dir), Tables(out, "reconcile")
    with history.by_message():
        progress("starts and gaps", 0, 0)
        shards = Shards.of(history)
        progress("lives", 0, 0)
        every = lives(history.fate_steps(), shards)
        classes = every.groupBy("shard", "queue", "entries", "lasts", "code", "restored", "went_on").agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("entered").alias("entered"),
            F.sum("results").alias("results"),
            F.min("number").alias("first"),
            F.max("number").alias("latest"),
        )
        found = [row.asDict() for row in classes.collect()]
        beginnings = _beginnings(found)
        suspects = _suspects(every, found, beginnings, history, progress)
    balances = balance(found, beginnings, Counter((row["queue"], row["what"]) for row in suspects))
    progress("report", 0, 0)
    _write(spark, tables, balances, suspects)
    difference = sum(abs(account.difference) for account in balances)
    total: Counter[str] = Counter()
    for account in balances:
        total.update(account.sums)
    figures = {
        "entered": sum(account.entered for account in balances),
        "earlier": sum(account.earlier for account in balances),
        **{column_of(fate): total[fate] for fate in FATES},
        "difference": difference,
        "unaccounted": len(suspects),
        "steps_missing": shards.gaps,
    }
    ok = not (difference or suspects or shards.gaps or history.missing)
    page = _page(history, balances, suspects, figures, ok)
    there = sum(total[fate] for fate in PRESENT)
    shown = [f"{total[fate]:,} {fate}" for fate in FATES if fate not in PRESENT and total[fate]]
    summary = (
        f"{figures['entered'] + figures['earlier']:,} messages: {', '.join([*shown, f'{there:,} still there'])}; "
        f"difference {difference:,}, {len(suspects):,} unaccounted for"
    )
    if shards.gaps or history.missing:
        summary += f"; the history lacks {shards.gaps:,} events and {history.missing:,} records"
    return Outcome("reconcile", summary, tables.write_page(page.html()), tables.paths, figures, ok)


def _beginnings(classes: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], int]:
    """Number of the first message with a complete history, by shard and queue. Retention removes older events."""
    found: dict[tuple[int, str], int] = {}
    for row in classes:
        if row["entries"]:
            place = (row["shard"], row["queue"])
            found[place] = min(found.get(place, row["first"]), row["first"])
    return found


def _suspects(
    every: DataFrame,
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
    wrong = every.where(reduce(operator.or_, conditions)).select(
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
        account.fates[fate_of(row["code"])] += row["results"]
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


_NUMBERS: Final = ("entered", "earlier", *map(column_of, FATES), "difference", "unaccounted")
_BALANCE: Final = f"queue string, {', '.join(f'{name} long' for name in _NUMBERS)}"
_FATES: Final = "queue string, fate string, detail string, messages long"
_SUSPECT: Final = "queue string, shard int, number long, message_id string, what string, entered long, left long"


def _write(spark: SparkSession, tables: Tables, balances: list[Balance], suspects: list[dict[str, Any]]) -> None:
    rows = [(a.queue, a.entered, a.earlier, *a.sums.values(), a.difference, a.unaccounted) for a in balances]
    tables.write("balance", spark.createDataFrame(rows, _BALANCE), files=1)
    fates = [(a.queue, *fate, count) for a in balances for fate, count in sorted(a.fates.items(), key=_by_name)]
    tables.write("fates", spark.createDataFrame(fates, _FATES), files=1)
    tables.write("unaccounted", spark.createDataFrame([tuple(s.values()) for s in suspects], _SUSPECT), files=1)


def _by_name(pair: tuple[tuple[str, str | None], int]) -> tuple[str, str]:
    (fate, detail), _ = pair
    return fate, detail or ""


def _page(
    history: History, balances: list[Balance], suspects: list[dict[str, Any]], figures: Mapping[str, int], ok: bool
) -> Page:
    page = Page("Reconcile", history.data_dir)
    # Entered and earlier ones are all fates and the difference: the reader can add them up.
    shown = [name for name in ("earlier", *map(column_of, FATES)) if figures[name]]
    names = ("entered", *shown, "difference", "unaccounted")
    page.add(tiles(*((name.replace("_", " "), figures[name]) for name in names)))
    page.say(
        "Every message is accounted for: entered and accounted numbers are equal."
        if ok
        else "Not every message is accounted for; see the differences below.",
        good=ok,
    )
    if figures["steps_missing"] or history.missing:
        page.say(f"The history lacks {figures['steps_missing']:,} events and {history.missing:,} records.")
    fates: Counter[tuple[str, str | None]] = Counter()
    for account in balances:
        fates.update(account.fates)
    ordered = sorted(fates.items(), key=lambda pair: (-pair[1], _by_name(pair)))
    named = [(f"{fate}: {detail}" if detail else fate, count) for (fate, detail), count in ordered if count]
    page.add(bars("Messages by fate", "messages", named, otherwise="No message entered a queue."))
    # Columns that are 0 in all queues would hide the others.
    columns = [fate for fate in FATES if figures[column_of(fate)]]
    page.add(
        table(
            "Queues",
            ["queue", "entered", "earlier", *columns, "difference", "unaccounted"],
            [
                [a.queue, a.entered, a.earlier, *(a.sums[name] for name in columns), a.difference, a.unaccounted]
                for a in balances[:_QUEUES]
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
