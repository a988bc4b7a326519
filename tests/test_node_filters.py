"""Filters of nodes written in Python: what they are shown, what they let through, what holds when they fail."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import mqcore
from mqcore import NodeConfig, NodeFilter, NodeFrame, NodeRule, QueueOptions, QueueStatus, UpstreamConfig, errors
from mqcore.config import BrokerConfig
from protocols.conversation import OK
from served import tmqp_address
from test_nodes import LIST_NODES, until
from tmqp_peer import ACKNOWLEDGE, QUEUE, RawFrame, TmqpPeer

PULLED = mqcore.ChannelOptions(queue=QueueOptions(status=QueueStatus.PULL))


@dataclass
class Pair:
    """A downstream, its upstream, and a client at each."""

    down: mqcore.Client
    up: mqcore.Client
    downstream: mqcore.Broker
    upstream: mqcore.Broker

    async def bodies(self, queue: str, number: int) -> list[str]:
        """Messages of a queue at the upstream, once it has this many."""

        async def there() -> bool:
            try:
                return (await self.up.queue(queue).information()).messages >= number
            except errors.NotFound:
                return False

        await until(f"{number} messages are at the upstream", there)
        return [message.body for message in await self.up.queue(queue).pull(100, str)]


@asynccontextmanager
async def pair(*, send: NodeFilter | None = None, accept: NodeFilter | None = None) -> AsyncIterator[Pair]:
    def broker(node: NodeConfig) -> mqcore.Broker:
        return mqcore.Broker(
            listen=("tmqp://127.0.0.1:0",), admin="http://127.0.0.1:0", channel=PULLED, auto_create_channels=True,
            auto_create_queues=True, node=node,
        )  # fmt: skip

    async with broker(NodeConfig(name="top", accept=accept or NodeFilter())) as upstream:
        upstreams = (UpstreamConfig(url=upstream.listeners[0], send=send or NodeFilter()),)
        downstream = broker(NodeConfig(name="west", upstreams=upstreams, reconnect_wait=0.05))
        async with downstream, downstream.client(name="shop", kind="web") as down, upstream.client() as up:

            async def linked() -> bool:
                return any(node.connected for node in await down.nodes())

            await until("the link is up", linked)
            yield Pair(down, up, downstream, upstream)


async def test_a_function_decides_what_goes_to_a_master_behind_the_rules_and_sees_all_of_it() -> None:
    shown: list[tuple[object, ...]] = []

    def decide(frame: NodeFrame) -> bool:
        message, producer = frame.message, frame.producer
        shown.append(
            (
                frame.kind,
                frame.channel,
                frame.queue,
                frame.topic,
                frame.router,
                frame.node,
                message.headers.get("Region"),
            )
        )
        assert (producer.name, producer.kind, message.source) == ("shop", "web", producer.id)
        return message.headers.get("Region") == "eu" or frame.channel == "end"

    def publish_to_topic(broker: mqcore.Broker) -> None:
        with TmqpPeer(*tmqp_address(broker)) as peer:
            peer.hello(Client_Name="shop", Client_Type="web")
            peer.send(RawFrame(kind=QUEUE, target=b"@topic:weather", payload=b"sun"))
            assert peer.ask(LIST_NODES).content_type == OK, "it was read"

    rules = NodeFilter(deny=(NodeRule(channel="private"),), decide=decide)
    async with pair(send=rules) as nodes:
        for region in ("eu", "us", "eu"):
            await nodes.down.publish("news/3", region, headers={"Region": region})
        await nodes.down.publish("private", "x", headers={"Region": "eu"})
        await asyncio.to_thread(publish_to_topic, nodes.downstream)
        await nodes.down.publish("end", "x")
        assert await nodes.bodies("end", 1) == ["x"]
        assert await nodes.bodies("news/3", 2) == ["eu", "eu"]
        assert [message.body for message in await nodes.down.queue("news/3").pull(9, str)] == ["eu", "us", "eu"]
    assert shown == [
        ("queue", "news", 3, None, None, None, "eu"),
        ("queue", "news", 3, None, None, None, "us"),
        ("queue", "news", 3, None, None, None, "eu"),
        ("queue", None, None, "weather", None, None, None),
        ("queue", "end", 0, None, None, None, None),
    ]


async def test_a_function_decides_what_is_taken_from_a_node_and_what_it_refuses_is_never_sent_again() -> None:
    shown: list[tuple[str | None, str | None, str, bytes]] = []

    def decide(frame: NodeFrame) -> bool:
        shown.append((frame.node, frame.producer.name, frame.producer.id, frame.message.body))
        return len(frame.message) < 10

    async with pair(accept=NodeFilter(decide=decide)) as nodes:
        bodies = ["short", "much too long", "brief"]
        for body in bodies:
            await nodes.down.publish("news", body)
        assert await nodes.bodies("news", 2) == ["short", "brief"]

        async def confirmed() -> bool:
            page = await asyncio.to_thread(_metrics, nodes.downstream)
            return page.get("mqcore_node_backlog") == 0.0

        await until("what was refused is done too", confirmed)
    producer = shown[0][2]
    assert producer
    assert shown == [("west", None, producer, body.encode()) for body in bodies]


async def test_exception_in_a_filter_falls_back_and_is_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def decide(frame: NodeFrame) -> bool:
        if frame.message.body == b"bad":
            raise LookupError("no such region")
        return frame.message.body != b"none" or None  # type: ignore[return-value]

    for fallback, expected in ((False, ["good"]), (True, ["bad", "none", "good"])):
        caplog.clear()
        async with pair(send=NodeFilter(decide=decide, fallback=fallback)) as nodes:
            for body in ("bad", "none", "good"):
                await nodes.down.publish("news", body)
            assert await nodes.bodies("news", len(expected)) == expected
            page = await asyncio.to_thread(_metrics, nodes.downstream)
            assert page["mqcore_node_filter_fallbacks_total"] == 2
        assert "no such region" in caplog.text
        assert "not a bool" in caplog.text


async def test_a_function_that_sleeps_is_waited_for_no_longer_than_its_time_and_by_its_producer_alone() -> None:
    leave = threading.Event()

    def decide(frame: NodeFrame) -> bool:
        return frame.message.body != b"slow" or leave.wait(20)

    try:
        async with pair(send=NodeFilter(decide=decide, timeout=2.0, fallback=True)) as nodes:
            began = time.monotonic()
            slow = asyncio.create_task(nodes.down.publish("news", "slow"))
            # A client of the upstream is not a producer here.
            await nodes.up.publish("elsewhere", "x")
            assert not slow.done()
            await slow
            assert 2.0 <= time.monotonic() - began < 15
            assert await nodes.bodies("news", 1) == ["slow"]
            leave.set()
            await nodes.down.publish("news", "quick")
            assert await nodes.bodies("news", 1) == ["quick"]
    finally:
        leave.set()


async def test_the_order_of_a_producer_is_kept_whether_or_not_the_filter_has_to_be_asked() -> None:
    def decide(frame: NodeFrame) -> bool:
        time.sleep(0.0005)
        return True

    async with pair(send=NodeFilter(decide=decide), accept=NodeFilter(decide=decide)) as nodes:
        names = [str(number) for number in range(500)]
        publishing = [nodes.down.publish("news", name) for name in names]
        await asyncio.gather(*publishing)
        own = [message.body for message in await nodes.down.queue("news").pull(1000, str)]
        assert sorted(own, key=int) == names
        found: list[str] = []
        while len(found) < len(names):
            found += await nodes.bodies("news", 1)
        assert found == own


async def test_a_node_of_the_originals_sort_is_shown_to_the_filter_too() -> None:
    def decide(frame: NodeFrame) -> bool:
        return frame.node == "old" and frame.message.body == b"yes"

    node = NodeConfig(name="top", accept=NodeFilter(decide=decide))
    async with mqcore.Broker(
        listen=("tmqp://127.0.0.1:0",), channel=PULLED, auto_create_channels=True, auto_create_queues=True, node=node
    ) as upstream, upstream.client() as up:  # fmt: skip
        host, _, port = upstream.listeners[0].removeprefix("tmqp://").rpartition(":")

        def pass_on() -> None:
            with TmqpPeer(host, int(port)) as peer:
                peer.hello(Client_Name="old", Client_Type="server")
                for body in (b"no", b"yes"):
                    peer.send(RawFrame(kind=QUEUE, id=TmqpPeer.new_id(), source=b"c", target=b"ch", payload=body))
                peer.send(RawFrame(kind=ACKNOWLEDGE, id=b"unknown", source=b"c", target=b"ch"))

        await asyncio.to_thread(pass_on)

        async def there() -> bool:
            try:
                return (await up.queue("ch").information()).messages == 1
            except errors.NotFound:
                return False

        await until("one is there", there)
        assert [message.body for message in await up.queue("ch").pull(9, str)] == ["yes"]


def test_filter_must_be_a_function_and_cannot_come_from_a_file(tmp_path: Path) -> None:
    async def late(frame: NodeFrame) -> bool:
        return True

    with pytest.raises(errors.ConfigError, match="plain function"):
        NodeFilter(decide=late)  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="only a program can give"):
        NodeFilter(decide="mine:decide")  # type: ignore[arg-type]
    file = tmp_path / "mqcore.toml"
    file.write_text('[node]\naccept = {decide = "mine:decide"}\n')
    with pytest.raises(errors.ConfigError, match="only a program can give"):
        BrokerConfig.load(file, environ={})


def _metrics(broker: mqcore.Broker) -> dict[str, float]:
    """Samples of the metrics page by name, without their labels."""
    assert broker.admin_url is not None
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name.partition("{")[0]: float(value) for name, _, value in samples}
