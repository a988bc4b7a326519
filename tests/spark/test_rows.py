"""Rows of a DataFrame as messages: where they go, their names, headers and bodies."""

from __future__ import annotations

from typing import Any

import pytest

from mqcore import errors

pa = pytest.importorskip("pyarrow")

from mqcore.spark.rows import NAME_HEADER, Outgoing, check_columns, outgoing, queues_of  # noqa: E402


def messages(columns: dict[str, list[Any]], queue: str | None = None) -> list[Outgoing]:
    return list(outgoing(pa.RecordBatch.from_pydict(columns), 5, "sink/0/", queue))


@pytest.mark.parametrize(
    ("names", "queue", "why"),
    [
        (["value", "body"], "a/1", "unknown column 'body'; rows can have value, key, "),
        (["queue"], None, "the column value is missing"),
        (["value", "queue_id"], None, "say where rows go"),
    ],
)
def test_columns_that_make_no_message_are_named(names: list[str], queue: str | None, why: str) -> None:
    with pytest.raises(errors.ConfigError, match=why):
        check_columns(names, queue)


@pytest.mark.parametrize(
    ("names", "queue"), [(["value"], "a/1"), (["value", "queue"], None), (["value", "channel"], None)]
)
def test_columns_that_make_messages_are_accepted(names: list[str], queue: str | None) -> None:
    check_columns(names, queue)


def test_rows_have_names_by_their_number_and_only_rows_with_a_key_a_header() -> None:
    first, second, third = messages({"value": ["text", b"bytes", None], "key": [None, "k", b"raw"]}, "a/1")
    assert first == Outgoing("sink/0/5", 5, "a/1", "sink/0/5", b"text", [], False)
    assert second == Outgoing("sink/0/6", 6, "a/1", "k", b"bytes", [(NAME_HEADER, "sink/0/6")], False)
    assert third == Outgoing("sink/0/7", 7, "a/1", "raw", b"", [(NAME_HEADER, "sink/0/7")], False)
    assert [each.id for each in messages({"value": ["a", "b"]}, "a/1")] == ["sink/0/5", "sink/0/6"]


def test_headers_are_maps_or_lists_of_pairs() -> None:
    structs = [{"key": "a", "value": b"\xff1"}, {"key": "b", "value": None}]
    (row,) = messages({"value": ["x"], "headers": [structs], "high_priority": [True]}, "a/1")
    assert (row.headers, row.high_priority) == ([("a", "\ufffd1"), ("b", "")], True)
    kind = pa.map_(pa.string(), pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array(["x"]), pa.array([[("a", "1")]], kind)], ["value", "headers"])
    (row,) = outgoing(batch, 0, "p", "a/1")
    assert row.headers == [("a", "1")]


def test_queue_of_the_option_overrides_the_column_queue_and_that_the_column_channel() -> None:
    columns = {"value": ["x"] * 3, "queue": ["q/1", None, None], "channel": ["c", "c", "d"], "queue_id": [9, 2, None]}
    assert [row.queue for row in messages(columns)] == ["q/1", "c/2", "d/0"]
    assert {row.queue for row in messages(columns, "o/1")} == {"o/1"}
    batch = pa.RecordBatch.from_pydict(columns)
    assert queues_of(batch) == {"q/1", "c/2", "d/0"}
    assert queues_of(pa.RecordBatch.from_pydict({"value": ["x"]})) == set()
    with pytest.raises(errors.InvalidArgument, match="row 6 of sink/0/ names no queue"):
        messages({"value": ["x"] * 2, "queue": ["q/1", None]})
