"""``cost``: bytes, requests, redeliveries and storage by queue and client, with shares and prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.moments import Period
from mqcore.spark.pipelines.report import Page, Series, bars, lines, table, tiles
from mqcore.spark.pipelines.storage import Storage, divided, stored
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["COUNTED", "UNKNOWN", "cost"]

UNKNOWN: Final = "-"
"""Row for what belongs to no queue, or to a client that the history does not name."""
COUNTED: Final = (
    *("published", "published_bytes", "delivered", "delivered_bytes"),
    *("redelivered", "redelivered_bytes", "acked", "nacked"),
)
"""Columns that are sums of events and their bytes. Bytes are headers and bodies."""

_BYTES_PER_GB: Final = 1_000_000_000
_REQUESTS_PER_PRICE: Final = 1_000_000
_ROWS: Final = 100
_CURVES: Final = 6
_SUMS: Final = (
    ", ".join(f"{name} long" for name in COUNTED)
    + ", requests long, bytes long, archive_bytes long, journal_bytes long, storage_bytes long, "
    "bytes_share double, requests_share double, storage_share double, "
    "traffic_cost double, request_cost double, storage_cost double, cost double, cost_share double"
)


@dataclass(frozen=True)
class _Prices:
    gb: float
    million: float
    gb_month: float

    @property
    def given(self) -> bool:
        return bool(self.gb or self.million or self.gb_month)


def cost(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    since: str = "",
    until: str = "",
    price_per_gb: float = 0.0,
    price_per_million: float = 0.0,
    price_per_gb_month: float = 0.0,
    currency: str = "",
    progress: Progress = unseen,
) -> Outcome:
    """Count bytes, requests and deliveries of a period, and the storage of today, by queue and client.

    - `since`, `until`: ISO 8601 in UTC, or a time before now such as ``30d``. Default: the whole history.
    - `price_per_gb`: price of 10^9 published or delivered bytes (default 0).
    - `price_per_million`: price of a million requests and deliveries (default 0).
    - `price_per_gb_month`: price of storing 10^9 bytes for a month (default 0).
    - `currency`: name of the currency in the report.

    A request is a publish, an acknowledgement or a negative acknowledgement. Bytes are headers and bodies. Storage is
    the size of the files: archive files by queue; a shard's journal is divided among its queues by the bytes of the
    messages that are still in it, and an archive on object storage by the bytes that were published. A client's share
    of a queue's storage is its share of the bytes published there.

    Tables: ``use`` (by day, queue and client), ``queues`` and ``clients``.

    Raises `ConfigError`, `DataDirMissing` and `DataDirUnreadable`.
    """
    prices = _Prices(price_per_gb, price_per_million, price_per_gb_month)
    for name, value in (("price_per_gb", prices.gb), ("price_per_million", prices.million)):
        _check_price(name, value)
    _check_price("price_per_gb_month", prices.gb_month)
    period = Period.between(since, until)
    history, tables = History.of(spark, data_dir), Tables(out, "cost")
    progress("use", 0, 0)
    use = tables.write("use", _use(history, period), files=4)
    progress("storage", 0, 0)
    storage = stored(data_dir)
    with history.by_message():
        journals = _journal_weights(history)
    produced = _produced(history)
    storage = storage.with_objects_of({queue: sum(of.values()) for queue, of in produced.items()})
    progress("shares", 0, 0)
    queues = _priced(_by(use, "queue"), *_storage_of_queues(storage, journals), prices)
    clients = _priced(_by(use, "client"), *_storage_of_clients(storage, journals, produced), prices)
    for name, column, rows in (("queues", "queue", queues), ("clients", "client", clients)):
        tables.write(name, spark.createDataFrame(_tuples(rows), f"{column} string, {_SUMS}"), files=1)
    progress("report", 0, 0)
    figures = _figures(queues, storage)
    page = _page(history, period, prices, currency, use, queues, clients, figures)
    details = {"queues": [dict(row) for row in queues], "clients": [dict(row) for row in clients]}
    summary = _summary(figures, prices, currency)
    return Outcome("cost", summary, tables.write_page(page.html()), tables.paths, figures, details=details)


def _check_price(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise errors.ConfigError(f"{name} must be at least 0, not {value}")


def _use(history: History, period: Period) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    names = ("time", "kind", "queue", "attempt", "header_bytes", "body_bytes")
    people = [f"{who}_{what}" for who in ("producer", "consumer") for what in ("id", "name")]
    rows = period.of(history.steps(*names, *people)).where(
        F.col("kind").isin("produced", "delivered", "acked", "nacked")
    )
    client = F.when(F.col("kind") == "produced", _client("producer")).otherwise(_client("consumer"))
    size = F.coalesce("header_bytes", F.lit(0)) + F.coalesce("body_bytes", F.lit(0))

    def of(condition: Column, name: str) -> list[Column]:
        return [
            F.count_if(condition).alias(name),
            F.coalesce(F.sum(F.when(condition, size)), F.lit(0)).alias(f"{name}_bytes"),
        ]

    delivered = F.col("kind") == "delivered"
    return (
        rows.groupBy(F.date_trunc("day", "time").alias("day"), "queue", client.alias("client"))
        .agg(
            *of(F.col("kind") == "produced", "published"),
            *of(delivered, "delivered"),
            *of(delivered & (F.col("attempt") > 1), "redelivered"),
            F.count_if(F.col("kind") == "acked").alias("acked"),
            F.count_if(F.col("kind") == "nacked").alias("nacked"),
        )
        .orderBy("day", "queue", "client")
    )


def _client(who: str) -> Column:
    """The name of a client, else its id."""
    from pyspark.sql import functions as F  # noqa: N812

    def filled(name: str) -> Column:
        return F.when(F.col(name) != "", F.col(name))

    return F.coalesce(filled(f"{who}_name"), filled(f"{who}_id"), F.lit(UNKNOWN))


def _journal_weights(history: History) -> dict[int, dict[str, int]]:
    """Bytes of the messages in the journal of each shard, by queue: those that wait, or are not archived yet."""
    from pyspark.sql import functions as F  # noqa: N812

    cut = F.lit(0).cast("long")
    for shard, sequence in history.cuts.items():
        cut = F.when(F.col("shard") == shard, F.lit(sequence).cast("long")).otherwise(cut)
    size = F.coalesce("header_bytes", F.lit(0)) + F.coalesce("body_bytes", F.lit(0))
    lives = (
        history.steps("shard", "sequence", "number", "queue", "kind", "last", "header_bytes", "body_bytes")
        .where("queue is not null")
        .groupBy("shard", "number", "queue")
        .agg(
            F.max(size).alias("size"),
            F.max(F.coalesce("last", F.lit(False))).alias("left"),
            F.max(F.when(F.col("kind").isin("produced", "arrived"), F.col("sequence"))).alias("entered"),
        )
    )
    there = lives.where(~F.col("left") | (F.col("entered") >= cut))
    found: dict[int, dict[str, int]] = {}
    for row in there.groupBy("shard", "queue").agg(F.sum("size").alias("size")).collect():
        found.setdefault(row["shard"], {})[row["queue"]] = row["size"]
    return found


def _produced(history: History) -> dict[str, dict[str, int]]:
    """Bytes that each client published to each queue, in the whole history."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = history.steps("kind", "queue", "producer_id", "producer_name", "header_bytes", "body_bytes")
    size = F.coalesce("header_bytes", F.lit(0)) + F.coalesce("body_bytes", F.lit(0))
    sums = (
        rows.where("kind = 'produced'")
        .groupBy("queue", _client("producer").alias("client"))
        .agg(F.sum(size).alias("n"))
    )
    found: dict[str, dict[str, int]] = {}
    for row in sums.collect():
        found.setdefault(row["queue"], {})[row["client"]] = row["n"]
    return found


