"""`mqcore journal export` into files of rows, read back with another program's library and compared value by value."""

from __future__ import annotations

import datetime
import json
import signal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

import mqcore
from damaged_files import use_old_placement
from mqcore import QueueOptions, QueueStatus, journal
from served import DISK_MIB, serving
from test_journal_cli import flip, run

SAVING = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")
WITH_HISTORY = {"MQCORE_SHARDS": "2", "MQCORE_HISTORY": "on"}
BODIES = [b"first", b"second", b"third", bytes(range(256)), "\N{SNOWMAN}".encode()]


def read(path: Path) -> pyarrow.Table:
    """A file of rows, whichever it is."""
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    with pyarrow.OSFile(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
        return stream.read_all()


async def fill(directory: Path, *, kill: bool = False) -> None:
    """Have a broker save messages in orders/1, hand the first ones out, and end with some of them settled."""
    use_old_placement(directory, WITH_HISTORY["MQCORE_SHARDS"])  # Its channels are on both shards.
    with serving("--data-dir", str(directory), environment=WITH_HISTORY) as broker:
        async with mqcore.connect(broker.url, name="tester") as mq:
            await mq.declare("orders", 1, SAVING)
            await mq.declare("others", 1, SAVING)
            for number, body in enumerate(BODIES):
                await mq.publish("orders/1", body, headers={"Number": str(number), "Kind": "test"})
            await mq.publish("orders/1", b"most urgent", high_priority=True)
            await mq.publish("others/1", b"not this one")
            urgent, first = await mq.queue("orders", 1).pull(2, bytes)
            assert urgent.body == b"most urgent"
            assert first.body == b"first"
            await urgent.ack()
            await mq.publish("orders/1", b"fence")
            if kill:
                broker.process.send_signal(signal.SIGKILL)
                broker.process.wait()
        if not kill:
            assert broker.terminate() == 0


@pytest.fixture
async def stopped(tmp_path: Path) -> Path:
    """Data directory of a stopped broker."""
    await fill(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """Data directory of a killed broker."""
    await fill(tmp_path / "data", kill=True)
    return tmp_path / "data"


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_saved_messages_are_the_same_in_rows_as_in_lines(tmp_path: Path, stopped: Path, ending: str) -> None:
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in run("export", stopped, "--queue", "orders/1").stdout.splitlines()
    ]
    out = tmp_path / f"orders.{ending}"
    out.write_text("an older one")
    done = run("export", stopped, "--queue", "orders/1", "--format", ending, "--out", out)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(tmp_path.glob("*.part")) == []
    rows = read(out).to_pylist()
    assert sorted(row["body"] for row in rows) == sorted([*BODIES, b"fence"])
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        assert row["queue"] == "orders/1" == line["queue"]
        assert row["message_id"] == (line["id"] or None)
        assert row["source"] == line["source"]
        assert [[pair["key"], pair["value"].decode()] for pair in row["headers"]] == line["headers"]
        assert row["attempts"] == line["attempts"]
        assert row["high_priority"] is line["high_priority"] is False
        assert row["time"] == datetime.datetime.fromisoformat(line["received"])
        if "body" in line:
            assert row["body"].decode() == line["body"]
        assert row["number"] > 0
        assert row["put_backs"] in (0, 1)
    assert len({(row["shard"], row["sequence"]) for row in rows}) == len(rows)
    schema = read(out).schema
    assert schema.field("time").type == pyarrow.timestamp("us", tz="UTC")
    assert not schema.field("sequence").nullable


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_steps_of_messages_lives_are_in_a_file_of_their_own(tmp_path: Path, stopped: Path, ending: str) -> None:
    out = tmp_path / f"steps.{ending}"
    done = run("export", stopped, "--history", "--format", ending, "--out", out)
    assert done.returncode == 0, done.stderr
    steps = read(out).to_pylist()
    assert f"{len(steps)} events" in done.stderr
    assert [step["shard"] for step in steps if step["kind"] == "started"] == [0, 1]
    produced = [step for step in steps if step["kind"] == "produced"]
    assert [step["body_bytes"] for step in produced if step["queue"] == "orders/1"] == [
        *(len(body) for body in BODIES),
        len(b"most urgent"),
        len(b"fence"),
    ]
    assert {step["producer_name"] for step in produced} == {"tester"}
    (acked,) = [step for step in steps if step["kind"] == "acked"]
    (urgent,) = [step for step in produced if step["body_bytes"] == len(b"most urgent")]
    assert (acked["queue"], acked["number"], acked["last"]) == ("orders/1", urgent["number"], True)
    assert acked["time"] >= urgent["time"]
    delivered = [step["number"] for step in steps if step["kind"] == "delivered"]
    first = next(step for step in produced if step["queue"] == "orders/1")
    assert delivered == [urgent["number"], first["number"]]
    saved = [step["number"] for step in steps if step["kind"] == "saved" and step["queue"] == "orders/1"]
    assert sorted(saved) == sorted(step["number"] for step in produced if step["queue"] == "orders/1")
    places = [(step["shard"], step["note"], step["position"]) for step in steps]
    assert places == sorted(set(places)), "rows stand in the order of the history, none twice"


def test_history_of_one_queue_leaves_out_the_others(tmp_path: Path, stopped: Path) -> None:
    out = tmp_path / "steps.parquet"
    assert run("export", stopped, "--history", "--queue", "OTHERS/1", "--out", out).returncode == 0
    steps = read(out).to_pylist()
    assert [step["kind"] for step in steps if step["queue"] is None] == ["started", "started"]
    assert {step["queue"] for step in steps} == {None, "others/1"}
    assert [step["kind"] for step in steps if step["queue"]][:2] == ["produced", "saved"]


def test_messages_that_were_taken_already_are_not_written(tmp_path: Path, stopped: Path) -> None:
    saved = journal.messages(stopped, "orders/1")
    taken = next(iter(saved))
    progress: list[int] = []
    assert saved.write(tmp_path / "rest.parquet", "parquet", progress=progress.append) == len(saved) - 1
    assert progress[-1] == len(saved) - 1
    bodies = read(tmp_path / "rest.parquet").column("body").to_pylist()
    assert taken.body not in bodies


def test_damage_is_reported_and_the_rest_is_in_the_file(tmp_path: Path, killed: Path) -> None:
    segment = max(killed.rglob("*.segment"), key=lambda path: path.read_bytes().count(b"second"))
    content = segment.read_bytes()
    # The put of the message, not its step in the history, which has a copy of the body.
    for offset in (content.index(b"second"), content.rindex(b"second")):
        flip(segment, offset)
    out = tmp_path / "orders.parquet"
    done = run("export", killed, "--queue", "orders/1", "--format", "parquet", "--out", out)
    assert done.returncode == 6, done.stderr
    assert "messages may be missing" in done.stderr
    assert set(BODIES) - set(read(out).column("body").to_pylist()) == {b"second"}
    done = run("export", killed, "--history", "--out", tmp_path / "steps.parquet")
    assert done.returncode == 6, done.stderr
    assert "events may be missing" in done.stderr
    assert read(tmp_path / "steps.parquet").num_rows > 0


def test_unwritable_file_is_reported_and_leaves_nothing(tmp_path: Path, stopped: Path, small_disk: Path) -> None:
    orders = ("export", stopped, "--queue", "orders/1")
    for arguments, words in [
        ([*orders, "--format", "parquet"], "--out"),
        (["export", stopped], "--queue"),
        (["export", stopped, "--history", "--format", "jsonl"], "--format parquet or arrow"),
        ([*orders, "--format", "arrow", "--out", stopped / "a.arrow"], "is inside the data directory"),
        ([*orders, "--format", "arrow", "--out", tmp_path / "no" / "where"], "No such file"),
    ]:
        refused = run(*arguments)
        assert refused.returncode == 2, refused.stderr
        assert words in refused.stderr
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        chunk = bytes(1024 * 1024)
        try:
            for _ in range(2 * DISK_MIB):
                file.write(chunk)
        except OSError:
            pass
        else:
            pytest.fail("the disk is not full")
    for ending in ("parquet", "arrow"):
        full = run(*orders, "--format", ending, "--out", small_disk / f"a.{ending}")
        assert full.returncode == 2, full.stderr
        assert "No space left on device" in full.stderr
        assert len(full.stderr.splitlines()) == 1
    assert list(small_disk.iterdir()) == [filler]


def test_exception_in_progress_stops_writing_and_leaves_no_file(tmp_path: Path, stopped: Path) -> None:
    def enough(done: int) -> None:
        raise InterruptedError(f"after {done}")

    with pytest.raises(InterruptedError, match="after"):
        journal.history(stopped).write(tmp_path / "steps.parquet", "parquet", progress=enough)
    with pytest.raises(ValueError, match="unknown format"):
        journal.history(stopped).write(tmp_path / "steps.csv", "csv")  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
