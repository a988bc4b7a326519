"""`mqcore journal compact`: nothing that is saved is lost, whatever happens meanwhile, and what is dead goes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mqcore
import programs
from depth import by_depth, choices
from mqcore import QueueOptions, QueueStatus, errors, journal
from served import DISK_MIB, ServedBroker, clean_environment, serving, wait_until

SAVING = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")
BODY = 64 * 1024
MESSAGES = 480
"""Nearly two segments of bodies."""
ROUNDS = by_depth(4, 20)
"""How often it is killed in the middle."""
ONE_SHARD = {"MQCORE_SHARDS": "1"}

Content = list[tuple[str, str, int, bool]]


def command(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "mqcore", "journal", "compact", str(directory), *arguments]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `mqcore journal compact` and return how it ended."""
    environment = clean_environment()
    called = command(directory, *arguments)
    return programs.run(called, capture_output=True, text=True, timeout=60, check=False, env=environment)


def content(directory: Path) -> Content:
    """Everything in orders/1, as the journal has it."""
    return [
        (message.id, hashlib.sha256(message.body).hexdigest(), message.attempts, message.high_priority)
        for message in journal.messages(directory, "orders/1")
    ]


def used(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.segment"))


def written(directory: Path) -> int:
    """Like `used`, without the reserved space that a killed process leaves behind what it wrote."""
    return sum(len(path.read_bytes().rstrip(b"\0")) for path in directory.rglob("*.segment"))


def half_dead(directory: Path) -> None:
    """Have a killed broker leave messages of which every second one was acknowledged: more than it tidies itself."""
    with serving("--data-dir", str(directory), environment=ONE_SHARD) as broker:
        fill(broker)
        broker.process.kill()
        broker.process.wait()


def fill(broker: ServedBroker) -> None:
    with mqcore.sync.connect(broker.url) as mq:
        mq.declare("orders", 1, SAVING)
        # Random, so that no two bodies can be mistaken for each other.
        mq.publish_many("orders/1", [os.urandom(BODY) for _ in range(MESSAGES)])
        with mq.join("orders"):
            for number, message in enumerate(mq.queue("orders/1").pull(MESSAGES)):
                if number % 2:
                    message.ack()
            # A receipt for a later message of the same connection and channel: what was said before is saved.
            mq.publish("orders/1", "fence", high_priority=True)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data directory of that broker, for copies."""
    directory = tmp_path_factory.mktemp("pristine") / "data"
    half_dead(directory)
    return directory


@pytest.fixture
def data_dir(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "data")
    return tmp_path / "data"


def test_compaction_removes_settled_and_keeps_saved_messages(data_dir: Path) -> None:
    before, data = content(data_dir), used(data_dir)
    assert len(before) == MESSAGES // 2 + 1
    done = run(data_dir, "--json")
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert (output["schema"], output["bytes_before"], output["bytes_after"]) == (
        "mqcore.journal.compact/1",
        data,
        used(data_dir),
    )
    live = (MESSAGES // 2) * BODY
    assert live < used(data_dir) < live * 1.05, "nothing but what lives, and what every segment needs"
    assert content(data_dir) == before
    assert journal.verify(data_dir).findings == ()
    again = run(data_dir)
    assert again.returncode == 0
    assert used(data_dir) < live * 1.05
    with serving("--data-dir", str(data_dir)) as broker, mqcore.sync.connect(broker.url) as mq:
        information = mq.queue("orders/1").information()
        assert information.messages + information.priority_messages == len(before)


def test_compaction_killed_at_any_time_loses_nothing_and_can_be_repeated(pristine: Path, tmp_path: Path) -> None:
    chance = choices(__name__)
    before = content(pristine)
    directory = tmp_path / "data"
    killed = 0
    for _ in range(ROUNDS * 5):
        if killed >= ROUNDS:
            break
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(pristine, directory)
        for _ in range(2):
            names = set(os.listdir(directory / "shard-0"))
            process = programs.Popen(command(directory), stderr=subprocess.DEVNULL, env=clean_environment())
            # Opening begins a segment: from then on it works.
            wait_until(
                lambda: process.poll() is not None or set(os.listdir(directory / "shard-0")) != names,  # noqa: B023
                what="its beginning",
            )
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            killed += process.wait() != 0
        verified = journal.verify(directory)
        assert not verified.is_damaged, verified.findings
        assert content(directory) == before
    assert killed >= ROUNDS, "it was killed in the middle often enough"
    assert run(directory).returncode == 0
    assert written(directory) < (MESSAGES // 2) * BODY * 1.05
    assert content(directory) == before


@pytest.mark.parametrize("copy", ["format", "format.copy"])
def test_one_copy_of_the_manifest_is_enough_for_compaction(data_dir: Path, copy: str) -> None:
    before = content(data_dir)
    text = (data_dir / copy).read_bytes()
    (data_dir / copy).unlink()
    assert run(data_dir).returncode == 0
    assert content(data_dir) == before
    # Opening has written it again, with the next generation.
    assert (data_dir / copy).stat().st_size == len(text)


def test_a_running_broker_is_refused_and_a_directory_that_is_none_is_not_made(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with serving("--data-dir", str(directory)) as broker:
        refused = run(directory)
        assert refused.returncode == 7
        assert "running broker" in refused.stderr
        with pytest.raises(errors.DataDirBusy):
            journal.compact(directory)
        assert broker.terminate() == 0
    assert run(directory).returncode == 0
    for missing in (tmp_path / "nowhere", tmp_path):
        assert run(missing).returncode == 3
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "lock").exists()


def test_damaged_segments_are_set_aside_told_and_dropped_when_that_is_meant(data_dir: Path) -> None:
    before = content(data_dir)
    victim = max(data_dir.rglob("*.segment"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    done = run(data_dir)
    assert done.returncode == 6
    assert "quarantined damaged segments" in done.stderr
    assert victim.with_suffix(".quarantined").exists()
    left = content(data_dir)
    assert len(before) - 1 <= len(left) <= len(before) + 1, "one record was hit: a message, or a settlement"
    again = run(data_dir, "--drop-quarantined", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["dropped_bytes"] == len(data)
    assert list(data_dir.rglob("*.quarantined")) == []
    # The shard takes no durable messages until someone has accepted the loss, although the files are whole now.
    assert [finding.kind for finding in journal.verify(data_dir).findings] == ["lost"]
    assert [(loss.journal, loss.cause) for loss in journal.accept_loss(data_dir)] == [("shard-0", "damaged")]
    assert journal.verify(data_dir).findings == ()
    assert content(data_dir) == left


def test_compaction_without_disk_space_fails_and_can_be_repeated(pristine: Path, small_disk: Path) -> None:
    directory = small_disk / "data"
    # Holes stay holes: what is reserved in the original needs no space here.
    subprocess.run(["cp", "-r", "--sparse=always", str(pristine), str(directory)], check=True)
    before = content(directory)
    filler = small_disk / "filler"
    free = shutil.disk_usage(small_disk).free
    assert free < DISK_MIB * 1024 * 1024
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - 512 * 1024)
    full = run(directory)
    assert full.returncode == 7, full.stderr
    assert "disk full" in full.stderr
    assert content(directory) == before
    filler.unlink()
    done = run(directory)
    assert done.returncode == 0, done.stderr
    assert content(directory) == before
    assert used(directory) < (MESSAGES // 2) * BODY * 1.05
