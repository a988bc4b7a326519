"""The last look at a broker: which messages are left, and what it counted."""

from __future__ import annotations

import asyncio
import contextlib

import mqcore
from mqcore import QueueOptions, errors
from promises.model import QueueRules
from promises.scene import Scene, label_of

REST_SECONDS = 2.0
"""Longest wait until nothing is in flight."""
LOOKS = 4
"""Attempts to pull what is left; a message may return to its queue after the first."""


async def look(scene: Scene) -> None:
    """Record counters, then take everything out of every queue."""
    if scene.broker.embedded is not None:
        await _rest(scene.broker.embedded)
        _count(scene, scene.broker.embedded)
    async with mqcore.connect(scene.broker.urls["tmqp"], name="last", request_timeout=10, patience="20s") as client:
        # First no queue pushes any more: a client that joins a channel must not get the messages of its other queues.
        for rules in scene.world.queues.values():
            if rules.statuses != {"cache"}:
                with contextlib.suppress(errors.NotFound):
                    await client.update_queue(rules.address, QueueOptions(status="pull", wait_for_acknowledge=False))
        # A message that moves to another queue meanwhile must be found there.
        targets = {rules.dead_letter for rules in scene.world.queues.values()}
        targets |= {rules.expired_to for rules in scene.world.queues.values()}
        for rules in sorted(scene.world.queues.values(), key=lambda rules: rules.address in targets):
            await _empty(scene, client, rules)


async def _rest(broker: mqcore.Broker) -> None:
    """Wait until messages of consumers that left, and those that a handler decides about, are in their queues."""
    deadline = asyncio.get_running_loop().time() + REST_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        queues = broker.stats().queues
        if not any(queue.unsettled or queue.undecided for queue in queues):
            return
        await asyncio.sleep(0.01)


def _count(scene: Scene, broker: mqcore.Broker) -> None:
    for queue in broker.stats().queues:
        if queue.address not in scene.world.queues:
            continue
        for reason, count in queue.dropped.items():
            if count:
                scene.history.add("dropped", queue=queue.address, outcome=reason, count=count)
        for name in ("received", "acks", "removed", "put_back"):
            scene.history.add("counter", queue=queue.address, outcome=name, count=getattr(queue, name))
        sources = [
            rules.address
            for rules in scene.world.queues.values()
            if queue.address in {rules.dead_letter, rules.expired_to}
        ]
        arrived = sum(other.dead_lettered for other in broker.stats().queues if other.address in sources)
        scene.history.add("counter", queue=queue.address, outcome="arrived", count=arrived)


async def _rested(queue: mqcore.Queue) -> mqcore.QueueInformation:
    """The state of a queue once no message of it is with a consumer or a handler."""
    deadline = asyncio.get_running_loop().time() + REST_SECONDS
    while True:
        information = await queue.information()
        if not (information.unsettled or information.undecided) or asyncio.get_running_loop().time() > deadline:
            return information
        await asyncio.sleep(0.01)


async def _empty(scene: Scene, client: mqcore.Client, rules: QueueRules) -> None:
    queue = client.queue(rules.address)
    try:
        if rules.statuses == {"cache"}:
            # Its handler may refuse every pull.
            await client.update_queue(rules.address, QueueOptions(delivery_handler="memory"))
            cached = await queue.get_cached()
            if cached is not None:
                scene.history.add("stored", queue=rules.address, label=label_of(cached.body))
            return
        position = 0
        at = scene.history.now()
        async with client.join(rules.address.rpartition("/")[0]):
            for _ in range(LOOKS):
                information = await _rested(queue)
                left = information.messages + information.priority_messages
                if not left:
                    break
                at = scene.history.now()
                try:
                    batch = await queue.pull(left + 100, timeout=3)
                except errors.OperationError:
                    break  # a queue without its handler delivers nothing
                for message in batch:
                    scene.history.add("stored", at, queue=rules.address, label=label_of(message.body), count=position)
                    position += 1
                    await message.ack()
                if not batch:
                    await asyncio.sleep(0.02)
        information = await queue.information()
        # Both counts include delayed messages.
        left = information.messages + information.priority_messages
        scene.history.add("remaining", at, queue=rules.address, count=left)
    except errors.NotFound:
        scene.history.add("remaining", queue=rules.address, count=0, detail="the queue does not exist")
