"""Schemas, drift and violations of JSON bodies, against models in plain Python, and bodies of a real broker."""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from depth import by_depth, choices
from mqcore import errors, sync
from mqcore.cli.program import run
from mqcore.spark import pipelines
from mqcore.spark.pipelines.json_profile import drift_of, fields_of
from mqcore.spark.pipelines.json_rules import parse
from mqcore.spark.pipelines.json_shape import decoded, values
from served import wait_until
from spark.bodies import dumped, history, order, planted, types_of
from spark.eventful import Eventful, recorded_messages
from spark.made import archive_of, message
from spark.outcomes import rows_of, run_whole, self_contained
from spark.recorded import IN_TURN, LENIENT, Recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT, IN_TURN]

STEPS = ("values", "fields", "rules", "report")
PERIODS = {"baseline": "2026-11-01/2026-11-08", "period": "2026-11-08/2026-11-15"}
ORDERS = 400


def week(first: Any, second: Any, seed: int) -> list[tuple[str, int, bytes | None]]:
    """Bodies of one queue over two weeks; those of the second week are made by `second`."""
    chance = random.Random(seed)
    return [
        ("orders/1", number // 60, dumped((first if number < 7 * 60 else second)(chance, number)))
        for number in range(14 * 60)
    ]


def test_kinds_and_values_of_bodies() -> None:
    kinds = {
        b'{"a": 1}': "object",
        b"[1, 2.5, null]": "json",
        b' "text" ': "json",
        b"12345678901234567890123": "json",
        b'{"a": NaN}': "text",
        b'{"a": 1} and more': "text",
        b"": "text",
        b"\xff\x00": "binary",
        b'"\xff"': "binary",
        b"[" * 5000 + b"]" * 5000: "text",
    }
    assert {body: decoded(body)[0] for body in kinds} == kinds
    assert decoded(None) == ("not-recorded", None)
    assert [tuple(value) for value in values({"a b": [True, {"x": "ä"}], "n": None, "i": 10**400})] == [
        ("$", "object", None, None),
        ('$["a b"]', "array", 2.0, None),
        ('$["a b"][]', "boolean", None, "true"),
        ('$["a b"][]', "object", None, None),
        ('$["a b"][].x', "string", 1.0, "ä"),
        ("$.n", "null", None, None),
        ("$.i", "integer", None, ("1" + "0" * 400)[:128]),
    ]


@pytest.mark.full("11 s; test_planted_drift_... compares the profiles of two periods")
def test_profiles_and_inferred_schemas_are_those_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    chance = choices(__name__)
    contents = {
        "orders/1": [order(chance, number) for number in range(ORDERS)],
        "mixed/0": [1, 2.5, -3, None, "text", [1, "x"], {"a": {"a": 1}}, {"a": {}}, [], True, 7],
    }
    raw = [b"no json", b"\xff", b'{"a": 1,}']
    rows: list[tuple[str, int, bytes | None]] = [(q, 0, dumped(c)) for q, all_ in contents.items() for c in all_]
    rows += [("orders/1", 0, body) for body in (*raw, None)]
    messages = history(rows)
    messages.append(message(5000, b'{"dead": 1}', kind="arrived", queue="orders/1"))
    data = archive_of(tmp_path / "data", [], messages)
    outcome = run_whole("quality", spark, data, tmp_path / "out", STEPS)
    assert outcome.ok
    assert {(row["queue"], row["what"]): row["messages"] for row in rows_of(outcome.tables["bodies"])} == {
        ("orders/1", "object"): ORDERS,
        ("orders/1", "text"): 2,
        ("orders/1", "binary"): 1,
        ("orders/1", "not-recorded"): 1,
        ("mixed/0", "object"): 2,
        ("mixed/0", "json"): 9,
    }
    assert (outcome.figures["undecodable"], outcome.figures["not_recorded"]) == (3, 1)
    fields = {(row["queue"], row["path"]): row for row in rows_of(outcome.tables["fields"])}
    assert len(fields) == outcome.figures["fields"]
    for queue, given in contents.items():
        types = types_of(given)
        assert {path for of, path in fields if of == queue} == set(types)
        for path, counts in types.items():
            row = fields[(queue, path)]
            assert (row["present"], row["nulls"]) == (counts.total(), counts["null"])
            shown = set(row["types"].split(" or ")) - {"-"}
            assert shown == set(counts) - ({"integer"} if counts["number"] else set())
    prices = [content["price"] for content in contents["orders/1"]]
    row = fields[("orders/1", "$.price")]
    assert (row["least"], row["greatest"]) == (min(prices), max(prices))
    assert row["mean"] == pytest.approx(statistics.mean(prices))
    assert row["deviation"] == pytest.approx(statistics.stdev(prices))
    assert row["different"] == pytest.approx(len(set(prices)), rel=0.1)
    numbers = [1, 2.5, -3, 7]
    row = fields[("mixed/0", "$")]
    assert (row["least"], row["greatest"], row["mean"]) == (-3, 7, pytest.approx(statistics.mean(numbers)))
    assert row["deviation"] == pytest.approx(statistics.stdev(numbers))
    noted = sum("note" in content for content in contents["orders/1"])
    row = fields[("orders/1", "$.note")]
    assert (row["of"], row["missing_rate"]) == (ORDERS, pytest.approx(1 - noted / ORDERS))
    lengths = [len(content["note"]) for content in contents["orders/1"] if content.get("note")]
    assert (row["shortest"], row["longest"]) == (min(lengths), max(lengths))

    # Each schema accepts the bodies that it comes from, and rejects what none of them has.
    schemas = {row["queue"]: json.loads(row["schema"]) for row in rows_of(outcome.tables["schemas"])}
    assert schemas == outcome.details["schemas"]
    for queue, given in contents.items():
        validator = jsonschema.Draft202012Validator(schemas[queue])
        validator.check_schema(schemas[queue])
        assert [error.message for content in given for error in validator.iter_errors(content)] == []
    validator = jsonschema.Draft202012Validator(schemas["orders/1"])
    example = contents["orders/1"][0]
    for wrong in ({"price": "1"}, {"status": None}, {"gift": 1}, {"order": -1}, {"lines": [{"item": "x"}]}):
        assert not validator.is_valid(example | wrong), wrong
    assert not validator.is_valid({name: value for name, value in example.items() if name != "to"})
    assert validator.is_valid({name: value for name, value in example.items() if name != "note"})
    page = self_contained(outcome.report)
    assert "no json" in page
    assert "{&quot;a&quot;: 1,}" in page


@pytest.mark.parametrize("seed", range(by_depth(2, 6)))
@pytest.mark.full("8 s; test_planted_drift_is_found_and_nothing_else has fields that do not drift")
def test_two_periods_of_the_same_source_have_no_drift(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [], history(week(order, order, seed)))
    outcome = run_whole("quality", spark, data, tmp_path / "out", STEPS, **PERIODS)
    assert outcome.details["drift"] == []
    assert outcome.figures["messages"] == outcome.figures["baseline_messages"] == 420
    assert "Nothing has drifted since the baseline." in self_contained(outcome.report)


def test_planted_drift_is_found_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    rows = week(order, planted, 7)
    rows += [("old/1", 1, b'{"a": 1}'), ("new/1", 9, b'{"b": 1}')]
    data = archive_of(tmp_path / "data", [], history(rows))
    outcome = run_whole("quality", spark, data, tmp_path / "out", STEPS, **PERIODS)
    assert outcome.ok, "drift does not change the exit code"
    drift = {(row["queue"], row["path"], row["what"]): row for row in rows_of(outcome.tables["drift"])}
    assert set(drift) == {
        ("orders/1", "$.price", "distribution"),
        ("orders/1", "$.status", "distribution"),
        ("orders/1", "$.gift", "type"),
        ("orders/1", "$.to.country", "new"),
        ("orders/1", "$.order", "missing"),
        ("orders/1", "$.note", "null rate"),
        ("orders/1", "$.note", "missing rate"),
        ("old/1", "$", "missing"),
        ("new/1", "$", "new"),
    }
    assert (drift[("orders/1", "$.gift", "type")]["before"], drift[("orders/1", "$.gift", "type")]["now"]) == (
        "boolean",
        "integer",
    )
    # The distance of the prices, from all of them.
    prices: list[list[float]] = [[], []]
    for queue, day, body in rows:
        if queue == "orders/1":
            prices[day >= 7].append(json.loads(body or b"")["price"])
    apart = max(
        abs(sum(x <= edge for x in prices[0]) / len(prices[0]) - sum(x <= edge for x in prices[1]) / len(prices[1]))
        for edge in (*prices[0], *prices[1])
    )
    assert drift[("orders/1", "$.price", "distribution")]["distance"] == pytest.approx(apart, abs=0.03)
    page = self_contained(outcome.report)
    assert "Share of values up to x: orders/1 $.price, number" in page
    # A larger limit leaves out the smaller distance.
    limit = apart + 0.05
    stricter = pipelines.run("quality", spark, data, tmp_path / "out", **PERIODS, moved=limit)
    assert ("$.price", "distribution") not in {(row["path"], row["what"]) for row in stricter.details["drift"]}


@pytest.mark.full("12 s; test_planted_drift_... compares two periods")
def test_baseline_alone_is_compared_with_everything_after_it(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [], history([("a/1", day, b'{"x": 1}') for day in range(10)]))
    outcome = pipelines.run("quality", spark, data, tmp_path / "out", baseline="/2026-11-04")
    assert (outcome.figures["baseline_messages"], outcome.figures["messages"]) == (3, 7)
    one = pipelines.run("quality", spark, data, tmp_path / "out", queue="A/1", period="2026-11-04/2026-11-05")
    assert (one.figures["baseline_messages"], one.figures["messages"]) == (0, 1)
    none = pipelines.run("quality", spark, data, tmp_path / "out", queue="b/1")
    assert none.figures["messages"] == 0
    assert "No message is in the period" in self_contained(none.report)


SCHEMA = {
    "type": "object",
    "required": ["order", "price"],
    "properties": {
        "order": {"type": "integer"},
        "price": {"type": "number", "minimum": 0},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "$defs": {"line": {"type": "object", "required": ["item"]}},
}
WRONG: list[tuple[bytes, set[tuple[str, str]]]] = [
    (b'{"order": 1, "price": 2.5, "lines": [{"item": 1}]}', set()),
    (b'{"order": 1, "price": 2}', set()),
    (b'{"price": 2}', {("required", "$.order")}),
    (b'{"order": "1", "price": -2}', {("type", "$.order"), ("minimum", "$.price")}),
    (b'{"order": 1, "price": 2, "lines": [{"item": 1}, {}, {}]}', {("required", "$.lines[].item")}),
    (b"[]", {("type", "$")}),
    (b"not JSON", set()),
]


@pytest.mark.full("10 s; test_the_command_checks_messages_of_a_running_broker finds the same violations")
def test_each_violation_of_a_json_schema_is_found(spark: SparkSession, tmp_path: Path) -> None:
    schema = tmp_path / "order.schema.json"
    schema.write_text(json.dumps(SCHEMA))
    rows: list[tuple[str, int, bytes | None]] = [("orders/1", 0, body) for body, _ in WRONG * 3]
    rows += [("logs/2", 0, b'{"no": "order"}'), ("orders/1", 0, None)]
    data = archive_of(tmp_path / "data", [], history(rows))
    outcome = run_whole("quality", spark, data, tmp_path / "out", STEPS, schema=f"Orders/1={schema}")
    assert not outcome.ok
    found = Counter((row["message_id"], row["rule"], row["path"]) for row in rows_of(outcome.tables["violating"]))
    expected: Counter[tuple[str, str, str]] = Counter()
    for number, (_, wrong) in enumerate(WRONG * 3):
        for rule, path in wrong:
            expected[(f"m{number}", rule, path)] += 2 if path == "$.lines[].item" else 1
    assert found == expected
    grouped = {(row["rule"], row["path"]): row["messages"] for row in rows_of(outcome.tables["violations"])}
    assert grouped == dict.fromkeys({(rule, path) for _, rule, path in expected}, 3)
    assert (outcome.figures["checked"], outcome.figures["violating"]) == (18, 12)
    assert outcome.summary.endswith("; 12 of 18 messages violate their rule")
    page = self_contained(outcome.report)
    assert "-2 is less than the minimum of 0" in page
    assert "m3" in page
    # A rule without a queue is for all that have none of their own.
    every = pipelines.run("quality", spark, data, tmp_path / "out", schema=str(schema))
    assert (every.figures["checked"], every.figures["violating"]) == (19, 13)


MODULE = '''"""A type of messages."""

import msgspec


class Line(msgspec.Struct):
    """A line."""

    item: int


class Order(msgspec.Struct):
    """An order."""

    order: int
    price: float
    lines: list[Line] = []
'''


@pytest.mark.full("7 s; test_the_command_checks_messages_of_a_running_broker by the same part")
def test_a_msgspec_type_finds_what_its_consumer_would_reject(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_types.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    data = archive_of(tmp_path / "data", [], history([("orders/1", 0, body) for body, _ in WRONG]))
    outcome = run_whole("quality", spark, data, tmp_path / "out", STEPS, schema="shop_types:Order")
    found = {(row["message_id"], row["path"], row["text"]) for row in rows_of(outcome.tables["violating"])}
    assert found == {
        ("m2", "$", "Object missing required field `order`"),
        ("m3", "$.order", "Expected `int`, got `str`"),
        ("m4", "$.lines[]", "Object missing required field `item`"),
        ("m5", "$", "Expected `object`, got `array`"),
    }
    assert (outcome.figures["checked"], outcome.figures["violating"]) == (6, 4)


@pytest.mark.full("9 s; test_the_command_checks_messages_of_a_running_broker has a real broker too")
def test_schemas_of_a_real_broker_accept_its_messages(spark: SparkSession, eventful: Eventful, tmp_path: Path) -> None:
    outcome = run_whole("quality", spark, eventful.data_dir, tmp_path, STEPS)
    bodies = {(row["queue"], row["what"]): row["messages"] for row in rows_of(outcome.tables["bodies"])}
    assert bodies[("work/1", "object")] == 400
    assert bodies[("work/1", "text")] == 1
    assert bodies[("memory/1", "text")] == 41
    row = next(row for row in rows_of(outcome.tables["fields"]) if (row["queue"], row["path"]) == ("work/1", "$.note"))
    assert (row["of"], row["present"]) == (400, 80)
    validator = jsonschema.Draft202012Validator(outcome.details["schemas"]["work/1"])
    for number in (0, 1, 5, 399):
        content: dict[str, Any] = {
            "order": number,
            "price": number / 4,
            "paid": number % 2 == 0,
            "to": {"city": "Bern"},
        }
        assert validator.is_valid(content)
    assert not validator.is_valid({"order": 400, "price": 1.5, "paid": True, "to": {"city": "Bern"}})


def test_the_command_checks_messages_of_a_running_broker(
    spark: SparkSession,
    live: Recorded,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _session: None)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    with sync.connect(live.served.url) as mq:
        mq.publish_many("orders/1", [body for body, _ in WRONG])
    wait_until(lambda: recorded_messages(live.data_dir) == len(WRONG), limit=60, what="the history")
    place = ["pipeline", "quality", "--journal", str(live.data_dir), "--out", str(tmp_path / "out"), "--json"]
    assert run(place) == 0
    assert json.loads(capsys.readouterr()[0])["details"]["violations"] == []
    assert run([*place, "--schema", f"orders/1={schema}"]) == 6
    content = json.loads(capsys.readouterr()[0])
    assert (content["schema"], content["name"], content["ok"]) == ("mqcore.pipeline.run/1", "quality", False)
    assert {(row["rule"], row["path"]) for row in content["details"]["violations"]} == {
        each for _, wrong in WRONG for each in wrong
    }


@pytest.mark.full("6 s; test_planted_drift_... has the same table, below the limit")
def test_many_fields_are_limited_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[tuple[str, int, bytes | None]] = [("a/1", 0, dumped({"common": 1, f"id{n}": 1})) for n in range(50)]
    data = archive_of(tmp_path / "data", [], history(rows))
    outcome = pipelines.run("quality", spark, data, tmp_path / "out", fields=10)
    assert (outcome.figures["fields"], outcome.figures["left_out"]) == (10, 42)
    assert {"$", "$.common"} < {row["path"] for row in rows_of(outcome.tables["fields"])}
    assert "42 rarer fields were left out" in self_contained(outcome.report)


def test_wrong_options_are_errors_with_the_reason_first(spark: SparkSession, tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [], [])
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "no-schema.json").write_text('{"type": "nothing"}')
    (tmp_path / "remote.json").write_text('{"$ref": "https://example.org/order.json"}')
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"schema": "missing.json"},
            r"^schema missing.json cannot be read: No such file or directory; give a JSON Sch",
        ),
        ({"schema": str(tmp_path / "bad.json")}, r"^schema .*bad.json is not valid JSON: "),
        ({"schema": str(tmp_path / "no-schema.json")}, r"no-schema.json is not a valid JSON Schema: 'nothing' is not"),
        (
            {"schema": str(tmp_path / "remote.json")},
            r"remote.json refers to 'https://example.org/order.json', which is",
        ),
        ({"schema": "os:getcwd"}, r"^schema os:getcwd is not a type that msgspec decodes: TypeError"),
        ({"schema": "nothing_here:X"}, r"^schema nothing_here:X is not a type that msgspec decodes: ModuleNotFound"),
        ({"schema": "a/1=os:x,A/1=os:y"}, r"^schema os:x is not a type"),
        ({"baseline": "2026-11-01"}, r"^baseline is an invalid period '2026-11-01'; use FROM/UNTIL"),
        ({"baseline": "2026-11-01/"}, r"^baseline has no end; add it, or set period"),
        ({"baseline": "/2026-11-05", "period": "2026-11-04/"}, r"^period .* and baseline .* overlap; choose separate"),
        ({"period": "2026-11-05/2026-11-04"}, r"^period from 2026-11-05 is not before 2026-11-04; exchange"),
        ({"moved": 0.0}, r"^moved must be between 0 and 1, fields at least 1$"),
        ({"fields": 0}, r"^moved must be between 0 and 1, fields at least 1$"),
        ({"queue": "a/x"}, r"^queue has an invalid queue 'a/x'; use CHANNEL/ID"),
    ]
    for options, reason in cases:
        with pytest.raises(errors.ConfigError, match=reason):
            pipelines.run("quality", spark, data, tmp_path / "out", **options)


