"""Routers and bindings written in Python: plain, async, raising, slow, returning invalid values; used over the wire."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import mqcore
from mqcore import Binding, BindingHandler, Router, errors
from protocols.conversation import (
    ADD_BINDING,
    ENABLE_ROUTER,
    FAILED,
    NOT_FOUND,
    REMOVE_BINDING,
    REMOVE_ROUTER,
    UNACCEPTABLE,
    Client,
    Connect,
    Eventually,
    StartBroker,
)
from tmqp_peer import RawFrame

Route = Callable[[mqcore.Message, mqcore.ClientView], Any]


def router(style: str, route: Route, **attributes: Any) -> Router:
    """A router whose `route` is a plain or an async method."""

    def plain(self: Router, message: mqcore.Message, publisher: mqcore.ClientView) -> Any:
        return route(message, publisher)

    async def awaited(self: Router, message: mqcore.Message, publisher: mqcore.ClientView) -> Any:
        await asyncio.sleep(0)
        return route(message, publisher)

    made: Router = type("Made", (Router,), {"route": plain if style == "plain" else awaited, **attributes})()
    return made


@pytest.fixture(params=["plain", "async"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def queues(broker: mqcore.Broker, producer: Client) -> list[str]:
    for channel in ("a", "b"):
        producer.create_queue(channel, 1, Status="pull")
    return ["a/1", "b/1"]


def reason(frame: RawFrame) -> str | None:
    return frame.header("Nack-Reason")


def test_a_router_says_where_each_message_goes(
    broker: mqcore.Broker, producer: Client, queues: list[str], style: str
) -> None:
    seen: list[tuple[str, str, str | None, bytes]] = []

    def route(message: mqcore.Message, publisher: mqcore.ClientView) -> str:
        seen.append((message.id, publisher.id, message.headers.get("To"), message.body))
        return f"{message.headers['To']}/1"

    broker.routers["r"] = router(style, route)
    ids = [producer.routed("r", b"x", headers=[("To", to)]).id.decode() for to in ("a", "b", "a")]
    assert [producer.stored("a"), producer.stored("b")] == [(0, 2), (0, 1)]
    assert seen == [(message, "prod", to, b"x") for message, to in zip(ids, "aba", strict=True)]


@pytest.mark.parametrize(
    ("answer", "stored", "answered"),
    [
        (["a/1", "b/1"], (1, 1), None),
        (("a/1", Binding("b/1")), (1, 1), None),
        (Binding("b/1"), (0, 1), None),
        ("none/1", (0, 0), "no-consumers"),
        (["none/1", "a/1"], (1, 0), None),
        ([], (0, 0), "no-consumers"),
        (None, (0, 0), "no-consumers"),
        (False, (0, 0), "no-consumers"),
        (True, (0, 0), None),
    ],
)
def test_a_router_may_name_any_number_of_targets(
    broker: mqcore.Broker,
    producer: Client,
    queues: list[str],
    style: str,
    answer: object,
    stored: tuple[int, int],
    answered: str | None,
) -> None:
    broker.routers["r"] = router(style, lambda message, publisher: answer)
    assert reason(producer.routed("r", b"x")) == answered
    assert (producer.stored("a")[1], producer.stored("b")[1]) == stored


def test_a_router_may_ask_a_client_to_answer(
    broker: mqcore.Broker, producer: Client, connect: Connect, style: str
) -> None:
    worker = connect("worker", Client_Type="sink")
    target = Binding("@type:sink", interaction=mqcore.Interaction.RESPONSE)
    broker.routers["r"] = router(style, lambda message, publisher: target)
    message = producer.route("r", b"question", pending_response=True)
    frame = worker.receive()
    assert (frame.id, frame.payload) == (message, b"question")
    worker.send(RawFrame(kind=0x14, id=frame.id, target=frame.source, payload=b"answer"))
    assert producer.answer(message).payload == b"answer"


def test_a_client_cannot_disarm_a_router_of_the_program(
    broker: mqcore.Broker, producer: Client, queues: list[str], style: str
) -> None:
    broker.routers["r"] = router(style, lambda message, publisher: "a/1")
    changes = [
        (ENABLE_ROUTER, {"Enabled": "yes"}, b""),
        (ENABLE_ROUTER, {"Enabled": "no"}, b""),
        (REMOVE_ROUTER, {}, b""),
        (REMOVE_BINDING, {"Binding-Name": "route"}, b""),
        (ADD_BINDING, {}, b'{"Name":"first","Target":"b/1","Priority":2147483647}'),
    ]
    for operation, headers, body in changes:
        answer = producer.ask(operation, "r", headers=headers, body=body)
        assert answer.content_type == UNACCEPTABLE
        assert "change the router in that program" in (answer.header("Reason") or "")
    assert "r" in broker.routers
    assert reason(producer.routed("r", b"x")) is None
    assert [producer.stored("a"), producer.stored("b")] == [(0, 1), (0, 0)]
    # The program may change it, and clients may change ready-made routers.
    del broker.routers["r"]
    broker.routers.add("plain", bindings=["a/1"])
    assert producer.ask(REMOVE_BINDING, "plain", headers={"Binding-Name": "a/1"}).content_type == 0


@pytest.mark.parametrize("nonsense", [17, ["a/1", 17], "a b", object(), {"a/1": 1, 2: 3}])
def test_router_that_returns_an_invalid_value_loses_that_message(
    broker: mqcore.Broker,
    producer: Client,
    queues: list[str],
    style: str,
    nonsense: object,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    answers = iter([nonsense, "a/1"])
    broker.routers["r"] = router(style, lambda message, publisher: next(answers))
    with caplog.at_level(logging.ERROR, logger="mqcore.handlers"):
        assert reason(producer.routed("r", b"x")) == "the handler of router r raised an error"
        eventually(lambda: "raised in route" in caplog.text)
    assert reason(producer.routed("r", b"x")) is None
    assert producer.stored("a") == (0, 1)


def test_a_router_that_raises_harms_its_own_messages_only(
    broker: mqcore.Broker, producer: Client, queues: list[str], style: str
) -> None:
    def route(message: mqcore.Message, publisher: mqcore.ClientView) -> str:
        if message.body == b"bad":
            raise ValueError("this one not")
        return "a/1"

    broker.routers["r"] = router(style, route)
    broker.routers.add("other", bindings=["b/1"])
    reasons = [reason(producer.routed("r", body)) for body in (b"1", b"bad", b"2")]
    assert reasons == [None, "the handler of router r raised an error", None]
    message = producer.route("r", b"bad", pending_response=True)
    assert producer.answer(message).content_type == FAILED
    assert reason(producer.routed("other", b"x")) is None
    (stats,) = (stats for stats in broker.stats().routers if stats.name == "r")
    assert (stats.received, stats.routed, stats.unrouted, stats.errors) == (4, 2, 2, 2)
    assert producer.stored("a") == (0, 2)


def test_failing_router_uses_its_fallback(
    broker: mqcore.Broker, producer: Client, queues: list[str], style: str
) -> None:
    def route(message: mqcore.Message, publisher: mqcore.ClientView) -> str | None:
        if message.body == b"bad":
            raise ValueError("this one not")
        return None if message.body == b"none" else "a/1"

    broker.routers["r"] = router(style, route, fallback=["none/1", "b/1", "a/1"])
    for body in (b"1", b"bad", b"none"):
        assert reason(producer.routed("r", body)) is None
    producer.join("b")
    assert [frame.payload for frame in producer.pull("b", Count=9)[0]] == [b"bad", b"none"]
    assert producer.stored("a") == (0, 1)


def test_slow_router_times_out_without_delaying_others(
    broker: mqcore.Broker, producer: Client, queues: list[str], style: str
) -> None:
    go_on = threading.Event()

    class Slow(Router):
        timeout = "50ms"

        def route(self, message: mqcore.Message, publisher: mqcore.ClientView) -> str:
            if message.body == b"slow":
                go_on.wait(10)
            return "a/1"

    class SlowAsync(Router):
        timeout = "50ms"

        async def route(self, message: mqcore.Message, publisher: mqcore.ClientView) -> str:
            if message.body == b"slow":
                await asyncio.sleep(10)
            return "a/1"

    broker.routers["r"] = Slow() if style == "plain" else SlowAsync()
    broker.routers.add("quick", bindings=["b/1"])
    slow = producer.route("r", b"slow", pending_acknowledge=True)
    assert reason(producer.routed("quick", b"x")) is None
    refused = reason(producer.answer(slow, (0x13,)))
    assert refused is not None
    assert refused.startswith("the handler of router r ")
    go_on.set()
    assert reason(producer.routed("r", b"quick")) is None
    assert producer.stored("a") == (0, 1)


def test_messages_leave_a_router_in_the_order_in_which_they_came(
    broker: mqcore.Broker, producer: Client, queues: list[str]
) -> None:
    class Uneven(Router):
        async def route(self, message: mqcore.Message, publisher: mqcore.ClientView) -> str:
            await asyncio.sleep(0.001 * (int(message.body) * 7 % 5))
            return "a/1"

    broker.routers["r"] = Uneven()
    for number in range(300):
        producer.route("r", b"%d" % number)
    producer.routed("r", b"300")
    producer.join("a")
    frames, _ = producer.pull("a", Count=1000)
    assert [frame.payload for frame in frames] == [b"%d" % number for number in range(301)]


def test_a_binding_in_python_takes_messages_or_leaves_them(
    broker: mqcore.Broker, producer: Client, queues: list[str], style: str
) -> None:
    taken: list[bytes] = []

    def decide(message: mqcore.Message) -> Any:
        if message.body.startswith(b"mine"):
            taken.append(message.body)
            return True
        return "b/1" if message.body == b"there" else False

    class Plain(BindingHandler):
        def send(self, message: mqcore.Message, publisher: mqcore.ClientView) -> Any:
            return decide(message)

    class Awaited(BindingHandler):
        async def send(self, message: mqcore.Message, publisher: mqcore.ClientView) -> Any:
            await asyncio.sleep(0)
            return decide(message)

    broker.binding_handlers["mine"] = Plain() if style == "plain" else Awaited()
    broker.routers.add("r", "only-first")
    broker.routers.bind("r", "@handler:mine", priority=5)
    broker.routers.bind("r", "a/1")
    for body in (b"mine 1", b"not", b"there", b"mine 2"):
        assert reason(producer.routed("r", body)) is None
    assert taken == [b"mine 1", b"mine 2"]
    assert [producer.stored("a"), producer.stored("b")] == [(0, 1), (0, 1)]
    answered = producer.json(654, "r", body=b"there")
    assert [(step["Target"], step["Takes"]) for step in answered["Steps"]] == [("@handler:mine", True), ("b/1", True)]


def test_a_test_of_a_python_router_asks_it(broker: mqcore.Broker, producer: Client, queues: list[str]) -> None:
    broker.routers["r"] = router("plain", lambda message, publisher: ["a/1", "none/1"])
    tested = producer.json(654, "r", body=b"x")
    assert tested["Taken"] is True
    asked, *named = tested["Steps"]
    assert (asked["Binding"], asked["Takes"]) == ("route", True)
    # A message visits the shards of the targets one after the other; which shard a channel has is random.
    assert {(step["Target"], step["Takes"]) for step in named} == {("a/1", True), ("none/1", False)}
    assert producer.stored("a") == (0, 0)


def test_routers_may_be_changed_while_the_broker_runs(
    broker: mqcore.Broker, producer: Client, queues: list[str], eventually: Eventually
) -> None:
    broker.routers.add("r", "distribute", ["a/1"])
    eventually(lambda: reason(producer.routed("r", b"x")) is None)
    broker.routers.bind("r", "b/1", priority=3)
    (stats,) = broker.stats().routers
    assert [(binding.name, binding.priority) for binding in stats.bindings] == [("b/1", 3), ("a/1", 0)]
    broker.routers.unbind("r", "a/1")
    before = producer.stored("a")
    assert reason(producer.routed("r", b"x")) is None
    assert (producer.stored("a"), producer.stored("b")) == (before, (0, 1))
    broker.routers["r"] = router("plain", lambda message, publisher: "a/1")
    assert reason(producer.routed("r", b"x")) is None
    assert producer.stored("a") == (0, before[1] + 1)
    del broker.routers["r"]
    message = producer.route("r", pending_response=True)
    assert producer.answer(message).content_type == NOT_FOUND
    assert list(broker.routers) == []


def test_declared_routers_and_bindings_are_mappings_of_what_was_declared(broker: mqcore.Broker) -> None:
    class Taking(BindingHandler):
        def send(self, message: mqcore.Message, publisher: mqcore.ClientView) -> bool:
            return True

    assert (dict(broker.routers), dict(broker.binding_handlers)) == ({}, {})
    asked, taking = router("plain", lambda message, publisher: None), Taking()
    broker.routers["asked"] = asked
    broker.routers.add("plain", "only-first", ["a/1", Binding("b/1", priority=7)])
    broker.routers["renamed"] = mqcore.RouterOptions("other")
    broker.binding_handlers["k"] = taking
    plain = mqcore.RouterOptions("plain", mqcore.RouteMethod.ONLY_FIRST, (Binding("a/1"), Binding("b/1", priority=7)))
    renamed = mqcore.RouterOptions("renamed")
    assert dict(broker.routers) == {"asked": asked, "plain": plain, "renamed": renamed}
    assert dict(broker.binding_handlers) == {"k": taking}
    assert (len(broker.routers), len(broker.binding_handlers)) == (3, 1)
    assert {stats.name for stats in broker.stats().routers} == {"asked", "plain", "renamed"}


def test_bindings_are_removed_by_their_name_or_else_their_target(broker: mqcore.Broker) -> None:
    broker.routers.add("r", bindings=["a/1", Binding("b/1", "named")])
    broker.routers.bind("r", "c/1", binding="further", method="round-robin", content_type=7)
    added = Binding("c/1", "further", content_type=7, method=mqcore.RouteMethod.ROUND_ROBIN)
    assert broker.routers["r"].bindings == (Binding("a/1"), Binding("b/1", "named"), added)  # type: ignore[union-attr]
    for name in ("b/1", "c/1", "none"):
        with pytest.raises(KeyError, match=name):
            broker.routers.unbind("r", name)
    broker.routers.unbind("r", "a/1")
    broker.routers.unbind("r", "named")
    assert broker.routers["r"].bindings == (added,)  # type: ignore[union-attr]


def test_a_python_router_is_asked_before_its_fallback(broker: mqcore.Broker) -> None:
    broker.routers["one"] = router("plain", lambda message, publisher: None, fallback="a/1")
    broker.routers["binding"] = router("plain", lambda message, publisher: None, fallback=Binding("b/1", priority=9))
    broker.routers["both"] = router("plain", lambda message, publisher: None, fallback=["a/1", Binding("b/1")])
    bindings = {
        stats.name: [(binding.name, binding.target, binding.priority) for binding in stats.bindings]
        for stats in broker.stats().routers
    }
    highest = 2**31 - 1
    assert bindings == {
        "one": [("route", "@handler:router one", highest), ("fallback a/1", "a/1", 0)],
        "binding": [("route", "@handler:router binding", highest), ("fallback b/1", "b/1", 0)],
        "both": [
            ("route", "@handler:router both", highest),
            ("fallback a/1", "a/1", 0),
            ("fallback b/1", "b/1", -1),
        ],
    }


def test_routers_declared_before_the_start_are_there_from_the_start(
    connect: Connect, start_broker: StartBroker
) -> None:
    broker = mqcore.Broker(listen="tmqp://127.0.0.1:0", auto_create_channels=True, auto_create_queues=True)
    broker.routers.add("ready", bindings=["a/1"])
    broker.routers["python"] = router("plain", lambda message, publisher: "a/1")
    for _ in range(2):
        with broker:
            client = connect("c", to=broker)
            for name in ("ready", "python"):
                assert reason(client.routed(name, b"x")) is None
            assert client.queue("a", 1)["ReceivedMessages"] == 2


def test_invalid_router_is_rejected_immediately(broker: mqcore.Broker) -> None:
    with pytest.raises(errors.ConfigError, match="a b"):
        broker.routers.add("a b")
    with pytest.raises(errors.ConfigError, match="no method 'some'"):
        broker.routers.add("r", "some")
    with pytest.raises(errors.ConfigError, match="@name:"):
        broker.routers.add("r", bindings=["@name:"])
    with pytest.raises(errors.ConfigError, match="priority"):
        Binding("a", priority="high")  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="already"):
        broker.routers.add("r", bindings=["a/1", "a/1"])
    with pytest.raises(TypeError, match="subclass of"):
        broker.routers["r"] = object()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="BindingHandler"):
        broker.binding_handlers["r"] = object()  # type: ignore[assignment]
    with pytest.raises(KeyError):
        broker.routers.bind("none", "a/1")
    broker.routers["python"] = router("plain", lambda message, publisher: None)
    with pytest.raises(errors.ConfigError, match="written in Python"):
        broker.routers.bind("python", "a/1")


def test_many_messages_go_through_a_router_in_python(
    broker: mqcore.Broker, producer: Client, queues: list[str]
) -> None:
    batches: list[int] = []

    def route(message: mqcore.Message, publisher: mqcore.ClientView) -> str:
        batches.append(threading.get_ident())
        return "a/1" if len(message.body) % 2 else "b/1"

    broker.routers["r"] = router("plain", route)
    count = 5000
    began = time.monotonic()
    for number in range(count):
        producer.route("r", b"x" * (number % 7))
    producer.routed("r", b"")
    assert time.monotonic() - began < 30
    assert producer.stored("a")[1] + producer.stored("b")[1] == count + 1
    assert len(set(batches)) == 1, "all on the router's own thread"
