"""``features``: messages with JSON objects as bodies in one flat table, with a profile and the drift of its columns."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors
from mqcore.spark.pipelines.catalogue import Outcome, Progress
from mqcore.spark.pipelines.fate import Shards, fate, lives
from mqcore.spark.pipelines.history import History
from mqcore.spark.pipelines.report import Page, bars, table, tiles
from mqcore.spark.pipelines.tables import Tables
from mqcore.spark.pipelines.watching import unseen

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["KINDS", "drift_of", "features"]

KINDS: Final = ("object", "json", "text", "binary", "not-kept")
"""Kinds of bodies: a JSON object, other JSON, other text, bytes that are not UTF-8, or not in the history."""

_PLACE: Final = ("queue", "time", "shard", "number", "message_id")
_OWN: Final = (*_PLACE, "fate")
_MISFIT: Final = "mqcore misfit"
"""Column for objects that do not match the schema. Spark's default name could be a name in a body."""
_SAMPLES: Final = 3
_SAMPLE_CHARACTERS: Final = 200
_NAMED: Final = 20
"""Maximum number of queues that an error names."""
_ROWS: Final = 200
_DAY_US: Final = 86_400_000_000

MEAN_MOVED: Final = 0.5
"""Change of a mean that counts as drift, in previous standard deviations."""
NULLS_MOVED: Final = 0.1
"""Change of a null rate that counts as drift."""

_PROFILE: Final = (
    "column string, type string, rows long, nulls long, null_rate double, mean double, deviation double, "
    "least string, greatest string, different long"
)
_DRIFT: Final = "column string, what string, before string, now string, moved double"


