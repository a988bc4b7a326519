"""The client over MicroMessage2: `mqcore.connect("mm2://...")`, against a real broker and against bad ones."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

import mqcore
import mqcore.sync
from authority import Authority
from awaited import loss, next_of, reaches, until
from bad_server import playing, saying
from mm2_peer import Handshake, command, extension, message
from mqcore import errors
from mqcore._core import hash_password
from mqcore.client import Client
from mqcore.config import AuthorityOptions, UserOptions
from mqcore.micromessage import DEFAULTS, PROPERTIES, TYPE, Extension, Value, headers, properties
from tcp_proxy import TcpProxy

BATCH = Extension("batch-ack", properties={"max-count": "100"})


@dataclasses.dataclass
class Order:
    """A value that these tests send."""

    id: int
    sku: str


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    """A broker with a listener for MicroMessage2, and one for TMQP, that creates what is missing."""
    settings = mqcore.BrokerConfig(
        listen=("mm2://127.0.0.1:0", "tmqp://127.0.0.1:0"), auto_create_channels=True, auto_create_queues=True, shards=2
    )
    with mqcore.Broker(settings) as running:
        yield running


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    """A client of it that speaks MicroMessage2."""
    async with mqcore.connect(broker.listeners[0]) as client:
        yield client


def acks(broker: mqcore.Broker, queue: str) -> int:
    """How many messages of a queue were acknowledged."""
    return broker.stats().queue(queue).acks


# --- queues and topics ---------------------------------------------------------------------------------------------


async def test_a_message_of_a_queue_reaches_one_and_is_settled(broker: mqcore.Broker, mq: Client) -> None:
    assert mq.protocol == "mm2"
    async with mq.queue("orders").consume(Order) as messages:
        receipt = await mq.publish("orders", Order(7, "B-2"))
        received = await next_of(messages)
        assert (receipt.by, received.body, received.address) == ("server", Order(7, "B-2"), "orders/0")
        assert received.wants_acknowledge
        assert await received.ack()
        assert not await received.ack()
        await until(lambda: acks(broker, "orders/0") == 1)


async def test_a_topic_reaches_all_who_want_it(broker: mqcore.Broker, mq: Client) -> None:
    async with (
        mqcore.connect(broker.listeners[0]) as other,
        mq.queue("topic/news").consume() as here,
        other.queue("topic/news").consume(filter="price>N10;region=Teu") as there,
    ):
        await mq.publish("topic/news", b"cheap", headers=headers({"price": 5, "region": "eu"}))
        await mq.publish("topic/news", b"dear", headers=headers({"price": 10.5, "region": "eu"}))
        await mq.publish("topic/news", b"plain", headers={"price": "11", "region": "eu"})
        assert [(await next_of(here)).raw for _ in range(3)] == [b"cheap", b"dear", b"plain"]
        only = await next_of(there)
        assert (only.raw, only.address) == (b"dear", "topic/news")
        assert await only.ack()


async def test_properties_keep_their_types(broker: mqcore.Broker, mq: Client) -> None:
    said: dict[str, Value] = {
        "count": -7,
        "large": 2**62,
        "share": 0.1,
        "tiny": 1e-12,
        "sent": datetime(2014, 10, 13, 11, 0, tzinfo=UTC),
        "name": 'Hello "world"; a:b, größe\n',
        "looks-like-a-number": "N1",
    }
    async with mq.queue("orders").consume() as messages:
        await mq.publish("orders", b"x", headers=headers(said))
        received = await next_of(messages)
        assert properties(received.headers) == said
        assert "share:N0.1;" in received.headers[PROPERTIES]
        await mq.publish("orders", b"y", headers={"Schema": "v 1"})
        assert properties((await next_of(messages)).headers) == {"Schema": "v 1"}
    async with broker.client() as other, other.queue("orders", 0).consume() as there:
        await mq.publish("orders", b"z", headers=headers(said))
        assert properties((await next_of(there)).headers) == said


def test_values_that_no_property_can_have_are_refused() -> None:
    for value in (datetime(2020, 1, 1), True, float("nan"), float("inf"), None, b"x"):
        with pytest.raises(errors.InvalidArgument, match="the property key"):
            headers({"key": value})  # type: ignore[dict-item]
    assert properties({PROPERTIES: "a:Nx;b:kalle;c:D1;d;;e:T%41"}) == {
        "a": "Nx",
        "b": "kalle",
        "c": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "e": "A",
    }
    assert properties({}) == {}


async def test_keys_that_no_property_can_have_are_refused_before_they_are_sent(mq: Client) -> None:
    wrong: list[Mapping[str, str]] = [{"a b": "x"}, {PROPERTIES: "a b:N1"}, {PROPERTIES: "nothing"}, {"größe": "x"}]
    for given in wrong:
        with pytest.raises(errors.InvalidArgument, match="invalid header"):
            await mq.publish("orders", b"x", headers=given)
    await mq.publish("orders", b"still here")


async def test_rejected_message_is_redelivered(broker: mqcore.Broker, mq: Client) -> None:
    async with mq.queue("orders").consume() as messages:
        await mq.publish("orders", b"x")
        first = await next_of(messages)
        with pytest.raises(RuntimeError, match="no"):
            async with first.process():
                raise RuntimeError("no")
        again = await next_of(messages)
        assert again.raw == b"x"
        async with again.process():
            pass
        await until(lambda: acks(broker, "orders/0") == 1)


async def test_messages_are_settled_in_any_order(broker: mqcore.Broker, mq: Client) -> None:
    async with mq.queue("orders").consume() as messages:
        await mq.publish_many("orders", map(str, range(6)))
        taken = [await next_of(messages) for _ in range(6)]
        for place in (3, 1, 5):
            await taken[place].ack()
        await taken[2].nack()
        for place in (4, 0):
            await taken[place].ack()
        again = await next_of(messages)
        assert again.raw == b"2"
        await again.ack()
        await until(lambda: acks(broker, "orders/0") == 6)


async def test_unread_messages_of_a_closed_consumer_are_requeued(mq: Client) -> None:
    async with mq.queue("orders").consume() as messages:
        await mq.publish_many("orders", ["a", "b"])
        assert (await next_of(messages)).raw == b"a"
    async with mq.queue("orders").consume() as messages:
        assert sorted([(await next_of(messages)).raw for _ in range(2)]) == [b"a", b"b"]


async def test_dropped_unsettled_message_is_requeued_without_blocking_others(broker: mqcore.Broker) -> None:
    offer = [Extension("ack"), Extension("pub-sub"), Extension("x-nack")]
    async with mqcore.connect(broker.listeners[0], extensions=offer) as mq, mq.queue("orders").consume() as messages:
        await mq.publish("orders", b"x")
        for _ in range(3):
            assert (await next_of(messages)).raw == b"x"
        received = await next_of(messages)
        assert await received.ack()
        await until(lambda: acks(broker, "orders/0") == 1)


async def test_consumers_of_one_client_share_a_subscription(mq: Client) -> None:
    async with mq.queue("topic/t").consume(filter="a=N1") as one, mq.queue("topic/t").consume(filter="a=N1") as two:
        for number in range(4):
            await mq.publish("topic/t", str(number), headers=headers({"a": 1}))
        assert sorted([(await next_of(stream)).raw for stream in (one, one, two, two)]) == [b"0", b"1", b"2", b"3"]
        with pytest.raises(errors.InvalidArgument, match="on other terms"):
            await mq.queue("topic/t").consume().__aenter__()


async def test_large_messages_come_and_go_in_parts(mq: Client) -> None:
    body = bytes(range(256)) * 12 * 1024
    async with mq.queue("orders").consume() as messages:
        await mq.publish("orders", body)
        assert (await next_of(messages)).raw == body


async def test_numbers_begin_again_after_the_last(broker: mqcore.Broker) -> None:
    """They have sixteen bits: both sides pass their last one here."""
    count = 66_000
    async with mqcore.connect(broker.listeners[0]) as mq, mq.queue("orders").consume(prefetch=1000) as messages:
        publishing = asyncio.ensure_future(mq.publish_many("orders", map(str, range(count))))
        seen = 0
        async with asyncio.timeout(100):
            async for batch in messages.batches():
                for received in batch:
                    assert received.raw == str(seen).encode()
                    await received.ack()
                    seen += 1
                if seen == count:
                    break
        assert {receipt.by for receipt in await publishing} == {"server"}
        await until(lambda: acks(broker, "orders/0") == count)


async def test_a_message_reaches_consumers_of_tmqp_and_theirs_come_back(broker: mqcore.Broker, mq: Client) -> None:
    async with broker.client() as other, mq.queue("meeting").consume() as here:
        await other.publish("meeting/0", b"from tmqp", headers={"Schema": "v1"})
        received = await next_of(here)
        assert (received.raw, properties(received.headers)) == (b"from tmqp", {"Schema": "v1"})
        await received.ack()
    async with broker.client() as other, other.queue("meeting", 0).consume() as there:
        await mq.publish("meeting", b"from mm2")
        assert (await next_of(there)).raw == b"from mm2"


def test_the_blocking_face_is_the_same(broker: mqcore.Broker) -> None:
    with mqcore.sync.connect(broker.listeners[0], extensions=[*DEFAULTS, Extension("json")]) as mq:
        assert mq.agreed["batch-ack"] == {"max-count": "1000"}
        with mq.queue("topic/t").consume(str, filter="a=N1", idle_timeout=10) as messages:
            mq.publish("topic/t", "no", headers=headers({"a": 2}))
            mq.publish("topic/t", "yes", headers=headers({"a": 1}))
            received = next(iter(messages))
            assert (received.body, received.headers["Content-Type"]) == ("yes", "json")
            received.ack()
        with pytest.raises(errors.NotSupported, match='extension "x-note"'):
            mq.extension("x-note").__enter__()


# --- extensions ----------------------------------------------------------------------------------------------------


async def test_what_was_agreed_on_can_be_seen(broker: mqcore.Broker, mq: Client) -> None:
    assert mq.agreed == {"batch-ack": {"max-count": "1000"}, "pub-sub": {}, "x-nack": {}, "x-mqcore": {}}
    offer = [Extension("ack", required=True), Extension("xml"), Extension("json"), Extension("x-unheard-of")]
    async with mqcore.connect(broker.listeners[0], extensions=offer) as other:
        assert other.agreed == {"ack": {}, "xml": {}}
    async with broker.client() as tmqp:
        with pytest.raises(errors.NotSupported, match=r"TMQP/2\.0 has no extensions"):
            _ = tmqp.agreed


@pytest.mark.parametrize("acknowledging", [Extension("ack"), Extension("batch-ack", properties={"max-count": "2"})])
async def test_small_window_does_not_block_forever(broker: mqcore.Broker, acknowledging: Extension) -> None:
    offer = [acknowledging, Extension("pub-sub")]
    async with mqcore.connect(broker.listeners[0], extensions=offer) as mq, mq.queue("orders").consume() as messages:
        publishing = asyncio.ensure_future(mq.publish_many("orders", map(str, range(50))))
        for number in range(50):
            received = await next_of(messages)
            assert received.raw == str(number).encode()
            await received.ack()
        assert len(await asyncio.wait_for(publishing, 20)) == 50
        await until(lambda: acks(broker, "orders/0") == 50)


async def test_without_acknowledgements_there_are_no_receipts(broker: mqcore.Broker) -> None:
    offer = [Extension("pub-sub")]
    async with mqcore.connect(broker.listeners[0], extensions=offer) as mq, mq.queue("orders").consume() as messages:
        with pytest.raises(errors.NotSupported, match="no receipts without ack or batch-ack"):
            await mq.publish("orders", b"x")
        receipt = await mq.publish("orders", b"x", confirm=False)
        assert receipt.by is None
        received = await next_of(messages)
        assert not received.wants_acknowledge
        assert not await received.ack()


async def test_messages_may_be_acknowledged_as_they_come(broker: mqcore.Broker, mq: Client) -> None:
    async with mq.queue("orders").consume(manual_ack=False) as messages:
        await mq.publish("orders", b"x")
        assert not (await next_of(messages)).wants_acknowledge
        await until(lambda: acks(broker, "orders/0") == 1)


async def test_without_pub_sub_nothing_can_be_consumed(broker: mqcore.Broker) -> None:
    async with mqcore.connect(broker.listeners[0], extensions=[BATCH]) as mq:
        assert (await mq.publish("orders", b"x")).by == "server"
        with pytest.raises(errors.NotSupported, match="no subscriptions without pub-sub"):
            await mq.queue("orders").consume().__aenter__()


async def test_without_x_nack_nothing_can_be_refused(broker: mqcore.Broker) -> None:
    offer = [BATCH, Extension("pub-sub")]
    async with mqcore.connect(broker.listeners[0], extensions=offer) as mq, mq.queue("orders").consume() as messages:
        await mq.publish("orders", b"x")
        received = await next_of(messages)
        with pytest.raises(errors.NotSupported, match="no nacks without the extension x-nack"):
            await received.nack()
        assert not received.is_settled
        assert await received.ack()


async def test_message_types_are_sent_if_both_sides_support_dotnet(broker: mqcore.Broker, mq: Client) -> None:
    offer = [*DEFAULTS, Extension("dotnet", required=True)]
    async with (
        mqcore.connect(broker.listeners[0], extensions=offer) as typed,
        typed.queue("orders").consume() as messages,
    ):
        await typed.publish_many("orders", ["a", "b"], headers=headers({}, type="Shop.Order, Shop"))
        await typed.publish("orders", b"c", headers=headers({}, type="Shop.Größe"))
        await typed.publish("orders", b"d")
        seen = [await next_of(messages) for _ in range(4)]
        types = [received.headers.get(TYPE) for received in seen]
        assert types == ["Shop.Order, Shop", "Shop.Order, Shop", "Shop.Größe", None]
    with pytest.raises(errors.NotSupported, match="no message types without dotnet"):
        await mq.publish("orders", b"x", headers=headers({}, type="Shop.Order"))


async def test_connect_fails_if_a_required_extension_is_unsupported(broker: mqcore.Broker) -> None:
    with pytest.raises(errors.NoAgreement, match="unsupported x-unheard-of"):
        await mqcore.connect(broker.listeners[0], extensions=[Extension("x-unheard-of", required=True)])
    both = [Extension("ack", required=True), Extension("batch-ack", required=True)]
    with pytest.raises(errors.NoAgreement, match="exclude each other"):
        await mqcore.connect(broker.listeners[0], extensions=both)
    for name in ("microauth", "Json", "x y"):
        with pytest.raises(errors.InvalidArgument, match="invalid extensions"):
            await mqcore.connect(broker.listeners[0], extensions=[Extension(name)])
    many = [Extension(f"x-{number}") for number in range(10_000)]
    with pytest.raises(errors.InvalidArgument, match="invalid extensions"):
        await mqcore.connect(broker.listeners[0], extensions=many)


async def test_filters_that_cannot_be_meant_are_refused(mq: Client) -> None:
    for wrong in ("price", "price>10x", "a~N1", ";".join(["a=N1"] * 33)):
        with pytest.raises(errors.InvalidArgument, match="invalid filter"):
            await mq.queue("topic/t").consume(filter=wrong).__aenter__()
    with pytest.raises(errors.BadRequest, match="filters apply to topics only"):
        await mq.queue("orders").consume(filter="a=N1").__aenter__()
    with pytest.raises(errors.NotFound, match="cannot be a queue"):
        await mq.queue("a*b").consume().__aenter__()
    await mq.publish("orders", b"still here")


LACKING: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "ids": lambda mq: mq.publish("q", b"x", id="mine"),
    "priorities": lambda mq: mq.publish("q", b"x", high_priority=True),
    "copies": lambda mq: mq.publish("q", b"x", cc=["other"]),
    "events of queues": lambda mq: mq.queue("q").consume(events=["e"]).__aenter__(),
    "rebinding": lambda mq: mq.rebind("q", ["e"]),
    "statistics": lambda mq: mq.statistic("len(state.queues)"),
    "sending": lambda mq: mq.send("@name:x", b"x"),
    "direct messages": lambda mq: mq.requests().__aenter__(),
    "pulling": lambda mq: mq.queue("q").pull(),
    "events of the broker": lambda mq: mq.events("ClientConnected").__aenter__(),
    "queues": lambda mq: mq.create_queue("q"),
    "removing": lambda mq: mq.remove_queue("q"),
    "joining": lambda mq: mq.join("c").__aenter__(),
    "foreign extensions": lambda mq: mq.extension("x-note").send(b"x"),
    "official extensions": lambda mq: mq.extension("pub-sub").send(b"x"),
}


@pytest.mark.parametrize("what", LACKING)
async def test_unsupported_micromessage_operation_raises_at_once(mq: Client, what: str) -> None:
    with pytest.raises(errors.NotSupported, match=r"MicroMessage2 has no "):
        await asyncio.wait_for(LACKING[what](mq), 5)
    assert mq.state.status == "connected"


# --- who it is -----------------------------------------------------------------------------------------------------


async def test_a_token_or_a_password_lets_the_client_in() -> None:
    user = UserOptions(name="alice", allow=("*",), password_hash=hash_password("correct horse"))
    with mqcore.Broker(listen="mm2://127.0.0.1:0", user=[user], authority=AuthorityOptions(audit="off")) as broker:
        url = broker.listeners[0]
        async with mqcore.connect(url, user="alice", password="correct horse") as mq:
            async with mq.queue("orders").consume():
                await mq.publish("orders", b"x")
            assert mq.agreed["x-mqcore"] == {}, "nobody is shown the token"
        with pytest.raises(errors.AuthFailed, match="auth"):
            await mqcore.connect(url, user="alice", password="incorrect horse")
        with pytest.raises(errors.AuthFailed):
            await mqcore.connect(url)


async def test_it_goes_through_tls(tmp_path: Any) -> None:
    authority = Authority(tmp_path)
    listener = mqcore.Listener(url="mm2s://localhost:0", tls=mqcore.ListenerTLS(cert=authority.issue()))
    with mqcore.Broker(listen=[], listener=[listener]) as broker:
        port = broker.listeners[0].rpartition(":")[2]
        trusted = mqcore.TLSConfig(ca=authority.ca)
        async with (
            mqcore.connect(f"mm2s://localhost:{port}", tls=trusted) as mq,
            mq.queue("q").consume() as messages,
        ):
            await mq.publish("q", b"x" * 100_000)
            assert len(await next_of(messages)) == 100_000
        with pytest.raises(errors.TLSError, match="mm2s://"):
            await mqcore.connect(f"mm2://localhost:{port}")


# --- losing connections --------------------------------------------------------------------------------------------


async def test_consumer_survives_connection_losses(
    broker: mqcore.Broker, proxy: TcpProxy, mq: Client, shaky: Client
) -> None:
    async with shaky.queue("orders").consume() as messages:
        for number in range(5):
            await mq.publish("orders", str(number))
            received = await next_of(messages)
            assert received.raw == str(number).encode()
            assert await received.ack()
            # On its way is not there yet: what is cut off is delivered again.
            await until(lambda: acks(broker, "orders/0") == number + 1)  # noqa: B023 (awaited here)
            await proxy.cut()
            await reaches(shaky, number + 2)
    assert shaky.counters.connects == 6


async def test_unacknowledged_message_is_redelivered_and_the_old_delivery_cannot_be_acknowledged(
    proxy: TcpProxy, mq: Client, shaky: Client
) -> None:
    async with shaky.queue("orders").consume() as messages:
        await mq.publish("orders", b"x")
        first = await next_of(messages)
        await proxy.cut()
        again = await next_of(messages)
        assert (first.raw, again.raw) == (b"x", b"x")
        assert not await first.ack()
        assert await again.ack()
        assert shaky.counters.stale_settlements == 1


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


async def test_a_dead_network_is_noticed_where_the_broker_answers_commands(proxy: TcpProxy, patient: Client) -> None:
    proxy.stall()
    assert "no heartbeat" in await loss(patient)
    proxy.flow()
    await reaches(patient, 2)


@pytest.mark.parametrize("offer", [DEFAULTS, (BATCH,)])
async def test_a_quiet_connection_lives_on(broker: mqcore.Broker, offer: tuple[Extension, ...]) -> None:
    """It is pinged three times a second here where that is possible, and answered."""
    async with mqcore.connect(broker.listeners[0], extensions=offer, ping_interval="300ms", pong_timeout="1s") as mq:
        assert [state.status async for state in mq.states(idle_timeout="2s")] == ["connected"]
        assert mq.counters.connects == 1


# --- bad brokers ---------------------------------------------------------------------------------------------------


class Server:
    """The accepting side of the handshake, played by a test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def handshake(self) -> Handshake:
        """Read a message of the handshake."""
        major, minor, _, length = await self.reader.readexactly(4)
        identity = await self.reader.readexactly(length)
        required, optional = [(await self._sized()).decode() for _ in range(2)]
        return Handshake(required, optional, identity, major, minor)

    async def _sized(self) -> bytes:
        (length,) = struct.unpack(">H", await self.reader.readexactly(2))
        return await self.reader.readexactly(length)

    async def agree(self, required: str = "", optional: str = "batch-ack:max-count=10;pub-sub;x-nack") -> Handshake:
        """Shake hands, and return what holds."""
        await self.handshake()
        self.say(Handshake(required, optional, b"bad").encode())
        return await self.handshake()

    def say(self, *data: bytes) -> None:
        """Write bytes."""
        self.writer.write(b"".join(data))

    async def silence(self) -> None:
        """Read until the client leaves."""
        while await self.reader.read(1 << 16):
            pass


