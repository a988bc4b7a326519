"""Delay, expiry and priority of single messages, from the clients to the journal."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import mqcore
import programs
from awaited import next_of, until
from mqcore import Broker, QueueOptions, errors
from mqcore.testing import TestBroker
from protocols.conversation import Client as RawClient
from served import serving, wait_until
from tmqp_peer import QUEUE, RESPONSE, RawFrame

PULL = QueueOptions(status="pull")  # type: ignore[arg-type]
SAVED = QueueOptions(status="pull", delivery_handler="at-least-once")  # type: ignore[arg-type]


async def test_a_delayed_message_waits_for_its_time_and_others_pass_it() -> None:
    async with TestBroker() as broker, broker.client() as client:
        await broker.declare("orders/1")
        async with client.queue("orders/1").consume(str) as messages:
            await broker.publish("orders/1", "later", delay="10s")
            await broker.publish("orders/1", "now")
            assert (await next_of(messages)).body == "now"
            await broker.settle()
            stats = broker.stats().queue("orders/1")
            assert (stats.normal, stats.delayed) == (1, 1)
            await broker.clock.advance(9.999)
            assert broker.stats().queue("orders/1").deliveries == 1
            await broker.clock.advance(0.001)
            assert (await next_of(messages)).body == "later"


async def test_an_expired_message_is_counted_with_its_reason() -> None:
    async with TestBroker() as broker, broker.client() as client:
        await broker.declare("orders/1", PULL)
        await broker.publish("orders/1", "short", expires_in="1s")
        await broker.publish("orders/1", "long", expires_in="1m")
        await broker.publish("orders/1", "delayed", delay="10s", expires_in="11s")
        await broker.clock.advance(seconds=11)
        assert broker.stats().queue("orders/1").dropped["expired"] == 2
        assert [message.raw for message in await client.queue("orders/1").pull(9)] == [b"long"]


async def test_higher_priorities_come_first_and_each_keeps_its_order() -> None:
    async with Broker() as broker, broker.client() as client:
        await broker.declare("orders/1", PULL)
        for number, priority in enumerate((None, 3, 200, 3, 255, 0, 200)):
            options: dict[str, Any] = {} if priority is None else {"priority": priority}
            await broker.publish("orders/1", f"{number}", **options)
        await broker.publish("orders/1", "high", high_priority=True)
        await client.publish_many("orders/1", ["many"], priority=4)
        stats = broker.stats().queue("orders/1")
        assert (stats.high_priority, stats.normal) == (4, 5), "two levels for TMQP"
        batch = await client.queue("orders/1").pull(9, str)
        assert [message.body for message in batch] == ["4", "high", "2", "6", "many", "1", "3", "0", "5"]
        assert [message.high_priority for message in batch] == [True] * 4 + [False] * 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": 256}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": 1, "high_priority": True}, "either a priority or high priority"),
        ({"delay": "soon"}, "soon"),
        ({"delay": -1}, "-1"),
        ({"delay": "2s", "expires_in": "1s"}, "expires after 1s, but is delayed for 2s"),
    ],
)
async def test_terms_that_cannot_be_are_rejected(options: dict[str, Any], said: str) -> None:
    async with Broker() as broker:
        await broker.declare("orders/1")
        with pytest.raises((errors.InvalidArgument, errors.ConfigError, errors.BadRequest), match=said):
            await broker.publish("orders/1", b"x", **options)
        assert broker.stats().queue("orders/1").received == 0


def test_the_command_line_publishes_with_terms() -> None:
    with serving() as broker, mqcore.sync.connect(broker.url) as client:
        client.create_queue("orders/1", PULL)
        terms = ("--delay", "1h", "--expires-in", "2h", "--priority", "200")
        for options, code in ((terms, 0), (("--priority", "3"), 0), (("--priority", "256"), 2)):
            command = [sys.executable, "-m", "mqcore", "--url", broker.url, "publish", "orders/1", "x", *options]
            assert programs.run(command, capture_output=True, timeout=30, check=False).returncode == code
        information = client.queue_information("orders/1")
        assert (information.messages, information.priority_messages, information.delayed_messages) == (1, 1, 1)


async def test_a_queue_that_stores_nothing_rejects_a_delay() -> None:
    async with Broker() as broker:
        await broker.declare("news/1", QueueOptions(status="broadcast"))  # type: ignore[arg-type]
        with pytest.raises(errors.Unacceptable, match="cannot delay"):
            await broker.publish("news/1", b"x", delay="1s")


async def test_other_protocols_report_terms_as_not_supported() -> None:
    config = mqcore.BrokerConfig(listen=("mm2://127.0.0.1:0", "mqks://127.0.0.1:0"))
    async with Broker(config) as broker:
        for url in broker.listeners:
            async with mqcore.connect(url) as client:
                for option in ({"delay": "1s"}, {"expires_in": "1s"}, {"priority": 1}):
                    options: dict[str, Any] = dict(option)
                    with pytest.raises(errors.NotSupported, match="delays"):
                        await client.publish("orders", b"x", **options)


async def test_messages_with_generated_ids_keep_the_terms() -> None:
    ids = iter(("first", "second"))
    async with TestBroker() as broker, broker.client(id_generator=lambda: next(ids)) as client:
        await broker.declare("orders/1", PULL)
        await client.publish_many("orders/1", [b"a", b"b"], delay="10s", priority=200)
        stats = broker.stats().queue("orders/1")
        assert (stats.delayed, stats.normal) == (2, 0)


async def test_copies_of_a_message_with_invalid_terms_are_rejected_too() -> None:
    async with TestBroker() as broker, broker.client() as client:
        for queue in ("a/1", "b/1"):
            await broker.declare(queue, PULL)
        with pytest.raises(errors.BadRequest, match="Mqcore-Delay"):
            await client.publish("a/1", b"x", headers={"Mqcore-Delay": "soon"}, cc=["b/1"])
        await client.publish("b/1", b"after")
        assert [broker.stats().queue(queue).received for queue in ("a/1", "b/1")] == [0, 1]


async def test_copies_and_topics_keep_the_terms() -> None:
    async with TestBroker() as broker, broker.client() as client:
        for queue in ("a/1", "b/1", "c/1"):
            await broker.declare(queue, PULL)
        await client.bind("@topic:news", "c/1")
        await client.publish("a/1", b"x", cc=["b/1"], delay="10s", priority=200)
        await client.topic("news").publish(b"x", delay="10s", priority=200)
        for queue in ("a/1", "b/1", "c/1"):
            assert broker.stats().queue(queue).delayed == 1
        await broker.clock.advance(seconds=10)
        for queue in ("a/1", "b/1", "c/1"):
            assert [message.raw for message in await client.queue(queue).pull(9)] == [b"x"]


def test_terms_survive_kill_9_and_a_message_comes_at_its_time(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path))
    with serving(*arguments) as broker:
        with mqcore.sync.connect(broker.url) as client:
            client.create_queue("orders/1", SAVED)
            began = time.time()
            client.publish("orders/1", b"delayed", delay="4s")
            client.publish("orders/1", b"expired", expires_in="1500ms")
            published = time.time()
            client.publish("orders/1", b"low", priority=1)
            client.publish("orders/1", b"top", priority=9)
        broker.process.send_signal(signal.SIGKILL)
        broker.process.wait(10)
        killed = time.time()
    wait_until(lambda: time.time() > published + 1.5, what="the expiry while the broker is down")
    with serving(*arguments) as broker, mqcore.sync.connect(broker.url) as client:
        assert [message.raw for message in client.queue("orders/1").pull(9)] == [b"top", b"low"]
        information = client.queue_information("orders/1")
        if killed < began + 1.5:
            assert information.timeout_messages == 1
        if time.time() < began + 3.5:
            assert information.delayed_messages == 1
            assert information.next_attempt == pytest.approx(began + 4, abs=0.5)
        wait_until(lambda: client.queue_information("orders/1").delayed_messages == 0)
        assert time.time() >= began + 4 - 0.002  # the broker counts milliseconds
        assert [message.raw for message in client.queue("orders/1").pull(9)] == [b"delayed"]


def test_duplicates_are_recognized_after_kill_9_also_of_messages_that_left_the_queue(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path))
    options = QueueOptions(status="pull", delivery_handler="at-least-once", deduplication_window="1h")  # type: ignore[arg-type]
    with serving(*arguments) as broker:
        with mqcore.sync.connect(broker.url) as client:
            client.create_queue("orders/1", options)
            assert client.queue_information("orders/1").deduplication_window == 3600
            for identity in ("left", "waits", "waits"):
                assert client.publish("orders/1", identity, id=identity).by == "server"
            assert [message.raw for message in client.queue("orders/1").pull(1)] == [b"left"]
            # Its confirmation covers everything before it.
            client.publish("orders/1", b"fence", id="fence")
        broker.process.send_signal(signal.SIGKILL)
        broker.process.wait(10)
    with serving(*arguments) as broker, mqcore.sync.connect(broker.url) as client:
        for identity in ("left", "waits", "new"):
            assert client.publish("orders/1", b"again", id=identity).by == "server"
        assert [message.raw for message in client.queue("orders/1").pull(9)] == [b"waits", b"fence", b"again"]
        assert client.queue_information("orders/1").dropped_messages["duplicate"] == 2


async def test_a_raw_peer_learns_of_an_invalid_header(broker: Broker) -> None:
    host, _, port = broker.listeners[0].removeprefix("tmqp://").rpartition(":")
    with RawClient(host, int(port)) as peer:
        peer.hello()
        for header, target in (
            (("Mqcore-Priority", "900"), b"orders"),
            (("mqcore-delay", "soon"), b"orders"),
            (("Mqcore-Expires-In", ""), b"@topic:news"),
        ):
            peer.send(RawFrame(kind=QUEUE, id=b"m", target=target, content_type=1, headers=[header]))
            answer = peer.receive()
            assert (answer.kind, answer.id, answer.content_type) == (RESPONSE, b"m", 400)
        # A header of the program that only looks similar has no effect.
        header = ("Priority", "900")
        peer.send(RawFrame(kind=QUEUE, id=b"n", target=b"orders", content_type=1, headers=[header]))
        await until(lambda: bool(broker.stats().queues) and broker.stats().queue("orders/1").received == 1)
