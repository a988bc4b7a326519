"""The training table, against what Python's own json makes of the bodies that were published."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqcore import errors, sync
from mqcore.spark import pipelines
from mqcore.spark.pipelines.features import drift_of
from mqcore.spark.pipelines.report import bars, table, tiles
from served import wait_until
from spark.eventful import Eventful, recorded_messages
from spark.made import archive_of, at, message
from spark.made import step as made
from spark.outcomes import in_order, ordered, parts_of, rows_of, run_whole, self_contained
from spark.recorded import IN_TURN, LENIENT, Recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT, IN_TURN]

ODD = (
    b'{"n":1} x',
    b'{"n":1}{"n":2}',
    b'{"n":1},{"n":2}',
    b'{"n":1}],["x"',
    b"{'n':1}",
    b'{"n":NaN}',
    b'{"n":1,"n":2}',
    b'{"n":01}',
    b'{"n":',
    b'{"s":"a\nb"}',
    b"",
    b"words",
    b"[1, 2]",
    b"3",
    b"null",
    b'"{}"',
    b"\xff\xfe\x00",
    b'{"s":"\xed\xa0\x80"}',
    b"\xef\xbb\xbf{}",
)
"""Bodies other than JSON objects; a parser that stops early or is lenient would accept some of them."""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def refused(constant: str) -> None:
    raise ValueError(constant)


def what(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "binary"
    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=refused)
    except ValueError:
        return "text"
    return "object" if isinstance(value, dict) else "json"


def order(number: int) -> dict[str, Any]:
    found: dict[str, Any] = {"n": number, "price": number / 8, "paid": number % 3 == 0, "lines": [1] * (number % 4)}
    found["to"] = {"city": f"city {number % 7}", "zip": 8000 + number}
    found["mixed"] = number if number % 2 else f"text {number}"
    found["Paid"] = "a name that differs in case only"
    found["time"] = "a name that the table has itself"
    found["one"] = 1
    if number % 5 == 0:
        found["note"] = None
        found["a.b"] = number
        found["`"] = "x" * 300
        found[""] = {"": False}
    return found


def flat(number: int) -> dict[str, Any]:
    """The columns of an order, in their order."""
    body = order(number)
    return {
        "Paid": body["Paid"],
        "'": body.get("`"),
        "a.b": body.get("a.b"),
        "lines_size": len(body["lines"]),
        "mixed": str(body["mixed"]),
        "n": body["n"],
        "note": None,
        "one": 1,
        "paid_": body["paid"],
        "price": body["price"],
        "time_": body["time"],
        "to_city": body["to"]["city"],
        "to_zip": body["to"]["zip"],
    }


PLACE = ("queue", "time", "shard", "number", "message_id")
OWN = (*PLACE, "fate")
STEPS = ("bodies", "names and types", "features", "profile", "report")
PROFILE = ("column", "type", "rows", "nulls", "null_rate", "mean", "deviation", "least", "greatest", "different")
TYPES = {bool: "boolean", int: "bigint", float: "double", str: "string", type(None): "string"}
UNCHANGED = "Nothing has drifted since the last run."
FIRST_RUN = "This is the first run into this directory: there is nothing to compare with."
LAST = 86_400 * 2
"""Seconds after which the newest orders came."""
Rows = list[dict[str, Any]]


def published() -> Rows:
    """Orders, other bodies, and some of other days and queues."""
    bodies: list[bytes | None] = [json.dumps(order(number)).encode() for number in range(200)]
    bodies += [*ODD, None, b"long " * 50, b"\xff" * 60]
    rows = [
        message(number, body, shard=number % 2, message_id=f"m{number}" if number % 3 else None, time=at(LAST))
        for number, body in enumerate(bodies)
    ]
    rows[7]["time"] = at(0.000001)
    other = [message(number, b"another queue", queue="logs/2", time=at(10 * LAST)) for number in range(300, 303)]
    return [*rows, message(299, b'{"too": "old"}', time=at(0)), *other]


def steps_of(rows: Rows) -> Rows:
    """Steps of messages, of which a third was acknowledged; each row gets its fate."""
    steps = [made("started"), made("started", shard=1)]
    for row in rows:
        place: dict[str, Any] = {"queue": row["queue"], "shard": row.get("shard", 0), "time": row["time"]}
        steps.append(made(row["kind"], row["number"], **place))
        row["fate"] = "acked" if row["number"] % 3 == 0 else "waiting"
        if row["fate"] == "acked":
            steps += [made("delivered", row["number"], **place), made("acked", row["number"], **place, last=True)]
    return steps


def kind_of(body: bytes | None) -> str:
    return "not-kept" if body is None else what(body)


def profile_of(rows: Rows, types: dict[str, str]) -> Rows:
    """The profile, with the exact numbers of distinct values."""
    found = []
    for column, kind in types.items():
        known = [row[column] for row in rows if row.get(column) is not None]
        known = [float(value) for value in known] if kind == "double" else known
        numbers = known if kind in {"int", "bigint", "double"} else []
        least, greatest = (str(choice(known)) if known else None for choice in (min, max))
        if kind == "boolean" and known:
            least, greatest = str(min(known)).lower(), str(max(known)).lower()
        values = (column, kind, len(rows), len(rows) - len(known), 1 - len(known) / len(rows))
        values += (statistics.mean(numbers) if numbers else None, statistics.stdev(numbers) if numbers else None)
        values += (least and least[:200], greatest and greatest[:200], len(set(known)))
        found.append(dict(zip(PROFILE, values, strict=True)))
    return found


def check(
    outcome: pipelines.Outcome, given: Rows, flats: list[dict[str, Any]], types: dict[str, str], left_out: int = 0
) -> tuple[Rows, list[str]]:
    """Compare all tables but the drift, and return the profile and the parts of the report around the drift."""
    counts = Counter((row["queue"], kind_of(row["body"])) for row in given)
    assert rows_of(outcome.tables["bodies"]) == [
        {"queue": queue, "what": kind, "messages": count} for (queue, kind), count in sorted(counts.items())
    ]
    objects = [row for row in given if kind_of(row["body"]) == "object"]
    names = list(types)
    assert ordered(outcome.tables["features"], *OWN, *names) == in_order(
        (*(row.get(name, 0 if name == "shard" else None) for name in OWN), *(values.get(name) for name in names))
        for row, values in zip(objects, flats, strict=True)
    )
    expected, found = profile_of(flats, types), rows_of(outcome.tables["profile"])
    assert [row["column"] for row in found] == names
    for one, other in zip(found, expected, strict=True):
        # Spark counts about right.
        assert one["different"] == pytest.approx(other["different"], rel=0.1)
        other["different"] = one["different"]
    assert in_order(row.values() for row in found) == in_order(row.values() for row in expected)
    drifted = len(rows_of(outcome.tables["drift"]))
    rest = len(given) - len(objects)
    figures = {"messages": len(given), "rows": len(objects), "no_object": rest, "columns": len(names)}
    assert outcome.figures == figures | {"left_out": left_out, "misfits": 0, "drifted": drifted, "copies_left_out": 0}
    fates = Counter(row["fate"] for row in objects)
    assert outcome.summary == (
        f"{len(objects)} rows of {len(names)} columns; {rest} bodies are not JSON objects; "
        f"{drifted} changes since the last run"
    )
    kinds = [(k, sum(n for (_, of), n in counts.items() if of == k)) for k in ("object", "json", "text", "binary")]
    kinds.append(("not-kept", sum(row["body"] is None for row in given)))
    nulls = sorted(((row["column"], row["null_rate"] * 100) for row in found), key=lambda pair: (-pair[1], pair[0]))
    samples = []
    by_kind = sorted(given, key=lambda row: (row["queue"], kind_of(row["body"]), row.get("shard", 0), row["number"]))
    for (queue, kind), rows in itertools.groupby(by_kind, lambda row: (row["queue"], kind_of(row["body"]))):
        if kind not in {"object", "not-kept"}:
            for row in itertools.islice(rows, 3):
                text = row["body"][:50].hex().upper() if kind == "binary" else row["body"].decode()[:200]
                samples.append([queue, kind, row.get("message_id") or "", text])
    shown = [name for name in PROFILE if name != "rows"]
    columns = [[row[name] for name in shown] for row in found]
    more = f"{left_out} more columns were left out; the option columns sets the maximum."
    return found, [
        tiles(
            *(("messages", len(given)), ("rows", len(objects)), ("no object", rest), ("columns", len(names))),
            ("drifted", drifted),
        ),
        *([f'<p class="say">{more}</p>'] if left_out else []),
        bars("Bodies", "messages", [pair for pair in kinds if pair[1]], otherwise=""),
        bars("Fates of the rows", "rows", sorted(fates.items(), key=lambda pair: (-pair[1], pair[0])), otherwise=""),
        bars("Nulls", "%", [pair for pair in nulls if pair[1]], otherwise="No column has any."),
        table("Columns", [name.replace("_", " ") for name in shown], columns, of=len(found)),
        table("Bodies that are not JSON objects", ["queue", "what", "id", "beginning"], samples[:200]),
    ]


def test_every_json_object_is_a_row_and_every_other_body_is_counted_and_shown(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = published()
    data, out = archive_of(tmp_path / "data", steps_of(rows), rows, shards=2, together=True), tmp_path / "out"
    outcome = run_whole("features", spark, data, out, STEPS, queue="ORDERS/1", days=2)
    flats = [flat(number) for number in range(200)]
    types = {name: TYPES[type(value)] for name, value in flats[0].items()} | {"lines_size": "int"}
    profile, parts = check(outcome, rows[:-4], flats, types)
    assert rows_of(outcome.tables["drift"]) == []
    said = f'<p class="say good">{FIRST_RUN}</p>'
    assert lines_of(parts_of(outcome.report, "Features", str(data))) == lines_of([*parts[:4], said, *parts[4:]])

    # The next run has as many bodies again, with dearer orders and one thing more to say of each; and more queues.
    more = [message(400 + n, b'{"price": 1000.5, "colour": "red", "n": 0.5, "one": 3}') for n in range(200)]
    more += [
        message(1000 + number, b"text %d" % number, queue=f"queue/{number % 70:02}", time=at(0))
        for number in range(280)
    ]
    every = [*rows, *more]
    data = archive_of(tmp_path / "more", steps_of(every), every, shards=2, together=True)
    flats += [{"too": "old"}]
    flats += [{"price": 1000.5, "colour": "red", "n": 0.5, "one": 3} for _ in range(200)]
    names = ["Paid", "'", "a.b", "colour", *list(types)[3:-2]]
    after = {name: types.get(name, "string") for name in names}
    after["n"] = "double"
    outcome = run_whole("features", spark, data, out, STEPS, columns=len(names))
    now, parts = check(outcome, [*rows, *more], flats, after, left_out=3)
    drift = drift_between(profile, now)
    assert rows_of(outcome.tables["drift"]) == drift
    assert {(row["column"], row["what"]) for row in drift} >= {
        *(("colour", "new"), ("to_city", "gone"), ("to_zip", "gone"), ("price", "mean"), ("one", "mean")),
        *(("n", "type"), ("lines_size", "null rate")),
    }
    assert ("n", "mean") in {(row["column"], row["what"]) for row in drift}
    means = [(row["column"], min(abs(row["moved"]), 100.0)) for row in drift if row["what"] == "mean"]
    means.sort(key=lambda pair: (-pair[1], pair[0]))
    changed = [
        bars("Means that moved", "standard deviations", means, otherwise=""),
        table(
            "Drift since the last run",
            ["column", "what", "before", "now"],
            [[row[name] for name in ("column", "what", "before", "now")] for row in drift],
        ),
    ]
    assert lines_of(parts_of(outcome.report, "Features", str(data))) == lines_of([*parts[:5], *changed, *parts[5:]])


def lines_of(parts: list[str]) -> list[str]:
    """Bodies in the report may have several lines."""
    return "\n".join(parts).splitlines()


def drift_between(before: Rows, now: Rows) -> Rows:
    """Changes from one profile to another."""
    then, after = ({row["column"]: row for row in rows} for rows in (before, now))
    found = [(name, "gone", then[name]["type"], "", None) for name in sorted(set(then) - set(after))]
    for name, row in after.items():
        if name not in then:
            found.append((name, "new", "", row["type"], None))
            continue
        old = then[name]
        if old["type"] != row["type"]:
            found.append((name, "type", old["type"], row["type"], None))
        moved = row["null_rate"] - old["null_rate"]
        if abs(moved) > 0.1:
            found.append((name, "null rate", f"{old['null_rate']:.3f}", f"{row['null_rate']:.3f}", moved))
        if row["mean"] is not None and old["mean"] is not None and row["mean"] != old["mean"]:
            change = row["mean"] - old["mean"]
            moved = change / old["deviation"] if old["deviation"] else math.copysign(math.inf, change)
            if abs(moved) > 0.5:
                found.append((name, "mean", f"{old['mean']:.6g}", f"{row['mean']:.6g}", moved))
    return [dict(zip(("column", "what", "before", "now", "moved"), row, strict=True)) for row in found]


@pytest.mark.full("runs the pipeline three times; test_every_json_object_is_a_row_... runs it twice")
def test_reports_of_runs_without_change_and_without_messages(spark: SparkSession, tmp_path: Path) -> None:
    rows = [message(number, b'{"n": 5}') for number in range(2)]
    data = archive_of(tmp_path / "data", [made("started")], rows)
    for _ in range(2):
        outcome = run_whole("features", spark, data, tmp_path / "out", STEPS)
    parts = parts_of(outcome.report, "Features", str(data))
    assert parts[3:5] == ["<h2>Nulls</h2><p>No column has any.</p>", f'<p class="say good">{UNCHANGED}</p>']
    assert len(parts) == 6
    assert rows_of(outcome.tables["drift"]) == []
    empty = archive_of(tmp_path / "empty", [made("started")])
    nothing = run_whole("features", spark, empty, tmp_path / "none", STEPS, days=1)
    assert set(nothing.figures.values()) == {0}
    assert parts_of(nothing.report, "Features", str(empty))[1:] == [
        '<p class="say">There is no message: nothing was produced.</p>'
    ]
    with pytest.raises(errors.DataDirMissing, match="no message of queue 'missing/1'; it has orders/1"):
        pipelines.run("features", spark, data, tmp_path / "none", queue="missing/1")
    with pytest.raises(errors.DataDirMissing, match="no message of queue 'missing/1'; it has no messages at all"):
        pipelines.run("features", spark, empty, tmp_path / "none", queue="missing/1")
    for wrong in ({"days": -1}, {"sample": 0}, {"columns": 0}):
        with pytest.raises(errors.ConfigError, match="days must be at least 0, sample and columns at least 1"):
            pipelines.run("features", spark, data, tmp_path, **wrong)


@pytest.mark.full("runs the pipeline three times; test_every_json_object_is_a_row_... runs it twice")
def test_a_dead_letter_is_not_a_second_row_unless_it_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    letter = {"kind": "arrived", "queue": "dead/9", "number": 3}
    rows = [message(number, b'{"n": %d}' % number) for number in (1, 2)] + [message(2, b'{"n": 2}') | letter]
    steps = [made("started"), made("produced", 1), made("produced", 2), made("delivered", 1)]
    steps += [made("dead-lettered", 2, last=True, reason="limit"), made("arrived", 3, queue="dead/9")]
    data = archive_of(tmp_path / "data", steps, rows)

    def found(**options: Any) -> tuple[list[tuple[Any, ...]], int | float]:
        outcome = pipelines.run("features", spark, data, tmp_path / "out", **options)
        table_rows = rows_of(outcome.tables["features"])
        shown = sorted((row["queue"], row["n"], row["fate"]) for row in table_rows)
        page = self_contained(outcome.report)
        assert ("messages that came from another queue" in page) == bool(outcome.figures["copies_left_out"])
        return shown, outcome.figures["copies_left_out"]

    originals = [("orders/1", 1, "in-flight"), ("orders/1", 2, "dead-lettered")]
    copy = ("dead/9", 2, "waiting")
    assert found() == (originals, 1)
    assert found(copies=True) == ([copy, *originals], 0)
    assert found(queue="Dead/9") == ([copy], 0)


@pytest.mark.full("runs the pipeline once more; test_every_json_object_is_a_row... runs it twice")
def test_columns_above_the_limit_are_left_out_and_counted(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    with sync.connect(live.served.url) as mq:
        mq.publish_many("orders/1", [json.dumps(order(number)).encode() for number in range(40)])
        wait_until(lambda: recorded_messages(live.data_dir) == 40, limit=60, what="the history")
    few = pipelines.run("features", spark, live.data_dir, tmp_path, queue="orders/1", columns=3, sample=20)
    assert few.figures["columns"] == 3
    assert "more columns were left out" in self_contained(few.report)


@pytest.mark.full("12 s; test_every_json_object_is_a_row_... has values of other types")
def test_values_that_the_sample_did_not_foretell_are_nulls_and_are_counted(
    spark: SparkSession, live: Recorded, tmp_path: Path
) -> None:
    with sync.connect(live.served.url) as mq:
        mq.publish_many("orders/1", [b'{"n": 1}'] * 300 + [b'{"n": "many"}'] * 1)
        wait_until(lambda: recorded_messages(live.data_dir) == 301, limit=60, what="the history")
    outcome = pipelines.run("features", spark, live.data_dir, tmp_path, sample=30)
    values = Counter(row["n"] for row in rows_of(outcome.tables["features"]))
    # Either the sample contains the text value and all values become text, or the text value is reported as a misfit.
    assert (values, outcome.figures["misfits"]) in [({1: 300, None: 1}, 1), ({"1": 300, "many": 1}, 0)]


@pytest.mark.full("runs the pipeline twice more; test_every_json_object_is_a_row... runs it once")
def test_a_history_of_many_queues_and_of_none_is_one_table(
    spark: SparkSession, eventful: Eventful, tmp_path: Path
) -> None:
    outcome = pipelines.run("features", spark, eventful.data_dir, tmp_path, copies=True)
    found = Counter(row["queue"] for row in rows_of(outcome.tables["features"]))
    assert found == {"work/1": 400, "dead/9": eventful.dead}
    assert {(row["queue"], row["what"]): row["messages"] for row in rows_of(outcome.tables["bodies"])} == {
        ("work/1", "object"): 400,
        ("work/1", "text"): 1,
        ("dead/9", "object"): eventful.dead,
        ("memory/1", "text"): eventful.in_memory + 1,
        ("news/1", "text"): 10,
        ("latest/1", "text"): 5,
    }


def test_drift_is_what_moved_further_than_a_column_used_to_scatter() -> None:
    def row(column: str, mean: float | None, deviation: float | None, nulls: float = 0.0, kind: str = "double") -> Any:
        return {"column": column, "type": kind, "null_rate": nulls, "mean": mean, "deviation": deviation}

    before = [row("a", 1.0, 2.0), row("b", 1.0, 0.0), row("c", 1.0, 2.0, 0.5), row("d", None, None, kind="string")]
    assert drift_of(before, before) == []
    assert drift_of(before, [row("a", 2.0, 9.0), *before[1:]]) == [], "exactly half a deviation"
    assert drift_of(before, [before[0], row("b", 1.0, 5.0), *before[2:]]) == []
    assert drift_of([row("a", 0.0, 1.0)], [row("a", 0.0, 1.0, 0.1)]) == [], "exactly a tenth"
    assert drift_of([row("a", None, None)], [row("a", 9.0, 1.0)]) == []
    assert drift_of([row("a", 9.0, 1.0)], [row("a", None, None)]) == []
    now = [row("a", 2.1, 2.0), row("b", 0.9, 0.0), row("c", 1.0, 2.0, 0.61), row("e", 1.0, 0.0, kind="int")]
    names = ("column", "what", "before", "now", "moved")
    assert drift_of(before, now) == [
        dict(zip(names, row, strict=True))
        for row in [
            ("d", "gone", "string", "", None),
            ("a", "mean", "1", "2.1", pytest.approx(0.55)),
            ("b", "mean", "1", "0.9", -math.inf),
            ("c", "null rate", "0.500", "0.610", pytest.approx(0.11)),
            ("e", "new", "", "int", None),
        ]
    ]
    (up,) = drift_of([row("a", 1.0, None)], [row("a", 1.5, 1.0)])
    assert up["moved"] == math.inf
    assert [each["what"] for each in drift_of([row("a", 1.0, 1.0)], [row("a", 0.0, 1.0, 0.5, "int")])] == [
        *("type", "null rate", "mean"),
    ]
