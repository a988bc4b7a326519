"""Mistakes in the declarations of apps: each is a typed error, when the app starts at the latest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import pytest

import mqcore
from app_types import Order
from mqcore import App, Backoff, Client, Delivered, Depends, Group, Message, QueueOptions, Retry, errors
from mqcore.client import Batch, Request
from mqcore.testing import TestBroker

if TYPE_CHECKING:
    from elsewhere import Missing


class Plain:
    """Not a type of data."""


def on_cycle_a(b: Annotated[int, Depends(lambda: None)]) -> int:
    return b


def on_cycle_b(a: Annotated[int, Depends(on_cycle_a)]) -> int:
    return a


on_cycle_a.__annotations__["b"] = Annotated[int, Depends(on_cycle_b)]


def of_message() -> int:
    return 1


def of_app(value: Annotated[int, Depends(of_message)]) -> int:
    return value


def of_app_with_message(message: Delivered[bytes]) -> int:
    return 1


def without_source(value: int) -> int:
    return value


async def unannotated(order) -> None: ...  # type: ignore[no-untyped-def]
async def two_bodies(order: Order, other: Order) -> None: ...
async def not_data(order: Plain) -> None: ...
async def nested_not_data(order: list[Plain]) -> None: ...
async def ambiguous(order: Order | dict[str, int]) -> None: ...
async def unresolved(order: Missing) -> None: ...
async def many(*orders: Order) -> None: ...
async def brokers_message(message: Message) -> None: ...
async def two_types(order: Order, message: Delivered[str]) -> None: ...
async def request_of_queue(request: Request[Order]) -> None: ...
async def batch_of_single(batch: Batch[Order]) -> None: ...
async def not_a_function(value: Annotated[int, Depends(5)]) -> None: ...  # type: ignore[arg-type]
async def cycle(value: Annotated[int, Depends(on_cycle_a)]) -> None: ...
async def short_living(value: Annotated[int, Depends(of_app, scope="app")]) -> None: ...
async def early_message(value: Annotated[int, Depends(of_app_with_message, scope="app")]) -> None: ...
async def no_source(value: Annotated[int, Depends(without_source)]) -> None: ...
def generator(order: Order) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (unannotated, "parameter 'order' of unannotated has no annotation"),
        (two_bodies, "parameter 'other' of two_bodies has no source: another parameter takes the body"),
        (not_data, "parameter 'order' of not_data is annotated with Plain, which no body can be decoded as"),
        (
            nested_not_data,
            r"annotated with list\[.*Plain\], which no body can be decoded as: Plain is not a type of data",
        ),
        (ambiguous, "which no body can be decoded as: .*more than one"),
        (unresolved, "cannot resolve the annotations of unresolved: name 'Missing' is not defined"),
        (many, "parameter 'orders' of many takes any number of arguments"),
        (
            brokers_message,
            r"annotated with Message, which is for delivery handlers of a broker; annotate it with Deliv",
        ),
        (
            two_types,
            "expects bodies of type str, but another parameter expects Order|expects bodies of type Order, but",
        ),
        (request_of_queue, r"annotated with Request, but request_of_queue gets other messages; .*Delivered\[Order\]"),
        (batch_of_single, "annotated with Batch, but batch_of_single gets other messages"),
        (not_a_function, "the dependency of parameter 'value' of not_a_function is 5; pass a function to Depends"),
        (cycle, "dependency cycle of cycle: on_cycle_a -> on_cycle_b -> on_cycle_a"),
        (short_living, "dependency of_app has scope 'app', but needs of_message of scope 'message'"),
        (early_message, "takes a message, but a dependency of scope 'app' is made before any message"),
        (no_source, "parameter 'value' of dependency without_source has no source"),
        (generator, "handler generator is a generator"),
    ],
)
async def test_handler_that_cannot_be_called_is_an_error_before_the_app_connects(
    handler: Callable[..., Any], said: str
) -> None:
    app = App("tmqp://127.0.0.1:1")
    app.subscriber("orders/1")(handler)
    with pytest.raises(errors.ConfigError, match=said):
        app.check()
    with pytest.raises(errors.ConfigError, match=said):
        await app.__aenter__()
    assert not app.is_running


async def batch_of_other(orders: Order) -> None: ...
async def batch_of_requests(orders: list[Request[Order]]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (batch_of_other, r"takes batches, but is annotated with Order; use list\[Order\]"),
        (batch_of_requests, r"is a list of Request; use list\[Delivered\[Order\]\]"),
    ],
)
def test_batch_handler_with_another_form_is_an_error(handler: Callable[..., Any], said: str) -> None:
    app = App()
    app.batch_subscriber("orders/1")(handler)
    with pytest.raises(errors.ConfigError, match=said):
        app.check()


async def plain(body: bytes) -> None: ...
async def other(body: bytes) -> None: ...


def test_two_subscribers_of_one_queue_are_an_error_that_names_what_differs() -> None:
    app = App()
    app.subscriber("orders/1", prefetch=5)(plain)
    app.subscriber("Orders/1", retry=Retry(3))(other)
    with pytest.raises(
        errors.ConfigError, match=r"two subscribers with different options \(retry, prefetch\), plain and other"
    ):
        app.check()


def test_two_handlers_of_one_kind_of_request_are_an_error() -> None:
    app = App()
    app.on_request(content_type=3)(plain)
    app.on_request(content_type=3)(other)
    with pytest.raises(errors.ConfigError, match="content type 3 have two handlers, plain and other"):
        app.check()


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda app: app.subscriber(""), "needs the name of a queue or topic"),
        (
            lambda app: app.subscriber("orders/1", prefetch=0),
            "prefetch of the subscriber of orders/1 must be at least 1",
        ),
        (lambda app: app.subscriber("orders/1", concurrency=0), "concurrency .* must be at least 1, not 0"),
        (lambda app: app.subscriber("orders/1", prefetch=2, concurrency=3), "set prefetch to at least 3"),
        (lambda app: app.subscriber("orders/1", ack_policy="nope"), "'nope' is not a valid AckPolicy"),
        (lambda app: app.subscriber("orders/1", on_bad_body="nope"), "'nope' is not a valid BadBody"),
        (
            lambda app: app.subscriber("orders/1", ack_policy="ack", retry=Retry(1)),
            "the ack policy ack, which never retries",
        ),
        (lambda app: app.batch_subscriber("orders/1", max=0), "max must be at least 1"),
        (lambda app: app.on_request(content_type=70_000), "content_type must be from 0 to 65,535"),
        (lambda app: app.on_request(concurrency=0), "concurrency must be at least 1"),
        (lambda app: app.subscriber("orders/1")(5), "a handler must be a function, not 5"),
        (lambda app: app.subscriber("orders/1")(Plain), "a handler must be a function"),
        (lambda app: app.middleware(lambda message, call_next: None), "is not an async function"),
        (lambda app: app.middleware(plain), "must take two arguments, message and call_next"),
        (lambda app: app.include(App()), "an app includes groups"),
        (lambda app: App(declare="nope"), "declare must be 'create', 'update' or 'check'"),
        (lambda app: Retry(-1), "retries must be a number from 0 to 65,535"),
        (lambda app: Retry(1, backoff=Backoff("1m", max="1s")), "exceeds its maximum"),
        (lambda app: Depends(plain, scope="request"), "scope must be 'app' or 'message'"),
    ],
)
def test_invalid_argument_is_an_error_at_the_declaration(declare: Callable[[App], Any], said: str) -> None:
    with pytest.raises(errors.ConfigError, match=said):
        declare(App())


def test_groups_cannot_include_each_other_or_be_included_twice() -> None:
    outer, inner = Group(prefix="a/"), Group(prefix="b/")
    outer.include(inner)
    with pytest.raises(errors.ConfigError, match="would include each other"):
        inner.include(outer)
    with pytest.raises(errors.ConfigError, match="included twice"):
        outer.include(inner)


def test_publisher_without_a_subscriber_or_of_a_missing_group_is_an_error() -> None:
    async def first(body: bytes) -> None: ...
    async def of_group(body: bytes) -> None: ...

    app, group = App(), Group()
    app.publisher("invoices/1")(first)
    with pytest.raises(errors.ConfigError, match=r"publisher of invoices/1 decorates .*first, which handles nothing"):
        app.check()
    second = App()
    second.subscriber("orders/1")(group.publisher("invoices/1")(of_group))
    with pytest.raises(errors.ConfigError, match="of_group is decorated with <Publisher invoices/1>, whose group"):
        second.check()


async def test_publisher_to_a_missing_queue_is_an_error_at_the_start() -> None:
    app = App()

    async def bill(body: bytes) -> bytes:
        return body

    app.subscriber("orders/1")(app.publisher("invoices/2001")(bill))
    async with mqcore.Broker() as broker:
        app.locate(broker)
        with pytest.raises(
            errors.NotFound, match=r"queue invoices/2001 of the publisher of .*bill does not exist"
        ) as caught:
            await app.__aenter__()
        assert caught.value.target == "invoices/2001"
        async with broker.client() as client:
            await client.create_queue("invoices/2001")
        async with app:
            assert app.is_running
        assert not [each.name for each in broker.stats().clients if each.name == "app"]


async def test_publisher_with_options_creates_its_queue() -> None:
    async with mqcore.Broker() as broker:
        app = App(broker)
        app.publisher("invoices/1", queue_options=QueueOptions(status="pull", tag="invoices"))
        async with app:
            assert broker.stats().queue("invoices/1").options.tag == "invoices"


async def started(app: App, broker: mqcore.Broker) -> None:
    app.locate(broker)
    async with app:
        pass


async def test_existing_queue_with_other_options_is_an_error_that_names_them() -> None:
    async with mqcore.Broker() as broker, broker.client() as client:
        await client.create_queue("orders/1", QueueOptions(status="push"))
        app = App()
        app.subscriber("orders/1", retry=Retry(3, backoff=Backoff("1s", max="5m")))(plain)
        with pytest.raises(errors.ConfigError) as caught:
            await started(app, broker)
        text = str(caught.value)
        assert "queue orders/1 exists with other options than subscriber plain needs" in text
        for part in (
            "request_acknowledge is False, not True",
            "put_back_limit is 16, not 3",
            "retry_delay is None, not 1.0",
        ):
            assert part in text
        updating = App(declare="update")
        updating.subscriber("orders/1", retry=Retry(3, backoff=Backoff("1s", max="5m")))(plain)
        await started(updating, broker)
        await started(app, broker)
        options = broker.stats().queue("orders/1").options
        assert (options.status, options.put_back_limit, options.retry_delay) == ("push", 3, 1.0)


@pytest.mark.parametrize("status", ["pull", "cache", "stopped"])
async def test_queue_that_delivers_nothing_to_consumers_is_an_error(status: str) -> None:
    async with mqcore.Broker() as broker, broker.client() as client:
        await client.create_queue("orders/1", QueueOptions(status=status, request_acknowledge=True))
        app = App()
        app.subscriber("orders/1")(plain)
        with pytest.raises(errors.ConfigError, match=f"has the status {status}, which delivers nothing"):
            await started(app, broker)


async def test_paused_queue_is_accepted() -> None:
    async with mqcore.Broker() as broker, broker.client() as client:
        await client.create_queue("orders/1", QueueOptions(status="paused", request_acknowledge=True))
        app = App()
        app.subscriber("orders/1", queue_options=QueueOptions(status="roundrobin"))(plain)
        await started(app, broker)


async def test_check_neither_creates_nor_changes_queues() -> None:
    async with mqcore.Broker() as broker, broker.client() as client:
        app = App(declare="check")
        app.subscriber("orders/1")(plain)
        with pytest.raises(errors.NotFound, match="queue orders/1 of subscriber plain does not exist; create it with"):
            await started(app, broker)
        await client.create_queue("orders/1", QueueOptions(status="roundrobin", request_acknowledge=True))
        await started(app, broker)


async def test_options_of_the_queue_and_of_retry_must_not_contradict_each_other() -> None:
    for options, said in (
        (QueueOptions(put_back_limit=3), "sets put_back_limit in queue_options and with retry"),
        (QueueOptions(request_acknowledge=False), "turn acknowledgements off"),
    ):
        app = App()
        app.subscriber("orders/1", retry=Retry(3), queue_options=options)(plain)
        with pytest.raises(errors.ConfigError, match=said):
            async with TestBroker(app):
                pass


@pytest.mark.parametrize(("queue", "said"), [("@topic:fruit.*", "topics keep no messages"), ("orders", "tmqp:// URL")])
async def test_retry_needs_a_queue_over_tmqp(queue: str, said: str) -> None:
    scheme = "tmqp" if queue.startswith("@") else "mqks"
    async with mqcore.Broker(listen=[f"{scheme}://127.0.0.1:0"]) as broker:
        app = App(broker.listeners[0])
        app.subscriber(queue, retry=Retry(1))(plain)
        with pytest.raises(errors.ConfigError, match=said):
            await app.__aenter__()


async def test_failing_start_ends_what_had_started() -> None:
    ended = asyncio.Event()

    async def resource() -> Any:
        try:
            yield 1
        finally:
            ended.set()

    app = App()

    @app.subscriber("orders/1")
    async def handle(value: Annotated[int, Depends(resource, scope="app")], client: Client) -> None: ...

    @app.subscriber("not a queue/1")
    async def invalid(body: bytes) -> None: ...

    async with mqcore.Broker() as broker:
        app.locate(broker)
        with pytest.raises(errors.MqcoreError):
            await app.__aenter__()
        assert not app.is_running
        app._subscribers.pop()

        def fail() -> int:
            raise LookupError("no secret")

        @app.subscriber("orders/2")
        async def unavailable(value: Annotated[int, Depends(fail, scope="app")]) -> None: ...

        with pytest.raises(LookupError, match="no secret"):
            await app.__aenter__()
        assert ended.is_set()
        assert broker.stats().queue("orders/1").consumers == 0


def test_app_on_a_test_broker_needs_an_event_loop() -> None:
    with pytest.raises(errors.ConfigError, match="async with TestBroker"), TestBroker(App()):
        pass
