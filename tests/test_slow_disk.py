"""Slow disks: queues in memory and other shards continue, confirmations wait for their sync, and none is lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import mqcore
from depth import by_depth
from mqcore import QueueOptions, QueueStatus
from mqcore.sync import connect
from served import ServedBroker, serving
from slow_sync import slow_sync

MEMORY = QueueOptions(status=QueueStatus.PULL, delivery_handler="memory")
SAVING = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
SLOW_SHARD = "shard-0"
SHARDS = {"MQCORE_SHARDS": "2"}
LIMIT = 20.0
"""Seconds for everything that does not wait for the disk."""

HELD_SECONDS = by_depth(0.3, 5.0)
"""Duration of one slow sync."""
RARE_SECONDS = by_depth(1.0, 60.0)
"""Duration of a load during which one sync of a hundred takes 100 ms."""


def names_of_both_shards(directory: Path) -> tuple[str, str]:
    """A channel of the slow shard, and one of the other: names are placed by a key of the data directory."""
    names = [f"books-{number}" for number in range(20)]
    with serving("--data-dir", str(directory), environment=SHARDS) as broker:
        with connect(broker.url) as mq:
            for name in names:
                mq.declare(name, 1, SAVING)
                mq.publish(f"{name}/1", f"find {name};", confirm=True)
                mq.clear_queue(f"{name}/1")
        assert broker.terminate() == 0
    found: dict[str, str] = {}
    for path in directory.glob("shard-*/*.segment"):
        content = path.read_bytes()
        for name in names:
            if f"find {name};".encode() in content:
                found[path.parent.name] = name
    return found[SLOW_SHARD], found["shard-1"]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


class Latencies:
    """Round trips of messages to some queues, measured one after the other."""

    def __init__(self, mq: mqcore.Client, queues: dict[str, str]) -> None:
        self._mq = mq
        self._queues = queues
        self.of: dict[str, list[float]] = {name: [] for name in queues}

    async def measure(self, end: float) -> None:
        """Publish with confirmation and pull until a monotonic time."""
        while time.monotonic() < end:
            for name, queue in self._queues.items():
                began = time.monotonic()
                async with asyncio.timeout(LIMIT):
                    await self._mq.publish(queue, b"x" * 100, confirm=True)
                    assert len(await self._mq.queue(queue).pull(1)) == 1
                self.of[name].append(time.monotonic() - began)

    def __str__(self) -> str:
        parts = []
        for name, values in self.of.items():
            median, p99 = (percentile(values, share) * 1000 for share in (0.5, 0.99))
            parts.append(f"{name}: {len(values)} messages, p50 {median:.2f} ms, p99 {p99:.2f} ms")
        return "; ".join(parts)


async def queues_that_do_not_wait(stack: AsyncExitStack, broker: ServedBroker, slow: str, other: str) -> Latencies:
    """A queue in memory of each shard, and a saving one of the shard whose disk is quick."""
    mq = await stack.enter_async_context(mqcore.connect(broker.url))
    await mq.declare(slow, 2, MEMORY)
    await mq.declare(other, 2, MEMORY)
    for channel in (slow, other):
        await stack.enter_async_context(mq.join(channel))
    return Latencies(
        mq, {"memory": f"{slow}/2", "memory, other shard": f"{other}/2", "saved, other shard": f"{other}/1"}
    )


def bodies_in(directory: Path, queue: str) -> set[bytes]:
    """The messages of a queue after a start with a quick disk."""
    found: list[bytes] = []
    with serving("--data-dir", str(directory)) as broker, connect(broker.url) as mq:
        stored = mq.queue(queue).information().messages
        with mq.join(queue.partition("/")[0]):
            while len(found) < stored:
                found += [message.raw for message in mq.queue(queue).pull(1000)]
    assert len(found) == stored == len(set(found))
    return set(found)


@pytest.mark.timeout(by_depth(60, 120))
async def test_a_held_sync_delays_only_confirmations_of_its_shard(tmp_path: Path) -> None:
    directory, gate = tmp_path / "data", tmp_path / "gate"
    slow, other = names_of_both_shards(directory)
    environment = slow_sync(tmp_path, gate=gate, part=SLOW_SHARD) | SHARDS
    with serving("--data-dir", str(directory), environment=environment) as broker:
        async with AsyncExitStack() as stack:
            quiet = await queues_that_do_not_wait(stack, broker, slow, other)
            await quiet.measure(time.monotonic() + HELD_SECONDS)
            held = await queues_that_do_not_wait(stack, broker, slow, other)
            producer = await stack.enter_async_context(mqcore.connect(broker.url, request_timeout="60s"))
            gate.touch()
            began = time.monotonic()
            bodies = [b"%d" % number for number in range(1000)]
            waiting = [asyncio.create_task(producer.publish(f"{slow}/1", body, confirm=True)) for body in bodies]
            await held.measure(time.monotonic() + HELD_SECONDS)
            assert not any(task.done() for task in waiting), "confirmed before the sync ended"
            gate.unlink()
            await asyncio.gather(*waiting)
            seconds = time.monotonic() - began
        broker.process.kill()
        broker.process.wait()
    print(f"quiet: {quiet}")
    print(f"a sync of {seconds:.1f} s: {held}")
    assert bodies_in(directory, f"{slow}/1") == set(bodies)


@pytest.mark.timeout(by_depth(60, 240))
async def test_rare_slow_syncs_delay_only_confirmations_of_their_shard(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    slow, other = names_of_both_shards(directory)
    confirmed: set[bytes] = set()
    waits: list[float] = []

    async def produce(mq: mqcore.Client, end: float) -> None:
        while time.monotonic() < end:
            body, began = b"%d" % len(waits), time.monotonic()
            waits.append(0.0)
            await mq.publish(f"{slow}/1", body, confirm=True)
            waits[int(body)] = time.monotonic() - began
            confirmed.add(body)

    rows = []
    # Without and with slow syncs, under the same load.
    for milliseconds in (0, 100):
        environment = slow_sync(tmp_path, milliseconds=milliseconds, every=100, part=SLOW_SHARD) | SHARDS
        with serving("--data-dir", str(directory), environment=environment) as broker:
            async with AsyncExitStack() as stack:
                latencies = await queues_that_do_not_wait(stack, broker, slow, other)
                producer = await stack.enter_async_context(mqcore.connect(broker.url))
                end, first = time.monotonic() + RARE_SECONDS, len(waits)
                await asyncio.gather(
                    *(produce(producer, end) for _ in range(4)),
                    latencies.measure(end),
                )
            broker.process.kill()
            broker.process.wait()
        own = waits[first:]
        rows.append(f"every 100th sync {milliseconds} ms longer: {latencies}; {len(own)} confirmations, ")
        rows[-1] += f"p50 {percentile(own, 0.5) * 1000:.2f} ms, longest {max(own) * 1000:.0f} ms"
        if milliseconds and len(own) > 1000:
            assert max(own) >= 0.09, "a confirmation waited for a slow sync"
    print("\n".join(rows))
    assert confirmed <= bodies_in(directory, f"{slow}/1")
