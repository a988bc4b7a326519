"""The fate of each message: one definition, from which all reports count.

A message is a shard, a number and a queue. A dead letter is a message of its dead-letter queue, so the fate of the
original is ``dead-lettered`` and that of the letter what became of the letter.

| fate | the message |
|---|---|
| ``acked`` | was acknowledged |
| ``sent`` | was delivered to consumers that need not acknowledge |
| ``failed`` | was nacked, timed out or lost its consumer, and its delivery handler did not requeue it |
| ``dead-lettered`` | moved to the dead-letter queue |
| ``moved`` | was moved to another queue by an operator |
| ``replaced`` | was replaced by a newer one in a cache |
| ``expired`` | waited too long |
| ``dropped`` | was dropped for another reason |
| ``lost`` | was in memory only, and a restart of the broker lost it |
| ``waiting`` | is in its queue: not delivered since it entered or since the last restart; may be delayed |
| ``in-flight`` | is at a consumer |
| ``requeued`` | waits for its next attempt; may be delayed |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from mqcore.spark.pipelines.history import History

__all__ = ["FATES", "LOSSES", "PRESENT", "STEP_COLUMNS", "Shards", "column_of", "fate", "fate_of", "lives", "reason"]

FATES: Final = (
    "acked",
    "sent",
    "failed",
    "dead-lettered",
    "moved",
    "replaced",
    "expired",
    "dropped",
    "lost",
    "waiting",
    "in-flight",
    "requeued",
)
"""All fates. Each message has exactly one."""
PRESENT: Final = ("waiting", "in-flight", "requeued")
"""Fates of messages that are still in their queue."""
LOSSES: Final = ("dropped", "expired", "failed", "lost", "dead-lettered")
"""Fates of messages that left their queue without an acknowledgement, although it was due."""

STEP_COLUMNS: Final = ("shard", "sequence", "kind", "queue", "number", "numbers", "reason", "last")
"""Columns of the history that `lives` needs."""

_ENDS: Final = {
    "acked": "acked",
    "nacked": "failed",
    "timed-out": "failed",
    "consumer-lost": "failed",
    "expired": "expired",
    "dead-lettered": "dead-lettered",
    "moved": "moved",
    "dropped": "dropped",
    "replaced": "replaced",
    "delivered": "sent",
    "done": "sent",
    "put-back": "sent",
    "saved": "sent",
    "restored": "sent",
    "produced": "sent",
    "arrived": "sent",
}
"""Fates by kind of the final event, the most frequent kinds first."""
_KINDS: Final = tuple(_ENDS)
_UNKNOWN: Final = "sent"
"""Fate of a message whose final event is of a later version of mqcore."""
_REASONS: Final = ("no-consumer", "slow", "limit", "expired", "refused", "erased", "unreadable", "duplicate")
_REASONED: Final = ("dropped", "dead-lettered")
_OTHER: Final = len(_REASONS) + 1
_REASON_BITS: Final = 4
_EXPIRED: Final = _REASONS.index("expired") + 1

_OPEN: Final = 1024
"""First code of messages without a final event."""
_OPEN_FATES: Final = (*PRESENT, "lost")
_LOST: Final = _OPEN + _OPEN_FATES.index("lost")
_STATES: Final = (
    ("produced", "arrived", "restored"),
    ("delivered", "acked"),
    ("nacked", "timed-out", "consumer-lost", "put-back"),
)
"""Kinds after which a message without a final event is waiting, in flight or requeued, in the order of `PRESENT`."""
_STATE_BITS: Final = 2


def column_of(name: str) -> str:
    """Return the name of the column for a fate: ``dead_lettered`` for ``dead-lettered``."""
    return name.replace("-", "_")


def fate_of(code: int) -> tuple[str, str | None]:
    """Return the fate for a code of `lives`, and its detail: the reason, or the kind of the final event if unusual."""
    if code >= _OPEN:
        return _OPEN_FATES[code - _OPEN], None
    kind, number = code >> _REASON_BITS, code & ((1 << _REASON_BITS) - 1)
    if kind >= len(_KINDS):
        return _UNKNOWN, "unknown"
    name = _KINDS[kind]
    if name == "dropped" and number == _EXPIRED:
        return "expired", None
    if name in _REASONED:
        return name, None if not number else "other" if number == _OTHER else _REASONS[number - 1]
    return _ENDS[name], None if _ENDS[name] == name else name


@dataclass(frozen=True)
class Shards:
    """Starts and gaps of a history."""

    starts: Mapping[int, tuple[tuple[int, int], ...]]
    """By shard: sequence and time in Unix microseconds of each start, in order."""
    gaps: int
    """Number of events that the history reports as missing."""

    @classmethod
    def of(cls, history: History) -> Shards:
        """Read the starts and gaps of all shards."""
        from pyspark.sql import functions as F  # noqa: N812

        rows = history.steps("time", "shard", "sequence", "kind", "missing").where(F.col("kind").isin("started", "gap"))
        found = rows.select("shard", "sequence", F.unix_micros("time").alias("at"), "kind", "missing").collect()
        starts: dict[int, list[tuple[int, int]]] = {}
        for row in found:
            if row["kind"] == "started":
                starts.setdefault(row["shard"], []).append((row["sequence"], row["at"]))
        gaps = sum(row["missing"] or 0 for row in found)
        return cls({shard: tuple(sorted(each)) for shard, each in starts.items()}, gaps)

    def last(self) -> Column:
        """Return the sequence of the last start of a row's shard, -1 without one."""
        from pyspark.sql import functions as F  # noqa: N812

        start = F.lit(-1).cast("long")
        for shard, starts in self.starts.items():
            start = F.when(F.col("shard") == shard, F.lit(starts[-1][0])).otherwise(start)
        return start


