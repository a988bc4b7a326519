"""Pulls: each message of a stream is usable as it comes; messages that the program leaves return or come later."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

import mqcore
from awaited import LIMIT, until
from mqcore import Decision, DeliveryHandler, Message, QueueOptions, QueueView, errors
from mqcore.client import Client

PULL = QueueOptions(status="pull")
WITH_ACKS = QueueOptions(status="pull", request_acknowledge=True, acknowledge_timeout="60s")


class Gate(DeliveryHandler):
    """Sends the message ``0`` at once, and the others when it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def begin_send(self, queue: QueueView, message: Message) -> Decision:
        if message.body != b"0":
            await self.opened.wait()
        return Decision()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def broker(gate: Gate) -> AsyncIterator[mqcore.Broker]:
    gate.timeout = "60s"  # type: ignore[misc]
    broker = mqcore.Broker(listen="tmqp://127.0.0.1:0", auto_create_channels=True)
    broker.delivery_handlers["gate"] = gate
    async with broker:
        yield broker


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    async with mqcore.connect(broker.listeners[0], drain_timeout=0) as client:
        yield client


async def filled(mq: Client, queue: str, options: QueueOptions, count: int) -> None:
    await mq.create_queue(queue, options)
    await mq.publish_many(queue, [str(number) for number in range(count)])


async def test_first_message_is_usable_before_the_others_come(mq: Client, gate: Gate) -> None:
    await filled(mq, "a/1", QueueOptions(status="pull", delivery_handler="gate"), 4)
    async with mq.queue("a/1").pull_stream(3, str) as messages:
        assert (await asyncio.wait_for(anext(messages), LIMIT)).body == "0"
        gate.opened.set()
        assert [message.body async for message in messages] == ["1", "2"]
    assert (messages.remaining, messages.complete) == (1, True)


async def test_loop_opens_and_closes_the_stream(mq: Client) -> None:
    await filled(mq, "a/1", PULL, 5)
    stream = mq.queue("a", 1).pull_stream(9, str, order="lifo")
    assert [message.body async for message in stream] == ["4", "3", "2", "1", "0"]
    assert (stream.remaining, stream.complete) == (0, True)
    empty = mq.queue("a/1").pull_stream(9)
    assert [message async for message in empty] == []
    assert (empty.remaining, empty.complete) == (0, True)


async def test_messages_that_the_loop_did_not_take_come_with_the_next_pull(mq: Client, broker: mqcore.Broker) -> None:
    await filled(mq, "a/1", PULL, 6)
    async for message in mq.queue("a/1").pull_stream(5, str):
        if message.body == "1":
            break
    await until(lambda: broker.stats().queue("a/1").normal == 1, "five messages sent")
    rest = [message.body for message in await mq.queue("a/1").pull(4, str)]
    again = [message.body async for message in mq.queue("a/1").pull_stream(4, str)]
    assert sorted(rest + again) == ["2", "3", "4", "5"]
    assert rest[:3] == ["2", "3", "4"]


async def test_messages_to_acknowledge_that_the_loop_did_not_take_are_requeued(
    mq: Client, broker: mqcore.Broker
) -> None:
    await filled(mq, "a/1", WITH_ACKS, 5)
    async for message in mq.queue("a/1").pull_stream(5, str):
        assert await message.ack()
        if message.body == "1":
            break
    await until(lambda: broker.stats().queue("a/1").normal == 3, "three messages requeued")
    async for message in mq.queue("a/1").pull_stream(5, str):
        assert message.body in {"2", "3", "4"}
        assert await message.ack()
    await until(lambda: broker.stats().queue("a/1").in_flight == 0, "everything settled")


async def test_refused_pull_raises_at_the_first_message(mq: Client) -> None:
    await mq.create_queue("a/1", QueueOptions(status="push"))
    with pytest.raises(errors.Unacceptable):
        await anext(aiter(mq.queue("a/1").pull_stream(1)))
    with pytest.raises(errors.NotFound):
        await anext(aiter(mq.queue("a/99").pull_stream(1)))
    with pytest.raises(errors.InvalidArgument):
        await anext(aiter(mq.queue("a/1").pull_stream(0)))