def _storage_of_queues(
    storage: Storage, journals: Mapping[int, Mapping[str, int]]
) -> tuple[Counter[str], Counter[str]]:
    """Bytes in the archive and in journals by queue; `UNKNOWN` has the rest, so that all add up to the directory."""
    archive: Counter[str] = Counter(storage.archive)
    in_journals: Counter[str] = Counter()
    for shard, size in storage.journals.items():
        in_journals.update(divided(size, journals.get(shard, {})) or {UNKNOWN: size})
    in_journals[UNKNOWN] += storage.shared
    archive[UNKNOWN] += storage.objects
    return archive, in_journals


def _storage_of_clients(
    storage: Storage, journals: Mapping[int, Mapping[str, int]], produced: Mapping[str, Mapping[str, int]]
) -> tuple[Counter[str], Counter[str]]:
    found: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for into, by_queue in zip(found, _storage_of_queues(storage, journals), strict=True):
        for queue, size in by_queue.items():
            into.update(divided(size, produced.get(queue, {})) or {UNKNOWN: size})
    return found


def _by(use: DataFrame, column: str) -> dict[str, dict[str, int]]:
    from pyspark.sql import functions as F  # noqa: N812

    rows = use.groupBy(column).agg(*(F.sum(name).alias(name) for name in COUNTED)).collect()
    return {row[column]: {name: int(row[name]) for name in COUNTED} for row in rows}


