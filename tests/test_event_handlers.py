"""Event handlers and authenticators of a program, and what handlers see of clients, queues and messages."""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import mqcore
from mqcore import Broker, ChannelOptions, Decision, QueueOptions, errors
from served import wait_until

LIMIT = 5.0


class Recorder(mqcore.EventHandler):
    """Records every event with what identifies it."""

    def __init__(self) -> None:
        self.seen: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.got: list[tuple[Any, ...]] = []

    def note(self, *event: Any) -> None:
        self.seen.put(event)

    def client_connected(self, client: mqcore.ClientView) -> None:
        self.note("client_connected", client.id)

    async def client_disconnected(self, client: mqcore.ClientView) -> None:
        self.note("client_disconnected", client.id)

    def channel_created(self, channel: mqcore.ChannelView) -> None:
        self.note("channel_created", channel.name, channel.client_limit, channel.queues)

    async def channel_removed(self, channel: mqcore.ChannelView) -> None:
        self.note("channel_removed", channel.name)

    def client_joined(self, channel: mqcore.ChannelView, client: mqcore.ClientView) -> None:
        self.note("client_joined", channel.name, channel.clients, client.id)

    def client_left(self, channel: mqcore.ChannelView, client: mqcore.ClientView) -> None:
        self.note("client_left", channel.name, channel.clients, client.id)

    def queue_created(self, queue: mqcore.QueueView) -> None:
        self.note("queue_created", queue.address, str(queue.status), queue.stats.options.tag)

    def queue_updated(self, queue: mqcore.QueueView) -> None:
        self.note("queue_updated", queue.address, queue.stats.options.message_limit)

    def queue_status_changed(self, queue: mqcore.QueueView, previous: mqcore.QueueStatus) -> None:
        self.note("queue_status_changed", queue.address, previous, queue.status)

    def queue_removed(self, queue: mqcore.QueueView) -> None:
        self.note("queue_removed", queue.address, queue.stats.normal)

    async def message_produced(
        self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
    ) -> None:
        self.note("message_produced", queue.address, message.body, producer.id, message.saved)

    def next(self, kind: str) -> tuple[Any, ...]:
        """The next event of a kind; those of other kinds come before or after it."""
        for place, event in enumerate(self.got):
            if event[0] == kind:
                return self.got.pop(place)
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                event = self.seen.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind} within {LIMIT:g} s, but {self.got}") from None
            if event[0] == kind:
                return event
            self.got.append(event)


def broker(**options: Any) -> Broker:
    return Broker(auto_create_channels=True, auto_create_queues=True, **options)


async def test_a_handler_of_the_broker_hears_about_every_kind_of_event() -> None:
    recorder = Recorder()
    watched = broker(event_handlers={"all": recorder}, event_handler="all", channel=ChannelOptions(client_limit=9))
    async with watched as mq, mq.client(id="till") as till:
        await till.create_queue("orders/1", QueueOptions(tag="new", status="pull"))
        await till.publish("orders/1", b"2 apples")
        async with mq.client(id="cook") as cook, cook.join("orders"):
            pass
        await till.update_queue("orders/1", QueueOptions(message_limit=7))
        await till.update_queue("orders/1", QueueOptions(status="paused"))
        await till.remove_channel("orders")
        expected = [
            ("client_connected", "till"),
            ("client_connected", "cook"),
            ("channel_created", "orders", 9, ()),
            ("queue_created", "orders/1", "pull", "new"),
            ("message_produced", "orders/1", b"2 apples", "till", False),
            ("client_joined", "orders", 1, "cook"),
            ("client_left", "orders", 0, "cook"),
            ("client_disconnected", "cook"),
            ("queue_updated", "orders/1", 7),
            ("queue_updated", "orders/1", 7),
            ("queue_status_changed", "orders/1", "pull", "paused"),
            ("queue_removed", "orders/1", 1),
            ("channel_removed", "orders"),
        ]
        for event in expected:
            assert await asyncio.to_thread(recorder.next, event[0]) == event
        assert recorder.seen.empty()
        assert recorder.got == []


