"""Messages whose delivery handler fails or is slow: nothing that was confirmed is lost, and no queue stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mqcore
from awaited import until
from metrics import metric
from mqcore import Decision, DeliveryHandler, QueueOptions, errors
from mqcore.config import QueueStatus
from ports import free_port
from served import ServedBroker, serving

APP = '''
"""A handler that fails on request."""

import mqcore


class Fails(mqcore.DeliveryHandler):
    """Saves what it accepts."""

    policy = "at-least-once"

    def received_from_producer(self, queue, message, producer):
        """Fail for bodies that ask for it."""
        if message.body.startswith(b"fail"):
            raise ValueError("on purpose")
        return super().received_from_producer(queue, message, producer)


handlers = {"fails": Fails()}
'''
PULL = QueueOptions(status=QueueStatus.PULL, delivery_handler="fails")
LIMIT = 10.0
"""Seconds for anything that needs milliseconds."""


@contextmanager
def running(directory: Path, port: int = 0, *options: str) -> Iterator[ServedBroker]:
    """A broker with the handler and a data directory."""
    directory.mkdir(exist_ok=True)
    (directory / "shop.py").write_text(APP)
    listen = ("--listen", f"tmqp://127.0.0.1:{port}", "--data-dir", str(directory / "data"))
    with serving("--app", "shop:handlers", *listen, *options, cwd=directory) as broker:
        yield broker


def kill(broker: ServedBroker) -> None:
    broker.process.kill()
    broker.process.wait()


async def bodies(url: str) -> list[bytes]:
    """Take everything out of the queue."""
    async with mqcore.connect(url) as mq:
        count = (await mq.queue_information("work/1")).messages
        return [message.raw for message in await mq.queue("work/1").pull(count)] if count else []


async def test_topic_confirms_no_copy_that_a_failing_handler_keeps_in_memory(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("work", 1, PULL)
            await mq.bind("@topic:news", "work/1")
            await mq.topic("news").publish(b"kept")
            with pytest.raises(errors.MqcoreError):
                await mq.topic("news").publish(b"fail")
        kill(broker)
    with running(tmp_path) as broker:
        assert await bodies(broker.url) == [b"kept"]


async def test_message_that_stays_because_its_handler_failed_is_saved(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("work", 1, PULL)
            await mq.publish("work/1", b"fail", confirm=False)
            # Its confirmation covers everything before it.
            await mq.publish("work/1", b"kept")
        kill(broker)
    with running(tmp_path) as broker:
        assert sorted(await bodies(broker.url)) == [b"fail", b"kept"]


async def test_forwarded_message_whose_handler_failed_is_confirmed_when_it_is_saved(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path / "north", port, "--node-name", "north") as north:
        down = ("--upstream", north.url, "--node-name", "south", "--keep-messages", "--admin", "http://127.0.0.1:0")
        async with mqcore.connect(north.url) as mq:
            await mq.declare("work", 1, PULL)
        listen = ("--listen", "tmqp://127.0.0.1:0", "--data-dir", str(tmp_path / "south"))
        with serving(*down, *listen) as south:
            async with mqcore.connect(south.url) as mq:
                await mq.declare("work", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once"))
                for body in (b"fail 1", b"kept", b"fail 2"):
                    await mq.publish("work/1", body)
            confirmed = f'mqcore_node_confirmed_total{{upstream="127.0.0.1:{port}"}}'
            await until(lambda: metric(south, confirmed) == 3)
            kill(north)
    with running(tmp_path / "north", port, "--node-name", "north") as north:
        assert sorted(await bodies(north.url)) == [b"fail 1", b"fail 2", b"kept"]


async def test_queue_continues_if_a_consumer_joins_while_the_handler_decides_about_expiry() -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    class Waits(DeliveryHandler):
        async def message_timed_out(self, queue: Any, message: Any) -> Decision:
            began.set()
            await goes_on.wait()
            return Decision(allow=False)

    broker = mqcore.Broker()
    broker.delivery_handlers["waits"] = Waits()
    options = QueueOptions(
        status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, wait_for_acknowledge=True, delivery_handler="waits"
    )
    async with broker, mqcore.connect(broker) as mq:
        await mq.declare("work", 1, options)
        await mq.publish("work/1", b"old", expires_in="50ms")
        async with asyncio.timeout(LIMIT):
            await began.wait()
            async with mq.queue("work/1").consume(prefetch=1) as messages:
                for number in range(3):
                    await mq.publish("work/1", str(number).encode())
                goes_on.set()
                for number in range(3):
                    message = await anext(messages)
                    assert message.raw == str(number).encode()
                    await message.ack()


async def test_message_that_expires_while_its_handler_decides_is_not_delivered() -> None:
    asked = 0

    class Slow(DeliveryHandler):
        async def begin_send(self, queue: Any, message: Any) -> Decision:
            nonlocal asked
            asked += 1
            if message.body == b"old":
                await asyncio.sleep(0.3)
            return Decision()

    broker = mqcore.Broker()
    broker.delivery_handlers["slow"] = Slow()
    async with broker, mqcore.connect(broker) as mq:
        await mq.declare("work", 1, QueueOptions(status=QueueStatus.ROUND_ROBIN, delivery_handler="slow"))
        async with asyncio.timeout(LIMIT), mq.queue("work/1").consume() as messages:
            await mq.publish("work/1", b"old", expires_in="100ms")
            await mq.publish("work/1", b"new")
            assert (await anext(messages)).raw == b"new"
        assert asked >= 2
        assert broker.stats().queue("work/1").normal == 0


async def test_messages_that_a_consumer_returns_while_a_handler_decides_are_delivered_again() -> None:
    goes_on = asyncio.Event()

    class Slow(DeliveryHandler):
        async def end_send(self, queue: Any, message: Any) -> Decision:
            await goes_on.wait()
            return Decision()

    broker = mqcore.Broker()
    broker.delivery_handlers["slow"] = Slow()
    bodies = [f"{number}".encode() for number in range(20)]
    options = QueueOptions(status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, delivery_handler="slow")
    async with broker, mqcore.connect(broker) as mq, asyncio.timeout(LIMIT):
        await mq.declare("work", 1, options)
        for body in bodies:
            await mq.publish("work/1", body, confirm=False)
        async with mqcore.connect(broker) as leaving, leaving.queue("work/1").consume(prefetch=50) as messages:
            first = await anext(messages)
            await first.ack()
        # Closing has returned the others, which no program has seen.
        goes_on.set()
        received = []
        async with mq.queue("work/1").consume(prefetch=50) as messages:
            async for message in messages:
                received.append(message.raw)
                await message.ack()
                if len(received) == len(bodies) - 1:
                    break
        assert (first.raw, received) == (bodies[0], bodies[1:])
