"""Durability: a broker that is killed at random moments under load loses nothing that it confirmed as saved."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import mqcore
from depth import choices, rounds
from mqcore import QueueOptions, QueueStatus, errors
from mqcore.client import Delivered
from served import ServedBroker, serving

ROUNDS = rounds("CRASH", quick=3, full=200)
"""How often the broker is killed; `make crash` asks for more."""

PRODUCERS = 8
CONSUMERS = 8
WORK = "work/1"
FENCE = "work/2"
"""A queue of the same channel, so of the same journal: what is saved there is saved behind everything said before."""


@dataclass
class Ledger:
    """Confirmations that clients received, over all rounds."""

    saved: set[str] = field(default_factory=set)
    """Confirmed."""
    acked: set[str] = field(default_factory=set)
    """Acknowledged by a consumer; the broker may not have received it."""
    settled: set[str] = field(default_factory=set)
    """Acknowledged by a consumer before a confirmed message of the same connection and channel."""
    next_number: dict[int, int] = field(default_factory=lambda: defaultdict(int))


async def _produce(mq: mqcore.Client, producer: int, ledger: Ledger) -> None:
    while True:
        first = ledger.next_number[producer]
        size = 20 if producer % 2 else 1
        ledger.next_number[producer] += size
        names = [f"{producer}-{number}" for number in range(first, first + size)]
        for receipt, name in zip(await mq.publish_many(WORK, names), names, strict=True):
            assert receipt.by == "server"
            ledger.saved.add(name)


async def _consume(mq: mqcore.Client, ledger: Ledger) -> None:
    acked: list[str] = []
    async with mq.queue("work", 1).consume(str, prefetch=20) as messages:
        async for message in messages:
            ledger.acked.add(message.body)
            await message.ack()
            acked.append(message.body)
            if len(acked) >= 10:
                await mq.publish(FENCE, b"")
                ledger.settled.update(acked)
                acked.clear()


async def _round(broker: ServedBroker, ledger: Ledger, moment: float) -> None:
    """Load, and a kill in the middle of it."""
    clients = [mqcore.connect(broker.url, name=f"peer-{number}") for number in range(PRODUCERS + CONSUMERS)]
    connected = [await client for client in clients]
    work = [_produce(mq, number, ledger) for number, mq in enumerate(connected[:PRODUCERS])]
    work += [_consume(mq, ledger) for mq in connected[PRODUCERS:]]
    tasks = [asyncio.create_task(step) for step in work]
    await asyncio.sleep(moment)
    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait()
    for mq in connected:
        await mq.close(drain=0)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        # A consumer's stream just ends when its client is closed.
        assert outcome is None or isinstance(outcome, (errors.MqcoreError, asyncio.CancelledError)), outcome


async def _declare(url: str) -> None:
    async with mqcore.connect(url) as mq:
        await mq.declare(
            "work",
            1,
            QueueOptions(status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, delivery_handler="at-least-once"),
        )
        await mq.declare("work", 2, QueueOptions(status=QueueStatus.CACHE, delivery_handler="at-least-once"))


async def _drain(url: str) -> list[Delivered[str]]:
    """Everything that is left, in its order."""
    async with mqcore.connect(url) as mq:
        left: list[Delivered[str]] = []
        stored = (await mq.queue("work", 1).information()).messages
        async with mq.queue("work", 1).consume(str, prefetch=stored + 1, idle_timeout=1.0) as messages:
            async for message in messages:
                left.append(message)
                if len(left) == stored:
                    break
        return left


@pytest.mark.timeout(60 + 5 * ROUNDS)
@pytest.mark.parametrize("watermark", [None, 1000], ids=["bodies-in-memory", "bodies-on-disk"])
async def test_killed_at_random_moments_nothing_saved_is_lost_and_nothing_settled_comes_back(
    tmp_path: Path, watermark: int | None
) -> None:
    chance = choices(f"{__name__} {watermark}")
    arguments = ["--data-dir", str(tmp_path / "data")]
    if watermark is not None:
        arguments += ["--memory-watermark", str(watermark)]
    ledger = Ledger()
    with serving(*arguments) as broker:
        await _declare(broker.url)
        await _round(broker, ledger, chance.uniform(0.1, 0.4))
    for _ in range(ROUNDS - 1):
        with serving(*arguments) as broker:
            await _round(broker, ledger, chance.uniform(0.02, 0.4))
    with serving(*arguments) as broker:
        left = await _drain(broker.url)
    names = [message.body for message in left]
    assert len(ledger.saved) > 50 * ROUNDS, "there was load"
    assert len(ledger.settled) > 10 * ROUNDS, "there was work"
    assert len(set(names)) == len(names), "nothing comes twice"
    assert not ledger.saved - ledger.acked - set(names), "a receipt said that these were saved, and they are lost"
    assert not ledger.settled & set(names), "these were settled for good, and they come again"
    last: dict[str, int] = {}
    for name in names:
        producer, _, number = name.partition("-")
        assert last.get(producer, -1) < int(number), "messages of one producer changed their order"
        last[producer] = int(number)


async def test_definitions_and_saved_messages_come_back_and_unsaved_ones_do_not(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"))
    options = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once", tag="kept")
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("kept", 1, options)
            await mq.declare("passing", 1, QueueOptions(status=QueueStatus.PULL))
            for number in range(10):
                await mq.publish("kept/1", str(number), high_priority=number == 7)
                await mq.publish("passing/1", str(number))
        assert broker.terminate() == 0
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as mq:
            information = await mq.queue("kept", 1).information()
            assert (information.tag_name, information.priority_messages, information.messages) == ("kept", 1, 9)
            assert (await mq.queue("passing", 1).information()).messages == 0
            batch = await mq.queue("kept", 1).pull(20, str)
            assert [message.body for message in batch] == ["7", *(str(n) for n in range(10) if n != 7)]


async def test_bodies_above_the_watermark_leave_memory_and_come_back_in_order(tmp_path: Path) -> None:
    """Through all that looks at a stored message: a look, both orders of pulling, a restart, expiry."""
    config = mqcore.BrokerConfig(data_dir=str(tmp_path / "data"), memory_watermark=10_000, shards=1)
    kept = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
    graves = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
    mortal = QueueOptions(
        status=QueueStatus.PULL, delivery_handler="at-least-once", message_timeout=0.3, dead_letter="dead/1"
    )
    bodies = [f"{number:04}" + "x" * 1000 for number in range(500)]
    async with mqcore.Broker(config) as broker, broker.client() as mq:
        await mq.declare("kept", 1, kept)
        await mq.publish_many("kept/1", bodies)
        memory = sum(queue.memory_bytes for queue in broker.stats().queues)
        assert memory < 100_000, "bodies stay in memory above the watermark"
        assert [message.body for message in await mq.queue("kept", 1).pull(3, str)] == bodies[:3]
        assert [message.body for message in await mq.queue("kept", 1).pull(3, str, order="lifo")] == bodies[-1:-4:-1]
    async with mqcore.Broker(config) as broker, broker.client() as mq:
        left = bodies[3:-3]
        assert (await mq.queue("kept", 1).information()).messages == len(left)
        assert [message.body for message in await mq.queue("kept", 1).pull(1000, str)] == left
        await mq.declare("dead", 1, graves)
        await mq.declare("mortal", 1, mortal)
        await mq.publish_many("mortal/1", bodies)
        for _ in range(200):
            buried = (await mq.queue("dead", 1).information()).messages
            if buried == len(bodies):
                break
            await asyncio.sleep(0.05)
        assert sorted(message.body for message in await mq.queue("dead", 1).pull(1000, str)) == bodies


async def test_a_queue_that_saves_refuses_where_nothing_can_be_saved() -> None:
    async with mqcore.Broker() as broker, broker.client() as mq:
        await mq.declare("orders", 1, QueueOptions(delivery_handler="at-least-once"))
        with pytest.raises(errors.Unacceptable, match="data directory"):
            await mq.publish("orders/1", b"precious")
