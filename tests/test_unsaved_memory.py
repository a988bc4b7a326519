"""Limits of the memory of messages that are not on the disk, and what gives the memory back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import mqcore
from awaited import until
from conformance.adapters import PARTIES, Eventmq, MicroMessage, Mqks, Party, Place
from metrics import metric
from mqcore import QueueOptions, QueueStatus, errors
from mqcore._core import AuthorityStore
from mqcore.client import Delivered
from mqcore.testing import TestBroker
from mqks_peer import ERROR
from protocols.conversation import ADD_BINDING, Client
from served import serving, wait_until
from slow_sync import slow_sync
from tmqp_peer import ACCEPTED, ACKNOWLEDGE, TmqpPeer

BYTES, LIMIT, REJECTED = (
    "mqcore_unsaved_memory_bytes",
    "mqcore_unsaved_memory_limit_bytes",
    "mqcore_unsaved_memory_rejected_total",
)
LIMIT_BYTES = 2 << 20
BODY = bytes(65_000)
ROOM = LIMIT_BYTES // len(BODY)
"""Messages of this size for which there is room, or one more than that."""
ENOUGH = ROOM + 10
MEMORY = QueueOptions(status=QueueStatus.PULL, delivery_handler="memory")
SAVING = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")


async def fill(publish: Callable[[], Awaitable[object]], reason: str = "not saved") -> int:
    """Publish until the broker rejects a message for this reason; return how many it accepted."""
    for accepted in range(4 * ENOUGH):
        try:
            await publish()
        except errors.LimitExceeded as error:
            if not re.search(reason, str(error)):
                raise
            return accepted
    pytest.fail("the broker rejected nothing")


def address(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rpartition(":")
    return host, int(port)


def rejections_told(party: Party, broker: mqcore.Broker) -> bool:
    """Whether the producer, or the operator in protocols that tell the producer nothing, learned of a rejection."""
    if isinstance(party, Mqks):
        # It answers publishes that ask for a confirmation only.
        party.peer.send_bytes(b"confirmed publish --confirm orders " + b"x" * len(BODY) + b"\n")
        return ERROR.match(party.peer.line()) is not None
    if isinstance(party, MicroMessage):
        number = party.peer.id_of("x-nack")
        return any((frame.kind, frame.id) == ("extension", number) for frame in party.peer.until_now())
    if isinstance(party, Eventmq):
        return any("not saved" in error.why for error in broker.errors())
    return True


@pytest.mark.parametrize("protocol", PARTIES)
def test_a_paused_queue_in_memory_takes_no_more_than_the_limit_in_every_protocol(protocol: str) -> None:
    listeners = sorted({PARTIES[name].listener for name in ("tmqp", protocol)})
    with mqcore.Broker(
        listen=listeners, admin="http://127.0.0.1:0", shards=1, unsaved_memory_max=LIMIT_BYTES
    ) as broker:
        assert metric(broker, LIMIT) == LIMIT_BYTES
        urls = [url for url in broker.listeners if url.startswith(f"{protocol}:")]
        (tmqp,) = (url for url in broker.listeners if url.startswith("tmqp:"))
        place = Place("orders", is_queue=protocol in {"tmqp", "mm2", "emqp"})
        with Client(*address(tmqp)) as maker:
            maker.hello()
            maker.create_queue("orders", 0, Status=5)
            maker.do(ADD_BINDING, "@topic:orders", body=json.dumps({"Target": "orders/0"}).encode())
        with contextlib.closing(PARTIES[protocol](*urls)) as producer:
            for _ in range(ENOUGH):
                producer.publish(place, b"x" * len(BODY))
            wait_until(lambda: metric(broker, REJECTED) >= ENOUGH - ROOM, what="the rejections")
            assert LIMIT_BYTES - 2 * len(BODY) < metric(broker, BYTES) <= LIMIT_BYTES
            wait_until(lambda: rejections_told(producer, broker), what="an answer")


async def test_at_the_limit_saving_queues_and_consumers_continue_until_there_is_room(tmp_path: Path) -> None:
    settings = mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0",),
        admin="http://127.0.0.1:0",
        data_dir=str(tmp_path),
        shards=1,
        unsaved_memory_max=LIMIT_BYTES,
    )
    async with mqcore.Broker(settings) as broker, mqcore.connect(broker.listeners[0]) as mq:
        await mq.declare("passing", 1, MEMORY)
        await mq.declare("books", 1, SAVING)
        limit = rf"not saved \(limit: {LIMIT_BYTES} bytes\)"
        accepted = await fill(lambda: mq.publish("passing/1", BODY, confirm=True), limit)
        assert accepted >= ROOM - 1
        with pytest.raises(errors.LimitExceeded):
            await mq.publish("passing/1", BODY, confirm=True, delay=60)
        for _ in range(ENOUGH):
            await mq.publish("books/1", BODY, confirm=True)
        assert len(await mq.queue("passing/1").pull(accepted)) == accepted
        await until(lambda: metric(broker, BYTES) == 0, "the end of all messages in memory")
        await mq.publish("passing/1", BODY, confirm=True)


async def test_delayed_messages_count() -> None:
    settings = mqcore.BrokerConfig(listen=("tmqp://127.0.0.1:0",), shards=1, unsaved_memory_max=LIMIT_BYTES)
    async with mqcore.Broker(settings) as broker, mqcore.connect(broker.listeners[0]) as mq:
        await mq.declare("passing", 1, MEMORY)
        assert await fill(lambda: mq.publish("passing/1", BODY, confirm=True, delay=3600)) >= ROOM - 1


async def test_messages_in_flight_at_a_consumer_that_settles_none_count() -> None:
    settings = mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0",), admin="http://127.0.0.1:0", shards=1, unsaved_memory_max=LIMIT_BYTES
    )
    async with mqcore.Broker(settings) as broker, mqcore.connect(broker.listeners[0]) as mq:
        await mq.declare("work", 1, QueueOptions(status=QueueStatus.PUSH, request_acknowledge=True))
        with Client(*address(broker.listeners[0])) as consumer:
            await asyncio.to_thread(consumer.hello)
            await asyncio.to_thread(consumer.join, "work")

            async def publish() -> None:
                await mq.publish("work/1", BODY, confirm=True)
                await asyncio.to_thread(consumer.receive)

            accepted = await fill(publish)
            assert accepted >= ROOM - 1
            held = await asyncio.to_thread(metric, broker, BYTES)
            assert held >= accepted * len(BODY)

        def requeued() -> bool:
            information = broker.stats().queue("work/1")
            return information.normal == accepted and information.in_flight == 0

        await until(requeued, "the return of what the consumer held")
        assert await asyncio.to_thread(metric, broker, BYTES) == held
        await mq.remove_queue("work/1")
        assert await asyncio.to_thread(metric, broker, BYTES) == 0


OPTIONS: dict[str, QueueOptions] = {
    "acknowledge": QueueOptions(status=QueueStatus.PUSH, request_acknowledge=True),
    "reject": QueueOptions(status=QueueStatus.PUSH, request_acknowledge=True, dead_letter="drop", put_back_limit=1),
    "dead letter": QueueOptions(
        status=QueueStatus.PUSH, request_acknowledge=True, dead_letter="dead/1", put_back_limit=0
    ),
    "deliver": QueueOptions(status=QueueStatus.PUSH),
    "pull": MEMORY,
    "expire": QueueOptions(status=QueueStatus.PULL, message_timeout=60),
    "clear": MEMORY,
    "clear delayed": MEMORY,
    "replace": QueueOptions(status=QueueStatus.CACHE),
    "no consumer": QueueOptions(status=QueueStatus.BROADCAST),
    "stop": MEMORY,
    "remove queue": MEMORY,
    "remove channel": MEMORY,
}


async def consume(mq: mqcore.Client, count: int, settle: Callable[[Delivered[bytes]], Awaitable[object]]) -> None:
    async with mq.queue("work/1").consume() as messages:
        for _ in range(count):
            await settle(await asyncio.wait_for(anext(aiter(messages)), 10))


@pytest.mark.parametrize("way", OPTIONS)
async def test_memory_is_given_back_to_the_byte(way: str) -> None:
    """However a message leaves its queue, nothing stays counted and nothing is given back twice."""
    async with (
        TestBroker(listen=["tmqp://127.0.0.1:0"], admin="http://127.0.0.1:0", shards=2) as broker,
        mqcore.connect(broker.listeners[0]) as mq,
    ):

        async def held() -> int:
            return await asyncio.to_thread(metric, broker, BYTES)

        await mq.declare("kept", 1, MEMORY)
        await mq.declare("dead", 1, MEMORY)
        await mq.declare("work", 1, OPTIONS[way])
        await mq.publish("kept/1", b"another message", confirm=True)
        kept = await held()
        assert kept > len(b"another message")
        for number in range(5):
            delay = 3600 if way == "clear delayed" else None
            await mq.publish("work/1", bytes(10_000 + number), confirm=True, delay=delay)
        await broker.settle()
        match way:
            case "replace":
                assert kept + 10_000 < await held() < kept + 20_000
                await mq.clear_queue("work/1")
            case "no consumer":
                pass
            case _:
                assert await held() > kept + 50_000
        match way:
            case "acknowledge" | "deliver":
                await consume(mq, 5, lambda message: message.ack())
            case "reject":
                await consume(mq, 10, lambda message: message.nack("no"))
            case "dead letter":
                await consume(mq, 5, lambda message: message.nack("no"))
                await until(lambda: broker.stats().queue("dead/1").normal == 5, "the dead letters")
                assert await held() > kept + 50_000
                await mq.clear_queue("dead/1")
            case "pull":
                assert len(await mq.queue("work/1").pull(5)) == 5
            case "expire":
                await broker.clock.advance(minutes=2)
            case "clear" | "clear delayed":
                await mq.clear_queue("work/1")
            case "stop":
                await mq.update_queue("work/1", QueueOptions(status=QueueStatus.STOPPED))
            case "remove queue":
                await mq.remove_queue("work/1")
            case "remove channel":
                await mq.remove_channel("work")
        await until(lambda: metric(broker, BYTES) == kept, "the memory of the messages that left")
        await mq.clear_queue("kept/1")
        assert await held() == 0


async def test_a_user_at_its_limit_does_not_stop_the_others(tmp_path: Path) -> None:
    store = AuthorityStore.of_data_dir(tmp_path)
    _, greedy = store.add_token(json.dumps({"name": "greedy", "allow": ["*"]}))
    _, modest = store.add_token(json.dumps({"name": "modest", "allow": ["*"]}))
    settings = mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0",),
        admin="http://127.0.0.1:0",
        data_dir=str(tmp_path),
        shards=2,
        unsaved_memory_per_user_max=LIMIT_BYTES,
    )
    async with mqcore.Broker(settings) as broker:
        url = broker.listeners[0]
        async with (
            mqcore.connect(url, token=greedy) as first,
            mqcore.connect(url, token=greedy) as second,
            mqcore.connect(url, token=modest) as other,
        ):
            for name in ("a", "b"):
                await first.declare(name, 1, MEMORY)
            places = itertools.cycle(itertools.product((first, second), ("a/1", "b/1")))

            async def publish() -> None:
                client, queue = next(places)
                await client.publish(queue, BODY, confirm=True)

            accepted = await fill(publish, rf"each user: {LIMIT_BYTES} bytes")
            # Each shard may be ahead of the others by a 256th of the limit.
            assert ROOM - 2 <= accepted <= ROOM + 1
            for _ in range(5):
                await other.publish("a/1", BODY, confirm=True)
            await first.clear_queue("b/1")
            await second.publish("a/1", BODY, confirm=True)


def test_messages_that_wait_for_a_disk_that_does_not_answer_are_limited(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    environment = slow_sync(tmp_path, gate=gate) | {"MQCORE_SHARDS": "1"}
    arguments = ("--data-dir", str(tmp_path / "data"), "--admin", "http://127.0.0.1:0")
    with serving(*arguments, "--unsaved-memory-max", str(LIMIT_BYTES), environment=environment) as broker:
        with mqcore.sync.connect(broker.url) as mq:
            mq.declare("books", 1, SAVING)
            mq.declare("passing", 1, MEMORY)
        gate.touch()
        with TmqpPeer(*broker.address) as peer:
            assert peer.hello().content_type == ACCEPTED
            sent = [peer.publish("books", 1, BODY, confirm=True) for _ in range(ENOUGH)]
            wait_until(lambda: metric(broker, REJECTED) > 0, what="the rejections")
            wait_until(lambda: any("unsaved_memory_max" in line for line in broker.stderr_lines), what="the warning")
            gate.unlink()
            answers = set()
            while len(answers) < len(sent):
                frame = peer.receive()
                if frame.kind == ACKNOWLEDGE:
                    answers.add(frame.id)
            assert answers == set(sent)
            rejected = metric(broker, REJECTED)
            assert ENOUGH - ROOM - 2 <= rejected <= ENOUGH - ROOM + 2
            wait_until(lambda: metric(broker, BYTES) == 0, what="an empty disk queue")
        with mqcore.sync.connect(broker.url) as mq:
            mq.publish("books/1", BODY, confirm=True)
            assert mq.queue_information("books/1").messages == ENOUGH - rejected + 1


async def test_saved_messages_without_durability_count_until_they_are_written(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    environment = slow_sync(tmp_path, gate=gate) | {"MQCORE_SHARDS": "1"}
    arguments = ("--data-dir", str(tmp_path / "data"), "--admin", "http://127.0.0.1:0")
    arguments += ("--unsaved-memory-max", str(LIMIT_BYTES))
    unsynced = QueueOptions(
        status=QueueStatus.PULL, delivery_handler="at-least-once", durability=mqcore.config.Durability.NONE
    )
    with serving(*arguments, environment=environment) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("books", 1, SAVING)
            await mq.declare("notes", 1, unsynced)
            # The journal writes nothing while it waits for this sync.
            gate.touch()
            await mq.publish("books/1", b"synced", confirm=False)
            limit = r"wait for the disk \(limit: \d+ bytes\)"
            assert await fill(lambda: mq.publish("notes/1", BODY, confirm=True), limit) >= ROOM - 1
            gate.unlink()
            await until(lambda: metric(broker, BYTES) == 0, "the records on the disk")
            await mq.publish("notes/1", BODY, confirm=True)


@pytest.mark.parametrize("name", ["unsaved_memory_max", "unsaved_memory_per_user_max"])
def test_the_limits_are_set_by_the_environment_and_the_file(name: str, tmp_path: Path) -> None:
    assert getattr(mqcore.BrokerConfig.load(environ={f"MQCORE_{name.upper()}": "4096"}), name) == 4096
    file = tmp_path / "mqcore.toml"
    file.write_text(f"{name} = 8192\n")
    assert getattr(mqcore.BrokerConfig.load(file, environ={}), name) == 8192


def test_the_default_is_a_third_of_the_memory() -> None:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    found = re.search(r"MemTotal: +(\d+) kB", text)
    assert found is not None
    with mqcore.Broker(admin="http://127.0.0.1:0") as broker:
        assert 0 < metric(broker, LIMIT) <= int(found[1]) * 1024 // 3
