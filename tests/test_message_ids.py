"""Ids of messages: a generator of the program, and messages without an id."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import mqcore
from awaited import next_of
from mqcore import Broker, QueueOptions, errors


def numbers(prefix: str) -> Iterator[str]:
    return (f"{prefix}-{number}" for number in itertools.count(1))


async def test_a_generator_of_the_program_makes_the_ids_of_published_and_sent_messages() -> None:
    ids = numbers("till")
    async with (
        Broker(auto_create_channels=True, auto_create_queues=True) as broker,
        broker.client(id="cook") as cook,
        broker.client(id_generator=lambda: next(ids)) as till,
        cook.requests() as direct,
    ):
        await till.publish("orders/1", b"1")
        await till.publish("orders/1", b"2", id="own")
        await till.publish_many("orders/1", [b"3", b"4"], headers={"Shop": "7"})
        await till.send("cook", b"5")
        async with cook.queue("orders/1").consume() as messages:
            received = [await next_of(messages) for _ in range(4)]
        assert [message.id for message in received] == ["till-1", "own", "till-2", "till-3"]
        assert [message.headers.get("Shop") for message in received] == [None, None, "7", "7"]
        assert (await next_of(direct)).id == "till-4"


def test_the_blocking_client_has_a_generator_too() -> None:
    ids = numbers("till")
    with (
        Broker(auto_create_channels=True, auto_create_queues=True) as broker,
        mqcore.sync.connect(broker, id_generator=lambda: next(ids)) as till,
    ):
        till.publish("orders/1", b"1")
        till.publish_many("orders/1", [b"2"])
        with till.queue("orders/1").consume() as messages:
            assert [next(messages).id for _ in range(2)] == ["till-1", "till-2"]


async def test_a_message_without_an_id_gets_one_only_if_the_queue_assigns_ids() -> None:
    async with Broker() as broker, broker.client() as till:
        for queue, assigns in (("with/1", True), ("without/1", False)):
            await till.create_queue(queue, QueueOptions(use_message_id=assigns))
            await till.publish(queue, b"x", id="", confirm=False)
            async with till.queue(queue).consume() as messages:
                assert bool((await next_of(messages)).id) == assigns


async def test_a_message_without_an_id_cannot_be_confirmed() -> None:
    async with Broker() as broker, broker.client() as till:
        with pytest.raises(errors.InvalidArgument, match="no answer can refer to it"):
            await till.publish("orders/1", b"x", id="")
