"""Consumers subscribe to queues, the broker enforces prefetch, and what a consumer leaves goes back at once."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import mqcore
import mqcore.sync
import programs
from awaited import LIMIT, next_of, taken, until
from mqcore import errors
from mqcore._broker_stats import QueueStats
from mqcore.client import Client
from mqcore.testing import TestBroker
from served import clean_environment, wait_until
from tmqp_peer import TmqpPeer

ROUND_ROBIN = mqcore.QueueOptions(status="roundrobin", request_acknowledge=True, acknowledge_timeout="30s")
"""No test here waits for this timeout: what returns in time returns without it."""


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    """A client of the embedded broker, over TCP."""
    async with mqcore.connect(broker.listeners[0]) as client:
        yield client


async def declare(client: Client, *queues: str, options: mqcore.QueueOptions = ROUND_ROBIN) -> None:
    for queue in queues:
        await client.create_queue(queue, options)


def stats(broker: mqcore.Broker, queue: str) -> QueueStats:
    return broker.stats().queue(queue)


# --- queues of a channel ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["push", "roundrobin"])
async def test_consuming_a_queue_leaves_its_sibling_alone(broker: mqcore.Broker, mq: Client, status: str) -> None:
    await declare(mq, "t/1", "t/2", options=dataclasses.replace(ROUND_ROBIN, status=status))
    await mq.publish("t/2", b"precious")
    async with mq.queue("t/1").consume() as messages:
        await mq.publish("t/1", b"mine")
        assert (await next_of(messages)).raw == b"mine"
        assert stats(broker, "t/2").deliveries == 0
    assert mq.counters.unclaimed == 0
    async with mq.queue("t/2").consume() as messages:
        assert (await next_of(messages)).raw == b"precious"


async def test_two_workers_on_sibling_queues_get_all_of_their_messages(broker: mqcore.Broker, mq: Client) -> None:
    options = mqcore.QueueOptions(status="roundrobin")
    await declare(mq, "orders0/1001", "orders0/1002", options=options)

    async def work(queue: str) -> int:
        async with mqcore.connect(broker.listeners[0]) as client:
            messages = client.queue(queue).consume(idle_timeout="1s")
            return len([message async for message in messages])

    workers = [asyncio.ensure_future(work(queue)) for queue in ("orders0/1001", "orders0/1002")]
    for queue in ("orders0/1001", "orders0/1002"):
        await mq.publish_many(queue, [b"x"] * 100)
    assert await asyncio.gather(*workers) == [100, 100]


async def test_joining_a_channel_receives_nothing(broker: mqcore.Broker, mq: Client) -> None:
    await declare(mq, "t/1", options=mqcore.QueueOptions(status="push"))
    async with mq.join("t"):
        await mq.publish("t/1", b"kept")
        assert [client.id for client in await mq.channel_consumers("t")] == [mq.id]
    assert await mq.channel_consumers("t") == []
    assert (stats(broker, "t/1").deliveries, mq.counters.unclaimed) == (0, 0)


async def test_consuming_a_missing_queue_raises_if_the_broker_creates_none() -> None:
    async with mqcore.Broker(auto_create_channels=True) as strict, strict.client() as client:
        await client.create_channel("orders")
        with pytest.raises(errors.NotFound, match="orders/7"):
            async with client.queue("orders/7").consume():
                pass


async def test_a_consumer_gets_messages_after_its_queue_was_created_again(mq: Client) -> None:
    await declare(mq, "t/1")
    async with mq.queue("t/1").consume() as messages:
        await mq.remove_queue("t/1")
        await declare(mq, "t/1")
        await mq.publish("t/1", b"new")
        assert (await next_of(messages)).raw == b"new"


def test_a_client_that_joins_a_channel_gets_all_of_its_queues(broker: mqcore.Broker, peer: TmqpPeer) -> None:
    with mqcore.sync.connect(broker.listeners[0]) as client:
        for queue in ("t/1", "t/2"):
            client.create_queue(queue, mqcore.QueueOptions(status="push"))
        joined = peer.ask(601, "t")
        assert (joined.content_type, joined.headers) == (0, [])
        for queue in ("t/1", "t/2"):
            client.publish(queue, queue)
        assert [peer.receive().payload for _ in range(2)] == [b"t/1", b"t/2"]


# --- prefetch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 3, 100])
async def test_prefetch_limits_in_flight_deliveries(broker: mqcore.Broker, mq: Client, prefetch: int) -> None:
    await declare(mq, "t/1")
    await mq.publish_many("t/1", [b"x"] * 300)
    most = 0
    async with mq.queue("t/1").consume(prefetch=prefetch) as messages:
        for _ in range(300):
            message = await next_of(messages)
            most = max(most, stats(broker, "t/1").in_flight)
            await message.ack()
    assert most <= prefetch
    wait_until(lambda: stats(broker, "t/1").acks == 300)
    assert stats(broker, "t/1").negative_acks == 0


async def test_consumers_of_one_client_have_their_own_prefetch(mq: Client) -> None:
    await declare(mq, "t/1")
    await mq.publish_many("t/1", [str(n) for n in range(10)])
    async with mq.queue("t/1").consume(prefetch=1) as slow, mq.queue("t/1").consume(prefetch=2) as fast:
        held = await next_of(slow)
        for _ in range(9):
            await (await next_of(fast)).ack()
        await held.ack()


async def test_slow_and_fast_consumer_share_the_work_as_they_are_free(broker: mqcore.Broker, mq: Client) -> None:
    """The slow one needs three times as long for a message, whatever the speed of the machine."""
    await declare(mq, "t/1")
    seen: Counter[bytes] = Counter()
    async with (
        mqcore.connect(broker.listeners[0]) as first,
        mqcore.connect(broker.listeners[0]) as second,
        first.queue("t/1").consume(prefetch=1) as slow,
        second.queue("t/1").consume(prefetch=1) as fast,
    ):
        await mq.publish_many("t/1", [str(n) for n in range(120)])
        for _ in range(30):
            held = await next_of(slow)
            for message in [held, *[await taken(fast) for _ in range(3)]]:
                seen[message.raw] += 1
            assert await held.ack()
    assert seen == Counter({str(n).encode(): 1 for n in range(120)})
    await until(lambda: stats(broker, "t/1").acks == 120)


# --- the acknowledge timeout -----------------------------------------------------------------------------------------


Work = Callable[[float], Awaitable[None]]
"""Lets so many seconds pass."""


@pytest.fixture
async def still() -> AsyncIterator[TestBroker]:
    """A broker whose clock only a test moves: a busy machine delays the program, and not its deadlines.

    Its clients have no sockets, so that `settle` waits for all that they sent.
    """
    async with TestBroker(auto_create_channels=True) as broker:
        yield broker


async def process_once_each(
    broker: mqcore.Broker, *, timeout: str, work: Work, seconds: float, count: int, prefetch: int
) -> None:
    async with broker.client() if isinstance(broker, TestBroker) else mqcore.connect(broker.listeners[0]) as mq:
        await declare(mq, "t/1", options=dataclasses.replace(ROUND_ROBIN, acknowledge_timeout=timeout))
        await mq.publish_many("t/1", [str(n) for n in range(count)])
        async with mq.queue("t/1").consume(prefetch=prefetch) as messages:
            for number in range(count):
                message = await next_of(messages)
                assert message.raw == str(number).encode()
                await work(seconds)
                assert await message.ack()
            await until(lambda: stats(broker, "t/1").acks == count)
        assert (stats(broker, "t/1").put_back, stats(broker, "t/1").normal) == (0, 0)


async def test_each_message_is_processed_once_though_all_take_longer_than_the_timeout(still: TestBroker) -> None:
    async def work(seconds: float) -> None:
        await still.settle()  # The last acknowledgement arrives before time passes.
        await still.clock.advance(seconds)

    await process_once_each(still, timeout="1s", work=work, seconds=0.9, count=80, prefetch=1)


async def test_client_extends_the_deadlines_of_prefetched_messages(broker: mqcore.Broker) -> None:
    """All together take a second longer than the timeout."""
    await process_once_each(broker, timeout="3s", work=asyncio.sleep, seconds=0.05, count=80, prefetch=100)


@pytest.mark.full("30 s; test_each_message_is_processed_once_though_all_take_longer_than_the_timeout")
async def test_each_of_120_messages_of_a_quarter_second_is_processed_once(broker: mqcore.Broker) -> None:
    await process_once_each(broker, timeout="15s", work=asyncio.sleep, seconds=0.25, count=120, prefetch=1)


@pytest.mark.full("20 s; test_client_extends_the_deadlines_of_prefetched_messages")
async def test_each_of_400_messages_of_50_ms_is_processed_once(broker: mqcore.Broker) -> None:
    await process_once_each(broker, timeout="3s", work=asyncio.sleep, seconds=0.05, count=400, prefetch=100)


async def test_working_extends_the_deadline_of_a_message(still: TestBroker) -> None:
    async with still.client() as mq:
        await declare(mq, "t/1", options=dataclasses.replace(ROUND_ROBIN, acknowledge_timeout="1s"))
        await mq.publish("t/1", b"long")
        async with mq.queue("t/1").consume() as messages:
            message = await next_of(messages)
            for _ in range(5):
                await still.clock.advance(0.9)
                assert await message.working()
                await still.settle()
            assert await message.ack()
            assert not await message.working(), "it is settled"
        wait_until(lambda: stats(still, "t/1").acks == 1)
        assert stats(still, "t/1").put_back == 0


async def test_an_acknowledgement_after_the_deadline_is_false(broker: mqcore.Broker, mq: Client) -> None:
    await declare(mq, "t/1", options=dataclasses.replace(ROUND_ROBIN, acknowledge_timeout="200ms"))
    await mq.publish("t/1", b"slow")
    async with mq.queue("t/1").consume(prefetch=2) as messages:
        late = await next_of(messages)
        taken = time.monotonic()
        again = await next_of(messages)  # the broker has put it back
        assert again.id == late.id
        # The client counts from the arrival, so its deadline is a little later than the broker's.
        await asyncio.sleep(max(0.0, taken + 0.21 - time.monotonic()))
        assert not await late.ack()


async def test_prefetched_messages_return_when_the_program_hangs(broker: mqcore.Broker, mq: Client) -> None:
    await declare(mq, "t/1", options=dataclasses.replace(ROUND_ROBIN, acknowledge_timeout="600ms", put_back_limit=0))
    async with mq.queue("t/1").consume(prefetch=10) as messages:
        await mq.publish_many("t/1", [str(n) for n in range(5)])
        await next_of(messages)  # and nothing more: the program hangs
        async with mqcore.connect(broker.listeners[0]) as other:
            seen: set[bytes] = set()
            async for message in other.queue("t/1").consume(prefetch=10, idle_timeout="3s"):
                await message.ack()
                seen.add(message.raw)
                if len(seen) == 4:
                    break
    assert seen == {b"1", b"2", b"3", b"4"}


# --- leaving a consumer ----------------------------------------------------------------------------------------------


async def takes_first(mq: Client) -> None:
    """Take the first of the prefetched messages, acknowledge it, and leave with `break`."""
    async for message in mq.queue("t/1").consume():
        await message.ack()
        break


async def takes_first_within_a_with_block(mq: Client) -> None:
    async with mq.queue("t/1").consume() as messages:
        async for message in messages:
            await message.ack()
            break


async def is_cancelled(mq: Client) -> None:
    taken = asyncio.Event()

    async def work() -> None:
        async for message in mq.queue("t/1").consume():
            await message.ack()
            taken.set()
            await asyncio.sleep(LIMIT)

    task = asyncio.ensure_future(work())
    await asyncio.wait_for(taken.wait(), LIMIT)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def is_cancelled_while_it_waits(mq: Client) -> None:
    consumer = mq.queue("t/1").consume()
    await consumer.__aenter__()
    await (await anext(consumer)).ack()
    waiting = asyncio.ensure_future(consumer._core.wait_async())  # type: ignore[union-attr, arg-type]
    await asyncio.sleep(0)
    waiting.cancel()


async def is_forgotten(mq: Client) -> None:
    consumer = mq.queue("t/1").consume()
    await consumer.__aenter__()
    await (await anext(consumer)).ack()
    del consumer
    gc.collect()


async def closes_its_client(mq: Client) -> None:
    consumer = mq.queue("t/1").consume()
    await consumer.__aenter__()
    await (await anext(consumer)).ack()
    await mq.close()


WAYS_TO_LEAVE = [
    takes_first,
    takes_first_within_a_with_block,
    is_cancelled,
    is_cancelled_while_it_waits,
    is_forgotten,
    closes_its_client,
]


@pytest.mark.parametrize("leave", WAYS_TO_LEAVE, ids=lambda leave: leave.__name__)
async def test_what_a_consumer_did_not_start_goes_back_at_once_and_in_order(
    broker: mqcore.Broker, leave: Callable[[Client], object]
) -> None:
    async with mqcore.connect(broker.listeners[0]) as other:
        # One requeue that counted would drop the messages.
        await declare(other, "t/1", options=dataclasses.replace(ROUND_ROBIN, put_back_limit=0))
        await other.publish_many("t/1", [str(n) for n in range(20)])
        async with mqcore.connect(broker.listeners[0]) as mq:
            await leave(mq)  # type: ignore[misc]
            async with other.queue("t/1").consume() as messages:
                seen = [(await next_of(messages)).raw for _ in range(19)]
    assert seen == [str(n).encode() for n in range(1, 20)]
    assert stats(broker, "t/1").negative_acks == 0


def test_a_blocking_loop_that_breaks_returns_what_it_did_not_start(broker: mqcore.Broker) -> None:
    with mqcore.sync.connect(broker.listeners[0]) as client, mqcore.sync.connect(broker.listeners[0]) as other:
        client.create_queue("t/1", dataclasses.replace(ROUND_ROBIN, put_back_limit=0))
        client.publish_many("t/1", [str(n) for n in range(20)])
        for message in client.queue("t/1").consume():
            assert message.working()
            message.ack()
            break
        seen = []
        for message in other.queue("t/1").consume(prefetch=1, idle_timeout="5s"):
            seen.append(message.raw)
            message.ack()
            if len(seen) == 19:
                break
    assert seen == [str(n).encode() for n in range(1, 20)]


async def test_another_consumer_of_the_same_client_gets_what_one_leaves(mq: Client) -> None:
    await declare(mq, "t/1")
    async with mq.queue("t/1").consume(prefetch=5) as stays:
        async with mq.queue("t/1").consume(prefetch=5):
            await mq.publish_many("t/1", [str(n) for n in range(8)])
            wait_until(lambda: mq.counters.connects == 1)
        seen = set()
        for _ in range(8):
            message = await next_of(stays)
            seen.add(message.raw)
            await message.ack()
    assert seen == {str(n).encode() for n in range(8)}


# --- pulls -----------------------------------------------------------------------------------------------------------


class Slow(mqcore.DeliveryHandler):
    """Takes its time for each message that is pulled."""

    async def begin_send(self, queue: mqcore.QueueView, message: mqcore.Message) -> mqcore.Decision:
        await asyncio.sleep(0.1)
        return mqcore.Decision.ALLOW


@pytest.mark.parametrize("acknowledge", [False, True])
async def test_messages_that_a_pull_did_not_wait_for_are_not_lost(acknowledge: bool) -> None:
    options = mqcore.QueueOptions(status="pull", delivery_handler="slow", request_acknowledge=acknowledge)
    broker = mqcore.Broker()
    broker.delivery_handlers["slow"] = Slow()
    async with broker, broker.client() as mq:
        await mq.create_queue("t/1", options)
        await mq.publish_many("t/1", [str(n) for n in range(5)])
        seen: list[bytes] = []
        async with mq.join("t"), asyncio.timeout(LIMIT):
            while len(seen) < 5:
                try:
                    batch = await mq.queue("t/1").pull(5, timeout="250ms")
                except errors.RequestTimeout:
                    continue
                for message in batch:
                    await message.ack()
                    seen.append(message.raw)
        assert sorted(seen) == [str(n).encode() for n in range(5)]


# --- the command line ------------------------------------------------------------------------------------------------


def consume(broker: mqcore.Broker, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run `mqcore consume` and return how it ended."""
    command = [sys.executable, "-m", "mqcore", "consume", *arguments]
    environment = clean_environment() | {"MQCORE_URL": broker.listeners[0]}
    return programs.run(command, capture_output=True, timeout=LIMIT, check=False, env=environment)


