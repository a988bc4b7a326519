"""`mqcore backup` and `mqcore restore`: under load, killed, damaged; compared with the answers to clients."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

import mqcore
import programs
from depth import by_depth, choices
from mqcore import QueueOptions, QueueStatus, errors, journal
from mqcore.backup import backup, restore
from served import ServedBroker, clean_environment, serving, wait_until

SAVING = QueueOptions(
    status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, acknowledge_timeout=60, delivery_handler="at-least-once"
)
ADMIN = ("--admin", "http://127.0.0.1:0")
SHARDS = {"MQCORE_SHARDS": "4"}
ROUNDS = by_depth(4, 20)
"""How often a backup is killed."""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "mqcore", *map(str, arguments)]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `mqcore` and return how it ended."""
    return programs.run(
        command(*arguments), capture_output=True, text=True, timeout=60, check=False, env=clean_environment()
    )


def bodies(directory: Path, queue: str) -> list[str]:
    """Messages of a queue in the directory of a stopped broker."""
    return [message.body.split(b" ")[0].decode() for message in journal.messages(directory, queue)]


class Ledger:
    """Answers that producers and consumers received."""

    def __init__(self) -> None:
        self.attempted: set[str] = set()
        self.saved: set[str] = set()
        self.acked: set[str] = set()


async def produce(mq: mqcore.Client, queue: str, name: str, ledger: Ledger) -> None:
    number = 0
    while True:
        batch = [f"{name}-{number + index}" for index in range(8)]
        number += 8
        ledger.attempted.update(batch)
        await mq.publish_many(queue, [body.ljust(2000) for body in batch])
        ledger.saved.update(batch)


async def consume(mq: mqcore.Client, queue: str, ledger: Ledger) -> None:
    """Acknowledge two of three; the third goes back, and in the end to the dead letters of another shard."""
    async with mq.queue(queue).consume(str, prefetch=16) as messages:
        async for message in messages:
            name = message.body.split(" ")[0]
            if int(name.rpartition("-")[2]) % 3:
                # Before it is sent: a backup may have it settled before this program hears of anything.
                ledger.acked.add(name)
                await message.ack()
            else:
                await message.nack("third")


async def test_under_load_a_backup_has_everything_that_was_confirmed_before_it_began(tmp_path: Path) -> None:
    ledger = Ledger()
    channels = [f"work{number}" for number in range(4)]
    with serving("--data-dir", str(tmp_path / "data"), *ADMIN, environment=SHARDS) as broker:
        async with mqcore.connect(broker.url) as mq, mqcore.connect(broker.url) as worker:
            await mq.declare("dead", 1, SAVING)
            for channel in channels:
                options = QueueOptions(
                    status=QueueStatus.ROUND_ROBIN,
                    request_acknowledge=True,
                    delivery_handler="at-least-once",
                    put_back_limit=1,
                    dead_letter="dead/1",
                )
                await mq.declare(channel, 1, options)
            tasks = [asyncio.create_task(produce(mq, f"{channel}/1", channel, ledger)) for channel in channels]
            tasks += [asyncio.create_task(consume(worker, f"{channel}/1", ledger)) for channel in channels]
            made = []
            for number in range(6):
                await asyncio.sleep(0.3)
                saved = set(ledger.saved)
                target = tmp_path / f"backup-{number}{('', '.tar', '.tar.zst')[number % 3]}"
                done = await asyncio.to_thread(backup, target, url=broker.admin_url)
                made.append((target, saved, set(ledger.attempted), set(ledger.acked), done))
                assert not any(task.done() for task in tasks), "traffic went on"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        broker.process.kill()
        broker.process.wait()
    assert len(made[0][1]) > 50, "there was load"
    settled = 0
    for number, (target, saved, attempted, acked, done) in enumerate(made):
        back = restore(target, tmp_path / f"restored-{number}")
        assert back.findings == (), "as whole as if it had been stopped"
        assert back.messages == done.messages
        found: list[str] = []
        for queue in [f"{channel}/1" for channel in channels] + ["dead/1"]:
            found += bodies(tmp_path / f"restored-{number}", queue)
        assert not saved - acked - set(found), "confirmed before the backup began, and not in it"
        assert set(found) <= attempted, "nobody ever published these"
        settled += len(acked)
    assert settled > 100, "there was work"
    assert any(bodies(tmp_path / f"restored-{number}", "dead/1") for number in range(6)), "messages changed shards"
    order = bodies(tmp_path / "restored-5", "work0/1")
    numbers = [int(name.rpartition("-")[2]) for name in order if int(name.rpartition("-")[2]) % 3]
    assert numbers == sorted(numbers), "what was never handed back is in its order"


