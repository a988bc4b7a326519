"""An answer about a definition waits until it is saved, also if another client made the change."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import mqcore
from mqcore import errors
from served import serving
from slow_sync import slow_sync

Change = Callable[[mqcore.Client], Coroutine[Any, Any, object]]

CHANGES: dict[str, Change] = {
    "create a channel": lambda client: client.create_channel("new"),
    "create a queue": lambda client: client.create_queue("orders/2"),
    "remove a channel": lambda client: client.remove_channel("old"),
    "remove a queue": lambda client: client.remove_queue("orders/1"),
    "update a queue": lambda client: client.update_queue("orders/1", mqcore.QueueOptions(message_limit=7)),
    "create a router": lambda client: client.create_router("fast"),
    "remove a router": lambda client: client.remove_router("slow"),
    "disable a router": lambda client: client.disable_router("slow"),
    "bind a topic": lambda client: client.bind("@topic:news", "orders/1"),
    "clear a queue": lambda client: client.clear_queue("saved/1"),
    "unbind a topic": lambda client: client.unbind("@topic:old", "orders/1"),
}


SAVING = mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, delivery_handler="at-least-once")


async def definitions(client: mqcore.Client) -> list[object]:
    """Definitions that the changes concern."""
    channels = sorted(channel.name for channel in await client.channels())
    queues = sorted((queue.id, queue.message_limit) for queue in await client.queues("orders"))
    routers = sorted((router.name, router.enabled) for router in await client.routers())
    saved = (await client.queue_information("saved/1")).messages
    return [channels, queues, saved, routers, await has_queue(client, "news"), await has_queue(client, "old")]


async def has_queue(client: mqcore.Client, topic: str) -> bool:
    """Whether a queue is bound to the topic. Its messages stay in memory, so the answer waits for no disk."""
    try:
        await client.publish(f"@topic:{topic}", b"x")
    except errors.MqcoreError:
        return False
    return True


async def outcome(change: Coroutine[Any, Any, object]) -> str:
    """Name of the error with which a change ends. Another client may have made it before."""
    try:
        await change
    except (errors.AlreadyExists, errors.NotFound) as error:
        return type(error).__name__
    return ""


@pytest.mark.parametrize("name", CHANGES)
async def test_answer_waits_until_the_change_of_another_client_is_saved(name: str, tmp_path: Path) -> None:
    change, gate = CHANGES[name], tmp_path / "gate"
    arguments = ("--data-dir", str(tmp_path / "data"))
    environment = slow_sync(tmp_path, gate=gate) | {"MQCORE_SHARDS": "1"}
    with serving(*arguments, environment=environment) as broker:
        async with mqcore.connect(broker.url) as first, mqcore.connect(broker.url) as second:
            await first.create_queue("orders/1")
            await first.create_queue("saved/1", SAVING)
            await first.publish("saved/1", b"x")
            await first.create_channel("old")
            await first.create_router("slow")
            await first.bind("@topic:old", "orders/1")
            before = await definitions(second)
            gate.touch()
            answers = [asyncio.create_task(outcome(change(first)))]
            # The broker executes the requests of a connection in order; only answers wait for the disk.
            await definitions(first)
            answers.append(asyncio.create_task(outcome(change(second))))
            await definitions(second)
            after = await definitions(second)
            assert after != before
            assert not any(answer.done() for answer in answers)
            gate.unlink()
            ended = await asyncio.wait_for(asyncio.gather(*answers), 10)
            assert ended[0] == ""
            broker.process.send_signal(signal.SIGKILL)
            broker.process.wait(10)
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as client:
            assert await definitions(client) == after
