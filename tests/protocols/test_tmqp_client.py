"""The cases that are about client libraries, with mqcore's own client and a broker over a socket."""

from __future__ import annotations

import asyncio

import pytest

import mqcore
from mqcore import errors
from protocols.conversation import StartBroker

PUSH = mqcore.QueueOptions(status=mqcore.QueueStatus.PUSH, request_acknowledge=True)


@pytest.fixture
def url(start_broker: StartBroker) -> str:
    broker = start_broker(auto_create_channels=True, auto_create_queues=True)
    return str(broker.listeners[0])


async def test_a_response_reaches_the_call_that_waits_for_it_and_no_other(url: str) -> None:
    """Twino case 9: two requests at once, answered in the wrong order."""
    async with (
        mqcore.connect(url, id="asker") as asker,
        mqcore.connect(url, id="server") as server,
        server.requests() as requests,
    ):
        first = asyncio.ensure_future(asker.request("server", b"1"))
        one = await anext(requests)
        second = asyncio.ensure_future(asker.request("server", b"2"))
        other = await anext(requests)
        await other.respond(b"to 2")
        await one.respond(b"to 1", status=1000)
        assert (await second).body == b"to 2"
        answer = await first
        assert (answer.body, answer.content_type) == (b"to 1", 1000)


async def test_direct_message_is_acknowledged_and_its_sender_continues(url: str) -> None:
    """Twino cases 11, 13 and 14."""
    async with (
        mqcore.connect(url) as sender,
        mqcore.connect(url, id="receiver") as receiver,
        receiver.requests() as requests,
    ):
        sent = asyncio.ensure_future(sender.send("receiver", b"x", confirm=True, high_priority=True))
        request = await anext(requests)
        assert (request.body, request.wants_acknowledge) == (b"x", True)
        await request.ack()
        await sent


async def test_a_sender_that_hears_nothing_stops_waiting(url: str) -> None:
    """Twino case 15."""
    async with mqcore.connect(url) as sender, mqcore.connect(url, id="mute") as mute, mute.requests():
        with pytest.raises(errors.ConfirmTimeout):
            await sender.send("mute", b"x", confirm=True, timeout=0.2)


async def test_a_consumer_reads_from_a_queue_and_acknowledges_by_itself(url: str) -> None:
    """Twino cases 56 and 88."""
    async with mqcore.connect(url) as producer, mqcore.connect(url) as consumer:
        await producer.create_queue("ch/1", PUSH)
        async with consumer.queue("ch", 1).consume() as messages:
            await producer.publish("ch/1", b"x")
            async with (await anext(messages)).process() as message:
                assert message.body == b"x"
            information = await consumer.queue_information("ch/1")
        assert (information.acks, information.negative_acks) == (1, 0)


async def test_a_consumer_reads_from_several_queues_of_several_channels(url: str) -> None:
    """Twino cases 89 and 90."""
    places = ["a/1", "a/2", "b/1"]
    async with mqcore.connect(url) as client:
        for place in places:
            await client.create_queue(place, PUSH)
        consumers = [client.queue(place).consume() for place in places]
        async with consumers[0], consumers[1], consumers[2]:
            for place in places:
                await client.publish(place, place.encode())
            for place, consumer in zip(places, consumers, strict=True):
                message = await anext(consumer)
                assert (message.address, message.body) == (place, place.encode())
                await message.ack()


async def test_a_consumer_that_raises_refuses_and_gets_the_message_again(url: str) -> None:
    """Twino cases 91 and 98: refused with the exception's name, tried again, then acknowledged."""
    async with mqcore.connect(url) as client:
        await client.create_queue("ch/1", PUSH)
        async with client.queue("ch", 1).consume() as messages:
            await client.publish("ch/1", b"x")
            with pytest.raises(ValueError, match="on purpose"):
                async with (await anext(messages)).process():
                    raise ValueError("on purpose")
            async with (await anext(messages)).process() as again:
                assert again.body == b"x"
            information = await client.queue_information("ch/1")
        assert (information.acks, information.negative_acks) == (1, 1)


async def test_a_client_answers_direct_messages(url: str) -> None:
    """Twino cases 12 and 92."""
    async with mqcore.connect(url) as asker, mqcore.connect(url, name="upper") as server:
        serving = asyncio.ensure_future(server.serve(lambda request: request.body.upper()))
        # Runs until it listens.
        await asyncio.sleep(0)
        answer = await asker.request("@name:upper", b"hello")
        assert answer.body == b"HELLO"
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving


async def test_a_client_comes_back_joins_again_and_sends_what_it_could_not(start_broker: StartBroker) -> None:
    """Twino case 93, several times: the broker goes, and another comes in its place."""
    options = {"auto_create_channels": True, "auto_create_queues": True}
    broker = start_broker(**options)
    url = str(broker.listeners[0])
    async with (
        mqcore.connect(url, backoff_first=0.02, backoff_max=0.1) as client,
        client.queue("ch", 1).consume() as messages,
    ):
        for number in range(3):
            broker.stop(grace=0.0)
            publishing = asyncio.ensure_future(
                client.publish("ch/1", b"%d" % number, id=f"message-{number}", retry=True)
            )
            broker = start_broker(listen=[url], **options)
            await publishing
            async with asyncio.timeout(10):
                assert (await anext(messages)).body == b"%d" % number
