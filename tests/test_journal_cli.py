"""`mqcore journal`, run as users run it, on what a real broker left when it was stopped or killed."""

from __future__ import annotations

import base64
import hashlib
import json
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import mqcore
import programs
from mqcore import QueueOptions, QueueStatus, errors, journal
from served import clean_environment, serving

SAVING = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `mqcore journal` and return how it ended."""
    return programs.run(
        [sys.executable, "-m", "mqcore", "journal", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=clean_environment(),
    )


def fingerprint(directory: Path) -> dict[str, tuple[int, int, str]]:
    """Every name with its length, its time of change and its content."""
    seen = {}
    for path in [directory, *directory.rglob("*")]:
        status = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        seen[str(path)] = (status.st_size, status.st_mtime_ns, content)
    return seen


def used_segment(directory: Path) -> Path:
    """The segment that holds the most; the others of a new directory hold nothing but their beginnings."""
    return max(directory.rglob("*.segment"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))


def flip(path: Path, offset: int) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


async def fill(directory: Path, *, kill: bool) -> None:
    """Have a broker save ten messages in orders/1001, one of high priority and one of them no text, and end it."""
    with serving("--data-dir", str(directory)) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("orders", 1001, SAVING)
            await mq.declare("others", 1, SAVING)
            for number in range(9):
                await mq.publish("orders/1001", f"body {number}", headers={"Number": str(number)})
            await mq.publish("orders/1001", b"\xff\x00", high_priority=True)
            await mq.publish("others/1", "not this one")
            if kill:
                broker.process.send_signal(signal.SIGKILL)
                broker.process.wait()
        if not kill:
            assert broker.terminate() == 0


@pytest.fixture(params=["stopped", "killed"])
async def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Data directory of a stopped broker."""
    await fill(tmp_path / "data", kill=request.param == "killed")
    return tmp_path / "data"


@pytest.fixture
async def killed_dir(tmp_path: Path) -> Path:
    """Data directory of a killed broker."""
    await fill(tmp_path / "data", kill=True)
    return tmp_path / "data"


def test_looking_changes_no_byte_no_name_and_no_time(data_dir: Path) -> None:
    before = fingerprint(data_dir)
    assert len(before) > 4
    for arguments in (["ls", data_dir], ["verify", data_dir], ["export", data_dir, "--queue", "orders/1001"]):
        assert run(*arguments).returncode == 0, arguments
        assert fingerprint(data_dir) == before, arguments


def test_segments_are_listed_with_what_is_live(data_dir: Path) -> None:
    listed = json.loads(run("ls", data_dir, "--json").stdout)
    assert listed["schema"] == "mqcore.journal.ls/1"
    assert listed["live"] == 11
    assert sum(segment["live"] for segment in listed["segments"]) == 11
    assert listed["records"] >= 13
    assert listed["definitions"] >= 2
    on_disk = sum(path.stat().st_size for path in data_dir.rglob("*.segment"))
    assert listed["bytes"] == on_disk
    assert {segment["state"] for segment in listed["segments"]} <= {"open", "sealed", "spare"}
    table = run("ls", data_dir)
    assert len(table.stdout.splitlines()) == len(listed["segments"]) + 1
    assert "11 live" in table.stderr


def test_journal_is_intact_after_stop_and_kill(data_dir: Path) -> None:
    seen = run("verify", data_dir)
    assert seen.returncode == 0, seen.stdout
    assert "no saved message is lost" in seen.stdout


def test_messages_are_exported_in_the_order_of_the_queue(data_dir: Path, tmp_path: Path) -> None:
    exported = run("export", data_dir, "--queue", "orders/1001")
    found: list[dict[str, Any]] = [json.loads(line) for line in exported.stdout.splitlines()]
    assert [message.get("body") for message in found] == [None, *(f"body {number}" for number in range(9))]
    assert base64.b64decode(found[0]["body_base64"]) == b"\xff\x00"
    assert [message["high_priority"] for message in found] == [True, *[False] * 9]
    assert found[1]["headers"] == [["Number", "0"]]
    assert {message["queue"] for message in found} == {"orders/1001"}
    assert {message["attempts"] for message in found} == {0}
    out = tmp_path / "orders.jsonl"
    done = run("export", data_dir, "--queue", "ORDERS/1001", "--out", out)
    assert (done.returncode, done.stdout) == (0, "")
    assert out.read_text() == exported.stdout
    assert list(tmp_path.glob("*.part")) == []


