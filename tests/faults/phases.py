"""Work of a broker while system calls fail, and the checks afterwards.

Each phase works on a copy of a data directory that a killed broker left. It arms the faults, lets the real program
work, and disarms them. The checks at the end know only what clients were answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mqcore
from awaited import until
from faults.shim import Faults
from mqcore import QueueOptions, QueueStatus, errors, journal
from mqcore.backup import backup, restore
from served import ServedBroker, clean_environment, serving

LIMIT = 10.0
"""Seconds for an answer, and for a broker to recover: less than the 15 after which clients give up."""
START_LIMIT = 20.0
"""Seconds for a program to start or to end."""
SAVING = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")
QUEUE = "orders/1"
LARGE = 1 << 20
"""Bytes of a large body: sixteen fill a segment."""
ADMIN = ("--listen", "tmqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
HOUSEKEEPING_CHECKS = 100
"""Hundredths of a second after which an idle broker has certainly kept house, if it can; usually it takes 20."""

SETTINGS = {"MQCORE_SHARDS": "1"}
ORDINARY_CODES = range(1, 8)
"""Exit codes of errors with a reason, as in docs/cli.md."""
_DEFECTS = ("panicked", "Traceback", "internal error", "defect")


@dataclass
class Ledger:
    """Answers that clients received."""

    confirmed: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    """Acknowledged; saved if a message was confirmed afterwards."""
    settled: set[str] = field(default_factory=set)
    """Acknowledged, and saved."""
    may_lack_definitions: bool = False
    """Whether the broker could not read a segment at start, which may have the definition of the queue."""

    async def publish(self, mq: mqcore.Client, body: str, size: int = 0) -> bool:
        """Publish a message; whether it was confirmed. A broker that cannot save it must answer so."""
        acked = set(self.acked)
        try:
            async with asyncio.timeout(LIMIT):
                await mq.publish(QUEUE, f"{body} ".ljust(size))
        except errors.Busy as busy:
            if busy.code != 503:
                raise
            return False
        except errors.NotFound:
            if not self.may_lack_definitions:
                raise
            return False
        self.confirmed.add(body)
        self.settled |= acked
        return True

    async def acknowledge(self, mq: mqcore.Client, count: int) -> None:
        """Acknowledge the next messages."""
        async with asyncio.timeout(LIMIT), mq.join("orders"):
            for message in await mq.queue(QUEUE).pull(count):
                self.acked.add(name_of(message.raw))
                await message.ack()


def name_of(body: bytes) -> str:
    """The part of a body that tells messages apart."""
    return body.split(b" ")[0].decode()


@dataclass
class World:
    """A data directory, and what clients know about it."""

    directory: Path
    ledger: Ledger
    faults: Faults

    @contextlib.asynccontextmanager
    async def broker(self, **settings: str) -> AsyncIterator[tuple[ServedBroker, mqcore.Client]]:
        """A broker whose calls can fail, and a client. It is killed at the end, if it still runs."""
        arguments = (*ADMIN, "--data-dir", str(self.directory))
        with serving(*arguments, environment=SETTINGS | settings | self.faults.environment) as broker:
            async with mqcore.connect(broker.url) as mq:
                yield broker, mq
            self.faults.disarm()
            broker.process.kill()
            broker.process.wait()
        check_errors(broker.stderr_lines)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command whose calls can fail; its exit code and what it wrote to stderr."""
        command = [sys.executable, "-m", "mqcore", *arguments]
        environment = clean_environment() | SETTINGS | self.faults.environment
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=2 * START_LIMIT, check=False
        )
        check_errors(done.stderr.splitlines())
        return done.returncode, done.stderr


def is_ready(broker: ServedBroker) -> bool:
    """Whether /readyz reports it."""
    with urllib.request.urlopen(f"{broker.admin_url}/readyz", timeout=LIMIT) as page:
        return json.load(page)["status"] == "ready"


def check_errors(lines: list[str]) -> None:
    """No line reports a defect of mqcore."""
    assert not [line for line in lines if any(word in line for word in _DEFECTS)], "".join(lines)


