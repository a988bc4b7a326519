"""Upgrades: data directories of the first release, stopped and killed, in this version.

`tests/vectors/first_release/make.py` made the directories; its manifest lists what they contain.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mqcore
import programs
from eventmq_peer import EventmqPeer
from mqcore import admin, errors, journal
from mqcore.client import Client, Delivered
from mqcore.throttr import Algorithm, Rule, SyncClient
from served import ServedBroker, clean_environment, serving, wait_until

VECTOR = Path(__file__).parent / "vectors" / "first_release"
MANIFEST: dict[str, Any] = json.loads((VECTOR / "manifest.json").read_text())
UPSTREAM: str = MANIFEST["upstream"]
"""The address of the upstream broker, which the directories contain."""

# Throttr has no credentials.
CONFIG = """
history = true
[authority]
anonymous = ["limit:*"]
"""
LISTEN = ("tmqp://127.0.0.1:0", "emqp://127.0.0.1:0", "throttr://127.0.0.1:0?value=uint32&persist=on")


@dataclass
class Old:
    """A data directory of the first release, and what it contains."""

    path: Path
    content: dict[str, Any]

    @property
    def token(self) -> str:
        """The token that may do everything."""
        return str(self.content["tokens"]["operator"])

    @property
    def messages(self) -> dict[str, list[dict[str, Any]]]:
        """The saved messages of each queue in the order of delivery."""
        return dict(self.content["messages"])

    def serve(self, *arguments: str) -> contextlib.AbstractContextManager[ServedBroker]:
        """Run this version on it until the block ends."""
        listen = [word for url in LISTEN for word in ("--listen", url)]
        config = self.path.with_suffix(".toml")
        config.write_text(CONFIG)
        place = ("--config", str(config), "--admin", "http://127.0.0.1:0", "--data-dir", str(self.path))
        return serving(*listen, *place, *arguments)


@pytest.fixture(params=["stopped", "killed"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    """A copy of a directory."""
    path = tmp_path / "data"
    with tarfile.open(VECTOR / f"{request.param}.tar.gz") as archive:
        archive.extractall(path, filter="data")
    return Old(path, MANIFEST[request.param])


def run_mqcore(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    command = [sys.executable, "-m", "mqcore", *map(str, arguments)]
    environment = clean_environment()
    return programs.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def fingerprint(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Length, time of change and content of each file."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def kill(broker: ServedBroker) -> None:
    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait()


def assert_intact(directory: Path) -> None:
    """Nothing that was confirmed is missing."""
    verified = run_mqcore("journal", "verify", directory)
    assert verified.returncode == 0, verified.stdout + verified.stderr


# --- definitions ------------------------------------------------------------------------------------------------------


async def check_definitions(mq: Client) -> None:
    """Compare channels, queues, routers and bindings with the manifest."""
    plain = await mq.channel_information("Plain")
    assert (plain.allow_multiple_queues, plain.client_limit, plain.queue_limit) == (False, 9, 3)
    for address, options in MANIFEST["queues"].items():
        information = await mq.queue(address).information()
        for name, value in options.items():
            found = getattr(information, "tag_name" if name == "tag" else name)
            assert found == value, f"{name} of {address}"
    (router,) = await mq.routers()
    assert (router.name, router.method) == ("Desk", "only-first")
    bindings = await mq.bindings("Desk")
    assert len(bindings) == len(MANIFEST["bindings"])
    for binding, wanted in zip(bindings, MANIFEST["bindings"], strict=True):
        assert {name: getattr(binding, name) for name in wanted} == wanted


def check_admin_side(broker: ServedBroker, old: Old) -> None:
    """Compare schedules, queues and history, as the admin side lists them, with the manifest."""
    listed = {schedule.id: schedule for schedule in admin.schedules(broker.admin_url, token=old.token).schedules}
    assert len(listed) == len(old.content["schedules"])
    for schedule in old.content["schedules"]:
        found = listed[schedule["id"]]
        assert {name: getattr(found, name) for name in schedule} == schedule
        assert found.due_ms > time.time() * 1000
    counted = {queue.queue: queue for queue in admin.queues(broker.admin_url, token=old.token, limit=100).queues}
    for address, messages in old.messages.items():
        queue = counted[address]
        assert (queue.ready, queue.delayed) == (len(messages), 0), address
    # A message in memory ended with the old broker. One job waits for its second attempt, years from now.
    assert counted["orders/8"].ready == 0
    assert counted["default/0"].ready == len(old.content["jobs"]["default"])
    assert (counted["work/0"].ready, counted["work/0"].delayed) == (0, 1)
    trace = admin.trace(broker.admin_url, "settled-7", token=old.token)
    assert {"produced", "saved", "delivered", "acked"} <= {step.kind for step in trace.steps}
    assert trace.outcome == "done"


def check_command_line(broker: ServedBroker, old: Old) -> None:
    """Compare counts of messages, as the command line lists them, with the manifest."""
    listed = run_mqcore("--url", broker.url, "--token", old.token, "queue", "ls", "--json")
    assert listed.returncode == 0, listed.stderr
    counts = {row["queue"]: row["ready"] for row in json.loads(listed.stdout)["queues"]}
    for address, messages in old.messages.items():
        assert counts[address] == len(messages), address


def check_limits(broker: ServedBroker, old: Old) -> None:
    """Compare limits with the manifest. This spends what the rules have left."""
    limits = old.content["limits"]
    with SyncClient(f"throttr://{broker.ready['listeners']['throttr']}?value=uint32") as client:
        for key, quota in limits["counters"].items():
            counter = client.query(key)
            assert counter is not None
            assert counter.quota == quota
        for key, value in limits["buffers"].items():
            buffer = client.get(key)
            assert buffer is not None
            assert buffer.value == value.encode()
        period, most = limits["rules"]["period"], limits["rules"]["limit"]
        for algorithm in (Algorithm.SLIDING_WINDOW, Algorithm.GCRA, Algorithm.FIXED_WINDOW):
            rule = Rule(f"rule:{algorithm}", limit=most, cost=most, period=period, algorithm=algorithm)
            assert not client.consume(rule).allowed, "a part of it was spent"


async def check_users(broker: ServedBroker, old: Old) -> None:
    """Log in with each user, and with a wrong password."""
    for name, password in old.content["users"].items():
        async with mqcore.connect(broker.url, user=name, password=password) as mq:
            assert await mq.channels()
        with pytest.raises(errors.AuthFailed):
            await mqcore.connect(broker.url, user=name, password="wrong")


async def check(broker: ServedBroker, old: Old) -> None:
    """Compare everything that does not change when it is read."""
    async with mqcore.connect(broker.url, token=old.token) as mq:
        await check_definitions(mq)
    check_admin_side(broker, old)
    check_command_line(broker, old)
    await check_users(broker, old)


# --- messages ---------------------------------------------------------------------------------------------------------


def body_of(saved: dict[str, Any]) -> bytes:
    return bytes.fromhex(saved["body_hex"]) if "body_hex" in saved else str(saved["body"]).encode()


def assert_message(message: Delivered[bytes], saved: dict[str, Any]) -> None:
    """Compare a delivered message with the manifest."""
    assert message.raw == body_of(saved)
    assert message.high_priority == saved.get("high_priority", False)
    if "id" in saved:
        assert message.id == saved["id"]
    for key in {key for key, _ in saved.get("headers", ())}:
        assert message.headers.get_all(key) == [value for name, value in saved["headers"] if name == key]
    if message.attempt is not None:
        assert message.attempt == saved.get("attempts", 0) + 1


async def consume(mq: Client, address: str, count: int) -> list[Delivered[bytes]]:
    """Take so many messages out of a queue of any status that stores some."""
    queue = mq.queue(address)
    status = (await queue.information()).status
    if status == "paused":
        await mq.update_queue(address, mqcore.QueueOptions(status=mqcore.QueueStatus.PULL))
    if status in ("paused", "pull"):
        messages = list(await queue.pull(count))
        for message in messages:
            assert await message.ack()
        return messages
    messages = []
    async with queue.consume() as stream:
        async for message in stream:
            assert await message.ack()
            messages.append(message)
            if len(messages) == count:
                break
    return messages


async def settle_messages(mq: Client, old: Old) -> None:
    """Consume all messages in their order, and settle them."""
    for address, saved in old.messages.items():
        if address == "orders/4":
            cached = await mq.queue(address).get_cached()
            assert cached is not None
            assert cached.raw == saved[0]["body"].encode()
            continue
        messages = await asyncio.wait_for(consume(mq, address, len(saved)), 20)
        assert len(messages) == len(saved), address
        for message, wanted in zip(messages, saved, strict=True):
            assert_message(message, wanted)


async def check_settled(mq: Client, old: Old) -> None:
    """No message has returned, and topics still reach the bound queue."""
    for address in old.messages.keys() - {"orders/4"}:
        information = await mq.queue(address).information()
        assert (information.messages, information.priority_messages) == (0, 0), address
    for topic, copies in {"news.sport": 1, "news.weather": 2, "sport": 2}.items():
        with contextlib.suppress(errors.MqcoreError):
            await mq.topic(topic).publish("copy")
        assert (await mq.queue("copies/1").information()).messages == copies


def finish_jobs(broker: ServedBroker, old: Old) -> None:
    """Receive the jobs that waited, those of higher priority first, and finish them."""
    wanted = old.content["jobs"]["default"]
    with EventmqPeer(f"emqp://{broker.ready['listeners']['emqp']}", token=old.token) as worker:
        worker.inform('[[10, "default"]]', 1)
        for recipient in wanted:
            job = worker.receive()
            assert job[2] == b"REQUEST"
            assert json.loads(job[-1])[1]["args"] == [recipient]
            worker.say("READY", "ready")
        worker.until_now()


@pytest.mark.timeout(180)
async def test_all_content_of_the_first_release_survives_the_upgrade_and_kills(old: Old) -> None:
    assert_intact(old.path)
    with old.serve() as broker:
        await check(broker, old)
        check_limits(broker, old)
        kill(broker)
    assert_intact(old.path)
    with old.serve() as broker:
        await check(broker, old)
        async with mqcore.connect(broker.url, token=old.token) as mq:
            await settle_messages(mq, old)
            await mq.publish("orders/1", "new", id="new")
            (message,) = await mq.queue("orders/1").pull(1)
            assert await message.ack()
        finish_jobs(broker, old)
        assert broker.terminate() == 0
    with old.serve() as broker:
        async with mqcore.connect(broker.url, token=old.token) as mq:
            await check_settled(mq, old)
        assert broker.terminate() == 0
    assert_intact(old.path)


@contextlib.contextmanager
def upstream(directory: Path) -> Iterator[ServedBroker]:
    """The upstream broker, at the address that the directories contain. One test at a time can have it."""
    host, _, port = UPSTREAM.rpartition(":")
    with socket.socket() as guard:

        def is_free() -> bool:
            with contextlib.suppress(OSError):
                guard.bind((host, int(port) + 1))
                return True
            return False

        wait_until(is_free, limit=60.0, what=f"port {int(port) + 1}")
        node = ("--node-name", "head", "--listen", f"tmqp://{UPSTREAM}")
        with serving(*node, "--data-dir", str(directory)) as broker:
            yield broker


async def test_message_for_an_upstream_broker_is_forwarded_once_after_the_upgrade(old: Old, tmp_path: Path) -> None:
    assert journal.verify(old.path).listing.forwards == 1
    with upstream(tmp_path / "upstream") as broker:
        async with mqcore.connect(broker.url) as mq:
            saving = mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, delivery_handler="at-least-once")
            await mq.declare("forwarded", 1, saving)
            with old.serve("--node-name", "first", "--upstream", broker.url, "--keep-messages") as first:
                async with asyncio.timeout(20):
                    while (await mq.queue("forwarded/1").information()).messages == 0:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                assert first.terminate() == 0
            (message,) = await mq.queue("forwarded/1").pull(10)
            assert_message(message, old.messages["forwarded/1"][0])
    assert journal.verify(old.path).listing.forwards == 0


def test_backup_of_an_upgraded_directory_is_complete(old: Old, tmp_path: Path) -> None:
    with old.serve() as broker:
        made = run_mqcore("--token", old.token, "backup", "--url", broker.admin_url, "--to", tmp_path / "all.tar")
        assert made.returncode == 0, made.stderr
        kill(broker)
    restored = run_mqcore("restore", tmp_path / "all.tar", "--data-dir", tmp_path / "restored")
    assert restored.returncode == 0, restored.stderr
    for address, saved in old.messages.items():
        copies = list(journal.messages(tmp_path / "restored", address))
        assert [copy.body for copy in copies] == [body_of(message) for message in saved]


def test_manifest_gets_a_version_that_the_first_release_rejects(old: Old) -> None:
    assert (old.path / "format").read_text() == "mqcore data 1, shards 2\n"
    with old.serve():
        pass
    # That release reads exactly the line above, before it changes anything.
    assert (old.path / "format").read_text().startswith("mqcore data 2\n")


def write_newer_manifest(directory: Path) -> None:
    """Give both copies of the manifest a version that does not exist yet."""
    content = (directory / "format").read_bytes().rstrip(b"\n")
    _, _, lines = content[: content.rindex(b"crc32 ")].partition(b"\n")
    checked = b"mqcore data 4\n" + lines
    text = checked + f"crc32 {zlib.crc32(checked):08x}\n".encode()
    for name in ("format", "format.copy"):
        (directory / name).write_bytes(text.ljust(4096, b"\n"))


def test_directory_of_a_newer_version_is_refused_and_stays_unchanged(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with serving("--data-dir", str(directory)) as broker:
        assert broker.terminate() == 0
    write_newer_manifest(directory)
    before = fingerprint(directory)
    for command in (
        ["serve", "--listen", "tmqp://127.0.0.1:0", "--data-dir", directory],
        ["journal", "verify", directory],
        ["journal", "compact", directory],
        ["backup", "--data-dir", directory, "--to", tmp_path / "backup"],
    ):
        refused = run_mqcore(*command)
        assert refused.returncode == 2, command
        assert "has format version 4, but this version of mqcore reads up to 3" in refused.stderr, command
        assert fingerprint(directory) == before, command


def test_trace_shows_the_restarts_that_an_earlier_version_and_this_one_recorded(tmp_path: Path) -> None:
    """The earlier version recorded one event for each message, this one records one for each queue."""
    data = tmp_path / "data"
    with tarfile.open(VECTOR.with_name("restored_each") / "data.tar.gz") as archive:
        archive.extractall(data, filter="data")
    # Its own starts restored it three times, except for the messages of the last run.
    before = {"or-29": ["produced", "saved", *["restored"] * 3], "late-or": ["produced", "saved", "restored"]}
    for start in range(1, 3):
        with serving("--data-dir", str(data), "--admin", "http://127.0.0.1:0", "--history") as broker:
            for message, kinds in before.items():
                trace = admin.trace(broker.admin_url, message)
                assert [step.kind for step in trace.steps] == kinds + ["restored"] * start
                numbers = {step.number for step in trace.steps}
                assert len(numbers) == len(trace.now) == 1
                assert numbers == {trace.now[0].number}
                assert {step.queue for step in trace.steps} == {"orders/1"}
            assert [step.kind for step in admin.trace(broker.admin_url, "me-3").steps] == ["produced"], "it was lost"
            assert broker.terminate() == 0