def lives(steps: DataFrame, shards: Shards, **more: Column) -> DataFrame:
    """Return one row per message that `steps` names, from all its events.

    `steps` has `STEP_COLUMNS` and what the further aggregates `more` need. If it has ``time``, the result has
    ``ended``: the time of the final event, or of the restart that lost the message. An event with ``numbers`` stands
    for the messages with these numbers. In histories of earlier versions, each event stands for one message.

    Columns: ``shard``, ``number``, ``queue``, ``entered`` (events with which it entered), ``left`` (final events that
    no restart undid), ``entries`` and ``lasts`` (the same, at most 2), ``code`` (see `fate` and `fate_of`),
    ``results`` (1; if events contradict each other, the number of final events), ``restored`` (the first event is that
    of a restart), ``went_on`` (events after the final one), and those of `more`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    # All aggregates are numbers, because Spark sorts to aggregate text.
    rows = _each_message(steps.where(F.col("queue").isNotNull()))
    entry, last = F.col("kind").isin("produced", "arrived"), F.coalesce("last", F.lit(False))
    timed = "time" in steps.columns
    if timed:
        more["final_at"] = F.max(F.when(last, F.unix_micros("time")))
    found = rows.groupBy("shard", "number", "queue").agg(
        F.count_if(entry).alias("entered"),
        F.count_if(last).alias("all_lasts"),
        F.min(F.when(last, F.col("sequence"))).alias("first_last"),
        # Of several, the latest: a restart may have undone the others.
        F.max_by(_end_code(), F.when(last, F.col("sequence"))).alias("end"),
        F.max(_state()).alias("state"),
        F.max("sequence").alias("latest_step"),
        F.max(F.when(last, F.col("sequence"))).alias("last_step"),
        F.min("sequence").alias("first_step"),
        F.min(F.when(F.col("kind") == "restored", F.col("sequence"))).alias("first_restored"),
        F.max(F.when(F.col("kind") == "restored", F.col("sequence"))).alias("latest_restored"),
        *(column.alias(name) for name, column in more.items()),
    )
    # Its final event was saved, but not its settlement: the restart restored it, and further events followed.
    undone = F.coalesce(F.col("first_last") < F.col("latest_restored"), F.lit(False))
    again = F.coalesce((F.col("last_step") > F.col("latest_restored")).cast("long"), F.lit(0))
    found = found.withColumn("left", F.when(undone, again).otherwise(F.col("all_lasts")))
    present = F.coalesce(F.col("state").bitwiseAND((1 << _STATE_BITS) - 1), F.lit(0)).cast("int")
    code = (
        F.when(F.col("left") > 0, F.col("end"))
        .when(F.col("latest_step") < shards.last(), F.lit(_LOST))
        .otherwise(present + F.lit(_OPEN))
    )
    found = found.withColumn("code", code)
    if timed:
        found = _with_ends(found, shards)
    return found.select(
        *("shard", "number", "queue", "entered", "left"),
        F.least("entered", F.lit(2)).alias("entries"),
        F.least("left", F.lit(2)).alias("lasts"),
        "code",
        F.greatest("left", F.lit(1)).alias("results"),
        F.coalesce(F.col("first_restored") == F.col("first_step"), F.lit(False)).alias("restored"),
        ((F.col("left") > 0) & (F.col("latest_step") > F.col("last_step"))).alias("went_on"),
        *(["ended"] if timed else []),
        *(name for name in more if name != "final_at"),
    )


def fate() -> Column:
    """Return the fate of each row of `lives` as text."""
    return _named(lambda code: fate_of(code)[0], ("dropped",))


def reason() -> Column:
    """Return the detail of the fate of each row of `lives` as text: see `fate_of`."""
    return _named(lambda code: fate_of(code)[1], _REASONED)


def _named(name: Callable[[int], str | None], by_reason: tuple[str, ...]) -> Column:
    """A text for each code. Kinds outside of `by_reason` have one text for all their codes."""
    from pyspark.sql import functions as F  # noqa: N812

    kinds = range(len(_KINDS) + 1)
    text = F.get(F.array(*(F.lit(name(kind << _REASON_BITS)) for kind in kinds)), _kind_of())
    for kind, known in enumerate(_KINDS):
        if known in by_reason:
            reasons = F.array(*(F.lit(name((kind << _REASON_BITS) + number)) for number in range(_OTHER + 1)))
            text = F.when(_kind_of() == kind, F.get(reasons, _reason_of())).otherwise(text)
    opened = F.array(*(F.lit(name(_OPEN + at)).cast("string") for at in range(len(_OPEN_FATES))))
    is_open = F.col("code") >= _OPEN
    return F.when(is_open, F.get(opened, F.col("code") - _OPEN)).otherwise(text)


def _kind_of() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.least(F.shiftright("code", _REASON_BITS), F.lit(len(_KINDS)))


def _reason_of() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col("code").bitwiseAND((1 << _REASON_BITS) - 1)


def _end_code() -> Column:
    """A final event as a number: its kind, and its reason if it matters."""
    from pyspark.sql import functions as F  # noqa: N812

    kind = F.lit(len(_KINDS))
    for index, name in reversed(list(enumerate(_KINDS))):
        kind = F.when(F.col("kind") == name, F.lit(index)).otherwise(kind)
    number = F.when(F.col("reason").isNull(), F.lit(0)).otherwise(F.lit(_OTHER))
    for index, name in enumerate(_REASONS, 1):
        number = F.when(F.col("reason") == name, F.lit(index)).otherwise(number)
    return kind * (1 << _REASON_BITS) + F.when(F.col("kind").isin(*_REASONED), number).otherwise(F.lit(0))


def _state() -> Column:
    """Sequence and state after an event that changes where a message is; the largest number is the latest one."""
    from pyspark.sql import functions as F  # noqa: N812

    state = F.lit(None).cast("long")
    for index, kinds in enumerate(_STATES):
        state = F.when(F.col("kind").isin(*kinds), F.lit(index).cast("long")).otherwise(state)
    return F.col("sequence") * (1 << _STATE_BITS) + state


def _each_message(steps: DataFrame) -> DataFrame:
    """Split events of a restart, which stand for several messages, into one row each."""
    from pyspark.sql import functions as F  # noqa: N812

    each = F.flatten(F.transform("numbers", lambda numbers: F.sequence(numbers["first"], numbers["last"])))
    numbers = F.when(F.col("numbers").isNotNull(), each).otherwise(F.array("number"))
    others = [name for name in steps.columns if name not in {"number", "numbers"}]
    return steps.select(*others, F.explode(numbers).alias("number"))


def _with_ends(found: DataFrame, shards: Shards) -> DataFrame:
    """Add ``ended``: the time of the final event, or of the first start after the last event of a lost message."""
    from pyspark.sql import functions as F  # noqa: N812

    known = [(shard, [{"sequence": at, "time": time} for at, time in each]) for shard, each in shards.starts.items()]
    schema = "shard int, starts array<struct<sequence: long, time: long>>"
    starts = found.sparkSession.createDataFrame(known, schema)
    found = found.join(F.broadcast(starts), "shard", "left")
    later = F.filter("starts", lambda start: start["sequence"] > F.col("latest_step"))
    ended = F.when(F.col("left") > 0, F.col("final_at")).when(F.col("code") == _LOST, F.array_min(later)["time"])
    return found.withColumn("ended", F.timestamp_micros(ended))
