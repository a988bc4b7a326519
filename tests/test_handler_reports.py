"""Log records about handlers that raise name the handler and the method, and count each failure once."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

import mqcore
from awaited import until
from mqcore import Broker, Decision, DeliveryHandler


class Raising(DeliveryHandler):
    """Raises for each message."""

    def __init__(self, raised: type[BaseException]) -> None:
        self.raised = raised

    def received_from_producer(self, *_: object) -> Decision:
        raise self.raised("on purpose")


class AwaitedRaising(Raising):
    """The same with ``await``."""

    async def received_from_producer(self, *_: object) -> Decision:  # type: ignore[override]
        raise self.raised("on purpose")


class Late(Raising):
    """Never answers."""

    timeout = 0.05

    async def received_from_producer(self, *_: object) -> Decision:  # type: ignore[override]
        await asyncio.Event().wait()
        raise AssertionError


def reported(caplog: pytest.LogCaptureFixture, raised: type[BaseException]) -> int:
    """The failures of the delivery handler "asked" in all records. Any other record about a handler is an error."""
    begin = "delivery handler 'asked' raised in received_from_producer"
    total = 0
    for record in caplog.records:
        if record.name == "mqcore.handlers":
            text = record.getMessage()
            match = re.fullmatch(rf"{begin}(?: \((\d+) times in one batch; this is the first\))?; .*", text)
            assert match is not None, text
            assert record.exc_info is not None
            assert (record.levelno, record.exc_info[0]) == (logging.ERROR, raised)
            assert match[1] is None or int(match[1]) > 1
            total += int(match[1] or 1)
    return total


@pytest.mark.parametrize("raised", [ValueError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("kind", [Raising, AwaitedRaising, Late])
async def test_log_counts_each_failure_of_a_delivery_handler_once(
    kind: type[Raising], raised: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(
        listen="tmqp://127.0.0.1:0", auto_create_channels=True, auto_create_queues=True, delivery_handler="asked"
    )
    broker.delivery_handlers["asked"] = kind(raised)
    expected = TimeoutError if kind is Late else raised
    async with broker, mqcore.connect(broker) as mq:
        for total in (100, 101, 161):
            await mq.publish_many("orders/1", [b"x"] * (total - reported(caplog, expected)), confirm=False)
            await until(lambda total=total: reported(caplog, expected) == total, "a record of every failure")
    assert reported(caplog, expected) == 161


async def test_failures_of_a_batch_that_come_later_are_counted_by_themselves(caplog: pytest.LogCaptureFixture) -> None:
    go, asked = asyncio.Event(), []

    class Staggered(DeliveryHandler):
        async def received_from_producer(self, *_: object) -> Decision:  # type: ignore[override]
            asked.append(1)
            if len(asked) > 1:
                await go.wait()
            raise SystemExit

    broker = Broker(
        listen="tmqp://127.0.0.1:0", auto_create_channels=True, auto_create_queues=True, delivery_handler="asked"
    )
    broker.delivery_handlers["asked"] = Staggered()
    async with broker, mqcore.connect(broker) as mq:
        await mq.publish_many("orders/1", [b"x"] * 50, confirm=False)
        await until(lambda: (len(asked), reported(caplog, SystemExit)) == (50, 1), "the first failure")
        go.set()
        await until(lambda: reported(caplog, SystemExit) >= 50, "the other failures")
    assert reported(caplog, SystemExit) == 50
