"""``limits``: publish rates per client or queue, the effect of a limit, and suggested quotas."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.refusals import Refusals
from mqcore.spark.pipelines.report import Page, Series, bars, lines, others, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["limits"]

_KEYS: Final = ("client", "id", "queue")
_ROWS: Final = 100
_CURVES: Final = 6
_POINTS: Final = 240
_REFUSING: Final = (("queue", "queues"), ("guard", "guards"), ("throttr", "Throttr"))
_REFUSALS: Final = "by string, subject string, limits string, refused long"
_THROTTR: Final = (
    "key string, kind string, left long, expires_in_seconds double, reads_per_minute long, writes_per_minute long"
)
_NO_ADMIN: Final = (
    "The history does not have messages that the broker refused. To see refusals by publish_limit and message_limit, "
    "guards and Throttr keys, set the option admin to the URL of the broker's admin side."
)


def limits(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    by: str = "client",
    window: int = 60,
    limit: int = 0,
    headroom: float = 1.5,
    admin: str = "",
    progress: Progress = unseen,
) -> Outcome:
    """Count the published messages of each key in each window, and what limits refused.

    - `by`: key of the counts: ``client`` (name, else id; default), ``id`` or ``queue``.
    - `window`: length of a window in seconds (default 60).
    - `limit`: messages per window of a hypothetical limit, whose rejections are counted (default 0: none).
    - `headroom`: factor for suggested quotas, which are the 99th percentile of a key's windows times it (default 1.5).

    - `admin`: URL of the broker's admin side, which counts refusals by queues, guards and Throttr since its start.

    Tables: ``windows`` (key, start, messages, ``body_bytes``), ``keys``, ``refusals`` and ``throttr`` (keys of the
    limiter). The history contains accepted messages, and copies that a queue refused. Other refusals are known to a
    running broker only, so without `admin` the last two tables are empty.

    Raises `ConfigError`, `DataDirMissing`, `DataDirUnreadable`, and with `admin` what `mqcore.admin.queues` raises.
    """
    if by not in _KEYS:
        raise errors.ConfigError(f"by must be one of {', '.join(_KEYS)}, not {by!r}")
    if window < 1 or limit < 0 or headroom < 1:
        raise errors.ConfigError("window must be at least 1 s, limit at least 0, headroom at least 1")
    history, tables = History.of(spark, data_dir), Tables(out, "limits")
    refusals = None
    if admin:
        progress("refusals", 0, 0)
        refusals = Refusals.of(admin)
    rows_of_refusals = [] if refusals is None else list(refusals.rows)
    tables.write("refusals", spark.createDataFrame(rows_of_refusals, _REFUSALS), files=1)
    throttr = [] if refusals is None else [astuple(key) for key in refusals.keys]
    tables.write("throttr", spark.createDataFrame(throttr, _THROTTR), files=1)
    with history.by_message():
        progress("windows", 0, 0)
        windows = tables.write("windows", _windows(history, by, window), files=4)
        progress("keys", 0, 0)
        keys = tables.write("keys", _keys(windows, _refused(history, by), limit, headroom), files=1)
        progress("report", 0, 0)
        rows = keys.orderBy("messages", "key", ascending=[False, True]).collect()
        figures = {
            "keys": len(rows),
            "messages": sum(row["messages"] for row in rows),
            "over": sum(row["over"] for row in rows),
            "refused_copies": sum(row["refused_copies"] for row in rows),
        }
        if refusals is not None:
            figures |= {f"refused_by_{by}s": refusals.total(by) for by in ("queue", "guard")}
            figures |= {"refused_by_throttr": refusals.total("throttr"), "throttr_keys": refusals.keys_total}
        page = _page(history, by, window, limit, windows, rows, figures, refusals)
    summary = f"{figures['messages']:,} messages of {figures['keys']:,} keys"
    if limit:
        summary += f"; {limit:,} in {window} s would have rejected {figures['over']:,}"
    if refusals is not None:
        refused = [f"{refusals.total(by):,} by {name}" for by, name in _REFUSING]
        summary += f"; refused since the broker started: {', '.join(refused)}"
    elif figures["refused_copies"]:
        summary += f"; queues refused {figures['refused_copies']:,} copies"
    return Outcome("limits", summary, tables.write_page(page.html()), tables.paths, figures)


def _key(by: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    def filled(name: str) -> Column:
        return F.when(F.col(name) != "", F.col(name))

    chosen = {
        "client": F.coalesce(filled("producer_name"), filled("producer_id"), F.lit("-")),
        "id": F.coalesce(filled("producer_id"), F.lit("-")),
        "queue": F.col("queue"),
    }
    return chosen[by].alias("key")


def _refused(history: History, by: str) -> DataFrame:
    """Numbers of copies that a queue refused because of a limit: dropped without an attempt to deliver them."""
    from pyspark.sql import functions as F  # noqa: N812

    return (
        history.steps("kind", "queue", "reason", "last", "attempt", "producer_id", "producer_name")
        .where("kind = 'dropped' and reason = 'limit' and last and coalesce(attempt, 0) = 0")
        .groupBy(_key(by))
        .agg(F.count(F.lit(1)).alias("refused_copies"))
    )


def _windows(history: History, by: str, window: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    seconds = F.unix_seconds("time")
    return (
        history.steps("time", "kind", "queue", "producer_id", "producer_name", "body_bytes")
        .where("kind = 'produced'")
        .groupBy(
            _key(by),
            F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(window))).alias("start"),
        )
        .agg(F.count(F.lit(1)).alias("messages"), F.sum("body_bytes").alias("body_bytes"))
    )


def _keys(windows: DataFrame, refused: DataFrame, limit: int, headroom: float) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    over = F.greatest(F.col("messages") - limit, F.lit(0)) if limit else F.lit(0)
    quantiles = F.percentile("messages", F.array(F.lit(0.5), F.lit(0.99)))
    return (
        windows.groupBy("key")
        .agg(
            F.count(F.lit(1)).alias("windows"),
            F.sum("messages").alias("messages"),
            F.sum("body_bytes").alias("body_bytes"),
            F.max("messages").alias("most"),
            quantiles.alias("quantiles"),
            F.sum(over).cast("long").alias("over"),
            F.count_if(over > 0).alias("windows_over"),
        )
        .join(refused, "key", "left")
        .select(
            "key",
            "windows",
            "messages",
            "body_bytes",
            "most",
            F.col("quantiles")[0].alias("p50"),
            F.col("quantiles")[1].alias("p99"),
            "over",
            "windows_over",
            F.coalesce("refused_copies", F.lit(0)).alias("refused_copies"),
            F.ceil(F.col("quantiles")[1] * headroom).alias("suggested"),
        )
    )


def _page(
    history: History,
    by: str,
    window: int,
    limit: int,
    windows: DataFrame,
    rows: list[Any],
    figures: dict[str, int],
    refusals: Refusals | None,
) -> Page:
    page = Page("Limits", f"{history.data_dir}, by {by} and {window} s")
    shown = {name: count for name, count in figures.items() if name != "over" or limit}
    page.add(tiles(*((name.replace("_", " "), count) for name, count in shown.items())))
    if refusals is None:
        page.say(_NO_ADMIN, good=True)
    if not rows:
        page.say("The history is empty: no message was published.")
    else:
        _plot(page, window, limit, windows, [row["key"] for row in rows])
    if limit and rows:
        over = sorted(((row["key"], row["over"]) for row in rows if row["over"]), key=lambda pair: -pair[1])
        none = "No message would have been rejected."
        page.add(bars("Messages that would have been rejected", "messages", over, otherwise=none))
    if refusals is not None:
        named = [(f"{subject}: {limits}", count) for _, subject, limits, count in refusals.rows]
        page.add(bars("Refused since the broker started", "refusals", named, otherwise="The broker refused nothing."))
        head = ("by", "subject", "limits", "refused")
        page.add(table("Refusals", head, refusals.rows[:_ROWS], of=len(refusals.rows)))
        keys = ("key", "kind", "left", "expires in seconds", "reads per minute", "writes per minute")
        body = [astuple(key) for key in refusals.keys[:_ROWS]]
        page.add(table("Throttr keys", keys, body, of=refusals.keys_total))
    if rows:
        names = (
            "key",
            "windows",
            "messages",
            "body_bytes",
            "most",
            "p50",
            "p99",
            "refused_copies",
            "over",
            "suggested",
        )
        columns = [name for name in names if name != "over" or limit]
        used = [[row[name] for name in columns] for row in rows[:_ROWS]]
        page.add(table("Keys", [name.replace("_", " ") for name in columns], used, of=len(rows)))
    return page


def _plot(page: Page, window: int, limit: int, windows: DataFrame, keys: list[str]) -> None:
    """Add curves of the busiest keys, and the largest use of the others."""
    from pyspark.sql import functions as F  # noqa: N812

    busiest = keys[:_CURVES]
    span = windows.agg(F.unix_seconds(F.min("start")), F.unix_seconds(F.max("start"))).first()
    assert span is not None
    first, last = int(span[0]), int(span[1])
    width = window * max(1, -(-(last - first + window) // (window * _POINTS)))
    at = (F.floor((F.unix_seconds("start") - first) / width) * width + first).cast("long").alias("at")
    curve = F.when(F.col("key").isin(*busiest), F.col("key")).alias("curve")
    points = windows.groupBy(curve, at).agg(F.max("messages").alias("n")).collect()
    known = {(row["curve"], row["at"]): row["n"] for row in points}
    grid = range(first, last + 1, width)
    names: list[str | None] = [*busiest, *([None] if len(keys) > len(busiest) else [])]
    rest = f"most of {others(len(keys) - len(busiest), 'key')}"
    curves = [
        Series(name or rest, [(moment, float(known.get((name, moment), 0))) for moment in grid]) for name in names
    ]
    if limit:
        curves.append(Series(f"limit {limit:,}", [(first, float(limit)), (max(last, first + 1), float(limit))]))
    page.add(lines("Use", f"messages in {window} s", curves, times=True))
