"""``replay``: publishes messages of the history again, at a limited rate, each once also after an interruption."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.destinations import Destinations
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.moments import Period
from mqcore.spark.pipelines.paced import Outbox, check_url
from mqcore.spark.pipelines.report import Page, Series, bars, lines, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen
from mqcore.spark.rows import NAME_HEADER

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["COLUMNS", "FROM_HEADER", "ID_HEADER", "TIME_HEADER", "replay"]

FROM_HEADER: Final = "Replayed-From"
"""Header with the queue that the message was published to first."""
TIME_HEADER: Final = "Replayed-Time"
"""Header with the time at which it was published first: ISO 8601 in UTC."""
ID_HEADER: Final = "Replayed-Id"
"""Header with the original message id, if the replayed message has a new one."""

COLUMNS: Final = (
    *("time", "kind", "queue", "channel", "queue_id", "message_id", "high_priority", "content_type"),
    *("producer_id", "producer_name", "producer_type", "producer_protocol", "headers", "header_bytes"),
    *("body", "body_bytes", "shard", "number", "sequence"),
)
"""Columns that the option `where` can use."""

_KINDS: Final = {"produced": ("produced",), "arrived": ("arrived",), "all": ("produced", "arrived")}
_IDS: Final = ("keep", "new")
_RUN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FORMAT: Final = "mqcore.replay/1"
_POINTS: Final = 240
_CURVES: Final = 6
_ROWS: Final = 100
_QUEUES: Final = (
    "queue string, target string, messages long, body_bytes long, not_recorded long, new_ids long, "
    "first timestamp, latest timestamp"
)
_TIMELINE: Final = "queue string, start timestamp, messages long"


@dataclass(frozen=True)
class _Selection:
    """The messages of a run, as counted before the first one is published."""

    queues: list[dict[str, Any]]
    """Rows of the table ``queues``, with times in Unix microseconds."""
    timeline: list[list[Any]]
    """Queue, start in Unix seconds, and messages."""
    width: int
    """Seconds of an interval of the timeline."""

    def total(self, name: str) -> int:
        return sum(int(row[name]) for row in self.queues)

    @property
    def publishable(self) -> int:
        return self.total("messages") - self.total("not_recorded")


def replay(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    since: str = "",
    until: str = "",
    where: str = "",
    kind: str = "produced",
    to: str = "",
    ids: str = "keep",
    rate: float = 1000.0,
    url: str = "",
    run: str = "",
    admin: str = "",
    token: str = "",
    progress: Progress = unseen,
) -> Outcome:
    """Publish messages of the history again. Without `url`, only count them.

    - `since`, `until`: ISO 8601 in UTC, or a time before now such as ``2h``. Default: the whole history.
    - `where`: condition in Spark SQL on `COLUMNS`, such as ``channel = 'orders' AND body_bytes < 1000``.
    - `kind`: ``produced`` (by a client; default), ``arrived`` (dead letters and moved messages), or ``all``.
    - `to`: destination ``channel/id`` of all messages, or pairs ``orders/1=copy/1,logs/2=copy/2``. Default: the queue
      that the message was published to.
    - `ids`: ``keep`` (default) or ``new``.
    - `rate`: messages per second (default 1000; 0: unlimited).
    - `url`, `token`: broker that receives the messages. Requires `run`.
    - `run`: name of this replay: up to 64 letters, digits, dots, dashes and underscores. A run that is repeated with
      the same name and options continues after the last message that it published.
    - `admin`: the broker's admin URL. With it, no message is published twice even if a run was killed.

    Messages keep headers, body, priority and the order of their times. Headers name their origin. Messages whose body
    is not recorded are counted and not published.

    Tables: ``queues`` (one row per queue) and ``timeline`` (messages by queue and time).

    Raises `ConfigError`, `DataDirMissing`, `DataDirUnreadable`, and errors of publishing.
    """
    period, destinations = Period.between(since, until), Destinations.parse(to)
    _check(kind, ids, rate, url, run)
    tables = Tables(out, "replay")
    history = History.of(spark, data_dir)
    chosen = {"since": since, "until": until, "where": where, "kind": kind, "to": to, "ids": ids}
    shown = _Shown(progress)
    outbox = None
    if url:
        staging = str(tables.path("staging"))
        outbox = Outbox(staging, f"replay-{run}", url=url, admin=admin, token=token, rate=rate, shown=shown)
    record = tables.path("runs") / f"{run}.json"
    if outbox is not None and outbox.committed() is not None:
        selection = _recorded(record, chosen)
        published, fresh = 0, False
    else:
        rows = _selected(history, period, where, kind, destinations, ids)
        selection, fresh = _select(history, rows, outbox, record, chosen, progress)
    for name, schema, given in _rows(selection):
        tables.write(name, spark.createDataFrame(given, schema), files=1)
    before = published = 0
    if outbox is not None:
        batch = outbox.committed()
        before = 0 if batch is None else batch.published
        shown.total = selection.publishable
        published = outbox.publish(fresh=fresh)
        outbox.sweep()
    progress("report", 0, 0)
    figures = {
        "messages": selection.total("messages"),
        "body_bytes": selection.total("body_bytes"),
        "not_recorded": selection.total("not_recorded"),
        "new_ids": selection.total("new_ids"),
        "published": published,
        "published_before": before,
    }
    page = _page(history, period, where, selection, figures, dry=outbox is None)
    summary = _summary(figures, run, dry=outbox is None)
    return Outcome("replay", summary, tables.write_page(page.html()), tables.paths, figures)


def _check(kind: str, ids: str, rate: float, url: str, run: str) -> None:
    if kind not in _KINDS:
        raise errors.ConfigError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    if ids not in _IDS:
        raise errors.ConfigError(f"ids must be one of {', '.join(_IDS)}, not {ids!r}")
    if not 0 <= rate < float("inf"):
        raise errors.ConfigError(f"rate must be at least 0 messages per second, not {rate}")
    if bool(url) != bool(run):
        raise errors.ConfigError("url and run belong together; set both (broker and a name) or none to only count")
    if url:
        check_url(url)
    if run and not _RUN.fullmatch(run):
        raise errors.ConfigError(f"run must have 1 to 64 letters, digits, dots, dashes and underscores, not {run!r}")


class _Shown:
    """Shows the progress of publishing; as text in steps of 10 %, for outputs that print each step once."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.total = 0

    def __call__(self, published: int) -> None:
        percent = 100 * published // self.total // 10 * 10 if self.total else 100
        self._progress(f"published {percent} %", published, self.total)