async def test_attempts_and_settlements_are_seen(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await fill(directory, kill=True)
    with serving("--data-dir", str(directory)) as broker:
        async with mqcore.connect(broker.url) as mq:
            urgent, first = await mq.queue("orders", 1001).pull(2, bytes)
            await urgent.ack()
            # A receipt for a later message of the same connection and channel: what was said before is saved.
            await mq.publish("orders/1001", "fence")
            assert first.body == b"body 0"
            broker.process.send_signal(signal.SIGKILL)
            broker.process.wait()
    saved = list(journal.messages(directory, "orders/1001"))
    assert [message.body for message in saved] == [*(b"body %d" % number for number in range(9)), b"fence"]
    assert [message.attempts for message in saved] == [1, *[0] * 9]
    assert saved[0].headers == (("Number", "0"),)
    assert saved[0].received <= saved[-1].received


def test_a_flipped_byte_is_damage_that_is_named(killed_dir: Path) -> None:
    segment = used_segment(killed_dir)
    content = segment.read_bytes()
    flip(segment, content.index(b"body 2"))
    before = fingerprint(killed_dir)
    seen = run("verify", killed_dir)
    assert seen.returncode == 6, seen.stdout
    assert f"segment {int(segment.stem)}" in seen.stdout
    assert "checksum mismatch" in seen.stdout
    assert "DAMAGED" in seen.stdout
    verified = json.loads(run("verify", killed_dir, "--json").stdout)
    assert verified["damaged"] is True
    assert [finding["kind"] for finding in verified["findings"]] == ["damaged"]
    assert "damaged" in {row["state"] for row in json.loads(run("ls", killed_dir, "--json").stdout)["segments"]}
    exported = run("export", killed_dir, "--queue", "orders/1001")
    bodies = [json.loads(line).get("body") for line in exported.stdout.splitlines()]
    assert exported.returncode == 6
    assert "body 2" not in bodies
    assert {"body 1", "body 3"} <= set(bodies)
    assert fingerprint(killed_dir) == before


def test_torn_end_is_not_damage(killed_dir: Path) -> None:
    segments = [path for path in killed_dir.rglob("*.segment") if b"not this one" in path.read_bytes()]
    (segment,) = segments
    content = segment.read_bytes()
    whole = content.rstrip(b"\0")
    # As after a power failure: the file has its length, and the last sector never arrived.
    segment.write_bytes(whole[:-5].ljust(len(content), b"\0"))
    seen = run("verify", killed_dir)
    assert seen.returncode == 0, seen.stdout
    assert "torn by a crash" in seen.stdout
    assert "Nothing that was confirmed is lost" in seen.stdout


def test_a_file_that_lost_its_end_is_damage(killed_dir: Path) -> None:
    segment = used_segment(killed_dir)
    content = segment.read_bytes()
    segment.write_bytes(content[: len(content.rstrip(b"\0")) - 5])
    seen = run("verify", killed_dir)
    assert seen.returncode == 6
    assert "was created with" in seen.stdout


def test_a_shard_whose_files_are_gone_is_damage(killed_dir: Path) -> None:
    shard = used_segment(killed_dir).parent
    for path in shard.iterdir():
        path.unlink()
    seen = run("verify", killed_dir)
    assert seen.returncode == 6
    assert f"{shard.name}: the directory of this journal is missing or has no segment" in seen.stdout


def test_a_running_broker_is_left_alone(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with serving("--data-dir", str(directory)) as broker:
        for arguments in (["ls", directory], ["verify", directory], ["export", directory, "--queue", "a/1"]):
            refused = run(*arguments)
            assert refused.returncode == 7
            assert "running broker" in refused.stderr
        with pytest.raises(errors.DataDirBusy):
            journal.segments(directory)
        assert broker.terminate() == 0
    assert run("ls", directory).returncode == 0


def test_missing_data_directory_is_reported(data_dir: Path, tmp_path: Path) -> None:
    for arguments in (["ls", tmp_path / "nowhere"], ["ls", tmp_path], ["export", data_dir, "--queue", "nothing/1"]):
        missing = run(*arguments)
        assert missing.returncode == 3, missing.stderr
        assert len(missing.stderr.splitlines()) == 1
    assert not (tmp_path / "nowhere").exists()
    for copy in ("format", "format.copy"):
        (data_dir / copy).write_text("mqcore data 99, shards 1\n")
    unknown = run("verify", data_dir)
    assert unknown.returncode == 2
    assert "not a data directory of this version" in unknown.stderr
    content = b"mqcore data 99\n"
    content += b"crc32 %08x\n" % zlib.crc32(content)
    (data_dir / "format").write_bytes(content.ljust(4096, b"\n"))
    later = run("verify", data_dir)
    assert later.returncode == 2
    assert "format version 99" in later.stderr
    assert "use a newer mqcore" in later.stderr


def test_an_export_never_writes_into_the_data_directory(data_dir: Path) -> None:
    before = fingerprint(data_dir)
    refused = run("export", data_dir, "--queue", "orders/1001", "--out", data_dir / "format")
    assert refused.returncode == 2
    assert fingerprint(data_dir) == before


def test_exception_in_progress_stops_reading(data_dir: Path) -> None:
    def enough(shard: int, done: int, total: int) -> None:
        raise InterruptedError(f"{shard} {done} {total}")

    with pytest.raises(InterruptedError, match="0 0 "):
        journal.verify(data_dir, progress=enough)


def test_listing_counts_nothing_that_it_is_not_given() -> None:
    listing = mqcore.journal.Listing(2, (), 3)
    assert (listing.shards, listing.definitions) == (2, 3)
    assert (listing.limits, listing.schedules, listing.runs, listing.forwards) == (0, 0, 0, 0)
    assert (listing.records, listing.live, listing.bytes) == (0, 0, 0)
