"""Backup and restore: files and names are synced, progress ends at the total, and descriptors are closed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import mqcore
import mqcore.sync
from mqcore import QueueOptions, QueueStatus
from mqcore.backup import backup, restore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux names the file of a descriptor")

SAVING = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped broker with two shards."""
    directory = tmp_path_factory.mktemp("stopped") / "data"
    with mqcore.Broker(data_dir=str(directory), shards=2) as broker, mqcore.sync.connect(broker) as mq:
        mq.declare("orders", 1, SAVING)
        mq.publish_many("orders/1", [str(number) for number in range(20)])
    return directory


def path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Files and directories that were made durable, and the names to which they were renamed afterwards."""
    found: set[Path] = set()
    fsync, rename = os.fsync, Path.rename

    def note_fsync(descriptor: int) -> None:
        found.add(path_of(descriptor))
        fsync(descriptor)

    def note_rename(source: Path, target: Path) -> Path:
        inside = {path for path in found if path.is_relative_to(source)}
        found.update(target / path.relative_to(source) for path in inside)
        found.difference_update(inside)
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    return found


def everything(root: Path) -> set[Path]:
    return {root, *root.rglob("*")}


def test_files_and_names_of_a_backup_are_synced_before_it_appears(
    data_dir: Path, tmp_path: Path, synced: set[Path]
) -> None:
    backup(tmp_path / "copy", data_dir=data_dir)
    assert everything(tmp_path / "copy") <= synced
    assert tmp_path in synced, "the name of the backup"
    backup(tmp_path / "copy.tar", data_dir=data_dir)
    assert tmp_path / "copy.tar" in synced


@pytest.mark.parametrize("form", ["copy", "copy.tar", "copy.tar.zst"])
def test_files_and_names_of_a_restored_directory_are_synced_before_it_appears(
    data_dir: Path, tmp_path: Path, synced: set[Path], form: str
) -> None:
    backup(tmp_path / form, data_dir=data_dir)
    synced.clear()
    restored = restore(tmp_path / form, tmp_path / "new" / "data")
    assert restored.messages == 20
    assert everything(tmp_path / "new" / "data") <= synced
    assert tmp_path / "new" in synced, "the name of the directory"


def test_backup_and_restore_close_what_they_open(data_dir: Path, tmp_path: Path) -> None:
    backup(tmp_path / "first", data_dir=data_dir)
    before = len(os.listdir("/proc/self/fd"))
    backup(tmp_path / "second", data_dir=data_dir)
    restore(tmp_path / "second", tmp_path / "new")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("form", ["copy", "copy.tar", "copy.tar.zst"])
def test_progress_ends_with_the_bytes_of_all_files(data_dir: Path, tmp_path: Path, form: str) -> None:
    written: list[int] = []
    made = backup(tmp_path / form, data_dir=data_dir, progress=lambda done, _total: written.append(done))
    assert written == sorted(written)
    assert written[-1] == made.bytes
    read: list[tuple[int, int | None]] = []
    restore(tmp_path / form, tmp_path / "new", progress=lambda done, total: read.append((done, total)))
    assert read == sorted(read)
    assert read[-1][0] == made.bytes
    # Only reading it to its end shows how much a compressed file has.
    sizes = {"copy": made.bytes, "copy.tar": (tmp_path / form).stat().st_size, "copy.tar.zst": None}
    assert {total for _, total in read} == {sizes[form]}
