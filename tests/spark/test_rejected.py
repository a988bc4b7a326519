"""Messages for the queue of rejected rows: what is left of a row that cannot be published. Without Spark or broker."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow")

from mqcore.spark.checks import Rejection
from mqcore.spark.rejected import Rejecter
from mqcore.spark.rows import Outgoing, Row

WHY = Rejection("key-too-long", "the key\r\nis too long")
REJECTED = [("Rejected-Reason", "key-too-long"), ("Rejected-Error", "the key is too long")]


def rejected(value: Any = b"body", key: Any = None, queue: str | None = "a/1", headers: Any = None) -> Outgoing:
    row = Row(value, key, queue, headers, None)
    return Rejecter("bad/1", 2 << 20).of_row(WHY, "sink/0/7", 7, row)


def test_message_has_reason_queue_key_and_body() -> None:
    expected = [*REJECTED, ("Rejected-Queue", "a/1"), ("Rejected-Key", "k" * 300)]
    assert rejected(key="k" * 300) == Outgoing("sink/0/7", 7, "bad/1", "sink/0/7", b"body", expected, False, True)
    assert rejected(value="text", queue=None).body == b"text"
    assert rejected(value=None, queue=None) == Outgoing("sink/0/7", 7, "bad/1", "sink/0/7", b"", REJECTED, False, True)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("k" * 2000, ("Rejected-Key", "k" * 1024)),
        ("", ("Rejected-Key", "")),
        (17, ("Rejected-Key", "17")),
        ("ä" * 600, ("Rejected-Key", "ä" * 512)),
        (b"\xff\x00", ("Rejected-Key-Base64", "/wA=")),
        ("a\nb", ("Rejected-Key-Base64", "YQpi")),
    ],
)
def test_keys_are_text_or_base64(key: Any, expected: tuple[str, str]) -> None:
    assert rejected(key=key).headers[-1] == expected


def test_large_bodies_are_truncated() -> None:
    assert ("Rejected-Body-Bytes", str(2 << 20)) not in rejected(value=b"x" * (2 << 20)).headers
    large = rejected(value=b"x" * ((2 << 20) + 1))
    assert (len(large.body), large.headers[-1]) == (1 << 20, ("Rejected-Body-Bytes", str((2 << 20) + 1)))
    small = Rejecter("bad/1", 10).of_row(WHY, "n", 0, Row("x" * 11, None, None, None, True))
    assert (small.body, small.headers[-1], small.high_priority) == (b"x" * 10, ("Rejected-Body-Bytes", "11"), True)


def test_headers_are_kept_unless_they_are_invalid_or_a_queue_acts_on_them() -> None:
    headers: list[Any] = [
        {"key": "Color", "value": b"red"},
        {"key": "Empty", "value": None},
        {"key": "mqcore-sink", "value": b"other/1/2"},
        *(
            {"key": key, "value": b"1"}
            for key in ("CC", "Mqcore-Delay", "mqcore-Priority", "Rejected-Reason", None, "", "a:")
        ),
        {"key": "a", "value": b"\xff"},
        {"key": "a", "value": b"x\ny"},
        None,
    ]
    found = rejected(headers=headers).headers
    assert found == [
        ("Color", "red"),
        ("Empty", ""),
        *REJECTED,
        ("Rejected-Queue", "a/1"),
        ("Rejected-Headers-Omitted", "10"),
    ]
    found = rejected(headers=[("a", "v" * 50_000), ("b", "v" * 50_000), ("c", "v")]).headers
    assert [key for key, _ in found] == [
        "a",
        "Rejected-Reason",
        "Rejected-Error",
        "Rejected-Queue",
        "Rejected-Headers-Omitted",
    ]
    assert found[-1] == ("Rejected-Headers-Omitted", "2")
    worst = rejected(key="k" * 9999, queue="q" * 9999, headers=[("a", "v" * (65_535 - 8192 - 4))])
    assert sum(len(key) + len(value) + 3 for key, value in worst.headers) < 65_535


def test_message_that_its_queue_does_not_take_loses_its_name_and_keeps_its_key() -> None:
    rejecter = Rejecter("bad/1", 100)
    keyed = Outgoing("s/0/1", 1, "a/1", "key", b"b", [("A", "1"), ("Mqcore-Sink", "s/0/1")], True)
    expected = [("A", "1"), *REJECTED, ("Rejected-Queue", "a/1"), ("Rejected-Key", "key")]
    assert rejecter.of_message(WHY, keyed) == Outgoing("s/0/1", 1, "bad/1", "s/0/1", b"b", expected, True, True)
    plain = Outgoing("s/0/1", 1, "a/1", "s/0/1", b"b", [], False)
    assert rejecter.of_message(WHY, plain).headers == [*REJECTED, ("Rejected-Queue", "a/1")]
