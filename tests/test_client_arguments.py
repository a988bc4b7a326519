"""Arguments of clients: unknown ones are rejected where they are given, and one text is one name, not its letters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import mqcore
import mqcore.sync
from awaited import next_of, until
from mqcore import errors
from mqcore._core import AuthorityStore
from mqcore.authority import Authority, Hello, Identity
from mqcore.client import Client
from mqcore.client.messages import Delivered, Request
from mqcore.extensions import Extension
from served import serving, wait_until

SETTLED = mqcore.QueueOptions(status="roundrobin", request_acknowledge=True, retry_delay="60s")
"""A rejected message waits, so that a test sees it."""


@pytest.fixture
async def mq(broker: mqcore.Broker) -> AsyncIterator[Client]:
    async with mqcore.connect(broker.listeners[0]) as client:
        yield client


# --- keywords and values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "meant"), [("prefech", "prefetch"), ("manual_ak", "manual_ack")])
async def test_unknown_keyword_of_a_consumer_is_rejected_with_the_known_one(mq: Client, given: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"'{given}'; did you mean '{meant}'"):
        mq.queue("t/1").consume(**{given: 1})  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        mq.topic("t").subscribe(zzz=1)  # type: ignore[call-overload]


async def test_one_text_is_one_queue_of_copies(broker: mqcore.Broker, mq: Client) -> None:
    for queue in ("orders/1", "audit/1"):
        await mq.create_queue(queue, mqcore.QueueOptions(status="pull"))
    receipt = await mq.publish("orders/1", b"x", cc="audit/1")
    assert [(copy.queue, copy.status) for copy in receipt.copies] == [("audit/1", "confirmed")]
    assert [message.raw for message in await mq.queue("audit/1").pull(2)] == [b"x"]
    assert {channel.name for channel in await mq.channels()} == {"orders", "audit"}


async def test_one_text_is_one_event_of_a_queue() -> None:
    async with (
        mqcore.Broker(listen=("mqks://127.0.0.1:0",)) as broker,
        mqcore.connect(broker.listeners[0]) as mq,
        mq.queue("greetings").consume(events="hello") as messages,
    ):
        await mq.publish("h", "not for it")
        await mq.publish("hello", "world")
        assert (await next_of(messages)).raw == b"world"
        await mq.rebind("greetings", "bye")
        await mq.publish("hello", "nor this")
        await mq.publish("bye", "moon")
        assert (await next_of(messages)).raw == b"moon"


@pytest.mark.parametrize("count", [0, -1])
async def test_pull_of_no_message_is_rejected(mq: Client, count: int) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"at least 1 message, not {count}"):
        await mq.queue("t/1").pull(count)
    with pytest.raises(errors.InvalidArgument, match=f"at least 1 message, not {count}"):
        mq.queue("t/1").pull_stream(count)


async def test_unknown_method_of_a_router_is_rejected_with_the_known_ones(mq: Client) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"one of distribute, .*only-first.*, not 'rond-robin'"):
        await mq.create_router("r", "rond-robin")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: mqcore.QueueOptions(put_back_limit=65_536),
            "put_back_limit cannot be 65536; .* is 65535",
        ),
        (lambda: mqcore.QueueOptions(message_limit=2**64), "message_limit cannot be"),
        (lambda: mqcore.ChannelOptions(client_limit=2**32), "client_limit cannot be"),
        (lambda: mqcore.ChannelOptions(allowed_queues=(1, 70_000)), "allowed_queues cannot be 70000"),
    ],
)
def test_number_that_the_broker_cannot_hold_is_a_configuration_error(make: Callable[[], object], text: str) -> None:
    with pytest.raises(errors.ConfigError, match=text):
        make()


# --- handlers of a joined channel and of requests --------------------------------------------------------------------


async def test_handlers_of_a_joined_channel_are_functions_of_queues(mq: Client) -> None:
    with pytest.raises(TypeError, match="queue 1 needs a function"):
        mq.join("orders", {1: "on_order"})  # type: ignore[dict-item]
    with pytest.raises(errors.InvalidArgument, match="a queue id is a number from 0 to 65,535, not 70000"):
        mq.join("orders", {70_000: print})


class _Waiting:
    """An object that is called like an async function, though it is none."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def __call__(self, message: Delivered[bytes]) -> None:
        await asyncio.sleep(0)
        self.seen.append(message.raw)


def _around(function: Callable[[Any], Awaitable[object]]) -> Callable[[Any], object]:
    return lambda argument: function(argument)


