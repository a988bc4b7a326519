"""Custom messages of TMQP in both directions, and the operations that only mqcore knows."""

from __future__ import annotations

import asyncio
import queue
from pathlib import Path
from typing import Any

import pytest

import mqcore
from awaited import next_of
from mqcore import Broker, ChannelOptions, QueueOptions, errors
from served import tmqp_address, wait_until
from tmqp_peer import RawFrame, TmqpPeer

LIMIT = 5.0
CUSTOM = 0x00


class Answers(mqcore.EventHandler):
    """Answers each custom message with its body reversed."""

    def __init__(self) -> None:
        self.broker: Broker | None = None
        self.seen: queue.Queue[tuple[str, bytes, int, str | None]] = queue.Queue()

    def custom_message(self, client: mqcore.ClientView, message: mqcore.Message) -> None:
        self.seen.put((client.id, message.body, message.content_type, message.headers.get("Color")))
        if self.broker is not None:
            self.broker.send_custom(client.id, message.body[::-1], content_type=7, headers={"Re": message.id})


def answering(**options: Any) -> tuple[Broker, Answers]:
    answers = Answers()
    answers.broker = Broker(event_handlers={"answers": answers}, **options)
    return answers.broker, answers


def restricted(rule: str) -> dict[str, Any]:
    """Options of a broker whose clients may do only what a rule allows."""
    return {
        "authority": mqcore.config.AuthorityOptions(anonymous=(rule,)),
        "user": [mqcore.config.UserOptions(name="admin", allow=("*",))],
    }


async def test_a_client_and_the_program_of_the_broker_exchange_custom_messages() -> None:
    broker, answers = answering()
    async with broker, broker.client(id="till") as till, till.custom_messages() as received:
        await till.send_custom(b"abc", content_type=3, id="m1", headers={"Color": "red"})
        answer = await next_of(received)
    assert (answer.body, answer.content_type, answer.headers["Re"], answer.source) == (b"cba", 7, "m1", None)
    assert answers.seen.get_nowait() == ("till", b"abc", 3, "red")


def test_the_blocking_client_exchanges_custom_messages() -> None:
    broker, _ = answering(listen="tmqp://127.0.0.1:0")
    with broker, mqcore.sync.connect(broker.listeners[0]) as till, till.custom_messages(str) as received:
        till.send_custom("abc")
        assert next(iter(received)).body == "cba"


def test_custom_messages_are_frames_of_type_0() -> None:
    broker, answers = answering(listen="tmqp://127.0.0.1:0")
    with broker, TmqpPeer(*tmqp_address(broker)) as peer:
        peer.hello()
        peer.send(RawFrame(kind=CUSTOM, id=b"1", source=peer.client_id, content_type=9, payload=b"xy"))
        frame = peer.receive()
        assert (frame.kind, frame.target, frame.source) == (CUSTOM, peer.client_id, b"")
        assert (frame.content_type, frame.payload, frame.header("Re")) == (7, b"yx", "1")
        assert answers.seen.get_nowait()[1:3] == (b"xy", 9)


async def test_a_custom_message_reaches_all_clients_of_a_name_or_type() -> None:
    async with (
        Broker() as broker,
        broker.client(name="shop", kind="till") as one,
        broker.client(name="shop", kind="till") as two,
        one.custom_messages(str) as first,
        two.custom_messages(str) as second,
    ):
        assert broker.send_custom("@name:shop", "to shop") == 2
        assert broker.send_custom("@type:till", "to tills") == 2
        assert broker.send_custom("nobody", "x") == 0
        for received in (first, second):
            messages = [await next_of(received) for _ in range(2)]
            assert [(message.content_type, message.body) for message in messages] == [(0, "to shop"), (0, "to tills")]


async def test_a_custom_message_without_a_handler_is_dropped_and_counted() -> None:
    async with Broker() as broker, broker.client() as till:
        before = broker.stats().refused
        await till.send_custom(b"abc")
        await asyncio.to_thread(wait_until, lambda: broker.stats().refused == before + 1, limit=LIMIT)


async def test_a_client_that_takes_no_custom_messages_counts_them() -> None:
    async with Broker() as broker, broker.client(id="till") as till:
        assert broker.send_custom("till", b"x") == 1
        await asyncio.to_thread(wait_until, lambda: till.counters.unclaimed_direct == 1, limit=LIMIT)


async def test_sending_a_custom_message_needs_a_permission() -> None:
    broker, answers = answering(
        listen="tmqp://127.0.0.1:0",
        **restricted("push:orders/*"),
    )
    async with broker, mqcore.connect(broker.listeners[0]) as guest:
        await guest.send_custom(b"abc")
        with pytest.raises(errors.Unauthorized):
            await guest.create_queue("orders/1")
        assert answers.seen.empty()


async def test_options_of_a_channel_can_be_changed_and_survive_a_restart(tmp_path: Path) -> None:
    for round_ in range(2):
        async with Broker(data_dir=str(tmp_path)) as broker, broker.client() as till:
            if round_ == 0:
                await till.create_channel("orders", ChannelOptions(client_limit=3, queue_limit=1))
                await till.create_queue("orders/1")
                with pytest.raises(errors.LimitExceeded):
                    await till.create_queue("orders/2")
                changes = ChannelOptions(queue_limit=2, queue=QueueOptions(status="pull"))
                await till.update_channel("orders", changes)
                await till.create_queue("orders/2")
            shown = await till.channel_information("orders")
            assert (shown.client_limit, shown.queue_limit, shown.status) == (3, 2, "pull")
            assert [queue.status for queue in await till.queues("orders")] == ["push", "pull"]


