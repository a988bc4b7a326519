"""Prefetch over MQKS and MicroMessage2: the broker enforces it for each consumer of the Python clients."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

import mqcore
import mqcore.sync
from awaited import next_of, reaches, taken, until
from mm2_peer import MM2Peer, extension
from mqcore._broker_stats import QueueStats
from mqcore.client import Client
from mqcore.testing import TestBroker
from mqks_peer import MqksPeer
from tcp_proxy import TcpProxy
from three_protocols import three_protocols, url_of

QUEUE = "t/1"


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    with three_protocols() as running:
        yield running


@pytest.fixture(params=["mqks", "mm2"])
def url(broker: mqcore.Broker, request: pytest.FixtureRequest) -> str:
    """The listener of one protocol."""
    return url_of(broker, request.param)


@pytest.fixture
async def mq(url: str) -> AsyncIterator[Client]:
    """A client in this protocol."""
    async with mqcore.connect(url) as client:
        yield client


def stats(broker: mqcore.Broker) -> QueueStats:
    return broker.stats().queue(QUEUE)


async def store(broker: mqcore.Broker, url: str, count: int) -> None:
    """Store numbers in the queue, which a consumer of the protocol has created."""
    async with mqcore.connect(url) as client:
        async with client.queue(QUEUE).consume():
            pass
        await client.publish_many(QUEUE, [str(n) for n in range(count)])
    await until(lambda: stats(broker).normal == count)


@pytest.mark.parametrize("prefetch", [1, 3, 100])
async def test_prefetch_limits_in_flight_deliveries(broker: mqcore.Broker, url: str, mq: Client, prefetch: int) -> None:
    await store(broker, url, 300)
    most = 0
    seen = []
    async with mq.queue(QUEUE).consume(prefetch=prefetch) as messages:
        for _ in range(300):
            message = await next_of(messages)
            most = max(most, stats(broker).in_flight)
            seen.append(int(message.raw))
            await message.ack()
        await until(lambda: stats(broker).acks == 300)
    assert most <= prefetch
    assert seen == list(range(300))


async def test_consumers_of_one_client_have_their_own_prefetch(broker: mqcore.Broker, url: str, mq: Client) -> None:
    await store(broker, url, 10)
    async with mq.queue(QUEUE).consume(prefetch=1) as slow, mq.queue(QUEUE).consume(prefetch=2) as fast:
        held = await next_of(slow)
        for _ in range(9):
            message = await next_of(fast)
            assert stats(broker).in_flight <= 3
            await message.ack()
        await until(lambda: stats(broker).acks == 9)
        await held.ack()
        await until(lambda: stats(broker).acks == 10)


async def test_prefetch_of_a_consumer_that_leaves_is_gone(broker: mqcore.Broker, url: str, mq: Client) -> None:
    await store(broker, url, 0)
    async with mq.queue(QUEUE).consume(prefetch=2) as stays:
        async with mq.queue(QUEUE).consume(prefetch=50):
            pass
        await mq.publish_many(QUEUE, [str(n) for n in range(20)])
        for _ in range(20):
            message = await next_of(stays)
            assert stats(broker).in_flight <= 2
            await message.ack()


async def test_slow_consumer_of_another_queue_does_not_hold_a_fast_one(broker: mqcore.Broker, mq: Client) -> None:
    """In MicroMessage2 the acknowledgements of all queues of a connection share one sequence of numbers."""
    async with mq.queue("slow").consume(prefetch=1) as slow, mq.queue(QUEUE).consume(prefetch=1) as fast:
        await mq.publish_many("slow", [b"1", b"2"])
        held = await next_of(slow)
        await mq.publish_many(QUEUE, [str(n) for n in range(30)])
        for number in range(30):
            message = await next_of(fast)
            assert message.raw == str(number).encode()
            await message.ack()
        await until(lambda: stats(broker).acks == 30)
        assert broker.stats().queue("slow/0").in_flight == 1
        await held.ack()
        assert (await next_of(slow)).raw == b"2"


async def test_slow_and_fast_consumer_share_the_work_as_they_are_free(
    broker: mqcore.Broker, url: str, mq: Client
) -> None:
    """The slow one needs three times as long for a message, whatever the speed of the machine."""
    await store(broker, url, 0)
    seen: Counter[bytes] = Counter()
    async with (
        mqcore.connect(url) as first,
        mqcore.connect(url) as second,
        first.queue(QUEUE).consume(prefetch=1) as slow,
        second.queue(QUEUE).consume(prefetch=1) as fast,
    ):
        await mq.publish_many(QUEUE, [str(n) for n in range(120)])
        for _ in range(30):
            held = await next_of(slow)
            for message in [held, *[await taken(fast) for _ in range(3)]]:
                seen[message.raw] += 1
            assert await held.ack()
    assert seen == Counter({str(n).encode(): 1 for n in range(120)})
    await until(lambda: stats(broker).acks == 120)


async def test_rejected_messages_free_their_place(broker: mqcore.Broker, url: str, mq: Client) -> None:
    await store(broker, url, 6)
    async with mq.queue(QUEUE).consume(prefetch=2) as messages:
        for _ in range(6):
            await (await next_of(messages)).nack()
        for _ in range(6):
            await (await next_of(messages)).ack()
    await until(lambda: stats(broker).acks == 6)


async def test_prefetch_holds_after_a_reconnect(broker: mqcore.Broker, url: str) -> None:
    await store(broker, url, 20)
    scheme, _, address = url.partition("://")
    host, _, port = address.rpartition(":")
    async with (
        TcpProxy(host, int(port)) as proxy,
        mqcore.connect(f"{scheme}://127.0.0.1:{proxy.port}") as mq,
        mq.queue(QUEUE).consume(prefetch=3) as messages,
    ):
        await next_of(messages)
        await proxy.cut()
        await reaches(mq, 2)
        seen = set()
        while len(seen) < 20:
            message = await next_of(messages)
            assert stats(broker).in_flight <= 6, "three of the lost connection, until the broker notices the loss"
            if await message.ack():
                seen.add(message.raw)
    await until(lambda: stats(broker).in_flight == 0)


async def test_without_manual_acknowledgements_prefetch_limits_nothing(broker: mqcore.Broker, mq: Client) -> None:
    async with mq.queue(QUEUE).consume(prefetch=1, manual_ack=False) as messages:
        await mq.publish_many(QUEUE, [str(n) for n in range(50)])
        await until(lambda: stats(broker).sent == 50)
        assert [int((await next_of(messages)).raw) for _ in range(50)] == list(range(50))


# --- the wire --------------------------------------------------------------------------------------------------------


async def test_address_and_attempt_of_messages(broker: mqcore.Broker, mq: Client) -> None:
    for name, address in (("orders", "orders/0"), ("c0/0", "c0/0"), ("t/1", "t/1")):
        async with mq.queue(name).consume() as messages:
            await mq.publish(name, b"x")
            message = await next_of(messages)
            assert message.address == address
            assert broker.stats().queue(address).in_flight == 1
            numbers = mq.protocol == "mqks"
            assert message.attempt == (1 if numbers else None)
            await message.nack()
            message = await next_of(messages)
            assert message.attempt == (2 if numbers else None)
            await message.ack()


def test_mqks_prefetch_line_limits_the_consumer_of_its_id(broker: mqcore.Broker) -> None:
    with MqksPeer(url_of(broker, "mqks")) as peer:
        peer.send("p prefetch c1 2")
        assert peer.ask("c1 consume --confirm q e --manual-ack") == b"c1 ok "
        for number in range(4):
            peer.send(f"m{number} publish e {number}")
        assert peer.lines(2) == [b"c1 ok m0 event=e 0", b"c1 ok m1 event=e 1"]
        peer.send("a ack c1 m0")
        assert peer.line() == b"c1 ok m2 event=e 2"
        assert peer.ask("x ping nothing more") == b"x ok nothing more"
        # A larger prefetch applies at once, and so does none.
        assert peer.ask("p prefetch --confirm c1 0") in {b"p ok ", b"c1 ok m3 event=e 3"}
        assert peer.line() in {b"p ok ", b"c1 ok m3 event=e 3"}
        for wrong in ("p prefetch c1", "p prefetch c1 x", "p prefetch c1 -1", "p prefetch c1 4294967296"):
            assert peer.ask(wrong).startswith(b"p error ")


def test_mqks_prefetch_line_is_for_the_next_consumer_of_its_id_only(broker: mqcore.Broker) -> None:
    with MqksPeer(url_of(broker, "mqks")) as peer:
        peer.send("p prefetch other 1")
        assert peer.ask("c1 consume --confirm q e --manual-ack") == b"c1 ok "
        for number in range(3):
            peer.send(f"m{number} publish e {number}")
        assert [line.split()[2] for line in peer.lines(3)] == [b"m0", b"m1", b"m2"]


def publish(broker: mqcore.Broker, queue: str, count: int) -> None:
    """Publish numbers over another connection."""
    with mqcore.sync.connect(url_of(broker, "mm2")) as client:
        client.publish_many(queue, [str(number) for number in range(count)])


def test_mm2_prefetch_argument_limits_a_subscription(broker: mqcore.Broker) -> None:
    with MM2Peer(url_of(broker, "mm2")).open("batch-ack:max-count=100;pub-sub;x-mqcore") as peer:
        assert peer.ask("subscribe;destination=q,id=s1,prefetch=2") == "ok"
        publish(broker, "q", 5)
        assert [peer.whole_message().payload for _ in range(2)] == [b"0", b"1"]
        # A frame of x-mqcore acknowledges one message and no earlier one.
        peer.send(extension(peer.id_of("x-mqcore"), struct.pack(">H", 2)))
        assert peer.whole_message().payload == b"2"
        assert broker.stats().queue("q/0").in_flight == 2
        peer.ack(3)
        assert [peer.whole_message().payload for _ in range(2)] == [b"3", b"4"]
        assert broker.stats().queue("q/0").acks == 3
        for wrong in ("subscribe;destination=r,id=s2,prefetch=0", "prefetch;id=s1", "prefetch;id=s1,count=x"):
            assert peer.ask(wrong).startswith("fail: malformed")
        assert "no such subscription" in peer.ask("prefetch;id=s7,count=3")


def test_mm2_prefetch_of_a_subscription_can_change(broker: mqcore.Broker) -> None:
    with MM2Peer(url_of(broker, "mm2")).open("batch-ack:max-count=100;pub-sub;x-mqcore") as peer:
        assert peer.ask("subscribe;destination=q,id=s1,prefetch=1") == "ok"
        publish(broker, "q", 3)
        assert peer.whole_message().payload == b"0"
        assert peer.ask("prefetch;id=s1,count=2") == "ok"
        assert peer.whole_message().payload == b"1"
        assert broker.stats().queue("q/0").in_flight == 2


def test_mm2_peers_without_the_extension_have_no_prefetch(broker: mqcore.Broker) -> None:
    with MM2Peer(url_of(broker, "mm2")).open("batch-ack:max-count=3;pub-sub") as peer:
        peer.command("subscribe;destination=q,id=s1,prefetch=2")
        assert "subscribe has no argument prefetch" in peer.error()


@pytest.mark.parametrize("scheme", ["mqks", "mm2"])
async def test_time_in_the_prefetch_does_not_count_for_the_deadline(scheme: str) -> None:
    listen = [f"{scheme}://127.0.0.1:0" for scheme in ("tmqp", "mqks", "mm2")]
    options = mqcore.QueueOptions(status="roundrobin", request_acknowledge=True, acknowledge_timeout=5.0)
    with TestBroker(listen=listen) as broker:
        async with mqcore.connect(broker.listeners[0]) as maker, mqcore.connect(url_of(broker, scheme)) as mq:
            await maker.declare("t", 1, options)
            await maker.publish_many(QUEUE, [str(n) for n in range(8)])
            seen = []
            async with mq.queue(QUEUE).consume(prefetch=8) as messages:
                for number in range(8):
                    message = await next_of(messages)
                    seen.append(int(message.raw))
                    await broker.clock.advance(seconds=4)
                    await message.ack()
                    await until(lambda number=number: stats(broker).acks == number + 1)
            assert seen == list(range(8))
            assert stats(broker).negative_acks == 0
