"""Dependencies of handlers: kinds, scopes, order of their ends, threads, overrides, FastAPI's declarations."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

from app_types import Order
from mqcore import App, Client, Delivered, Depends, Retry
from mqcore.testing import TestBroker

EVENTS: list[str] = []


@pytest.fixture(autouse=True)
def _events() -> None:
    EVENTS.clear()


class Database:
    """A dependency that is a class, with dependencies of its own."""

    def __init__(self, url: Annotated[str, Depends(lambda: "db://main")]) -> None:
        self.url = url


def settings() -> dict[str, int]:
    EVENTS.append("settings")
    return {"limit": 3}


async def session(limits: Annotated[dict[str, int], Depends(settings)], db: Annotated[Database, Depends()]) -> str:
    EVENTS.append("session")
    return f"{db.url}?limit={limits['limit']}"


def plain_generator(open_session: Annotated[str, Depends(session)]) -> Iterator[str]:
    EVENTS.append("plain begins")
    try:
        yield open_session
    except ValueError:
        EVENTS.append("plain rolls back")
        raise
    EVENTS.append("plain ends")


async def async_generator(
    message: Delivered[Order], first: Annotated[str, Depends(plain_generator)]
) -> AsyncIterator[str]:
    EVENTS.append("async begins")
    try:
        yield f"{first}#{message.body.id}"
    finally:
        EVENTS.append("async ends")


async def test_dependencies_are_made_in_order_and_ended_in_reverse() -> None:
    app = App()

    @app.subscriber("orders/1")
    @app.publisher("out/1")
    async def handle(
        order: Order,
        value: Annotated[str, Depends(async_generator)],
        again: Annotated[dict[str, int], Depends(settings)],
        client: Client,
    ) -> str:
        EVENTS.append(f"handler {order.id} {again['limit']}")
        return value

    async with TestBroker(app) as mq:
        await app.publish("orders/1", Order(7))
        await mq.settle()
        assert mq.messages("out/1")[0].body == b"db://main?limit=3#7"
    assert EVENTS == [
        "settings",
        "session",
        "plain begins",
        "async begins",
        "handler 7 3",
        "async ends",
        "plain ends",
    ]


@pytest.mark.parametrize("plain", [True, False])
async def test_generator_gets_the_exception_of_the_handler(plain: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    ended: list[str] = []

    def transaction() -> Iterator[int]:
        try:
            yield 1
        except ValueError:
            ended.append("rolled back")
            raise
        ended.append("committed")

    if plain:

        @app.subscriber("orders/1", retry=Retry(0))
        def handle(order: Order, one: Annotated[int, Depends(transaction)]) -> None:
            if order.id == 2:
                raise ValueError("no")

    else:

        @app.subscriber("orders/1", retry=Retry(0))
        async def handle_async(order: Order, one: Annotated[int, Depends(transaction)]) -> None:
            if order.id == 2:
                raise ValueError("no")

    async with TestBroker(app) as mq:
        await app.publish("orders/1", Order(1))
        await app.publish("orders/1", Order(2))
        await mq.settle()
    assert ended == ["committed", "rolled back"]


def swallowing() -> Iterator[str]:
    try:
        yield "value"
    except Exception:
        EVENTS.append("swallowed")


async def swallowing_async() -> AsyncIterator[str]:
    try:
        yield "value"
    except Exception:
        EVENTS.append("swallowed")


def noting() -> Iterator[str]:
    try:
        yield "outer"
    except ValueError:
        EVENTS.append("outer rolls back")
        raise


def failing(before: Annotated[str, Depends(swallowing)]) -> str:
    raise ValueError(before)


@pytest.mark.parametrize(
    ("dependency", "plain"),
    [
        (Depends(swallowing), False),
        (Depends(swallowing_async), False),
        (Depends(swallowing, in_thread=True), False),
        (Depends(failing), False),
        (Depends(swallowing), True),
        (Depends(swallowing_async), True),
        (Depends(failing), True),
    ],
)
async def test_message_of_a_failed_handler_is_rejected_although_a_dependency_catches_its_exception(
    dependency: Any, plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    if plain:

        @app.subscriber("orders/1", retry=Retry(0))
        def handle(
            outer: Annotated[str, Depends(noting)], inner: Annotated[str, dependency], message: Delivered[bytes]
        ) -> None:
            raise ValueError("no stock")

    else:

        @app.subscriber("orders/1", retry=Retry(0))
        async def handle_async(
            outer: Annotated[str, Depends(noting)], inner: Annotated[str, dependency], message: Delivered[bytes]
        ) -> None:
            raise ValueError("no stock")

    async with TestBroker(app) as mq:
        await app.publish("orders/1", b"x")
        await mq.settle()
        stats = mq.stats().queue("orders/1")
        assert (stats.acks, stats.negative_acks, len(mq.messages("orders/65535"))) == (0, 1, 1)
    assert sorted(EVENTS) == ["outer rolls back", "swallowed"]


async def test_app_does_not_start_although_a_part_catches_the_exception() -> None:
    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        try:
            yield
        except ValueError:
            EVENTS.append("swallowed by the lifespan")

    def unreachable() -> str:
        raise ValueError("no database")

    app = App(lifespan=lifespan)

    @app.subscriber("orders/1")
    async def handle(
        first: Annotated[str, Depends(swallowing, scope="app")],
        second: Annotated[str, Depends(unreachable, scope="app")],
    ) -> None: ...

    with pytest.raises(ValueError, match="no database"):
        async with TestBroker(app):
            pass
    assert EVENTS == ["swallowed", "swallowed by the lifespan"]


async def test_plain_dependencies_of_a_plain_handler_run_in_its_thread() -> None:
    app = App()
    threads: dict[str, int] = {}

    def connection() -> Iterator[int]:
        threads["begin"] = threading.get_ident()
        yield 5
        threads["end"] = threading.get_ident()

    async def on_the_loop(five: Annotated[int, Depends(connection, use_cache=False)]) -> int:
        threads["loop"] = threading.get_ident()
        return five

    @app.subscriber("orders/1")
    def handle(body: str, five: Annotated[int, Depends(connection)]) -> None:
        threads["handler"] = threading.get_ident()

    @app.subscriber("orders/2")
    async def handle_async(body: str, five: Annotated[int, Depends(connection, in_thread=True)]) -> None:
        threads["async"] = threading.get_ident()

    async with TestBroker(app) as mq:
        await app.publish("orders/1", "x")
        await mq.settle()
        assert threads["begin"] == threads["end"] == threads["handler"] != threading.get_ident()
        threads.clear()
        await app.publish("orders/2", "x")
        await mq.settle()
        assert threads["begin"] != threads["async"] == threading.get_ident()


async def test_value_is_made_once_per_message_unless_the_cache_is_off() -> None:
    app = App()
    made: list[object] = []

    def fresh() -> object:
        made.append(object())
        return made[-1]

    @app.subscriber("orders/1")
    async def handle(
        a: Annotated[object, Depends(fresh)],
        b: Annotated[object, Depends(fresh)],
        c: Annotated[object, Depends(fresh, use_cache=False)],
    ) -> None:
        assert a is b is not c

    async with TestBroker(app) as mq:
        await app.publish("orders/1", b"")
        await app.publish("orders/1", b"")
        await mq.settle()
        assert len(made) == 4
        assert mq.stats().queue("orders/1").acks == 2


async def test_dependency_of_scope_app_lives_as_long_as_the_app() -> None:
    app = App()
    events: list[str] = []

    def config() -> str:
        return "config"

    async def pool(
        name: Annotated[str, Depends(config, scope="app")], client: Client, asked: App
    ) -> AsyncIterator[str]:
        events.append(f"begin with {name}")
        assert client is asked.client
        yield "pool"
        events.append("end")

    @app.subscriber("orders/1")
    async def first(body: str, value: Annotated[str, Depends(pool, scope="app")]) -> None:
        events.append(f"{body} {value}")

    @app.on_request()
    def second(value: Annotated[str, Depends(pool, scope="app")]) -> str:
        return value

    async with TestBroker(app) as mq, mq.client() as client:
        assert events == ["begin with config"]
        await app.publish("orders/1", "a")
        await app.publish("orders/1", "b")
        await mq.settle()
        assert await client.request(app.client.id, b"", reply=str) == "pool"
    assert events == ["begin with config", "a pool", "b pool", "end"]


async def test_overrides_replace_dependencies_everywhere() -> None:
    app = App()
    app.dependency_overrides[settings] = lambda: {"limit": 99}

    @app.subscriber("orders/1")
    @app.publisher("out/1")
    async def handle(value: Annotated[str, Depends(session)]) -> str:
        return value

    async with TestBroker(app) as mq:
        await app.publish("orders/1", b"")
        await mq.settle()
        assert mq.messages("out/1")[0].body == b"db://main?limit=99"


async def test_declarations_of_fastapi_work_as_metadata_and_as_defaults() -> None:
    fastapi = pytest.importorskip("fastapi")
    app = App()
    got: list[Any] = []

    of_settings = fastapi.Depends(settings)

    async def user(limits: dict[str, int] = of_settings) -> str:
        return f"user {limits['limit']}"

    of_user = fastapi.Depends(user)

    async def handle(order: Order, name: str = of_user, db: Any = None) -> None:
        got.append((order.id, name, db))

    async def annotated(order: Order, name: Any) -> None:
        got.append((order.id, name))

    annotated.__annotations__["name"] = Annotated[str, of_user]
    app.subscriber("orders/1")(handle)
    app.subscriber("orders/2")(annotated)
    async with TestBroker(app) as mq:
        await app.publish("orders/1", Order(1))
        await app.publish("orders/2", Order(2))
        await mq.settle()
    assert sorted(got, key=lambda each: each[0]) == [(1, "user 3", None), (2, "user 3")]


async def test_partial_functions_and_objects_are_handlers_and_dependencies() -> None:
    app = App()
    got: list[Any] = []

    class Times:
        """A dependency that is an object."""

        def __init__(self, factor: int) -> None:
            self.factor = factor

        async def __call__(self, message: Delivered[int]) -> int:
            return message.body * self.factor

    async def handle(name: str, body: int, product: Annotated[int, Depends(Times(3))]) -> None:
        got.append((name, body, product))

    app.subscriber("orders/1")(functools.partial(handle, "fixed"))
    async with TestBroker(app) as mq:
        await app.publish("orders/1", 5)
        await mq.settle()
    assert got == [("fixed", 5, 15)]
