"""Consumers: they receive, settle or do not settle, leave in many ways, and record what they received."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import Any

import mqcore
from conformance.adapters import Delivery, Party, Place
from mqcore import errors
from mqcore.client import Delivered
from promises.plan import Actor, Step
from promises.producing import CUT, open_party
from promises.scene import FENCE, Scene, body_of, label_of
from worker_peer import WorkerPeer

IDLE_SECONDS = 0.03
"""How long a consumer waits for a message before it looks whether it should leave."""
REQUEUES = "requeue"
"""Detail of a settlement in protocols whose nack always asks the broker to requeue."""
LATE_SHARE = 0.8
"""After this share of the acknowledge timeout an ack may be late for the client, and in time for the broker."""
SLOW_SECONDS = 0.06
PAUSE_SECONDS = 0.01


async def consume(scene: Scene, actor: Actor) -> None:
    """Play the lives of a consumer, one after the other, until the scene is quiet."""
    await scene.until(actor.start)
    for number, life in enumerate(actor.steps):
        if number and scene.quiet.is_set():
            return
        if actor.protocol.startswith("raw-"):
            await asyncio.to_thread(_live_raw, scene, actor, life)
        else:
            await _live(scene, actor, life)
        await asyncio.sleep(PAUSE_SECONDS)


async def _live(scene: Scene, actor: Actor, life: Step) -> None:
    """One connection, from the join until it leaves."""
    session = scene.history.session(actor.name)
    prefetch = actor.options["prefetch"]
    client = await scene.connect(actor)
    try:
        while True:
            at = scene.history.now()
            try:
                async with client.queue(actor.target).consume(prefetch=prefetch, idle_timeout=IDLE_SECONDS) as messages:
                    scene.history.add("join", at, client=session, queue=actor.target, count=prefetch)
                    try:
                        await _receive(scene, actor, life, session, client, messages)
                    finally:
                        at = scene.history.now()
                        if life["end"] == "die":
                            await client.close(drain=0)
                break
            except (errors.TransportError, errors.RequestTimeout):
                if scene.quiet.is_set():
                    break
            except errors.OperationError:
                break  # the queue is not open to consumers, for example because its handler is missing
    finally:
        await client.close()
        outcome = "died" if life["end"] == "die" else "closed"
        scene.history.add("leave", at, client=session, queue=actor.target, outcome=outcome)


async def _receive(scene: Scene, actor: Actor, life: Step, session: str, client: mqcore.Client, messages: Any) -> None:
    received = 0
    held: list[Delivered[bytes]] = []
    while life["end"] == "stay" or received < life["messages"]:
        message = await _next(messages)
        if message is None:
            if scene.quiet.is_set() or client.state.status == "closed":
                break
            continue
        scene.history.add("deliver", client=session, queue=actor.target, label=label_of(message.body), count=received)
        received += 1
        if life["end"] == "break" and received == life["messages"]:
            return  # leaves with the message unsettled
        held.append(message)  # a discarded message would be settled by its client
        await _settle(scene, actor, life["habits"][received % len(life["habits"])], session, message)
    if life["end"] in {"stay", "close"}:
        await _fence(scene, actor, session, client)


async def _next(messages: Any) -> Delivered[bytes] | None:
    """The next message; `None` if none came for a moment."""
    try:
        message: Delivered[bytes] = await anext(messages)
    except StopAsyncIteration:
        return None
    return message


async def _settle(scene: Scene, actor: Actor, habit: str, session: str, message: Delivered[bytes]) -> None:
    taken = scene.history.now()
    work = actor.options["work"] / 1000 + (SLOW_SECONDS if habit == "slow" else 0)
    if work:
        await asyncio.sleep(work)
    if habit == "hold":
        return
    at = scene.history.now()
    is_late = at - taken >= LATE_SHARE * scene.world.queues[actor.target].acknowledge_timeout
    said = "ack" if habit in {"ack", "slow"} else "nack"
    if habit == "raise":
        sent = not message.is_settled
        with contextlib.suppress(ValueError):
            async with message.process():
                raise ValueError("the plan wants this consumer to raise")
    else:
        sent = await (message.ack() if said == "ack" else message.nack("planned"))
    scene.history.add(
        "settle",
        at,
        client=session,
        queue=actor.target,
        label=label_of(message.body),
        outcome=said if sent else "late" if said == "ack" and is_late else "",
        detail="" if actor.protocol == "tmqp" else REQUEUES,
    )


async def _fence(scene: Scene, actor: Actor, session: str, client: mqcore.Client) -> None:
    """Make sure that the broker processed, and if it can saved, everything that this client sent before."""
    at = scene.history.now()
    channel = actor.target.rpartition("/")[0]
    try:
        if client.protocol == "mqks":
            await client.statistic("len(state.unacked)")
        else:
            await client.publish(f"{channel}/{FENCE}", body_of("fence"))
    except errors.MqcoreError:
        return
    saved = scene.plan.broker.storage and client.protocol != "mqks"
    scene.history.add("fence", at, client=session, outcome="saved" if saved else "")


async def pull(scene: Scene, actor: Actor) -> None:
    """Pull batches from a queue, with the channel joined all the time or for each pull."""
    await scene.until(actor.start)
    channel = actor.target.rpartition("/")[0]
    async with scene.connect(actor) as client:
        if not actor.options["join"]:
            for step in actor.steps:
                await _pull(scene, actor, client, step, None)
            return
        session = scene.history.session(actor.name)
        at = scene.history.now()
        try:
            async with client.join(channel):
                _joins(scene, actor, session, at)
                for step in actor.steps:
                    await _pull(scene, actor, client, step, session)
                await _fence(scene, actor, session, client)
                at = scene.history.now()
        except errors.MqcoreError:
            pass
        await client.close()
        scene.history.add("leave", at, client=session, queue=actor.target, outcome="pulled")


def _joins(scene: Scene, actor: Actor, session: str, at: float) -> None:
    newest_first = actor.options.get("order") == "lifo"
    scene.history.add("join", at, client=session, queue=actor.target, count=-1 if newest_first else 0)


async def _pull(scene: Scene, actor: Actor, client: mqcore.Client, step: Step, joined: str | None) -> None:
    session = joined or scene.history.session(actor.name)
    at = scene.history.now()
    if joined is None:
        _joins(scene, actor, session, at)
    try:
        order = actor.options.get("order", "fifo")
        batch = await client.queue(actor.target).pull(step["count"], order=order, timeout=step["timeout"] / 1000)
    except errors.MqcoreError:
        batch = None
    for number, message in enumerate(batch or ()):
        label = label_of(message.body)
        scene.history.add("deliver", client=session, queue=actor.target, label=label, count=number)
        if message.wants_acknowledge:
            began = scene.history.now()
            said = "ack" if await message.ack() else ""
            scene.history.add("settle", began, client=session, queue=actor.target, label=label, outcome=said)
    if joined is None:
        scene.history.add("leave", client=session, queue=actor.target, outcome="pulled")
    await asyncio.sleep(step["gap"] / 1000)


# --- peers of bytes ------------------------------------------------------------------------------------------------


def _queues_of(scene: Scene, actor: Actor) -> list[str]:
    """The queues whose messages a peer of bytes receives: in TMQP all of its channel."""
    if actor.protocol != "raw-tmqp":
        return [actor.target]
    channel = actor.target.rpartition("/")[0]
    return [queue.address for queue in scene.plan.queues if queue.channel == channel]


def _live_raw(scene: Scene, actor: Actor, life: Step) -> None:
    session = scene.history.session(actor.name)
    queues = _queues_of(scene, actor)
    at = scene.history.now()
    for queue in queues:
        scene.history.add("join", at, client=session, queue=queue)
    with contextlib.suppress(*CUT):
        party = open_party(scene, actor)
        try:
            name = actor.target.rpartition("/")[0] if actor.protocol == "raw-tmqp" else actor.target
            party.subscribe(Place(name, True))
            _receive_raw(scene, actor, life, session, party)
            at = scene.history.now()
        finally:
            party.close()
    for queue in queues:
        outcome = "died" if life["end"] == "die" else "closed"
        scene.history.add("leave", at, client=session, queue=queue, outcome=outcome)


def _receive_raw(scene: Scene, actor: Actor, life: Step, session: str, party: Party) -> None:
    received = 0
    while received < life["messages"] or life["end"] == "stay":
        deliveries = party.take()
        if not deliveries:
            if scene.quiet.is_set():
                break
            time.sleep(PAUSE_SECONDS)
        for delivery in deliveries:
            received += 1
            _settle_raw(scene, actor, life["habits"][received % len(life["habits"])], session, party, delivery)
    if life["end"] == "stay":
        at = scene.history.now()
        party.take()
        scene.history.add("fence", at, client=session)


def _settle_raw(scene: Scene, actor: Actor, habit: str, session: str, party: Party, delivery: Delivery) -> None:
    frame = delivery.handle
    queue = actor.target
    if actor.protocol == "raw-tmqp":
        queue = f"{frame.target.decode()}/{frame.content_type}"
    label = label_of(delivery.body)
    scene.history.add("deliver", client=session, queue=queue, label=label)
    at = scene.history.now()
    if actor.protocol == "raw-tmqp" and not frame.pending_acknowledge:
        return
    if habit == "nack":
        party.nack(delivery)
    else:
        party.ack(delivery)
    scene.history.add(
        "settle",
        at,
        client=session,
        queue=queue,
        label=label,
        outcome="nack" if habit == "nack" else "ack",
        detail="" if actor.protocol == "raw-tmqp" else REQUEUES,
    )


async def idle(scene: Scene, actor: Actor) -> None:
    """Join a channel, read nothing for some time, and close."""
    await scene.until(actor.start)
    await asyncio.to_thread(_idle, scene, actor)


def _idle(scene: Scene, actor: Actor) -> None:
    session = scene.history.session(actor.name)
    queues = _queues_of(scene, actor)
    at = scene.history.now()
    for queue in queues:
        scene.history.add("join", at, client=session, queue=queue)
    with contextlib.suppress(*CUT), WorkerPeer.connect(scene.url(actor, "tmqp")) as peer:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.join(actor.target.rpartition("/")[0])
        at = scene.history.now()
        scene.quiet_within(actor.steps[0]["hold"] / 1000)
    for queue in queues:
        scene.history.add("leave", at, client=session, queue=queue, outcome="died")