async def test_timeout_limits_the_wait_for_the_next_message(mq: Client, gate: Gate) -> None:
    held = QueueOptions(status="pull", delivery_handler="gate")
    await filled(mq, "a/1", held, 2)
    stream = mq.queue("a/1").pull_stream(2, str, timeout="300ms")
    assert [message.body async for message in stream] == ["0"]
    assert not stream.complete
    await mq.create_queue("a/2", held)
    await mq.publish("a/2", "late")
    with pytest.raises(errors.RequestTimeout, match="a/2"):
        await anext(aiter(mq.queue("a/2").pull_stream(1, timeout="300ms")))
    gate.opened.set()
    # Messages that the broker sends later are not lost. A pull that overtakes them finds an empty queue.
    pulled: dict[str, str] = {}
    async with asyncio.timeout(LIMIT):
        while len(pulled) < 2:
            for queue in ["a/1", "a/2"]:
                for message in await mq.queue(queue).pull(1, str):
                    pulled[queue] = message.body
    assert pulled == {"a/1": "1", "a/2": "late"}


async def test_rejected_pull_keeps_messages_that_came_too_late_for_another(mq: Client, gate: Gate) -> None:
    await filled(mq, "a/1", QueueOptions(status="pull", delivery_handler="gate"), 2)
    # The client stays in the channel, so the broker sends the second message although its pull has ended.
    async with mq.join("a"):
        stream = mq.queue("a/1").pull_stream(2, str, timeout="300ms")
        assert [message.body async for message in stream] == ["0"]
        gate.opened.set()
        await until(lambda: mq.counters.late_pulled == 1, "the second message")
        await mq.update_queue("a/1", QueueOptions(status="push"))
        with pytest.raises(errors.Unacceptable):
            await mq.queue("a/1").pull(2)
        assert [message.body for message in await mq.queue("a/1").pull(1, str)] == ["1"]


async def test_messages_of_a_cancelled_pull_come_with_the_next_one(
    mq: Client, broker: mqcore.Broker, gate: Gate
) -> None:
    await filled(mq, "a/1", QueueOptions(status="pull", delivery_handler="gate"), 2)
    # The client stays in the channel, so the broker sends the second message although its pull has ended.
    async with mq.join("a"):
        pulling = asyncio.create_task(mq.queue("a/1").pull(2, str))
        await until(lambda: broker.stats().queue("a/1").sent == 1, "the first message")
        # The answer arrives after the message.
        await mq.queue("a/1").information()
        pulling.cancel()
        gate.opened.set()
        pulled: list[str] = []
        async with asyncio.timeout(LIMIT):
            while len(pulled) < 2:
                pulled += [message.body for message in await mq.queue("a/1").pull(2, str)]
    assert sorted(pulled) == ["0", "1"]


async def test_lost_connection_raises_after_the_messages_that_came(broker: mqcore.Broker, gate: Gate) -> None:
    async with mqcore.connect(broker.listeners[0], drain_timeout=0) as client:
        await filled(client, "a/1", QueueOptions(status="pull", delivery_handler="gate"), 2)
        async with client.queue("a/1").pull_stream(2, str) as messages:
            assert (await anext(messages)).body == "0"
            await broker.aclose(0)
            with pytest.raises(errors.ConnectionLost):
                await asyncio.wait_for(anext(messages), LIMIT)


@pytest.fixture
def blocking() -> Iterator[mqcore.sync.Client]:
    with mqcore.Broker(auto_create_channels=True) as broker, mqcore.sync.connect(broker) as client:
        yield client


def test_blocking_client_streams_too(blocking: mqcore.sync.Client) -> None:
    blocking.create_queue("a/1", PULL)
    blocking.publish_many("a/1", [str(number) for number in range(5)])
    stream = blocking.queue("a/1").pull_stream(4, int)
    assert [message.body for message in stream] == [0, 1, 2, 3]
    assert (stream.remaining, stream.complete) == (1, True)


async def test_the_command_prints_each_message_as_it_comes(broker: mqcore.Broker, mq: Client, gate: Gate) -> None:
    await filled(mq, "a/1", QueueOptions(status="pull", delivery_handler="gate"), 3)
    arguments = ("-m", "mqcore", "--url", broker.listeners[0], "pull", "a/1", "--count", "3")
    program = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert await asyncio.wait_for(program.stdout.readline(), LIMIT) == b"0\n"
    gate.opened.set()
    rest, _ = await asyncio.wait_for(program.communicate(), LIMIT)
    assert (rest, program.returncode) == (b"1\n2\n", 0)
