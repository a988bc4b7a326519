"""Output of lists: the same text as ever, written once."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Mapping

import pytest

from mqcore.cli import output


@dataclasses.dataclass(frozen=True)
class Inner:
    name: str
    sizes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    counts: Mapping[str, int]
    others: list[Inner]
    missing: float | None = None


def test_nested_records_are_json_as_of_asdict() -> None:
    record = Outer("a", Inner("b", (1, 2)), {"x": 1}, [Inner("c")])
    assert json.dumps(output.plain(record)) == json.dumps(dataclasses.asdict(record))


class CountingStream(io.StringIO):
    flushes = 0

    def flush(self) -> None:
        self.flushes += 1
        super().flush()


def test_list_is_flushed_once_and_not_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = CountingStream()
    monkeypatch.setattr(sys, "stdout", stream)
    output.rows("x/1", "rows", [{"a": number, "b": None} for number in range(1000)], ("a", "b"), as_json=False)
    assert stream.getvalue() == "a\tb\n" + "".join(f"{number}\t-\n" for number in range(1000))
    assert stream.flushes <= 2
