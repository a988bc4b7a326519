"""`Client.join` with a handler per queue, asyncio and blocking."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator

import pytest

import mqcore
from awaited import LIMIT, until
from mqcore import QueueOptions, errors
from mqcore.client import Client, Delivered
from served import wait_until

ROUND_ROBIN = QueueOptions(status="roundrobin", request_acknowledge=True, acknowledge_timeout="60s", retry_delay="60s")


class Unprintable(BaseException):
    """Its text raises too."""

    def __str__(self) -> str:
        raise SystemExit("no text")


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    async with mqcore.connect(broker.listeners[0]) as client:
        for number in (1, 2, 3):
            await client.create_queue(f"shop/{number}", ROUND_ROBIN)
        yield client


async def test_each_queue_goes_to_its_handler_and_others_stay(mq: Client, broker: mqcore.Broker) -> None:
    plain: queue.SimpleQueue[str] = queue.SimpleQueue()
    awaited: list[str] = []

    async def second(message: Delivered[str]) -> None:
        await asyncio.sleep(0)
        awaited.append(message.body)

    async with mq.join("shop", {1: lambda message: plain.put(message.body), 2: second}, str, concurrency=3):
        for number in range(4):
            for target in (1, 2, 3):
                await mq.publish(f"shop/{target}", f"{target}-{number}")
        await until(lambda: plain.qsize() == 4 and len(awaited) == 4, "all messages handled")
        await until(
            lambda: all(broker.stats().queue(f"shop/{target}").in_flight == 0 for target in (1, 2)), "all settled"
        )
    assert sorted(plain.get() for _ in range(4)) == [f"1-{number}" for number in range(4)]
    assert sorted(awaited) == [f"2-{number}" for number in range(4)]
    untouched = broker.stats().queue("shop/3")
    assert (untouched.normal, untouched.deliveries) == (4, 0)
    assert mq.counters.unclaimed == 0


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Unprintable])
@pytest.mark.parametrize("is_async", [True, False])
async def test_handler_that_raises_rejects_its_message_only(
    mq: Client, broker: mqcore.Broker, kind: type[BaseException], is_async: bool
) -> None:
    def plain(message: Delivered[str]) -> None:
        if message.body == "bad":
            raise kind("no more")

    async def coroutine(message: Delivered[str]) -> None:
        plain(message)

    async with mq.join("shop", {1: coroutine if is_async else plain}, str):
        await mq.publish("shop/1", "bad")
        await mq.publish("shop/1", "good")
        await until(lambda: broker.stats().queue("shop/1").acks == 1, "the good message acknowledged")
        await until(lambda: broker.stats().queue("shop/1").negative_acks >= 1, "the bad message rejected")


async def test_leaving_returns_what_was_not_started_and_finishes_what_was(mq: Client, broker: mqcore.Broker) -> None:
    started, finish = asyncio.Event(), asyncio.Event()
    handled: list[str] = []

    async def handler(message: Delivered[str]) -> None:
        started.set()
        await finish.wait()
        handled.append(message.body)

    await mq.publish_many("shop/1", ["0", "1", "2"])
    async with mq.join("shop", {1: handler}, str):
        await asyncio.wait_for(started.wait(), LIMIT)
        asyncio.get_running_loop().call_later(0.05, finish.set)
    assert handled == ["0"]
    # Leaving returns the other two at once; the acknowledgement of "0" may arrive after them.
    await until(
        lambda: (broker.stats().queue("shop/1").normal, broker.stats().queue("shop/1").in_flight) == (2, 0),
        "two messages requeued, and none in flight",
    )


async def test_block_that_raises_cancels_its_handlers(mq: Client, broker: mqcore.Broker) -> None:
    started = asyncio.Event()

    async def handler(message: Delivered[bytes]) -> None:
        started.set()
        await asyncio.Event().wait()

    await mq.publish("shop/1", b"x")

    async def block() -> None:
        async with asyncio.timeout(LIMIT), mq.join("shop", {1: handler}):
            await started.wait()
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        await block()


async def test_join_raises_for_a_missing_queue_and_wrong_numbers(mq: Client) -> None:
    async with mqcore.Broker() as strict, mqcore.connect(strict) as client:
        await client.create_queue("shop/1", ROUND_ROBIN)
        with pytest.raises(errors.NotFound):
            async with client.join("shop", {1: print, 77: print}):
                pass
        assert await client.channel_consumers("shop") == []
    for wrong in ({"concurrency": 0}, {"prefetch": 0}):
        with pytest.raises(errors.InvalidArgument):
            mq.join("shop", {1: print}, **wrong)


async def test_channel_stays_joined_for_pulls(mq: Client) -> None:
    await mq.create_queue("shop/9", QueueOptions(status="pull"))
    await mq.publish("shop/9", "pulled")
    async with mq.join("shop", {1: print}):
        assert [message.body for message in await mq.queue("shop/9").pull(1, str)] == ["pulled"]


def test_blocking_client_joins_with_handlers(broker: mqcore.Broker) -> None:
    handled: queue.SimpleQueue[str] = queue.SimpleQueue()

    def handler(message: mqcore.sync.Delivered[str]) -> None:
        handled.put(message.body)
        if message.body == "bad":
            raise Unprintable

    with mqcore.sync.connect(broker.listeners[0]) as client:
        client.create_queue("shop/1", ROUND_ROBIN)
        client.create_queue("shop/2", ROUND_ROBIN)
        with client.join("shop", {1: handler, 2: handler}, str, concurrency=2):
            for body in ("bad", "good"):
                client.publish("shop/1", body)
            client.publish("shop/2", "other")
            received = {handled.get(timeout=LIMIT) for _ in range(3)}
            wait_until(lambda: broker.stats().queue("shop/1").acks == 1, what="the good message acknowledged")
            wait_until(lambda: broker.stats().queue("shop/1").negative_acks >= 1, what="the bad message rejected")
        assert received == {"bad", "good", "other"}
        with client.join("shop"):
            pass


def test_leaving_of_the_blocking_client_returns_what_was_not_started(broker: mqcore.Broker) -> None:
    started, finish = threading.Event(), threading.Event()
    handled: list[str] = []

    def handler(message: mqcore.sync.Delivered[str]) -> None:
        started.set()
        finish.wait(LIMIT)
        handled.append(message.body)

    def finish_after_leaving() -> None:
        wait_until(lambda: not client.channel_consumers("shop"), what="the client has left the channel")
        finish.set()

    with mqcore.sync.connect(broker.listeners[0]) as client:
        client.create_queue("shop/1", ROUND_ROBIN)
        client.publish_many("shop/1", ["0", "1", "2"])
        leaving = threading.Thread(target=finish_after_leaving)
        with client.join("shop", {1: handler}, str, prefetch=3):
            assert started.wait(LIMIT)
            wait_until(lambda: broker.stats().queue("shop/1").in_flight == 3, what="all messages in flight")
            leaving.start()
        leaving.join()
        assert handled == ["0"]
        wait_until(lambda: broker.stats().queue("shop/1").normal == 2, what="the other messages requeued")


async def test_messages_of_a_queue_are_handled_one_at_a_time_unless_concurrency_is_given(mq: Client) -> None:
    running, most, done = 0, 0, asyncio.Event()

    async def handle(message: Delivered[str]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10):
            await asyncio.sleep(0)
        running -= 1
        if message.body == "last":
            done.set()

    await mq.publish_many("shop/1", [*map(str, range(99)), "last"])
    async with mq.join("shop", {1: handle}, str):
        await asyncio.wait_for(done.wait(), LIMIT)
    assert most == 1
