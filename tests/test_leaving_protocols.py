"""Over MQKS and MicroMessage2 too, what a consumer leaves goes back at once, and `working` gives it more time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import mqcore
import mqcore.sync
from awaited import LIMIT, next_of, until
from mm2_peer import MM2Peer, command
from mqcore._broker_stats import QueueStats
from mqcore.client import Client
from mqcore.testing import TestBroker
from mqks_peer import MqksPeer
from served import wait_until
from three_protocols import three_protocols, url_of

QUEUE = "t/1"
ONE_ATTEMPT = mqcore.QueueOptions(
    status="roundrobin", request_acknowledge=True, acknowledge_timeout="60s", put_back_limit=0
)
"""A message whose attempt counts becomes a dead letter."""


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    with three_protocols() as running:
        yield running


@pytest.fixture(params=["mqks", "mm2"])
def url(broker: mqcore.Broker, request: pytest.FixtureRequest) -> str:
    """The listener of one protocol."""
    return url_of(broker, request.param)


@pytest.fixture
async def other(broker: mqcore.Broker) -> AsyncIterator[Client]:
    """A client over TMQP, with 20 messages in a queue."""
    async with mqcore.connect(url_of(broker, "tmqp")) as client:
        await client.declare("t", 1, ONE_ATTEMPT)
        await client.publish_many(QUEUE, [str(n) for n in range(20)])
        yield client


def stats(broker: mqcore.Broker) -> QueueStats:
    return broker.stats().queue(QUEUE)


def counts(broker: mqcore.Broker) -> tuple[int, int, int]:
    """Messages that wait, dead letters and messages in flight."""
    seen = stats(broker)
    return seen.normal, seen.dead_lettered, seen.in_flight


# --- leaving a consumer ----------------------------------------------------------------------------------------------


async def breaks(mq: Client) -> None:
    async for message in mq.queue(QUEUE).consume():
        await message.ack()
        break


async def is_cancelled(mq: Client) -> None:
    took = asyncio.Event()

    async def work() -> None:
        async for message in mq.queue(QUEUE).consume():
            await message.ack()
            took.set()
            await asyncio.sleep(LIMIT)

    task = asyncio.ensure_future(work())
    await asyncio.wait_for(took.wait(), LIMIT)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def is_forgotten(mq: Client) -> None:
    consumer = mq.queue(QUEUE).consume()
    await consumer.__aenter__()
    await (await anext(consumer)).ack()
    del consumer
    gc.collect()


async def closes_its_client(mq: Client) -> None:
    consumer = mq.queue(QUEUE).consume()
    await consumer.__aenter__()
    await (await anext(consumer)).ack()
    await mq.close()


WAYS_TO_LEAVE = [breaks, is_cancelled, is_forgotten, closes_its_client]


@pytest.mark.parametrize("leave", WAYS_TO_LEAVE, ids=lambda leave: leave.__name__)
async def test_what_a_consumer_did_not_start_goes_back_in_order_and_does_not_count(
    broker: mqcore.Broker, url: str, other: Client, leave: Callable[[Client], object]
) -> None:
    async with mqcore.connect(url) as mq:
        await leave(mq)  # type: ignore[misc]
        async with other.queue(QUEUE).consume() as messages:
            left = [await next_of(messages) for _ in range(19)]
    assert [int(message.raw) for message in left] == list(range(1, 20))
    assert {message.attempt for message in left} == {1}
    assert stats(broker).dead_lettered == 0


async def test_messages_that_the_program_got_count_as_attempts(broker: mqcore.Broker, url: str, other: Client) -> None:
    async with mqcore.connect(url) as mq:
        messages = mq.queue(QUEUE).consume()
        async with messages:
            held = [await next_of(messages) for _ in range(3)]
            assert await held[1].ack()
        async with other.queue(QUEUE).consume() as rest:
            left = [int((await next_of(rest)).raw) for _ in range(17)]
    assert left == list(range(3, 20))
    assert stats(broker).dead_lettered == 2


async def test_messages_that_the_program_dropped_count_as_attempts(broker: mqcore.Broker, other: Client) -> None:
    """A program that fails with a message, and starts again, must not get it for ever."""
    async with mqcore.connect(url_of(broker, "mqks")) as mq:
        async with mq.queue(QUEUE).consume() as messages:
            await next_of(messages)
            gc.collect()
        async with other.queue(QUEUE).consume() as rest:
            assert [int((await next_of(rest)).raw) for _ in range(19)] == list(range(1, 20))
    assert stats(broker).dead_lettered == 1


# --- more time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["mqks", "mm2"])
async def test_working_extends_the_deadline_of_a_message_and_of_those_behind_it(scheme: str) -> None:
    """Only the test moves the clock."""
    async with (
        TestBroker(listen=(f"{scheme}://127.0.0.1:0", "tmqp://127.0.0.1:0")) as broker,
        mqcore.connect(broker.listeners[1]) as other,
        mqcore.connect(broker.listeners[0]) as mq,
    ):
        options = mqcore.QueueOptions(status="roundrobin", request_acknowledge=True, acknowledge_timeout="1s")
        await other.declare("t", 1, options)
        await other.declare("t", 2)
        await other.publish_many(QUEUE, ["long", "next"])
        async with mq.queue(QUEUE).consume() as messages:
            message = await next_of(messages)
            await until(lambda: stats(broker).in_flight == 2)
            for _ in range(5):
                await broker.clock.advance(0.9)
                assert await message.working()
                # The broker has read the request when it confirms a later message of this connection.
                await mq.publish("t/2", b"later")
                await broker.settle()
            assert await message.ack()
            assert not await message.working(), "it is settled"
            assert await (await next_of(messages)).ack()
            await until(lambda: stats(broker).acks == 2)
        assert (stats(broker).put_back, stats(broker).negative_acks) == (0, 0)


# --- the wire --------------------------------------------------------------------------------------------------------


def test_mqks_lines_of_a_consumer_that_leaves_and_of_one_that_works(broker: mqcore.Broker) -> None:
    with mqcore.sync.connect(url_of(broker, "tmqp")) as client, MqksPeer(url_of(broker, "mqks")) as peer:
        client.declare("t", 1, ONE_ATTEMPT)
        client.publish_many(QUEUE, [str(number) for number in range(4)])
        peer.send("p prefetch c1 10")
        assert peer.ask("c1 consume --confirm t/1 --manual-ack") == b"c1 ok "
        assert [line.rsplit(b" ", 1)[1] for line in peer.lines(4)] == [b"0", b"1", b"2", b"3"]
        for wrong in ("w working c1", "w working c1 --all", "w delete_consumer c1 --started=x"):
            assert peer.ask(wrong).startswith(b"w error ")
        peer.send("w working c1 unknown")  # ignored
        assert peer.ask("d delete_consumer --confirm c1 --started=1") == b"d ok "
        wait_until(lambda: counts(broker) == (3, 1, 0))


def test_mm2_commands_of_a_subscription_that_ends_and_of_one_that_works(broker: mqcore.Broker) -> None:
    with (
        mqcore.sync.connect(url_of(broker, "tmqp")) as client,
        MM2Peer(url_of(broker, "mm2")).open("batch-ack:max-count=100;pub-sub;x-nack;x-mqcore") as peer,
    ):
        client.declare("t", 1, ONE_ATTEMPT)
        client.publish_many(QUEUE, [str(number) for number in range(4)])
        assert peer.ask("subscribe;destination=t%2F1,id=s1") == "ok"
        assert [peer.whole_message().payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        assert peer.ask("unsubscribe;id=s1,started=x").startswith("fail: malformed: started must be a number")
        peer.send(command("working;sequence=2"))
        assert peer.ask("unsubscribe;id=s1,started=1") == "ok"
        wait_until(lambda: counts(broker) == (3, 1, 0))