async def test_a_handler_of_a_channel_hears_about_this_channel_only() -> None:
    own, every = Recorder(), Recorder()
    watched = broker(event_handlers={"own": own, "every": every}, event_handler="every")
    async with watched as mq, mq.client() as till:
        await till.create_channel("orders", ChannelOptions(event_handler="own"))
        await till.publish("bills/1", b"other")
        await till.publish("orders/1", b"mine")
        assert (await asyncio.to_thread(own.next, "message_produced"))[1:3] == ("orders/1", b"mine")
        assert (await asyncio.to_thread(every.next, "message_produced"))[1:3] == ("bills/1", b"other")
        assert (await asyncio.to_thread(every.next, "message_produced"))[1:3] == ("orders/1", b"mine")
        assert (await till.channel_information("orders")).event_handler == "own"
        assert all("bills" not in str(event) for event in own.got)


async def test_a_handler_registered_while_the_broker_runs_hears_about_existing_channels() -> None:
    watched = broker(event_handlers={"late": mqcore.EventHandler()}, event_handler="late")
    async with watched as mq, mq.client() as till:
        await till.publish("orders/1", b"before")
        late = mq.event_handlers["late"] = Recorder()
        await till.publish("orders/1", b"after")
        assert (await asyncio.to_thread(late.next, "message_produced"))[2] == b"after"


async def test_events_survive_a_restart_with_their_channel(tmp_path: Path) -> None:
    for body in (b"first", b"second"):
        recorder = Recorder()
        async with broker(event_handlers={"own": recorder}, data_dir=str(tmp_path)) as mq, mq.client() as till:
            if body == b"first":
                await till.create_channel("orders", ChannelOptions(event_handler="own"))
            await till.publish("orders/1", body)
            assert (await asyncio.to_thread(recorder.next, "message_produced"))[2] == body


@pytest.mark.parametrize("style", ["plain", "async"])
async def test_a_handler_that_raises_is_logged_and_counted_and_affects_no_client(
    style: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Plain(mqcore.EventHandler):
        def message_produced(self, queue: object, message: object, producer: object) -> None:
            raise SystemExit("no events today")

    class Async(mqcore.EventHandler):
        async def message_produced(self, queue: object, message: object, producer: object) -> None:
            raise ValueError("no events today")

    failing = Plain() if style == "plain" else Async()
    with caplog.at_level(logging.ERROR, logger="mqcore.handlers"):
        async with broker(event_handlers={"bad": failing}, event_handler="bad") as mq, mq.client() as till:
            for number in range(3):
                assert (await till.publish("orders/1", b"%d" % number)).by == "server"

            def counted() -> bool:
                return [stats.failed for stats in mq.stats().handlers] == [3]

            await asyncio.to_thread(wait_until, counted, limit=LIMIT)
            assert mq.stats().queue("orders/1").normal == 3
            assert [stats.key for stats in mq.stats().handlers] == ["event handler bad"]
    assert any("event handler 'bad' raised in message_produced" in record.message for record in caplog.records)


async def test_a_handler_that_sleeps_delays_no_client() -> None:
    release = threading.Event()

    class Slow(mqcore.EventHandler):
        def message_produced(self, queue: object, message: object, producer: object) -> None:
            release.wait(30)

    async with broker(event_handlers={"slow": Slow()}, event_handler="slow") as mq, mq.client() as till:
        try:
            async with asyncio.timeout(LIMIT):
                for number in range(100):
                    await till.publish("orders/1", b"%d" % number)
        finally:
            release.set()


def test_a_method_that_is_misspelt_or_takes_other_arguments_is_rejected_when_registered() -> None:
    class Misspelt(mqcore.EventHandler):
        def client_conected(self, client: object) -> None:
            raise AssertionError("nothing calls this")

    class Short(mqcore.EventHandler):
        def client_joined(self, channel: object) -> None:  # type: ignore[override]
            raise AssertionError("nothing calls this")

    mq = Broker()
    with pytest.raises(TypeError, match="did you mean client_connected"):
        mq.event_handlers["a"] = Misspelt()
    with pytest.raises(TypeError, match=r"client_joined cannot be called with its 2 arguments \(channel, client\)"):
        mq.event_handlers["a"] = Short()
    with pytest.raises(TypeError, match=r"subclass of mqcore\.EventHandler"):
        mq.event_handlers["a"] = mqcore.DeliveryHandler()  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"subclass of mqcore\.Authenticator"):
        mq.authenticators["a"] = Recorder()  # type: ignore[assignment]


METHODS = {
    name: len(inspect.signature(method).parameters) - 1
    for name, method in vars(mqcore.EventHandler).items()
    if inspect.isfunction(method) and not name.startswith("_")
}
"""The documented methods with their numbers of arguments."""


