"""Failures of consumers, brokers and disks for each queue status, as the tables of docs/delivery.md state them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import mqcore
from awaited import LIMIT, next_of, until
from mqcore import QueueOptions, errors
from mqcore.client import Client
from served import ServedBroker, serving
from tcp_proxy import TcpProxy

DELIVERING = ["broadcast", "push", "roundrobin", "pull"]
KEEPING = ["push", "roundrobin", "pull", "paused"]
ALL = ["broadcast", "push", "roundrobin", "pull", "cache", "paused"]


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    async with mqcore.connect(broker.listeners[0]) as client:
        yield client


@contextlib.asynccontextmanager
async def receiving(client: Client, status: str) -> AsyncIterator[AsyncIterator[mqcore.client.Delivered[bytes]]]:
    """Messages of orders/1 as a consumer receives them, one after the other; in a pull queue it pulls each."""

    async def pulled() -> AsyncIterator[mqcore.client.Delivered[bytes]]:
        while True:
            for message in await client.queue("orders/1").pull(1):
                yield message

    if status == "pull":
        async with client.join("orders"):
            yield pulled()
    else:
        async with client.queue("orders/1").consume(prefetch=1) as messages:
            yield messages


# --- consumers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["nack", "timeout", "loss"])
@pytest.mark.parametrize("status", DELIVERING)
async def test_unsettled_message_is_redelivered_unless_its_queue_broadcasts(
    broker: mqcore.Broker, mq: Client, proxy: TcpProxy, status: str, failure: str
) -> None:
    short = failure == "timeout"
    timeout = "200ms" if short else "60s"
    await mq.declare("orders", 1, QueueOptions(status=status, request_acknowledge=True, acknowledge_timeout=timeout))
    failing = await mqcore.connect(proxy.url, reconnect_attempts=0)
    async with receiving(failing, status) as messages:
        publishing = asyncio.ensure_future(mq.publish("orders/1", b"first"))
        message = await next_of(messages)
        await publishing
        assert message.raw == b"first"
        if failure == "nack":
            await message.nack("broken")
        elif failure == "loss":
            await proxy.cut()
        if status == "broadcast":
            await until(lambda: broker.stats().queue("orders/1").in_flight == 0)
    await failing.close(drain=0)
    async with receiving(mq, status) as messages:
        if status == "broadcast":
            await mq.publish("orders/1", b"second")
        again = await next_of(messages)
        assert again.raw == (b"second" if status == "broadcast" else b"first")
        assert await again.ack()
    await until(lambda: broker.stats().queue("orders/1").in_flight == 0)
    assert broker.stats().queue("orders/1").normal == 0


@pytest.mark.parametrize("status", ALL)
async def test_without_consumers_every_status_but_broadcast_keeps_messages(
    broker: mqcore.Broker, mq: Client, status: str
) -> None:
    await mq.declare("orders", 1, QueueOptions(status=status))
    for body in (b"first", b"second"):
        await mq.publish("orders/1", body, confirm=False)
    kept = {"broadcast": 0, "cache": 1}.get(status, 2)
    await until(lambda: broker.stats().queue("orders/1").received == 2)
    stats = broker.stats().queue("orders/1")
    assert (stats.normal, stats.dropped.get("no-consumer", 0)) == (kept, 2 if status == "broadcast" else 0)


async def test_stopped_queue_rejects_messages_and_erases_those_that_it_has(broker: mqcore.Broker, mq: Client) -> None:
    await mq.declare("orders", 1, QueueOptions(status="pull"))
    await mq.publish("orders/1", b"lost")
    await mq.update_queue("orders/1", QueueOptions(status="stopped"))
    with pytest.raises(errors.OperationError):
        await mq.publish("orders/1", b"refused")
    stats = broker.stats().queue("orders/1")
    assert (stats.normal, stats.dropped["erased"]) == (0, 1)


async def test_message_of_a_cache_stays_whatever_its_readers_do(mq: Client, proxy: TcpProxy) -> None:
    await mq.declare("rates", 1, QueueOptions(status="cache", request_acknowledge=True))
    await mq.publish("rates/1", b"1.5")
    failing = await mqcore.connect(proxy.url, reconnect_attempts=0)
    cached = await failing.queue("rates/1").get_cached()
    assert cached is not None
    await proxy.cut()
    await failing.close(drain=0)
    cached = await mq.queue("rates/1").get_cached()
    assert cached is not None
    assert cached.raw == b"1.5"


# --- the broker ------------------------------------------------------------------------------------------------------


async def state_of(mq: Client, status: str) -> list[bytes]:
    """The messages of orders/1 after a restart."""
    queue = mq.queue("orders/1")
    if status == "cache":
        cached = await queue.get_cached()
        return [] if cached is None else [cached.raw]
    assert (await queue.information()).status == status
    await mq.update_queue("orders/1", QueueOptions(status="pull"))
    return [message.raw for message in await queue.pull(9)]


async def end(served: ServedBroker, how: str) -> None:
    """End a broker: by force, or with time to finish."""
    if how == "kill -9":
        served.process.kill()
        served.process.wait()
    else:
        assert await asyncio.to_thread(served.terminate) == 0


@pytest.mark.parametrize("how", ["kill -9", "SIGTERM"])
@pytest.mark.parametrize("status", ALL)
async def test_confirmed_messages_of_a_saving_queue_survive_the_end_of_the_broker(
    status: str, how: str, tmp_path: Path
) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"))
    with serving(*arguments) as served:
        async with mqcore.connect(served.url) as mq:
            await mq.declare("orders", 1, QueueOptions(status=status, delivery_handler="at-least-once"))
            await mq.declare("memory", 1, QueueOptions(status="pull"))
            for body in (b"first", b"second"):
                assert (await mq.publish("orders/1", body)).by == "server"
            await mq.publish("memory/1", b"lost")
            await end(served, how)
    with serving(*arguments) as served:
        async with mqcore.connect(served.url) as mq:
            left = await state_of(mq, status)
            if status == "broadcast" and how == "kill -9":
                # A broker that is killed at once may not have written that no client wanted the messages.
                assert left in ([], [b"second"], [b"first", b"second"])
            else:
                assert left == {"broadcast": [], "cache": [b"second"]}.get(status, [b"first", b"second"])
            assert (await mq.queue_information("memory/1")).messages == 0


SELECTIVE = """
import mqcore