def test_rules_are_chosen_by_queue(tmp_path: Path) -> None:
    schema = tmp_path / "s.json"
    schema.write_text("true")
    rules = parse(f"a={schema}, B/2={schema}, {schema}")
    assert set(rules) == {"a/0", "b/2", ""}
    assert rules[""].checker()(b"", {"anything": 1}) == []
    with pytest.raises(errors.ConfigError, match=r"^schema has two rules for a/0; give one$"):
        parse(f"a={schema},A/0={schema}")


def test_rates_that_chance_explains_are_not_drift() -> None:
    def profile(count: int, present: int, nulls: int) -> Any:
        row = {"queue": "q", "period": "p", "least": None, "different": 0}
        rows = [row | {"path": "$", "type": "object", "messages": count}]
        rows.append(row | {"path": "$.a", "type": "string", "messages": present - nulls})
        rows.append(row | {"path": "$.a", "type": "null", "messages": nulls})
        return fields_of(rows)[("q", "p")]

    def moved(before: tuple[int, int, int], now: tuple[int, int, int]) -> list[str]:
        return [row["what"] for row in drift_of("q", profile(*before), profile(*now), 0.2)]

    assert moved((1000, 500, 100), (1000, 590, 118)) == []
    assert moved((1000, 500, 100), (1000, 620, 124)) == ["missing rate"]
    assert moved((1000, 500, 100), (1000, 500, 160)) == ["null rate"]
    assert moved((10, 5, 1), (10, 8, 1)) == [], "ten messages say little"


def test_distributions_of_ids_and_counters_are_not_compared() -> None:
    def profile(first: int, different: int) -> Any:
        numbers = [float(first + at) for at in range(1000)]
        row = {"queue": "q", "period": "p", "messages": 1000}
        empty = dict.fromkeys(("least", "greatest", "mean", "deviation", "quantiles"))
        known = {"least": numbers[0], "greatest": numbers[-1], "mean": statistics.mean(numbers)}
        known |= {"deviation": statistics.stdev(numbers), "quantiles": numbers[5::10]}
        rows = [row | {"path": "$", "type": "object", "different": 0} | empty]
        rows.append(row | {"path": "$.n", "type": "integer", "different": different} | known)
        return fields_of(rows)[("q", "p")]

    def moved(before: Any, now: Any) -> list[tuple[str, float]]:
        return [(row["what"], row["distance"]) for row in drift_of("q", before, now, 0.2)]

    assert moved(profile(0, 980), profile(1000, 1020)) == []
    assert moved(profile(0, 100), profile(1000, 100)) == [("distribution", 1.0)]
    assert moved(profile(0, 980), profile(500, 100)) == [("distribution", pytest.approx(0.5, abs=0.01))]
    assert moved(profile(0, 100), profile(100, 100)) == []