def features(
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    queue: str = "",
    days: int = 0,
    sample: int = 1_000_000,
    columns: int = 500,
    copies: bool = False,
    progress: Progress = unseen,
) -> Outcome:
    """Create a table of messages with JSON objects as bodies: one row per message, one column per value.

    - `queue`: a queue such as ``orders/1``. Default: all.
    - `days`: only messages from the last `days` days before the newest message. Default 0: all.
    - `sample`: number of bodies from which names and types are inferred, chosen at random (default 1,000,000).
    - `columns`: maximum number of columns, in the order of their names (default 500).
    - `copies`: also messages that came from another queue, as dead letters or moved by an operator. By default they are
      left out unless `queue` names their queue, because the original is a row already.

    Values of nested objects become columns such as ``to_city``, and lists a column with their length, ``lines_size``.
    Columns have a type that fits all values: integers and fractions become fractions, numbers and text become text.

    Each row has the ``fate`` of its message (see `mqcore.spark.pipelines.fate`), which may serve as a label.

    Tables: ``features``; ``bodies`` (numbers of bodies by kind); ``profile`` (one row per column); ``drift`` (changes
    since the previous run into the same directory; empty the first time).

    Raises `ConfigError`, `DataDirMissing` (also if there is no such queue) and `DataDirUnreadable`.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F  # noqa: N812

    if days < 0 or sample < 1 or columns < 1:
        raise errors.ConfigError("days must be at least 0, sample and columns at least 1")
    history, tables = History.of(spark, data_dir), Tables(out, "features")
    former = _former(spark, tables)
    with _names_as_they_are(spark), history.by_message():
        left_copies = _check_queue(history, queue, copies)
        # Read the bodies once: they may come through Python, and are needed for names, values and kinds.
        messages = _messages(history, queue, days, copies).persist(StorageLevel.DISK_ONLY)
        try:
            progress("bodies", 0, 0)
            bodies = tables.write("bodies", _bodies(messages), files=1).collect()
            samples = _samples(messages)
            progress("names and types", 0, 0)
            objects = sum(row["messages"] for row in bodies if row["what"] == "object")
            schema = _schema(messages, objects, sample)
            progress("features", 0, 0)
            flat, left_out = _flat(messages, _fates(history, queue), schema, columns)
            found = tables.write("features", flat, files=4)
            misfits = _misfits(messages, schema) if sample < objects else 0
        finally:
            messages.unpersist()
        progress("profile", 0, 0)
        profile = _profile(found)
        fates = {row["fate"]: row["n"] for row in found.groupBy("fate").agg(F.count(F.lit(1)).alias("n")).collect()}
    drift = [] if former is None else drift_of(former, profile)
    tables.write("drift", spark.createDataFrame([tuple(row.values()) for row in drift], _DRIFT), files=1)
    # Last, because the next run compares itself with it, so an aborted run must not leave one.
    tables.write("profile", spark.createDataFrame([tuple(row.values()) for row in profile], _PROFILE), files=1)
    progress("report", 0, 0)
    every = sum(row["messages"] for row in bodies)
    figures = {
        "messages": every,
        "rows": objects,
        "no_object": every - objects,
        "columns": len(profile),
        "left_out": left_out,
        "misfits": misfits,
        "copies_left_out": left_copies,
        "drifted": len(drift),
    }
    page = _page(history, figures, bodies, samples, profile, drift, fates, first=former is None)
    summary = (
        f"{objects:,} rows of {len(profile):,} columns; {every - objects:,} bodies are not JSON objects; "
        f"{len(drift):,} changes since the last run"
    )
    return Outcome("features", summary, tables.write_page(page.html()), tables.paths, figures)


@contextmanager
def _names_as_they_are(spark: SparkSession) -> Iterator[None]:
    """Let ``id`` and ``Id`` be two names, as they are in JSON, as long as the block runs."""
    key = "spark.sql.caseSensitive"
    before = spark.conf.get(key)
    spark.conf.set(key, "true")
    try:
        yield
    finally:
        spark.conf.set(key, str(before))


def _former(spark: SparkSession, tables: Tables) -> list[dict[str, Any]] | None:
    path = tables.path("profile")
    if not path.exists():
        return None
    return [row.asDict() for row in spark.read.schema(_PROFILE).parquet(str(path)).collect()]


def _check_queue(history: History, queue: str, copies: bool) -> int:
    """Raise `DataDirMissing` for a queue without messages. Return the number of messages from other queues left out."""
    from pyspark.sql import functions as F  # noqa: N812

    arrived = F.sum((F.col("kind") == "arrived").cast("long")).alias("arrived")
    found = {
        row["queue"]: row["arrived"]
        for row in history.messages("queue", "kind").groupBy("queue").agg(arrived).collect()
    }
    if queue and queue.lower() not in {name.lower() for name in found}:
        named = sorted(found)
        more = f" and {len(named) - _NAMED:,} more" if len(named) > _NAMED else ""
        has = f"it has {', '.join(named[:_NAMED])}{more}" if named else "it has no messages at all"
        raise errors.DataDirMissing(f"the history has no message of queue {queue!r}; {has}")
    return 0 if queue or copies else sum(found.values())


def _fates(history: History, queue: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    steps = history.fate_steps()
    if queue:
        steps = steps.where(F.lower("queue") == queue.lower())
    return lives(steps, Shards.of(history)).select("shard", "number", "queue", fate().alias("fate"))


def _messages(history: History, queue: str, days: int, copies: bool) -> DataFrame:
    """Rows with ``text``, the body if that is a JSON object; ``what`` it is; ``shown``, its beginning if it is not."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = history.messages(*_PLACE, "kind", "body")
    if queue:
        rows = rows.where(F.lower("queue") == queue.lower())
    elif not copies:
        rows = rows.where("kind <> 'arrived'")
    if days:
        newest = history.messages("queue", "time").where(F.lower("queue") == queue.lower() if queue else F.lit(True))
        latest = newest.agg(F.max(F.unix_micros("time"))).first()
        if latest is not None and latest[0] is not None:
            rows = rows.where(F.unix_micros("time") > latest[0] - days * _DAY_US)
    raw, text = F.col("body"), F.col("body").cast("string")
    # Spark's parsers stop at the end of the first value and ignore the rest. In a list before a random value, which no
    # body contains, the first value must be the whole body.
    end = uuid.uuid4().hex
    listed = F.try_parse_json(F.concat(F.lit("["), text, F.lit(f',"{end}"]')))
    is_json = F.coalesce(F.try_variant_get(listed, "$[1]", "string") == end, F.lit(False))
    what = (
        F.when(raw.isNull(), "not-kept")
        .when(~F.is_valid_utf8(text), "binary")
        .when(~is_json, "text")
        .when(F.regexp_like(text, F.lit(r"^[ \t\r\n]*\{")), "object")
        .otherwise("json")
    )
    rows = rows.withColumn("what", what)
    beginning = F.when(F.col("what") == "binary", F.hex(F.substring("body", 1, _SAMPLE_CHARACTERS // 4))).otherwise(
        F.substring(text, 1, _SAMPLE_CHARACTERS)
    )
    is_object = F.col("what") == "object"
    return rows.select(
        *_PLACE, "what", F.when(is_object, text).alias("text"), F.when(~is_object, beginning).alias("shown")
    )


def _bodies(messages: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return messages.groupBy("queue", "what").agg(F.count(F.lit(1)).alias("messages")).orderBy("queue", "what")


def _samples(messages: DataFrame) -> list[list[str]]:
    """Samples of bodies that are not JSON objects, per queue."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    place = F.row_number().over(Window.partitionBy("queue", "what").orderBy("shard", "number"))
    wrong = messages.where("what <> 'object' and shown is not null").withColumn("place", place)
    few = wrong.where(F.col("place") <= _SAMPLES).orderBy("queue", "what", "place").limit(_ROWS).collect()
    return [[row["queue"], row["what"], row["message_id"] or "", row["shown"]] for row in few]


def _schema(messages: DataFrame, objects: int, sample: int) -> StructType:
    """Infer the schema of the bodies or of a sample of them. The result must fit into the driver's memory."""
    from pyspark.sql.types import StructType

    texts = messages.where("text is not null").select("text")
    if objects > sample:
        texts = texts.sample(fraction=sample / objects, seed=1)
    inferred = texts.sparkSession.read.option("columnNameOfCorruptRecord", _MISFIT).json(texts).schema
    return StructType([field for field in inferred.fields if field.name != _MISFIT])


def _read(schema: StructType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    # All bodies are valid JSON here, so only values of other types can fail. They become null.
    return F.from_json("text", schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MISFIT})


def _flat(messages: DataFrame, fates: DataFrame, schema: StructType, most: int) -> tuple[DataFrame, int]:
    """Return the table, and the number of columns left out."""
    from pyspark.sql import functions as F  # noqa: N812

    objects = messages.where("text is not null").join(fates, ["shard", "number", "queue"], "left")
    if not schema.fields:
        return objects.select(*_OWN), 0
    columns = _columns(F.col("read"), schema, "")
    names = _named([name for name, _ in columns[:most]])
    wanted = [column.alias(name) for name, (_, column) in zip(names, columns, strict=False)]
    return objects.withColumn("read", _read(schema)).select(*_OWN, *wanted), max(0, len(columns) - most)


def _columns(value: Column, kind: DataType, name: str) -> list[tuple[str, Column]]:
    """Names and columns of a value and of its nested values."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, StructType):
        found: list[tuple[str, Column]] = []
        for field in kind.fields:
            inner = f"{name}_{field.name}" if name else field.name
            found += _columns(value.getField(field.name), field.dataType, inner)
        return found
    if isinstance(kind, ArrayType):
        return [(f"{name}_size", F.when(value.isNotNull(), F.size(value)))]
    return [(name, value)]


def _named(names: Sequence[str]) -> list[str]:
    """Make column names that are unique regardless of case, also among the table's own columns."""
    taken = set(_OWN)
    found = []
    for wanted in names:
        # Backticks would end a quoted name.
        name = wanted.replace("`", "'")
        while name.lower() in taken:
            name = f"{name}_"
        taken.add(name.lower())
        found.append(name)
    return found


def _misfits(messages: DataFrame, schema: StructType) -> int:
    """Number of objects with a value that does not match the type inferred from the sample."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType, StructField, StructType

    if not schema.fields:
        return 0
    watched = StructType([*schema.fields, StructField(_MISFIT, StringType())])
    read = messages.where("text is not null").select(_read(watched).alias("read"))
    return read.where(F.col("read").getField(_MISFIT).isNotNull()).count()


def _profile(found: DataFrame) -> list[dict[str, Any]]:
    """Profile all columns in one pass."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import NumericType

    fields = [field for field in found.schema.fields if field.name not in _OWN]
    asked: list[Column] = [F.count(F.lit(1)).alias("rows")]
    for at, field in enumerate(fields):
        column = F.col(f"`{field.name}`")
        number = column.cast("double") if isinstance(field.dataType, NumericType) else F.lit(None).cast("double")
        asked += [
            F.count(column).alias(f"known{at}"),
            F.avg(number).alias(f"mean{at}"),
            F.stddev_samp(number).alias(f"deviation{at}"),
            F.substring(F.min(column).cast("string"), 1, _SAMPLE_CHARACTERS).alias(f"least{at}"),
            F.substring(F.max(column).cast("string"), 1, _SAMPLE_CHARACTERS).alias(f"greatest{at}"),
            F.approx_count_distinct(column).alias(f"different{at}"),
        ]
    row = found.agg(*asked).first()
    assert row is not None
    rows = int(row["rows"])
    return [
        {
            "column": field.name,
            "type": field.dataType.simpleString(),
            "rows": rows,
            "nulls": rows - row[f"known{at}"],
            "null_rate": (rows - row[f"known{at}"]) / rows if rows else 0.0,
            **{name: row[f"{name}{at}"] for name in ("mean", "deviation", "least", "greatest", "different")},
        }
        for at, field in enumerate(fields)
    ]


def drift_of(former: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare two profiles: removed and new columns, changed types, null rates and means. Does not need Spark."""
    found: list[dict[str, Any]] = []

    def add(column: str, what: str, before: str, after: str, moved: float | None = None) -> None:
        found.append({"column": column, "what": what, "before": before, "now": after, "moved": moved})

    present = {row["column"]: row for row in now}
    earlier = {row["column"]: row for row in former}
    for name in sorted(earlier.keys() - present.keys()):
        add(name, "gone", earlier[name]["type"], "")
    for name, row in present.items():
        before = earlier.get(name)
        if before is None:
            add(name, "new", "", row["type"])
            continue
        if before["type"] != row["type"]:
            add(name, "type", before["type"], row["type"])
        nulls = row["null_rate"] - before["null_rate"]
        if abs(nulls) > NULLS_MOVED:
            add(name, "null rate", f"{before['null_rate']:.3f}", f"{row['null_rate']:.3f}", nulls)
        if before["mean"] is not None and row["mean"] is not None:
            moved = _deviations(before, row)
            if abs(moved) > MEAN_MOVED:
                add(name, "mean", f"{before['mean']:.6g}", f"{row['mean']:.6g}", moved)
    return found


def _deviations(before: Mapping[str, Any], now: Mapping[str, Any]) -> float:
    """Change of a mean in previous standard deviations; infinite if the column was constant before."""
    difference = float(now["mean"]) - float(before["mean"])
    deviation = float(before["deviation"] or 0.0)
    if deviation > 0.0:
        return difference / deviation
    return 0.0 if difference == 0.0 else float("inf") if difference > 0 else float("-inf")


def _page(
    history: History,
    figures: Mapping[str, int],
    bodies: Sequence[Any],
    samples: list[list[str]],
    profile: Sequence[Mapping[str, Any]],
    drift: Sequence[Mapping[str, Any]],
    fates: Mapping[str | None, int],
    *,
    first: bool,
) -> Page:
    page = Page("Features", history.data_dir)
    shown = ("messages", "rows", "no_object", "columns", "drifted")
    page.add(tiles(*((name.replace("_", " "), figures[name]) for name in shown)))
    if figures["left_out"]:
        page.say(f"{figures['left_out']:,} more columns were left out; the option columns sets the maximum.")
    if figures["copies_left_out"]:
        page.say(
            f"{figures['copies_left_out']:,} messages that came from another queue, such as dead letters, were left "
            "out, because their originals are rows. The option copies includes them.",
            good=True,
        )
    if figures["misfits"]:
        page.say(
            f"{figures['misfits']:,} bodies have values that do not match the types of the sample; they are null here."
        )
    if not figures["messages"]:
        return page.say("There is no message: nothing was produced.")
    kinds = [(what, sum(row["messages"] for row in bodies if row["what"] == what)) for what in KINDS]
    page.add(bars("Bodies", "messages", [pair for pair in kinds if pair[1]], otherwise="There are none."))
    known = sorted(((name or "-", count) for name, count in fates.items()), key=lambda pair: (-pair[1], pair[0]))
    page.add(bars("Fates of the rows", "rows", known, otherwise="There are no rows."))
    nulls = sorted(((row["column"], row["null_rate"] * 100) for row in profile), key=lambda pair: (-pair[1], pair[0]))
    page.add(bars("Nulls", "%", [pair for pair in nulls if pair[1] > 0], otherwise="No column has any."))
    if first:
        page.say("This is the first run into this directory: there is nothing to compare with.", good=True)
    elif drift:
        means = [(row["column"], min(abs(row["moved"]), 100.0)) for row in drift if row["what"] == "mean"]
        if means:
            means.sort(key=lambda pair: (-pair[1], pair[0]))
            page.add(bars("Means that moved", "standard deviations", means, otherwise=""))
        columns = ("column", "what", "before", "now")
        page.add(table("Drift since the last run", columns, [[row[name] for name in columns] for row in drift]))
    else:
        page.say("Nothing has drifted since the last run.", good=True)
    names = ("column", "type", "nulls", "null_rate", "mean", "deviation", "least", "greatest", "different")
    rows = [[row[name] for name in names] for row in profile[:_ROWS]]
    page.add(table("Columns", [name.replace("_", " ") for name in names], rows, of=len(profile)))
    if samples:
        page.add(table("Bodies that are not JSON objects", ["queue", "what", "id", "beginning"], samples))
    return page
