"""Mistakes of operators are errors with a reason and an exit code of their own, never defects of mqcore."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import mqcore
import programs
from mqcore import QueueOptions, QueueStatus, errors
from mqcore.backup import backup
from served import clean_environment, serving, wait_until

SAVING = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")


def run(*arguments: object, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run `mqcore` until it ends."""
    command = [*under, sys.executable, "-m", "mqcore", *map(str, arguments)]
    return programs.run(command, capture_output=True, text=True, timeout=60, check=False, env=clean_environment())


def serve(directory: Path, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a broker that must not start."""
    return run("serve", "--listen", "tmqp://127.0.0.1:0", "--data-dir", directory, under=under)


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    """The directory of a stopped broker with a message."""
    directory = tmp_path / "data"
    with serving("--data-dir", str(directory), environment={"MQCORE_SHARDS": "1"}) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("orders", 1, SAVING)
            await mq.publish("orders/1", "kept")
        assert broker.terminate() == 0
    return directory


def test_a_directory_in_use_stays_locked_when_all_lock_files_are_deleted(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with serving("--data-dir", str(directory)):
        for _ in range(2):
            refused = serve(directory)
            assert refused.returncode == 7, refused.stderr
            assert "another broker has locked it" in refused.stderr
            for command in ("verify", "ls", "compact"):
                assert run("journal", command, directory).returncode == 7
            assert run("journal", "accept-loss", "--data-dir", directory).returncode == 7
            for lock in directory.rglob("lock"):
                lock.unlink()


def test_a_file_as_data_directory_is_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("mine")
    refused = serve(file)
    assert refused.returncode == 2, refused.stderr
    assert "is a file; name a directory" in refused.stderr
    assert str(file) in refused.stderr
    with pytest.raises(errors.DataDirError, match="is a file"), mqcore.Broker(data_dir=str(file)):
        pass
    assert file.read_text() == "mine"
    for command in (("user", "ls"), ("token", "ls")):
        refused = run(*command, "--data-dir", file)
        assert refused.returncode == 2, refused.stderr
        assert "is a file" in refused.stderr


def test_segments_of_a_newer_version_are_refused(data_dir: Path) -> None:
    segment = min(data_dir.glob("shard-0/*.segment"))
    content = bytearray(segment.read_bytes())
    for at in (0, 4096):
        content[at + 8] = 99
        content[at + 60 : at + 64] = zlib.crc32(content[at : at + 60]).to_bytes(4, "little")
    segment.write_bytes(content)
    refused = serve(data_dir)
    assert refused.returncode == 2, refused.stderr
    assert "format version 99" in refused.stderr
    assert "use a newer mqcore" in refused.stderr


def test_an_error_of_the_disk_during_the_start_is_named(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None or run("version", under=(strace, "-f", "-o", os.devnull)).returncode != 0:
        pytest.skip("strace is not installed or may not trace here")
    for call in ("rename", "fsync", "fdatasync"):
        under = (strace, "-f", "-o", os.devnull, "-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when=1")
        refused = serve(tmp_path / call, under)
        assert refused.returncode == 2, (call, refused.stderr)
        assert "Input/output error" in refused.stderr, call
        assert "internal error" not in refused.stderr
        with serving("--data-dir", str(tmp_path / call)) as broker:
            assert broker.terminate() == 0


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        pytest.param({"version": "99.0.0"}, 2, "use a newer mqcore", id="newer mqcore"),
        pytest.param({"version": 99}, 2, "use a newer mqcore", id="version is a number"),
        pytest.param({"schema": "mqcore.backup/99"}, 2, "mqcore.backup/99", id="newer schema"),
        pytest.param({"version": None}, 6, "manifest", id="no version"),
        pytest.param({"created_ms": 10**300}, 6, "manifest", id="time out of range"),
        pytest.param({"shards": "many", "files": 7}, 6, "manifest", id="files are a number"),
    ],
)
def test_restore_of_a_strange_manifest_is_refused(
    data_dir: Path, tmp_path: Path, change: dict[str, Any], code: int, text: str
) -> None:
    copy = tmp_path / "copy"
    backup(copy, data_dir=data_dir)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, **change}))
    refused = run("restore", copy, "--data-dir", tmp_path / "new")
    assert (refused.returncode, text in refused.stderr) == (code, True), refused.stderr
    assert not (tmp_path / "new").exists()


def test_restore_of_a_file_of_absurd_length_is_refused(data_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    backup(copy, data_dir=data_dir)
    for length in (1 << 40, 1 << 70):
        manifest = json.loads((copy / "manifest.json").read_text())
        manifest["files"][-1]["length"] = length
        (copy / "manifest.json").write_text(json.dumps(manifest))
        refused = run("restore", copy, "--data-dir", tmp_path / "new")
        assert refused.returncode == 6, refused.stderr
        assert f"a file of {length} bytes" in refused.stderr


FORKING = """
import os, signal, sys
import mqcore

broker = mqcore.Broker(data_dir=sys.argv[1])
broker.start()
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems fork")
def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKING, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert run("journal", "verify", directory).returncode == 7
        parent.kill()
        parent.wait()
        wait_until(lambda: run("journal", "verify", directory).returncode == 0, what="the release of the lock")
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_certificate_file_of_300_megabytes_is_refused(tmp_path: Path) -> None:
    huge = tmp_path / "huge.pem"
    with huge.open("wb") as file:
        file.truncate(300 << 20)
    refused = run("serve", "--listen", f"tmqps://127.0.0.1:0?cert={huge}&key={huge}")
    assert refused.returncode == 2, refused.stderr
    assert "exceeds 16 MiB" in refused.stderr
