"""Arguments and options of the client's calls: each test fails if the client ignores one of them."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator

import pytest

import mqcore
from awaited import next_of
from mqcore import errors
from mqcore._option_table import CHANNEL_OPTIONS, QUEUE_OPTIONS
from mqcore.client import (
    ChannelInformation,
    Client,
    ClientInformation,
    ClientOptions,
    Event,
    NodeInformation,
    QueueInformation,
    RouterInformation,
)
from mqcore.client.options import Clear, target_and_options
from served import ROOT

PULL = mqcore.QueueOptions(status="pull")
PASSED_ON = mqcore.QueueOptions(status="push", request_acknowledge=True, delivery_handler="ack-on-consume")
"""The producer learns what its consumer answered, and waits for as long as it does not."""

SOON = 5.0
"""Seconds; less than the 15 that the client and the queue wait unless a call or an option says otherwise."""


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    async with mqcore.connect(broker.listeners[0]) as client:
        yield client


# --- options ---------------------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """A default as the documentation writes it."""
    units = {"MiB": 1 << 20}
    if isinstance(value, int) and value >= units["MiB"]:
        return f"{value // units['MiB']} MiB"
    if isinstance(value, float):
        return "0" if value == 0 else f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"
    return f"{value:,}"


def test_defaults_of_client_options_are_those_in_the_documentation() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text().partition("## Clients: ")[2]
    documented = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", page.partition("\n## ")[0], flags=re.MULTILINE))
    defaults = {
        field.name: shown(field.default)
        for field in dataclasses.fields(ClientOptions)
        if isinstance(field.default, int | float)
    }
    assert len(defaults) == 12
    assert {name: documented[name] for name in defaults} == defaults


def test_what_a_server_does_not_report_is_zero_false_or_missing() -> None:
    """Servers of the original have fewer members."""
    allowed = {"allow_multiple_queues", "use_message_id"}
    for model in (ChannelInformation, QueueInformation, ClientInformation, NodeInformation, RouterInformation, Event):
        given = {field.name: field.default for field in dataclasses.fields(model)}
        defaults = {name: default for name, default in given.items() if default is not dataclasses.MISSING}
        assert {name for name, default in defaults.items() if default} <= allowed
        assert all(defaults[name] is True for name in allowed & set(defaults))


async def test_leaving_a_stream_ends_its_reader_in_another_task(mq: Client) -> None:
    async def read() -> object:
        return await anext(requests, None)

    async with mq.requests() as requests:
        reading = asyncio.create_task(read())
        for _ in range(10):
            await asyncio.sleep(0)
    assert await asyncio.wait_for(reading, SOON) is None


async def test_queue_publishes_like_its_client(mq: Client) -> None:
    queue = mq.queue("orders/1")
    await mq.create_queue("orders/1", PULL)
    receipts = [await queue.publish(b"a", id="first"), *await queue.publish_many([b"b", b"c"])]
    assert [receipt.by for receipt in receipts] == ["server"] * 3
    assert [message.raw for message in await queue.pull(9)] == [b"a", b"b", b"c"]


def test_credentials_are_in_no_text_of_the_options() -> None:
    for options in (ClientOptions(token="s3cret"), ClientOptions(user="ann", password="s3cret")):
        assert "s3cret" not in repr(options)
        assert "s3cret" not in repr(mqcore.connect("tmqp://127.0.0.1:1", token="s3cret"))


def test_credentials_of_urls_are_options_and_may_be_named_once() -> None:
    for url, options in (
        ("tmqp://s3cret@broker", ClientOptions(token="s3cret")),
        ("tmqp://ann:pw@broker", ClientOptions(user="ann", password="pw")),
        ("tmqp://broker", ClientOptions()),
    ):
        target, found = target_and_options([url, "tmqp://other"], ClientOptions())
        assert (target, found.token) == (["tmqp://broker", "tmqp://other"], options.token)
    same = ["tmqp://s3cret@broker", "tmqp://s3cret@other"]
    assert target_and_options(same, ClientOptions())[0] == ["tmqp://broker", "tmqp://other"]
    assert target_and_options("tmqp://broker", ClientOptions(token="s3cret"))[1].token is not None
    for urls, named in ((["tmqp://one@broker", "tmqp://two@other"], None), (same, "s3cret")):
        with pytest.raises(errors.ConfigError):
            target_and_options(urls, ClientOptions(token=named))


def test_flags_that_a_server_does_not_send_have_the_defaults_of_the_options() -> None:
    declared = {option.name: option.default for option in (*QUEUE_OPTIONS, *CHANNEL_OPTIONS) if option.kind == "flag"}
    for model in (ChannelInformation, QueueInformation):
        defaults = {field.name: field.default for field in dataclasses.fields(model) if field.name in declared}
        assert len(defaults) >= 3
        assert defaults == {name: declared[name] for name in defaults}


async def test_request_timeout_limits_calls_that_set_none(broker: mqcore.Broker) -> None:
    async with (
        mqcore.connect(broker.listeners[0], request_timeout="50ms") as mq,
        mqcore.connect(broker.listeners[0], id="mute") as mute,
        mute.requests(),
    ):
        await mq.declare("orders", 1, dataclasses.replace(PULL, delivery_handler="ack-on-consume"))
        with pytest.raises(errors.ConfirmTimeout):
            await asyncio.wait_for(mq.publish("orders/1", b"x"), SOON)
        with pytest.raises(errors.ConfirmTimeout):
            await asyncio.wait_for(mq.publish_many("orders/1", [b"x"]), SOON)
        with pytest.raises(errors.RequestTimeout):
            await asyncio.wait_for(mq.request("mute", b"x"), SOON)


# --- publishing ------------------------------------------------------------------------------------------------------


async def test_many_published_messages_have_the_priority_headers_and_copies_of_the_call(mq: Client) -> None:
    for channel in ("orders", "copies"):
        await mq.declare(channel, 1, PULL)
    await mq.publish_many("orders/1", [b"1", b"2"])
    headers = {"Kind": "urgent"}
    await mq.publish_many("orders/1", [b"3", b"4"], high_priority=True, headers=headers, cc=["copies/1"])
    found = await mq.queue("orders", 1).pull(9)
    assert [(message.raw, message.high_priority, message.headers.get("Kind")) for message in found] == [
        (b"3", True, "urgent"),
        (b"4", True, "urgent"),
        (b"1", False, None),
        (b"2", False, None),
    ]
    assert [message.raw for message in await mq.queue("copies", 1).pull(9)] == [b"3", b"4"]


async def test_many_messages_are_published_without_confirmation_if_asked(mq: Client) -> None:
    receipts = await mq.publish_many("orders/1", [b"1", b"2"], confirm=False)
    assert [receipt.by for receipt in receipts] == [None] * 2


async def test_timeout_of_a_call_that_publishes_many_limits_its_wait(mq: Client) -> None:
    await mq.declare("orders", 1, dataclasses.replace(PULL, delivery_handler="ack-on-consume"))
    with pytest.raises(errors.ConfirmTimeout):
        await asyncio.wait_for(mq.publish_many("orders/1", [b"x"], timeout="50ms"), SOON)


# --- settling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [KeyError("x"), asyncio.CancelledError()], ids=["exception", "cancellation"])
async def test_process_that_raises_rejects_with_the_name_of_the_exception(mq: Client, raised: BaseException) -> None:
    await mq.declare("orders", 1, PASSED_ON)
    async with mq.queue("orders", 1).consume() as messages:
        publishing = asyncio.ensure_future(mq.publish("orders/1", b"x"))
        with pytest.raises(type(raised)):
            async with (await next_of(messages)).process():
                raise raised
        with pytest.raises(errors.Nacked) as caught:
            await asyncio.wait_for(publishing, SOON)
    assert caught.value.reason == type(raised).__name__


async def test_process_that_succeeds_acknowledges(mq: Client) -> None:
    await mq.declare("orders", 1, PASSED_ON)
    async with mq.queue("orders", 1).consume() as messages:
        publishing = asyncio.ensure_future(mq.publish("orders/1", b"x"))
        async with (await next_of(messages)).process():
            pass
        assert (await asyncio.wait_for(publishing, SOON)).by == "consumer"


async def test_reason_of_a_rejection_is_none_unless_it_is_given(mq: Client) -> None:
    await mq.declare("orders", 1, PASSED_ON)
    async with mq.queue("orders", 1).consume() as messages:
        publishing = asyncio.ensure_future(mq.publish("orders/1", b"x"))
        assert await (await next_of(messages)).nack()
        with pytest.raises(errors.Nacked) as caught:
            await asyncio.wait_for(publishing, SOON)
    assert caught.value.reason == "none"


# --- pulling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clear", "left"), [(None, (1, 1)), ("all", (0, 0)), ("high-priority", (0, 1)), ("normal", (1, 0))]
)
async def test_pull_clears_the_messages_of_the_chosen_priority(
    mq: Client, clear: Clear | None, left: tuple[int, int]
) -> None:
    await mq.declare("orders", 1, PULL)
    await mq.publish_many("orders/1", [b"high", b"higher"], high_priority=True)
    await mq.publish("orders/1", b"normal")
    batch = await mq.queue("orders", 1).pull(1, clear=clear)
    assert [message.raw for message in batch] == [b"high"]
    information = await mq.queue_information("orders/1")
    assert (information.priority_messages, information.messages) == left


async def test_declared_queue_has_the_tag_and_the_options_of_the_call(mq: Client) -> None:
    assert await mq.declare("orders", 1, PULL, tag="fruit")
    assert await mq.declare("orders", 2, tag="bread")
    assert await mq.declare("orders", 3, mqcore.QueueOptions(status="pull", tag="milk"))
    assert not await mq.declare("orders", 3, tag="fish")
    found = sorted((queue.id, queue.tag_name, queue.status) for queue in await mq.queues("orders"))
    assert found == [(1, "fruit", "pull"), (2, "bread", "push"), (3, "milk", "pull")]


@pytest.mark.parametrize(
    ("options", "left"), [({}, (0, 0)), ({"high_priority": False}, (1, 0)), ({"normal": False}, (0, 1))]
)
async def test_clear_queue_removes_both_priorities_unless_one_is_left_out(
    mq: Client, options: dict[str, bool], left: tuple[int, int]
) -> None:
    await mq.declare("orders", 1, PULL)
    await mq.publish("orders/1", b"high", high_priority=True)
    await mq.publish("orders/1", b"normal")
    await mq.clear_queue("orders/1", **options)
    information = await mq.queue_information("orders/1")
    assert (information.priority_messages, information.messages) == left


async def test_pull_names_the_order_and_the_clearing_that_it_does_not_know(mq: Client) -> None:
    queue = mq.queue("orders", 1)
    with pytest.raises(errors.InvalidArgument, match="'random'"):
        await queue.pull(1, order="random")  # type: ignore[call-overload]
    with pytest.raises(errors.InvalidArgument, match="'most'"):
        await queue.pull(1, clear="most")  # type: ignore[call-overload]


# --- clients ---------------------------------------------------------------------------------------------------------


async def test_direct_messages_reach_the_oldest_client_or_all_of_them(broker: mqcore.Broker, mq: Client) -> None:
    async with (
        mqcore.connect(broker.listeners[0], kind="worker") as first,
        mqcore.connect(broker.listeners[0], kind="worker") as second,
        first.requests() as to_first,
        second.requests() as to_second,
    ):
        asking = asyncio.ensure_future(mq.request("@type:worker", b"for one"))
        await (await next_of(to_first)).respond(b"first")
        assert (await asking).raw == b"first"
        asking = asyncio.ensure_future(mq.request("@type:worker", b"for all", one=False))
        # A direct message for the second client would have come before this one.
        request = await next_of(to_second)
        assert request.raw == b"for all"
        await request.respond(b"second")
        assert (await asking).raw == b"second"
        assert (await next_of(to_first)).raw == b"for all"
        await mq.send("@type:worker", b"for one", one=True)
        await mq.send("@type:worker", b"for all")
        assert [(await next_of(to_first)).raw for _ in range(2)] == [b"for one", b"for all"]
        assert (await next_of(to_second)).raw == b"for all"


async def test_request_carries_its_headers_and_content_type(broker: mqcore.Broker, mq: Client) -> None:
    async with mqcore.connect(broker.listeners[0], id="other") as other, other.requests() as requests:
        asking = asyncio.ensure_future(mq.request("other", b"x", headers={"Kind": "a"}, content_type=1234))
        request = await next_of(requests)
        assert (request.headers["Kind"], request.content_type, request.wants_response) == ("a", 1234, True)
        await request.respond()
        response = await asking
        assert (response.raw, response.content_type) == (b"", 0)
        await mq.send("other", b"x", headers={"Kind": "b"}, content_type=4321, id="mine", high_priority=True)
        message = await next_of(requests)
        assert (message.headers["Kind"], message.content_type, message.id) == ("b", 4321, "mine")
        assert (message.high_priority, message.wants_response, message.wants_acknowledge) == (True, False, False)


async def test_served_messages_without_a_response_are_acknowledged_or_rejected(
    broker: mqcore.Broker, mq: Client
) -> None:
    def refuse_b(request: mqcore.client.Request[bytes]) -> None:
        if request.body == b"b":
            raise LookupError("b")

    async with mqcore.connect(broker.listeners[0], id="other") as other:
        serving = asyncio.ensure_future(other.serve(refuse_b))
        await asyncio.sleep(0)
        await mq.send("other", b"a", confirm=True, timeout=SOON)
        with pytest.raises(errors.Nacked) as caught:
            await mq.send("other", b"b", confirm=True, timeout=SOON)
        assert caught.value.reason == "LookupError"
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


# --- closing ---------------------------------------------------------------------------------------------------------


async def test_close_lets_calls_in_progress_finish_and_rejects_new_ones(broker: mqcore.Broker, mq: Client) -> None:
    await mq.declare("orders", 1, PASSED_ON)
    leaving = await mqcore.connect(broker.listeners[0], drain_timeout="60s")
    async with mq.queue("orders", 1).consume() as messages:
        publishing = asyncio.ensure_future(leaving.publish("orders/1", b"x"))
        message = await next_of(messages)
        closing = asyncio.ensure_future(leaving.close())
        await asyncio.sleep(0)
        with pytest.raises(errors.Draining):
            await leaving.publish("orders/1", b"y")
        assert not publishing.done()
        assert not closing.done()
        await message.ack()
        assert (await publishing).by == "consumer"
        await asyncio.wait_for(closing, SOON)
    assert leaving.state.status == "closed"


async def test_call_right_behind_a_close_is_rejected(broker: mqcore.Broker, mq: Client) -> None:
    await mq.declare("orders", 1, PULL)
    for _ in range(50):
        leaving = await mqcore.connect(broker.listeners[0])
        closing = asyncio.ensure_future(leaving.close())
        await asyncio.sleep(0)
        with pytest.raises(errors.Draining):
            await leaving.publish("orders/1", b"late")
        await asyncio.wait_for(closing, SOON)
    assert (await mq.queue_information("orders/1")).messages == 0


@pytest.mark.parametrize("option", [True, False], ids=["drain_timeout of the client", "drain of the call"])
async def test_close_waits_no_longer_than_its_drain(broker: mqcore.Broker, mq: Client, option: bool) -> None:
    await mq.declare("orders", 1, dataclasses.replace(PULL, delivery_handler="ack-on-consume"))
    leaving = await mqcore.connect(broker.listeners[0], drain_timeout="50ms" if option else "60s")
    publishing = asyncio.ensure_future(leaving.publish("orders/1", b"x", timeout="60s"))
    await asyncio.sleep(0)
    await asyncio.wait_for(leaving.close(None if option else "50ms"), SOON)
    with pytest.raises(errors.TransportError):
        await asyncio.wait_for(publishing, SOON)


async def test_client_is_connected_once_however_often_it_is_awaited(broker: mqcore.Broker) -> None:
    client = mqcore.connect(broker.listeners[0])
    assert await client is client
    first = client.id
    async with client:
        assert client.id == first
        assert client.counters.connects == 1


async def test_states_end_after_their_idle_timeout(mq: Client) -> None:
    async with asyncio.timeout(SOON):
        assert [state.status async for state in mq.states(idle_timeout="50ms")] == ["connected"]
