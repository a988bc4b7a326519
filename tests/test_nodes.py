"""Linked brokers as processes: killed under load, listed by the CLI, configured by a file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mqcore
import programs
from authority import Authority
from awaited import next_of
from depth import choices, rounds
from mqcore import NodeConfig, NodeFilter, NodeRule, QueueOptions, QueueStatus, UpstreamConfig, errors
from mqcore._core import hash_password
from mqcore.config import AuthorityOptions, BrokerConfig, UserOptions
from ports import free_port
from protocols.conversation import OK, SUBSCRIBE
from served import ServedBroker, clean_environment, serving, tmqp_address, wait_until
from tmqp_peer import EVENT, RawFrame, TmqpPeer

LIST_NODES = 621

ROUNDS = rounds("NODE", quick=3, full=100)
"""How often one of the two brokers is killed; `make nodes` asks for more."""

KEPT = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")


async def until(what: str, holds: Callable[[], Awaitable[bool]], limit: float = 30.0) -> None:
    """Poll until `holds`, and fail with `what` after `limit` seconds."""
    for _ in range(int(limit / 0.02)):
        if await holds():
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"never: {what}")


async def bodies(url: str, queue: str) -> list[str]:
    """Take everything out of a pull queue."""
    async with mqcore.connect(url) as mq:
        count = (await mq.queue(queue).information()).messages
        return [message.body for message in await mq.queue(queue).pull(count, str)] if count else []


async def count(url: str, queue: str) -> int:
    async with mqcore.connect(url) as mq:
        return (await mq.queue(queue).information()).messages


@contextlib.asynccontextmanager
async def load(url: str, prefix: str, taken: list[str]) -> AsyncIterator[None]:
    """Publish meanwhile; what was acknowledged as saved is in `taken`, in order."""

    async def produce() -> None:
        number = 0
        with contextlib.suppress(errors.MqcoreError):
            async with mqcore.connect(url) as mq:
                while True:
                    names = [f"{prefix}-{number + index}" for index in range(10)]
                    number += len(names)
                    for _, name in zip(await mq.publish_many("work/1", names), names, strict=True):
                        taken.append(name)

    task = asyncio.create_task(produce())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.timeout(120 + 5 * ROUNDS)
async def test_however_often_either_side_is_killed_everything_taken_is_at_the_master_once_and_in_order(
    tmp_path: Path,
) -> None:
    chance = choices(__name__)
    port = free_port()
    up = ("--listen", f"tmqp://127.0.0.1:{port}", "--data-dir", str(tmp_path / "up"), "--node-name", "up")
    down = (
        *("--data-dir", str(tmp_path / "down"), "--node-name", "down"),
        *("--upstream", f"tmqp://127.0.0.1:{port}", "--keep-messages"),
    )
    taken: list[str] = []
    with contextlib.ExitStack() as running:

        def start(arguments: tuple[str, ...]) -> tuple[ServedBroker, contextlib.ExitStack]:
            stack = contextlib.ExitStack()
            running.push(stack)
            return stack.enter_context(serving(*arguments)), stack

        upstream, upstream_stack = start(up)
        downstream, downstream_stack = start(down)
        for broker in (upstream, downstream):
            async with mqcore.connect(broker.url) as mq:
                await mq.declare("work", 1, KEPT)
        for number in range(ROUNDS):
            async with load(downstream.url, str(number), taken):
                await asyncio.sleep(chance.uniform(0.05, 0.3))
                victim = chance.choice(["upstream", "downstream", "both"])
                if victim in ("upstream", "both"):
                    upstream.process.send_signal(signal.SIGKILL)
                    upstream_stack.close()
                    await asyncio.sleep(chance.uniform(0.0, 0.2))
                    upstream, upstream_stack = start(up)
                if victim in ("downstream", "both"):
                    downstream.process.send_signal(signal.SIGKILL)
                    downstream_stack.close()
                    downstream, downstream_stack = start(down)
        async with mqcore.connect(downstream.url) as mq:
            await mq.publish("work/1", "end")
        everything = await count(downstream.url, "work/1")

        async def arrived() -> bool:
            return await count(upstream.url, "work/1") >= everything

        await until("everything is at the upstream", arrived, 60.0)
        there = await bodies(upstream.url, "work/1")
    assert len(taken) > 20 * ROUNDS, "there was load"
    # A message may follow whose confirmation the load did not wait for.
    assert set(taken).isdisjoint(there[there.index("end") :])
    assert len(set(there)) == len(there), "nothing comes twice"
    assert not set(taken) - set(there), "these were taken, and never came"
    names = set(taken)
    assert [name for name in there if name in names] == taken, "the order changed"


async def test_three_nodes_filter_report_each_other_and_forward_messages_once() -> None:
    with serving("--auto-create", "--node-name", "top") as top:
        async with mqcore.connect(top.url) as watching:
            middle_config = NodeConfig(
                name="middle",
                upstreams=(UpstreamConfig(url=top.url, send=NodeFilter(deny=(NodeRule(channel="private*"),))),),
            )
            options = QueueOptions(status=QueueStatus.PULL)
            channel = mqcore.ChannelOptions(queue=options)
            async with mqcore.Broker(
                listen=("tmqp://127.0.0.1:0",), node=middle_config, channel=channel, auto_create_channels=True,
                auto_create_queues=True,
            ) as middle:  # fmt: skip
                await watching.declare("news", 0, options)

                async def linked() -> bool:
                    return [node.name for node in await watching.nodes() if node.connected] == ["middle"]

                await until("the middle is there", linked)
                async with middle.client() as client:
                    await client.publish("news", "a")
                    await client.publish("private-1", "b")
                    await client.publish("news", "c")
                    (node,) = await client.nodes()
                    assert (node.name, node.downstream, node.connected) == ("top", False, True)

                (below,) = await watching.nodes()
                assert (below.name, below.downstream, below.host) == ("middle", True, "127.0.0.1")

                async def there() -> bool:
                    return await count(top.url, "news/0") == 2

                await until("what is allowed is there", there)
                assert await bodies(top.url, "news/0") == ["a", "c"]
                command = [sys.executable, "-m", "mqcore", "node", "ls", "--url", top.url, "--json"]
                listed = await asyncio.to_thread(
                    programs.run, command, capture_output=True, text=True, check=True, env=clean_environment()
                )
                output = json.loads(listed.stdout)
                assert output["schema"] == "mqcore.node.ls/1"
                assert [(node["name"], node["downstream"]) for node in output["nodes"]] == [("middle", True)]

            async def alone() -> bool:
                return not await watching.nodes()

            await until("the middle is gone", alone)


def test_a_file_tells_everything_about_nodes(tmp_path: Path) -> None:
    file = tmp_path / "mqcore.toml"
    file.write_text(
        """
        data_dir = "data"
        [node]
        name = "south"
        token = "secret"
        keep_messages = true
        keep_age_max = "1h"
        accept = {deny = [{channel = "private*"}]}
        [[upstream]]
        url = "tmqp://north:2622"
        token = "other"
        send = {allow = [{kinds = ["queue"], channel = "orders"}, {header = "Region", value = "eu-*"}]}
        [[upstream]]
        url = "tmqp://west"
        """
    )
    node = BrokerConfig.load(file, environ={}).node
    assert node is not None
    assert (node.name, node.token, node.keep_messages, node.keep_age_max) == ("south", "secret", True, 3600.0)
    assert [upstream.url for upstream in node.upstreams] == ["tmqp://north:2622", "tmqp://west"]
    assert node.upstreams[0].send.allow[0] == NodeRule(kinds=("queue",), channel="orders")
    assert node.upstreams[0].send.allow[1].value == "eu-*"
    assert node.accept.deny == (NodeRule(channel="private*"),)
    with pytest.raises(errors.ConfigError, match="there is no letter"):
        NodeRule(kinds=("letter",))
    with pytest.raises(errors.ConfigError, match="keep_messages"):
        mqcore.Broker(node=NodeConfig(keep_messages=True, upstreams=(UpstreamConfig(url="tmqp://x:1"),))).start()


def test_invalid_master_url_is_rejected_at_start() -> None:
    ended = programs.run(
        [sys.executable, "-m", "mqcore", "serve", "--listen", "tmqp://127.0.0.1:0", "--upstream", "north"],
        capture_output=True, text=True, check=False, timeout=30, env=clean_environment(),
    )  # fmt: skip
    assert ended.returncode != 0
    assert "north" in ended.stderr


async def test_a_master_is_dialled_over_tls_and_only_if_its_certificate_is_believed(tmp_path: Path) -> None:
    believed, other = Authority(tmp_path / "believed"), Authority(tmp_path / "other")
    pulled = mqcore.ChannelOptions(queue=QueueOptions(status=QueueStatus.PULL))
    async with mqcore.Broker(
        listen=("tmqps://127.0.0.1:0",), tls=mqcore.ListenerTLS(cert=believed.issue()), node=NodeConfig(name="top"),
        channel=pulled, auto_create_channels=True, auto_create_queues=True,
    ) as top:  # fmt: skip
        port = top.listeners[0].rpartition(":")[2]
        upstreams = (
            UpstreamConfig(url=f"tmqps://localhost:{port}?ca={believed.ca}"),
            UpstreamConfig(url=f"tmqps://127.0.0.1:{port}?ca={other.ca}"),
        )
        async with mqcore.Broker(
            node=NodeConfig(name="down", upstreams=upstreams, reconnect_wait=0.05), channel=pulled,
            auto_create_channels=True, auto_create_queues=True,
        ) as down, top.client() as above, down.client() as below:  # fmt: skip
            await above.declare("news", 0, QueueOptions(status=QueueStatus.PULL))

            async def linked() -> bool:
                return any(node.connected for node in await below.nodes())

            await until("the upstream that shows a certificate of the right authority is there", linked)
            await below.publish("news", "over TLS")

            async def there() -> bool:
                return bool(await above.nodes()) and (await above.queue("news/0").information()).messages > 0

            await until("the message is there", there)
            assert [message.body for message in await above.queue("news/0").pull(1, str)] == ["over TLS"]
            assert sorted(node.connected for node in await below.nodes()) == [False, True]


def test_nodes_are_listed_and_their_connections_are_reported_as_events() -> None:
    with (
        mqcore.Broker(listen=("tmqp://127.0.0.1:0",), node=NodeConfig(name="top")) as broker,
        TmqpPeer(*tmqp_address(broker)) as watcher,
    ):
        watcher.hello(Client_Name="watcher")
        assert json.loads(watcher.ask(LIST_NODES).payload) == []
        for event in ("NodeConnected", "NodeDisconnected"):
            asked = RawFrame(kind=EVENT, id=TmqpPeer.new_id(), source=watcher.client_id, target=event.encode())
            watcher.send(replace(asked, content_type=SUBSCRIBE))
            assert watcher.receive().content_type == OK
        with TmqpPeer(*tmqp_address(broker)) as node:
            node.hello(Client_Name="raw", Client_Type="server")
            came = watcher.receive()
            (listed,) = json.loads(watcher.ask(LIST_NODES).payload)
            assert list(listed) == ["Id", "Name", "Host", "Slave", "Connected", "Lifetime"]
            assert (listed["Id"], listed["Name"]) == (node.client_id.decode(), "raw")
            assert (listed["Slave"], listed["Connected"]) == (True, True)
        went = watcher.receive()
        assert [(frame.kind, frame.source) for frame in (came, went)] == [
            (EVENT, b"NodeConnected"),
            (EVENT, b"NodeDisconnected"),
        ]
        assert [json.loads(frame.payload)["Name"] for frame in (came, went)] == ["raw", "raw"]
        assert json.loads(watcher.ask(LIST_NODES).payload) == []


async def test_links_between_nodes_are_events_for_clients_and_for_handlers() -> None:
    seen: list[tuple[str, str, bool]] = []

    class Links(mqcore.EventHandler):
        def node_connected(self, node: mqcore.NodeView) -> None:
            seen.append(("connected", node.name, node.downstream))

        def node_disconnected(self, node: mqcore.NodeView) -> None:
            seen.append(("disconnected", node.name, node.downstream))

    top = mqcore.Broker(listen="tmqp://127.0.0.1:0", node=NodeConfig(name="top"), event_handlers={"links": Links()})
    kinds: list[tuple[str, str | None, int | None]] = [("NodeConnected", None, None), ("NodeDisconnected", None, None)]
    async with top as broker, broker.client() as mq, mq.events(kinds) as events:
        with TmqpPeer(*tmqp_address(broker)) as node:
            node.hello(Client_Name="raw", Client_Type="server")
            connected = await next_of(events)
        disconnected = await next_of(events)
        for event in (connected, disconnected):
            assert (event.node, event.node_id, event.downstream) == ("raw", node.client_id.decode(), True)
        assert [event.kind for event in (connected, disconnected)] == ["NodeConnected", "NodeDisconnected"]
        await asyncio.to_thread(wait_until, lambda: len(seen) == 2)
    assert seen == [("connected", "raw", True), ("disconnected", "raw", True)]


def test_the_broker_below_sees_its_upstream_as_such() -> None:
    seen: list[tuple[str, bool]] = []

    class Links(mqcore.EventHandler):
        def node_connected(self, node: mqcore.NodeView) -> None:
            seen.append((node.name, node.downstream))

    with mqcore.Broker(listen="tmqp://127.0.0.1:0", node=NodeConfig(name="top")) as top:
        upstreams = [UpstreamConfig(url=top.listeners[0])]
        with mqcore.Broker(node=NodeConfig(name="low", upstreams=upstreams), event_handlers={"links": Links()}):
            wait_until(lambda: seen != [], what="the upstream")
    assert seen == [("top", False)]


async def test_nodes_log_in_with_the_token_of_the_broker_above_where_clients_must_log_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The token of nodes, not those of clients, and none if the broker has none."""
    pulled = mqcore.ChannelOptions(queue=QueueOptions(status=QueueStatus.PULL))

    def below(name: str, url: str, token: str | None) -> mqcore.Broker:
        upstreams = (UpstreamConfig(url=url, token=token),)
        return mqcore.Broker(
            node=NodeConfig(name=name, upstreams=upstreams, reconnect_wait=0.05), channel=pulled,
            auto_create_channels=True, auto_create_queues=True,
        )  # fmt: skip

    user = UserOptions(name="ann", allow=("*",), password_hash=hash_password("correct horse"))
    shared: dict[str, Any] = {
        "listen": "tmqp://127.0.0.1:0", "user": [user], "authority": AuthorityOptions(audit="off"), "channel": pulled,
        "auto_create_channels": True, "auto_create_queues": True,
    }  # fmt: skip
    async with (
        mqcore.Broker(**shared, node=NodeConfig(name="open")) as without,
        mqcore.Broker(**shared, node=NodeConfig(name="top", token="secret")) as top,
        top.client() as mq,
    ):
        rejected = ((top, None), (top, "wrong"), (top, "ann:correct horse"), (without, None), (without, "secret"))
        for above, token in rejected:
            with caplog.at_level(logging.INFO, "mqcore.server"):
                caplog.clear()
                async with below("low", above.listeners[0], token) as low, low.client() as client:
                    await asyncio.to_thread(
                        wait_until,
                        lambda: "cannot connect to an upstream broker" in caplog.text,
                        what=f"the rejection of {token}",
                    )
                    assert [node.connected for node in await client.nodes()] == [False]
        assert await mq.nodes() == []
        async with below("low", top.listeners[0], "secret") as low, low.client() as client:

            async def linked() -> bool:
                return [node.connected for node in await client.nodes()] == [True]

            await until("the right token is accepted", linked)
            await mq.declare("news", 1, QueueOptions(status=QueueStatus.PULL))
            await client.publish("news/1", "from below")

            async def there() -> bool:
                return (await mq.queue("news/1").information()).messages == 1

            await until("the message is there", there)
            assert [(node.name, node.downstream) for node in await mq.nodes()] == [("low", True)]


async def test_a_broker_that_is_its_own_upstream_forwards_nothing(tmp_path: Path) -> None:
    port = free_port()
    for extra in ((), ("--data-dir", str(tmp_path / "data"))):
        arguments = (
            "--listen",
            f"tmqp://127.0.0.1:{port}",
            "--node-name",
            "me",
            "--upstream",
            f"tmqp://127.0.0.1:{port}",
        )
        with serving(*arguments, *extra) as broker:
            lines = broker.stderr_lines
            wait_until(
                lambda lines=lines: any("it is this broker itself" in line for line in lines), what="the warning"
            )
            async with mqcore.connect(broker.url) as mq:
                await mq.declare("work", 1, QueueOptions(status=QueueStatus.PULL))
                await mq.publish("work/1", "once")
                await mq.publish("work/1", "end")
                assert (await mq.queue("work/1").information()).messages == 2
            assert broker.terminate() == 0
