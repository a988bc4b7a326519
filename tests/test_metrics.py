"""The histograms of `/metrics`: what they count, and in which class."""

from __future__ import annotations

import asyncio
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import mqcore
from awaited import until
from mqcore import Decision, DeliveryHandler, QueueOptions, SendAck
from mqcore._core import Acknowledgement, ClientView, Delivery, Message, QueueView
from mqcore.config import QueueStatus

ADMIN = "http://127.0.0.1:0"
SAVING = QueueOptions(status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, delivery_handler="at-least-once")
LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def samples(broker: mqcore.Broker, name: str, labels: str = "") -> Iterator[tuple[str, float]]:
    """The samples of a metric that have these labels: what follows its name, with the class of a histogram, and the
    value."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics?queues=1", timeout=10) as page:
        lines = page.read().decode().splitlines()
    for line in lines:
        found = LINE.fullmatch(line)
        if found is None or not found[1].startswith(name) or labels not in (found[2] or ""):
            continue
        bound = re.search(r'le="([^"]+)"', found[2] or "")
        yield found[1].removeprefix(name) + (bound[1] if bound else ""), float(found[3])


def histogram(broker: mqcore.Broker, name: str, labels: str = "") -> dict[str, float]:
    """The samples of one histogram."""
    found = list(samples(broker, name, labels))
    assert len(dict(found)) == len(found), found
    return dict(found)


def is_between(found: dict[str, float], low: str, high: str, count: int) -> bool:
    """Whether all of so many are above the bound `low` and not above the bound `high`."""
    return (found[f"_bucket{low}"], found[f"_bucket{high}"], found["_count"]) == (0, count, count)


async def test_processing_time_is_from_delivery_to_positive_acknowledgement() -> None:
    async with mqcore.Broker(admin=ADMIN) as broker, mqcore.connect(broker) as mq:
        await mq.declare("work", 1, QueueOptions(status=QueueStatus.ROUND_ROBIN, request_acknowledge=True))
        await mq.publish("work/1", b"first")
        # It waits in the queue for longer than its consumer needs for it.
        await asyncio.sleep(0.6)
        await mq.publish("work/1", b"second")
        async with mq.queue("work/1").consume(prefetch=1) as messages:
            for _ in range(2):
                message = await anext(messages)
                await asyncio.sleep(0.11)
                await message.ack()
            await mq.publish("work/1", b"third")
            message = await anext(messages)
            await message.nack()
        found = histogram(broker, "mqcore_processing_seconds")
        assert is_between(found, "0.1", "0.5", 2), found
        assert found["_bucket+Inf"] == 2
        assert 0.22 <= found["_sum"] < 1
        of_queue = histogram(broker, "mqcore_queue_processing_seconds", 'queue="work/1"')
        assert of_queue == found
        await mq.remove_queue("work/1")
        assert histogram(broker, "mqcore_processing_seconds") == found, "a removed queue still counts"


class Slow(DeliveryHandler):
    """Needs a known time for one of its steps."""

    def received_from_producer(self, queue: QueueView, message: Message, producer: ClientView) -> Decision:
        time.sleep(0.06)
        return Decision(acknowledge=SendAck.ALWAYS)

    def acknowledge_received(
        self, queue: QueueView, acknowledgement: Acknowledgement, delivery: Delivery | None
    ) -> Decision:
        return Decision(acknowledge=SendAck.ALWAYS)


async def test_handler_time_is_counted_by_handler_and_step() -> None:
    broker = mqcore.Broker(admin=ADMIN)
    broker.delivery_handlers["slow"] = Slow()
    broker.delivery_handlers["unused"] = Slow()
    async with broker, mqcore.connect(broker) as mq:
        options = QueueOptions(status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, delivery_handler="slow")
        await mq.declare("work", 1, options)
        async with mq.queue("work/1").consume() as messages:
            for number in range(3):
                await mq.publish("work/1", str(number))
                await (await anext(messages)).ack()
        arrivals = histogram(broker, "mqcore_handler_seconds", 'handler="slow",step="received_from_producer"')
        assert is_between(arrivals, "0.05", "0.25", 3), arrivals

        def acknowledged() -> tuple[float, float]:
            found = histogram(broker, "mqcore_handler_seconds", 'handler="slow",step="acknowledge_received"')
            return found.get("_bucket0.05", 0), found.get("_count", 0)

        # Clients do not wait until the handler has seen their acknowledgement.
        await until(lambda: acknowledged() == (3, 3), "the time of three short acknowledgements")
        assert not list(samples(broker, "mqcore_handler_seconds", 'handler="unused"'))


class Quick(DeliveryHandler):
    """Decides at once."""

    def received_from_producer(self, queue: QueueView, message: Message, producer: ClientView) -> Decision:
        return Decision(acknowledge=SendAck.ALWAYS)


def hold_the_gil(end: threading.Event) -> None:
    """Keep the GIL in calls that do not release it for some tens of milliseconds."""
    ballast = list(range(2_000_000))
    while not end.is_set():
        ballast.sort(key=int)


async def test_wait_for_the_gil_is_not_counted_as_time_of_the_handler() -> None:
    broker = mqcore.Broker(admin=ADMIN)
    broker.delivery_handlers["quick"] = Quick()
    async with broker:
        end = threading.Event()
        busy = threading.Thread(target=hold_the_gil, args=[end])
        async with mqcore.connect(broker) as mq:
            await mq.declare("work", 1, QueueOptions(status=QueueStatus.PUSH, delivery_handler="quick"))
            published = 0

            async def waited() -> float:
                nonlocal published
                await mq.publish("work/1", str(published))
                published += 1
                return histogram(broker, "mqcore_handler_gil_wait_seconds", 'handler="quick"')["_sum"]

            busy.start()
            try:
                # The thread needs a CPU before it holds the GIL: a few messages can be faster.
                async with asyncio.timeout(30):
                    while await waited() < 0.2:
                        pass
            finally:
                end.set()
                busy.join()
        waits = histogram(broker, "mqcore_handler_gil_wait_seconds", 'handler="quick"')
        calls = histogram(broker, "mqcore_handler_seconds", 'handler="quick",step="received_from_producer"')
        assert calls["_count"] == waits["_count"] == published
        assert waits["_sum"] > 5 * calls["_sum"], (waits, calls)


async def test_fsync_time_is_a_histogram(tmp_path: Path) -> None:
    async with mqcore.Broker(admin=ADMIN, data_dir=str(tmp_path / "data")) as broker, mqcore.connect(broker) as mq:
        await mq.declare("work", 1, SAVING)
        before = histogram(broker, "mqcore_journal_fsync_seconds")
        for number in range(5):
            await mq.publish("work/1", str(number))
        after = histogram(broker, "mqcore_journal_fsync_seconds")
        assert after["_count"] >= before["_count"] + 5
        assert after["_bucket+Inf"] == after["_count"]
        assert after["_sum"] > before["_sum"]