def _selected(
    history: History, period: Period, where: str, kind: str, destinations: Destinations, ids: str
) -> DataFrame:
    """Rows with the columns of the history, ``target``, and ``key``: the id that the replayed message keeps."""
    from pyspark.sql import functions as F  # noqa: N812

    own = [name for name in COLUMNS if name not in {"channel", "queue_id"}]
    rows = period.of(history.messages(*own)).where(F.col("kind").isin(*_KINDS[kind]))
    rows = rows.withColumn("channel", F.regexp_extract("queue", r"^(.*)/[^/]*$", 1))
    rows = rows.withColumn("queue_id", F.regexp_extract("queue", r"([0-9]+)$", 1).try_cast("int"))
    rows = _filtered(rows, where).withColumn("target", destinations.column())
    given = F.when(F.col("message_id") != "", F.col("message_id"))
    return rows.withColumn("key", given if ids == "keep" else F.lit(None).cast("string"))


def _order() -> tuple[str, ...]:
    # Many messages share a millisecond; the sequence orders those of a shard, and so those of a queue.
    return "time", "shard", "sequence"


def _filtered(rows: DataFrame, where: str) -> DataFrame:
    from pyspark.errors import PySparkException

    if not where.strip():
        return rows
    try:
        found = rows.select(*COLUMNS).where(where)
        found.schema  # noqa: B018 (sessions over Spark Connect analyze here)
    except PySparkException as error:
        raise errors.ConfigError(f"where is invalid: {_reason(error)}; it can use {', '.join(COLUMNS)}") from error
    return found


