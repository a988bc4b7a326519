"""``quality``: schemas of JSON bodies by queue, drift between two periods, and violations of given rules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.destinations import queue_name
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.json_profile import FIELD_COLUMNS, Field, Profile, drift_of, fields_of, schema_of
from mqcore.spark.pipelines.json_rules import Rule, parse
from mqcore.spark.pipelines.json_shape import KINDS, decoded, values
from mqcore.spark.pipelines.moments import Period
from mqcore.spark.pipelines.report import Page, Series, bars, lines, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["quality"]

NOW: Final = "current"
"""Name of the examined period in tables."""
BEFORE: Final = "baseline"
"""Name of the period that it is compared with."""

_OWN: Final = ("queue", "time", "shard", "number", "message_id")
_VALUES: Final = (
    "queue string, period string, shard int, number long, message_id string, path string, type string, "
    "amount double, text string"
)
_VIOLATING: Final = (
    "queue string, time timestamp, shard int, number long, message_id string, rule string, path string, text string, "
    "beginning string"
)
_FIELDS: Final = (
    "queue string, period string, path string, types string, `of` long, present long, missing_rate double, nulls long, "
    "null_rate double, different long, least double, greatest double, mean double, deviation double, "
    "shortest long, longest long"
)
_DRIFT: Final = "queue string, path string, what string, before string, now string, distance double"
_SCHEMAS: Final = "queue string, schema string"
_QUANTILES: Final = 100
_FEW: Final = 50
"""Number of different values up to which a field's values are counted one by one."""
_BEGINNING: Final = 200
_SAMPLES: Final = 3
_ROWS: Final = 200
_CHARTS: Final = 4


def quality(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    queue: str = "",
    period: str = "",
    baseline: str = "",
    schema: str = "",
    moved: float = 0.2,
    fields: int = 500,
    progress: Progress = unseen,
) -> Outcome:
    """Infer the schema of the JSON bodies of each queue, compare two periods, and check bodies with rules.

    - `queue`: a queue such as ``orders/1``. Default: all.
    - `period`: examined period as ``FROM/UNTIL``: ISO 8601 in UTC, or times before now such as ``7d/``. Default:
      everything, or everything after the baseline.
    - `baseline`: period to compare with. Default: none, and no drift.
    - `schema`: a file with a JSON Schema, a msgspec type as ``MODULE:TYPE``, or pairs ``orders/1=order.json,...``.
    - `moved`: distance of two distributions that counts as drift, from 0 to 1 (default 0.2).
    - `fields`: maximum number of fields per queue, most frequent first (default 500).

    Tables: ``bodies`` (numbers by kind), ``fields`` (profiles), ``schemas`` (inferred JSON Schemas), ``drift``,
    ``violations`` (by queue, rule and path) and ``violating`` (one row per violation). The outcome is not ok if a body
    violates a rule.

    Raises `ConfigError`, `DataDirMissing` and `DataDirUnreadable`.
    """
    from pyspark import StorageLevel

    if not 0 < moved < 1 or fields < 1:
        raise errors.ConfigError("moved must be between 0 and 1, fields at least 1")
    periods, rules = _Periods.parse(period, baseline), parse(schema)
    wanted = queue_name("queue", queue).lower() if queue else ""
    history, tables = History.of(spark, data_dir), Tables(out, "quality")
    messages = _messages(history, wanted, periods)
    progress("values", 0, 0)
    found = messages.mapInArrow(_read, _VALUES).persist(StorageLevel.DISK_ONLY)
    try:
        bodies = tables.write("bodies", _bodies(found), files=1).collect()
        samples = _undecodable(found)
        progress("fields", 0, 0)
        profiles, left_out = _profiles(found, fields)
    finally:
        found.unpersist()
    rows = [each.row(*key) for key, profile in sorted(profiles.items()) for _, each in sorted(profile.items())]
    tables.write("fields", spark.createDataFrame(rows, _FIELDS), files=1)
    schemas = {name: schema_of(profile) for (name, of), profile in sorted(profiles.items()) if of == NOW}
    pairs = [(name, json.dumps(found_schema)) for name, found_schema in schemas.items()]
    tables.write("schemas", spark.createDataFrame(pairs, _SCHEMAS), files=1)
    drift = _drift(profiles, moved) if periods.baseline is not None else []
    tables.write("drift", spark.createDataFrame([tuple(row.values()) for row in drift], _DRIFT), files=1)
    progress("rules", 0, 0)
    violations = _check(spark, tables, messages, rules)
    progress("report", 0, 0)
    figures = _figures(bodies, profiles, left_out, drift, violations)
    page = _page(history, periods, rules, figures, bodies, profiles, drift, violations, samples)
    details = {"schemas": schemas, "drift": drift, "violations": [_plain(row) for row in violations.groups]}
    return Outcome(
        "quality",
        _summary(figures, periods, rules),
        tables.write_page(page.html()),
        tables.paths,
        figures,
        ok=not violations.messages,
        details=details,
    )


