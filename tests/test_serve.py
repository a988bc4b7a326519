"""`Client.serve`, asyncio and blocking: slots, concurrency, and handlers that raise whatever they like."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import mqcore
from mqcore import Client, errors, sync
from mqcore.client import Request
from served import wait_until

REQUEST_TIMEOUT = "5s"
"""Less than the default, so that the test notices an unanswered request."""


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    with mqcore.Broker(listen="tmqp://127.0.0.1:0") as broker:
        yield broker


@pytest.fixture
async def asking(broker: mqcore.Broker) -> AsyncIterator[Client]:
    async with mqcore.connect(broker.listeners[0], request_timeout=REQUEST_TIMEOUT) as client:
        yield client


class Gauge:
    """How many handlers run at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.running -= 1


@contextlib.asynccontextmanager
async def serving(
    broker: mqcore.Broker, handler: Callable[[Request[bytes]], object], *, concurrency: int
) -> AsyncIterator[None]:
    async with mqcore.connect(broker.listeners[0], name="server") as server:
        task = asyncio.ensure_future(server.serve(handler, concurrency=concurrency))
        await asyncio.sleep(0)
        yield
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_each_answer_frees_its_slot(broker: mqcore.Broker, asking: Client) -> None:
    async with serving(broker, lambda request: request.raw, concurrency=2):
        for number in range(7):
            assert (await asking.request("@name:server", f"{number}")).raw == b"%d" % number


async def test_concurrency_limits_running_handlers_and_is_used(broker: mqcore.Broker, asking: Client) -> None:
    gauge, go = Gauge(), threading.Event()

    def handle(_: Request[bytes]) -> None:
        with gauge:
            assert go.wait(20)

    async with serving(broker, handle, concurrency=3):
        requests = [asyncio.ensure_future(asking.request("@name:server", b"")) for _ in range(6)]
        await asyncio.to_thread(wait_until, lambda: gauge.running == 3, what="three handlers")
        go.set()
        await asyncio.gather(*requests)
    assert gauge.most == 3


class Unprintable(BaseException):
    """Its text raises too."""

    def __str__(self) -> str:
        raise SystemExit("no text")


ENDINGS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Unprintable, ValueError]


@pytest.mark.parametrize("kind", ENDINGS)
@pytest.mark.parametrize("is_async", [True, False])
async def test_handler_that_raises_fails_its_request_only(
    broker: mqcore.Broker, asking: Client, kind: type[BaseException], is_async: bool
) -> None:
    def plain(request: Request[bytes]) -> bytes:
        if request.raw == b"bad":
            raise kind("no more")
        return b"fine"

    async def coroutine(request: Request[bytes]) -> bytes:
        return plain(request)

    async with serving(broker, coroutine if is_async else plain, concurrency=1):
        for _ in range(2):
            with pytest.raises(errors.OperationError):
                await asking.request("@name:server", b"bad")
        with pytest.raises(errors.Nacked, match=kind.__name__):
            await asking.send("@name:server", b"bad", confirm=True)
        assert (await asking.request("@name:server", b"good")).raw == b"fine"


@pytest.mark.parametrize("is_async", [True, False])
async def test_handler_that_raises_stop_iteration_fails_its_request_only(
    broker: mqcore.Broker, asking: Client, is_async: bool
) -> None:
    def plain(request: Request[bytes]) -> bytes:
        return next(iter([request.raw] if request.raw == b"good" else []))

    async def coroutine(request: Request[bytes]) -> bytes:
        return plain(request)

    async with serving(broker, coroutine if is_async else plain, concurrency=1):
        with pytest.raises(errors.OperationError, match="StopIteration"):
            await asking.request("@name:server", b"bad")
        assert (await asking.request("@name:server", b"good")).raw == b"good"


@pytest.mark.parametrize("returned", [object(), b"x" * 70_000_000], ids=["no body", "too large"])
async def test_handler_that_returns_what_cannot_be_sent_fails_its_request_only(
    broker: mqcore.Broker, asking: Client, returned: object
) -> None:
    async with serving(broker, lambda request: returned if request.raw == b"bad" else b"fine", concurrency=1):
        with pytest.raises(errors.OperationError):
            await asking.request("@name:server", b"bad")
        assert (await asking.request("@name:server", b"good")).raw == b"fine"
    with blocking(broker, lambda request: returned if request.raw == b"bad" else b"fine", 1):
        with pytest.raises(errors.OperationError):
            await asking.request("@name:server", b"bad")
        assert (await asking.request("@name:server", b"good")).raw == b"fine"


@contextlib.contextmanager
def blocking(
    broker: mqcore.Broker, handler: Callable[[sync.Request[bytes]], object], concurrency: int
) -> Iterator[None]:
    server = sync.connect(broker.listeners[0], name="server")
    thread = threading.Thread(target=lambda: server.serve(handler, concurrency=concurrency))
    thread.start()
    try:
        yield
    finally:
        server.close()
        thread.join(10)
    assert not thread.is_alive()


def test_blocking_client_serves_until_it_closes(broker: mqcore.Broker) -> None:
    gauge = Gauge()

    def handle(request: sync.Request[bytes]) -> bytes:
        with gauge:
            if request.raw == b"bad":
                raise SystemExit("no more")
            if request.raw == b"worse":
                raise Unprintable
            return request.raw

    with blocking(broker, handle, 2), sync.connect(broker.listeners[0], request_timeout=REQUEST_TIMEOUT) as client:
        for number in range(5):
            assert client.request("@name:server", f"{number}").raw == b"%d" % number
        with pytest.raises(errors.OperationError, match="no more"):
            client.request("@name:server", b"bad")
        client.send("@name:server", b"news", confirm=True)
        with pytest.raises(errors.Nacked, match="SystemExit"):
            client.send("@name:server", b"bad", confirm=True)
        with pytest.raises(errors.OperationError, match="Unprintable"):
            client.request("@name:server", b"worse")
        assert client.request("@name:server", b"again").raw == b"again"
    assert gauge.most <= 2
