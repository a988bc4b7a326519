"""The test broker: the real one, in memory, with a clock that the test turns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import mqcore
from mqcore import ChannelOptions, Decision, DeliveryHandler, PutBack, QueueOptions, QueueStatus
from mqcore.testing import TestBroker


def test_broker(**queue: Any) -> TestBroker:
    return TestBroker(
        listen="tmqp://127.0.0.1:0",
        auto_create_channels=True,
        auto_create_queues=True,
        channel=ChannelOptions(queue=QueueOptions(**queue)),
    )


test_broker.__test__ = False  # type: ignore[attr-defined]


async def test_messages_are_looked_at_without_being_changed(connect: Any) -> None:
    async with test_broker(status=QueueStatus.PULL) as mq:
        peer = connect(mq.listeners[0])
        for body in (b"a", b"b", b"c"):
            peer.publish("orders", 1, body, confirm=True)
            peer.next()
        for _ in range(2):
            assert [message.body for message in mq.messages("orders/1")] == [b"a", b"b", b"c"]
        (first,) = mq.messages("orders/1", 1)
        assert (first.attempts, first.put_backs, first.saved) == (0, 0, False)
        assert first.id == first.message.id
        with pytest.raises(KeyError):
            mq.messages("orders/2")
        assert mq.stats().queue("orders/1").normal == 3


async def test_time_passes_only_when_the_clock_is_turned(connect: Any) -> None:
    async with test_broker(message_timeout="1h") as mq:
        peer = connect(mq.listeners[0])
        peer.publish("orders", 1, b"x", confirm=True)
        peer.next()
        await mq.clock.advance(minutes=59)
        assert len(mq.messages("orders/1")) == 1
        await mq.clock.advance("2m")
        assert mq.messages("orders/1") == []
        assert mq.stats().queue("orders/1").timed_out == 1
        assert mq.clock.elapsed == 61 * 60


async def test_acknowledgements_time_out_by_the_clock_and_handlers_are_waited_for(connect: Any) -> None:
    attempts = []

    class Retry(DeliveryHandler):
        async def acknowledge_timed_out(self, queue: mqcore.QueueView, delivery: mqcore.Delivery) -> Decision:
            await asyncio.sleep(0.02)
            attempts.append(delivery.attempt)
            return Decision(put_back=PutBack.END if delivery.attempt < 5 else PutBack.NO)

    async with test_broker(request_acknowledge=True, acknowledge_timeout="5m") as mq:
        mq.delivery_handlers["memory"] = Retry()
        peer = connect(mq.listeners[0])
        peer.join("orders")
        peer.publish("orders", 1, b"x")
        for expected in range(1, 6):
            await asyncio.to_thread(peer.next)
            await mq.clock.advance(minutes=5)
            assert attempts == list(range(1, expected + 1)), "advance returns when handlers have answered"
        assert mq.stats().queue("orders/1").removed == 1


async def test_settling_has_a_limit(connect: Any) -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    class Never(DeliveryHandler):
        timeout = "1h"

        async def received_from_producer(
            self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
        ) -> Decision:
            asked.set()
            await release.wait()
            return Decision()

    async with test_broker() as mq:
        mq.delivery_handlers["memory"] = Never()
        peer = connect(mq.listeners[0])
        peer.publish("orders", 1, b"x")
        await asyncio.wait_for(asked.wait(), 10)
        assert mq.stats().questions_open == 1
        with pytest.raises(TimeoutError, match="still busy"):
            await mq.settle("100ms")
        release.set()
        await mq.settle()
        assert mq.stats().questions_open == 0


async def test_time_does_not_run_backwards() -> None:
    async with TestBroker() as mq:
        with pytest.raises(mqcore.errors.ConfigError):
            await mq.clock.advance(seconds=-1)


async def test_clients_reach_it_without_a_socket() -> None:
    async with TestBroker(auto_create_channels=True, auto_create_queues=True) as mq:
        assert mq.listeners == ()
        await mq.publish("orders/1001", b"first")
        assert [message.body for message in mq.messages("orders/1001")] == [b"first"]
        async with mq.client(name="worker") as client:
            async with client.queue("orders", 1001).consume() as messages:
                first = await anext(messages)
                assert (first.body, first.address) == (b"first", "orders/1001")
                await mq.publish("orders/1001", b"second")
                assert (await anext(messages)).body == b"second"
            assert {peer.name for peer in mq.stats().clients} == {"test", "worker"}
        await mq.settle()
        assert mq.messages("orders/1001") == []


async def test_unacknowledged_message_is_redelivered_when_the_clock_advances() -> None:
    options = QueueOptions(request_acknowledge=True, acknowledge_timeout="5m")
    mq = TestBroker(auto_create_channels=True, auto_create_queues=True, channel=ChannelOptions(queue=options))
    async with mq, mq.client() as client, client.queue("orders", 1001).consume() as messages:
        await mq.publish("orders/1001", b"x")
        first = await anext(messages)
        await mq.clock.advance(minutes=4)
        assert mq.stats().queue("orders/1001").in_flight == 1
        await mq.clock.advance(minutes=1)
        again = await anext(messages)
        assert again.id == first.id
        await again.ack()
        await mq.settle()
        assert mq.stats().queue("orders/1001").acks == 1


async def test_settle_waits_for_what_clients_have_sent() -> None:
    options = QueueOptions(request_acknowledge=True, acknowledge_timeout="5m")
    mq = TestBroker(auto_create_channels=True, auto_create_queues=True, channel=ChannelOptions(queue=options))
    async with mq, mq.client() as client, client.queue("orders", 1001).consume() as messages:
        for number in range(1, 201):
            await mq.publish("orders/1001", b"x")
            await (await anext(messages)).ack()
            await mq.settle()
            assert mq.stats().queue("orders/1001").acks == number


async def test_connections_outlive_a_clock_that_jumps() -> None:
    async with TestBroker(auto_create_channels=True, auto_create_queues=True) as mq:
        await mq.publish("orders/1", b"before")
        for _ in range(3):
            await mq.clock.advance(days=100)
        await mq.publish("orders/1", b"after")
        assert len(mq.stats().clients) == 1
        assert [message.body for message in mq.messages("orders/1")] == [b"before", b"after"]