def taking(name: str, arguments: int) -> mqcore.EventHandler:
    """A handler whose method takes so many arguments."""
    names = ", ".join(f"argument{number}" for number in range(arguments))
    method = eval(f"lambda self, {names}: None")
    return type("Counted", (mqcore.EventHandler,), {name: method})()


@pytest.mark.parametrize("name", METHODS)
def test_each_method_of_an_event_handler_takes_its_arguments(name: str) -> None:
    mq = Broker()
    handler = mq.event_handlers["a"] = taking(name, METHODS[name])
    assert mq.event_handlers["a"] is handler
    for other in (METHODS[name] - 1, METHODS[name] + 1):
        with pytest.raises(TypeError, match=f"{name} cannot be called with its {METHODS[name]} arguments"):
            mq.event_handlers["b"] = taking(name, other)
    assert list(mq.event_handlers) == ["a"]


def test_key_of_a_handler_is_not_empty() -> None:
    mq = Broker()
    with pytest.raises(mqcore.errors.ConfigError, match="the key of an event handler has at least one character"):
        mq.event_handlers[""] = mqcore.EventHandler()
    with pytest.raises(KeyError):
        mq.event_handlers["a"]
    assert len(mq.event_handlers) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"event_handler": "audti"}, "event_handler: no event handler has the key 'audti'; did you mean 'audit'?"),
        ({"channel": ChannelOptions(event_handler="x")}, "channel.event_handler: no event handler has the key 'x'"),
        ({"channel": ChannelOptions(authenticator="x")}, "channel.authenticator: no authenticator has the key 'x'"),
    ],
)
def test_a_broker_that_names_an_unknown_handler_does_not_start(options: Any, text: str) -> None:
    mq = Broker(event_handlers={"audit": Recorder()}, **options)
    with pytest.raises(errors.ConfigError) as refused:
        mq.start()
    assert text in str(refused.value)


async def test_a_channel_that_names_an_unknown_handler_is_rejected() -> None:
    async with broker(event_handlers={"audit": Recorder()}) as mq, mq.client() as till:
        with pytest.raises(errors.BadRequest, match=r'no event handler has the key "audti" \(registered: audit\)'):
            await till.create_channel("orders", ChannelOptions(event_handler="audti"))
        with pytest.raises(errors.BadRequest, match=r'no authenticator has the key "staff" \(none is registered\)'):
            await till.create_channel("orders", ChannelOptions(authenticator="staff"))
        mq.event_handlers["silent"] = mqcore.EventHandler()
        mq.authenticators["staff"] = Staff()
        for key, kind in (
            ("audit", "an event handler"),
            ("event handler audit", "an event handler"),
            ("event handler silent", "an event handler"),
            ("staff", "an authenticator"),
        ):
            with pytest.raises(errors.BadRequest, match=f'no delivery handler has the key "{key}".*is {kind}'):
                await till.create_queue("orders/1", QueueOptions(delivery_handler=key))
        assert mq.stats().queues == ()


def test_a_configuration_that_names_an_event_handler_as_a_delivery_handler_is_rejected() -> None:
    mq = broker(event_handlers={"audit": Recorder()}, delivery_handler="audit")
    with pytest.raises(errors.ConfigError, match="'audit' is an event handler"):
        mq.start()


