"""Tests of the billing service against the real broker, with a clock that the test moves."""

import asyncio
import json
from pathlib import Path

import pytest

import billing
from mqcore.testing import TestBroker
from orders import Order, handlers


def shop(directory: Path) -> TestBroker:
    broker = TestBroker(billing.app, data_dir=str(directory))
    broker.delivery_handlers["checked-orders"] = handlers["checked-orders"]
    return broker


def test_order_is_retried_until_its_article_has_a_price(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prices = {"B-200": 20.0}
    monkeypatch.setattr(billing, "price", prices.__getitem__)

    async def scenario() -> None:
        async with shop(tmp_path) as mq:
            await mq.publish("orders/1001", Order(1, "A-100", 3))
            await mq.settle()
            assert mq.messages("invoices/2001") == []

            prices["A-100"] = 9.5
            await mq.clock.advance(seconds=1)
            (invoice,) = mq.messages("invoices/2001")
            assert json.loads(invoice.body) == {"number": 1, "total": 28.5}

    asyncio.run(scenario())


def test_order_without_a_price_becomes_a_dead_letter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_prices: dict[str, float] = {}
    monkeypatch.setattr(billing, "price", no_prices.__getitem__)

    async def scenario() -> None:
        async with shop(tmp_path) as mq:
            await mq.publish("orders/1001", Order(1, "C-300", 1))
            await mq.settle()
            for _ in range(3):
                await mq.clock.advance(seconds=1)
            (dead,) = mq.messages("orders/9001")
            assert dead.message.headers["Dead-Letter-Attempts"] == "4"

    asyncio.run(scenario())
