"""Fixtures of the protocol tests: brokers with sockets, and raw clients of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mqcore
from protocols.conversation import Client, Connect, Eventually, StartBroker, address


@pytest.fixture
def start_broker() -> Iterator[StartBroker]:
    """Starts brokers with a TMQP listener, an admin side, and the given options; stops them after the test."""
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> mqcore.Broker:
            defaults: dict[str, Any] = {
                "listen": ["tmqp://127.0.0.1:0"],
                "admin": "http://127.0.0.1:0",
                "shards": 2,
            }
            broker = mqcore.Broker(**defaults | options)
            broker.start()
            stack.callback(broker.stop, grace=0.0)
            return broker

        yield start


@pytest.fixture
def broker(start_broker: StartBroker) -> mqcore.Broker:
    """A broker with all options as they are by default."""
    return start_broker()


@pytest.fixture
def open_socket() -> Iterator[Connect]:
    """Opens connections to a broker, without a handshake; closes them after the test."""
    with contextlib.ExitStack() as stack:

        def connect(broker: mqcore.Broker) -> Client:
            return stack.enter_context(Client(*address(broker)))

        yield connect


@pytest.fixture
def connect(request: pytest.FixtureRequest, open_socket: Connect) -> Connect:
    """Connects clients to the broker of the test: `connect("id", Client_Name="n")`, elsewhere with `to=`."""

    def connect(client_id: str = "", *, to: mqcore.Broker | None = None, **properties: str) -> Client:
        client = open_socket(request.getfixturevalue("broker") if to is None else to)
        if client_id:
            properties["Client_Id"] = client_id
        answer = client.hello(**properties)
        assert client.client_id, (answer.content_type, answer.payload)
        return client

    return connect


@pytest.fixture
def producer(connect: Connect) -> Client:
    """A client called `prod`."""
    return connect("prod")


@pytest.fixture
def consumer(connect: Connect) -> Client:
    """A client called `c1`."""
    return connect("c1")


@pytest.fixture
def eventually() -> Eventually:
    """Polls a condition until it is true; fails after ten seconds."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "it did not become true within 10 s"
            time.sleep(0.01)

    return wait
