"""Files of a sink's ledger: what is synced when, what is damaged, and what is removed. Without Spark and a broker."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from mqcore import errors
from mqcore.spark.ledger import Batch, Contents, Ledger, Place, Staged, Stager, sink_name


def stage(place: Path, partition: int, values: list[str], *, batch: int = 0, size: int = 2) -> Staged:
    """Rows of one task, in record batches of `size` rows."""
    parts = (
        pa.RecordBatch.from_pydict({"value": values[first : first + size]}) for first in range(0, len(values), size)
    )
    return Stager(str(place), "sink", batch, partition, 0).write(parts)


def promised(ledger: Ledger, *staged: Staged, number: int = 0) -> Batch:
    """The batch of these rows."""
    batch, ours = ledger.promise(number, staged, None)
    assert ours
    return batch


def manifests(place: Path) -> Path:
    return place / "sink" / "manifests"


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"done": 3}', '{"published": null}', '{"published": "many"}'])
def test_unreadable_progress_is_damage_and_not_zero(tmp_path: Path, text: str) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    promised(ledger, stage(tmp_path, 0, ["a", "b"]))
    ledger.advance(0, 1)
    assert ledger.published(0) == 1
    (manifests(tmp_path) / "0.progress").write_text(text)
    for read in (lambda: ledger.published(0), lambda: ledger.find(0), lambda: ledger.advance(0, 2)):
        with pytest.raises(errors.DataDirDamaged, match="progress of batch 0"):
            read()


MANIFEST = {"format": "mqcore.sink/1", "sink": "sink", "batch": 0, "files": [], "rows": 0, "before": None}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        json.dumps({**MANIFEST, "format": "mqcore.sink/2"}),
        json.dumps({**MANIFEST, "rows": "many"}),
        json.dumps({**MANIFEST, "contents": {"invalid": 1, "largest": {}}}),
        json.dumps({**MANIFEST, "contents": {"invalid": 1, "largest": [], "delayed": []}}),
        *(
            json.dumps({name: value for name, value in MANIFEST.items() if name != missing})
            for missing in ("format", "files", "rows", "before")
        ),
    ],
)
def test_unreadable_manifest_is_damage_and_not_a_batch_without_one(tmp_path: Path, text: str) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    (manifests(tmp_path) / "0.json").write_text(text)
    with pytest.raises(errors.DataDirDamaged, match=r"invalid manifest .*0\.json"):
        ledger.find(0)
    with pytest.raises(errors.DataDirDamaged, match=r"invalid manifest .*0\.json"):
        ledger.promise(0, [stage(tmp_path, 0, ["a"])], None)


def test_manifest_of_this_format_is_read(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    assert ledger.find(0) is None
    (manifests(tmp_path) / "0.json").write_text(json.dumps({**MANIFEST, "files": ["a"], "rows": 7, "before": [1]}))
    assert ledger.find(0) == Batch(0, ("a",), 7, [1], 0)


def test_manifest_has_the_contents_of_all_tasks_or_none(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    found = [Contents(1, {"a": 3, "b": 1}, frozenset({"a"})), Contents(2, {"b": 2, "c": 0}, frozenset({"c"}))]
    staged = [replace(stage(tmp_path, number, ["x"]), contents=part) for number, part in enumerate(found)]
    empty = stage(tmp_path, 2, [])
    expected = Contents(3, {"a": 3, "b": 2, "c": 0}, frozenset({"a", "c"}))
    assert ledger.draft(0, [*staged, empty]).contents == expected
    assert promised(ledger, *staged, empty).contents == expected
    read = ledger.find(0)
    assert read is not None
    assert read.contents == expected
    unchecked = stage(tmp_path, 3, ["x"], batch=1)
    assert promised(ledger, *staged, unchecked, number=1).contents is None


def test_places_of_rows_are_numbered_in_their_files_and_in_the_batch(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    batch = promised(ledger, stage(tmp_path, 0, ["a", "b", "c"]), stage(tmp_path, 1, ["d", "e", "f"]))
    first, second = batch.files

    def places(begin: int) -> list[tuple[str, int, int, int]]:
        return [(*place[:3], place.rows.num_rows) for place in ledger.places(batch, begin)]

    assert places(0) == [(first, 0, 0, 2), (first, 2, 2, 1), (second, 0, 3, 2), (second, 2, 5, 1)]
    assert places(4) == [(second, 1, 4, 1), (second, 2, 5, 1)]
    assert isinstance(next(ledger.places(batch, 0)), Place)


@pytest.mark.parametrize("content", [b"", b"no arrow"])
def test_staged_rows_that_cannot_be_read_are_damage(tmp_path: Path, content: bytes) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    batch = promised(ledger, stage(tmp_path, 0, ["a"]))
    (tmp_path / "sink" / "staged" / batch.files[0]).write_bytes(content)
    with pytest.raises(errors.DataDirDamaged, match="staged rows of batch 0"):
        list(ledger.rows(batch, 0))


# --- order and progress ----------------------------------------------------------------------------------------------


def test_rows_are_in_the_order_of_partitions_however_tasks_finish(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    staged = [stage(tmp_path, partition, [f"{partition}"]) for partition in (100_000, 10, 0, 9)]
    batch = promised(ledger, *staged)
    assert [rows.column("value").to_pylist() for _, rows in ledger.rows(batch, 0)] == [["0"], ["9"], ["10"], ["100000"]]
    assert batch.rows == 4


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (0, [(0, ["a", "b"]), (2, ["c"]), (3, ["d", "e"])]),
        (1, [(1, ["b"]), (2, ["c"]), (3, ["d", "e"])]),
        (2, [(2, ["c"]), (3, ["d", "e"])]),
        (3, [(3, ["d", "e"])]),
        (4, [(4, ["e"])]),
        (5, []),
    ],
)
def test_rows_begin_at_the_wanted_one_with_their_numbers(
    tmp_path: Path, first: int, found: list[tuple[int, list[str]]]
) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    batch = promised(ledger, stage(tmp_path, 0, ["a", "b", "c"]), stage(tmp_path, 1, ["d", "e"]))
    assert [(number, rows.column("value").to_pylist()) for number, rows in ledger.rows(batch, first)] == found


def test_progress_never_decreases_and_ends_with_the_last_row(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    promised(ledger, stage(tmp_path, 0, ["a", "b", "c"]))
    assert ledger.published(0) == 0
    for advanced, published in ((2, 2), (1, 2), (2, 2), (0, 2), (3, 3), (2, 3)):
        ledger.advance(0, advanced)
        batch = ledger.find(0)
        assert batch is not None
        assert (batch.published, batch.is_done) == (published, published == 3)
    assert sorted(path.name for path in manifests(tmp_path).iterdir()) == ["0.json", "0.progress"]


def test_second_promise_of_a_batch_leaves_no_file_behind(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    first = promised(ledger, stage(tmp_path, 0, ["a"]))
    again, ours = ledger.promise(0, [stage(tmp_path, 0, ["b"])], [{"shard": 0}])
    assert (again, ours) == (first, False)
    assert [path.name for path in manifests(tmp_path).iterdir()] == ["0.json"]


# --- sweeping --------------------------------------------------------------------------------------------------------


def finish(place: Path, ledger: Ledger, number: int, **how: bool) -> None:
    """Commit and publish a batch of two rows, and sweep."""
    promised(ledger, stage(place, 0, ["a", "b"], batch=number), number=number)
    ledger.advance(number, 2)
    ledger.sweep(number, **how)


def in_staging(place: Path) -> set[int]:
    """Batches with staged rows."""
    return {int(path.name.partition("-")[0]) for path in (place / "sink" / "staged").iterdir()}


def test_sweep_of_a_stream_keeps_its_last_100_manifests_and_no_staged_rows(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    (manifests(tmp_path) / "notes.txt").write_text("a file of another program")
    for number in range(105):
        finish(tmp_path, ledger, 2 * number, ascending=True)
    assert in_staging(tmp_path) == set()
    assert {path.name for path in manifests(tmp_path).iterdir()} == {
        *(f"{2 * number}.{kind}" for number in range(5, 105) for kind in ("json", "progress")),
        "notes.txt",
    }


def test_sweep_of_a_stream_removes_staged_rows_of_earlier_attempts_only(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    for number in (6, 7, 8):
        stage(tmp_path, 1, ["not committed"], batch=number)
    finish(tmp_path, ledger, 7, ascending=True)
    assert in_staging(tmp_path) == {8}


def test_sweep_keeps_the_rows_of_a_write_that_is_not_finished(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    half = promised(ledger, stage(tmp_path, 0, ["a", "b", "c"], batch=5), number=5)
    ledger.advance(5, 1)
    stage(tmp_path, 0, ["of a write in parallel"], batch=4)
    for how in (False, True):
        finish(tmp_path, ledger, 6 + how, ascending=how)
        assert ledger.find(5) == replace(half, published=1)
        assert [rows.column("value").to_pylist() for _, rows in ledger.rows(half, 1)] == [["b"], ["c"]]
        assert in_staging(tmp_path) == ({5} if how else {4, 5})


def test_finished_write_is_found_after_any_number_of_others(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    for number in (20_260_930, 1, 1000, 20_261_121, *range(2000, 2101)):
        finish(tmp_path, ledger, number)
    for number in (1, 1000, 2000, 20_260_930):
        batch = ledger.find(number)
        assert batch is not None
        assert (batch.rows, batch.published, batch.is_done) == (2, 2, True)
        again, ours = ledger.promise(number, [stage(tmp_path, 0, ["other"], batch=number)], None)
        assert (again, ours) == (batch, False)
    assert ledger.find(2) is None


def test_finished_write_keeps_one_small_file(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    tasks = [stage(tmp_path, number, ["a"], batch=3) for number in range(50)]
    promised(ledger, *tasks, number=3)
    ledger.advance(3, 50)
    ledger.sweep(3)
    (left,) = manifests(tmp_path).iterdir()
    assert left.stat().st_size < 200
    ledger.advance(3, 20)
    ledger.sweep(3)
    assert ledger.published(3) == 50
    assert list(manifests(tmp_path).iterdir()) == [left]


def test_sweep_leaves_damaged_batches_to_their_own_repetition(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    promised(ledger, stage(tmp_path, 0, ["a"], batch=1), number=1)
    (manifests(tmp_path) / "1.json").write_text("{")
    finish(tmp_path, ledger, 2)
    assert in_staging(tmp_path) == {1}


def test_names_of_up_to_100_plain_characters_stay_as_they_are() -> None:
    assert sink_name("x" * 100, None) == "x" * 100
    assert len(sink_name("x" * 101, None)) == 32
    assert sink_name(None, "a.b") != "a.b"


# --- syncing ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Calls that make files durable or visible, in order, as names of the call and of the file. All are carried out."""
    calls: list[tuple[str, str]] = []
    fsync, link, replace = os.fsync, os.link, os.replace

    def note_fsync(descriptor: int) -> None:
        assert os.fstat(descriptor).st_size > 0, "what is not written yet is not synced"
        calls.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def note_link(source: Path, target: Path) -> None:
        calls.append(("link", Path(target).name))
        link(source, target)

    def note_replace(source: Path, target: Path) -> None:
        calls.append(("replace", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "link", note_link)
    monkeypatch.setattr(os, "replace", note_replace)
    return calls


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux names the file of a descriptor")
def test_rows_manifest_and_progress_are_synced_before_they_count(tmp_path: Path, synced: list[tuple[str, str]]) -> None:
    ledger = Ledger(str(tmp_path), "sink")
    staged = stage(tmp_path, 0, ["a", "b"])
    assert synced == [("sync", staged.file)]
    synced.clear()
    promised(ledger, staged)
    (manifest, unfinished), *rest = synced
    assert manifest == "sync"
    assert unfinished.startswith("0.")
    assert unfinished.endswith(".part")
    assert rest == [("link", "0.json"), ("sync", "manifests")]
    synced.clear()
    ledger.advance(0, 2)
    (progress, unfinished), *rest = synced
    assert progress == "sync"
    assert unfinished.startswith("0.progress.")
    assert rest == [("replace", "0.progress")]
    synced.clear()
    ledger.sweep(0)
    (manifest, unfinished), *rest = synced
    assert manifest == "sync"
    assert unfinished.startswith("0.")
    assert rest == [("replace", "0.json"), ("sync", "manifests")], "before the progress is removed"
