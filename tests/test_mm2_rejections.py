"""A rejected message raises the same error over MicroMessage2 as over TMQP, and affects no other message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import mqcore
from awaited import next_of
from mqcore import DeliveryHandler, QueueOptions, errors


class Failing(DeliveryHandler):
    """A handler with a defect."""

    def received_from_producer(self, queue: Any, message: Any, producer: Any) -> Any:
        raise ValueError("on purpose")


def strict() -> mqcore.Broker:
    """A broker that creates nothing by itself."""
    broker = mqcore.Broker(listen=("mm2://127.0.0.1:0", "tmqp://127.0.0.1:0"))
    broker.delivery_handlers["failing"] = Failing()
    return broker


async def test_each_reason_raises_its_error() -> None:
    with strict() as broker:
        async with mqcore.connect(broker.listeners[1]) as maker:
            await maker.declare("a", 0, QueueOptions(status="stopped"))
            await maker.declare("a", 1, QueueOptions(delivery_handler="failing"))
            await maker.declare("a", 2, QueueOptions(status="pull", message_size_limit=3))
            await maker.declare("a", 4, QueueOptions(status="pull"))
        for url in broker.listeners:
            async with mqcore.connect(url) as mq:
                with pytest.raises(errors.QueueStopped, match="stopped") as stopped:
                    await mq.publish("a/0", b"x")
                assert (stopped.value.code, stopped.value.target) == (401, "a/0")
                with pytest.raises(errors.Busy, match="failing"):
                    await mq.publish("a/1", b"x")
                with pytest.raises(errors.LimitExceeded):
                    await mq.publish("a/2", b"four")
                with pytest.raises(errors.NotFound):
                    await mq.publish("a/9", b"x")
                await mq.publish("a/4", b"x")


async def test_a_message_that_a_consumer_rejects_is_nacked_with_its_reason() -> None:
    options = QueueOptions(status="push", request_acknowledge=True, delivery_handler="ack-on-consume")
    with strict() as broker:
        mm2, tmqp = broker.listeners
        async with mqcore.connect(mm2) as producer, mqcore.connect(tmqp) as consumer:
            await consumer.declare("orders", 0, options)
            async with consumer.queue("orders", 0).consume() as messages:
                publishing = asyncio.ensure_future(producer.publish("orders", b"x"))
                await (await next_of(messages)).nack("too old")
                with pytest.raises(errors.Nacked) as caught:
                    await publishing
                assert (caught.value.reason, caught.value.target) == ("too old", "orders")