def _priced(
    use: Mapping[str, Mapping[str, int]], archive: Counter[str], journals: Counter[str], prices: _Prices
) -> list[dict[str, Any]]:
    """Rows with sums, shares and prices; the most expensive first, or those with most bytes."""
    rows: list[dict[str, Any]] = []
    for name in use.keys() | {key for key, size in (archive + journals).items() if size}:
        row: dict[str, Any] = {"name": name, **{column: use.get(name, {}).get(column, 0) for column in COUNTED}}
        row["requests"] = row["published"] + row["acked"] + row["nacked"]
        row["bytes"] = row["published_bytes"] + row["delivered_bytes"]
        row["archive_bytes"], row["journal_bytes"] = archive[name], journals[name]
        row["storage_bytes"] = archive[name] + journals[name]
        row["traffic_cost"] = row["bytes"] / _BYTES_PER_GB * prices.gb
        row["request_cost"] = (row["requests"] + row["delivered"]) / _REQUESTS_PER_PRICE * prices.million
        row["storage_cost"] = row["storage_bytes"] / _BYTES_PER_GB * prices.gb_month
        row["cost"] = row["traffic_cost"] + row["request_cost"] + row["storage_cost"]
        rows.append(row)
    for share, column in (("bytes", "bytes"), ("requests", "requests"), ("storage", "storage_bytes"), ("cost", "cost")):
        total = sum(row[column] for row in rows)
        for row in rows:
            row[f"{share}_share"] = row[column] / total if total else 0.0
    return sorted(rows, key=lambda row: (-row["cost"], -row["bytes"], -row["storage_bytes"], row["name"]))