def fill(broker: ServedBroker, count: int, size: int = 20_000) -> None:
    with mqcore.sync.connect(broker.url) as mq:
        mq.declare("orders", 1, SAVING)
        mq.publish_many("orders/1", [f"{number} ".encode() + os.urandom(size) for number in range(count)])


def test_a_broker_starts_on_what_was_restored_and_has_everything(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "data"), *ADMIN) as broker:
        fill(broker, 50, 100)
        done = run("backup", "--url", broker.admin_url, "--to", tmp_path / "all.tar.zst", "--json")
        assert done.returncode == 0, done.stderr
        output = json.loads(done.stdout)
        assert (output["schema"], output["messages"]) == ("mqcore.backup.made/1", 50)
    back = run("restore", tmp_path / "all.tar.zst", "--data-dir", tmp_path / "new", "--json")
    assert back.returncode == 0, back.stderr
    output = json.loads(back.stdout)
    assert (output["schema"], output["messages"], output["damaged"]) == ("mqcore.restore/1", 50, False)
    with serving("--data-dir", str(tmp_path / "new")) as broker, mqcore.sync.connect(broker.url) as mq:
        assert mq.queue("orders/1").information().messages == 50
        with mq.queue("orders/1").consume(bytes, idle_timeout=5.0) as messages:
            for number, message in zip(range(50), messages, strict=False):
                assert message.raw.startswith(b"%d " % number)
                message.ack()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.tar.zst", "data", "new"], "nothing is left over"


def test_the_directory_alone_tells_where_its_broker_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving("--data-dir", str(data), *ADMIN) as broker:
        fill(broker, 10, 100)
        assert run("backup", "--data-dir", data, "--to", tmp_path / "running").returncode == 0
        assert broker.terminate() == 0
    assert run("backup", "--data-dir", data, "--to", tmp_path / "stopped.tar").returncode == 0
    for name in ("running", "stopped.tar"):
        assert restore(tmp_path / name, tmp_path / f"new-{name}").messages == 10
    with serving("--data-dir", str(data)) as broker:
        refused = run("backup", "--data-dir", data, "--to", tmp_path / "none")
        assert refused.returncode == 7
        assert "no admin side" in refused.stderr
        assert broker.terminate() == 0


def segments(directory: Path) -> int:
    return len(list((directory / "shard-0").glob("*.segment")))


def test_killed_backups_leave_no_backup_and_let_the_files_go(tmp_path: Path) -> None:
    chance = choices(__name__)
    data = tmp_path / "data"
    with serving("--data-dir", str(data), *ADMIN, environment={"MQCORE_SHARDS": "1"}) as broker:
        fill(broker, 2000)
        before = segments(data)
        assert before >= 3
        killed = 0
        for number in range(ROUNDS * 5):
            if killed == ROUNDS:
                break
            target = tmp_path / f"backup-{number}{('', '.tar', '.tar.zst')[number % 3]}"
            process = programs.Popen(
                command("backup", "--url", broker.admin_url, "--to", target),
                stderr=subprocess.DEVNULL,
                env=clean_environment(),
            )
            wait_until(
                lambda: process.poll() is not None or any(tmp_path.glob("*.part")),  # noqa: B023
                what="its beginning",
            )
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            if process.wait() != 0:
                killed += 1
                assert not target.exists(), "half a backup looks like a whole one"
            for part in tmp_path.glob("*.part"):
                shutil.rmtree(part) if part.is_dir() else part.unlink()
        assert killed == ROUNDS
        with mqcore.sync.connect(broker.url) as mq:
            mq.clear_queue("orders/1")
        wait_until(lambda: segments(data) < before, what="the removal of segments that nobody needs")
        # A killed backup holds no lock: the next one begins at once.
        assert backup(tmp_path / "whole", url=broker.admin_url).messages == 0


