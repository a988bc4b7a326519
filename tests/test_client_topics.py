"""Topics in the Python clients and on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mqcore
import programs
from awaited import next_of, reaches, until
from mqcore import Binding, Broker, BrokerConfig, QueueOptions, errors
from mqcore.client import Client
from served import clean_environment, serving, wait_until
from tcp_proxy import TcpProxy


async def test_every_subscriber_gets_every_message_also_in_one_client() -> None:
    async with Broker() as broker, broker.client() as mq, broker.client() as other:
        news = mq.topic("news")
        async with (
            news.subscribe(str) as first,
            news.subscribe() as second,
            other.topic("news").subscribe(str) as third,
            mq.topic("News").subscribe() as else_where,
        ):
            receipt = await other.topic("news").publish("hello", id="m-1", headers={"Country": "fr"})
            assert receipt.by == "server"
            message = await next_of(first)
            assert (message.body, message.topic, message.address) == ("hello", "news", "@topic:news")
            assert (message.id, message.headers["Country"]) == ("m-1", "fr")
            assert not message.wants_acknowledge
            assert (await next_of(second)).raw == b"hello"
            assert (await next_of(third)).body == "hello"
            assert await mq.topic("News").publish(b"names compare byte by byte")
            assert (await next_of(else_where)).topic == "News"
            receipts = await news.publish_many(["1", "2"])
            assert len(receipts) == 2
            assert [(await next_of(first)).body for _ in range(2)] == ["1", "2"]
        # The other client leaves over a connection of its own.
        await until(lambda: not any(topic.subscribers for topic in broker.stats().topics))
        with pytest.raises(errors.Nacked) as raised:
            await news.publish("no one is there")
        assert raised.value.reason == "no-consumers"
        await news.publish("no one is asked", confirm=False)


async def test_a_pattern_matches_within_one_part_of_a_name() -> None:
    async with Broker() as broker, broker.client() as mq:
        async with (
            mq.topic("orders.*").subscribe(str) as some,
            mq.topic("orders.eu").subscribe(str) as one,
        ):
            for name in ("orders.us", "orders.eu", "orders.eu"):
                await mq.topic(name).publish(name)
            assert [(await next_of(some)).topic for _ in range(3)] == ["orders.us", "orders.eu", "orders.eu"]
            assert [(await next_of(one)).body for _ in range(2)] == ["orders.eu"] * 2
            with pytest.raises(errors.Nacked):
                await mq.topic("orders.eu.north").publish(b"too deep")
        assert mq.counters.unclaimed == 0


async def test_a_subscription_returns_after_a_lost_connection(broker: Broker, proxy: TcpProxy, shaky: Client) -> None:
    async with broker.client() as direct, shaky.topic("news").subscribe(str) as messages:
        for number in range(3):
            await direct.topic("news").publish(str(number))
            assert (await next_of(messages)).body == str(number)
            await proxy.cut()
            await reaches(shaky, number + 2)
            await until(lambda: any(topic.subscribers for topic in broker.stats().topics))


async def test_a_left_subscription_ends_at_the_broker() -> None:
    async with Broker() as broker, broker.client() as mq:
        async with mq.topic("news").subscribe(idle_timeout=0.01) as messages:
            assert [message async for message in messages] == []
            async with mq.topic("news").subscribe():
                pass
            assert (await mq.topic("news").publish(b"still here")).by == "server"
        with pytest.raises(errors.Nacked):
            await mq.topic("news").publish(b"gone")


def test_a_confirmed_message_of_a_topic_survives_kill_9_in_its_queues(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path))
    options = QueueOptions(status="pull", delivery_handler="at-least-once")  # type: ignore[arg-type]
    with serving(*arguments) as broker:
        with mqcore.sync.connect(broker.url) as client:
            for queue in ("audit/1", "copies/1"):
                client.create_queue(queue, options)
                client.bind("@topic:news", queue)
            client.topic("news").publish_many(str(number) for number in range(20))
        broker.process.send_signal(signal.SIGKILL)
        broker.process.wait(10)
    with serving(*arguments) as broker, mqcore.sync.connect(broker.url) as client:
        for queue in ("audit/1", "copies/1"):
            assert [message.raw for message in client.queue(queue).pull(30)] == [b"%d" % n for n in range(20)]


async def test_a_copy_that_no_queue_takes_is_a_rejection() -> None:
    async with Broker() as broker, broker.client() as mq:
        await mq.create_queue("audit/1", QueueOptions(status="pull", message_limit=1))  # type: ignore[arg-type]
        await mq.bind("@topic:news", Binding("audit/1"))
        await mq.topic("news").publish(b"1")
        with pytest.raises(errors.Nacked):
            await mq.topic("news").publish(b"2")


async def test_arguments_that_a_topic_cannot_have_are_rejected() -> None:
    async with Broker() as broker, broker.client() as mq:
        with pytest.raises(errors.InvalidArgument, match="bind the queues"):
            await mq.topic("news").publish(b"x", cc=["audit/1"])
        with pytest.raises(errors.InvalidArgument, match="must have 1 to 248 bytes"):
            await mq.topic("n" * 249).publish(b"x")
        with pytest.raises(errors.InvalidArgument, match="does not respond"):
            await mq.request("@topic:news", b"x")
        with pytest.raises(errors.Nacked):
            await mq.send("@topic:news", b"x")
        async with mq.topic("news").subscribe() as messages:
            await mq.send("@topic:news", b"x", content_type=7)
            message = await next_of(messages)
            assert (message.raw, message.content_type) == (b"x", 7)
            await mq.send("@topic:news", b"y", confirm=True)


async def test_topics_have_one_interface_for_all_protocols() -> None:
    config = BrokerConfig(listen=("tmqp://127.0.0.1:0", "mm2://127.0.0.1:0", "mqks://127.0.0.1:0"))
    async with Broker(config) as broker:
        tmqp, mm2, mqks = (mqcore.connect(url) for url in broker.listeners)
        async with tmqp, mm2, mqks:
            async with tmqp.topic("news").subscribe() as first, mm2.topic("news").subscribe() as second:
                for client in (tmqp, mm2, mqks):
                    await client.topic("news").publish(client.protocol.encode())
                for messages in (first, second):
                    got = [await next_of(messages) for _ in range(3)]
                    assert [message.raw for message in got] == [b"tmqp", b"mm2", b"mqks"]
                    assert {message.topic for message in got} == {"news"}
            with pytest.raises(errors.NotSupported, match=r"consume\(events="):
                mqks.topic("news").subscribe()


def test_the_blocking_client_has_topics() -> None:
    with (
        Broker() as broker,
        mqcore.sync.connect(broker) as client,
        client.topic("news").subscribe(str, idle_timeout="10s") as messages,
    ):
        client.topic("news").publish("hello")
        assert next(messages).body == "hello"


def command(*arguments: str, url: str) -> list[str]:
    return [sys.executable, "-m", "mqcore", "--url", url, *arguments]


def run(*arguments: str, url: str) -> subprocess.CompletedProcess[str]:
    return programs.run(
        command(*arguments, url=url), capture_output=True, text=True, timeout=30, env=clean_environment()
    )


@pytest.mark.parametrize("protocol", ["tmqp", "mm2"])
def test_commands_publish_to_and_consume_from_topics(protocol: str) -> None:
    listen = tuple(dict.fromkeys(("tmqp://127.0.0.1:0", f"{protocol}://127.0.0.1:0")))
    with Broker(BrokerConfig(listen=listen)) as broker:
        url = broker.listeners[-1]
        arguments = command("consume", "@topic:news", "--count", "2", "--json", url=url)
        with programs.Popen(arguments, stdout=subprocess.PIPE, text=True, env=clean_environment()) as process:
            wait_until(lambda: any(topic.subscribers for topic in broker.stats().topics))
            broker.sync.publish("@topic:news", b"first")
            published = run("publish", "@topic:news", "second", url=url)
            assert published.returncode == 0, published.stderr
            out, _ = process.communicate(timeout=20)
        assert [json.loads(line)["body"] for line in out.splitlines()] == ["first", "second"]


def test_a_message_to_a_topic_without_receivers_is_an_error_of_the_command() -> None:
    with Broker(listen=["tmqp://127.0.0.1:0"]) as broker:
        for name in ("send", "publish"):
            result = run(name, "@topic:empty", "x", url=broker.listeners[0])
            assert result.returncode == 1, result.stderr
            assert "@topic:empty" in result.stderr
            assert "no-consumers" in result.stderr
            assert "sent" not in result.stderr
        assert run("publish", "@topic:", "x", url=broker.listeners[0]).returncode == 2
