"""The training table, against what Python's own json makes of the bodies that were published."""

from __future__ import annotations

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
from served import wait_until
from spark.eventful import Eventful, recorded_messages
from spark.recorded import LENIENT, Recorded
from spark.test_pipelines import rows_of, self_contained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT

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
    if number % 5 == 0:
        found["note"] = None
        found["a.b"] = number
    return found


def flat(number: int) -> dict[str, Any]:
    body = order(number)
    return {
        "n": body["n"],
        "price": body["price"],
        "Paid": body["Paid"],
        "paid_": body["paid"],
        "lines_size": len(body["lines"]),
        "to_city": body["to"]["city"],
        "to_zip": body["to"]["zip"],
        "mixed": str(body["mixed"]),
        "time_": body["time"],
        "a.b": body.get("a.b"),
        "note": None,
    }


def test_every_json_object_is_a_row_and_every_other_body_is_counted_and_shown(
    spark: SparkSession, live: Recorded, tmp_path: Path
) -> None:
    bodies = [json.dumps(order(number)).encode() for number in range(200)]
    with sync.connect(live.served.url) as mq:
        mq.publish_many("orders/1", [*bodies, *ODD])
        mq.publish_many("logs/2", [b"another queue"] * 3)
        wait_until(lambda: recorded_messages(live.data_dir) == 200 + len(ODD) + 3, limit=60, what="the history")
        outcome = pipelines.run("features", spark, live.data_dir, tmp_path / "out", queue="ORDERS/1")
        counted = {row["what"]: row["messages"] for row in rows_of(outcome.tables["bodies"])}
        assert counted == Counter(map(what, [*bodies, *ODD]))
        own = {"queue", "time", "shard", "number", "message_id"}
        found = rows_of(outcome.tables["features"])
        assert all(row["queue"] == "orders/1" for row in found)
        lean = [{name: value for name, value in row.items() if name not in own} for row in found]
        assert sorted(lean, key=lambda row: row["n"]) == [flat(number) for number in range(200)]
        assert (outcome.figures["rows"], outcome.figures["no_object"]) == (200, len(ODD))
        profile = {row["column"]: row for row in rows_of(outcome.tables["profile"])}
        assert (profile["a.b"]["nulls"], profile["a.b"]["null_rate"]) == (160, 0.8)
        assert profile["price"]["mean"] == pytest.approx(statistics.mean(number / 8 for number in range(200)))
        assert profile["price"]["deviation"] == pytest.approx(statistics.stdev(number / 8 for number in range(200)))
        assert (profile["mixed"]["type"], profile["to_zip"]["least"]) == ("string", "8000")
        assert rows_of(outcome.tables["drift"]) == []
        page = self_contained(outcome.report)
        assert "FFFE00" in page
        assert "{&quot;n&quot;:1} x" in page
        assert "nothing to compare with" in page
        # The next run has as many bodies again, with dearer orders and one thing more to say of each.
        more = [json.dumps({"price": 1000.5, "colour": "red"}).encode()] * 200
        mq.publish_many("orders/1", more)
        wait_until(lambda: recorded_messages(live.data_dir) == 400 + len(ODD) + 3, limit=60, what="the history")
    again = pipelines.run("features", spark, live.data_dir, tmp_path / "out", queue="orders/1")
    drift = {(row["column"], row["what"]) for row in rows_of(again.tables["drift"])}
    assert {("colour", "new"), ("price", "mean"), ("n", "null rate"), ("to_city", "null rate")} <= drift
    assert ("n", "mean") not in drift
    assert "Means that moved" in self_contained(again.report)


@pytest.mark.full("runs the pipeline once more; test_every_json_object_is_a_row... runs it twice")
def test_columns_above_the_limit_are_left_out_and_counted(spark: SparkSession, live: Recorded, tmp_path: Path) -> None:
    with sync.connect(live.served.url) as mq:
        mq.publish_many("orders/1", [json.dumps(order(number)).encode() for number in range(40)])
        wait_until(lambda: recorded_messages(live.data_dir) == 40, limit=60, what="the history")
    few = pipelines.run("features", spark, live.data_dir, tmp_path, queue="orders/1", columns=3, sample=20)
    assert few.figures["columns"] == 3
    assert "more columns were left out" in self_contained(few.report)


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
    outcome = pipelines.run("features", spark, eventful.data_dir, tmp_path)
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
    nothing = pipelines.run("features", spark, eventful.data_dir, tmp_path / "none", queue="nobody", days=1)
    assert (nothing.figures["messages"], nothing.figures["columns"]) == (0, 0)
    assert "There is no message" in self_contained(nothing.report)
    with pytest.raises(errors.ConfigError, match="days must be at least 0"):
        pipelines.run("features", spark, eventful.data_dir, tmp_path, days=-1)


def test_drift_is_what_moved_further_than_a_column_used_to_scatter() -> None:
    def row(column: str, mean: float | None, deviation: float, nulls: float = 0.0, kind: str = "double") -> Any:
        return {"column": column, "type": kind, "null_rate": nulls, "mean": mean, "deviation": deviation}

    before = [row("a", 1.0, 2.0), row("b", 1.0, 0.0), row("c", 1.0, 2.0, 0.5), row("d", None, 0.0, kind="string")]
    assert drift_of(before, before) == []
    assert drift_of(before, [row("a", 1.9, 2.0), *before[1:]]) == []
    now = [row("a", 2.1, 2.0), row("b", 0.9, 0.0), row("c", 1.0, 2.0, 0.61), row("e", 1.0, 0.0)]
    moved = [(drift["column"], drift["what"], drift["moved"]) for drift in drift_of(before, now)]
    assert moved == [
        ("d", "gone", None),
        ("a", "mean", pytest.approx(0.55)),
        ("b", "mean", -math.inf),
        ("c", "null rate", pytest.approx(0.11)),
        ("e", "new", None),
    ]
