"""Executes a plan against a broker, and returns the history."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mqcore
from mqcore import QueueOptions, errors
from promises import consuming, ending, handlers, producing, working
from promises.brokers import RunningBroker
from promises.check import check
from promises.history import History
from promises.model import (
    DEFAULT_ACKNOWLEDGE_TIMEOUT,
    DEFAULT_DEAD_LETTER_ID,
    DEFAULT_PUT_BACK_LIMIT,
    DEFAULT_RETRY_DELAY,
    POLICIES,
    Finding,
    QueueRules,
    World,
    default_graves,
)
from promises.plan import Actor, Fault, Plan, Step
from promises.scene import FENCE, Scene, body_of
from tcp_proxy import TcpProxy

WORK_SECONDS = 60.0
"""Longest time for all actors together; far more than any plan needs."""
RUN_SECONDS = 100.0
"""Longest time of a run. One that takes longer is an error of the checker, or of the broker."""
SAMPLE_SECONDS = 0.02


@dataclass
class Outcome:
    """Result of a run."""

    plan: Plan
    history: History
    world: World
    findings: list[Finding]
    log: list[str]


async def run(plan: Plan) -> Outcome:
    """Run a plan once, in a new directory, and compare its history with the promises."""
    directory = Path(tempfile.mkdtemp(prefix="promises-"))
    try:
        scene = Scene(plan, RunningBroker(plan, directory / "data"))
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(scene.broker.stop)
            async with asyncio.timeout(RUN_SECONDS):
                await scene.broker.start()
                await _declare(scene)
                await _open_proxies(scene, stack)
                await _play(scene)
                await ending.look(scene)
        findings = check(scene.world, scene.history)
        return Outcome(plan, scene.history, scene.world, findings, scene.broker.log)
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


async def _open_proxies(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    for scheme in {actor.protocol for actor in scene.plan.actors if actor.proxied}:
        host, _, port = scene.broker.urls[scheme].partition("://")[2].rpartition(":")
        scene.proxies[scheme] = await stack.enter_async_context(TcpProxy(host, int(port)))


async def _declare(scene: Scene) -> None:
    """Create queues, bindings and routers, and describe them to the model."""
    plan = scene.plan
    async with mqcore.connect(scene.broker.urls["tmqp"], name="owner", request_timeout=10) as client:
        # A dead-letter queue has to exist before another queue names it.
        for queue in sorted(plan.queues, key=lambda queue: "dead_letter" in queue.options):
            options = dict(queue.options)
            try:
                await client.create_queue(queue.address, QueueOptions(**options))
            except (errors.OperationError, errors.InvalidArgument):
                # A dead-letter queue that does not exist is rejected; the owner then chooses none.
                if options.pop("dead_letter", None) is None:
                    raise
                await client.create_queue(queue.address, QueueOptions(**options))
            scene.world.queues[queue.address] = rules_of(plan, queue.address, options)
        saved = {"delivery_handler": "at-least-once"} if plan.broker.storage else {}
        for channel in {queue.channel for queue in plan.queues}:
            graves = default_graves(channel, storage=plan.broker.storage)
            scene.world.queues[graves.address] = graves
            await client.create_queue(f"{channel}/{FENCE}", QueueOptions(status="cache", **saved))
        for topic, bound in plan.topics.items():
            for address in bound:
                await client.bind(f"@topic:{topic}", address)
        for router, bound in plan.routers.items():
            await client.create_router(router)
            for address in bound:
                await client.bind(router, address)


def rules_of(plan: Plan, address: str, options: dict[str, Any]) -> QueueRules:
    """Describe a queue to the model."""
    key = options.get("delivery_handler", "memory")
    policy = handlers.POLICIES.get(key, key)
    statuses = {
        step["status"]
        for actor in plan.actors
        for step in actor.steps
        if step.get("do") == "status" and step["queue"] == address
    }
    return QueueRules(
        address,
        status=options["status"],
        policy=policy,
        acks=options.get("request_acknowledge", False),
        acknowledge_timeout=options.get("acknowledge_timeout", DEFAULT_ACKNOWLEDGE_TIMEOUT),
        message_timeout=options.get("message_timeout", 0.0),
        message_limit=options.get("message_limit", 0),
        put_back_limit=options.get("put_back_limit", DEFAULT_PUT_BACK_LIMIT),
        dead_letter=_destination(address, options.get("dead_letter")),
        expired_to=None if options.get("dead_letter") == "drop" else options.get("dead_letter"),
        deduplication_window=options.get("deduplication_window", 0.0),
        first_backoff=DEFAULT_RETRY_DELAY if POLICIES[policy].saves else 0.0,
        only_first=options.get("only_first_acquirer", False),
        handler=key in handlers.POLICIES,
        storage=plan.broker.storage,
        bound_by=frozenset(statuses),
    )


def _destination(address: str, chosen: str | None) -> str | None:
    """The queue for messages whose attempts are used up."""
    if chosen is None:
        return f"{address.rpartition('/')[0]}/{DEFAULT_DEAD_LETTER_ID}"
    return None if chosen == "drop" else chosen


async def _play(scene: Scene) -> None:
    """Let all actors act: consumers until all others have finished."""
    scene.began = scene.history.now()
    until_quiet = {"consumer": consuming.consume, "idler": consuming.idle}
    until_done = {"producer": producing.produce, "puller": consuming.pull, "administrator": _administer}
    consumers = [until_quiet[actor.role](scene, actor) for actor in scene.plan.actors if actor.role in until_quiet]
    others = [until_done[actor.role](scene, actor) for actor in scene.plan.actors if actor.role in until_done]
    others += [_suffer(scene), scene.until(scene.plan.duration), working.play(scene)]
    sampler = asyncio.create_task(_sample(scene))
    try:
        async with asyncio.timeout(WORK_SECONDS), asyncio.TaskGroup() as group:
            for consumer in consumers:
                group.create_task(consumer)
            await asyncio.gather(*others)
            scene.quiet.set()
    finally:
        scene.quiet.set()
        sampler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampler


async def _suffer(scene: Scene) -> None:
    """Let the faults of the plan happen."""
    for fault in scene.plan.faults:
        await scene.until(fault.at)
        if fault.kind == "cut":
            at = scene.history.now()
            for proxy in scene.proxies.values():
                await proxy.cut()
            scene.history.add("cut", at)
        else:
            await _restart(scene, fault)


async def _restart(scene: Scene, fault: Fault) -> None:
    at = scene.history.now()
    if fault.kind == "kill":
        await scene.broker.kill()
        scene.history.add("crash", at)
    else:
        await scene.broker.stop()
        scene.history.add("stop", at)
    await scene.broker.start(handled=fault.handlers)
    scene.history.add("start", outcome="" if fault.handlers else "without-handlers")


async def _sample(scene: Scene) -> None:
    """Look now and then how many messages are in flight."""
    while True:
        broker = scene.broker.embedded
        if broker is not None and broker.is_running:
            at = scene.history.now()
            for queue in broker.stats().queues:
                if queue.in_flight and queue.address in scene.world.queues:
                    until = scene.history.add("in-flight", at, queue=queue.address, count=queue.in_flight)
                    assert until
        await asyncio.sleep(SAMPLE_SECONDS)


async def _administer(scene: Scene, actor: Actor) -> None:
    """Do an administrator's steps at their times."""
    async with scene.connect(dataclasses.replace(actor, protocol="tmqp")) as client:
        for step in actor.steps:
            await scene.until(step["at"])
            with contextlib.suppress(errors.TransportError, errors.RequestTimeout):
                await _administrate(scene, client, actor, step)


async def _administrate(scene: Scene, client: mqcore.Client, actor: Actor, step: Step) -> None:
    at, queue = scene.history.now(), step["queue"]
    match step["do"]:
        case "status":
            await client.update_queue(queue, QueueOptions(status=step["status"]))
            scene.history.add("status", at, queue=queue, outcome=step["status"])
        case "clear":
            try:
                await client.clear_queue(queue)
            finally:
                scene.history.add("erase", at, queue=queue)
        case "census":
            information = await client.queue_information(queue)
            # This message is admitted, and saved, after all that were counted.
            label = scene.label(actor)
            at = scene.history.now()
            outcome = "unknown"
            try:
                await client.publish(queue, body_of(label))
                outcome = "confirmed"
            finally:
                scene.history.add(
                    "publish", at, client=actor.name, queue=queue, label=label, outcome=outcome, asked=True
                )
            rules = scene.world.queues[queue]
            if rules.durable:
                count = information.messages + information.priority_messages
                scene.history.add("saved", at, queue=queue, count=count + 1)