def _tuples(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    names = [part.split()[0] for part in _SUMS.split(", ")]
    return [(row["name"], *(row[name] for name in names)) for row in rows]


# --- report ---------------------------------------------------------------------------------------------------------


def _figures(queues: Sequence[Mapping[str, Any]], storage: Storage) -> dict[str, int | float]:
    names = ("published", "delivered", "redelivered", "requests")
    figures: dict[str, int | float] = {name: sum(row[name] for row in queues) for name in names}
    for name in ("published_bytes", "delivered_bytes", "redelivered_bytes"):
        figures[name] = sum(row[name] for row in queues)
    figures["archive_bytes"] = sum(storage.archive.values()) + storage.objects
    figures["journal_bytes"] = storage.total - figures["archive_bytes"]
    figures["cost"] = sum(row["cost"] for row in queues)
    return figures


def _money(value: float, currency: str) -> str:
    return f"{value:,.2f} {currency}".rstrip()


def _summary(figures: Mapping[str, int | float], prices: _Prices, currency: str) -> str:
    text = (
        f"{figures['published']:,} messages published and {figures['delivered']:,} delivered, "
        f"{figures['redelivered_bytes']:,} bytes redelivered, "
        f"{figures['archive_bytes'] + figures['journal_bytes']:,} bytes stored"
    )
    return f"{text}; cost {_money(figures['cost'], currency)}" if prices.given else text


def _page(
    history: History,
    period: Period,
    prices: _Prices,
    currency: str,
    use: DataFrame,
    queues: Sequence[Mapping[str, Any]],
    clients: Sequence[Mapping[str, Any]],
    figures: Mapping[str, int | float],
) -> Page:
    page = Page("Cost", f"{history.data_dir}, {period}; storage of today")
    shown = ("published_bytes", "delivered_bytes", "redelivered_bytes", "requests", "archive_bytes", "journal_bytes")
    page.add(tiles(*((name.replace("_", " "), figures[name]) for name in shown)))
    if prices.given:
        page.say(
            f"Cost {_money(figures['cost'], currency)}: traffic of the period, and storage for a month at its size of "
            "today.",
            good=True,
        )
    if not figures["published"] and not figures["delivered"]:
        page.say("No message was published or delivered in the period, or the broker runs without history.")
    unit, column = (currency or "price", "cost") if prices.given else ("bytes", "bytes")
    for what, rows in (("queue", queues), ("client", clients)):
        values = [(row["name"], row[column]) for row in rows if row[column]]
        page.add(bars(f"{column.capitalize()} by {what}", unit, values, otherwise="There is none."))
    redelivered = sorted(
        ((row["name"], row["redelivered_bytes"]) for row in queues if row["redelivered_bytes"]),
        key=lambda pair: (-pair[1], pair[0]),
    )
    page.add(bars("Redelivered bytes by queue", "bytes", redelivered, otherwise="No message was redelivered."))
    stored_bytes = sorted(
        ((row["name"], row["storage_bytes"]) for row in queues if row["storage_bytes"]),
        key=lambda pair: (-pair[1], pair[0]),
    )
    page.add(bars("Storage by queue", "bytes", stored_bytes, otherwise="Nothing is stored."))
    page.add(lines("Bytes by day", "bytes", _curves(use, queues), times=True))
    columns = (
        *("published", "published_bytes", "delivered", "delivered_bytes", "redelivered_bytes", "requests"),
        *("archive_bytes", "journal_bytes"),
    )
    ending = ("traffic_cost", "request_cost", "storage_cost", "cost") if prices.given else ()
    shares = ("bytes_share", "storage_share", *(("cost_share",) if prices.given else ()))
    for title, what, rows in (("Queues", "queue", queues), ("Clients", "client", clients)):
        body = [
            [row["name"], *(row[name] for name in (*columns, *ending)), *(_percent(row[name]) for name in shares)]
            for row in rows[:_ROWS]
        ]
        heading = [what, *(name.replace("_", " ") for name in (*columns, *ending, *shares))]
        page.add(table(title, heading, body, of=len(rows)))
    return page


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _curves(use: DataFrame, queues: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Bytes of each day: a curve for each of the largest queues, and one for all others."""
    from pyspark.sql import functions as F  # noqa: N812

    ranked = [row["name"] for row in sorted(queues, key=lambda row: (-row["bytes"], row["name"])) if row["bytes"]]
    alone = ranked if len(ranked) <= _CURVES else ranked[: _CURVES - 1]
    others = f"{len(ranked) - len(alone)} other queues"
    size = F.sum(F.col("published_bytes") + F.col("delivered_bytes")).alias("n")
    known: Counter[tuple[str, int]] = Counter()
    for row in use.groupBy("queue", F.unix_seconds("day").alias("at")).agg(size).collect():
        known[(row["queue"] if row["queue"] in alone else others, row["at"])] += row["n"]
    days = sorted({at for _, at in known})
    grid = range(days[0], days[-1] + 1, 86_400) if days else range(0)
    names = alone if len(alone) == len(ranked) else [*alone, others]
    return [Series(name, [(day, float(known[(name, day)])) for day in grid]) for name in names]
