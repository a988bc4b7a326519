"""Messages whose headers have the names of those of pulls: they are pulled and delivered like all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import mqcore
from mqcore import QueueOptions, sync
from mqcore.client import Client

LIMIT = 20.0
PULL = QueueOptions(status="pull", request_acknowledge=True)
PUSH = QueueOptions(status="roundrobin", request_acknowledge=True)
CACHE = QueueOptions(status="cache")
OWN = {
    "Request-Id": "order-17",
    "No-Content": "End",
    "Count": "own",
    "Index": "own",
    "Delivery-Attempt": "41",
    "Priority-Messages": "42",
    "Messages": "43",
    "Nack-Reason": "none",
    "Plain": "own",
}


@pytest.fixture
async def broker() -> AsyncIterator[mqcore.Broker]:
    listen = ("tmqp://127.0.0.1:0", "mqks://127.0.0.1:0", "mm2://127.0.0.1:0")
    async with mqcore.Broker(listen=listen, auto_create_channels=True) as broker:
        yield broker


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    async with mqcore.connect(broker.listeners[0], drain_timeout=0) as client:
        yield client


def values(message: Any, key: str) -> list[str]:
    """All values of a header."""
    return list(message.headers.get_all(key))


async def test_messages_with_the_headers_of_pulls_are_pulled(mq: Client) -> None:
    await mq.create_queue("a/1", PULL)
    for name, value in OWN.items():
        await mq.publish("a/1", f"only {name}", headers={name: value})
    await mq.publish("a/1", "all", headers=OWN)
    messages = await mq.queue("a/1").pull(20, str, timeout=LIMIT)
    assert [message.body for message in messages] == [*(f"only {name}" for name in OWN), "all"]
    (last,) = (message for message in messages if message.body == "all")
    # The broker's headers replace these, which clients would mistake for its own.
    assert values(last, "No-Content") == []
    assert len(values(last, "Request-Id")) == 1
    assert values(last, "Request-Id") != ["order-17"]
    assert last.attempt == 1
    # The message keeps all others.
    for name in ("Plain", "Nack-Reason", "Index", "Count"):
        assert values(last, name)[0] == OWN[name], name
    for message in messages:
        assert await message.ack()
    assert (await mq.queue("a/1").information()).messages == 0


async def test_streamed_pull_of_messages_with_the_headers_of_pulls(mq: Client) -> None:
    await mq.create_queue("a/2", PULL)
    for number in range(3):
        await mq.publish("a/2", str(number), headers=OWN)
    async with mq.queue("a/2").pull_stream(3, str) as messages:
        bodies = []
        async for message in messages:
            bodies.append(message.body)
            await message.ack()
    assert bodies == ["0", "1", "2"]


async def test_pushed_messages_keep_all_of_their_headers(mq: Client) -> None:
    await mq.create_queue("a/3", PUSH)
    async with mq.queue("a/3").consume(str) as messages:
        await mq.publish("a/3", "pushed", headers=OWN)
        message = await anext(messages)
        for name, value in OWN.items():
            # The broker appends the number of the attempt.
            assert values(message, name) == [value, *(["1"] if name == "Delivery-Attempt" else [])], name
        assert message.attempt == 1
        await message.ack()


async def test_pulled_message_that_is_published_again_is_delivered(mq: Client) -> None:
    """Its headers have the id of a pull of the same client."""
    await mq.create_queue("a/4", PULL)
    await mq.create_queue("a/5", PUSH)
    await mq.publish("a/4", "again")
    (message,) = await mq.queue("a/4").pull(1, str, timeout=LIMIT)
    headers = {key: message.headers[key] for key in message.headers}
    assert "Request-Id" in headers
    async with mq.queue("a/5").consume(str) as messages:
        await mq.publish("a/5", message.body, headers=headers)
        await mq.publish("a/4", message.body, headers=headers)
        pushed = await anext(messages)
        assert (pushed.body, pushed.headers["Request-Id"]) == ("again", headers["Request-Id"])
        await pushed.ack()
    (pulled,) = await mq.queue("a/4").pull(1, str, timeout=LIMIT)
    assert pulled.body == "again"
    assert mq.counters.late_pulled == 0


async def test_cached_message_with_the_headers_of_pulls_is_returned(mq: Client) -> None:
    await mq.create_queue("a/6", CACHE)
    await mq.publish("a/6", "cached", headers=OWN)
    message = await mq.queue("a/6").get_cached(str)
    assert message is not None
    assert message.body == "cached"
    assert values(message, "No-Content") == ["End"]


def test_blocking_client_pulls_messages_with_the_headers_of_pulls() -> None:
    with (
        mqcore.Broker(listen="tmqp://127.0.0.1:0", auto_create_channels=True) as broker,
        sync.connect(broker.listeners[0]) as mq,
    ):
        mq.create_queue("a/1", PULL)
        mq.publish("a/1", "blocking", headers=OWN)
        (message,) = mq.queue("a/1").pull(1, str, timeout=LIMIT)
        assert message.body == "blocking"
        assert message.ack()
