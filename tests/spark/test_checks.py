"""Checks of rows before any is published: each reason, and that Arrow overlooks no row. Without Spark and a broker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from mqcore.spark import checks  # noqa: E402
from mqcore.spark.checks import FRAME_BYTES, HEADERS_BYTES_MAX, Rules, Survey, inspect, queue_problem  # noqa: E402
from mqcore.spark.ledger import Contents  # noqa: E402
from mqcore.spark.rows import raw_rows  # noqa: E402

RULES = Rules("target/1", "sink/0/", 64 << 20)
PLACED = Rules(None, "sink/0/", 64 << 20)
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MAP = pa.map_(pa.string(), pa.string())
NAME_LINE_BYTES = len("Mqcore-Sink:sink/0/\r\n") + 20


def batch(columns: dict[str, Any], **types: Any) -> Any:
    """Rows whose columns have the types that Spark gives them."""
    kinds = {"headers": PAIRS, "queue_id": pa.int32(), "queue": pa.string(), "channel": pa.string()} | types
    arrays = [pa.array(values, kinds.get(name)) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def reasons(rows: Any, rules: Rules = RULES) -> dict[int, str]:
    return {index: rejection.reason for index, rejection in inspect(rows, rules).invalid.items()}


def detail(rows: Any, rules: Rules = RULES) -> str:
    (rejection,) = inspect(rows, rules).invalid.values()
    return rejection.detail


def header(key: Any, value: Any = b"x") -> list[dict[str, Any]]:
    return [{"key": key, "value": value}]


def test_null_and_large_values_are_invalid() -> None:
    assert reasons(batch({"value": ["a", None, ""]})) == {1: "value-null"}
    assert reasons(batch({"value": [b"a", None]})) == {1: "value-null"}
    small = Rules("target/1", "sink/0/", 10_000)
    room = 10_000 - FRAME_BYTES - NAME_LINE_BYTES
    for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        rows = batch({"value": [b"x" * room, b"x" * (room + 1)]}, value=kind)
        assert reasons(rows, small) == {1: "value-too-large"}
    rows = batch({"value": [b"x" * (room - 13), b"x" * (room - 12)], "headers": [header("k" * 5, b"v" * 5)] * 2})
    assert reasons(rows, small) == {1: "value-too-large"}
    assert "the limit is 10,000 (option maxMessageBytes" in detail(rows, small)
    assert reasons(batch({"value": ["ä" * (room // 2 + 1)]}), small) == {0: "value-too-large"}, "bytes, not characters"


def test_keys_have_at_most_255_bytes_of_utf_8() -> None:
    keys = ["k" * 255, "k" * 256, None, "", "ä" * 128]
    assert reasons(batch({"value": ["x"] * 5, "key": keys})) == {1: "key-too-long", 4: "key-too-long"}
    assert "the key has 300 bytes, the limit is 255" in detail(batch({"value": ["x"], "key": ["k" * 300]}))
    found = reasons(batch({"value": ["x"] * 4, "key": [b"\xff", b"plain", None, b"k" * 256]}))
    assert found == {0: "key-not-text", 3: "key-too-long"}
    assert reasons(batch({"value": ["x"] * 3, "key": [0, -(1 << 63), None]}, key=pa.int64())) == {}


def test_rows_name_a_queue_that_can_exist() -> None:
    columns = {"value": ["x"] * 4, "queue": ["a/1", None, None, None], "channel": [None, "a", None, ""]}
    found = reasons(batch({**columns, "queue_id": [70_000, 70_000, 1, None]}), PLACED)
    assert found == {1: "queue-invalid", 2: "queue-null", 3: "queue-invalid"}
    assert reasons(batch({**columns, "queue_id": [None, -1, 1, 1]}), PLACED)[1] == "queue-invalid"
    assert reasons(batch(columns), RULES) == {}, "the option overrides the columns"
    assert reasons(batch({"value": ["x"], "channel": [None]}), PLACED) == {0: "queue-null"}
    assert reasons(batch({"value": ["x"], "queue": [None]}), PLACED) == {0: "queue-null"}
    assert "must be from 0 to 65,535" in detail(batch({"value": ["x"], "queue": ["orders/65536"]}), PLACED)


@pytest.mark.parametrize("name", ["a/1", "a", "a/b/2", "logs/eu", "Größe/0", "@topic:a.b", "x" * 255, f"{'x' * 255}/1"])
def test_names_of_queues(name: str) -> None:
    assert queue_problem(name) is None


@pytest.mark.parametrize(
    "name",
    [
        *("", "/1", "a b/1", "a;b", "a*/1", "@a", "a\n/1", "a\x85", "x" * 256, f"{'ä' * 128}/1"),
        *("a/65536", "a/-1", "a/" + "9" * 5000, "@topic:", "@topic:" + "x" * 249),
    ],
)
def test_names_that_no_queue_can_have(name: str) -> None:
    assert queue_problem(name) is not None


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        (header(None), "no key"),
        (header(""), "no key"),
        ([None], "no key"),
        (header("a:b"), "without colons"),
        (header("a\nb"), "without colons and line breaks"),
        (header("a", b"b\rc"), "no line breaks"),
        (header("a", b"\xff"), "not valid UTF-8"),
        (header("mqcore-DELAY", b"soon"), "a whole number from 0 to"),
        (header("Mqcore-Delay", b"9" * 5000), "a whole number from 0 to"),
        (header("Mqcore-Expires-In", b""), "a whole number from 0 to"),
        (header("Mqcore-Priority", b"256"), "a whole number from 0 to 255"),
        (header("Mqcore-Delay", b"20") + header("Mqcore-Expires-In", b"20"), "expires before its delay ends"),
    ],
)
def test_headers_that_no_message_can_have(headers: list[Any], word: str) -> None:
    fine = (
        header("Color", b"red") + header("Mqcore-Delay", b"5") + header("Mqcore-Priority", b" 7 ") + header("x", None)
    )
    rows = batch({"value": ["x"] * 5, "headers": [None, fine, headers, [], fine]})
    assert reasons(rows) == {2: "header-invalid"}
    assert reasons(rows.slice(2)) == {0: "header-invalid"}
    assert reasons(rows.slice(1, 2)) == {1: "header-invalid"}
    assert reasons(rows.slice(3)) == {}
    assert word in detail(rows)


def test_first_of_repeated_terms_counts() -> None:
    assert (
        reasons(batch({"value": ["x"], "headers": [header("Mqcore-Priority", b"1") + header("mqcore-priority", b"?")]}))
        == {}
    )


def test_headers_may_be_maps() -> None:
    maps = [None, [("a", "1"), ("b", None)], [], [("a:", "1")], [("c", "3")]]
    rows = batch({"value": ["x"] * 5, "headers": maps}, headers=MAP)
    assert reasons(rows) == {3: "header-invalid"}
    assert reasons(rows.slice(2, 2)) == {1: "header-invalid"}
    assert reasons(rows.slice(4)) == {}


def test_headers_have_at_most_65535_bytes() -> None:
    room = HEADERS_BYTES_MAX - len("a:\r\n")
    rows = batch(
        {"value": ["x"] * 3, "headers": [header("b"), header("a", b"v" * room), header("a", b"v" * (room + 1))]}
    )
    assert reasons(rows) == {2: "headers-too-large"}
    assert reasons(rows.slice(1)) == {1: "headers-too-large"}
    # The name of a row with a key is also a header.
    room -= NAME_LINE_BYTES
    columns = {"value": ["x"] * 2, "key": ["k"] * 2}
    rows = batch({**columns, "headers": [header("a", b"v" * room), header("a", b"v" * (room + 1))]})
    assert reasons(rows) == {1: "headers-too-large"}
    many = [header("key", b"value") * 7_000, header("key", b"value")]
    assert reasons(batch({"value": ["x"] * 2, "headers": many})) == {0: "headers-too-large"}
    assert "the limit is 65,535" in detail(batch({"value": ["x"] * 2, "headers": many}))


TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "a/1", "a b", "x" * 256, "a/70000", "@topic:x"]))
BYTES = st.one_of(st.none(), st.sampled_from([b"", b"a", b"\xff", b"k" * 300, b"a\nb"]))
HEADERS = st.lists(
    st.one_of(
        st.none(),
        st.builds(
            lambda key, value: {"key": key, "value": value},
            st.sampled_from([None, "", "a", "a:b", "cc", "MQCORE-delay", "Mqcore-Priority", "k" * 40_000]),
            st.sampled_from([None, b"", b"5", b"x", b"\xff", b"a\nb", b"v" * 30_000]),
        ),
    ),
    max_size=4,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.one_of(st.none(), st.sampled_from([b"", b"x", b"x" * 70_000, b"x" * 200_000])),
            "key": BYTES,
            "queue": TEXTS,
            "channel": TEXTS,
            "queue_id": st.sampled_from([None, 0, 65_535, 65_536, -1]),
            "headers": st.one_of(st.none(), HEADERS),
        }
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(ROWS, st.integers(0, 3), st.booleans())
def test_no_row_is_overlooked(rows: list[dict[str, Any]], skipped: int, placed: bool) -> None:
    """Every row by itself has the same findings as among others, and as the check of one row in Python."""
    rules = Rules(None if placed else "a/1", "sink/0/", 190_000)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    table = batch(columns, value=pa.binary(), key=pa.binary()).slice(skipped)
    found = inspect(table, rules)
    expected = {
        index: rejection
        for index, row in enumerate(raw_rows(table, rules.queue))
        if (rejection := checks._rejection(row, rules)) is not None
    }
    assert found.invalid == expected
    for index in range(table.num_rows):
        alone = inspect(table.slice(index, 1), rules)
        assert alone.invalid == ({0: expected[index]} if index in expected else {})
        assert bool(alone.delayed) == (index in found.delayed)


def test_survey_adds_up_valid_rows_by_queue() -> None:
    survey = Survey(PLACED)
    first = batch(
        {
            "value": ["aaa", "b", None, "cccc"],
            "queue": ["a/1", "b/1", "c/1", None],
            "channel": [None, None, None, "b"],
            "queue_id": [None, None, None, 1],
        }
    )
    delays = [header("mqcore-delay", b"1"), header("Mqcore-Delay", b"0"), header("A"), None]
    second = batch({"value": ["a", "b", "c", "d"], "queue": ["a/1", "b/1", "d/1", "e f"], "headers": delays})
    assert list(survey.passing([first, second])) == [first, second]
    assert survey.contents() == Contents(2, {"a/1": 3, "b/1": 4, "d/1": 1}, frozenset({"a/1"}))
    survey = Survey(RULES)
    survey.add(second)
    assert survey.contents() == Contents(0, {"target/1": 1}, frozenset({"target/1"}))
    survey = Survey(PLACED)
    survey.add(batch({"value": [None, None], "queue": ["a/1", "a/1"]}, value=pa.string()))
    assert survey.contents() == Contents(2)
    assert Survey(RULES).contents() == Contents()
