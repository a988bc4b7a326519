"""The asyncio client against a real broker: each method, and what it raises."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

import mqcore
from awaited import next_of, occupy
from mqcore import errors
from mqcore.client import Client, Event, Receipt, Request
from served import wait_until

PUSH_WITH_ACKS = mqcore.QueueOptions(status="push", request_acknowledge=True)
PULL = mqcore.QueueOptions(status="pull")


@dataclasses.dataclass
class Order:
    """A value that these tests send."""

    id: int
    sku: str


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    """A client of the embedded broker, over TCP."""
    async with mqcore.connect(broker.listeners[0], name="mq", kind="test") as client:
        yield client


# --- connecting ------------------------------------------------------------------------------------------------------


async def test_connect_with_await_and_explicit_close(broker: mqcore.Broker) -> None:
    client = await mqcore.connect(broker.listeners[0], id="by-hand")
    assert client.id == "by-hand"
    assert client.state.status == "connected"
    assert client.state.client_id == "by-hand"
    await client.close()
    assert client.state.status == "closed"
    with pytest.raises(errors.Draining):
        await client.publish("a/1", b"x")
    await client.close()


async def test_an_embedded_broker_is_reached_without_a_socket() -> None:
    async with (
        mqcore.Broker(auto_create_channels=True, auto_create_queues=True) as broker,
        broker.client(name="inside") as client,
    ):
        receipt = await client.publish("a/1", b"x")
        assert receipt.by == "server"
        assert 0 < receipt.latency < 10
        assert [one.name for one in await client.clients()] == ["inside"]


async def test_unconnected_client_raises() -> None:
    with pytest.raises(errors.InvalidArgument, match="not connected"):
        await mqcore.connect("tmqp://127.0.0.1:1").publish("a/1", b"x")


async def test_no_broker_there_is_an_error_with_the_address() -> None:
    with pytest.raises(errors.ConnectFailed, match=r"127\.0\.0\.1:1"):
        await mqcore.connect("tmqp://127.0.0.1:1")
    with pytest.raises(ConnectionError):
        await mqcore.connect(["tmqp://127.0.0.1:1", "tmqp://127.0.0.1:2"])


async def test_the_next_address_is_tried_when_one_does_not_answer(broker: mqcore.Broker) -> None:
    for _ in range(4):
        async with mqcore.connect(["tmqp://127.0.0.1:1", broker.listeners[0]]) as client:
            assert client.state.address == broker.listeners[0]


async def test_a_peer_that_speaks_something_else_is_named() -> None:
    answered = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        answered.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(errors.VersionMismatch, match="HTTP"):
            await mqcore.connect(f"tmqp://127.0.0.1:{port}")
        await answered.wait()


async def test_an_id_in_use_is_refused(broker: mqcore.Broker) -> None:
    async with mqcore.connect(broker.listeners[0], id="one"):
        with pytest.raises(errors.HandshakeError, match="one"):
            await mqcore.connect(broker.listeners[0], id="one")


async def test_arguments_that_make_no_sense_are_refused_before_anything_is_sent(mq: Client) -> None:
    with pytest.raises(errors.InvalidArgument, match="channel name"):
        await mq.publish("no good/1", b"x")
    with pytest.raises(errors.InvalidArgument, match="header"):
        await mq.publish("a/1", b"x", headers={"a:b": "c"})
    for wrong in ({"a": 5}, [("a", "b", "c")], [(1, "b")]):
        with pytest.raises(TypeError, match="pairs of strings"):
            await mq.publish("a/1", b"x", headers=wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match="needs an id"):
        await mq.publish("a/1", b"x", retry=True)
    with pytest.raises(errors.ConfigError, match="duration"):
        await mq.publish("a/1", b"x", timeout="soon")
    with pytest.raises(errors.InvalidArgument, match="prefetch"):
        mq.queue("a", 1).consume(prefetch=0)
    with pytest.raises(errors.InvalidArgument, match="not a known scheme"):
        await mqcore.connect("http://127.0.0.1:1")


async def test_a_client_that_is_forgotten_is_closed_and_named(broker: mqcore.Broker) -> None:
    client = await mqcore.connect(broker.listeners[0], id="forgotten")
    forgotten = [client]
    del client
    with pytest.warns(ResourceWarning, match="never closed"):
        forgotten.clear()
    gc.collect()
    wait_until(lambda: all(one.id != "forgotten" for one in broker.stats().clients), what="the client being gone")


# --- publishing ------------------------------------------------------------------------------------------------------


async def test_what_is_published_arrives_with_its_headers(mq: Client) -> None:
    await mq.declare("orders", 1, PUSH_WITH_ACKS)
    async with mq.queue("orders", 1).consume() as messages:
        receipt = await mq.publish("orders/1", b"\x00\xff", id="mine", headers={"Schema": "v1"}, high_priority=True)
        assert receipt.by == "server"
        message = await next_of(messages)
        assert (message.id, message.raw, message.body) == ("mine", b"\x00\xff", b"\x00\xff")
        assert (message.source, message.address, message.high_priority) == (mq.id, "orders/1", True)
        assert message.headers["schema"] == "v1"
        assert await message.ack()
        assert not await message.ack()
        assert message.is_settled


async def test_a_queue_that_is_not_there_is_an_error(broker: mqcore.Broker) -> None:
    async with mqcore.Broker() as strict, strict.client() as client:
        with pytest.raises(errors.NotFound) as caught:
            await client.publish("orders/1001", b"x")
        assert (caught.value.code, caught.value.target) == (404, "orders/1001")
        assert isinstance(caught.value, LookupError)


async def test_stopped_queue_and_limit_raise_different_errors(mq: Client) -> None:
    await mq.create_queue("a/1", mqcore.QueueOptions(status="stopped"))
    with pytest.raises(errors.QueueStopped, match="give it another status") as caught:
        await mq.publish("a/1", b"x")
    assert (caught.value.code, caught.value.target) == (401, "a/1"), "the code is that of the original"
    assert not isinstance(caught.value, errors.Unauthorized)
    (stopped,) = await mq.publish_many("a/1", [b"x"], return_exceptions=True)
    assert isinstance(stopped, errors.QueueStopped)
    await mq.create_queue("a/2", mqcore.QueueOptions(status="pull", message_limit=1, message_size_limit=3))
    with pytest.raises(errors.LimitExceeded):
        await mq.publish("a/2", b"four")
    await mq.publish("a/2", b"one")
    with pytest.raises(errors.LimitExceeded):
        await mq.publish("a/2", b"two")


async def test_a_consumers_refusal_reaches_the_producer(broker: mqcore.Broker) -> None:
    options = dataclasses.replace(PUSH_WITH_ACKS, delivery_handler="ack-on-consume")
    async with mqcore.connect(broker.listeners[0]) as mq:
        await mq.declare("orders", 1, options)
        async with mq.queue("orders", 1).consume() as messages:
            publishing = asyncio.ensure_future(mq.publish("orders/1", b"x"))
            await (await next_of(messages)).nack("too old")
            with pytest.raises(errors.Nacked) as caught:
                await publishing
            assert (caught.value.reason, caught.value.target) == ("too old", "orders/1")
            publishing = asyncio.ensure_future(mq.publish("orders/1", b"y"))
            while not publishing.done():
                message = await next_of(messages)
                await message.ack()
                await asyncio.wait([publishing], timeout=1)
            assert (await publishing).by == "consumer"


async def test_an_acknowledgement_that_does_not_come_is_a_timeout(mq: Client) -> None:
    await mq.declare("orders", 1, dataclasses.replace(PULL, delivery_handler="ack-on-consume"))
    with pytest.raises(errors.ConfirmTimeout):
        await mq.publish("orders/1", b"x", timeout="50ms")
    with pytest.raises(TimeoutError):
        await mq.publish("orders/1", b"x", timeout=timedelta(milliseconds=50))


async def test_publish_without_confirmation_counts_rejections(broker: mqcore.Broker) -> None:
    async with mqcore.Broker(auto_create_channels=True, auto_create_queues=True) as lenient, lenient.client() as client:
        assert (await client.publish("a/1", b"x", confirm=False)).by is None
    async with mqcore.Broker() as strict, strict.client() as client:
        await client.publish("a/1", b"x", confirm=False)
        wait_until(lambda: client.counters.refused_unconfirmed == 1)


async def test_many_messages_are_published_in_order_with_a_receipt_each(mq: Client) -> None:
    await mq.declare("orders", 1, PULL)
    receipts = await mq.publish_many("orders/1", (str(number) for number in range(20_000)))
    assert len(receipts) == 20_000
    assert {receipt.by for receipt in receipts} == {"server"}
    batch = await mq.queue("orders", 1).pull(20_000, str)
    assert [message.body for message in batch] == [str(number) for number in range(20_000)]
    assert batch.remaining == 0


async def test_one_rejected_message_of_many_is_reported_and_others_are_published(mq: Client) -> None:
    await mq.declare("orders", 1, dataclasses.replace(PULL, message_size_limit=3))
    with pytest.raises(errors.LimitExceeded) as caught:
        await mq.publish_many("orders/1", [b"one", b"three", b"two"])
    assert "1 of 3" in caught.value.__notes__[0]
    outcomes = await mq.publish_many("orders/1", [b"one", b"three"], return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Receipt", "LimitExceeded"]
    assert (await mq.queue_information("orders/1")).messages == 3


async def test_copies_go_to_further_queues(mq: Client) -> None:
    for channel in ("a", "b", "c"):
        await mq.declare(channel, 1, PULL)
    await mq.publish("a/1", b"x", cc=["b/1", ("c/1", "copy")])
    batches = {channel: await mq.queue(channel, 1).pull() for channel in ("a", "b", "c")}
    assert [batches[channel][0].raw for channel in batches] == [b"x"] * 3
    assert batches["c"][0].id == "copy"


async def test_a_body_beyond_the_limit_never_leaves(broker: mqcore.Broker) -> None:
    async with mqcore.connect(broker.listeners[0], frame_bytes_max=1024) as client:
        with pytest.raises(errors.TooLarge) as caught:
            await client.publish("a/1", bytes(2000))
        assert caught.value.limit == 1024


async def test_a_thousand_calls_at_once_are_all_answered(mq: Client) -> None:
    receipts = await asyncio.gather(*(mq.publish("a/1", str(number)) for number in range(1000)))
    assert len(receipts) == 1000
    calls = [asyncio.ensure_future(mq.publish("a/1", b"x")) for _ in range(200)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, Receipt) for outcome in outcomes[1::2])
    assert (await mq.publish("a/1", b"x")).by == "server"


# --- consuming -------------------------------------------------------------------------------------------------------


async def test_processing_acknowledges_and_an_exception_refuses(broker: mqcore.Broker, mq: Client) -> None:
    await mq.declare("orders", 1, PUSH_WITH_ACKS)
    async with mq.queue("orders", 1).consume(Order) as messages:
        await mq.publish("orders/1", Order(1, "A"))
        with pytest.raises(ZeroDivisionError):
            async with (await next_of(messages)).process():
                1 / 0  # noqa: B018
        # The policy of the queue requeues it.
        message = await next_of(messages)
        async with message.process() as same:
            assert same.body == Order(1, "A")
    wait_until(lambda: broker.stats().queue("orders/1").acks == 1)
    assert broker.stats().queue("orders/1").negative_acks == 1


async def test_the_program_holds_as_many_unsettled_messages_as_it_asked_for(mq: Client) -> None:
    await mq.declare("orders", 1, PUSH_WITH_ACKS)
    async with mq.queue("orders", 1).consume(prefetch=2) as messages:
        await mq.publish_many("orders/1", [b"1", b"2", b"3"])
        held = [await next_of(messages), await next_of(messages)]
        information = await mq.queue_information("orders/1")
        assert (information.in_flight, information.messages) == (2, 1)
        await held[0].ack()
        held.append(await next_of(messages))
        assert [message.raw for message in held] == [b"1", b"2", b"3"]


async def test_batches_bring_what_is_there(mq: Client) -> None:
    await mq.declare("orders", 1)
    async with mq.queue("orders", 1).consume(prefetch=1000) as messages:
        await mq.publish_many("orders/1", [b"x"] * 1000)
        sizes = []
        async for batch in messages.batches(400):
            sizes.append(len(batch))
            if sum(sizes) == 1000:
                break
        assert max(sizes) <= 400


@pytest.mark.parametrize("kind", ["messages", "acknowledged", "batches", "pulled"])
async def test_timeout_ends_a_loop_over_messages_that_are_here(mq: Client, kind: str) -> None:
    status: Any = "pull" if kind == "pulled" else "push"
    await mq.declare("orders", 1, mqcore.QueueOptions(status=status, request_acknowledge=kind == "acknowledged"))
    await mq.publish_many("orders/1", [b"x"] * 2_000)
    queue = mq.queue("orders/1")
    taken = 0

    async def take() -> None:
        nonlocal taken
        if kind == "batches":
            async for batch in queue.consume(prefetch=2_000).batches(10):
                occupy(0.001 * len(batch))
                taken += len(batch)
        else:
            async for message in queue.pull_stream(2_000) if kind == "pulled" else queue.consume():
                occupy(0.001)
                await message.ack()
                taken += 1

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await take()
    assert taken < 1_000


async def test_what_a_consumer_leaves_goes_to_another(mq: Client, broker: mqcore.Broker) -> None:
    await mq.declare("orders", 1, dataclasses.replace(PUSH_WITH_ACKS, status="roundrobin"))
    async with mq.queue("orders", 1).consume() as messages:
        await mq.publish_many("orders/1", [str(n) for n in range(10)])
        await (await next_of(messages)).ack()
    async with mqcore.connect(broker.listeners[0]) as other, other.queue("orders", 1).consume() as messages:
        left = {(await next_of(messages)).raw for _ in range(9)}
    assert left == {str(n).encode() for n in range(1, 10)}


async def test_a_task_that_is_cancelled_while_it_waits_loses_no_message(mq: Client) -> None:
    await mq.declare("orders", 1)
    async with mq.queue("orders", 1).consume() as messages:
        for number in range(50):
            waiting = asyncio.ensure_future(anext(messages))
            for _ in range(number % 3):
                await asyncio.sleep(0)
            waiting.cancel()
            await mq.publish("orders/1", str(number))
            results = await asyncio.gather(waiting, return_exceptions=True)
            message = results[0]
            if isinstance(message, asyncio.CancelledError):
                message = await next_of(messages)
            assert message.raw == str(number).encode()


async def test_consumers_end_with_their_client(broker: mqcore.Broker) -> None:
    client = await mqcore.connect(broker.listeners[0])
    await client.declare("orders", 1)
    async with client.queue("orders", 1).consume() as messages:
        ending = asyncio.ensure_future(anext(messages, None))
        await asyncio.sleep(0)
        await client.close()
        assert await asyncio.wait_for(ending, 10) is None


async def test_a_channel_that_is_not_there_cannot_be_consumed() -> None:
    async with mqcore.Broker() as strict, strict.client() as client:
        with pytest.raises(errors.NotFound):
            async with client.queue("nowhere", 1).consume():
                pass


# --- pulling ---------------------------------------------------------------------------------------------------------


async def test_a_pull_takes_what_was_asked_for_in_the_order_that_was_asked_for(mq: Client) -> None:
    await mq.declare("reports", 7, PULL)
    await mq.publish_many("reports/7", [str(n) for n in range(5)])
    queue = mq.queue("reports/7")
    newest = await queue.pull(2, str, order="lifo")
    assert ([message.body for message in newest], newest.remaining, newest.complete) == (["4", "3"], 3, True)
    oldest = await queue.pull(1, str, clear="all")
    assert [message.body async for message in oldest] == ["0"]
    empty = await queue.pull()
    assert (len(empty), empty.remaining) == (0, 0)
    with pytest.raises(errors.InvalidArgument):
        await queue.pull(0)


async def test_pulled_messages_are_acknowledged(mq: Client, broker: mqcore.Broker) -> None:
    await mq.declare("reports", 7, dataclasses.replace(PULL, request_acknowledge=True))
    await mq.publish_many("reports/7", [b"1", b"2"])
    async with mq.join("reports"):
        for message in await mq.queue("reports", 7).pull(5):
            assert await message.ack()
        wait_until(lambda: broker.stats().queue("reports/7").acks == 2)


async def test_only_a_pull_queue_can_be_pulled_from(mq: Client) -> None:
    await mq.declare("a", 1)
    with pytest.raises(errors.Unacceptable):
        await mq.queue("a", 1).pull()
    with pytest.raises(errors.NotFound):
        await mq.queue("a", 99).pull()


async def test_a_cached_message_stays(mq: Client) -> None:
    await mq.declare("rates", 1, mqcore.QueueOptions(status="cache"))
    queue = mq.queue("rates", 1)
    assert await queue.get_cached() is None
    await mq.publish("rates/1", {"A": 1.5})
    for _ in range(2):
        cached = await queue.get_cached(dict[str, float])
        assert cached is not None
        assert cached.body == {"A": 1.5}


# --- clients ---------------------------------------------------------------------------------------------------------


async def test_a_request_is_answered(broker: mqcore.Broker, mq: Client) -> None:
    async def price(request: Request[Order]) -> float:
        return request.body.id * 9.5

    async with mqcore.connect(broker.listeners[0], kind="billing") as billing:
        serving = asyncio.ensure_future(billing.serve(price, Order))
        await asyncio.sleep(0)
        assert await mq.request("@type:billing", Order(2, "B"), reply=float) == 19.0
        response = await mq.request(billing.id, Order(2, "B"))
        assert (response.raw, response.source) == (b"19.0", billing.id)
        with pytest.raises(errors.OperationError, match="no Order"):
            await mq.request("@type:billing", b"{}")
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_handler_may_raise_a_text_that_cannot_be_encoded(
    broker: mqcore.Broker, mq: Client, caplog: pytest.LogCaptureFixture
) -> None:
    # The captured log is sent between processes of the tests, which cannot encode the text.
    caplog.set_level("CRITICAL", logger="mqcore.client")

    def find(request: Request[bytes]) -> None:
        raise LookupError("no \ud800")

    async with mqcore.connect(broker.listeners[0], kind="billing") as billing:
        serving = asyncio.ensure_future(billing.serve(find))
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(errors.OperationError, match=r"no \\ud800"):
                await mq.request("@type:billing", b"x", timeout=5)
        assert not serving.done()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_requests_can_be_taken_one_by_one(broker: mqcore.Broker, mq: Client) -> None:
    async with mqcore.connect(broker.listeners[0], name="slow") as slow, slow.requests(str) as requests:
        asking = asyncio.ensure_future(mq.request("@name:slow", "hello", content_type=10))
        request = await next_of(requests)
        assert (request.body, request.content_type, request.source) == ("hello", 10, mq.id)
        await request.respond({"status": "odd"}, status=1000)
        response = await asking
        assert (response.content_type, response.raw) == (1000, b'{"status":"odd"}')


async def test_a_direct_message_is_acknowledged_or_refused(broker: mqcore.Broker, mq: Client) -> None:
    async with mqcore.connect(broker.listeners[0], id="other") as other, other.requests() as messages:
        for answer in ("ack", "nack"):
            sending = asyncio.ensure_future(mq.send("other", b"x", confirm=True))
            await getattr(await next_of(messages), answer)()
            if answer == "ack":
                await sending
            else:
                with pytest.raises(errors.Nacked):
                    await sending


async def test_request_to_a_missing_client_raises(mq: Client) -> None:
    with pytest.raises(errors.NotFound):
        await mq.request("@name:nobody", b"x")
    with pytest.raises(errors.NotFound):
        await mq.send("nobody", b"x", confirm=True)


async def test_no_answer_is_a_timeout(broker: mqcore.Broker, mq: Client) -> None:
    async with mqcore.connect(broker.listeners[0], id="mute"):
        with pytest.raises(errors.RequestTimeout):
            await mq.request("mute", b"x", timeout="50ms")


# --- streams ---------------------------------------------------------------------------------------------------------

STREAMS = ("requests", "custom_messages", "events")


def stream_of(mq: Client, kind: str) -> Any:
    return mq.events("ChannelCreated") if kind == "events" else getattr(mq, kind)()


async def cause(mq: Client, broker: mqcore.Broker, kind: str, text: str) -> None:
    """Let an open stream of a client receive an element."""
    if kind == "events":
        await mq.create_channel(text)
    elif kind == "custom_messages":
        broker.send_custom(mq.id, text)
    else:
        await mq.send(mq.id, text)


def text_of(element: Any) -> str:
    return element.channel if isinstance(element, Event) else element.raw.decode()


@pytest.mark.parametrize("kind", STREAMS)
async def test_a_loop_opens_a_stream_and_closes_it(broker: mqcore.Broker, mq: Client, kind: str) -> None:
    stream = stream_of(mq, kind)

    async def first() -> str:
        async with contextlib.aclosing(aiter(stream)) as elements:
            async for element in elements:
                return text_of(element)
        return "none"

    for name in ("a", "b"):
        reading = asyncio.ensure_future(first())
        numbers = itertools.count()
        while not reading.done():
            await cause(mq, broker, kind, f"{name}{next(numbers)}")
            await asyncio.sleep(0.001)
        assert (await reading).startswith(name)


@pytest.mark.parametrize("kind", STREAMS)
async def test_a_stream_that_is_not_open_brings_nothing(mq: Client, kind: str) -> None:
    stream = stream_of(mq, kind)
    with pytest.raises(errors.InvalidArgument, match="the stream is not open; enter it with 'async with'"):
        await anext(stream)
    async with stream:
        pass
    assert await anext(stream, None) is None


@pytest.mark.parametrize("kind", STREAMS)
async def test_a_stream_that_opens_again_has_no_elements_of_before(
    broker: mqcore.Broker, mq: Client, kind: str
) -> None:
    numbers = itertools.count()
    async with asyncio.timeout(10), stream_of(mq, kind) as stream:
        while not stream._taken:
            for _ in range(3):
                await cause(mq, broker, kind, f"old{next(numbers)}")
            await anext(stream)
        left = {text_of(stream._read(element)) for element in stream._taken}
    async with stream:
        await cause(mq, broker, kind, "new")
        seen = [text_of(await next_of(stream))]
        while seen[-1] != "new":
            seen.append(text_of(await next_of(stream)))
    assert left.isdisjoint(seen)


async def test_timeout_ends_a_loop_over_requests_that_are_here(mq: Client) -> None:
    taken = 0

    async def take() -> None:
        nonlocal taken
        async for _ in requests:
            occupy(0.001)
            taken += 1

    async with mq.requests(idle_timeout=5) as requests:
        for _ in range(2_000):
            await mq.send(mq.id, b"x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await take()
    assert taken < 1_000


# --- events ----------------------------------------------------------------------------------------------------------


async def test_events_tell_what_happens(broker: mqcore.Broker, mq: Client) -> None:
    await mq.declare("orders", 1)
    wanted: list[tuple[str, str | None, int | None]] = [
        ("ClientConnected", None, None),
        ("QueueCreated", "orders", None),
        ("MessageProduced", "orders", 1),
    ]
    async with mq.events(wanted) as events:
        async with mqcore.connect(broker.listeners[0], id="new", name="nm"):
            pass
        await mq.declare("orders", 2, PULL, tag="t")
        await mq.publish("orders/1", b"x", id="m1")
        seen = [await next_of(events) for _ in range(3)]
    assert seen[0] == Event(kind="ClientConnected", client_id="new", client_name="nm")
    created = seen[1]
    assert (created.kind, created.channel, created.queue, created.tag) == ("QueueCreated", "orders", 2, "t")
    produced = seen[2]
    assert (produced.kind, produced.queue, produced.message_id, produced.producer_id) == (
        "MessageProduced",
        1,
        "m1",
        mq.id,
    )


async def test_an_event_names_the_producer_of_a_message(broker: mqcore.Broker, mq: Client) -> None:
    await mq.declare("orders", 1)
    async with (
        mq.events("MessageProduced", "orders", 1) as events,
        mqcore.connect(broker, id="till", name="Till 7", kind="shop") as till,
    ):
        await till.publish("orders/1", b"x")
        produced = await next_of(events)
    assert (produced.producer_id, produced.producer_name, produced.producer_kind) == ("till", "Till 7", "shop")


async def test_an_event_needs_its_place_and_nothing_else(mq: Client) -> None:
    for wrong in (("ClientConnected", "orders", None), ("QueueCreated", None, None), ("Nonsense", None, None)):
        with pytest.raises(errors.InvalidArgument):
            async with mq.events([wrong]):
                pass
    with pytest.raises(errors.OperationError):
        async with mq.events("QueueCreated", "nowhere"):
            pass


# --- administration --------------------------------------------------------------------------------------------------


async def test_channels_and_queues_are_created_changed_described_and_removed(mq: Client) -> None:
    await mq.create_channel("orders", mqcore.ChannelOptions(client_limit=5, queue=PUSH_WITH_ACKS))
    with pytest.raises(errors.AlreadyExists):
        await mq.create_channel("orders")
    channel = await mq.channel_information("orders")
    assert (channel.client_limit, channel.request_acknowledge, channel.queues) == (5, True, ())
    options = mqcore.QueueOptions(status="pull", acknowledge_timeout="33s", message_limit=7, put_back_limit=2)
    await mq.create_queue("orders/1", options)
    with pytest.raises(errors.AlreadyExists):
        await mq.create_queue("orders/1")
    queue = await mq.queue_information("orders/1")
    assert (queue.status, queue.acknowledge_timeout, queue.message_limit) == ("pull", 33.0, 7)
    assert queue.last_message_received is None
    await mq.update_queue("orders/1", mqcore.QueueOptions(message_timeout=1.5, status="roundrobin"))
    queue = await mq.queue("orders", 1).information()
    assert (queue.status, queue.message_timeout, queue.message_limit) == ("roundrobin", 1.5, 7)
    assert [one.id for one in await mq.queues("orders")] == [1]
    await mq.create_channel("other")
    assert {one.name for one in await mq.channels()} == {"orders", "other"}
    assert [one.name for one in await mq.channels("ord*")] == ["orders"]
    await mq.publish("orders/1", b"x", high_priority=True)
    await mq.publish("orders/1", b"y")
    await mq.clear_queue("orders/1", high_priority=True, normal=False)
    queue = await mq.queue_information("orders/1")
    assert (queue.priority_messages, queue.messages) == (0, 1)
    assert queue.last_message_received is not None
    assert abs(queue.last_message_received - time.time()) < 60
    await mq.remove_queue("orders/1")
    with pytest.raises(errors.NotFound):
        await mq.queue_information("orders/1")
    await mq.remove_channel("orders")
    with pytest.raises(errors.NotFound):
        await mq.remove_channel("orders")


async def test_clients_and_consumers_are_listed(mq: Client) -> None:
    await mq.declare("orders", 1)
    assert await mq.channel_consumers("orders") == []
    async with mq.queue("orders", 1).consume():
        assert [one.id for one in await mq.channel_consumers("orders")] == [mq.id]
    listed = await mq.clients("te*")
    assert [(one.id, one.name, one.kind) for one in listed] == [(mq.id, "mq", "test")]
    assert await mq.clients("other") == []
    assert await mq.nodes() == []


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_may_not_use_what_its_parent_connected(broker: mqcore.Broker) -> None:
    program = textwrap.dedent("""
        import os, sys
        import mqcore.sync, mqcore.errors

        client = mqcore.sync.connect(sys.argv[1])
        consumer = client.queue("a", 1).consume().__enter__()
        child = os.fork()
        if child == 0:
            outcomes = []
            for use in (
                lambda: client.publish("a/1", b"x"),
                lambda: client.id,
                lambda: next(iter(consumer)),
                lambda: mqcore.sync.connect(sys.argv[1]),
            ):
                try:
                    use()
                    outcomes.append("used")
                except mqcore.errors.Forked:
                    outcomes.append("refused")
            print(*outcomes, flush=True)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        client.publish("a/1", b"x")
        consumer.__exit__(None, None, None)
        client.close()
        print("parent goes on", status)
    """)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, broker.listeners[0]],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.splitlines() == ["refused refused refused refused", "parent goes on 0"], done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_a_program_that_ends_without_closing_ends(broker: mqcore.Broker) -> None:
    program = textwrap.dedent("""
        import asyncio, sys, warnings
        import mqcore

        warnings.simplefilter("ignore")

        async def main():
            client = await mqcore.connect(sys.argv[1])
            await client.publish("a/1", b"x")
            asyncio.ensure_future(client.queue("a", 1).consume().__aenter__())

        asyncio.run(main())
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, broker.listeners[0]], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_busy_interpreter_does_not_cost_the_connection() -> None:
    impatient = mqcore.Broker(listen="tmqp://127.0.0.1:0", ping_interval="200ms", pong_timeout="1s")
    async with impatient, impatient.client() as creator:
        await creator.declare("a", 1)
        client = await mqcore.connect(impatient.listeners[0])
        # Holds the interpreter: no other Python thread runs meanwhile, and no event loop.
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            sum(range(10_000))
        await client.publish("a/1", b"x")
        assert client.counters.connects == 1
        await client.close()


def test_ctrl_c_ends_an_asyncio_program_that_waits(broker: mqcore.Broker) -> None:
    program = textwrap.dedent("""
        import asyncio, sys
        import mqcore

        async def main():
            async with mqcore.connect(sys.argv[1]) as mq:
                await mq.declare("a", 1)
                async with mq.queue("a", 1).consume() as messages:
                    print("waiting", flush=True)
                    async for message in messages:
                        pass

        asyncio.run(main())
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program, broker.listeners[0]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in stderr


async def test_message_of_queue_0_is_of_no_topic(broker: mqcore.Broker) -> None:
    async with mqcore.connect(broker.listeners[0]) as client, client.queue("orders/0").consume() as messages:
        await client.publish("orders/0", b"x")
        async with asyncio.timeout(10):
            message = await anext(messages)
        assert (message.topic, message.address) == (None, "orders/0")
