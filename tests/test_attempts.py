"""`message.attempt`: which attempt to deliver a message this is, for consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import mqcore
import mqcore.sync
from awaited import LIMIT, next_of
from mqcore import QueueOptions
from mqcore.client import Client
from mqcore.config import QueueStatus
from served import serving
from tmqp_peer import ACKNOWLEDGE, RawFrame, TmqpPeer

ASKS = {"request_acknowledge": True, "acknowledge_timeout": "60s", "retry_delay": "0s"}


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    """A client of the embedded broker, over TCP."""
    async with mqcore.connect(broker.listeners[0]) as client:
        yield client


@pytest.mark.parametrize("status", [QueueStatus.PUSH, QueueStatus.ROUND_ROBIN])
async def test_consumed_messages_have_the_number_of_their_attempt(mq: Client, status: QueueStatus) -> None:
    await mq.create_queue("t/1", QueueOptions(status=status, **ASKS))
    async with mq.queue("t/1").consume() as messages:
        await mq.publish("t/1", b"x", headers={"Own": "1"})
        for attempt in (1, 2, 3):
            message = await next_of(messages)
            assert message.attempt == attempt
            assert message.headers["Own"] == "1"
            await message.nack()


async def test_messages_that_no_program_saw_keep_their_attempt(mq: Client) -> None:
    await mq.create_queue("t/1", QueueOptions(status=QueueStatus.ROUND_ROBIN, **ASKS))
    await mq.publish_many("t/1", [b"1", b"2", b"3"])
    async with mq.queue("t/1").consume() as messages:
        await (await next_of(messages)).ack()
    async with mq.queue("t/1").consume() as messages:
        for _ in range(2):
            message = await next_of(messages)
            assert message.attempt == 1
            await message.ack()


async def test_headers_of_a_forwarded_message_do_not_change_the_attempt(mq: Client) -> None:
    """A program that forwards the headers of a repeated message forwards the number of its attempt."""
    await mq.create_queue("t/1", QueueOptions(status=QueueStatus.ROUND_ROBIN, **ASKS))
    async with mq.queue("t/1").consume() as messages:
        await mq.publish("t/1", b"x", headers={"Delivery-Attempt": "7"})
        for attempt in (1, 2):
            message = await next_of(messages)
            assert message.attempt == attempt
            await message.nack()


async def test_clients_that_joined_the_channel_get_the_bytes_of_the_original(mq: Client, peer: TmqpPeer) -> None:
    await mq.create_queue("t/1", QueueOptions(status=QueueStatus.PUSH, **ASKS))
    assert peer.ask(601, "t").content_type == 0
    async with mq.queue("t/1").consume() as messages:
        await mq.publish("t/1", b"x")
        first = peer.receive()
        assert first.headers == []
        await (await next_of(messages)).nack()
        refusal = RawFrame(
            kind=ACKNOWLEDGE, id=first.id, target=b"t", content_type=1, headers=[("Nack-Reason", "none")]
        )
        peer.send(refusal)
        assert (await next_of(messages)).attempt == 2
        assert peer.receive().headers == []


def test_attempts_survive_a_restart_of_the_broker(tmp_path: Path) -> None:
    options = QueueOptions(status=QueueStatus.ROUND_ROBIN, delivery_handler="at-least-once", **ASKS)
    with serving("--data-dir", str(tmp_path)) as served, mqcore.sync.connect(served.url) as mq:
        mq.create_queue("t/1", options)
        mq.publish("t/1", b"x")
        for message in mq.queue("t/1").consume(idle_timeout=LIMIT):
            if message.attempt == 3:
                break
            message.nack()
        assert served.terminate() == 0
    with serving("--data-dir", str(tmp_path)) as served, mqcore.sync.connect(served.url) as mq:
        for message in mq.queue("t/1").consume(idle_timeout=LIMIT):
            assert message.attempt is not None
            assert message.attempt >= 3
            message.ack()
            return
    pytest.fail("the message is lost")