def _reason(error: Exception) -> str:
    """The first line of an error of Spark, without its code and its state."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE:.*$", "", line).rstrip(". ")


def _select(
    history: History,
    rows: DataFrame,
    outbox: Outbox | None,
    record: Path,
    chosen: Mapping[str, str],
    progress: Progress,
) -> tuple[_Selection, bool]:
    """Count the selected rows and, with an outbox, commit them. Return whether this call committed them."""
    from pyspark import StorageLevel

    progress("messages", 0, 0)
    with history.by_message():
        # Read once: what is counted is what is published, also with a condition such as rand() < 0.1.
        rows = rows.persist(StorageLevel.DISK_ONLY)
        try:
            selection = _evaluated(lambda: _count(rows), chosen["where"])
            if outbox is None:
                return selection, False
            progress("stage", 0, 0)
            staged = outbox.stage(_outgoing(rows))
        finally:
            rows.unpersist()
    # Saved before the commit, so each committed run has its record.
    _save(record, selection, chosen)
    return selection, outbox.commit(staged)


def _evaluated(count: Callable[[], _Selection], where: str) -> _Selection:
    """Count; an error of the condition on some row is a `ConfigError`."""
    from pyspark import errors as raised

    kinds = (
        *(raised.ArithmeticException, raised.NumberFormatException, raised.DateTimeException),
        *(raised.IllegalArgumentException, raised.SparkRuntimeException, raised.ArrayIndexOutOfBoundsException),
    )
    try:
        return count()
    except kinds as error:
        if not where.strip():
            raise
        raise errors.ConfigError(f"where fails on a message: {_reason(error)}") from error


def _count(rows: DataFrame) -> _Selection:
    from pyspark.sql import functions as F  # noqa: N812

    known = F.col("body").isNotNull()
    renewed = known & F.col("key").isNull() & (F.col("message_id") != "")
    found = (
        rows.groupBy("queue", "target")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.coalesce(F.sum(F.when(known, F.col("body_bytes"))), F.lit(0)).alias("body_bytes"),
            F.count_if(~known).alias("not_recorded"),
            F.count_if(renewed).alias("new_ids"),
            F.min(F.unix_micros("time")).alias("first"),
            F.max(F.unix_micros("time")).alias("latest"),
        )
        .orderBy(F.desc("messages"), "queue")
        .collect()
    )
    queues = [row.asDict() for row in found]
    if not queues:
        return _Selection([], [], 1)
    first = min(row["first"] for row in queues) // 1_000_000
    last = max(row["latest"] for row in queues) // 1_000_000
    width = max(1, -(-(last - first + 1) // _POINTS))
    start = F.floor((F.unix_seconds("time") - first) / width).cast("long") * width + first
    points = rows.groupBy("queue", start.alias("start")).agg(F.count(F.lit(1)).alias("messages"))
    timeline = [list(row) for row in points.orderBy("queue", "start").collect()]
    return _Selection(queues, timeline, width)


def _outgoing(rows: DataFrame) -> DataFrame:
    """Rows for the sink, in the order of publishing."""
    from pyspark.sql import functions as F  # noqa: N812

    own = (FROM_HEADER, TIME_HEADER, ID_HEADER, NAME_HEADER)
    kept = F.filter("headers", lambda header: ~F.lower(header["key"]).isin(*(name.lower() for name in own)))
    # Times are shown in the zone of the session; to_utc_timestamp makes the text one in UTC.
    utc = F.to_utc_timestamp("time", F.current_timezone())
    marks = [_header(FROM_HEADER, F.col("queue"))]
    marks.append(_header(TIME_HEADER, F.date_format(utc, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")))
    renewed = F.col("key").isNull() & (F.col("message_id") != "")
    headers = F.concat(F.coalesce(kept, F.array().cast(_HEADERS)), F.array(*marks))
    headers = F.when(renewed, F.concat(headers, F.array(_header(ID_HEADER, F.col("message_id"))))).otherwise(headers)
    return (
        rows.where("body is not null")
        .orderBy(*_order())
        .select(
            F.col("body").alias("value"),
            "key",
            F.col("target").alias("queue"),
            headers.alias("headers"),
            F.coalesce("high_priority", F.lit(False)).alias("high_priority"),
        )
    )


_HEADERS: Final = "array<struct<key:string,value:binary>>"


def _header(name: str, value: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


# --- record of a run ------------------------------------------------------------------------------------------------


def _save(record: Path, selection: _Selection, chosen: Mapping[str, str]) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    unfinished = record.with_name(f".{record.name}-{uuid.uuid4().hex}")
    content = {"format": _FORMAT, "options": dict(chosen), **asdict(selection)}
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(record)


def _recorded(record: Path, chosen: Mapping[str, str]) -> _Selection:
    """Return the selection of an earlier run. Raises `ConfigError` if it had other options, and `DataDirDamaged`."""
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(content["format"])
        former: dict[str, str] = content["options"]
        selection = _Selection(content["queues"], content["timeline"], int(content["width"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.DataDirDamaged(f"cannot read the record {record} of the run: {error}") from error
    for name, value in chosen.items():
        if former.get(name) != value:
            raise errors.ConfigError(
                f"run {record.stem} has {name}={former.get(name)!r}, not {value!r}; "
                "repeat it with its options, or use another name for another replay"
            )
    return selection


def _rows(selection: _Selection) -> list[tuple[str, str, list[tuple[Any, ...]]]]:
    """Names, schemas and rows of the tables."""
    names = ("queue", "target", "messages", "body_bytes", "not_recorded", "new_ids")
    queues = [
        (*(row[name] for name in names), *(_time(row[name] / 1_000_000) for name in ("first", "latest")))
        for row in selection.queues
    ]
    timeline = [(queue, _time(start), messages) for queue, start, messages in selection.timeline]
    return [("queues", _QUEUES, queues), ("timeline", _TIMELINE, timeline)]


def _time(seconds: float) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC)


# --- report ---------------------------------------------------------------------------------------------------------


def _summary(figures: Mapping[str, int], run: str, *, dry: bool) -> str:
    left_out = f"{figures['not_recorded']:,} have no recorded body"
    if dry:
        return f"{figures['messages']:,} messages selected, {left_out}; nothing was published"
    before = f" after {figures['published_before']:,} earlier" if figures["published_before"] else ""
    return (
        f"run {run} published {figures['published']:,}{before} of {figures['messages']:,} selected messages; {left_out}"
    )


def _page(
    history: History, period: Period, where: str, selection: _Selection, figures: Mapping[str, int], *, dry: bool
) -> Page:
    page = Page("Replay", f"{history.data_dir}, {period}" + (f", {where}" if where.strip() else ""))
    names = ("messages", "not_recorded", "new_ids", *(() if dry else ("published", "published_before")))
    page.add(tiles(*((name.replace("_", " "), figures[name]) for name in names)))
    if not selection.queues:
        return page.say("No message matches: widen the period or the condition, or run the broker with history.")
    if figures["not_recorded"]:
        page.say(f"The history has no body of {figures['not_recorded']:,} messages; they are not published.")
    if figures["new_ids"]:
        page.say(
            f"{figures['new_ids']:,} messages get a new id; the header {ID_HEADER} has the original one.", good=True
        )
    sums: dict[str, int] = {}
    for row in selection.queues:
        sums[row["target"]] = sums.get(row["target"], 0) + row["messages"] - row["not_recorded"]
    ranked = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))
    page.add(bars("Messages by destination", "messages", ranked, otherwise="No body is recorded."))
    page.add(lines("Messages by original time", f"messages in {selection.width} s", _curves(selection), times=True))
    columns = ("queue", "target", "messages", "body_bytes", "not_recorded", "new_ids", "first", "latest")
    rows: Sequence[Sequence[object]] = [
        [*(row[name] for name in columns[:-2]), *(_time(row[name] // 1_000_000) for name in ("first", "latest"))]
        for row in selection.queues[:_ROWS]
    ]
    shown = [name.replace("_", " ") for name in columns]
    return page.add(table("Queues", shown, rows, of=len(selection.queues)))


def _curves(selection: _Selection) -> list[Series]:
    """One curve for each of the busiest queues, and one for all others."""
    ranked = list(dict.fromkeys(row["queue"] for row in selection.queues))
    alone = ranked if len(ranked) <= _CURVES else ranked[: _CURVES - 1]
    others = f"{len(ranked) - len(alone)} other queues"
    known: Counter[tuple[str, int]] = Counter()
    for queue, start, messages in selection.timeline:
        known[(queue if queue in alone else others, start)] += messages
    starts = [start for _, start, _ in selection.timeline]
    grid = range(min(starts), max(starts) + 1, selection.width)
    names = alone if len(alone) == len(ranked) else [*alone, others]
    return [Series(name, [(start, float(known[(name, start)])) for start in grid]) for name in names]