@pytest.mark.parametrize("wrap", [lambda function: function, _around], ids=["object", "lambda"])
async def test_message_is_acknowledged_after_what_its_handler_returned_was_awaited(
    broker: mqcore.Broker, mq: Client, wrap: Callable[[_Waiting], Callable[[Delivered[bytes]], object]]
) -> None:
    await mq.create_queue("orders/1", SETTLED)
    waiting = _Waiting()
    async with mq.join("orders", {1: wrap(waiting)}):
        await mq.publish("orders/1", b"x")
        await until(lambda: broker.stats().queue("orders/1").acks == 1)
    assert waiting.seen == [b"x"]


async def test_request_is_answered_with_the_awaited_result(mq: Client, broker: mqcore.Broker) -> None:
    async def shout(request: Request[str]) -> str:
        return request.body.upper()

    async with mqcore.connect(broker.listeners[0], name="server") as server:
        serving = asyncio.ensure_future(server.serve(_around(shout), str))
        await asyncio.sleep(0)  # it takes requests from here on
        assert await mq.request("@name:server", "hi", reply=str) == "HI"
        serving.cancel()


def test_async_handler_of_a_blocking_client_rejects_its_message(broker: mqcore.Broker) -> None:
    """It would return before it ran, and the message would be acknowledged."""

    async def never(message: Delivered[bytes]) -> None:
        raise AssertionError

    with mqcore.sync.connect(broker.listeners[0]) as client:
        client.create_queue("orders/1", SETTLED)
        with client.join("orders", {1: never}):
            client.publish("orders/1", b"x")
            wait_until(lambda: broker.stats().queue("orders/1").negative_acks == 1)
        assert broker.stats().queue("orders/1").acks == 0
        assert broker.stats().queue("orders/1").delayed == 1


# --- methods that programs override ----------------------------------------------------------------------------------


class _Misspelt(Authority):
    def authorise(self, *_: object) -> bool:
        return False


class _TooFew(Authority):
    def authorize(self, client: mqcore.ClientView) -> bool:  # type: ignore[override]
        return False


def test_misspelt_method_of_an_authority_is_rejected() -> None:
    """The method of the base class would allow what the misspelt one denies."""
    with pytest.raises(TypeError, match=r"_Misspelt\.authorise is not a method of an authority.*mean authorize"):
        mqcore.Broker().authority = _Misspelt()
    with pytest.raises(TypeError, match=r"_TooFew\.authorize cannot be called with its 3 arguments"):
        mqcore.Broker().authority = _TooFew()


def test_method_with_the_wrong_number_of_arguments_is_rejected() -> None:
    class Short(mqcore.Router):
        def route(self, message: mqcore.Message) -> str:  # type: ignore[override]
            return "orders/1"

    class Sends(mqcore.BindingHandler):
        def send(self) -> bool:  # type: ignore[override]
            return True

    class Notes(Extension):
        name = "x-note"

        def received(self, payload: bytes) -> None:  # type: ignore[override]
            return None

    broker = mqcore.Broker()
    with pytest.raises(TypeError, match=r"Short\.route cannot be called with its 2 arguments"):
        broker.routers["r"] = Short()
    with pytest.raises(TypeError, match=r"Sends\.send cannot be called with its 2 arguments"):
        broker.binding_handlers["b"] = Sends()
    with pytest.raises(TypeError, match=r"Notes\.received cannot be called with its 2 arguments"):
        broker.add_extension(Notes())


# --- logins ----------------------------------------------------------------------------------------------------------


class _Tokens(Authority):
    def authenticate(self, hello: Hello) -> Identity | None:
        return Identity("ann", allow="*") if hello.token == "hers" else hello.identity


async def test_clients_that_an_authority_of_the_program_accepts_are_authenticated() -> None:
    broker = mqcore.Broker(listen=("tmqp://127.0.0.1:0",), authority=mqcore.config.AuthorityOptions(anonymous="push"))
    broker.authority = _Tokens()
    async with (
        broker,
        mqcore.connect(broker.listeners[0], token="hers", name="known") as known,
        mqcore.connect(broker.listeners[0], name="unknown"),
    ):
        assert {client.name: client.is_authenticated for client in await known.clients()} == {
            "known": True,
            "unknown": False,
        }


def test_clients_with_a_token_are_authenticated(tmp_path: Path) -> None:
    _, token = AuthorityStore.of_data_dir(tmp_path).add_token(json.dumps({"name": "t", "allow": ["*"]}))
    with serving("--data-dir", str(tmp_path)) as served, mqcore.sync.connect(served.url, token=token) as client:
        assert [known.is_authenticated for known in client.clients()] == [True]


def test_clients_without_a_login_are_not_authenticated(broker: mqcore.Broker) -> None:
    with mqcore.sync.connect(broker.listeners[0], token="checked-by-nobody") as client:
        assert [known.is_authenticated for known in client.clients()] == [False]
