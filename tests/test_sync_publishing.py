"""Publishing with the blocking client, without a wait for each message: order, back-pressure and lost connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import mqcore
import mqcore.sync
from mqcore import errors
from mqcore.sync import Client
from served import ServedBroker, wait_until
from tcp_proxy import TcpProxy

PULL = mqcore.QueueOptions(status="pull")
BLOCK = bytes(64 * 1024)
FULL_BYTES_MAX = 64 * 1024 * 1024
"""More than the buffers of the sockets between a client and a peer that does not read."""


def pulled(client: Client, queue: str, count: int) -> list[str]:
    """Pull messages from a queue until there are so many."""
    found: list[str] = []
    while len(found) < count:
        batch = client.queue(queue).pull(20_000, str)
        assert batch, f"only {len(found)} of {count} messages"
        found += [message.body for message in batch]
    return found


@pytest.fixture
def client(broker: mqcore.Broker) -> Iterator[Client]:
    """A blocking client of the embedded broker, over TCP."""
    with mqcore.sync.connect(broker.listeners[0]) as connected:
        yield connected


def test_unconfirmed_messages_keep_their_order_and_close_writes_them_all(served: ServedBroker) -> None:
    url = served.url
    with mqcore.sync.connect(url) as consumer:
        consumer.declare("orders", 1, PULL)
        with mqcore.sync.connect(url) as producer:
            for number in range(100_000):
                producer.publish("orders/1", str(number), confirm=False)
        assert pulled(consumer, "orders/1", 100_000) == [str(number) for number in range(100_000)]


def test_confirmed_and_unconfirmed_messages_keep_their_order(client: Client) -> None:
    client.declare("orders", 1, PULL)
    senders = [client.publish("orders/1", str(number), confirm=number % 7 == 0).by for number in range(2000)]
    assert senders == [None if number % 7 else "server" for number in range(2000)]
    assert pulled(client, "orders/1", 2000) == [str(number) for number in range(2000)]


def test_threads_share_a_client(client: Client) -> None:
    client.declare("orders", 1, PULL)

    def publish(thread: int) -> None:
        for number in range(500):
            client.publish("orders/1", f"{thread} {number}", confirm=number % 10 == 0)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    client.publish("orders/1", "end")
    *bodies, end = pulled(client, "orders/1", 2001)
    assert end == "end"
    for name in range(4):
        of_thread = [body for body in bodies if body.startswith(f"{name} ")]
        assert of_thread == [f"{name} {number}" for number in range(500)]


async def test_a_broker_that_does_not_read_blocks_unconfirmed_publishes(broker: mqcore.Broker, proxy: TcpProxy) -> None:
    url = f"tmqp://127.0.0.1:{proxy.port}"

    published = 0

    def fill() -> None:
        nonlocal published
        while published * len(BLOCK) < FULL_BYTES_MAX:
            client.publish("orders/1", BLOCK, confirm=False, timeout="500ms")
            published += 1

    client = await asyncio.to_thread(mqcore.sync.connect, url, ping_interval="1h", write_buffer_bytes=256 * 1024)
    await asyncio.to_thread(client.declare, "orders", 1, PULL)
    proxy.stall()
    with pytest.raises(errors.ConnectionLost, match="reads too slowly") as caught:
        await asyncio.to_thread(fill)
    assert not caught.value.sent
    waiting = asyncio.ensure_future(asyncio.to_thread(client.publish, "orders/1", b"last", confirm=False))
    proxy.flow()
    assert (await waiting).by is None
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(wait_until, lambda: broker.stats().queue("orders/1").received == published + 1)


async def test_a_lost_connection_fails_an_unanswered_publish(proxy: TcpProxy) -> None:
    url = f"tmqp://127.0.0.1:{proxy.port}"
    client = await asyncio.to_thread(mqcore.sync.connect, url, backoff_first="10ms", ping_interval="1h")
    await asyncio.to_thread(client.declare, "orders", 1, PULL)
    proxy.stall()
    publishing = asyncio.ensure_future(asyncio.to_thread(client.publish, "orders/1", b"lost"))
    await proxy.holds(b"lost")
    await proxy.cut()
    proxy.flow()
    with pytest.raises(errors.ConnectionLost) as caught:
        await publishing
    assert caught.value.sent
    assert (await asyncio.to_thread(client.publish, "orders/1", b"x")).by == "server"
    await asyncio.to_thread(client.close)
