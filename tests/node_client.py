"""A client in a process of its own, so that it can be where a broker is: in another network namespace.

`python node_client.py VERB URL ...`; what it finds out goes to standard output as JSON, one value a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine
from typing import Any

import mqcore
from mqcore import QueueOptions, QueueStatus, errors

KEPT = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
LIMIT = 20.0
"""Seconds after which something that is waited for counts as never."""


def tell(value: object) -> None:
    print(json.dumps(value), flush=True)


async def declare(url: str, *channels: str) -> None:
    """Make queue 1 of each channel, that saves and is pulled from."""
    async with mqcore.connect(url) as mq:
        for channel in channels:
            await mq.declare(channel, 1, KEPT)


async def load(url: str, prefix: str, *channels: str) -> None:
    """Publish to each channel in turn until standard input ends; tell each batch that was acknowledged as saved.

    A batch whose answer was lost with its connection is given up, never repeated: all names are different.
    """
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    number = 0
    while not ended.done():
        try:
            async with mqcore.connect(url, reconnect_attempts=0, connect_timeout=2.0) as mq:
                while not ended.done():
                    channel = channels[number % len(channels)]
                    names = [f"{prefix}-{number}-{index}" for index in range(10)]
                    number += 1
                    await mq.publish_many(f"{channel}/1", names)
                    tell([channel, names])
                    await asyncio.sleep(0.002)  # a steady stream, rather than a race for the disk
        except errors.MqcoreError:
            await asyncio.sleep(0.02)


async def linked(url: str, *wanted: str) -> None:
    """Wait until exactly these upstreams are connected."""
    deadline = time.monotonic() + LIMIT
    async with mqcore.connect(url) as mq:
        while True:
            there = sorted(node.name for node in await mq.nodes() if node.connected and not node.downstream)
            if there == sorted(wanted):
                return
            if time.monotonic() > deadline:
                sys.exit(f"the connected upstreams are {there}, never {list(wanted)}")
            await asyncio.sleep(0.02)


def backlogs(admin: str) -> list[float]:
    """How many messages each upstream has not confirmed yet."""
    with urllib.request.urlopen(f"{admin}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    names = ("mqcore_node_backlog ", "mqcore_node_backlog{")
    return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names)]


async def backlog(admin: str) -> None:
    """Tell how many messages no upstream has confirmed yet."""
    tell(sum(await asyncio.to_thread(backlogs, admin)))


async def settled(admin: str) -> None:
    """Wait until every upstream has confirmed everything: from then on nothing is sent again."""
    deadline = time.monotonic() + LIMIT
    while True:
        left = await asyncio.to_thread(backlogs, admin)
        if left and not any(left):
            return
        if time.monotonic() > deadline:
            sys.exit(f"never confirmed: {left}")
        await asyncio.sleep(0.02)


async def count(url: str, channel: str) -> None:
    async with mqcore.connect(url) as mq:
        tell((await mq.queue(f"{channel}/1").information()).messages)


async def take(url: str, channel: str) -> None:
    """Take everything out of the queue and tell it, in order."""
    found: list[str] = []
    async with mqcore.connect(url) as mq:
        queue = mq.queue(f"{channel}/1")
        while left := (await queue.information()).messages:
            found += [message.body for message in await queue.pull(left, str)]
    tell(found)


VERBS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "declare": declare,
    "load": load,
    "linked": linked,
    "backlog": backlog,
    "settled": settled,
    "count": count,
    "take": take,
}

if __name__ == "__main__":
    asyncio.run(VERBS[sys.argv[1]](*sys.argv[2:]))
