"""Apps whose broker is killed and started again: consumers continue, nothing confirmed is lost, retries are counted."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mqcore
from app_types import until
from mqcore import App, Backoff, Delivered, QueueOptions, Retry
from mqcore.testing import ServerProcess

SAVING = QueueOptions(delivery_handler="at-least-once")


async def test_app_continues_after_its_broker_was_killed_and_loses_nothing(tmp_path: Path) -> None:
    with ServerProcess(data_dir=tmp_path / "data") as server:
        app = App(server.url, backoff_first="10ms", backoff_max="50ms", request_timeout="30s")
        done: Counter[int] = Counter()
        published: list[int] = []

        @app.subscriber("orders/1", concurrency=4, prefetch=20, queue_options=SAVING)
        async def handle(number: int) -> None:
            await asyncio.sleep(0.001)
            done[number] += 1

        async def produce() -> None:
            for number in range(300):
                await app.publish("orders/1", number, id=f"n{number}", retry=True)
                published.append(number)

        async with app:
            producing = asyncio.create_task(produce())
            for count in (50, 150):
                await until(lambda count=count: len(published) >= count, 30)  # type: ignore[misc]
                await asyncio.to_thread(server.restart)
            await asyncio.wait_for(producing, 50)
            await until(lambda: set(done) == set(range(300)), 30)
            await until(lambda: app.is_running and not app._is_busy)


async def test_attempts_and_delays_survive_the_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="mqcore.app")
    with ServerProcess(data_dir=tmp_path / "data") as server:
        app = App(server.url, backoff_first="10ms", backoff_max="50ms")
        attempts: list[int | None] = []
        retry = Retry(2, backoff=Backoff("500ms", max="1s", jitter=0), dead_letter="orders/9")

        @app.subscriber("orders/1", retry=retry, queue_options=SAVING)
        async def handle(message: Delivered[bytes]) -> None:
            attempts.append(message.attempt)
            raise ValueError("no stock")

        async with app:
            await app.publish("orders/1", b"x")
            # A failed attempt counts as soon as the broker has saved it. One in flight at the kill is repeated.
            queue = app.client.queue("orders/1")
            while not (await queue.information()).delayed_messages and attempts == [1]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.restart)
            await until(lambda: attempts[-1:] == [3], 20)
            assert [attempt for attempt, _ in itertools.groupby(attempts)] == [1, 2, 3]

            async def letters() -> list[Any]:
                return list(await app.client.queue("orders/9").pull(5, timeout="20s"))

            found = await letters()
            while not found:
                found = await letters()
            assert found[0].headers["Dead-Letter-Error"] == "ValueError: no stock"


@pytest.mark.parametrize("client_id", [None, "billing"])
async def test_app_creates_its_queues_again_on_a_broker_that_has_lost_them(client_id: str | None) -> None:
    with ServerProcess() as server:
        app = App(server.url, id=client_id, backoff_first="10ms", backoff_max="50ms")
        got: list[str] = []

        @app.subscriber("orders/1", retry=Retry(3))
        @app.publisher("done/1", queue_options=QueueOptions(put_back_limit=7))
        async def handle(body: str) -> str:
            got.append(body)
            return body

        async with app:
            for body in ("first", "second", "third"):
                await app.publish("orders/1", body)
                await until(lambda body=body: body in got)  # type: ignore[misc]
                found = await app.client.queue_information("done/1")
                assert (found.messages, found.put_back_limit) == (1, 7)
                assert (await app.client.queue_information("orders/1")).put_back_limit == 3
                await asyncio.to_thread(server.restart)
                await until(lambda: app._run is not None and app._run.checked_connections == len(got))


async def test_requests_work_again_after_the_broker_was_killed() -> None:
    with ServerProcess() as server:
        app = App(server.url, name="billing", backoff_first="10ms", backoff_max="50ms")

        @app.on_request()
        async def echo(body: str) -> str:
            return body

        async with app:
            client = app.client
            assert await client.request("@name:billing", "x", reply=str) == "x"
            await asyncio.to_thread(server.restart)
            await until(lambda: client.state.status == "connected")
            assert await client.request("@name:billing", "y", reply=str, timeout="10s") == "y"


async def test_app_logs_that_a_broker_has_lost_a_queue_which_it_may_not_create(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ServerProcess() as server:
        app = App(server.url, declare="check", backoff_first="10ms", backoff_max="50ms")

        @app.subscriber("orders/1")
        async def handle(body: str) -> None: ...

        async with mqcore.connect(server.url) as client:
            await client.create_queue("orders/1", QueueOptions(status="roundrobin", request_acknowledge=True))
        async with app:
            await asyncio.to_thread(server.restart)
            await until(lambda: "queues do not fit: queue orders/1 of subscriber" in caplog.text)
