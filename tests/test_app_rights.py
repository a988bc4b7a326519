"""Apps whose client has few rights: what they need, and what happens to failed messages without more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mqcore
from app_types import Order, until
from mqcore import App, QueueOptions, Retry, errors
from mqcore._core import AuthorityStore


def token(data_dir: Path, *allow: str) -> str:
    """A token with these rights."""
    data_dir.mkdir(mode=0o700, exist_ok=True)
    rights = {"name": f"t{len(allow)}", "allow": list(allow)}
    return str(AuthorityStore.of_data_dir(data_dir).add_token(json.dumps(rights))[1])


@pytest.fixture
async def secured(tmp_path: Path) -> Any:
    """A broker with users, the token of its owner, and one that may only consume and publish."""
    owner = token(tmp_path / "data", "*")
    few = token(tmp_path / "data", "join", "receive:orders/*", "push:invoices/*")
    async with mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=str(tmp_path / "data")) as broker:
        yield broker.listeners[0], owner, few


async def test_app_that_may_only_consume_works_and_keeps_failed_messages(
    secured: tuple[str, str, str], caplog: pytest.LogCaptureFixture
) -> None:
    url, owner, few = secured
    async with mqcore.connect(url, token=owner) as client:
        options = QueueOptions(status="roundrobin", request_acknowledge=True, retry_delay=0, put_back_limit=1)
        await client.create_queue("orders/1", options)
        await client.create_queue("invoices/1", QueueOptions(status="pull"))
        # The client may not publish there.
        await client.create_queue("orders/65535", QueueOptions(status="pull"))
        app = App(url, token=few)
        got: list[int] = []

        @app.subscriber("orders/1")
        @app.publisher("invoices/1")
        async def handle(order: Order) -> int:
            got.append(order.id)
            return order.id

        async with app:
            await client.publish("orders/1", Order(3))
            await client.publish("orders/1", b"bad")
            await until(lambda: got == [3])
            # The app may not publish to the dead-letter queue, so the broker moves the message after its retries.
            await until(lambda: "cannot move message" in caplog.text)
            dead = list(await client.queue("orders/65535").pull(1))
            while not dead:
                dead = list(await client.queue("orders/65535").pull(1))
            assert dead[0].raw == b"bad"
            assert dead[0].headers["Dead-Letter-Reason"] == "limit"
        assert "cannot check queue orders/1: the client lacks the permission" in caplog.text


async def test_app_without_the_right_to_create_a_queue_does_not_start(secured: tuple[str, str, str]) -> None:
    url, _, few = secured
    app = App(url, token=few)

    @app.subscriber("orders/7", retry=Retry(3))
    async def handle(order: Order) -> None: ...

    with pytest.raises((errors.NotFound, errors.Unauthorized)):
        await app.__aenter__()