async def test_the_command_consumes_its_queue_only(broker: mqcore.Broker, mq: Client) -> None:
    await declare(mq, "t/1", "t/2", options=mqcore.QueueOptions(status="push"))
    await mq.publish("t/2", b"precious")
    ended = await asyncio.to_thread(consume, broker, "t/1", "--idle", "300ms")
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert (stats(broker, "t/2").normal, stats(broker, "t/2").deliveries) == (1, 0)
    ended = await asyncio.to_thread(consume, broker, "t/2", "--count", "1")
    assert (ended.returncode, ended.stdout) == (0, b"precious\n")


async def test_the_command_names_a_missing_queue() -> None:
    async with mqcore.Broker(listen="tmqp://127.0.0.1:0") as strict, strict.client() as client:
        await client.create_channel("t")
        ended = await asyncio.to_thread(consume, strict, "t/7", "--idle", "1s")
    assert ended.returncode != 0
    assert b"t/7" in ended.stderr


async def test_returned_message_is_not_another_one_with_its_id() -> None:
    async with mqcore.Broker() as broker, broker.client() as client:
        await broker.declare(
            "orders/1", mqcore.QueueOptions(status=mqcore.QueueStatus.ROUND_ROBIN, request_acknowledge=True)
        )
        for body in ("started", "waiting"):
            await client.publish("orders/1", body, id="same")
        async with client.queue("orders/1").consume(str, prefetch=2) as messages:
            started = await next_of(messages)
            await until(lambda: broker.stats().queue("orders/1").in_flight == 2)
        # Only now: the client has returned what the program did not start.
        await until(lambda: broker.stats().queue("orders/1").in_flight == 1)
        assert await started.ack()
        async with client.queue("orders/1").consume(str, prefetch=2) as messages:
            assert (started.body, (await next_of(messages)).body) == ("started", "waiting")
