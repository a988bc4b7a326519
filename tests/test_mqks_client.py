"""The client over MQKS: `mqcore.connect("mqks://...")`, against a real broker and against bad ones."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import mqcore
import mqcore.sync
from authority import Authority
from awaited import loss, next_of, reaches, until
from bad_server import playing, saying
from mqcore import errors
from mqcore._core import hash_password
from mqcore.client import Client
from mqcore.config import AuthorityOptions, UserOptions
from tcp_proxy import TcpProxy


@dataclasses.dataclass
class Order:
    """A value that these tests send."""

    id: int
    sku: str


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    """A broker with a listener for MQKS, and one for TMQP."""
    with mqcore.Broker(listen=["mqks://127.0.0.1:0", "tmqp://127.0.0.1:0"], shards=2) as running:
        yield running


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    """A client of it that speaks MQKS."""
    async with mqcore.connect(broker.listeners[0]) as client:
        yield client


# --- publishing and consuming --------------------------------------------------------------------------------------


async def test_what_is_published_to_an_event_reaches_the_queue_of_its_name(mq: Client) -> None:
    assert mq.protocol == "mqks"
    async with mq.queue("orders").consume(Order) as messages:
        receipt = await mq.publish("orders", Order(7, "B-2"), id="m1")
        message = await next_of(messages)
        assert (receipt.by, message.body) == ("server", Order(7, "B-2"))
        assert (message.id, message.headers["Topic"], message.address) == ("m1", "orders", "orders/0")
        assert message.wants_acknowledge
        assert await message.ack()
        assert not await message.ack()
        await settled(mq)


async def becomes(mq: Client, expression: str, number: int) -> None:
    """Wait until a statistic of the broker is this."""
    async with asyncio.timeout(20):
        while await mq.statistic(expression) != number:  # noqa: ASYNC110 (the broker does not report when it is)
            await asyncio.sleep(0.01)


async def settled(mq: Client) -> None:
    """Wait until the broker waits for no acknowledgement."""
    await becomes(mq, "len(state.unacked)", 0)


async def test_a_queue_gets_the_events_that_it_is_bound_to(mq: Client) -> None:
    async with (
        mq.queue("greetings").consume(events=["hi", "hello"]) as greetings,
        mq.queue("all").consume(events=["hi"], add_events=["bye"]) as everything,
    ):
        for event in ("hello", "bye", "hi"):
            await mq.publish(event, f"{event}, world")
        assert [(await next_of(greetings)).raw for _ in range(2)] == [b"hello, world", b"hi, world"]
        assert [(await next_of(everything)).headers["topic"] for _ in range(2)] == ["bye", "hi"]


async def test_rejected_message_is_redelivered_with_its_attempt_count(mq: Client) -> None:
    async with mq.queue("orders").consume() as messages:
        await mq.publish("orders", b"x")
        first = await next_of(messages)
        assert "Retry" not in first.headers
        with pytest.raises(RuntimeError, match="no"):
            async with first.process():
                raise RuntimeError("no")
        again = await next_of(messages)
        assert (again.id, again.headers["Retry"]) == (first.id, "1")
        async with again.process():
            pass
        await settled(mq)


async def test_without_acknowledgements_the_broker_forgets_what_it_sent(mq: Client) -> None:
    async with mq.queue("orders").consume(manual_ack=False) as messages:
        await mq.publish("orders", b"x")
        message = await next_of(messages)
        assert not message.wants_acknowledge
        assert not await message.ack()
        assert await mq.statistic("len(state.unacked)") == 0


async def test_thousands_are_published_at_once_and_come_in_their_order(mq: Client) -> None:
    count = 5_000
    async with mq.queue("orders").consume(int) as messages:
        receipts = await mq.publish_many("orders", range(count))
        assert {receipt.by for receipt in receipts} == {"server"}
        taken: list[int] = []
        async for batch in messages.batches():
            for message in batch:
                taken.append(message.body)
                await message.ack()
            if len(taken) >= count:
                break
        assert taken == list(range(count))
        await settled(mq)


async def test_consumers_of_a_queue_share_it_also_inside_of_one_client(mq: Client) -> None:
    async with mq.queue("orders").consume() as one, mq.queue("orders").consume() as other:
        for number in range(4):
            await mq.publish("orders", str(number))
        both = [(await next_of(stream)).raw for stream in (one, one, other, other)]
        assert sorted(both) == [b"0", b"1", b"2", b"3"]
        with pytest.raises(errors.InvalidArgument, match="on other terms"):
            await mq.queue("orders").consume(events=["other"]).__aenter__()


async def test_unread_messages_of_a_closed_consumer_are_requeued(mq: Client) -> None:
    async with mq.queue("orders").consume() as messages:
        await mq.publish_many("orders", ["a", "b"])
        assert (await next_of(messages)).raw == b"a"
    async with mq.queue("orders").consume() as messages:
        assert sorted([(await next_of(messages)).raw for _ in range(2)]) == [b"a", b"b"]


async def test_a_queue_may_go_with_its_last_consumer(mq: Client) -> None:
    async with mq.queue("short-lived").consume(delete_when_unused=True):
        assert await mq.statistic("len(state.queues)") == 1
    await becomes(mq, "len(state.queues)", 0)
    async with mq.queue("longer-lived").consume(delete_when_unused="60s"):
        pass
    assert await mq.statistic("len(state.queues)") == 1


async def test_bindings_change_while_a_queue_is_consumed(mq: Client) -> None:
    async with mq.queue("q").consume(events=["e1", "user.1.gone"]) as messages:
        await mq.rebind("q", add=["e2"], remove=["e1"], remove_masks=["user.*.gone"])
        for event in ("e1", "user.1.gone", "e2"):
            await mq.publish(event, event)
        assert (await next_of(messages)).raw == b"e2"
        await mq.rebind("q", ["e3"])
        await mq.publish("e2", "e2")
        await mq.publish("e3", "e3")
        assert (await next_of(messages)).raw == b"e3"
    with pytest.raises(errors.InvalidArgument):
        await mq.rebind("q")


async def test_a_queue_is_removed(mq: Client) -> None:
    async with mq.queue("q").consume():
        pass
    await mq.remove_queue("q")
    assert await mq.statistic("len(state.queues)") == 0
    await mq.remove_queue("q")


async def test_names_pass_as_they_are_written(mq: Client) -> None:
    async with mq.queue("q/7").consume(events=["x/0", "x/007", "user@example;*", "ein.größe"]) as messages:
        for event in ("x/0", "x/007", "user@example;*", "ein.größe"):
            await mq.publish(event, "data")
            message = await next_of(messages)
            assert (message.headers["Topic"], message.address) == (event, "q/7")


async def test_a_message_reaches_consumers_of_tmqp_and_theirs_come_back(broker: mqcore.Broker, mq: Client) -> None:
    async with broker.client() as other, mq.queue("meeting").consume() as here:
        await other.publish("meeting/0", b"from tmqp\n")
        message = await next_of(here)
        assert message.raw == b"from tmqp\\n"
        await message.ack()
    async with broker.client() as other, other.queue("meeting", 0).consume() as there:
        await mq.publish("meeting", b"from mqks")
        assert (await next_of(there)).raw == b"from mqks"


def test_the_blocking_face_is_the_same(broker: mqcore.Broker) -> None:
    with mqcore.sync.connect(broker.listeners[0]) as mq:
        assert mq.protocol == "mqks"
        with mq.queue("orders").consume(str, events=["orders"], idle_timeout=10) as messages:
            mq.rebind("orders", add=["more"])
            mq.publish("more", "hello")
            message = next(iter(messages))
            assert (message.body, message.headers["Topic"]) == ("hello", "more")
            message.ack()
        assert mq.statistic("len(state.queues)") == 1
        mq.remove_queue("orders")


async def test_ids_and_bodies_that_a_line_cannot_say_are_refused_here(mq: Client) -> None:
    for body in (b"", b"a\nb", b"a\tb", b"a ", b"a\r"):
        with pytest.raises(errors.InvalidArgument, match="body"):
            await mq.publish("orders", body)
    for wrong in ("a b", "", "x" * 256):
        with pytest.raises(errors.InvalidArgument):
            await mq.publish("orders", b"x", id=wrong)
    for event in ("", "a b", "--add", "a\tb"):
        with pytest.raises(errors.InvalidArgument):
            await mq.publish(event, b"x")
        with pytest.raises(errors.InvalidArgument):
            await mq.queue("q").consume(events=[event]).__aenter__()
    await mq.publish("orders", {"text": "a\tb\n", "end": " "})


LACKING: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "headers": lambda mq: mq.publish("q", b"x", headers={"a": "b"}),
    "priorities": lambda mq: mq.publish("q", b"x", high_priority=True),
    "copies": lambda mq: mq.publish("q", b"x", cc=["other"]),
    "sending": lambda mq: mq.send("@name:x", b"x"),
    "asking": lambda mq: mq.request("@name:x", b"x"),
    "direct messages": lambda mq: mq.requests().__aenter__(),
    "pulling": lambda mq: mq.queue("q").pull(),
    "cached messages": lambda mq: mq.queue("q").get_cached(),
    "events of the broker": lambda mq: mq.events("ClientConnected").__aenter__(),
    "channels": lambda mq: mq.create_channel("c"),
    "creating queues": lambda mq: mq.create_queue("q"),
    "information": lambda mq: mq.queue_information("q"),
    "clients": lambda mq: mq.clients(),
    "routers": lambda mq: mq.create_router("r"),
    "nodes": lambda mq: mq.nodes(),
    "joining": lambda mq: mq.join("c").__aenter__(),
}


@pytest.mark.parametrize("what", LACKING)
async def test_unsupported_mqks_operation_raises_at_once(mq: Client, what: str) -> None:
    with pytest.raises(errors.NotSupported, match=r"MQKS has no .*; use TMQP \(tmqp://\) instead"):
        await asyncio.wait_for(LACKING[what](mq), 5)
    assert mq.state.status == "connected"


async def test_unsupported_tmqp_operation_raises(broker: mqcore.Broker) -> None:
    async with broker.client() as mq:
        for lacking in (
            mq.rebind("q", ["e"]),
            mq.statistic("len(state.queues)"),
            mq.queue("q").consume(events=["e"]).__aenter__(),
        ):
            with pytest.raises(errors.NotSupported, match=r"TMQP/2\.0 has no"):
                await asyncio.wait_for(lacking, 5)


async def test_a_broker_lists_its_latest_100_failed_requests_unless_asked_for_another_number(
    broker: mqcore.Broker, mq: Client
) -> None:
    texts = []
    for _ in range(105):
        with pytest.raises(errors.OperationError) as caught:
            await mq.statistic("1 + 1")
        texts.append(str(caught.value))
    found = broker.errors(1000)
    assert len(found) == 105
    assert all(failed.id in text for failed, text in zip(found, reversed(texts), strict=True))
    assert (broker.errors(), broker.errors(3)) == (found[:100], found[:3])


async def test_an_error_of_the_broker_names_its_number(broker: mqcore.Broker, mq: Client) -> None:
    with pytest.raises(errors.OperationError, match="cannot read statistic") as caught:
        await mq.statistic("1 + 1")
    (failed,) = broker.errors()
    assert failed.id in str(caught.value)
    with pytest.raises(errors.OperationError, match="cannot consume"):
        await mq.queue("a*b").consume().__aenter__()
    await mq.publish("orders", b"still here")


async def test_rejected_unconfirmed_messages_are_counted() -> None:
    listen = "mqks://127.0.0.1:0"
    with mqcore.Broker(listen=[listen], publish_limit="1/1h") as broker:
        async with mqcore.connect(broker.listeners[0]) as mq:
            for _ in range(3):
                await mq.publish("orders", b"x", confirm=False)
            await until(lambda: mq.counters.refused_unconfirmed == 2)
            with pytest.raises(errors.OperationError, match="cannot publish to orders"):
                await mq.publish("orders", b"x")


async def test_addresses_of_two_protocols_do_not_stand_for_one_another(broker: mqcore.Broker) -> None:
    with pytest.raises(errors.InvalidArgument, match="are different protocols"):
        await mqcore.connect(list(broker.listeners))


# --- who it is -----------------------------------------------------------------------------------------------------


async def test_a_token_or_a_password_lets_the_client_in() -> None:
    user = UserOptions(name="alice", allow=("*",), password_hash=hash_password("correct horse"))
    with mqcore.Broker(listen="mqks://127.0.0.1:0", user=[user], authority=AuthorityOptions(audit="off")) as broker:
        url = broker.listeners[0]
        async with mqcore.connect(url, user="alice", password="correct horse") as mq:
            await mq.publish("orders", b"x")
        async with mqcore.connect(url.replace("://", "://alice:correct%20horse@")) as mq:
            await mq.publish("orders", b"x")
        for wrong in ({"user": "alice", "password": "wrong"}, {"token": "wrong"}):
            with pytest.raises(errors.AuthFailed, match="refused the client: error 2"):
                await mqcore.connect(url, **wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.AuthFailed):
            await mqcore.connect(url)


async def test_it_goes_through_tls(tmp_path: Any) -> None:
    authority = Authority(tmp_path)
    listener = mqcore.Listener(url="mqkss://localhost:0", tls=mqcore.ListenerTLS(cert=authority.issue()))
    with mqcore.Broker(listen=[], listener=[listener]) as broker:
        port = broker.listeners[0].rpartition(":")[2]
        trusted = mqcore.TLSConfig(ca=authority.ca)
        async with (
            mqcore.connect(f"mqkss://localhost:{port}", tls=trusted) as mq,
            mq.queue("q").consume() as messages,
        ):
            await mq.publish("q", b"x" * 100_000)
            assert len(await next_of(messages)) == 100_000
        with pytest.raises(errors.TLSError, match="mqkss://"):
            await mqcore.connect(f"mqks://localhost:{port}")


# --- losing connections --------------------------------------------------------------------------------------------


async def test_consumer_survives_connection_losses(proxy: TcpProxy, mq: Client, shaky: Client) -> None:
    async with shaky.queue("orders").consume() as messages:
        for number in range(5):
            await mq.publish("orders", str(number))
            message = await next_of(messages)
            assert message.raw == str(number).encode()
            assert await message.ack()
            # On its way is not there yet: what is cut off is delivered again.
            await settled(mq)
            await proxy.cut()
            await reaches(shaky, number + 2)
    assert shaky.counters.connects == 6


async def test_unacknowledged_message_is_redelivered_and_the_old_delivery_cannot_be_acknowledged(
    proxy: TcpProxy, mq: Client, shaky: Client
) -> None:
    async with shaky.queue("orders").consume() as messages:
        await mq.publish("orders", b"x", id="m1")
        first = await next_of(messages)
        await proxy.cut()
        again = await next_of(messages)
        assert (first.id, again.id, again.headers["Retry"]) == ("m1", "m1", "1")
        assert not await first.ack()
        assert await again.ack()
        assert shaky.counters.stale_settlements == 1


async def test_bindings_that_changed_meanwhile_hold_after_a_reconnect(
    proxy: TcpProxy, mq: Client, shaky: Client
) -> None:
    async with shaky.queue("q").consume(events=["old"]) as messages:
        await mq.rebind("q", ["new"])
        # The update has been read when this is answered: both came over one connection.
        await shaky.publish("nobody", b"x")
        await proxy.cut()
        await reaches(shaky, 2)
        await shaky.publish("nobody", b"x")
        await mq.publish("old", b"old")
        await mq.publish("new", b"new")
        assert (await next_of(messages)).raw == b"new"


async def test_in_flight_request_fails_and_is_not_sent_twice(proxy: TcpProxy, mq: Client, shaky: Client) -> None:
    async with mq.queue("orders").consume() as messages:
        proxy.stall()
        publishing = asyncio.ensure_future(shaky.publish("orders", b"x"))
        await proxy.holds(b"orders")
        await proxy.cut()
        proxy.flow()
        with pytest.raises(errors.ConnectionLost) as caught:
            await publishing
        assert caught.value.sent
        await reaches(shaky, 2)
        await shaky.publish("orders", b"y")
        assert (await next_of(messages)).raw == b"y"


async def test_a_dead_network_is_noticed(proxy: TcpProxy, patient: Client) -> None:
    proxy.stall()
    assert "no heartbeat" in await loss(patient)
    proxy.flow()
    await reaches(patient, 2)


async def test_a_quiet_connection_lives_on(patient: Client) -> None:
    """It is pinged three times a second here, and answered within a second."""
    assert [state.status async for state in patient.states(idle_timeout="2s")] == ["connected"]
    assert patient.counters.connects == 1
    assert patient.counters.late_answers == 0


# --- bad brokers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", errors.VersionMismatch, "does not speak MQKS"),
        (b"\x00\xff\x00\xff", errors.VersionMismatch, "does not speak MQKS"),
        (b"x" * 100_000, errors.VersionMismatch, "does not speak MQKS"),
        (b"hello ok other\n", errors.VersionMismatch, "does not speak MQKS"),
        (b"hello", errors.VersionMismatch, "does not speak MQKS"),
        (b"\tnonsense\n", errors.VersionMismatch, "does not speak MQKS"),
        (b"hello error 20260101000000000000abcd\n", errors.AuthFailed, "error 20260101000000000000abcd"),
        (b"", errors.ConnectFailed, "closed"),
    ],
)
async def test_peer_that_is_not_a_broker_is_detected(data: bytes, kind: type[Exception], words: str) -> None:
    async with playing(saying(data), "mqks") as url:
        with pytest.raises(kind, match=words):
            await asyncio.wait_for(mqcore.connect(url), 10)


async def test_a_peer_that_says_nothing_is_given_up() -> None:
    async with playing(saying(b"", stays=True), "mqks") as url:
        with pytest.raises(errors.ConnectFailed, match="no answer within"):
            await asyncio.wait_for(mqcore.connect(url, connect_timeout="200ms"), 10)


def greeted(then: bytes, *, stays: bool = True) -> Any:
    """A server that greets, and answers the next line with these bytes; `%` stands for the line's id.

    Like an original server, it does not know the action `prefetch`.
    """

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"hello ping mqcore\n"
        writer.write(b"hello ok mqcore\n")
        line = await reader.readline()
        if line.startswith(b"prefetch "):
            writer.write(b"prefetch error 20260101000000000000abcd\n")
            line = await reader.readline()
        writer.write(then.replace(b"%", line.split(b" ")[0]))
        await writer.drain()
        if stays:
            while await reader.read(1 << 16):
                pass

    return play


@pytest.mark.parametrize(
    "data", [b"nonsense\n", b"% neither\n", b"\x00\x01\x02\n", b"% ok\t\n", b"\n", b"% ok --update"]
)
async def test_a_broker_that_stops_making_sense_is_left(data: bytes) -> None:
    async with (
        playing(greeted(data, stays=False), "mqks") as url,
        mqcore.connect(url, reconnect_attempts=0) as mq,
    ):
        with pytest.raises(errors.ConnectionLost):
            await asyncio.wait_for(mq.publish("orders", b"x"), 10)
        await until(lambda: mq.state.status == "closed")
        with pytest.raises(errors.Draining):
            await mq.publish("orders", b"x")


@pytest.mark.parametrize("data", [b"", b"other ok \n", b"% ok", b"None error 1\n"])
async def test_an_answer_that_never_comes_is_waited_for_as_long_as_was_said(data: bytes) -> None:
    async with playing(greeted(data), "mqks") as url, mqcore.connect(url) as mq:
        with pytest.raises(errors.ConfirmTimeout):
            await asyncio.wait_for(mq.publish("orders", b"x", timeout="200ms"), 10)
        await mq.close(drain=0)


async def test_a_consumer_that_the_broker_does_not_answer_is_given_up() -> None:
    async with playing(greeted(b""), "mqks") as url, mqcore.connect(url, request_timeout="200ms") as mq:
        with pytest.raises(errors.RequestTimeout, match="consume orders"):
            await asyncio.wait_for(mq.queue("orders").consume().__aenter__(), 10)
        await mq.close(drain=0)


async def test_a_message_that_is_none_ends_the_connection_and_nothing_else() -> None:
    async with (
        playing(greeted(b"% ok \n% ok strange\n"), "mqks") as url,
        mqcore.connect(url, backoff_first="10ms") as mq,
        mq.queue("orders").consume(),
    ):
        await until(lambda: mq.counters.connects >= 2)
        assert "malformed line" in await loss(mq)
        await mq.close(drain=0)
