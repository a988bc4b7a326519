"""Checked by mypy and pyright, never run: apps as users write them, and mistakes that have to be found."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, assert_type

import mqcore
from mqcore import AckPolicy, App, Backoff, Client, Delivered, Depends, Group, QueueOptions, QueueStatus, Retry
from mqcore.app import BadBody, CallNext, Publisher
from mqcore.client import Batch, Receipt
from mqcore.testing import TestBroker


@dataclass
class Order:
    id: int


@dataclass
class Invoice:
    total: float


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[dict[str, int]]:
    assert_type(app, App)
    yield {"limit": 3}


app = App(["tmqp://one", "tmqp://two"], name="billing", lifespan=lifespan, drain_timeout="10s", token="x")
group = Group(prefix="shop/")
invoices = app.publisher("invoices/1", Invoice, queue_options=QueueOptions(status=QueueStatus.PULL))
anything = app.publisher("anything/1", delay="5s")


async def rates() -> AsyncIterator[dict[str, float]]:
    yield {}


@app.middleware
async def around(message: Any, call_next: CallNext) -> Any:
    return await call_next(message)


@app.subscriber(
    "orders/1",
    prefetch=50,
    concurrency=8,
    retry=Retry(5, backoff=Backoff("1s", max="5m"), dead_letter="orders/9001"),
    ack_policy=AckPolicy.NACK_ON_ERROR,
    on_bad_body=BadBody.DEAD_LETTER,
)
@invoices
async def bill(
    order: Order,
    message: Delivered[Order],
    prices: Annotated[dict[str, float], Depends(rates)],
    client: Client,
) -> Invoice:
    assert_type(message.body, Order)
    return Invoice(1.0)


@group.subscriber("2")
@anything
def plain(order: Order) -> str:
    return str(order.id)


@group.batch_subscriber("3", max=10, wait="5ms")
async def batch(orders: Batch[Order]) -> None:
    assert_type(orders.bodies, list[Order])


@app.on_request(content_type=10)
def quote(order: Order) -> Invoice:
    return Invoice(order.id)


async def uses() -> None:
    app.include(group)
    assert_type(invoices, Publisher[Invoice])
    assert_type(await invoices.publish(Invoice(2.0), delay="5s"), Receipt)
    assert_type(await app.publish("orders/1", Order(1), id="x"), Receipt)
    assert_type(quote(Order(1)), Invoice)
    async with TestBroker(app) as mq:
        await mq.settle()
    async with mqcore.Broker() as broker, App(broker):
        pass


async def mistakes(order: Order, prices: dict[str, float], message: Delivered[Order], client: Client) -> None:
    """Each line is one; a checker that does not find it fails, because the ignore would be unused."""
    quote(5)  # type: ignore[arg-type]
    await bill("x", message, prices, client)  # type: ignore[arg-type]
    plain(order=order, other=1)  # type: ignore[call-arg]
    app.subscriber("orders/1", prefech=5)  # type: ignore[call-arg]
    app.subscriber("orders/1", retry=5)  # type: ignore[arg-type]
    App(naem="x")  # type: ignore[call-arg]


async def more_mistakes() -> None:
    await invoices.publish(Order(1))  # type: ignore[arg-type]
    await invoices.publish(Invoice(1.0), priorty=3)  # type: ignore[call-arg]
    await app.publish("orders/1", Order(1), delya="5s")  # type: ignore[call-arg]


@invoices  # type: ignore[arg-type]
async def wrong_result(order: Order) -> Order:
    return order


@invoices  # type: ignore[arg-type]
def wrong_plain_result(order: Order) -> str:
    return ""