class Selective(mqcore.DeliveryHandler):
    def received_from_producer(self, queue, message, producer):
        save = message.body.startswith(b"save")
        return mqcore.Decision(save=save, acknowledge="always")


handlers = {"selective": Selective()}
"""


async def test_unsaved_message_of_a_cache_gives_way_to_the_latest_saved_one_at_kill_9(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SELECTIVE)
    arguments = ("--app", "shop:handlers", "--listen", "tmqp://127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    with serving(*arguments, cwd=tmp_path) as served:
        async with mqcore.connect(served.url) as mq:
            await mq.declare("orders", 1, QueueOptions(status="cache", delivery_handler="selective"))
            for body in (b"save first", b"save second", b"forget third", b"forget fourth"):
                await mq.publish("orders/1", body)
            assert await state_of(mq, "cache") == [b"forget fourth"]
            await end(served, "kill -9")
    with serving(*arguments, cwd=tmp_path) as served:
        async with mqcore.connect(served.url) as mq:
            assert await state_of(mq, "cache") == [b"save second"]
            await mq.clear_queue("orders/1")
            await end(served, "kill -9")
    with serving(*arguments, cwd=tmp_path) as served:
        async with mqcore.connect(served.url) as mq:
            assert await state_of(mq, "cache") == []


@pytest.mark.parametrize("status", ["push", "roundrobin", "pull"])
async def test_messages_in_flight_at_a_kill_are_redelivered_and_settled_ones_are_not(
    status: str, tmp_path: Path
) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"))
    with serving(*arguments) as served:
        mq = await mqcore.connect(served.url, reconnect_attempts=0)
        await mq.declare(
            "orders", 1, QueueOptions(status=status, request_acknowledge=True, delivery_handler="at-least-once")
        )
        for body in (b"first", b"second"):
            await mq.publish("orders/1", body)
        async with receiving(mq, status) as messages:
            first = await next_of(messages)
            assert await first.ack()
            second = await next_of(messages)
            assert (first.raw, second.raw) == (b"first", b"second")
            # Saved with everything before it: the settlement too.
            await mq.declare("orders", 2, QueueOptions(status="pull", delivery_handler="at-least-once"))
            await mq.publish("orders/2", b"x")
            await end(served, "kill -9")
        await mq.close(drain=0)
    with serving(*arguments) as served:
        async with mqcore.connect(served.url) as mq, receiving(mq, status) as messages:
            again = await next_of(messages)
            assert again.raw == b"second"
            await again.ack()


# --- the disk --------------------------------------------------------------------------------------------------------


async def test_broker_starts_on_a_damaged_data_directory_with_all_other_messages(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    arguments = ("--data-dir", str(data_dir))
    with serving(*arguments) as served:
        async with mqcore.connect(served.url) as mq:
            await mq.declare("orders", 1, QueueOptions(status="pull", delivery_handler="at-least-once"))
            for number in range(5):
                await mq.publish("orders/1", b"message %d" % number)
        await end(served, "kill -9")
    (segment,) = (path for path in data_dir.rglob("*.segment") if b"message 2" in path.read_bytes())
    content = bytearray(segment.read_bytes())
    content[content.index(b"message 2")] ^= 0xFF
    segment.write_bytes(content)
    with serving(*arguments) as served:
        async with mqcore.connect(served.url) as mq, asyncio.timeout(LIMIT):
            assert [message.raw for message in await mq.queue("orders/1").pull(9)] == [
                b"message %d" % number for number in (0, 1, 3, 4)
            ]
        await until(lambda: any("checksum mismatch" in line for line in served.stderr_lines), what="a line in the log")


async def test_broker_stays_out_of_a_data_directory_that_another_one_uses(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "data")), pytest.raises(errors.MqcoreError):
        mqcore.Broker(data_dir=str(tmp_path / "data")).start()