def test_files_stay_while_a_backup_is_read_and_go_when_its_client_is_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving("--data-dir", str(data), *ADMIN, environment={"MQCORE_SHARDS": "1"}) as broker:
        fill(broker, 2000)
        before = segments(data)
        host, _, port = broker.admin_url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as reader:
            reader.sendall(b"GET /backup HTTP/1.1\r\nHost: localhost\r\nMqcore-Request: backup\r\n\r\n")
            assert reader.recv(100).startswith(b"HTTP/1.1 200")
            with pytest.raises(errors.Busy, match="another backup"):
                backup(tmp_path / "second", url=broker.admin_url)
            assert run("backup", "--url", broker.admin_url, "--to", tmp_path / "second").returncode == 7
            with mqcore.sync.connect(broker.url) as mq:
                mq.clear_queue("orders/1")
                # Ten turns of housekeeping, each of which would have removed some.
                for _ in range(10):
                    mq.publish("orders/1", b"later")
                    time.sleep(0.1)
            assert segments(data) >= before
        wait_until(lambda: segments(data) < before, what="the removal of segments that nobody needs")


async def test_an_embedded_broker_backs_itself_up(tmp_path: Path) -> None:
    async with mqcore.Broker(data_dir=str(tmp_path / "data")) as broker, broker.client() as mq:
        await mq.declare("orders", 1, SAVING)
        await mq.publish_many("orders/1", [str(number) for number in range(20)])
        seen: list[int] = []
        done = await asyncio.to_thread(
            broker.backup, tmp_path / "copy", progress=lambda payload, _total: seen.append(payload)
        )
        assert (done.messages, seen[-1]) == (20, done.bytes)
        with pytest.raises(errors.ConfigError, match="not empty"):
            broker.backup(tmp_path / "copy")
    assert bodies_of(restore(tmp_path / "copy", tmp_path / "new").data_dir) == [str(number) for number in range(20)]
    with pytest.raises(errors.NotRunning):
        broker.backup(tmp_path / "other")
    async with mqcore.Broker() as keeps_nothing:
        with pytest.raises(errors.Unacceptable, match="in memory"):
            keeps_nothing.backup(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def bodies_of(directory: str) -> list[str]:
    return bodies(Path(directory), "orders/1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same backup in three forms."""
    place = tmp_path_factory.mktemp("made")
    with mqcore.Broker(data_dir=str(place / "data"), shards=2) as broker:
        with mqcore.sync.connect(broker) as mq:
            mq.declare("orders", 1, SAVING)
            mq.publish_many("orders/1", [str(number) for number in range(20)])
        for name in ("folder", "all.tar", "all.tar.zst"):
            broker.backup(place / name)
    return place


def test_an_archive_is_one_that_other_programs_read(made: Path, tmp_path: Path) -> None:
    with tarfile.open(made / "all.tar") as archive:
        archive.extractall(tmp_path / "extracted", filter="data")
    assert restore(tmp_path / "extracted", tmp_path / "new").messages == 20
    content = (made / "all.tar").read_bytes()
    assert len(content) % 512 == 0
    assert content.endswith(bytes(2 * 512)), "strict programs expect two empty blocks at the end"


def test_any_changed_byte_of_a_backup_is_detected_and_nothing_is_restored(made: Path, tmp_path: Path) -> None:
    chance = random.Random(7)
    for form in ("all.tar", "all.tar.zst", "folder"):
        assert restore(made / form, tmp_path / f"whole-{form}").messages == 20
    for number in range(60):
        form = ("all.tar", "all.tar.zst", "folder")[number % 3]
        copy, target = tmp_path / f"copy-{number}", tmp_path / f"new-{number}"
        if form == "folder":
            shutil.copytree(made / form, copy)
            victim = chance.choice([path for path in copy.rglob("*") if path.is_file()])
        else:
            shutil.copy(made / form, copy)
            victim = copy
        payload = bytearray(victim.read_bytes())
        at = chance.randrange(len(payload))
        payload[at] ^= 1 << chance.randrange(8)
        victim.write_bytes(payload)
        try:
            back = restore(copy, target)
        except (errors.DataDirDamaged, errors.DataDirUnreadable):
            assert not target.exists(), f"{form} {at}"
        else:
            # A word about a file's owner or time, padding, or the version that made it: nothing that is restored.
            assert back.messages == 20, f"{form} {at}"
            assert bodies_of(back.data_dir) == [str(number) for number in range(20)], f"{form} {at}"
        if copy.is_dir():
            shutil.rmtree(copy)
        shutil.rmtree(target, ignore_errors=True)
    assert list(tmp_path.glob("*.part")) == []


def test_half_a_backup_and_what_is_none_are_refused(made: Path, tmp_path: Path) -> None:
    payload = (made / "all.tar").read_bytes()
    half = tmp_path / "half.tar"
    half.write_bytes(payload[: len(payload) // 2])
    assert run("restore", half, "--data-dir", tmp_path / "new").returncode == 6
    compressed = (made / "all.tar.zst").read_bytes()
    half.write_bytes(compressed[: len(compressed) // 2])
    assert run("restore", half, "--data-dir", tmp_path / "new").returncode == 6
    folder = shutil.copytree(made / "folder", tmp_path / "folder")
    next(folder.glob("shard-0/*.segment")).unlink()
    missing = run("restore", folder, "--data-dir", tmp_path / "new")
    assert missing.returncode == 6
    assert "is missing" in missing.stderr
    (folder / "manifest.json").unlink()
    for none in (folder, tmp_path / "nowhere"):
        assert run("restore", none, "--data-dir", tmp_path / "new").returncode == 3
    half.write_text("no backup")
    assert run("restore", half, "--data-dir", tmp_path / "new").returncode == 6
    assert not (tmp_path / "new").exists()


def test_a_backup_never_writes_outside_of_its_target(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made / "folder", tmp_path / "folder")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][0]["name"] = "../escaped"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(errors.DataDirDamaged, match="does not belong"):
        restore(folder, tmp_path / "new")
    outside = tmp_path / "outside.tar"
    with tarfile.open(outside, "w") as archive:
        archive.add(made / "folder" / "format", "../escaped")
    with pytest.raises(errors.DataDirDamaged, match="does not belong"):
        restore(outside, tmp_path / "new")
    assert not (tmp_path / "escaped").exists()


def test_backup_never_overwrites_files(made: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious").write_text("kept")
    refused = run("restore", made / "folder", "--data-dir", full)
    assert refused.returncode == 2
    assert "not empty" in refused.stderr
    assert run("backup", "--data-dir", made / "data", "--to", full).returncode == 2
    assert [path.name for path in full.iterdir()] == ["precious"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run("restore", made / "folder", "--data-dir", empty).returncode == 0


def test_without_space_nothing_is_left_behind(made: Path, small_disk: Path) -> None:
    free = shutil.disk_usage(small_disk).free
    with (small_disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - 16 * 1024)
    with serving("--data-dir", str(made / "served"), *ADMIN) as broker:
        fill(broker, 100)
        for name in ("folder", "all.tar", "all.tar.zst"):
            full = run("backup", "--url", broker.admin_url, "--to", small_disk / name)
            assert full.returncode == 7, full.stderr
            assert "no space" in full.stderr
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_unauthorized_and_invalid_backup_requests_are_rejected(tmp_path: Path) -> None:
    assert run("backup", "--to", tmp_path / "x").returncode == 2
    assert run("backup", "--url", "http://127.0.0.1:1", "--to", tmp_path / "x").returncode == 5
    assert run("backup", "--url", "tmqp://127.0.0.1:1", "--to", tmp_path / "x").returncode == 2
    with serving(*ADMIN) as broker:
        nothing = run("backup", "--url", broker.admin_url, "--to", tmp_path / "x")
        assert nothing.returncode == 1
        assert "in memory" in nothing.stderr
        host, _, port = broker.admin_url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as page:
            # A request that a page in a browser could send.
            page.sendall(b"GET /backup HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert page.recv(1000).startswith(b"HTTP/1.1 400")
    assert not (tmp_path / "x").exists()


def test_a_broker_that_dies_in_the_middle_leaves_no_backup(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "data"), *ADMIN) as broker:
        fill(broker, 2000)

        def die(done: int, _total: int | None) -> None:
            if done and broker.process.poll() is None:
                broker.process.send_signal(signal.SIGKILL)
                broker.process.wait()

        with pytest.raises(errors.ConnectionLost, match="broke off"):
            backup(tmp_path / "copy", url=broker.admin_url, progress=die)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
