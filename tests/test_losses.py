"""Missing, foreign and damaged parts of a data directory are named and counted, and stop writes until accepted."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import urllib.error
import urllib.request
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import mqcore
import programs
from awaited import until
from damaged_files import (
    MESSAGES,
    ONE_SHARD,
    SAVING,
    mq_journal,
    overwrite,
    segment_of_killed_broker,
    use_old_placement,
    verify,
)
from depth import sample
from mqcore import errors, journal
from mqcore.backup import backup, restore
from mqcore.throttr import SyncClient
from protocols.conversation import ADD_BINDING, OK, Client
from served import ServedBroker, clean_environment, serving, wait_until

QUEUES = [f"{letter * 3}-part" for letter in "abcdefghijkl"]
"""Channels of several shards."""
ADMIN = ("--admin", "http://127.0.0.1:0")
TWO_SHARDS = {"MQCORE_SHARDS": "2"}


def accept_loss(directory: Path, *arguments: str) -> str:
    done = mq_journal("accept-loss", "--data-dir", directory, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr


def page(broker: ServedBroker, path: str) -> dict[str, Any]:
    """A page of the admin side, with the status."""
    try:
        with urllib.request.urlopen(f"{broker.admin_url}{path}", timeout=10) as answer:
            return {"http": answer.status, **json.load(answer)}
    except urllib.error.HTTPError as error:
        return {"http": error.code, **json.load(error)}


def alarms(broker: ServedBroker) -> set[str]:
    """The journals that /overview reports; /readyz, the metric and the log must agree with it."""
    losses = page(broker, "/overview")["losses"]
    ready = page(broker, "/readyz")
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=10) as answer:
        assert f"mqcore_journal_losses {len(losses)}\n" in answer.read().decode()
    if not losses:
        assert (ready["http"], ready["status"]) == (200, "ready")
        return set()
    assert (ready["http"], ready["error"]["code"]) == (503, "records-lost")
    assert "mqcore journal accept-loss" in ready["error"]["message"]
    for loss in losses:
        assert loss["text"] in ready["error"]["message"]
        wait_until(lambda: any("has lost records" in line for line in broker.stderr_lines), what="the log line")
    return {loss["journal"] for loss in losses}


async def fill(directory: Path, environment: dict[str, str]) -> dict[str, int]:
    """Save messages in queues of all shards, and kill the broker. Returns the shard of each channel.

    The directory spreads names as older versions did, so that the tests know that all shards have some.
    """
    use_old_placement(directory, environment["MQCORE_SHARDS"])
    with serving("--data-dir", str(directory), environment=environment) as broker:
        async with mqcore.connect(broker.url) as mq:
            for name in QUEUES:
                await mq.declare(name, 1, SAVING)
                for number in range(3):
                    await mq.publish(f"{name}/1", f"{name} {number}")
            broker.process.send_signal(signal.SIGKILL)
            broker.process.wait()
    assert verify(directory)[0] == 0
    return places(directory)


def places(directory: Path) -> dict[str, int]:
    """The shard of each channel."""
    found: dict[str, int] = {}
    for path in directory.glob("shard-*/*.segment"):
        content = path.read_bytes()
        shard = int(path.parent.name.removeprefix("shard-"))
        found.update({name: shard for name in QUEUES if f"{name} 0".encode() in content})
    assert found.keys() == set(QUEUES)
    return found


def refused_start(directory: Path, environment: dict[str, str]) -> str:
    """The error of a broker that must not start."""
    command = [sys.executable, "-m", "mqcore", "serve", "--listen", "tmqp://127.0.0.1:0", "--data-dir", str(directory)]
    refused = programs.run(
        command, capture_output=True, text=True, timeout=30, check=False, env=clean_environment() | environment
    )
    assert refused.returncode == 2, refused.stderr
    return refused.stderr


async def counts(url: str) -> dict[str, int]:
    """Saved messages of each queue."""
    found = {}
    async with mqcore.connect(url) as mq:
        for name in QUEUES:
            try:
                found[name] = (await mq.queue(name, 1).information()).messages
            except errors.NotFound:
                found[name] = 0
    return found


@pytest.fixture
async def segment(tmp_path: Path) -> Path:
    """The only segment of a killed broker, with confirmed messages."""
    return await segment_of_killed_broker(tmp_path / "data")


def damage_record(segment: Path) -> None:
    """Change a record in the middle."""
    overwrite(segment, segment.read_bytes().index(b"body 7"), b"BODY")


async def test_loss_stops_writes_until_it_is_accepted(segment: Path) -> None:
    directory = segment.parent.parent
    damage_record(segment)
    code, text = verify(directory)
    assert code == 6, text
    assert "1 records are lost" in text
    assert f"mqcore journal accept-loss --data-dir {directory}" in text
    left = MESSAGES - 1
    for _ in range(2):
        with serving("--data-dir", str(directory), *ADMIN, environment=ONE_SHARD) as broker:
            assert alarms(broker) == {"shard-0"}
            assert page(broker, "/overview")["shards_rejecting_messages"] == [0]
            async with mqcore.connect(broker.url) as mq:
                with pytest.raises(errors.Busy, match="accept-loss"):
                    await mq.publish("orders/1", "refused")
                await mq.publish("light/1", "not durable")
                assert (await mq.queue("orders", 1).information()).messages == left
                async with mq.join("orders"):
                    (message,) = await mq.queue("orders/1").pull(1)
                    assert await message.ack()
                left -= 1
            assert broker.terminate() == 0
        code, text = verify(directory)
        assert code == 6, text
        assert "accept-loss" in text
    assert "1 records are lost" in accept_loss(directory, "--shard", "0")
    assert "no loss" in accept_loss(directory)
    with serving("--data-dir", str(directory), *ADMIN, environment=ONE_SHARD) as broker:
        assert alarms(broker) == set()
        async with mqcore.connect(broker.url) as mq:
            await mq.publish("orders/1", "taken again")
            # The settlements of the consumers above were saved while the shard rejected messages.
            assert (await mq.queue("orders", 1).information()).messages == left + 1
        assert broker.terminate() == 0
    assert "accept-loss" not in verify(directory)[1]


async def test_a_topic_whose_binding_may_be_lost_confirms_nothing_until_the_loss_is_accepted(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with serving("--data-dir", str(directory), environment=ONE_SHARD) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("copies", 1, SAVING)
        with Client(*broker.address) as peer:
            peer.hello()
            body = json.dumps({"Target": "copies/1"}).encode()
            assert peer.ask(ADD_BINDING, "@topic:news.of.today", body=body).content_type == OK
        async with mqcore.connect(broker.url) as mq:
            # The last record would look like one that a crash has torn.
            await mq.publish("copies/1", "behind the binding")
        broker.process.send_signal(signal.SIGKILL)
        broker.process.wait()
    (segment,) = (path for path in directory.glob("shard-0/*.segment") if b"news.of.today" in path.read_bytes())
    overwrite(segment, segment.read_bytes().index(b"news.of.today"), b"NEWS")
    assert verify(directory)[0] == 6
    with serving("--data-dir", str(directory), *ADMIN, environment=ONE_SHARD) as broker:
        assert alarms(broker) == {"shard-0"}
        async with mqcore.connect(broker.url) as mq:
            topic = mq.topic("news.of.today")
            async with topic.subscribe(str) as subscriber:
                with pytest.raises(errors.Nacked, match="accept-loss"):
                    await topic.publish("a queue misses this")
                await topic.publish("for those that are left", confirm=False)
                assert (await anext(subscriber)).body == "for those that are left"
            # An empty queue whose definition is lost looks like one that never existed.
            with pytest.raises(errors.Busy, match="accept-loss"):
                await mq.publish("unknown/1", "x")
        assert broker.terminate() == 0
    accept_loss(directory)
    with serving("--data-dir", str(directory), *ADMIN, environment=ONE_SHARD) as broker:
        async with mqcore.connect(broker.url) as mq:
            with pytest.raises(errors.Nacked):
                await mq.topic("news.of.today").publish("nothing is bound any more")
            with pytest.raises(errors.NotFound):
                await mq.publish("unknown/1", "x")
        assert broker.terminate() == 0


async def test_damage_that_housekeeping_finds_stops_writes_at_once_and_after_a_restart(tmp_path: Path) -> None:
    """The disk changes a record of a running broker, which finds it when it copies what is left in the segment."""
    directory = tmp_path / "data"
    mebibyte = 1 << 20
    with serving("--data-dir", str(directory), *ADMIN, environment=ONE_SHARD) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("orders", 1, SAVING)
            # The first segment is full, and the next one begun.
            for number in range(20):
                await mq.publish("orders/1", f"body {number} ".ljust(mebibyte))
            victim, other = (
                next(path for path in directory.glob("shard-0/*.segment") if name in path.read_bytes())
                for name in (b"body 13 ", b"body 19 ")
            )
            assert victim != other
            overwrite(victim, victim.read_bytes().index(b"body 13 "), b"BODY")
            async with mq.join("orders"):
                for message in await mq.queue("orders/1").pull(13):
                    assert await message.ack()
            await until(lambda: page(broker, "/overview")["shards_rejecting_messages"] == [0], "the alarm")
            assert alarms(broker) == {"shard-0"}
            with pytest.raises(errors.Busy, match="accept-loss"):
                await mq.publish("orders/1", "rejected")
        assert victim.exists(), "a start could not report it"
        broker.process.kill()
        broker.process.wait()
    code, text = verify(directory)
    assert (code, "1 records are lost" in text) == (6, True), text
    with serving("--data-dir", str(directory), *ADMIN, environment=ONE_SHARD) as broker:
        assert alarms(broker) == {"shard-0"}
        async with mqcore.connect(broker.url) as mq:
            assert (await mq.queue("orders/1").information()).messages == 6
        assert broker.terminate() == 0
    assert "1 records are lost" in accept_loss(directory)
    with serving("--data-dir", str(directory), *ADMIN, environment=ONE_SHARD) as broker:
        assert alarms(broker) == set()
        async with mqcore.connect(broker.url) as mq:
            await mq.publish("orders/1", "taken again")


async def test_a_deleted_shard_is_named_and_the_others_work(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shards = await fill(directory, TWO_SHARDS)
    shutil.rmtree(directory / "shard-1")
    code, text = verify(directory)
    assert code == 6, text
    assert "shard-1: the directory of this journal is missing" in text
    expected = {name: 3 if shard == 0 else 0 for name, shard in shards.items()}
    assert set(expected.values()) == {0, 3}
    whole = next(name for name, shard in shards.items() if shard == 0)
    for _ in range(2):
        with serving("--data-dir", str(directory), *ADMIN, environment=TWO_SHARDS) as broker:
            assert alarms(broker) == {"shard-1"}
            assert page(broker, "/overview")["shards_rejecting_messages"] == [1]
            assert await counts(broker.url) == expected
            async with mqcore.connect(broker.url) as mq:
                await mq.publish(f"{whole}/1", "another one")
            expected[whole] += 1
            broker.process.kill()
            broker.process.wait()
    assert verify(directory)[0] == 6
    accept_loss(directory, "--shard", "0")
    assert verify(directory)[0] == 6, "the loss of another shard was accepted"
    assert "shard-1" in accept_loss(directory)
    assert verify(directory)[0] == 0
    with serving("--data-dir", str(directory), *ADMIN, environment=TWO_SHARDS) as broker:
        assert alarms(broker) == set()
        assert await counts(broker.url) == expected
        async with mqcore.connect(broker.url) as mq:
            for name in QUEUES:
                await mq.declare(name, 1, SAVING)
                await mq.publish(f"{name}/1", "taken")


async def test_a_deleted_journal_of_limits_is_named_until_it_is_accepted(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    listen = ("--listen", "throttr://127.0.0.1:0?value=uint32&persist=on", "--data-dir", str(directory))
    with serving(*listen, *ADMIN) as broker:
        with SyncClient(f"throttr://{broker.ready['listeners']['throttr']}?value=uint32") as client:
            client.insert("user", quota=5, ttl=3600)
        assert broker.terminate() == 0
    assert verify(directory)[0] == 0
    shutil.rmtree(directory / "limits")
    code, text = verify(directory)
    assert (code, "limits: the directory of this journal is missing" in text) == (6, True), text
    for arguments in (listen, ("--data-dir", str(directory)), listen):
        with serving(*arguments, *ADMIN) as broker:
            assert alarms(broker) == {"limits"}
            assert broker.terminate() == 0
    assert "limits" in accept_loss(directory)
    assert verify(directory)[0] == 0
    with serving(*listen, *ADMIN) as broker:
        assert alarms(broker) == set()


async def test_losses_of_messages_for_upstream_brokers_are_accepted(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    # Nothing listens there, so that all messages wait in the journal of nodes.
    node = ("--upstream", "tmqp://127.0.0.1:1", "--keep-messages", "--auto-create", "--data-dir", str(directory))
    with serving(*node, *ADMIN) as broker:
        async with mqcore.connect(broker.url) as mq:
            for number in range(20):
                await mq.publish("a/1", f"message {number}", confirm=True)
        broker.process.kill()
        broker.process.wait()
    (segment,) = (directory / "nodes").glob("*.segment")
    # In the middle of the records, with whole ones behind it.
    text = segment.read_bytes()
    assert journal.segments(directory).forwards == 20
    assert verify(directory)[0] == 0
    overwrite(segment, text.index(b"message 9"), b"damaged!!")
    code, found = verify(directory)
    assert (code, "nodes: segment 1: checksum mismatch; 1 records are lost" in found) == (6, True), found
    accepted = accept_loss(directory)
    assert "nodes" in accepted
    with serving(*node, *ADMIN) as broker:
        assert alarms(broker) == set()


async def test_the_shard_of_another_broker_is_named(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for directory in (mine, other):
        await fill(directory, TWO_SHARDS)
    shutil.rmtree(mine / "shard-1")
    shutil.copytree(other / "shard-1", mine / "shard-1")
    code, text = verify(mine)
    assert (code, "shard-1: the directory belongs to another data directory" in text) == (6, True), text
    with serving("--data-dir", str(mine), *ADMIN, environment=TWO_SHARDS) as broker:
        assert alarms(broker) == {"shard-1"}
        assert page(broker, "/overview")["losses"][0]["cause"] == "foreign"
        broker.process.kill()
        broker.process.wait()
    assert "another data directory" in accept_loss(mine, "--shard", "1")
    assert verify(mine)[0] == 0
    with serving("--data-dir", str(mine), *ADMIN, environment=TWO_SHARDS) as broker:
        assert alarms(broker) == set()


@pytest.mark.parametrize(
    ("damage", "copy"),
    sample("copies", product(["flipped", "deleted", "emptied"], ["format", "format.copy"]), kind=lambda case: case[0]),
)
async def test_one_damaged_copy_of_the_manifest_loses_nothing(tmp_path: Path, copy: str, damage: str) -> None:
    directory = tmp_path / "data"
    await fill(directory, TWO_SHARDS)
    path = directory / copy
    whole = path.read_bytes()
    if damage == "flipped":
        # "shards 2" becomes "shards 3".
        at = whole.index(b"shards 2") + len(b"shards ")
        overwrite(path, at, bytes([whole[at] ^ 1]))
    elif damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"")
    code, text = verify(directory)
    assert (code, f"{copy} is missing or damaged" in text) == (6, True), text
    # The environment asks for another number of shards.
    with serving("--data-dir", str(directory), *ADMIN, environment=ONE_SHARD) as broker:
        assert set((await counts(broker.url)).values()) == {3}
        assert alarms(broker) == set(), "nothing is lost"
        assert any("manifest" in line for line in broker.stderr_lines)
        assert broker.terminate() == 0
    assert verify(directory)[0] == 0


@pytest.mark.parametrize("damage", ["deleted", "damaged"])
async def test_a_lost_manifest_is_an_error_and_changes_nothing(tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "data"
    await fill(directory, TWO_SHARDS)
    for copy in ("format", "format.copy"):
        if damage == "deleted":
            (directory / copy).unlink()
        else:
            overwrite(directory / copy, 12, b"?")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert "format.copy" in refused_start(directory, ONE_SHARD)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


async def test_a_manifest_of_version_1_is_upgraded_if_it_fits_the_directories(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await fill(directory, TWO_SHARDS)
    (directory / "format.copy").unlink()
    for wrong in (1, 3, 6):
        (directory / "format").write_text(f"mqcore data 1, shards {wrong}\n")
        assert f"there are {wrong} shards" in refused_start(directory, {})
    (directory / "format").write_text("mqcore data 1, shards 2\n")
    assert verify(directory)[0] == 0
    with serving("--data-dir", str(directory), *ADMIN) as broker:
        assert set((await counts(broker.url)).values()) == {3}
        assert alarms(broker) == set()
        assert broker.terminate() == 0
    assert (directory / "format").read_bytes() == (directory / "format.copy").read_bytes()
    assert (directory / "format").read_text().startswith("mqcore data 2\n")
    shutil.rmtree(directory / "shard-0")
    assert verify(directory)[0] == 6


async def test_a_backup_keeps_what_was_lost_known(segment: Path, tmp_path: Path) -> None:
    directory, copied, restored = segment.parent.parent, tmp_path / "copy", tmp_path / "restored"
    damage_record(segment)
    with serving("--data-dir", str(directory), *ADMIN, environment=ONE_SHARD) as broker:
        backup(copied, url=broker.admin_url)
    assert restore(copied, restored).is_damaged
    with serving("--data-dir", str(restored), *ADMIN) as broker:
        assert alarms(broker) == {"shard-0"}
    assert [loss.journal for loss in journal.accept_loss(restored)] == ["shard-0"]


def test_accept_loss_of_a_running_broker_or_of_nothing_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with serving("--data-dir", str(directory)) as broker:
        assert mq_journal("accept-loss", "--data-dir", directory).returncode == 7
        assert broker.terminate() == 0
    assert mq_journal("accept-loss", "--data-dir", directory, "--shard", "900").returncode == 3
    assert mq_journal("accept-loss", "--data-dir", tmp_path / "nowhere").returncode == 3
    assert mq_journal("accept-loss").returncode == 2


async def test_a_broker_killed_while_it_saves_has_lost_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    for number in range(5):
        with serving("--data-dir", str(directory), *ADMIN, environment=TWO_SHARDS) as broker:
            assert alarms(broker) == set()
            async with mqcore.connect(broker.url) as mq:
                for name in QUEUES:
                    await mq.declare(name, 1, SAVING)
                publishing = [
                    asyncio.create_task(mq.publish(f"{QUEUES[index % len(QUEUES)]}/1", f"{number} ".ljust(2000)))
                    for index in range(600)
                ]
                await publishing[100 * number]
                broker.process.kill()
                broker.process.wait()
                for task in publishing:
                    task.cancel()
                await asyncio.gather(*publishing, return_exceptions=True)
        code, text = verify(directory)
        assert code == 0, text
