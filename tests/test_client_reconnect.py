"""Connections that are cut, stalled and half opened, and brokers that go away: the client takes up its work again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest

import mqcore
from awaited import loss, next_of, reaches, until
from mqcore import errors
from mqcore.client import Client
from served import wait_until
from tcp_proxy import TcpProxy

WITH_ACKS = mqcore.QueueOptions(status="push", request_acknowledge=True)


@pytest.fixture
def mq(shaky: Client) -> Client:
    """A client that reaches the broker through the proxy, and is quick to come back."""
    return shaky


@pytest.fixture
async def direct(broker: mqcore.Broker) -> AsyncIterator[Client]:
    """A client that does not go through the proxy."""
    async with broker.client() as client:
        yield client


async def test_consumer_survives_connection_losses(
    broker: mqcore.Broker, proxy: TcpProxy, mq: Client, direct: Client
) -> None:
    await mq.declare("orders", 1, WITH_ACKS)
    async with mq.queue("orders", 1).consume() as messages:
        for number in range(5):
            await direct.publish("orders/1", str(number))
            message = await next_of(messages)
            assert message.raw == str(number).encode()
            assert await message.ack()
            # On its way is not there yet: what is cut off is delivered again.
            await until(lambda: broker.stats().queue("orders/1").acks == number + 1)  # noqa: B023 (awaited here)
            await proxy.cut()
            await reaches(mq, number + 2)
    assert mq.counters.connects == 6


async def test_unacknowledged_message_is_redelivered_and_the_old_delivery_cannot_be_acknowledged(
    proxy: TcpProxy, mq: Client, direct: Client
) -> None:
    await mq.declare("orders", 1, WITH_ACKS)
    async with mq.queue("orders", 1).consume() as messages:
        await direct.publish("orders/1", b"x", id="m1")
        first = await next_of(messages)
        await proxy.cut()
        again = await next_of(messages)
        assert (first.id, again.id) == ("m1", "m1")
        assert not await first.ack()
        assert await again.ack()
        assert mq.counters.stale_settlements == 1


async def test_in_flight_request_fails_and_is_not_sent_twice(proxy: TcpProxy, mq: Client, direct: Client) -> None:
    await mq.declare("orders", 1, dataclasses.replace(WITH_ACKS, status="pull"))
    proxy.stall()
    publishing = asyncio.ensure_future(mq.publish("orders/1", b"x"))
    await proxy.holds(b"orders")
    await proxy.cut()
    proxy.flow()
    with pytest.raises(errors.ConnectionLost) as caught:
        await publishing
    assert caught.value.sent
    await reaches(mq, 2)
    await mq.publish("orders/1", b"y")
    assert [message.raw for message in await direct.queue("orders", 1).pull(5)] == [b"y"]


async def test_a_message_with_an_id_is_sent_again_if_that_is_allowed(proxy: TcpProxy, mq: Client) -> None:
    await mq.declare("orders", 1, mqcore.QueueOptions(status="pull"))
    proxy.stall()
    publishing = asyncio.ensure_future(mq.publish("orders/1", b"x", id="mine", retry=True, timeout="20s"))
    await proxy.holds(b"orders")
    await proxy.cut()
    proxy.flow()
    assert (await publishing).by == "server"
    assert [message.id for message in await mq.queue("orders", 1).pull(5)] == ["mine"]


async def test_a_dead_network_is_noticed(proxy: TcpProxy, patient: Client) -> None:
    proxy.stall()
    assert "no heartbeat" in await loss(patient)
    proxy.flow()
    await reaches(patient, 2)
    await patient.publish("orders/1", b"x")


async def test_publishing_waits_for_the_connection_and_says_if_nothing_was_sent(proxy: TcpProxy, mq: Client) -> None:
    await proxy.refuse()
    await proxy.cut()
    wait_until(lambda: mq.state.status != "connected")
    with pytest.raises(errors.ConnectionLost) as caught:
        await mq.publish("orders/1", b"x", timeout="100ms")
    assert not caught.value.sent
    waiting = asyncio.ensure_future(mq.publish("orders/1", b"x"))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    await proxy.listen()
    assert (await waiting).by == "server"


async def test_event_subscriptions_stand_again(proxy: TcpProxy, mq: Client, direct: Client) -> None:
    async with mq.events("ChannelCreated") as events:
        await proxy.cut()
        await reaches(mq, 2)
        # The client sends the subscription first: later answers follow it.
        await mq.publish("before/1", b"x")
        await direct.create_channel("new")
        seen = [await next_of(events), await next_of(events)]
        assert [event.channel for event in seen] == ["before", "new"]


async def test_client_declares_again_after_the_broker_lost_its_state(broker: mqcore.Broker) -> None:
    async with broker.client(backoff_first="10ms") as mq:
        await mq.declare("orders", 1, WITH_ACKS)
        async with mq.queue("orders", 1).consume() as messages:
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
            await reaches(mq, 2)
            assert (await mq.publish("orders/1", b"x")).by == "server"
            assert (await next_of(messages)).raw == b"x"


async def test_a_client_may_give_up(proxy: TcpProxy) -> None:
    async with mqcore.connect(proxy.url, backoff_first="10ms", reconnect_attempts=2) as mq:
        await mq.declare("orders", 1)
        async with mq.queue("orders", 1).consume() as messages:
            await proxy.refuse()
            await proxy.cut()
            assert await asyncio.wait_for(anext(messages, None), 20) is None
        assert mq.state.status == "closed"
        with pytest.raises(errors.Draining):
            await mq.publish("orders/1", b"x")


async def test_connect_waits_for_a_broker_that_has_not_started(proxy: TcpProxy) -> None:
    await proxy.refuse()
    attempts = 0

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as other:
        urls = [f"tmqp://127.0.0.1:{other.sockets[0].getsockname()[1]}", proxy.url]
        connecting = asyncio.ensure_future(mqcore.connect(urls, patience="20s", backoff_first="10ms").__aenter__())
        # The client tries the addresses in turn, so the second one refused it before it tries the first one again.
        await until(lambda: attempts >= 2)
        await proxy.listen()
        await (await connecting).close()


async def test_nothing_is_lost_or_invented_while_the_link_is_cut_again_and_again(
    proxy: TcpProxy, mq: Client, broker: mqcore.Broker
) -> None:
    await mq.declare("orders", 1, WITH_ACKS)
    seen: set[bytes] = set()

    async def consume() -> None:
        async with mq.queue("orders", 1).consume(prefetch=20) as messages:
            async for message in messages:
                seen.add(message.raw)
                await message.ack()

    consuming = asyncio.ensure_future(consume())
    async with broker.client() as producer:
        for round_ in range(8):
            await producer.publish_many("orders/1", [f"{round_}-{n}" for n in range(200)])
            await proxy.cut()
            assert not consuming.done()
            await reaches(mq, round_ + 2)
        expected = {f"{round_}-{n}".encode() for round_ in range(8) for n in range(200)}
        await until(lambda: seen == expected)
        # Settled on the broker's side too: nothing is in flight for ever.
        await until(lambda: (stats := broker.stats().queue("orders/1")).in_flight == stats.normal == 0)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
