"""Full or faulty disks: publishes are rejected, consumers continue, confirmed messages stay."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import mqcore
from awaited import until
from depth import by_depth, rounds
from hostile.crowd import processor_seconds
from mqcore import QueueOptions, QueueStatus, errors
from served import DISK_MIB, ServedBroker, serving
from small_disks import occupy

SAVING = "books/1"
FENCE = "books/2"
"""Of the same channel, so of the same journal: what is saved here is saved behind everything said before."""
PASSING = "passing/1"
BODY = 32 * 1024
"""Bytes of a message."""
ONE_SHARD = {"MQCORE_SHARDS": "1"}
"""One journal has all of the space."""


def on(directory: Path) -> tuple[str, ...]:
    """Arguments of a broker on this directory."""
    return ("--data-dir", str(directory / "data"), "--admin", "http://127.0.0.1:0")


def is_ready(broker: ServedBroker) -> bool:
    """Whether `/readyz` reports it; `/overview` must name the shards that reject messages if not."""
    with urllib.request.urlopen(f"{broker.admin_url}/overview", timeout=5) as page:
        shards = json.load(page)["shards_rejecting_messages"]
    try:
        with urllib.request.urlopen(f"{broker.admin_url}/readyz", timeout=5) as page:
            answer = json.load(page)
    except urllib.error.HTTPError as error:
        answer = {"status": error.code, **json.load(error)}
    if answer["status"] == "ready":
        assert shards == []
        return True
    assert (answer["status"], answer["error"]["code"], shards) == (503, "journal-rejects", [0])
    return False


def refusing(broker: ServedBroker) -> int:
    """Number of journals that accept no messages, from the metrics."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=5) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("mqcore_journal_rejecting_shards "):
                return int(line.split()[1])
    raise AssertionError("the metrics do not say whether the journal refuses")


async def declare(mq: mqcore.Client) -> None:
    saving = QueueOptions(
        status=QueueStatus.ROUND_ROBIN,
        request_acknowledge=True,
        acknowledge_timeout=60,
        delivery_handler="at-least-once",
    )
    await mq.declare("books", 1, saving)
    await mq.declare("books", 2, QueueOptions(status=QueueStatus.CACHE, delivery_handler="at-least-once"))
    await mq.declare("passing", 1, QueueOptions(status=QueueStatus.PULL))


async def publish(mq: mqcore.Client, number: int, size: int = BODY) -> bool:
    """Publish one message; whether it was confirmed. The only other answer is that the disk cannot take it."""
    try:
        await mq.publish(SAVING, f"{number} ".ljust(size))
    except errors.Busy as busy:
        if busy.code != 503 or SAVING not in str(busy):
            raise
        return False
    return True


