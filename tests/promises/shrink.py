"""Makes a failing plan smaller: drops queues, options, clients, operations and faults while it still fails.

It does not depend on mqcore.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

from promises.plan import Actor, Plan

Fails = Callable[[Plan], Awaitable[bool]]
"""Runs a plan, perhaps several times, and returns whether it fails as the first one did."""


async def shrink(plan: Plan, fails: Fails, *, attempts: int = 200) -> Plan:
    """The smallest plan found with up to `attempts` runs of `fails`. `plan` itself has to fail."""
    smaller = True
    while smaller and attempts > 0:
        smaller = False
        for candidate in candidates(plan):
            if attempts <= 0:
                break
            attempts -= 1
            if await fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def candidates(plan: Plan) -> Iterator[Plan]:
    """Plans with one part less each, large parts first."""
    for queue in plan.queues:
        if len(plan.queues) > 1:
            yield without_queue(plan, queue.address)
    for at in range(len(plan.actors)):
        yield replace(plan, actors=(*plan.actors[:at], *plan.actors[at + 1 :]))
    for at in range(len(plan.faults)):
        yield replace(plan, faults=(*plan.faults[:at], *plan.faults[at + 1 :]))
    if plan.topics and not any(actor.target.startswith("@topic:") for actor in plan.actors):
        yield replace(plan, topics={})
    if plan.routers and not any(actor.target.startswith("@router:") for actor in plan.actors):
        yield replace(plan, routers={})
    for topic, bound in plan.topics.items():
        for address in bound if len(bound) > 1 else []:
            yield replace(plan, topics={**plan.topics, topic: [other for other in bound if other != address]})
    for at, actor in enumerate(plan.actors):
        yield from (plan.with_actor(at, smaller) for smaller in _smaller_actors(actor))
    for at, queue in enumerate(plan.queues):
        for name in queue.options:
            if name != "status":
                options = {key: value for key, value in queue.options.items() if key != name}
                yield replace(plan, queues=(*plan.queues[:at], replace(queue, options=options), *plan.queues[at + 1 :]))
    yield from _smaller_brokers(plan)


def _smaller_actors(actor: Actor) -> Iterator[Actor]:
    if len(actor.steps) > 1:
        for at in range(len(actor.steps)):
            yield replace(actor, steps=(*actor.steps[:at], *actor.steps[at + 1 :]))
    for at, step in enumerate(actor.steps):
        for smaller in _smaller_steps(step):
            yield replace(actor, steps=(*actor.steps[:at], smaller, *actor.steps[at + 1 :]))
    if actor.proxied:
        yield replace(actor, proxied=False)
    if actor.options.get("work"):
        yield replace(actor, options={**actor.options, "work": 0})


def _smaller_steps(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("cc", "high", "batch", "size", "verdicts", "terms", "repeat", "retry"):
        if name in step:
            yield {key: value for key, value in step.items() if key != name}
    if step.get("count", 1) > 1:
        yield {**step, "count": step["count"] // 2}
    if len(step.get("habits", ())) > 1:
        for at in range(len(step["habits"])):
            yield {**step, "habits": [*step["habits"][:at], *step["habits"][at + 1 :]]}


def _smaller_brokers(plan: Plan) -> Iterator[Plan]:
    if plan.broker.shards > 1:
        yield replace(plan, broker=replace(plan.broker, shards=1))
    if plan.broker.watermark is not None:
        yield replace(plan, broker=replace(plan.broker, watermark=None))
    if plan.broker.served and not plan.faults:
        yield replace(plan, broker=replace(plan.broker, served=False))


def without_queue(plan: Plan, address: str) -> Plan:
    """The plan without a queue, and without all that needs it."""

    def keep(actor: Actor) -> Actor | None:
        if actor.target == address:
            return None
        steps = [
            {**step, "cc": [copy for copy in step["cc"] if copy != address]} if "cc" in step else step
            for step in actor.steps
            if step.get("queue") != address
        ]
        return replace(actor, steps=tuple(steps)) if steps else None

    def unbound(places: dict[str, list[str]]) -> dict[str, list[str]]:
        left = {name: [other for other in bound if other != address] for name, bound in places.items()}
        return {name: bound for name, bound in left.items() if bound}

    topics, routers = unbound(plan.topics), unbound(plan.routers)
    known = {f"@topic:{name}" for name in topics} | {f"@router:{name}" for name in routers}
    actors = [actor for actor in map(keep, plan.actors) if actor is not None]
    return replace(
        plan,
        queues=tuple(queue for queue in plan.queues if queue.address != address),
        topics=topics,
        routers=routers,
        actors=tuple(actor for actor in actors if not actor.target.startswith("@") or actor.target in known),
    )