async def made(directory: Path, kind: str) -> Ledger:
    """Make the data directory of a killed broker: `small` has one segment, `large` three of which half is settled."""
    ledger = Ledger()
    size = LARGE if kind == "large" else 0
    messages, settled = (36, 18) if kind == "large" else (20, 6)
    with serving(*ADMIN, "--data-dir", str(directory), environment=SETTINGS) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("orders", 1, SAVING)
            for number in range(messages):
                assert await ledger.publish(mq, f"{kind}-{number}", size)
            await ledger.acknowledge(mq, settled)
            assert await ledger.publish(mq, "fence")
        broker.process.kill()
        broker.process.wait()
    assert len(ledger.settled) == settled
    return ledger


Arm = Callable[[], None]
Phase = Callable[[World, Arm, bool], Awaitable[None]]


async def recovers(world: World, mq: mqcore.Client, expected: bool) -> None:
    """Without faults, the broker takes messages again if the error was one that passes. It answers in any case."""
    world.faults.disarm()
    number = 0
    end = asyncio.get_running_loop().time() + LIMIT
    while not await world.ledger.publish(mq, f"recovered-{number}"):
        if not expected:
            return
        assert asyncio.get_running_loop().time() < end, "the broker does not recover"
        number += 1
        await asyncio.sleep(0.05)


