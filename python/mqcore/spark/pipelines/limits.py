"""``limits``: publish rates per client or queue, the effect of a limit, and suggested quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.report import Page, Series, bars, lines, table, tiles
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


def limits(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    by: str = "client",
    window: int = 60,
    limit: int = 0,
    headroom: float = 1.5,
    progress: Progress = unseen,
) -> Outcome:
    """Count the published messages of each key in each window.

    - `by`: key of the counts: ``client`` (name, else id; default), ``id`` or ``queue``.
    - `window`: length of a window in seconds (default 60).
    - `limit`: messages per window of a hypothetical limit, whose rejections are counted (default 0: none).
    - `headroom`: factor for suggested quotas, which are the 99th percentile of a key's windows times it (default 1.5).

    Tables: ``windows`` (key, start, messages, ``body_bytes``) and ``keys``. The history contains accepted messages
    only. Messages that a limit rejected appear only in the broker's metrics.

    Raises `ConfigError`, `DataDirMissing` and `DataDirUnreadable`.
    """
    if by not in _KEYS:
        raise errors.ConfigError(f"by must be one of {', '.join(_KEYS)}, not {by!r}")
    if window < 1 or limit < 0 or headroom < 1:
        raise errors.ConfigError("window must be at least 1 s, limit at least 0, headroom at least 1")
    history, tables = History.of(spark, data_dir), Tables(out, "limits")
    progress("windows", 0, 0)
    windows = tables.write("windows", _windows(history, by, window), files=4)
    progress("keys", 0, 0)
    keys = tables.write("keys", _keys(windows, limit, headroom), files=1)
    progress("report", 0, 0)
    rows = keys.orderBy("messages", "key", ascending=[False, True]).collect()
    figures = {
        "keys": len(rows),
        "messages": sum(row["messages"] for row in rows),
        "refused": sum(row["refused"] for row in rows),
    }
    summary = f"{figures['messages']:,} messages of {figures['keys']:,} keys"
    if limit:
        summary += f"; {limit:,} in {window} s would have rejected {figures['refused']:,}"
    page = _page(history, by, window, limit, windows, rows, figures)
    return Outcome("limits", summary, tables.write_page(page.html()), tables.paths, figures)


def _windows(history: History, by: str, window: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    def filled(name: str) -> Column:
        return F.when(F.col(name) != "", F.col(name))

    chosen = {
        "client": F.coalesce(filled("producer_name"), filled("producer_id"), F.lit("-")),
        "id": F.coalesce(filled("producer_id"), F.lit("-")),
        "queue": F.col("queue"),
    }
    seconds = F.unix_seconds("time")
    return (
        history.steps("time", "kind", "queue", "producer_id", "producer_name", "body_bytes")
        .where("kind = 'produced'")
        .groupBy(
            chosen[by].alias("key"),
            F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(window))).alias("start"),
        )
        .agg(F.count(F.lit(1)).alias("messages"), F.sum("body_bytes").alias("body_bytes"))
    )


def _keys(windows: DataFrame, limit: int, headroom: float) -> DataFrame:
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
            F.sum(over).cast("long").alias("refused"),
            F.count_if(over > 0).alias("windows_over"),
        )
        .select(
            "key",
            "windows",
            "messages",
            "body_bytes",
            "most",
            F.col("quantiles")[0].alias("p50"),
            F.col("quantiles")[1].alias("p99"),
            "refused",
            "windows_over",
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
) -> Page:
    from pyspark.sql import functions as F  # noqa: N812

    page = Page("Limits", f"{history.data_dir}, by {by} and {window} s")
    page.add(tiles(*figures.items()))
    if not rows:
        return page.say("The history is empty: no message was published, or the broker runs without history.")
    busiest = [row["key"] for row in rows[:_CURVES]]
    span = windows.agg(F.unix_seconds(F.min("start")), F.unix_seconds(F.max("start"))).first()
    assert span is not None
    first, last = int(span[0]), int(span[1])
    width = window * max(1, -(-(last - first + window) // (window * _POINTS)))
    at = (F.floor((F.unix_seconds("start") - first) / width) * width + first).cast("long").alias("at")
    points = windows.where(F.col("key").isin(*busiest)).groupBy("key", at).agg(F.max("messages").alias("n")).collect()
    known = {(row["key"], row["at"]): row["n"] for row in points}
    grid = range(first, last + 1, width)
    curves = [Series(key, [(moment, float(known.get((key, moment), 0))) for moment in grid]) for key in busiest]
    if limit:
        curves.append(Series(f"limit {limit:,}", [(first, float(limit)), (max(last, first + 1), float(limit))]))
    page.add(lines("Use", f"messages in {window} s", curves, times=True))
    if limit:
        refused = [(row["key"], row["refused"]) for row in rows if row["refused"]]
        refused.sort(key=lambda pair: -pair[1])
        page.add(
            bars(
                "Messages that would have been rejected",
                "messages",
                refused,
                otherwise="No message would have been rejected.",
            )
        )
    columns = ("key", "windows", "messages", "body_bytes", "most", "p50", "p99", "refused", "suggested")
    page.add(table("Keys", columns, [[row[name] for name in columns] for row in rows[:_ROWS]], of=len(rows)))
    return page
