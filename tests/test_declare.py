"""Channels, queues and routers that a configuration or a program declares, and what a broker publishes by itself."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

import mqcore
from awaited import until
from mqcore import (
    Binding,
    Broker,
    BrokerConfig,
    ChannelDeclaration,
    ChannelOptions,
    QueueDeclaration,
    QueueOptions,
    RouterOptions,
    errors,
)
from served import serving, wait_until

DECLARED = """
listen = ["tmqp://127.0.0.1:0"]

[channel_defaults]
queue_limit = 9
[channel_defaults.queue]
request_acknowledge = true

[[channel]]
name = "orders"
client_limit = 5
[channel.queue]
message_limit = 7

[[queue]]
name = "orders/1"
status = "pull"
dead_letter = "orders/2"

[[queue]]
name = "orders/2"
tag = "failed"

[[queue]]
name = "reports/7"

[[router]]
name = "events"
[[router.binding]]
target = "orders/1"
"""


def load(tmp_path: Path, text: str) -> BrokerConfig:
    file = tmp_path / "mqcore.toml"
    file.write_text(text)
    return BrokerConfig.load(file, environ={})


def test_a_list_of_tables_declares_and_a_table_has_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, DECLARED)
    assert config.channel == ChannelOptions(queue_limit=9, queue=QueueOptions(request_acknowledge=True))
    assert config.channels == (
        ChannelDeclaration("orders", ChannelOptions(client_limit=5, queue=QueueOptions(message_limit=7))),
    )
    assert [queue.name for queue in config.queues] == ["orders/1", "orders/2", "reports/7"]
    assert config.queues[1] == QueueDeclaration("orders/2", QueueOptions(tag="failed"))
    assert [router.name for router in config.routers] == ["events"]
    assert load(tmp_path, "[channel]\nqueue_limit = 9\n").channel == ChannelOptions(queue_limit=9)
    environ = {"MQCORE_CHANNEL_DEFAULTS__QUEUE__STATUS": "pull"}
    (tmp_path / "mqcore.toml").write_text(DECLARED)
    merged = BrokerConfig.load(tmp_path / "mqcore.toml", environ=environ)
    assert merged.channel.queue == QueueOptions(status="pull", request_acknowledge=True)  # type: ignore[arg-type]
    assert len(merged.channels) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[queue]]\nname = "a/1"\nstatsu = "pull"\n', r"'queues\.statsu'; did you mean 'status'\?"),
        ('[[channel]]\nname = "a"\nclient_limits = 1\n', r"'channels\.client_limits'; did you mean 'client_limit'\?"),
        ("[[channel]]\nclient_limit = 1\n", r"'channels\.name' is missing"),
        ('[[router]]\nname = "r"\nmetod = "distribute"\n', r"'routers\.metod'; did you mean 'method'\?"),
        ("[channel_default]\nqueue_limit = 1\n", "did you mean 'channel_defaults'"),
        ("[queue]\nstatus = 'pull'\n", r"write \[\[queue\]\] with a name"),
        ("[channel]\nqueue_limit = 1\n[channel_defaults]\nqueue_limit = 1\n", "mean the same"),
        ('[[queue]]\nname = "a/1"\nmessage_limit = "many"\n', "message_limit cannot be 'many'"),
    ],
)
def test_wrong_declarations_are_rejected_with_a_suggestion(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(errors.ConfigError, match=said):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"queues": [QueueDeclaration("a b/1")]}, "invalid queue name"),
        ({"channels": [ChannelDeclaration("a b")]}, "invalid channel name"),
        (
            {"queues": [QueueDeclaration("a/1", QueueOptions(delivery_handler="nosuch"))]},
            "cannot declare queue a/1: no delivery handler has the key",
        ),
        (
            {"queues": [QueueDeclaration("a/1", QueueOptions(dead_letter="b/1"))]},
            "cannot declare queue a/1: dead-letter queue b/1 does not exist",
        ),
        (
            {
                "channels": [ChannelDeclaration("a", ChannelOptions(allowed_queues=(2,)))],
                "queues": [QueueDeclaration("a/1")],
            },
            "cannot declare queue a/1: channel a does not allow queue 1",
        ),
    ],
)
def test_a_declaration_that_cannot_be_carried_out_prevents_the_start(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.ConfigError, match=said), Broker(**declared):
        pass


def test_declared_objects_exist_once_the_broker_has_started(tmp_path: Path) -> None:
    with Broker(load(tmp_path, DECLARED)) as broker, mqcore.sync.connect(broker) as client:
        assert {queue.address for queue in broker.stats().queues} == {"orders/1", "orders/2", "reports/7"}
        orders, reports = broker.stats().queue("orders/1").options, broker.stats().queue("reports/7").options
        assert (orders.status, orders.message_limit, orders.dead_letter) == ("pull", 7, "orders/2")
        assert (reports.status, reports.message_limit, reports.request_acknowledge) == ("push", 0, True)
        channel = client.channel_information("orders")
        assert (channel.client_limit, channel.queue_limit) == (5, 9)
        assert [binding.target for binding in client.bindings("events")] == ["orders/1"]


def test_serve_declares_and_the_file_wins_over_changes_after_kill_9(tmp_path: Path) -> None:
    config = tmp_path / "mqcore.toml"
    config.write_text(DECLARED)
    arguments = ("--config", str(config), "--data-dir", str(tmp_path / "data"))
    for limit in (7, 3, 3):
        with serving(*arguments) as broker:
            with mqcore.sync.connect(broker.url) as client:
                assert client.queue_information("orders/1").status == "pull", "declared again"
                # An option that the file does not set keeps what a client made of it.
                assert client.queue_information("orders/2").message_limit == limit
                client.update_queue("orders/1", QueueOptions(status="paused"))  # type: ignore[arg-type]
                client.update_queue("orders/2", QueueOptions(message_limit=3))
            broker.process.send_signal(signal.SIGKILL)
            broker.process.wait(10)
    with serving(*arguments) as broker:
        changed = "the configuration changes existing options"
        wait_until(lambda: any(changed in line for line in broker.stderr_lines))
        (line,) = [line for line in broker.stderr_lines if changed in line]
        assert "queue orders/1" in line
        assert "status is paused, declared pull" in line


async def test_declare_creates_once_and_rejects_other_options() -> None:
    async with Broker() as broker:
        pull = QueueOptions(status="pull", message_limit=7)  # type: ignore[arg-type]
        assert await broker.declare("orders/1", pull)
        assert not await broker.declare("orders/1", pull)
        assert not await broker.declare("orders/1"), "no options: any will do"
        with pytest.raises(errors.AlreadyExists, match="message_limit is 7, declared 8") as raised:
            await broker.declare("orders/1", QueueOptions(message_limit=8))
        assert raised.value.target == "orders/1"
        assert broker.stats().queue("orders/1").options.message_limit == 7
        assert not await broker.declare("orders"), "the queue has made its channel"
        assert await broker.declare("reports", ChannelOptions(client_limit=3))
        with pytest.raises(errors.AlreadyExists, match="client_limit is 3, declared 4"):
            await broker.declare("reports", ChannelOptions(client_limit=4))
        bindings = (Binding("orders/1"), Binding("@topic:news", priority=2))
        assert await broker.declare(RouterOptions("events", bindings=bindings))
        assert not await broker.declare(RouterOptions("events", bindings=bindings[::-1]))
        with pytest.raises(errors.AlreadyExists, match="binding orders/1 is not declared"):
            await broker.declare(RouterOptions("events", bindings=bindings[1:]))
        with pytest.raises(errors.BadRequest, match="nosuch"):
            await broker.declare("orders/9", QueueOptions(delivery_handler="nosuch"))
        with pytest.raises(errors.ConfigError, match="invalid"):
            await broker.declare("a b/1")
    with pytest.raises(errors.NotRunning):
        await broker.declare("orders/1")


async def test_declared_objects_survive_a_restart(tmp_path: Path) -> None:
    router = RouterOptions("events", bindings=(Binding("orders/1"),))
    options = QueueOptions(delivery_handler="at-least-once", status="pull")  # type: ignore[arg-type]
    for first in (True, False):
        async with Broker(data_dir=str(tmp_path)) as broker:
            assert await broker.declare("orders", ChannelOptions(client_limit=2)) is first
            assert await broker.declare("orders/1", options) is first
            assert await broker.declare(router) is first


async def test_a_removed_queue_does_not_return_with_the_settled_messages_of_a_segment(tmp_path: Path) -> None:
    options = QueueOptions(delivery_handler="at-least-once", status="pull")  # type: ignore[arg-type]
    async with Broker(data_dir=str(tmp_path), shards=1) as broker, mqcore.connect(broker) as client:
        for address in ("orders/1", "orders/2"):
            assert await broker.declare(address, options)
            # The message of the second queue keeps the segment, which also has the first one's.
            await client.publish(address, b"saved")
        await client.remove_queue("orders/1")
    async with Broker(data_dir=str(tmp_path)) as broker:
        assert [queue.address for queue in broker.stats().queues] == ["orders/2"]


async def test_a_broker_publishes_and_sends_by_itself(tmp_path: Path) -> None:
    # Every other client must log in.
    config = BrokerConfig(
        data_dir=str(tmp_path),
        authority=mqcore.config.AuthorityOptions(audit="off"),
        user=(mqcore.config.UserOptions(name="ann", allow=("administer:/*",)),),
    )
    async with Broker(config) as broker:
        await broker.declare("orders/1", QueueOptions(status="pull", delivery_handler="at-least-once"))  # type: ignore[arg-type]
        receipt = await broker.publish("orders/1", {"sku": "A"}, id="m-1", headers={"Country": "fr"})
        assert receipt.by == "server"
        async with broker.client(name="clock") as client:
            async with client.requests(str, idle_timeout="10s") as requests:
                await broker.send("@name:clock", "noon", content_type=3)
                request = await anext(requests)
                assert (request.body, request.content_type) == ("noon", 3)
            (message,) = await client.queue("orders/1").pull(1)
            assert (message.id, message.headers["Country"]) == ("m-1", "fr")
            await message.ack()
        with pytest.raises(errors.NotFound):
            await broker.publish("nowhere/1", b"x")
    with pytest.raises(errors.NotRunning):
        await broker.publish("orders/1", b"x")


async def test_first_publishes_of_many_tasks_share_one_connection() -> None:
    async with Broker(auto_create_channels=True, auto_create_queues=True) as broker:
        await asyncio.gather(*(broker.publish("orders/1", b"x") for _ in range(20)))
        assert broker.stats().queue("orders/1").normal == 20
        await until(lambda: len(broker.stats().clients) == 1)
        assert [client.name for client in broker.stats().clients] == ["broker"]


def test_blocking_calls_work_across_restarts_and_not_in_a_coroutine() -> None:
    broker = Broker()
    with pytest.raises(errors.NotRunning):
        broker.sync.publish("orders/1", b"x")
    for _ in range(2):
        with broker:
            assert broker.sync.declare("orders/1")
            assert broker.sync.publish("orders/1", b"x").by == "server"
            assert broker.stats().queue("orders/1").normal == 1
            with mqcore.sync.connect(broker, name="clock") as client, client.requests(idle_timeout="10s") as requests:
                broker.sync.send("@name:clock", b"noon")
                assert next(requests).body == b"noon"

            async def wrong() -> None:
                broker.sync.publish("orders/1", b"x")

            with pytest.raises(errors.InvalidArgument, match=r"await broker\.publish"):
                asyncio.run(wrong())


async def test_a_handler_may_publish_with_its_broker() -> None:
    class Audited(mqcore.DeliveryHandler):
        async def received_from_producer(self, queue: Any, message: Any, producer: Any) -> mqcore.Decision:
            await broker.publish("audit/1", message.body)
            return mqcore.Decision(acknowledge=mqcore.SendAck.ALWAYS)

    broker = Broker()
    broker.delivery_handlers["audited"] = Audited()
    async with broker:
        await broker.declare("audit/1")
        await broker.declare("orders/1", QueueOptions(delivery_handler="audited"))
        assert (await broker.publish("orders/1", b"2 apples")).by == "server"
        assert broker.stats().queue("audit/1").normal == 1
