"""Apps: what handlers get, what happens to their results, groups, middlewares, publishers, lifespans and the end."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

import mqcore
import mqcore.app.running
from app_types import Customer, Invoice, Order, Stock, until
from awaited import occupy
from mqcore import App, Client, Delivered, Group, QueueOptions, errors
from mqcore.app import CallNext, Outgoing
from mqcore.client import Batch, Request
from mqcore.testing import TestBroker


@pytest.mark.parametrize(
    ("wanted", "sent", "expected"),
    [
        (bytes, b"\x00\xff", b"\x00\xff"),
        (str, "pears", "pears"),
        (int, 5, 5),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (list[Order], [Order(1)], [Order(1)]),
        (Order, Order(7, "B-2"), Order(7, "B-2")),
        (Invoice, Invoice(1, 2.5), Invoice(1, 2.5)),
        (Stock, {"sku": "a", "count": 3}, {"sku": "a", "count": 3}),
        (Customer, Customer(name="Ada", age=36), Customer(name="Ada", age=36)),
    ],
)
async def test_body_is_decoded_as_the_annotation(wanted: Any, sent: object, expected: object) -> None:
    app = App()
    got: list[object] = []

    async def handler(body: Any) -> None:
        got.append(body)

    handler.__annotations__["body"] = wanted
    app.subscriber("orders/1")(handler)
    async with TestBroker(app) as mq:
        await app.publish("orders/1", sent)
        await mq.settle()
    assert got == [expected]


async def test_handler_gets_what_its_annotations_ask_for() -> None:
    app = App()
    got: dict[str, Any] = {}

    @app.subscriber("orders/1")
    async def positional(order: Order, message: Delivered[Order], asked: App, client: Client, count: int = 3) -> None:
        got.update(order=order, message=message, app=asked, client=client, count=count)

    @app.subscriber("orders/2")
    async def by_name(*, message: Delivered[Order], order: Order) -> None:
        got.update(second=(order.id, message.body.id))

    @app.subscriber("orders/3")
    async def nothing() -> None:
        got.update(called=True)

    @app.subscriber("orders/4")
    async def untyped_message(message: Delivered) -> None:  # type: ignore[type-arg]
        got.update(raw=message.body)

    async with TestBroker(app) as mq:
        await app.publish("orders/1", Order(7), headers={"Country": "fr"})
        for queue in (2, 3, 4):
            await app.publish(f"orders/{queue}", Order(8))
        await mq.settle()
        assert got["client"] is app.client
        assert got["message"].headers["Country"] == "fr"
    assert (got["order"], got["app"], got["count"]) == (Order(7), app, 3)
    assert (got["second"], got["called"], got["raw"]) == ((8, 8), True, b'{"id":8,"sku":"A-100"}')


async def test_decorated_function_stays_what_it_was() -> None:
    app = App()

    @app.subscriber("orders/1")
    @app.publisher("invoices/1", Invoice)
    async def bill(order: Order) -> Invoice:
        return Invoice(order.id, 1.0)

    assert await bill(Order(3)) == Invoice(3, 1.0)


@pytest.mark.parametrize("publisher_first", [True, False])
async def test_publisher_publishes_results_in_either_order_of_decorators(publisher_first: bool) -> None:
    app = App()

    async def bill(order: Order) -> Invoice | None:
        return Invoice(order.id, 1.0) if order.id else None

    decorators = [app.subscriber("orders/1"), app.publisher("invoices/1", headers={"Kind": "invoice"})]
    for decorate in decorators if publisher_first else reversed(decorators):
        bill = decorate(bill)
    async with TestBroker(app) as mq:
        await app.publish("orders/1", Order(0))
        await app.publish("orders/1", Order(5))
        await mq.settle()
        (message,) = mq.messages("invoices/1")
        assert message.body == b'{"id":5,"total":1.0}'
        assert message.message.headers["Kind"] == "invoice"


async def test_result_goes_to_every_publisher_and_to_the_next_handler() -> None:
    app = App()
    got: list[Invoice] = []

    @app.subscriber("orders/1")
    @app.publisher("invoices/1")
    @app.publisher("audit/1")
    def bill(order: Order) -> Invoice:
        return Invoice(order.id, 2.0)

    @app.subscriber("invoices/1")
    async def send(invoice: Invoice) -> None:
        got.append(invoice)

    async with TestBroker(app) as mq:
        await app.publish("orders/1", Order(5))
        await mq.settle()
        assert got == [Invoice(5, 2.0)]
        assert len(mq.messages("audit/1")) == 1


async def test_publisher_object_publishes_through_the_middlewares_of_its_group() -> None:
    async def mark(message: Any, call_next: CallNext) -> Any:
        if isinstance(message, Outgoing):
            message.headers["Marked"] = message.headers.get("Marked", "") + "g"
        return await call_next(message)

    group = Group(prefix="shop/", middlewares=[mark])
    invoices = group.publisher("7", Invoice, queue_options=QueueOptions(status="pull"))
    app = App()
    app.include(group)
    with pytest.raises(errors.NotRunning):
        await invoices.publish(Invoice(1, 1.0))
    async with TestBroker(app) as mq:
        receipt = await invoices.publish(Invoice(1, 1.0), id="first", headers={"Marked": "x"})
        assert receipt.by == "server"
        (message,) = mq.messages("shop/7")
        assert (message.id, message.message.headers["Marked"]) == ("first", "xg")
    assert invoices.queue == "shop/7"


async def test_middlewares_surround_handlers_and_publishing_from_the_outside_in() -> None:
    order: list[str] = []

    def middleware(name: str) -> Any:
        async def around(message: Any, call_next: CallNext) -> Any:
            kind = "publish" if isinstance(message, Outgoing) else "handle"
            order.append(f"{kind} {name}")
            result = await call_next(message)
            order.append(f"{kind} {name} end")
            return result

        return around

    inner = Group(prefix="in/", middlewares=[middleware("inner")])
    outer = Group(prefix="out/", middlewares=[middleware("outer")])
    app = App(middlewares=[middleware("app")])

    @inner.subscriber("1", middlewares=[middleware("own")])
    @inner.publisher("2")
    async def handle(body: str) -> str:
        order.append("handler")
        return body

    outer.include(inner)
    app.include(outer)
    async with TestBroker(app) as mq, mq.client() as client:
        await client.publish("out/in/1", "x")
        await mq.settle()
        assert [message.body for message in mq.messages("out/in/2")] == [b"x"]
    names = ["app", "outer", "inner"]
    handled = [f"handle {name}" for name in [*names, "own"]]
    published = [f"publish {name}" for name in names]
    assert order == [
        *handled,
        "handler",
        *(f"{each} end" for each in reversed(handled)),
        *published,
        *(f"{each} end" for each in reversed(published)),
    ]


async def test_middleware_may_answer_instead_of_the_handler_and_change_messages() -> None:
    app = App()
    got: list[str] = []

    @app.middleware
    async def skip(message: Any, call_next: CallNext) -> Any:
        if isinstance(message, Outgoing):
            message.body = f"<{message.body}>"
        elif message.body == "<skip>":
            return None
        return await call_next(message)

    @app.subscriber("orders/1")
    async def handle(body: str) -> None:
        got.append(body)

    async with TestBroker(app) as mq:
        await app.publish("orders/1", "skip")
        await app.publish("orders/1", "take")
        await mq.settle()
        assert got == ["<take>"]
        assert mq.stats().queue("orders/1").acks == 2


async def test_plain_handler_that_blocks_delays_neither_the_loop_nor_other_handlers() -> None:
    app = App()
    release = threading.Event()
    threads: set[int] = set()
    done: list[str] = []

    @app.subscriber("slow/1", concurrency=3)
    def slow(body: str) -> None:
        threads.add(threading.get_ident())
        assert release.wait(10)
        done.append(body)

    @app.subscriber("quick/1")
    def quick(body: str) -> None:
        done.append(body)

    async with TestBroker(app):
        for _ in range(3):
            await app.publish("slow/1", "slow")
        await until(lambda: len(threads) == 3)
        await app.publish("quick/1", "quick")
        await until(lambda: done == ["quick"])
        assert threading.get_ident() not in threads
        release.set()
        await until(lambda: len(done) == 4)


async def test_concurrency_limits_handlers_and_one_keeps_the_order() -> None:
    app = App()
    running = 0
    most = 0
    order: list[int] = []

    @app.subscriber("many/1", concurrency=4, prefetch=50)
    async def many(body: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    @app.subscriber("one/1")
    async def one(body: int) -> None:
        await asyncio.sleep(0.001 if body % 2 else 0)
        order.append(body)

    async with TestBroker(app) as mq:
        await app.client.publish_many("many/1", range(60))
        await app.client.publish_many("one/1", range(60))
        await mq.settle()
        assert most == 4
        assert order == list(range(60))
        assert mq.stats().queue("many/1").acks == 60


@pytest.mark.parametrize("kind", ["single", "concurrent", "batch"])
async def test_context_variables_of_a_handler_are_its_own(kind: str) -> None:
    app = App()
    current: ContextVar[int | None] = ContextVar("current", default=None)
    own: list[bool] = []

    async def note(number: int) -> None:
        found = current.get()
        current.set(number)
        if number % 2:
            await asyncio.sleep(0.001)
        own.append(found is None and current.get() == number)

    if kind == "batch":

        @app.batch_subscriber("orders/1", max=1)
        async def handle_all(bodies: list[int]) -> None:
            await note(bodies[0])

    else:

        @app.subscriber("orders/1", concurrency=1 if kind == "single" else 3)
        async def handle(body: int) -> None:
            await note(body)

    async with TestBroker(app) as mq:
        await app.client.publish_many("orders/1", range(30))
        await mq.settle()
    assert own == [True] * 30


async def test_requests_are_answered_by_content_type() -> None:
    app = App(name="billing")
    seen: list[str] = []

    @app.on_request(content_type=10)
    def quote(order: Order) -> Invoice:
        return Invoice(order.id, 1.5)

    @app.on_request(content_type=11)
    async def fails(request: Request[bytes]) -> None:
        raise ValueError(f"no {request.body!r}")

    @app.on_request(content_type=12)
    async def note(body: str) -> None:
        seen.append(body)

    async with TestBroker(app) as mq, mq.client() as client:
        assert await client.request("@name:billing", Order(4), content_type=10, reply=Invoice) == Invoice(4, 1.5)
        with pytest.raises(errors.OperationError, match="no b'x'") as failed:
            await client.request("@name:billing", b"x", content_type=11)
        assert failed.value.code == 1
        with pytest.raises(errors.BadRequest, match="the body is no Order"):
            await client.request("@name:billing", b"x", content_type=10)
        with pytest.raises(errors.NotFound, match="no handler for content type 13; this app has: 10, 11, 12"):
            await client.request("@name:billing", b"x", content_type=13)
        await client.send("@name:billing", "hello", content_type=12, confirm=True)
        assert seen == ["hello"]


async def test_requests_without_a_content_type_go_to_the_handler_of_all_others() -> None:
    app = App(name="billing")

    @app.on_request()
    async def echo(request: Request[bytes]) -> bytes:
        return request.body

    async with TestBroker(app) as mq, mq.client() as client:
        assert await client.request("@name:billing", b"x", content_type=500, reply=bytes) == b"x"


async def test_handler_of_a_topic_gets_its_messages() -> None:
    app = App()
    got: list[tuple[str | None, str]] = []

    @app.subscriber("@topic:fruit.*")
    async def handle(body: str, message: Delivered[str]) -> None:
        got.append((message.topic, body))

    async with TestBroker(app) as mq, mq.client() as client:
        await client.topic("fruit.pears").publish("3 pears")
        await mq.settle()
        assert got == [("fruit.pears", "3 pears")]


async def test_lifespan_surrounds_the_handlers_and_its_values_are_in_the_state() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[dict[str, Any]]:
        events.append("begin")
        await app.client.declare("orders", 2, QueueOptions(status="pull"))
        await app.publish("orders/2", b"from the lifespan")
        yield {"greeting": "hello"}
        events.append("end")

    app = App(lifespan=lifespan)

    @app.subscriber("orders/1")
    async def handle(body: str, asked: App) -> None:
        events.append(asked.state["greeting"])

    async with TestBroker(app) as mq:
        assert len(mq.messages("orders/2")) == 1
        await app.publish("orders/1", "x")
        await mq.settle()
    assert events == ["begin", "hello", "end"]


async def test_app_can_start_again_after_its_end_but_not_while_it_runs() -> None:
    app = App()
    got: list[str] = []

    @app.subscriber("orders/1")
    async def handle(body: str) -> None:
        got.append(body)

    for body in ("first", "second"):
        async with TestBroker(app) as mq:
            with pytest.raises(errors.AlreadyRunning, match="already running"):
                await app.__aenter__()
            await app.publish("orders/1", body)
            await mq.settle()
    assert got == ["first", "second"]
    assert not app.is_running
    with pytest.raises(errors.NotRunning):
        await app.publish("orders/1", "x")


async def test_stop_returns_what_was_not_started_and_finishes_what_runs() -> None:
    app = App()
    started: list[int] = []
    release = asyncio.Event()

    @app.subscriber("orders/1", prefetch=10)
    async def handle(body: int) -> None:
        started.append(body)
        await release.wait()

    async with mqcore.Broker() as broker, broker.client() as client:
        app.locate(broker)
        async with app:
            await client.publish_many("orders/1", range(5))
            await until(lambda: started == [0])
            asyncio.get_running_loop().call_later(0.05, release.set)
        seen = await client.queue_information("orders/1")
        assert (seen.acks, seen.messages, seen.in_flight) == (1, 4, 0)
        async with client.queue("orders/1").consume(int) as messages:
            message = await anext(messages)
            assert (message.body, message.attempt) == (1, 1)


async def test_handler_that_outlasts_the_drain_timeout_is_cancelled_and_its_message_redelivered() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()
    async with mqcore.Broker() as broker:
        app = App(broker, drain_timeout="50ms")

        @app.subscriber("orders/1")
        async def handle(body: str) -> None:
            started.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with broker.client() as client:
            async with app:
                await client.publish("orders/1", "x")
                await asyncio.wait_for(started.wait(), 10)
                begin = time.monotonic()
            assert time.monotonic() - begin < 10
            assert cancelled.is_set()
            async with client.queue("orders/1").consume(str) as messages:
                assert (await anext(messages)).attempt == 2


async def test_request_that_outlasts_the_drain_timeout_is_cancelled() -> None:
    started, ended = asyncio.Event(), asyncio.Event()
    bodies: list[str] = []
    async with mqcore.Broker() as broker, broker.client() as client:
        app = App(broker, name="slow", drain_timeout="50ms")

        @app.on_request(concurrency=1)
        async def handle(body: str) -> None:
            bodies.append(body)
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

        async with app:
            asking = asyncio.create_task(client.request("@name:slow", "running", timeout="2s"))
            await asyncio.wait_for(started.wait(), 10)
            waiting = asyncio.create_task(client.request("@name:slow", "waiting"))
            await until(lambda: app._taken == 2)
            begin = time.monotonic()
        assert time.monotonic() - begin < 2
        assert ended.is_set()
        with pytest.raises(errors.Busy, match="is stopping"):
            await waiting
        with pytest.raises(errors.MqcoreError):
            await asking
        assert bodies == ["running"]


@pytest.mark.parametrize("pause", [True, False])
async def test_second_signal_cancels_a_request_behind_which_others_wait(pause: bool) -> None:
    started, ended = asyncio.Event(), asyncio.Event()
    async with mqcore.Broker() as broker, broker.client() as client:
        app = App(broker, name="slow")

        @app.on_request(concurrency=1)
        async def handle(body: str) -> None:
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

        ready = asyncio.Event()
        serving = asyncio.create_task(app.serve(on_ready=ready.set))
        await asyncio.wait_for(ready.wait(), 10)
        asking = [asyncio.create_task(client.request("@name:slow", n, timeout="2s")) for n in range(3)]
        await until(lambda: app._taken == 3)
        signal.raise_signal(signal.SIGTERM)
        if pause:
            await until(lambda: sum(task.done() for task in asking) == 2)
        begin = time.monotonic()
        signal.raise_signal(signal.SIGTERM)
        assert await asyncio.wait_for(serving, 10) == 1
        assert time.monotonic() - begin < 2
        assert ended.is_set()
        failed = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(each, errors.MqcoreError) for each in failed)


async def test_busy_handler_of_requests_delays_no_other_content_type() -> None:
    release = asyncio.Event()
    app = App(name="billing")

    @app.on_request(content_type=10, concurrency=1)
    async def slow(body: int) -> int:
        await release.wait()
        return body

    @app.on_request(content_type=11)
    async def quick(body: int) -> int:
        return body

    async with TestBroker(app) as mq, mq.client() as client:
        asking = [asyncio.create_task(client.request("@name:billing", n, content_type=10)) for n in range(3)]
        await until(lambda: app._taken == 3)
        assert await client.request("@name:billing", b"5", content_type=11, reply=int) == 5
        release.set()
        assert [(await each).body for each in asking] == [b"0", b"1", b"2"]


async def test_read_buffer_bounds_the_requests_that_wait_for_a_handler() -> None:
    release = asyncio.Event()
    held: list[int] = []
    async with mqcore.Broker() as broker, broker.client() as client:
        app = App(broker, name="billing", read_buffer_bytes=200_000)

        @app.on_request(concurrency=1)
        async def handle(body: int) -> int:
            await release.wait()
            held.append(app._taken - len(held))
            return body

        async with app:
            asking = [asyncio.create_task(client.request("@name:billing", n, reply=int)) for n in range(50)]
            # One runs; the size of a waiting one is that of its body and 64 KiB.
            await until(lambda: app._taken == 5)
            release.set()
            assert await asyncio.gather(*asking) == list(range(50))
    assert max(held) == 5


async def test_stop_leaves_a_handler_behind_that_ignores_its_cancellation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mqcore.app.running, "_CANCEL_SECONDS", 0.05)
    started, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with mqcore.Broker() as broker:
        app = App(broker, drain_timeout="50ms")

        @app.subscriber("orders/1")
        async def handle(body: str) -> None:
            started.set()
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            ended.set()

        async with app:
            await app.publish("orders/1", "x")
            await asyncio.wait_for(started.wait(), 10)
        assert "do not end when cancelled: 1" in caplog.text
        release.set()
        await asyncio.wait_for(ended.wait(), 10)
        await asyncio.sleep(0)


async def test_serve_ends_when_a_handler_stops_the_app() -> None:
    async with mqcore.Broker() as broker:
        app = App(broker)

        @app.subscriber("orders/1")
        async def handle(body: str, asked: App) -> None:
            asked.stop()

        ready = asyncio.Event()
        serving = asyncio.create_task(app.serve(signals=False, on_ready=ready.set))
        await asyncio.wait_for(ready.wait(), 10)
        await app.publish("orders/1", "x")
        await asyncio.wait_for(serving, 10)
        assert not app.is_running


@pytest.mark.parametrize("kind", ["single", "concurrent", "batch"])
async def test_handler_that_never_waits_does_not_delay_the_stop_of_the_app(kind: str) -> None:
    async with mqcore.Broker() as broker, broker.client() as client:
        app = App(broker)
        if kind == "batch":

            @app.batch_subscriber("orders/1", max=10)
            async def handle_all(bodies: list[bytes]) -> None:
                occupy(0.01)

        else:

            @app.subscriber("orders/1", concurrency=1 if kind == "single" else 2)
            async def handle(body: bytes) -> None:
                occupy(0.001)

        await client.create_queue("orders/1", QueueOptions(status="roundrobin", request_acknowledge=True))
        await client.publish_many("orders/1", [b"x"] * 2_000)
        asyncio.get_running_loop().call_later(0.05, app.stop)
        await app.serve(signals=False)
        assert (await client.queue_information("orders/1")).messages > 1_000


async def test_app_starts_an_embedded_broker_that_does_not_run_and_stops_only_that() -> None:
    broker = mqcore.Broker()
    async with App(broker) as app:
        assert broker.is_running
        await app.client.create_queue("orders/1")
    assert not broker.is_running
    async with mqcore.Broker() as running:
        async with App(running):
            pass
        assert running.is_running


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_serve_raises_when_the_client_gives_up_reconnecting(concurrency: int) -> None:
    broker = mqcore.Broker(listen="tmqp://127.0.0.1:0")
    broker.start()
    app = App(broker.listeners[0], reconnect_attempts=1, backoff_first="10ms", connect_timeout="1s")

    @app.subscriber("orders/1", concurrency=concurrency)
    async def handle(body: str) -> None: ...

    ready = asyncio.Event()
    serving = asyncio.create_task(app.serve(signals=False, on_ready=ready.set))
    await asyncio.wait_for(ready.wait(), 10)
    await broker.aclose(0.0)
    with pytest.raises(errors.ConnectionLost, match="receives nothing more"):
        await asyncio.wait_for(serving, 20)


async def test_batches_come_in_each_form() -> None:
    np = pytest.importorskip("numpy")
    pa = pytest.importorskip("pyarrow")
    from typing import Annotated

    app = App()
    got: dict[str, Any] = {}

    @app.batch_subscriber("orders/1", max=10, wait="50ms")
    async def bodies(orders: list[Order]) -> None:
        got["bodies"] = orders

    @app.batch_subscriber("orders/2", max=10, wait="50ms")
    def messages(orders: list[Delivered[Order]]) -> None:
        got["messages"] = [(message.attempt, message.body) for message in orders]

    @app.batch_subscriber("orders/3", max=10, wait="50ms")
    async def whole(batch: Batch[Order]) -> None:
        got["whole"] = batch.bodies

    async def table(orders: Any) -> None:
        got["table"] = orders

    async def arrays(orders: Any) -> None:
        got["arrays"] = orders

    table.__annotations__["orders"] = Annotated[pa.Table, Order]
    arrays.__annotations__["orders"] = Annotated[dict[str, np.ndarray], Order]
    app.batch_subscriber("orders/4", max=10, wait="50ms")(table)
    app.batch_subscriber("orders/5", max=10, wait="50ms")(arrays)
    async with TestBroker(app) as mq:
        for queue in range(1, 6):
            await app.client.publish_many(f"orders/{queue}", [Order(1), Order(2, "B")])
        await mq.settle()
        assert {mq.stats().queue(f"orders/{queue}").acks for queue in range(1, 6)} == {2}
    orders = [Order(1), Order(2, "B")]
    assert got["bodies"] == got["whole"] == orders
    assert got["messages"] == [(1, order) for order in orders]
    assert got["table"].to_pydict() == {"id": [1, 2], "sku": ["A-100", "B"]}
    assert got["arrays"]["id"].tolist() == [1, 2]


async def test_results_of_a_batch_are_published_one_by_one() -> None:
    app = App()

    @app.batch_subscriber("orders/1", max=10, wait="50ms")
    @app.publisher("invoices/1")
    async def bill(orders: list[Order]) -> list[Invoice]:
        return [Invoice(order.id, 1.0) for order in orders]

    async with TestBroker(app) as mq:
        await app.client.publish_many("orders/1", [Order(1), Order(2)])
        await mq.settle()
        assert [message.body for message in mq.messages("invoices/1")] == [
            b'{"id":1,"total":1.0}',
            b'{"id":2,"total":1.0}',
        ]


@pytest.mark.parametrize("scheme", ["mqks", "mm2"])
async def test_app_works_over_other_protocols(scheme: str) -> None:
    async with mqcore.Broker(listen=[f"{scheme}://127.0.0.1:0"]) as broker:
        app = App(broker.listeners[0])
        attempts: list[str] = []
        plain: list[int] = []

        @app.subscriber("orders", concurrency=2)
        async def handle(body: str) -> None:
            attempts.append(body)
            if len(attempts) == 1:
                raise ValueError("once")

        @app.subscriber("others")
        async def other(order: Order) -> None:
            plain.append(order.id)

        async with app:
            await app.publish("orders", "x")
            await app.publish("others", Order(4))
            await until(lambda: attempts == ["x", "x"] and plain == [4])


async def test_app_is_the_lifespan_of_a_web_application() -> None:
    starlette = pytest.importorskip("starlette.applications")
    async with mqcore.Broker() as broker:
        app = App(broker)

        @app.subscriber("orders/1")
        async def handle(body: str) -> None: ...

        web = starlette.Starlette(lifespan=app.lifespan)
        async with web.router.lifespan_context(web):
            assert app.is_running
            assert broker.stats().queue("orders/1").consumers == 1
        assert not app.is_running
