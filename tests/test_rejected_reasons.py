"""Each queue counts the messages that it rejects by reason: in statistics, on the admin side and in the metrics."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest

import mqcore
from awaited import until
from mqcore import Decision, DeliveryHandler, Message, QueueOptions, QueueView, errors
from mqcore._broker_stats import RejectReason
from mqcore.client import Client

REASONS = get_args(RejectReason)


class Gate(DeliveryHandler):
    """Decides about no message before it is opened."""

    timeout = "60s"

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def received_from_producer(self, queue: QueueView, message: Message, producer: Any) -> Decision:
        await self.opened.wait()
        return Decision()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def broker(gate: Gate) -> AsyncIterator[mqcore.Broker]:
    # Without a data directory, so that nothing can be saved.
    settings: dict[str, Any] = {"undecided_max": 1, "unsaved_memory_max": 1 << 20, "auto_create_channels": True}
    broker = mqcore.Broker(listen="tmqp://127.0.0.1:0", admin="http://127.0.0.1:0", shards=1, **settings)
    broker.delivery_handlers["gate"] = gate
    async with broker:
        yield broker


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    async with mqcore.connect(broker.listeners[0]) as client:
        yield client


def page(broker: mqcore.Broker, path: str) -> str:
    """A page of the admin side."""
    with urllib.request.urlopen(f"{broker.admin_url}{path}", timeout=10) as answer:
        return str(answer.read().decode())


async def test_every_rejected_message_is_counted_once_under_its_reason(
    broker: mqcore.Broker, mq: Client, gate: Gate
) -> None:
    expected: dict[str, dict[str, int]] = {}

    async def rejects(queue: str, reason: str, count: int, error: type[Exception], **message: Any) -> None:
        for _ in range(count):
            with pytest.raises(error):
                await mq.publish(queue, message.get("body", b"x"), delay=message.get("delay"))
        expected.setdefault(queue, {})[reason] = count

    await mq.create_queue("a/1", QueueOptions(status="pull", message_limit=2, message_size_limit=10))
    await mq.publish("a/1", b"one")
    await rejects("a/1", "message-size", 3, errors.LimitExceeded, body=b"far too long")
    await mq.publish("a/1", b"two")
    await rejects("a/1", "message-limit", 2, errors.LimitExceeded)
    await mq.update_queue("a/1", QueueOptions(status="stopped"))
    await rejects("a/1", "stopped", 4, errors.QueueStopped)
    await mq.create_queue("a/2", QueueOptions(status="pull", publish_limit="1/h"))
    await mq.publish("a/2", b"one")
    await rejects("a/2", "publish-limit", 5, errors.LimitExceeded)
    await mq.create_queue("a/3", QueueOptions(status="pull", delivery_handler="at-least-once"))
    await rejects("a/3", "storage", 1, errors.Unacceptable)
    await mq.create_queue("a/4", QueueOptions(status="broadcast"))
    await rejects("a/4", "delay", 2, errors.Unacceptable, delay="1s")
    await mq.create_queue("a/5", QueueOptions(status="pull", delivery_handler="gate"))
    await mq.publish("a/5", b"waits", confirm=False)
    await until(lambda: broker.stats().queue("a/5").undecided == 1, "the question")
    await rejects("a/5", "handler", 3, errors.Busy)
    gate.opened.set()
    await mq.create_queue("a/6", QueueOptions(status="pull"))
    await rejects("a/6", "memory", 2, errors.LimitExceeded, body=bytes(2 << 20))

    totals = dict.fromkeys(REASONS, 0)
    for queue, reasons in expected.items():
        wanted = dict.fromkeys(REASONS, 0) | reasons
        for reason, count in reasons.items():
            totals[reason] += count
        stats = broker.stats().queue(queue)
        assert dict(stats.rejected_by) == wanted, queue
        assert stats.rejected == sum(reasons.values()), queue
        shown = json.loads(page(broker, f"/queues/{queue}"))["messages"]
        assert (shown["rejected_by"], shown["rejected"]) == (wanted, stats.rejected), queue
    metrics = {}
    for line in page(broker, "/metrics").splitlines():
        if line.startswith("mqcore_messages_rejected_total{"):
            name, value = line.split()
            metrics[name.split('"')[1]] = int(value)
    assert metrics == totals
    assert list(metrics) == list(REASONS), "every reason is there from the start"
