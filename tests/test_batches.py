"""Batches of a consumer: when they are complete, and what one call does with all their messages."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import mqcore
import mqcore.sync
from awaited import until
from mqcore import errors
from mqcore.client import Batch, Client
from served import wait_until

QUEUE = "orders/1"
FOREVER = "1h"
WITH_ACKS = mqcore.QueueOptions(
    status="push", request_acknowledge=True, delivery_handler="at-least-once", put_back_limit=9
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[mqcore.Broker]:
    """A broker with a listener for each protocol."""
    listen = [f"{scheme}://127.0.0.1:0" for scheme in ("tmqp", "mqks", "mm2")]
    with mqcore.Broker(listen=listen, data_dir=tmp_path) as running:
        yield running


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    """A TMQP client, with the queue declared."""
    async with mqcore.connect(broker.listeners[0]) as client:
        await client.declare("orders", 1, WITH_ACKS)
        yield client


@pytest.fixture(params=["tmqp", "mqks", "mm2"])
async def any_mq(broker: mqcore.Broker, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A client of each protocol that has acknowledgements."""
    async with mqcore.connect(broker.listeners[0]) as client:
        await client.declare("orders", 1, WITH_ACKS)
    url = next(url for url in broker.listeners if url.startswith(f"{request.param}://"))
    async with mqcore.connect(url) as client:
        async with client.queue(QUEUE).consume():
            pass
        yield client


async def first_of(batches: AsyncIterator[Batch[bytes]]) -> Batch[bytes]:
    async with asyncio.timeout(10):
        return await anext(batches)


def left(broker: mqcore.Broker) -> int:
    """Messages that wait in the queue or are not settled."""
    stats = broker.stats().queue(QUEUE)
    return stats.normal + stats.in_flight


async def test_a_batch_is_complete_at_its_largest_size(mq: Client) -> None:
    async with mq.queue(QUEUE).consume() as messages:
        waiting = asyncio.ensure_future(first_of(messages.batches(max=10, wait=FOREVER)))
        for number in range(9):
            await mq.publish(QUEUE, str(number))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await mq.publish(QUEUE, "9")
        assert (await waiting).bodies == [str(n).encode() for n in range(10)]


async def test_a_batch_with_fewer_messages_comes_after_the_wait(mq: Client) -> None:
    async with mq.queue(QUEUE).consume() as messages:
        await mq.publish_many(QUEUE, ["a", "b", "c"])
        start = time.monotonic()
        batch = await first_of(messages.batches(max=10, wait=0.2))
        assert (len(batch), time.monotonic() - start >= 0.15) == (3, True)


async def test_prefetch_completes_a_batch_too(mq: Client) -> None:
    async with mq.queue(QUEUE).consume(prefetch=4) as messages:
        await mq.publish_many(QUEUE, [str(n) for n in range(10)])
        sizes = []
        batches = messages.batches(max=10, wait=FOREVER)
        for _ in range(2):
            batch = await first_of(batches)
            sizes.append(len(batch))
            await batch.ack()
        assert sizes == [4, 4]


async def test_without_a_wait_a_batch_has_what_is_there(mq: Client) -> None:
    async with mq.queue(QUEUE).consume() as messages:
        await mq.publish(QUEUE, "a")
        assert (await first_of(messages.batches(max=10))).bodies == [b"a"]


async def test_ack_settles_all_that_are_not_settled(broker: mqcore.Broker, any_mq: Client) -> None:
    async with any_mq.queue(QUEUE).consume() as messages:
        await any_mq.publish_many(QUEUE, [str(n) for n in range(10)])
        batch = await first_of(messages.batches(max=10, wait=FOREVER))
        assert [message.raw for message in batch] == batch.bodies == [str(n).encode() for n in range(10)]
        await batch[3].ack()
        assert await batch.ack() == 9
        assert await batch.ack() == 0
        assert all(message.is_settled for message in batch)
        await until(lambda: broker.stats().queue(QUEUE).acks == 10)
    assert left(broker) == 0


async def test_nack_returns_all_with_reason_and_delay(mq: Client) -> None:
    async with mq.queue(QUEUE).consume() as messages:
        await mq.publish_many(QUEUE, ["a", "b"])
        batches = messages.batches(max=2, wait=FOREVER)
        start = time.monotonic()
        assert await (await first_of(batches)).nack("later", delay=0.3) == 2
        again = await first_of(batches)
        assert (again.bodies, [message.attempt for message in again]) == ([b"a", b"b"], [2, 2])
        assert time.monotonic() - start >= 0.25
        with pytest.raises(errors.InvalidArgument):
            await again.nack("two\r\nlines")
        assert not any(message.is_settled for message in again)
        await again.ack()


async def test_process_settles_all_or_returns_all(mq: Client) -> None:
    async with mq.queue(QUEUE).consume() as messages:
        await mq.publish_many(QUEUE, ["a", "b"])
        batches = messages.batches(max=2, wait=FOREVER)
        with pytest.raises(ZeroDivisionError):
            async with (await first_of(batches)).process():
                raise ZeroDivisionError
        again = await first_of(batches)
        async with again.process() as batch:
            assert batch.bodies == [b"a", b"b"]
        assert all(message.is_settled for message in again)


async def test_bodies_are_decoded(mq: Client) -> None:
    async with mq.queue(QUEUE).consume(int) as messages:
        await mq.publish_many(QUEUE, [1, 2])
        async for batch in messages.batches(max=2, wait=FOREVER):
            assert batch.bodies == [1, 2]
            await batch.ack()
            break
        await mq.publish(QUEUE, "no number")
        async for batch in messages.batches():
            with pytest.raises(errors.BodyError):
                _ = batch.bodies
            break