async def test_a_missing_channel_cannot_be_changed() -> None:
    async with Broker() as broker, broker.client() as till:
        with pytest.raises(errors.NotFound):
            await till.update_channel("orders", ChannelOptions(queue_limit=2))
        await till.create_channel("orders")
        with pytest.raises(errors.BadRequest, match="no event handler has the key"):
            await till.update_channel("orders", ChannelOptions(event_handler="x"))


async def test_a_channel_gets_its_event_handler_by_a_change() -> None:
    produced: queue.Queue[bytes] = queue.Queue()

    class Hears(mqcore.EventHandler):
        def message_produced(self, queue: Any, message: mqcore.Message, producer: Any) -> None:
            produced.put(message.body)

    async with Broker(event_handlers={"hears": Hears()}) as broker, broker.client() as till:
        await till.create_queue("orders/1")
        await till.publish("orders/1", b"before")
        await till.update_channel("orders", ChannelOptions(event_handler="hears"))
        await till.publish("orders/1", b"after")
        assert await asyncio.to_thread(produced.get, timeout=LIMIT) == b"after"


async def test_a_disabled_router_takes_no_messages_until_it_is_enabled(tmp_path: Path) -> None:
    async with Broker(data_dir=str(tmp_path)) as broker, broker.client() as till:
        await till.create_queue("orders/1")
        await till.create_router("sort")
        await till.bind("sort", "orders/1")
        await till.disable_router("sort")
    async with Broker(data_dir=str(tmp_path)) as broker, broker.client() as till:
        assert [router.enabled for router in await till.routers()] == [False]
        with pytest.raises(errors.MqcoreError):
            await till.send("@router:sort", b"1", confirm=True)
        await till.enable_router("sort")
        await till.send("@router:sort", b"2", confirm=True)
        await asyncio.to_thread(wait_until, lambda: broker.stats().queue("orders/1").normal == 1, limit=LIMIT)
        with pytest.raises(errors.NotFound):
            await till.disable_router("nowhere")


async def test_an_administrator_and_the_program_disconnect_clients() -> None:
    async with (
        Broker(listen="tmqp://127.0.0.1:0") as broker,
        broker.client() as admin,
        mqcore.connect(broker.listeners[0], id="till", name="shop") as till,
    ):
        for disconnect in (
            lambda: admin.disconnect("till"),
            lambda: asyncio.to_thread(broker.disconnect, "@name:shop"),
        ):
            connects = till.counters.connects
            await disconnect()
            await asyncio.to_thread(wait_until, lambda: till.counters.connects == connects + 1, limit=LIMIT)  # noqa: B023
        with pytest.raises(errors.NotFound):
            await admin.disconnect("nobody")
        assert broker.disconnect("nobody") == 0


def test_a_disconnected_client_sees_its_connection_end() -> None:
    with Broker(listen="tmqp://127.0.0.1:0") as broker, TmqpPeer(*tmqp_address(broker)) as peer:
        peer.hello(Client_Id="raw")
        assert broker.disconnect("raw") == 1
        wait_until(lambda: not broker.stats().clients, limit=LIMIT)


@pytest.mark.parametrize("operation", [608, 632, 655])
def test_operations_of_administrators_are_refused_to_others(operation: int) -> None:
    rights = restricted("push,create,join,receive")
    with Broker(listen="tmqp://127.0.0.1:0", **rights) as broker, TmqpPeer(*tmqp_address(broker)) as peer:
        peer.hello()
        assert peer.ask(operation, "orders", headers={"Enabled": "yes"}).content_type == 401


async def test_channel_and_queue_information_read_back_every_option_and_the_counts() -> None:
    async with Broker() as broker, broker.client() as till:
        await till.create_queue("dead/1")
        options = QueueOptions(
            dead_letter="dead/1", delivery_handler="ack-on-consume", put_back_limit=3, durability="os", message_limit=1
        )
        await till.create_channel("orders", ChannelOptions(queue=options))
        await till.create_queue("orders/1", QueueOptions(request_acknowledge=True))
        async with till.queue("orders/1").consume() as messages:
            await till.publish("orders/1", b"1", confirm=False)
            message = await next_of(messages)
            shown = await till.queue_information("orders/1")
            assert (shown.in_flight, shown.consumers) == (1, 1)
            await message.ack()
        await till.publish("orders/1", b"2", confirm=False)
        await asyncio.to_thread(wait_until, lambda: broker.stats().queue("orders/1").normal == 1, limit=LIMIT)
        await till.clear_queue("orders/1")
        for information in (await till.queue_information("orders/1"), await till.channel_information("orders")):
            assert (information.dead_letter, information.delivery_handler) == ("dead/1", "ack-on-consume")
            assert (information.put_back_limit, information.durability) == (3, "os")
            assert information.message_limit == 1
        shown = await till.queue_information("orders/1")
        assert dict(shown.dropped_messages)["erased"] == 1