@dataclass(frozen=True)
class _Periods:
    """The examined period, and the one to compare with."""

    now: Period
    baseline: Period | None

    @classmethod
    def parse(cls, period: str, baseline: str) -> _Periods:
        before = Period.parse("baseline", baseline) if baseline else None
        if period:
            now = Period.parse("period", period)
        else:
            if before is not None and before.until is None:
                raise errors.ConfigError("baseline has no end; add it, or set period to the time to compare it with")
            now = Period(None if before is None else before.until, None)
        if before is not None and _overlap(before, now):
            raise errors.ConfigError(f"period {now} and baseline {before} overlap; choose separate times")
        return cls(now, before)


def _overlap(one: Period, two: Period) -> bool:
    def before(end: int | None, start: int | None) -> bool:
        return end is not None and start is not None and end <= start

    return not before(one.until, two.since) and not before(two.until, one.since)


def _messages(history: History, queue: str, periods: _Periods) -> DataFrame:
    """Messages of both periods with ``period`` and the body. Dead letters and moved messages are not counted again."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = history.messages(*_OWN, "kind", "body").where("kind = 'produced'").drop("kind")
    if queue:
        rows = rows.where(F.lower("queue") == queue)
    name, condition = F.when(periods.now.holds(), NOW), periods.now.holds()
    if periods.baseline is not None:
        name = name.when(periods.baseline.holds(), BEFORE)
        condition = condition | periods.baseline.holds()
    return rows.where(condition).withColumn("period", name)


def _read(batches: Iterator[Any]) -> Iterator[Any]:
    """Rows of `_VALUES`: one for each body with an empty path and its kind, and one for each value of a JSON body."""
    import pyarrow as pa

    names = ("queue", "period", "shard", "number", "message_id", "path", "type", "amount", "text")
    kinds = (pa.string(), pa.string(), pa.int32(), pa.int64(), pa.string(), pa.string(), pa.string())
    schema = pa.schema(list(zip(names, (*kinds, pa.float64(), pa.string()), strict=True)))
    for batch in batches:
        columns: list[list[Any]] = [[] for _ in names]

        def add(*row: Any, into: list[list[Any]] = columns) -> None:
            for column, value in zip(into, row, strict=True):
                column.append(value)

        read = (batch.column(name).to_pylist() for name in ("queue", "period", *_OWN[2:], "body"))
        for queue, period, shard, number, message_id, body in zip(*read, strict=True):
            kind, content = decoded(body)
            is_json = kind in {"object", "json"}
            shown = None if is_json or body is None else _beginning(body)
            add(queue, period, shard, number, message_id, "", kind, None, shown)
            for value in values(content) if is_json else ():
                add(queue, period, None, None, None, *value)
        arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _beginning(body: bytes) -> str:
    try:
        return body.decode("utf-8")[:_BEGINNING]
    except UnicodeDecodeError:
        return body[: _BEGINNING // 4].hex()


def _bodies(found: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    kinds = found.where("path = ''").groupBy("queue", "period", F.col("type").alias("what"))
    return kinds.agg(F.count(F.lit(1)).alias("messages")).orderBy("queue", "period", "what")


def _undecodable(found: DataFrame) -> list[list[str]]:
    """Samples of bodies that are not JSON, for each queue."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    place = F.row_number().over(Window.partitionBy("queue", "type").orderBy("shard", "number"))
    wrong = found.where("path = '' and text is not null and period = 'current'").withColumn("place", place)
    few = wrong.where(F.col("place") <= _SAMPLES).orderBy("queue", "type", "place").limit(_ROWS).collect()
    return [[row["queue"], row["type"], row["message_id"] or "", row["text"]] for row in few]