async def test_a_loop_opens_the_consumer_and_closes_it(broker: mqcore.Broker, mq: Client) -> None:
    await mq.publish_many(QUEUE, ["a", "b", "c"])
    async for batch in mq.queue(QUEUE).consume(prefetch=3).batches(max=2, wait=FOREVER):
        assert batch.bodies == [b"a", b"b"]
        await batch.ack()
        break
    # The third message was not taken, so it returns.
    async with mqcore.connect(broker.listeners[0]) as other:
        assert (await first_of(other.queue(QUEUE).consume().batches())).bodies == [b"c"]


async def test_each_loop_opens_the_consumer_again(mq: Client) -> None:
    consumer = mq.queue(QUEUE).consume()
    for body in (b"a", b"b"):
        await mq.publish(QUEUE, body)
        async with asyncio.timeout(10):
            async for batch in consumer.batches():
                assert batch.bodies == [body]
                await batch.ack()
                break
            else:
                raise AssertionError("the loop ended without a message")


async def test_messages_of_a_batch_that_is_not_settled_return_with_the_connection(
    broker: mqcore.Broker, mq: Client
) -> None:
    await mq.publish_many(QUEUE, ["a", "b"])
    async with mqcore.connect(broker.listeners[0]) as leaves:
        batch = await first_of(leaves.queue(QUEUE).consume().batches(max=2, wait=FOREVER))
        await batch[0].ack()
    assert await batch.ack() == 0
    assert (await first_of(mq.queue(QUEUE).consume().batches())).bodies == [b"b"]


async def test_batches_end_with_the_consumer_and_after_the_idle_timeout(mq: Client) -> None:
    async with asyncio.timeout(10):
        async with mq.queue(QUEUE).consume() as messages:
            batches = messages.batches(max=2, wait=FOREVER)
            waiting = asyncio.ensure_future(anext(batches, None))
            await asyncio.sleep(0.05)
        assert await waiting is None
        async for _ in mq.queue(QUEUE).consume(idle_timeout=0.05).batches(max=2, wait=FOREVER):
            raise AssertionError("there are no messages")


async def test_a_cancelled_wait_takes_no_message(mq: Client) -> None:
    async with mq.queue(QUEUE).consume() as messages:
        await mq.publish(QUEUE, "a")
        waiting = asyncio.ensure_future(first_of(messages.batches(max=2, wait=FOREVER)))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await mq.publish(QUEUE, "b")
        assert (await first_of(messages.batches(max=2, wait=FOREVER))).bodies == [b"a", b"b"]


async def test_invalid_sizes_and_waits_are_rejected_at_once(mq: Client) -> None:
    messages = mq.queue(QUEUE).consume()
    with pytest.raises(errors.InvalidArgument, match="max is at least 1, not 0"):
        messages.batches(max=0)
    with pytest.raises(errors.ConfigError):
        messages.batches(wait="soon")


async def test_a_pulled_batch_is_settled_at_once(broker: mqcore.Broker, mq: Client) -> None:
    await mq.declare("letters", 1, mqcore.QueueOptions(status="pull", request_acknowledge=True))
    await mq.publish_many("letters/1", ["a", "b", "c"])
    batch = await mq.queue("letters/1").pull(2)
    assert (batch.bodies, await batch.ack(), batch.complete) == ([b"a", b"b"], 2, True)
    await until(lambda: broker.stats().queue("letters/1").acks == 2)


def test_batches_of_the_blocking_client(broker: mqcore.Broker) -> None:
    with mqcore.sync.connect(broker.listeners[0]) as mq:
        mq.declare("orders", 1, WITH_ACKS)
        publishing = threading.Thread(target=mq.publish_many, args=(QUEUE, [str(n) for n in range(6)]))
        publishing.start()
        bodies = []
        for batch in mq.queue(QUEUE).consume(str).batches(max=3, wait=FOREVER):
            bodies.append(batch.bodies)
            assert batch.ack() == 3
            if len(bodies) == 2:
                break
        publishing.join()
    assert bodies == [["0", "1", "2"], ["3", "4", "5"]]


def test_batch_of_the_blocking_client_waits_for_more_messages(broker: mqcore.Broker) -> None:
    with mqcore.sync.connect(broker.listeners[0]) as mq:
        mq.declare("orders", 1, WITH_ACKS)
        with mq.queue(QUEUE).consume(str) as messages:
            mq.publish(QUEUE, "0")
            wait_until(lambda: broker.stats().queue(QUEUE).in_flight == 1, what="the first message in flight")
            # The answer comes behind the delivery on the same connection.
            mq.queue(QUEUE).information()
            publishing = threading.Thread(target=mq.publish, args=(QUEUE, "1"))
            publishing.start()
            batch = next(messages.batches(max=2, wait=FOREVER))
            publishing.join()
            assert batch.bodies == ["0", "1"]
            assert batch.ack() == 2


def test_batches_of_the_blocking_client_end_after_the_idle_timeout_and_with_the_client(broker: mqcore.Broker) -> None:
    ended: list[object] = []
    with mqcore.sync.connect(broker.listeners[0]) as mq:
        mq.declare("orders", 1, WITH_ACKS)
        idle = mq.queue(QUEUE).consume(idle_timeout=0.05)
        ending = threading.Thread(target=lambda: ended.append(list(idle.batches(max=2, wait=FOREVER))), daemon=True)
        ending.start()
        ending.join(10)
        assert ended == [[]]
        with mq.queue(QUEUE).consume() as messages:
            waiting = threading.Thread(target=lambda: ended.append(list(messages.batches())), daemon=True)
            waiting.start()
            wait_until(lambda: bool(mq.channel_consumers("orders")), what="the consumer")
            mq.close()
            waiting.join(10)
    assert ended == [[], []]
