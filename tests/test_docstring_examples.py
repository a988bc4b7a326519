"""The examples in docstrings of public items, run against a real broker.

`await`, `async with` and `async for` work at the top level of an example. Each has `mqcore`, a running `broker` that
creates queues, and `mq`, a client of it; a client named `clock` answers every request with `noon`.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import mqcore
import mqcore.client
import mqcore.sync
import mqcore.testing

CLIENT = ("connect", "Client.publish", "Client.request", "Client.declare", "Queue.consume", "Queue.pull")
ITEMS = [
    *(
        (mqcore, name)
        for name in ("App", "Broker", "DeliveryHandler", "Depends", "EventHandler", "QueueOptions", "Retry", "Router")
    ),
    (mqcore.testing, "TestBroker"),
    *((mqcore.client, name) for name in CLIENT),
    *((mqcore.sync, name) for name in CLIENT),
]


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    """A broker that creates queues, and a client of it that answers requests."""
    with mqcore.Broker(listen=["tmqp://127.0.0.1:0"], auto_create_channels=True, auto_create_queues=True) as running:
        clock = mqcore.sync.connect(running, name="clock")
        requests = clock.requests().__enter__()

        def answer() -> None:
            for request in requests:
                request.respond("noon")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield running
        clock.close()
        thread.join(10)


def run(code: Any, names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Run a compiled example; if it awaits, on the loop."""
    result = eval(code, names)
    if inspect.iscoroutine(result):
        loop.run_until_complete(result)


@pytest.mark.parametrize(("module", "name"), ITEMS, ids=[f"{module.__name__}.{name}" for module, name in ITEMS])
def test_examples_of_public_items_print_what_they_show(module: Any, name: str, broker: mqcore.Broker) -> None:
    item = module
    for part in name.split("."):
        item = getattr(item, part)
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(item) or "")
    assert examples, f"{name} has no example"
    checker = doctest.OutputChecker()
    blocking = module is mqcore.sync
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        mq: Any = mqcore.sync.connect(broker) if blocking else loop.run_until_complete(_connected(broker))
        names: dict[str, Any] = {"mqcore": mqcore, "broker": broker, "mq": mq}
        try:
            for example in examples:
                code = compile(example.source, name, "single", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                with contextlib.redirect_stdout(io.StringIO()) as shown:
                    assert sys.displayhook
                    run(code, names, loop)
                assert checker.check_output(example.want, shown.getvalue(), 0), (
                    f"{example.source}\nexpected:\n{example.want}\ngot:\n{shown.getvalue()}"
                )
        finally:
            closing = mq.close()
            if closing is not None:
                loop.run_until_complete(closing)


async def _connected(broker: mqcore.Broker) -> mqcore.Client:
    return await mqcore.connect(broker)