async def fill(mq: mqcore.Client, start: int = 0) -> set[int]:
    """Publish messages numbered from `start` on until the disk is full; what was confirmed."""
    confirmed: set[int] = set()
    window = 16
    for first in range(start, start + 2 * DISK_MIB * 1024 * 1024 // BODY, window):
        numbers = range(first, first + window)
        outcomes = await asyncio.gather(*(publish(mq, number) for number in numbers))
        confirmed.update(number for number, taken in zip(numbers, outcomes, strict=True) if taken)
        if not all(outcomes):
            return confirmed
    pytest.fail("twice the disk was published and never refused")


async def unsaved_queues_work(mq: mqcore.Client) -> None:
    await mq.publish(PASSING, b"light")
    async with mq.join("passing"):
        assert [message.raw for message in await mq.queue(PASSING).pull(1)] == [b"light"]


async def acknowledge(mq: mqcore.Client, most: int, enough: Callable[[], bool] = lambda: False) -> set[int]:
    """Acknowledge what comes, until it is `most` or `enough`."""
    acked: set[int] = set()
    async with mq.queue(SAVING).consume(str, prefetch=16, idle_timeout=3.0) as messages:
        async for message in messages:
            assert await message.ack()
            acked.add(int(message.body))
            if len(acked) == most or (len(acked) % 16 == 0 and enough()):
                break
    return acked


async def trickle(mq: mqcore.Client, acked: set[int]) -> None:
    """Acknowledge for ever, so often that the journal is never idle."""
    async with mq.queue(SAVING).consume(str, prefetch=16) as messages:
        async for message in messages:
            assert await message.ack()
            acked.add(int(message.body))
            await asyncio.sleep(0.03)


async def drain(url: str) -> set[int]:
    """Everything that is left."""
    async with mqcore.connect(url) as mq:
        stored = (await mq.queue(SAVING).information()).messages
        left = await acknowledge(mq, stored) if stored else set()
        assert len(left) == stored, "something came twice, or not at all"
        return left


async def test_a_full_disk_refuses_publishers_and_serves_consumers_until_there_is_space_again(small_disk: Path) -> None:
    with serving(*on(small_disk), environment=ONE_SHARD) as broker:
        async with mqcore.connect(broker.url) as mq:
            await declare(mq)
            confirmed = await fill(mq)
            assert len(confirmed) * BODY > DISK_MIB * 1024 * 1024 // 4, "most of the disk was used"
            await until(lambda: refusing(broker) == 1, "the alarm")
            assert not is_ready(broker)
            with pytest.raises(errors.Busy, match="no space is left on the disk"):
                await mq.publish(SAVING, "0 ".ljust(BODY))
            await unsaved_queues_work(mq)
            acked = await acknowledge(mq, len(confirmed) * 3 // 4)
            assert (await mq.queue(SAVING).information()).acks == len(acked), "acknowledgements count on a full disk"
            await until(lambda: refusing(broker) == 0, "the end of the alarm")
            assert is_ready(broker)
            assert await publish(mq, 10_000), "there is space again"
            await mq.publish(FENCE, b"")
            confirmed.add(10_000)
        broker.process.kill()
        broker.process.wait()
    with serving(*on(small_disk), environment=ONE_SHARD) as broker:
        left = await drain(broker.url)
    assert not confirmed - acked - left, "confirmed, and lost"
    assert not acked & left, "settled for good, and there again"


async def test_killed_and_started_on_a_disk_that_is_still_full_nothing_is_lost(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with serving(*on(small_disk), environment=ONE_SHARD) as broker:
        async with mqcore.connect(broker.url) as mq:
            await declare(mq)
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 30 * 1024 * 1024)
            confirmed = await fill(mq)
        broker.process.kill()
        broker.process.wait()
    with serving(*on(small_disk), environment=ONE_SHARD) as broker:
        async with mqcore.connect(broker.url) as mq:
            assert (await mq.queue(SAVING).information()).messages >= len(confirmed)
            confirmed |= await fill(mq, start=5_000)
            await until(lambda: refusing(broker) == 1, "the alarm")
            acked: set[int] = set()
            working = asyncio.create_task(trickle(mq, acked))
            await until(lambda: len(acked) >= 8, "consumers go on")
            filler.unlink()
            await until(lambda: refusing(broker) == 0, "the end of the alarm, while consumers keep the journal busy")
            assert not working.done(), "there was work all the time"
            working.cancel()
            await asyncio.wait([working])
            assert await publish(mq, 10_000), "there is space again"
            await mq.publish(FENCE, b"")
        broker.process.kill()
        broker.process.wait()
    with serving(*on(small_disk), environment=ONE_SHARD) as broker:
        left = await drain(broker.url)
    assert not (confirmed | {10_000}) - acked - left, "confirmed, and lost"
    assert not acked & left, "settled for good, and there again"


CYCLES = rounds("DISK_FULL", quick=2, full=100)
"""How often the disk becomes full."""
HELD_SECONDS = by_depth(0.5, 1.0)
"""Time for which it stays full while producers try again."""
TRIES_PER_SECOND = 20


@pytest.mark.timeout(60 + 12 * CYCLES)
async def test_the_disk_is_full_again_and_again_and_nothing_is_lost(small_disk: Path) -> None:
    filler = small_disk / "filler"
    confirmed: set[int] = set()
    acked: set[int] = set()
    shares, waits, rejected = [], [], 0
    with serving(*on(small_disk), environment=ONE_SHARD) as broker:
        async with mqcore.connect(broker.url) as mq:
            await declare(mq)
            for cycle in range(CYCLES):
                # So much is left that each cycle publishes something.
                size = occupy(filler, leave=6 * 1024 * 1024)
                confirmed |= await fill(mq, start=cycle * 10_000)
                await until(lambda: refusing(broker) == 1, "the alarm")
                began, used = time.monotonic(), processor_seconds(broker.process.pid)
                number = cycle * 10_000 + 5_000
                while time.monotonic() - began < HELD_SECONDS:
                    # Housekeeping may still remove segments of the cycle before.
                    occupy(filler, leave=0)
                    if await publish(mq, number):
                        confirmed.add(number)
                    else:
                        rejected += 1
                    number += 1
                    await unsaved_queues_work(mq)
                    await asyncio.sleep(1 / TRIES_PER_SECOND)
                seconds = time.monotonic() - began
                shares.append((processor_seconds(broker.process.pid) - used) / seconds)
                filler.unlink()
                began = time.monotonic()
                if size > 1024 * 1024:
                    await until(lambda: refusing(broker) == 0, "the end of the alarm")
                    waits.append(time.monotonic() - began)
                stored = (await mq.queue(SAVING).information()).messages
                acked |= await acknowledge(mq, stored)
                # Without a filler, messages alone have filled the disk: there is space when they are settled.
                await until(lambda: refusing(broker) == 0, "the end of the alarm")
                number = cycle * 10_000 + 9_999
                assert await publish(mq, number), "there is space again"
                confirmed.add(number)
            await mq.publish(FENCE, b"")
        broker.process.kill()
        broker.process.wait()
    with serving(*on(small_disk), environment=ONE_SHARD) as broker:
        left = await drain(broker.url)
    assert rejected >= CYCLES * HELD_SECONDS * 2
    print(
        f"{CYCLES} cycles, {len(confirmed)} confirmed: {sorted(shares)[len(shares) // 2]:.1%} of a core while full "
        f"(at most {max(shares):.1%}), the alarm ends at most {max(waits):.2f} s after there is space"
    )
    assert not confirmed - acked - left, "confirmed, and lost"
    assert not acked & left, "settled for good, and there again"


@pytest.fixture
def strace() -> str:
    """The program that makes system calls fail."""
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed, and nothing else makes a sync fail here")
    tried = subprocess.run([program, "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()}")
    return program


async def test_after_a_sync_failed_nothing_is_called_saved_until_a_restart(tmp_path: Path, strace: str) -> None:
    trace = tmp_path / "trace"
    fault = "inject=fdatasync:error=EIO:when=20+"
    # -D: the tracer is not a parent, so that the process that is killed is the broker's.
    under = (strace, "-D", "-f", "-o", str(trace), "-e", "trace=fdatasync", "-e", fault)
    with serving(*on(tmp_path), environment=ONE_SHARD, under=under) as broker:
        async with mqcore.connect(broker.url) as mq:
            await declare(mq)
            outcomes = [await publish(mq, number, 100) for number in range(60)]
            confirmed = {number for number, taken in enumerate(outcomes) if taken}
            assert 0 < len(confirmed) < len(outcomes), "the fault came in the middle"
            assert not is_ready(broker)
            assert confirmed == set(range(len(confirmed))), "a receipt came after a failed sync"
            assert "(INJECTED)" in trace.read_text()
            assert refusing(broker) == 1
            await unsaved_queues_work(mq)
            acked = await acknowledge(mq, len(confirmed))
            assert acked == confirmed, "consumers go on"
            # Longer than the writer takes to look again whether a full disk has space: a broken one has none.
            end = time.monotonic() + 1.0
            while time.monotonic() < end:
                assert not await publish(mq, 1_000, 100), "a receipt came after a failed sync"
                await asyncio.sleep(0.05)
            assert refusing(broker) == 1, "the alarm stands"
        broker.process.kill()
        broker.process.wait()
    with serving(*on(tmp_path), environment=ONE_SHARD) as broker:
        assert is_ready(broker)
        left = await drain(broker.url)
    assert not confirmed - left, "confirmed, and lost; the journal could not write down who acknowledged"


async def test_definitions_are_confirmed_only_when_they_are_saved(tmp_path: Path, strace: str) -> None:
    trace = tmp_path / "trace"
    # Counted for each thread, so the journals fail one after the other.
    fault = "inject=fdatasync:error=EIO:when=40"
    under = (strace, "-D", "-f", "-o", str(trace), "-e", "trace=fdatasync", "-e", fault)
    saving = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
    confirmed, refused = set(), set()
    with serving(*on(tmp_path), environment={"MQCORE_SHARDS": "4"}, under=under) as broker:
        async with mqcore.connect(broker.url) as mq:
            for number in range(240):
                name = f"{number:03}-{number:03}-queue"
                try:
                    await mq.declare(name, 1, saving)
                    confirmed.add(name)
                except errors.Busy:
                    refused.add(name)
            assert "(INJECTED)" in trace.read_text()
            assert confirmed
            assert refused
            # A client that connects again declares its queues again.
            for name in confirmed:
                await mq.declare(name, 1, saving)
            with pytest.raises(errors.Busy):
                await mq.declare(min(refused), 1, saving)
        broker.process.kill()
        broker.process.wait()
    with serving(*on(tmp_path)) as broker:
        async with mqcore.connect(broker.url) as mq:
            names = {channel.name for channel in await mq.channels()}
    assert not confirmed - names, "confirmed, and gone after a restart"