def _profiles(found: DataFrame, most: int) -> tuple[dict[tuple[str, str], Profile], int]:
    """Return the profiles by queue and period, and the number of fields that were left out."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    inside = found.where("path <> ''")
    parts = F.array(*(F.lit((at + 0.5) / _QUANTILES) for at in range(_QUANTILES)))
    grouped = inside.groupBy("queue", "period", "path", "type").agg(
        F.count(F.lit(1)).alias("messages"),
        F.approx_count_distinct("text", 0.02).alias("different"),
        F.min("amount").alias("least"),
        F.max("amount").alias("greatest"),
        F.avg("amount").alias("mean"),
        F.stddev_samp("amount").alias("deviation"),
        F.percentile_approx("amount", parts, F.lit(10_000)).alias("quantiles"),
    )
    # A field in a map with keys of its own, such as ids, must not fill the driver.
    ranked = inside.groupBy("queue", "path").agg(F.count(F.lit(1)).alias("n"))
    rank = F.row_number().over(Window.partitionBy("queue").orderBy(F.desc("n"), F.length("path"), "path"))
    kept = ranked.withColumn("rank", rank)
    left_out = kept.where(F.col("rank") > most).count()
    kept = kept.where(F.col("rank") <= most).select("queue", "path")
    rows = [row.asDict() for row in grouped.join(kept, ["queue", "path"]).collect()]
    profiles = fields_of(rows)
    _count_values(inside, profiles)
    return profiles, left_out


def _count_values(inside: DataFrame, profiles: Mapping[tuple[str, str], Profile]) -> None:
    """Fill in the counts of fields that have few different values in both periods."""
    from pyspark.sql import functions as F  # noqa: N812

    few = {
        (queue, path)
        for (queue, _), profile in profiles.items()
        for path, each in profile.items()
        if 0 < each.different <= _FEW and set(each.kinds) <= {"string", "boolean", "integer"}
    }
    many = {
        (queue, path)
        for (queue, _), profile in profiles.items()
        for path, each in profile.items()
        if each.different > _FEW or not set(each.kinds) <= {"string", "boolean", "integer"}
    }
    chosen = sorted(few - many)
    if not chosen:
        return
    wanted = inside.sparkSession.createDataFrame(chosen, "queue string, path string")
    counted = (
        inside.where("text is not null")
        .join(F.broadcast(wanted), ["queue", "path"])
        .groupBy("queue", "period", "path", "text")
        .agg(F.count(F.lit(1)).alias("n"))
    )
    for row in counted.collect():
        each = profiles[(row["queue"], row["period"])][row["path"]]
        each.counts = (each.counts or {}) | {row["text"]: row["n"]}


def _drift(profiles: Mapping[tuple[str, str], Profile], moved: float) -> list[dict[str, Any]]:
    found = []
    for queue in sorted({queue for queue, _ in profiles}):
        before, now = profiles.get((queue, BEFORE), {}), profiles.get((queue, NOW), {})
        found += drift_of(queue, before, now, moved)
    return found


# --- rules ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Violations:
    groups: list[Any]
    """Rows of the table ``violations``, most frequent first."""
    samples: list[Any]
    checked: int
    messages: int
    """Messages with at least one violation."""


def _check(spark: SparkSession, tables: Tables, messages: DataFrame, rules: Mapping[str, Rule]) -> _Violations:
    from pyspark import StorageLevel
    from pyspark.sql import functions as F  # noqa: N812

    rows = spark.createDataFrame([], _VIOLATING)
    if rules:
        current = messages.where(F.col("period") == NOW)
        if "" not in rules:
            current = current.where(F.lower("queue").isin(*rules))
        rows = current.mapInArrow(_checking(rules), _VIOLATING)
    rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        found = tables.write("violating", rows.where("rule is not null"), files=4)
        checked = rows.where("rule is null").count()
    finally:
        rows.unpersist()
    groups = found.groupBy("queue", "rule", "path").agg(
        F.count_distinct("shard", "number").alias("messages"),
        F.min("text").alias("example"),
        F.min("time").alias("first"),
        F.max("time").alias("latest"),
    )
    order = (F.desc("messages"), "queue", "path", "rule")
    grouped = tables.write("violations", groups.orderBy(*order), files=1)
    wrong = found.select("shard", "number").distinct().count()
    return _Violations(grouped.orderBy(*order).limit(_ROWS).collect(), _samples(found), checked, wrong)


def _checking(rules: Mapping[str, Rule]) -> Any:
    """A function for tasks: one row without a rule for each message that was checked, and one for each violation."""

    def check(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        checkers = {queue: rule.checker() for queue, rule in rules.items()}
        kinds = (pa.string(), pa.timestamp("us", tz="UTC"), pa.int32(), pa.int64(), *[pa.string()] * 5)
        schema = pa.schema(list(zip((*_OWN, "rule", "path", "text", "beginning"), kinds, strict=True)))
        for batch in batches:
            rows: list[tuple[Any, ...]] = []
            read = (batch.column(name).to_pylist() for name in (*_OWN, "body"))
            for *place, body in zip(*read, strict=True):
                checker = checkers.get(place[0].lower(), checkers.get(""))
                kind, content = decoded(body)
                if checker is None or kind not in {"object", "json"}:
                    continue
                rows.append((*place, None, None, None, None))
                rows += [(*place, *each, _beginning(body)) for each in checker(body, content)]
            columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
            arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return check


def _samples(wrong: DataFrame) -> list[Any]:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    place = F.row_number().over(Window.partitionBy("queue", "rule", "path").orderBy("shard", "number"))
    few = wrong.withColumn("place", place).where(F.col("place") <= _SAMPLES)
    return few.orderBy("queue", "path", "rule", "place").limit(_ROWS).collect()


# --- report ---------------------------------------------------------------------------------------------------------


def _figures(
    bodies: Sequence[Any],
    profiles: Mapping[tuple[str, str], Profile],
    left_out: int,
    drift: Sequence[Any],
    violations: _Violations,
) -> dict[str, int]:
    current = [row for row in bodies if row["period"] == NOW]
    return {
        "messages": sum(row["messages"] for row in current),
        "baseline_messages": sum(row["messages"] for row in bodies if row["period"] == BEFORE),
        "undecodable": sum(row["messages"] for row in current if row["what"] in {"text", "binary"}),
        "not_recorded": sum(row["messages"] for row in current if row["what"] == "not-recorded"),
        "fields": sum(len(profile) for (_, period), profile in profiles.items() if period == NOW),
        "left_out": left_out,
        "drifted": len(drift),
        "checked": violations.checked,
        "violating": violations.messages,
    }


def _summary(figures: Mapping[str, int], periods: _Periods, rules: Mapping[str, Rule]) -> str:
    text = f"{figures['messages']:,} messages, {figures['undecodable']:,} undecodable, {figures['fields']:,} fields"
    if periods.baseline is not None:
        text += f"; {figures['drifted']:,} changes since the baseline"
    if rules:
        text += f"; {figures['violating']:,} of {figures['checked']:,} messages violate their rule"
    return text


def _plain(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = row.asDict()
    return found | {name: found[name].isoformat() for name in ("first", "latest")}


def _page(
    history: History,
    periods: _Periods,
    rules: Mapping[str, Rule],
    figures: Mapping[str, int],
    bodies: Sequence[Any],
    profiles: Mapping[tuple[str, str], Profile],
    drift: Sequence[Mapping[str, Any]],
    violations: _Violations,
    samples: list[list[str]],
) -> Page:
    about = f"{history.data_dir}, {periods.now}"
    page = Page("Quality", about if periods.baseline is None else f"{about}, compared with {periods.baseline}")
    names = ["messages", "undecodable", "not_recorded", "fields"]
    names += ["drifted"] if periods.baseline is not None else []
    names += ["checked", "violating"] if rules else []
    page.add(tiles(*((name.replace("_", " "), figures[name]) for name in names)))
    if not figures["messages"]:
        page.say("No message is in the period: widen it, or run the broker with history.")
    if periods.baseline is not None and not figures["baseline_messages"]:
        page.say("No message is in the baseline, so every field is new.")
    if figures["left_out"]:
        page.say(f"{figures['left_out']:,} rarer fields were left out; the option fields sets the maximum per queue.")
    sums = [(what, sum(r["messages"] for r in bodies if (r["what"], r["period"]) == (what, NOW))) for what in KINDS]
    page.add(bars("Bodies", "messages", [pair for pair in sums if pair[1]], otherwise="There are none."))
    if rules:
        _add_violations(page, violations)
    if periods.baseline is not None:
        _add_drift(page, drift, profiles)
    current = [(key, found) for key, found in sorted(profiles.items()) if key[1] == NOW]
    shown = [each.row(*key) for key, found in current for _, each in sorted(found.items())]
    rows = [[value for place, value in enumerate(row) if place != 1] for row in shown[:_ROWS]]
    columns = [name.replace("_", " ") for name in FIELD_COLUMNS if name != "period"]
    page.add(table("Fields", columns, rows, of=len(shown)))
    if samples:
        page.add(table("Undecodable bodies", ["queue", "kind", "id", "beginning"], samples))
    return page


def _add_violations(page: Page, violations: _Violations) -> None:
    ranked = [(f"{row['queue']} {row['path']}: {row['rule']}", row["messages"]) for row in violations.groups]
    page.add(bars("Violations", "messages", ranked, otherwise="Every checked message fulfills its rule."))
    if violations.groups:
        columns = ("queue", "path", "rule", "messages", "example", "first", "latest")
        page.add(table("Violated rules", columns, [[row[name] for name in columns] for row in violations.groups]))
        shown = ("queue", "message_id", "path", "text", "beginning")
        rows = [[row[name] or "" for name in shown] for row in violations.samples]
        page.add(table("Samples of violations", [name.replace("_", " ") for name in shown], rows))


def _add_drift(page: Page, drift: Sequence[Mapping[str, Any]], profiles: Mapping[tuple[str, str], Profile]) -> None:
    if not drift:
        page.say("Nothing has drifted since the baseline.", good=True)
        return
    moved = [(f"{row['queue']} {row['path']}: {row['what']}", abs(row["distance"])) for row in drift if row["distance"]]
    moved.sort(key=lambda pair: (-pair[1], pair[0]))
    page.add(bars("Distance from the baseline", "of 1", moved, otherwise="No distribution or rate has moved."))
    columns = ("queue", "path", "what", "before", "now", "distance")
    rows = [[row[name] for name in columns] for row in drift[:_ROWS]]
    page.add(table("Drift since the baseline", columns, rows, of=len(drift)))
    charts = [row for row in drift if row["what"] in {"distribution", "length"}]
    charts.sort(key=lambda row: -row["distance"])
    drawn = 0
    for row in charts:
        what = "number" if row["what"] == "distribution" else "length"
        fields = [profiles[(row["queue"], period)][row["path"]] for period in (BEFORE, NOW)]
        if drawn < _CHARTS and all(what in each.quantiles for each in fields):
            title = f"Share of values up to x: {row['queue']} {row['path']}, {what}"
            pair = zip((BEFORE, NOW), fields, strict=True)
            page.add(lines(title, "%", [_share(name, each, what) for name, each in pair]))
            drawn += 1


def _share(name: str, each: Field, what: str) -> Series:
    ranked = sorted(each.quantiles[what])
    return Series(name, [(x, 100 * (at + 1) / len(ranked)) for at, x in enumerate(ranked)])