def played(*steps: Callable[[Server], Awaitable[Any]]) -> Any:
    """A broker that does this, and is silent then."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = Server(reader, writer)
        for step in steps:
            await step(server)
        await writer.drain()
        await server.silence()

    return play


def says(*data: bytes) -> Callable[[Server], Awaitable[None]]:
    async def step(server: Server) -> None:
        server.say(*data)

    return step


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", errors.VersionMismatch, "does not speak MicroMessage2"),
        (b"\x00\xff\x00\xff", errors.VersionMismatch, "does not speak MicroMessage2"),
        (b"hello ok\n", errors.VersionMismatch, "does not speak MicroMessage2"),
        (Handshake(major=0).encode(), errors.VersionMismatch, "does not speak MicroMessage2"),
        (b"\x04\x1fversion: 1.0 not spoken, use 2.0", errors.VersionMismatch, "not spoken"),
        (b"\x04\x0dauth: get out", errors.AuthFailed, "auth: get out"),
        (b"\x04\x00", errors.NoAgreement, "no reason"),
        (b"\x0c\x00\x00\x00\x05sorry", errors.NoAgreement, "sorry"),
        (b"\x0c\xff\xff\xff\xff", errors.NoAgreement, "exceeds the limit"),
        (Handshake(required="x-strange").encode(), errors.NoAgreement, "unsupported x-strange"),
        (Handshake(required="ack;batch-ack").encode(), errors.NoAgreement, "exclude each other"),
        (Handshake(required="UPPER").encode(), errors.NoAgreement, "malformed"),
        (Handshake(required="batch-ack:max-count=no").encode(), errors.NoAgreement, "max-count"),
        (Handshake(optional=";".join(f"x{n}" for n in range(300))).encode(), errors.NoAgreement, "255"),
        (b"\x01\x00\x00\x00\xff\xff", errors.NoAgreement, "exceeds the limit"),
        (b"\x01\x00\x00", errors.VersionMismatch, "does not speak MicroMessage2"),
        (b"", errors.ConnectFailed, "closed"),
    ],
)
async def test_peer_that_is_not_a_broker_or_requires_too_much_is_detected(
    data: bytes, kind: type[Exception], words: str
) -> None:
    async with playing(saying(data, after=8), "mm2") as url:
        with pytest.raises(kind, match=words):
            await asyncio.wait_for(mqcore.connect(url), 10)


@pytest.mark.parametrize("data", [b"", b"\x01\x00", Handshake(optional="x-mqcore").encode()])
async def test_a_peer_that_stops_halfway_is_given_up(data: bytes) -> None:
    """With the last one, everything is agreed on, and the command that makes sure is not answered."""
    async with playing(saying(data, stays=True), "mm2") as url:
        with pytest.raises(errors.ConnectFailed, match="no answer within"):
            await asyncio.wait_for(mqcore.connect(url, connect_timeout="200ms"), 10)


@pytest.mark.parametrize(
    ("reply", "kind", "text"),
    [
        (Handshake(required="x-strange"), errors.NoAgreement, b"extension: unsupported x-strange"),
        (Handshake(major=0, minor=9), errors.VersionMismatch, b"version: 0.9 is not supported"),
    ],
)
async def test_client_sends_the_broker_the_reason_of_a_failed_negotiation(
    reply: Handshake, kind: type[Exception], text: bytes
) -> None:
    heard: list[bytes] = []

    async def listen(server: Server) -> None:
        await server.handshake()
        server.say(reply.encode())
        heard.append(await server.reader.read())

    async with playing(played(listen), "mm2") as url:
        with pytest.raises(kind, match=text.decode().rpartition(" ")[2]):
            await asyncio.wait_for(mqcore.connect(url), 10)
        await until(lambda: bool(heard))
        assert heard == [bytes([4, len(text)]) + text]


async def test_a_broker_may_require_what_the_client_knows_by_name() -> None:
    async with (
        playing(played(lambda server: server.agree("json", "batch-ack:max-count=7")), "mm2") as url,
        mqcore.connect(url) as mq,
    ):
        assert mq.agreed == {"json": {}, "batch-ack": {"max-count": "7"}}


BROKEN = {
    "two types of a frame": b"\x03\x00",
    "a reserved bit": b"\x20",
    "an extension of nobody": extension(9, b"x"),
    "an acknowledgement of one byte": extension(1, b"x"),
    "an acknowledgement of what was not sent": extension(1, b"\x00\x09"),
    "a refusal of what was not sent": extension(3, b"\x00\x09"),
    "a message without a number": message(0, "orders", b"x"),
    "a length that lies": b"\x08\x00\x01\x01q\x00\x00\x80\x00\x00\x00",
    "a command between the parts of a message": message(1, "q", b"x", continued=True) + command("ok;id=s1"),
    "a frame of an extension that has none": extension(2, b""),
    "properties that are none": message(1, "q", b"x", "nonsense"),
    "properties that could end a header": message(1, "q", b"x", "a:b\r\nForged:yes;"),
    "a destination that cannot be": message(1, "a b", b"x"),
    "an error": b"\x04\x09shutdown:",
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_broker_that_stops_making_sense_is_left(what: str) -> None:
    async with (
        playing(played(lambda server: server.agree(), says(BROKEN[what])), "mm2") as url,
        mqcore.connect(url, reconnect_attempts=0) as mq,
    ):
        with pytest.raises((errors.ConnectionLost, errors.Draining)):
            await asyncio.wait_for(mq.publish("orders", b"x"), 10)
        await until(lambda: mq.state.status == "closed")


async def test_a_broker_that_sends_more_than_was_agreed_on_is_left() -> None:
    messages = (message(number, "orders", b"x") for number in range(1, 12))
    async with (
        playing(played(lambda server: server.agree(optional="batch-ack:max-count=10"), says(*messages)), "mm2") as url,
        mqcore.connect(url, reconnect_attempts=0) as mq,
    ):
        await until(lambda: mq.state.status == "closed")
        assert "message 11 exceeds the window of 10 unacknowledged messages" in (mq.state.cause or "")


async def test_the_text_of_an_error_is_the_cause_of_the_loss() -> None:
    text = b"limit: no more of this"
    error = bytes([4, len(text)]) + text
    async with (
        playing(played(lambda server: server.agree(), says(error)), "mm2") as url,
        mqcore.connect(url, reconnect_attempts=0) as mq,
    ):
        await until(lambda: mq.state.status == "closed")
        assert mq.state.cause == "the broker ended the conversation: limit: no more of this"


async def test_an_acknowledgement_that_never_comes_is_waited_for_as_long_as_was_said() -> None:
    async with (
        playing(played(lambda server: server.agree(optional="batch-ack:max-count=2")), "mm2") as url,
        mqcore.connect(url) as mq,
    ):
        for _ in range(2):
            with pytest.raises(errors.ConfirmTimeout):
                await asyncio.wait_for(mq.publish("orders", b"x", timeout="100ms"), 10)
        with pytest.raises(errors.ConnectionLost, match="the limit of unwritten or unanswered requests") as caught:
            await asyncio.wait_for(mq.publish("orders", b"x", timeout="100ms"), 10)
        assert not caught.value.sent
        await mq.close(drain=0)


async def test_an_acknowledgement_covers_everything_before_it_and_a_refusal_one_message() -> None:
    async def settle(server: Server) -> None:
        await server.agree()
        seen = 0
        while seen < 4:
            await server.reader.readexactly(len(message(1, "orders", b"x")))
            seen += 1
        server.say(
            extension(3, b"\x00\x02"), extension(1, b"\x00\x03"), extension(1, b"\x00\x03"), extension(1, b"\x00\x04")
        )

    async with playing(played(settle), "mm2") as url, mqcore.connect(url) as mq:
        outcomes = await asyncio.wait_for(mq.publish_many("orders", ["x"] * 4, return_exceptions=True), 10)
        kinds = [type(outcome).__name__ for outcome in outcomes]
        assert kinds == ["Receipt", "Nacked", "Receipt", "Receipt"]


async def test_a_message_that_comes_twice_is_seen_once_and_acknowledged_again() -> None:
    acknowledged: list[bytes] = []

    async def repeat(server: Server) -> None:
        await server.agree()
        (length,) = (await server.reader.readexactly(2))[1:]
        await server.reader.readexactly(length)
        server.say(message(1, "orders", b"x"))
        acknowledged.append(await server.reader.readexactly(5))
        server.say(message(1, "orders", b"x"), message(2, "orders", b"y"))
        acknowledged.append(await server.reader.readexactly(5))
        await server.silence()

    async with (
        playing(played(repeat), "mm2") as url,
        mqcore.connect(url) as mq,
        mq.queue("orders").consume() as messages,
    ):
        first = await next_of(messages)
        await first.ack()
        second = await next_of(messages)
        assert (first.raw, second.raw) == (b"x", b"y")
        await until(lambda: len(acknowledged) == 2)
        assert acknowledged == [extension(1, b"\x00\x01")] * 2


# --- extensions of vendors -----------------------------------------------------------------------------------------

NOTE = Extension("x-note", required=True, properties={"v": "Hello world!"})


async def shout(server: Server) -> None:
    """Say back in capitals what comes in frames of the first extension, and one thing unasked."""
    holds = await server.agree(optional="")
    assert holds.required == "x-note:v=Hello%20world%21"
    server.say(extension(1, b"unasked"))
    while True:
        flags, number, length = await server.reader.readexactly(3)
        assert (flags, number) == (2, 1)
        server.say(extension(1, (await server.reader.readexactly(length)).upper()))


async def test_frames_of_a_vendors_extension_are_sent_and_taken() -> None:
    async with playing(played(shout), "mm2") as url, mqcore.connect(url, extensions=[NOTE]) as mq:
        assert mq.agreed == {"x-note": {"v": "Hello world!"}}
        async with mq.extension("x-note") as frames:
            for text in (b"one", b"", b"three"):
                await frames.send(text)
            seen = [await next_of(frames) for _ in range(3)]
            if b"unasked" in seen:
                seen = [*seen[1:], await next_of(frames)]
            assert seen == [b"ONE", b"", b"THREE"]
        await mq.close(drain=0)


async def test_loop_opens_the_frames_of_a_vendors_extension() -> None:
    async def first() -> bytes | None:
        async for frame in mq.extension("x-note"):
            return frame
        return None

    async with playing(played(shout), "mm2") as url, mqcore.connect(url, extensions=[NOTE]) as mq:
        reading = asyncio.ensure_future(first())
        while not reading.done():
            await mq.extension("x-note").send(b"one")
            await asyncio.sleep(0.001)
        assert await reading in {b"ONE", b"unasked"}
        await mq.close(drain=0)


async def test_a_handler_answers_the_frames_of_a_vendors_extension() -> None:
    heard: list[bytes] = []

    async def ask(server: Server) -> None:
        await server.agree(optional="")
        # The client listens once it has sent this line.
        await server.reader.readexactly(len(extension(1, b"ready")))
        for question in (b"a", b"quiet", b"b"):
            server.say(extension(1, question))
        while len(heard) < 2:
            heard.append(await server.reader.readexactly(len(extension(1, b"aa"))))

    def double(payload: bytes) -> bytes | None:
        return None if payload == b"quiet" else payload * 2

    async def double_later(payload: bytes) -> bytes | None:
        await asyncio.sleep(0)
        return double(payload)

    for handler in (double, double_later):
        heard.clear()
        async with playing(played(ask), "mm2") as url, mqcore.connect(url, extensions=[NOTE]) as mq:
            frames = mq.extension("x-note")
            serving = asyncio.ensure_future(frames.serve(handler))
            await asyncio.sleep(0)
            await frames.send(b"ready")
            await until(lambda: len(heard) == 2)
            assert heard == [extension(1, b"aa"), extension(1, b"bb")]
            serving.cancel()
            await mq.close(drain=0)


def test_the_blocking_face_takes_frames_of_vendors_too() -> None:
    async def run() -> list[bytes]:
        async with playing(played(shout), "mm2") as url:
            return await asyncio.to_thread(talk, url)

    def talk(url: str) -> list[bytes]:
        with mqcore.sync.connect(url, extensions=[NOTE]) as mq, mq.extension("x-note", idle_timeout=5) as frames:
            frames.send(b"loud")
            seen: list[bytes] = []
            for frame in frames:
                seen.append(frame)
                if frame == b"LOUD":
                    break
            mq.close(drain=0)
            return seen

    assert asyncio.run(run())[-1] == b"LOUD"


def test_loop_of_the_blocking_client_opens_the_frames_of_a_vendors_extension() -> None:
    async def run() -> list[bytes]:
        async with playing(played(shout), "mm2") as url:
            return await asyncio.to_thread(talk, url)

    def talk(url: str) -> list[bytes]:
        seen: list[bytes] = []

        def read() -> None:
            for frame in mq.extension("x-note"):
                seen.append(frame)
                return

        with mqcore.sync.connect(url, extensions=[NOTE]) as mq:
            loop = threading.Thread(target=read, daemon=True)
            loop.start()
            while loop.is_alive():
                mq.extension("x-note").send(b"loud")
                loop.join(0.001)
            mq.close(drain=0)
        return seen

    assert asyncio.run(run())[0] in {b"LOUD", b"unasked"}


async def test_unknown_commands_of_the_broker_are_ignored() -> None:
    data = command("dance;id=now") + command("ok;id=nobody") + command("fail;id=nobody,reason=x")
    async with (
        playing(played(lambda server: server.agree(), says(data, extension(1, b"\x00\x01"))), "mm2") as url,
        mqcore.connect(url, reconnect_attempts=0) as mq,
    ):
        await until(lambda: mq.state.status == "closed")
        assert "no unacknowledged message has the number 1;" in (mq.state.cause or "")