class Staff(mqcore.Authenticator):
    """Lets clients of type `staff` in."""

    def __init__(self, answer: Any = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answer = answer

    def authenticate(self, channel: str, client: mqcore.ClientView) -> Any:
        self.asked.append((channel, client.id))
        return client.kind == "staff" if self.answer is None else self.answer()


async def test_an_authenticator_decides_who_joins() -> None:
    staff = Staff()
    closed = broker(authenticators={"staff": staff}, channel=ChannelOptions(authenticator="staff"))
    async with closed as mq, mq.client(id="cook", kind="staff") as cook, mq.client(id="guest") as guest:
        await cook.publish("orders/1", b"soup")
        async for message in cook.queue("orders/1").consume():
            assert message.body == b"soup"
            break
        with pytest.raises(errors.Unauthorized, match="the authenticator of the channel refuses this client"):
            async for _ in guest.queue("orders/1").consume():
                pass
        with pytest.raises(errors.Unauthorized):
            async with guest.join("orders"):
                pass
        assert (await cook.channel_information("orders")).authenticator == "staff"
        assert ("orders", "cook") in staff.asked
        assert ("orders", "guest") in staff.asked


@pytest.mark.parametrize("protocol", ["mqks", "mm2"])
async def test_an_authenticator_decides_in_other_protocols_too(protocol: str) -> None:
    staff = Staff()
    closed = broker(
        listen=f"{protocol}://127.0.0.1:0",
        authenticators={"staff": staff},
        channel=ChannelOptions(authenticator="staff"),
    )
    async with closed as mq, mqcore.connect(mq.listeners[0]) as guest:
        with pytest.raises(errors.MqcoreError):
            await asyncio.wait_for(anext(aiter(guest.queue("orders").consume())), LIMIT)
        assert [channel for channel, _ in staff.asked] == ["orders"]


def fails() -> bool:
    raise ValueError("the directory is down")


@pytest.mark.parametrize("answer", [fails, lambda: "yes"], ids=["raises", "no bool"])
async def test_an_authenticator_that_fails_lets_no_client_in(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    closed = broker(authenticators={"staff": Staff(answer)}, channel=ChannelOptions(authenticator="staff"))
    with caplog.at_level(logging.ERROR, logger="mqcore.handlers"):
        async with closed as mq, mq.client() as guest:
            with pytest.raises(errors.Unauthorized, match="the authenticator of the channel failed"):
                async with guest.join("orders"):
                    pass
    assert any("authenticator 'staff' raised" in record.message for record in caplog.records)


async def test_an_authenticator_that_is_late_lets_no_client_in() -> None:
    class Late(mqcore.Authenticator):
        timeout = "100ms"

        async def authenticate(self, channel: str, client: mqcore.ClientView) -> bool:
            await asyncio.sleep(LIMIT * 2)
            return True

    closed = broker(authenticators={"late": Late()}, channel=ChannelOptions(authenticator="late"))
    async with closed as mq, mq.client() as guest, asyncio.timeout(LIMIT):
        with pytest.raises(errors.Unauthorized):
            async with guest.join("orders"):
                pass


async def test_a_restart_without_the_authenticator_keeps_the_channel_closed(tmp_path: Path) -> None:
    async with broker(authenticators={"staff": Staff()}, data_dir=str(tmp_path)) as mq, mq.client() as till:
        await till.create_channel("orders", ChannelOptions(authenticator="staff"))
    async with broker(data_dir=str(tmp_path)) as mq, mq.client(kind="staff") as cook:
        with pytest.raises(errors.Busy, match="the authenticator staff of channel orders is not registered"):
            async with cook.join("orders"):
                pass
        mq.authenticators["staff"] = Staff()
        async with cook.join("orders"):
            pass


def test_a_handler_sees_the_connection_data_of_a_client(connect: Any) -> None:
    seen: queue.Queue[mqcore.ClientView] = queue.Queue()

    class Clients(mqcore.EventHandler):
        def client_connected(self, client: mqcore.ClientView) -> None:
            seen.put(client)

    with Broker(listen="tmqp://127.0.0.1:0", event_handlers={"clients": Clients()}) as mq:
        with mqcore.sync.connect(mq.listeners[0], name="till", properties={"Region": "eu", "Shop": "7"}):
            client = seen.get(timeout=LIMIT)
        assert (client.name, client.protocol, client.method) == ("till", "tmqp", "CONNECT")
        assert client.path
        assert dict(client.properties) == {"Region": "eu", "Shop": "7"}
        with pytest.raises(TypeError):
            client.properties["Region"] = "us"  # type: ignore[index]


async def test_a_handler_sees_counts_options_and_consumers_of_its_queue() -> None:
    seen: list[tuple[Any, ...]] = []

    class Asks(mqcore.DeliveryHandler):
        def received_from_producer(self, queue: Any, message: Any, producer: Any) -> Decision:
            stats = queue.stats
            seen.append((stats.normal, stats.high_priority, stats.consumers, stats.options.tag, stats.options.status))
            return Decision(acknowledge=mqcore.SendAck.ALWAYS)

        async def begin_send(self, queue: Any, message: Any) -> Decision:
            seen.append(("sending", queue.stats.consumers))
            return Decision()

    mq = broker(delivery_handler="asks", channel=ChannelOptions(queue=QueueOptions(tag="t")))
    mq.delivery_handlers["asks"] = Asks()
    async with mq, mq.client() as till:
        await till.publish("orders/1", b"1", high_priority=True)
        await till.publish("orders/1", b"2")
        assert seen == [(0, 0, 0, "t", "push"), (0, 1, 0, "t", "push")]
        async for message in till.queue("orders/1").consume():
            assert message.body == b"1"
            break
        assert seen[2] == ("sending", 1)


async def test_a_handler_sees_whether_a_message_is_saved_when_it_came_and_its_attempt(tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    begun = time.time()

    class Asks(mqcore.DeliveryHandler):
        policy = "at-least-once"

        def received_from_producer(self, queue: Any, message: Any, producer: Any) -> Decision:
            seen.append((message.saved, message.attempt, begun - 1 < message.received_at < time.time() + 1))
            return Decision(save=True)

        def begin_send(self, queue: Any, message: Any) -> Decision:
            seen.append((message.saved, message.attempt, begun - 1 < message.received_at < time.time() + 1))
            return Decision()

        def acknowledge_received(self, queue: Any, acknowledgement: Any, delivery: Any) -> Decision:
            seen.append((delivery.message.saved, delivery.message.attempt, delivery.attempt))
            return Decision()

    mq = broker(
        delivery_handler="asks",
        data_dir=str(tmp_path),
        channel=ChannelOptions(queue=QueueOptions(request_acknowledge=True)),
    )
    mq.delivery_handlers["asks"] = Asks()
    async with mq, mq.client() as till:
        await till.publish("orders/1", b"1", confirm=False)
        async for message in till.queue("orders/1").consume():
            await message.ack()
            break
        await asyncio.to_thread(wait_until, lambda: len(seen) == 3, limit=LIMIT)
        assert seen == [(False, 0, True), (True, 0, True), (True, 1, 1)]


@pytest.mark.parametrize("step", ["received_from_producer", "begin_send"])
async def test_headers_of_a_handler_reach_consumers_before_those_of_the_producer(step: str, tmp_path: Path) -> None:
    added = Decision(save=True, headers={"Checked-By": "asks", "Country": "fr"})
    kind = type("Adds", (mqcore.DeliveryHandler,), {step: lambda self, *arguments: added})
    assert added.headers == {"Checked-By": "asks", "Country": "fr"}
    assert added != Decision(save=True)
    mq = broker(delivery_handler="adds", data_dir=str(tmp_path))
    mq.delivery_handlers["adds"] = kind()
    async with mq, mq.client() as till:
        await till.publish("orders/1", b"1", headers={"Country": "de", "Shop": "7"}, confirm=False)
        async for message in till.queue("orders/1").consume():
            assert message.body == b"1"
            assert {key: message.headers.get(key) for key in ("Checked-By", "Country", "Shop")} == {
                "Checked-By": "asks",
                "Country": "fr",
                "Shop": "7",
            }
            break


async def test_saved_headers_of_a_handler_survive_a_restart(tmp_path: Path) -> None:
    class Adds(mqcore.DeliveryHandler):
        def received_from_producer(self, queue: Any, message: Any, producer: Any) -> Decision:
            return Decision(save=True, acknowledge=mqcore.SendAck.IF_SAVED, headers={"Checked": "yes"})

    for body in (b"1", None):
        mq = broker(delivery_handler="adds", data_dir=str(tmp_path))
        mq.delivery_handlers["adds"] = Adds()
        async with mq, mq.client() as till:
            if body:
                await till.publish("orders/1", body)
                continue
            async for message in till.queue("orders/1").consume():
                assert (message.body, message.headers["Checked"]) == (b"1", "yes")
                break


def test_headers_that_cannot_be_are_rejected() -> None:
    with pytest.raises(ValueError, match='header "a:b"'):
        Decision(headers={"a:b": "c"})
    with pytest.raises(ValueError, match="Unique-Key"):
        Decision(headers={"unique-key": "c"})


async def test_headers_at_another_step_are_an_error_of_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    class Late(mqcore.DeliveryHandler):
        def end_send(self, queue: Any, message: Any) -> Decision:
            return Decision(headers={"Too": "late"})

    mq = broker(delivery_handler="late")
    mq.delivery_handlers["late"] = Late()
    with caplog.at_level(logging.ERROR, logger="mqcore.handlers"):
        async with mq, mq.client() as till:
            await till.publish("orders/1", b"1")
            async for message in till.queue("orders/1").consume():
                assert message.headers.get("Too") is None
                break
            await asyncio.to_thread(wait_until, lambda: bool(caplog.records), limit=LIMIT)
    assert "headers can be added in received_from_producer and begin_send" in str(caplog.records[0].exc_info)