@contextlib.contextmanager
def started(world: World) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A broker that may not start: its process, the ready line or nothing, and what it writes to stderr."""
    command = [sys.executable, "-m", "mqcore", "serve", *ADMIN, "--data-dir", str(world.directory)]
    environment = clean_environment() | SETTINGS | world.faults.environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
        reader.start()
        guard = threading.Timer(START_LIMIT, process.kill)
        guard.start()
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            guard.cancel()
            yield process, ready, lines
        finally:
            guard.cancel()
            process.kill()
            process.wait()
            reader.join()


async def start(world: World, arm: Arm, passes: bool) -> None:
    """The broker starts, or says why it does not."""
    arm()
    with started(world) as (process, ready, lines):
        if ready:
            async with mqcore.connect(f"tmqp://{json.loads(ready)['listeners']['tmqp']}") as mq:
                world.ledger.may_lack_definitions = not passes
                await recovers(world, mq, passes)
                world.ledger.may_lack_definitions = False
        else:
            code = process.wait(START_LIMIT)
            assert code in ORDINARY_CODES, (code, lines)
    check_errors(lines)
    assert ready or lines, "it ended without a reason"


async def run(world: World, arm: Arm, passes: bool) -> None:
    """Clients publish, acknowledge and declare."""
    async with world.broker() as (_, mq):
        arm()
        for number in range(6):
            await world.ledger.publish(mq, f"run-{number}")
        await world.ledger.acknowledge(mq, 2)
        with contextlib.suppress(errors.Busy):
            async with asyncio.timeout(LIMIT):
                await mq.declare("orders", 2, SAVING)
        await recovers(world, mq, passes)


async def roll(world: World, arm: Arm, passes: bool) -> None:
    """Messages fill a segment, and the next one begins. Housekeeping then lists it in the catalog."""
    async with world.broker() as (_, mq):
        (catalog,) = world.directory.rglob("catalog")
        listed = catalog.stat().st_mtime_ns
        arm()
        # Four at a time, so that records of several messages are in one write.
        for first in range(0, 20, 4):
            bodies = (f"roll-{number}" for number in range(first, first + 4))
            await asyncio.gather(*(world.ledger.publish(mq, body, LARGE) for body in bodies))
        # With some errors the catalog stays as it is.
        for _ in range(HOUSEKEEPING_CHECKS):
            if catalog.stat().st_mtime_ns != listed:
                break
            await asyncio.sleep(0.01)
        await recovers(world, mq, passes)


async def housekeeping(world: World, arm: Arm, passes: bool) -> None:
    """Acknowledgements leave segments dead or sparse, and the broker copies and removes them."""
    async with world.broker() as (_, mq):
        arm()
        await world.ledger.acknowledge(mq, 16)
        for number in range(8):
            await world.ledger.publish(mq, f"swept-{number}", LARGE // 2)
        await recovers(world, mq, passes)


async def compact(world: World, arm: Arm, passes: bool) -> None:
    """`mqcore journal compact` rewrites the segments of a stopped broker."""
    arm()
    code, text = world.run("journal", "compact", str(world.directory))
    assert code in (0, *ORDINARY_CODES), text
    assert code == 0 or text, "it failed without a reason"
    world.faults.disarm()


async def backup_running(world: World, arm: Arm, passes: bool) -> None:
    """A backup of the running broker is whole, or it fails."""
    target = world.directory.parent / "backup"
    async with world.broker() as (broker, mq):
        assert await world.ledger.publish(mq, "before-the-backup")
        arm()
        try:
            async with asyncio.timeout(START_LIMIT):
                await asyncio.to_thread(backup, target, url=broker.admin_url)
            is_made = True
        except errors.MqcoreError:
            is_made = False
        await recovers(world, mq, passes)
    if is_made:
        restored = world.directory.parent / "restored"
        assert not restore(target, restored).is_damaged
        left = {name_of(message.body) for message in journal.messages(restored, QUEUE)}
        missing = world.ledger.confirmed - world.ledger.acked - left
        assert not {name for name in missing if not name.startswith("recovered-")}, "confirmed before the backup"


async def archive(world: World, arm: Arm, passes: bool) -> None:
    """History is copied to Parquet files. An error delays it and stops nothing else."""
    manifests = world.directory / "archive" / "_manifests"
    async with world.broker(MQCORE_HISTORY="yes", MQCORE_ARCHIVE_INTERVAL="100ms") as (broker, mq):
        arm()
        for number in range(6):
            await world.ledger.publish(mq, f"noted-{number}")

        def is_done() -> bool:
            return world.faults.struck > 0 or any(manifests.glob("*.json"))

        await until(is_done, "the fault, or the archive")
        await recovers(world, mq, passes)
        if passes:
            # The archive tries again every five seconds.
            await until(lambda: any(manifests.glob("*.json")), "the archive")
            assert is_ready(broker)
    newest = max(manifests.glob("*.json"), default=None)
    for listed in json.loads(newest.read_text())["files"] if newest else ():
        assert (world.directory / "archive" / listed["path"]).stat().st_size == listed["bytes"]


async def stop(world: World, arm: Arm, passes: bool) -> None:
    """The broker ends on SIGTERM."""
    async with world.broker() as (broker, mq):
        await world.ledger.publish(mq, "before-the-end")
        await world.ledger.acknowledge(mq, 2)
        arm()
        code = await asyncio.to_thread(broker.terminate, START_LIMIT)
        assert code in (0, *ORDINARY_CODES), (code, broker.stderr_lines)


PHASES: dict[str, tuple[str, Phase]] = {
    "start": ("small", start),
    "start of a large directory": ("large", start),
    "run": ("small", run),
    "roll": ("small", roll),
    "housekeeping": ("large", housekeeping),
    "compact": ("large", compact),
    "backup": ("small", backup_running),
    "archive": ("small", archive),
    "stop": ("small", stop),
}
"""The data directory that each phase begins with, and what happens in it."""


async def check(world: World) -> None:
    """After a restart without faults, no confirmed message is missing, and no settled one is back."""
    world.faults.disarm()
    ledger = world.ledger
    # Acknowledgements that no confirmed message followed may be lost.
    settled = set(ledger.settled)
    verified = journal.verify(world.directory)
    assert not verified.is_damaged, verified.findings
    with serving(*ADMIN, "--data-dir", str(world.directory), environment=SETTINGS) as broker:
        assert is_ready(broker)
        async with mqcore.connect(broker.url) as mq:
            assert await ledger.publish(mq, "after-the-restart")
            stored = (await mq.queue(QUEUE).information()).messages
        broker.process.kill()
        broker.process.wait()
    left = [name_of(message.body) for message in journal.messages(world.directory, QUEUE)]
    assert len(left) == len(set(left)) == stored, "a message is there twice, or the broker counts others"
    assert not ledger.confirmed - ledger.acked - set(left), "confirmed, and lost"
    assert not settled & set(left), "settled, and back"


def copied(template: Path, ledger: Ledger, place: Path) -> World:
    """A copy of a data directory, with faults of its own."""
    directory = place / "data"
    shutil.copytree(template, directory)
    return World(
        directory,
        Ledger(set(ledger.confirmed), set(ledger.acked), set(ledger.settled)),
        Faults(place / "control", directory),
    )
