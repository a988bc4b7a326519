"""Publishing without a wait for each message: order, back-pressure, lost connections and cancelled calls."""

from __future__ import annotations

import asyncio

import pytest

import mqcore
from awaited import next_of, reaches, until
from mqcore import errors
from mqcore.client import Client, Receipt
from served import ServedBroker
from tcp_proxy import TcpProxy

PULL = mqcore.QueueOptions(status="pull")
BLOCK = bytes(64 * 1024)
FULL_BYTES_MAX = 64 * 1024 * 1024
"""More than the buffers of the sockets between a client and a peer that does not read."""


async def pulled(client: Client, queue: str, count: int) -> list[str]:
    """Pull messages from a queue until there are so many."""
    found: list[str] = []
    while len(found) < count:
        batch = await client.queue(queue).pull(20_000, str)
        assert batch, f"only {len(found)} of {count} messages"
        found += [message.body for message in batch]
    return found


@pytest.fixture
def mq(shaky: Client) -> Client:
    """A client that reaches the broker through the proxy, and is quick to come back."""
    return shaky


async def test_unconfirmed_messages_keep_their_order_and_close_writes_them_all(served: ServedBroker) -> None:
    url = served.url
    async with mqcore.connect(url) as consumer:
        await consumer.declare("orders", 1, PULL)
        async with mqcore.connect(url) as producer:
            for number in range(100_000):
                await producer.publish("orders/1", str(number), confirm=False)
        assert await pulled(consumer, "orders/1", 100_000) == [str(number) for number in range(100_000)]


async def test_confirmed_and_unconfirmed_messages_keep_their_order(mq: Client) -> None:
    await mq.declare("orders", 1, PULL)
    senders = [(await mq.publish("orders/1", str(number), confirm=number % 7 == 0)).by for number in range(2000)]
    assert senders == [None if number % 7 else "server" for number in range(2000)]
    calls = (mq.publish("orders/1", str(number), confirm=number % 2 == 0) for number in range(2000, 4000))
    receipts = await asyncio.gather(*calls)
    assert [receipt.by for receipt in receipts] == ["server", None] * 1000
    assert sorted(map(int, await pulled(mq, "orders/1", 4000))) == list(range(4000))


async def test_a_broker_that_does_not_read_suspends_unconfirmed_publishes(
    broker: mqcore.Broker, proxy: TcpProxy
) -> None:
    url = f"tmqp://127.0.0.1:{proxy.port}"
    async with mqcore.connect(url, ping_interval="1h", write_buffer_bytes=256 * 1024) as client:
        await client.declare("orders", 1, PULL)
        proxy.stall()
        published = 0

        async def fill() -> None:
            nonlocal published
            while published * len(BLOCK) < FULL_BYTES_MAX:
                await client.publish("orders/1", BLOCK, confirm=False, timeout="500ms")
                published += 1

        with pytest.raises(errors.ConnectionLost, match="reads too slowly") as caught:
            await fill()
        assert not caught.value.sent
        waiting = asyncio.ensure_future(client.publish("orders/1", b"last", confirm=False))
        proxy.flow()
        assert (await waiting).by is None
        await until(lambda: broker.stats().queue("orders/1").received == published + 1)


async def test_unconfirmed_publishes_let_other_tasks_run(mq: Client) -> None:
    async def publish() -> None:
        while True:
            await mq.publish("orders/1", b"x", confirm=False)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(publish(), 0.1)


async def test_a_lost_connection_fails_unanswered_publishes_and_no_others(
    broker: mqcore.Broker, proxy: TcpProxy, mq: Client
) -> None:
    await mq.declare("orders", 1, PULL)
    confirmed = await asyncio.gather(*(mq.publish("orders/1", b"x") for _ in range(100)))
    assert {receipt.by for receipt in confirmed} == {"server"}
    proxy.stall()
    calls = [asyncio.ensure_future(mq.publish("orders/1", b"lost", confirm=n % 2 == 0)) for n in range(200)]
    await proxy.holds(b"lost")
    await proxy.cut()
    proxy.flow()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, errors.ConnectionLost) and outcome.sent for outcome in outcomes[::2])
    assert all(isinstance(outcome, Receipt) and outcome.by is None for outcome in outcomes[1::2])
    await reaches(mq, 2)
    assert (await mq.publish("orders/1", b"x", confirm=False)).by is None
    assert (await mq.publish("orders/1", b"x")).by == "server"
    await until(lambda: broker.stats().queue("orders/1").received == 102)


async def test_cancelled_publish_stops_waiting_and_its_late_answer_is_counted(proxy: TcpProxy, mq: Client) -> None:
    await mq.declare("orders", 1, PULL)
    proxy.stall()
    calls = [asyncio.ensure_future(mq.publish("orders/1", b"cancelled")) for _ in range(10)]
    await proxy.holds(b"cancelled")
    for call in calls[::2]:
        call.cancel()
    done, _ = await asyncio.wait(calls[::2])
    assert all(call.cancelled() for call in done)
    proxy.flow()
    assert {receipt.by for receipt in await asyncio.gather(*calls[1::2])} == {"server"}
    await until(lambda: mq.counters.late_answers == 5)


async def test_a_short_timeout_passes_before_an_earlier_long_one(broker: mqcore.Broker, mq: Client) -> None:
    await mq.declare("orders", 1, mqcore.QueueOptions(status="push", request_acknowledge=True))
    await mq.declare("held", 1, mqcore.QueueOptions(status="pull", delivery_handler="ack-on-consume"))
    long = asyncio.ensure_future(mq.publish("held/1", b"long", timeout="1h"))
    await until(lambda: broker.stats().queue("held/1").received == 1)
    with pytest.raises(errors.ConfirmTimeout, match="held/1"):
        await mq.publish("held/1", b"short", timeout="50ms")
    assert not long.done()
    with pytest.raises(errors.ConfirmTimeout):
        await mq.publish("held/1", b"short", timeout="50ms")
    async with mq.queue("orders/1").consume() as messages:
        await mq.publish("orders/1", b"x")
        await (await next_of(messages)).ack()
    long.cancel()


async def test_publishes_wait_for_the_connection_in_turn(proxy: TcpProxy, mq: Client) -> None:
    await mq.declare("orders", 1, PULL)
    await proxy.refuse()
    await proxy.cut()
    await until(lambda: mq.state.status != "connected")
    waiting = [asyncio.ensure_future(mq.publish("orders/1", b"x", confirm=n % 2 == 0)) for n in range(20)]
    done, _ = await asyncio.wait(waiting, timeout=0.05)
    assert not done
    await proxy.listen()
    assert [receipt.by for receipt in await asyncio.gather(*waiting)] == ["server", None] * 10


async def test_a_client_publishes_from_several_event_loops(mq: Client) -> None:
    await mq.declare("orders", 1, PULL)

    async def publish() -> list[Receipt]:
        return await asyncio.gather(*(mq.publish("orders/1", b"x") for _ in range(100)))

    here, *others = await asyncio.gather(publish(), *(asyncio.to_thread(asyncio.run, publish()) for _ in range(3)))
    assert {receipt.by for receipts in (here, *others) for receipt in receipts} == {"server"}
    assert (await mq.publish("orders/1", b"x")).by == "server"


async def test_publishes_of_a_closed_client_are_rejected(broker: mqcore.Broker) -> None:
    async with broker.client() as client:
        await client.publish("orders/1", b"x", confirm=False)
        await client.close()
        for confirm in (True, False):
            with pytest.raises(errors.Draining):
                await client.publish("orders/1", b"x", confirm=confirm)
    await until(lambda: broker.stats().queue("orders/1").received == 1)
