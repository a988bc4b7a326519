"""Journals beside those of the shards, while the disk cannot read them at start, and when it can read them again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import mqcore
from awaited import LIMIT
from damaged_files import SAVING, mq_journal, verify
from faults.phases import ADMIN
from faults.shim import Faults
from mqcore.throttr import SyncClient
from ports import free_port
from served import ServedBroker, serving
from test_losses import alarms


def kill(broker: ServedBroker) -> None:
    broker.process.kill()
    broker.process.wait()


def test_limits_that_the_disk_reads_again_are_restored(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    faults = Faults(tmp_path / "control", directory)
    listen = "throttr://127.0.0.1:0?value=uint32&persist=on"
    arguments = ("--listen", listen, *ADMIN, "--data-dir", str(directory))
    for key, found in (("before", set[str]()), ("meanwhile", {"limits"}), ("after", set[str]())):
        if found:
            faults.arm("pread", "EIO", part="limits/")
        with serving(*arguments, environment=faults.environment) as broker:
            assert alarms(broker) == found
            with SyncClient(f"throttr://{broker.ready['listeners']['throttr']}?value=uint32") as client:
                client.insert(key, quota=5, ttl=3600)
                restored = {name: client.query(name) is not None for name in ("before", "meanwhile", "after")}
            assert broker.terminate() == 0
        faults.disarm()
        assert restored == {"before": key != "meanwhile", "meanwhile": key != "before", "after": key == "after"}
    assert verify(directory)[0] == 0


async def test_messages_for_upstream_brokers_that_the_disk_reads_again_are_forwarded(tmp_path: Path) -> None:
    directory = tmp_path / "down"
    faults = Faults(tmp_path / "control", directory)
    port = free_port()
    down = (*ADMIN, "--data-dir", str(directory), "--upstream", f"tmqp://127.0.0.1:{port}", "--keep-messages")
    up = ("--listen", f"tmqp://127.0.0.1:{port}", "--data-dir", str(tmp_path / "up"), "--node-name", "up")
    before, meanwhile = [f"before-{number}" for number in range(10)], [f"meanwhile-{number}" for number in range(5)]
    with serving(*down, environment=faults.environment) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("work", 1, SAVING)
            await mq.publish_many("work/1", before)
        kill(broker)
    with serving(*up) as upstream:
        async with mqcore.connect(upstream.url) as watching:
            await watching.declare("work", 1, SAVING)
            faults.arm("pread", "EIO", part="nodes/")
            with serving(*down, environment=faults.environment) as broker:
                assert alarms(broker) == {"nodes"}
                async with mqcore.connect(broker.url) as mq:
                    await mq.publish_many("work/1", meanwhile)
                assert await forwarded(watching, len(meanwhile)) == meanwhile
                kill(broker)
            faults.disarm()
            # The upstream broker has confirmed larger numbers than those of these messages.
            with serving(*down, environment=faults.environment) as broker:
                assert alarms(broker) == set()
                assert await forwarded(watching, len(before)) == before
    assert "no loss" in mq_journal("accept-loss", "--data-dir", directory).stderr
    assert verify(directory)[0] == 0


async def forwarded(watching: mqcore.Client, count: int) -> list[str]:
    """Take the next messages that arrive at the upstream broker."""
    queue = watching.queue("work/1")
    taken: list[str] = []
    async with asyncio.timeout(LIMIT), watching.join("work"):
        while len(taken) < count:
            for message in await queue.pull(count - len(taken), str):
                taken.append(message.body)
                await message.ack()
    return taken
