"""Rows of a DataFrame as messages: where they go, their names, headers and bodies."""

from __future__ import annotations

from typing import Any

import pytest

from mqcore import errors

pa = pytest.importorskip("pyarrow")

from mqcore.spark.rows import NAME_HEADER, Outgoing, Row, check_columns, is_keyed, outgoing, queue_names  # noqa: E402


def messages(columns: dict[str, list[Any]], queue: str | None = None) -> list[Outgoing]:
    return list(outgoing(pa.RecordBatch.from_pydict(columns), 5, "sink/0/", queue))


TYPES = {"queue_id": "int", "high_priority": "boolean", "headers": "map<string,string>"}


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
        check_columns([(name, TYPES.get(name, "string")) for name in names], queue)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("value", kind) for kind in ("int", "struct<a:int>", "array<binary>", "void")),
        *(("key", kind) for kind in ("double", "boolean", "timestamp")),
        *(("queue", "binary"), ("channel", "int"), ("queue_id", "string"), ("high_priority", "int")),
        *(
            ("headers", kind)
            for kind in ("string", "map<string,int>", "array<string>", "array<struct<k:string,v:string>>")
        ),
    ],
)
def test_columns_of_a_type_that_no_message_has_are_named(name: str, kind: str) -> None:
    columns = {"value": "string", "queue": "string"} | {name: kind}
    with pytest.raises(errors.ConfigError, match=f"the column {name} is of type .*; convert it to "):
        check_columns(list(columns.items()), None)


@pytest.mark.parametrize(
    "columns",
    [
        {"value": "string", "channel": "string", "queue_id": "smallint"},
        {"value": "binary", "queue": "string", "key": "bigint", "high_priority": "boolean"},
        {"value": "varchar(7)", "queue": "char(7)", "key": "binary", "headers": "map<string,binary>"},
        {"value": "string collate UNICODE", "queue": "string", "headers": "array<struct<key:string,value:binary>>"},
        {"value": "string", "queue": "string", "headers": "array<struct<value:string,key:string>>"},
    ],
)
def test_columns_that_make_messages_are_accepted(columns: dict[str, str]) -> None:
    check_columns(list(columns.items()), None)
    check_columns([("value", "string")], "a/1")


def test_rows_have_names_by_their_number_and_only_rows_with_a_key_a_header() -> None:
    first, second, third = messages({"value": ["text", b"bytes", b""], "key": [None, "k", b"raw"]}, "a/1")
    assert first == Outgoing("sink/0/5", 5, "a/1", "sink/0/5", b"text", [], False)
    assert second == Outgoing("sink/0/6", 6, "a/1", "k", b"bytes", [(NAME_HEADER, "sink/0/6")], False)
    assert third == Outgoing("sink/0/7", 7, "a/1", "raw", b"", [(NAME_HEADER, "sink/0/7")], False)
    assert [each.id for each in messages({"value": ["a", "b"]}, "a/1")] == ["sink/0/5", "sink/0/6"]


def test_empty_keys_count_as_none_and_numbers_as_text() -> None:
    for empty in ("", b""):
        (row,) = messages({"value": ["x"], "key": [empty]}, "a/1")
        assert (row.id, row.headers) == ("sink/0/5", [])
    zero, negative = messages({"value": ["x", "y"], "key": [0, -7]}, "a/1")
    assert (zero.id, negative.id) == ("0", "-7")


def test_rows_may_be_keyed_if_some_key_is_not_null() -> None:
    for keys, keyed in (([None, "a"], True), ([None, None], False)):
        assert is_keyed(pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.string())})) == keyed
    assert not is_keyed(pa.RecordBatch.from_pydict({"value": ["a"]}))


def test_headers_of_the_sink_and_copies_are_not_passed_on() -> None:
    headers = [
        {"key": key, "value": "1"}
        for key in ("cc", "CC", "mqcore-sink", "Cc2", "Request-Id", "No-Content", "Mqcore-Delay")
    ]
    (row,) = messages({"value": ["x"], "key": ["k"], "headers": [headers]}, "a/1")
    assert row.headers == [("Cc2", "1"), ("Mqcore-Delay", "1"), (NAME_HEADER, "sink/0/5")]


def test_invalid_rows_are_made_by_the_caller() -> None:
    made: list[tuple[str, int, Row]] = []

    def reject(name: str, number: int, row: Row) -> Outgoing:
        made.append((name, number, row))
        return Outgoing(name, number, "bad/1", name, b"", [], False, True)

    rows = pa.RecordBatch.from_pydict({"value": ["a", None, "c"], "key": ["k", "l", "m"]})
    found = list(outgoing(rows, 5, "sink/0/", "a/1", {1: reject}))
    assert [(row.queue, row.number) for row in found] == [("a/1", 5), ("bad/1", 6), ("a/1", 7)]
    assert made == [("sink/0/6", 6, Row(None, "l", "a/1", None, None))]


def test_headers_are_maps_or_lists_of_pairs() -> None:
    structs = [{"key": "a", "value": "ä".encode()}, {"key": "b", "value": None}]
    (row,) = messages({"value": ["x"], "headers": [structs], "high_priority": [True]}, "a/1")
    assert (row.headers, row.high_priority) == ([("a", "ä"), ("b", "")], True)
    kind = pa.map_(pa.string(), pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array(["x"]), pa.array([[("a", "1")]], kind)], ["value", "headers"])
    (row,) = outgoing(batch, 0, "p", "a/1")
    assert row.headers == [("a", "1")]


def test_queue_of_the_option_overrides_the_column_queue_and_that_the_column_channel() -> None:
    columns = {"value": ["x"] * 3, "queue": ["q/1", None, None], "channel": ["c", "c", "d"], "queue_id": [9, 2, None]}
    assert [row.queue for row in messages(columns)] == ["q/1", "c/2", "d/0"]
    assert {row.queue for row in messages(columns, "o/1")} == {"o/1"}
    assert queue_names(pa.RecordBatch.from_pydict(columns)) == ["q/1", "c/2", "d/0"]
    assert queue_names(pa.RecordBatch.from_pydict({"value": ["x"]})) == [None]
    with pytest.raises(errors.InvalidArgument, match="row 6 of sink/0/ names no queue"):
        messages({"value": ["x"] * 2, "queue": ["q/1", None]})
