"""Adds delays, expiries, priorities and repeated ids to plans. It does not depend on mqcore."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from promises.model import RETAINING
from promises.plan import Actor, BrokerPlan, Fault, Plan, QueuePlan, Step

TERMS: tuple[dict[str, Any], ...] = (
    {},
    {"delay": 0.03},
    {"delay": 0.15},
    {"delay": 0.4, "priority": 200},
    {"delay": 600.0},
    {"expires_in": 0.05},
    {"expires_in": 0.2, "delay": 0.03},
    {"expires_in": 600.0},
    {"priority": 0},
    {"priority": 1},
    {"priority": 3},
    {"priority": 127},
    {"priority": 128},
    {"priority": 255},
)
"""Terms of one message. Times are seconds: none ends while a plan runs, or it ends for certain."""
WINDOWS = (0.15, 600.0)
"""Seconds for which a queue recognizes duplicates."""


def plan_with_terms(plan: Plan, chance: random.Random) -> Plan:
    """The plan of a seed: as it is, with terms and repeated ids, or another one that concentrates on them."""
    kind = chance.choices(("as it is", "added", "timed", "duplicates"), (60, 30, 5, 5))[0]
    match kind:
        case "added":
            return _added(plan, chance)
        case "timed":
            return timed(plan.seed, chance)
        case "duplicates":
            return duplicates(plan.seed, chance)
    return plan


def _terms(chance: random.Random) -> list[dict[str, Any]]:
    return [dict(chance.choice(TERMS)) for _ in range(chance.choice((1, 2, 4)))]


def _added(plan: Plan, chance: random.Random) -> Plan:
    """Terms of some bursts that go to a queue, and queues that recognize duplicates."""
    queues = tuple(_with_window(queue, chance) for queue in plan.queues)
    windows = {queue.address: queue.options.get("deduplication_window", 0.0) for queue in queues}
    actors = []
    for actor in plan.actors:
        if actor.role == "producer" and actor.protocol == "tmqp" and actor.target in windows:
            steps = tuple(_with_terms(step, bool(windows[actor.target]), chance) for step in actor.steps)
            actors.append(replace(actor, steps=steps))
        else:
            actors.append(actor)
    return replace(plan, queues=queues, actors=tuple(actors))


def _with_window(queue: QueuePlan, chance: random.Random) -> QueuePlan:
    handler = str(queue.options.get("delivery_handler", "memory"))
    python = handler.startswith(("verdict", "choosy", "slow"))
    if queue.options["status"] not in RETAINING or python or chance.random() < 0.6:
        return queue
    return replace(queue, options={**queue.options, "deduplication_window": chance.choice(WINDOWS)})


def _with_terms(step: Step, recognized: bool, chance: random.Random) -> Step:
    made = dict(step)
    if chance.random() < 0.6:
        made.pop("high", None)
        made["terms"] = _terms(chance)
    if chance.random() < (0.8 if recognized else 0.1):
        # Copies have ids of their own, and `publish_many` takes none.
        made.pop("cc", None)
        made.pop("batch", None)
        made["repeat"] = chance.choice((1, 3))
        made["retry"] = chance.random() < 0.5
    return made


def timed(seed: int, chance: random.Random) -> Plan:
    """Messages with terms that wait for their consumer, perhaps over an end of the broker."""
    duration = chance.randrange(300, 600)
    broker = BrokerPlan(served=chance.random() < 0.4, storage=chance.random() < 0.7, shards=chance.choice((1, 2)))
    status = chance.choice(("pull", "roundrobin", "push"))
    options: dict[str, Any] = {"status": status}
    if chance.random() < 0.5:
        options["request_acknowledge"] = True
    if broker.storage:
        options["delivery_handler"] = "at-least-once"
    steps = tuple(
        {"count": chance.choice((5, 20)), "gap": chance.choice((0, 2)), "confirm": True, "terms": _terms(chance)}
        for _ in range(chance.randint(1, 3))
    )
    actors = [Actor("p0", "producer", "tmqp", "c0/0", 0, steps=steps)]
    late = chance.choice((0, 100, 250))
    if status == "pull":
        pulls = tuple({"count": chance.choice((1, 5, 50)), "timeout": 50, "gap": 30} for _ in range(4))
        actors.append(Actor("u0", "puller", "tmqp", "c0/0", late, options={"join": False}, steps=pulls))
    else:
        life = {"habits": ["ack"], "messages": 20, "end": "stay"}
        prefetch = chance.choice((1, 10))
        actors.append(
            Actor("k0", "consumer", "tmqp", "c0/0", late, options={"prefetch": prefetch, "work": 0}, steps=(life,))
        )
    if chance.random() < 0.3:
        actors.pop()
    faults: tuple[Fault, ...] = ()
    if broker.served and broker.storage:
        faults = (Fault(chance.randrange(100, duration), chance.choice(("kill", "term"))),)
    return Plan(seed, duration, broker, (QueuePlan("c0/0", options),), actors=tuple(actors), faults=faults)


def duplicates(seed: int, chance: random.Random) -> Plan:
    """Producers that publish again what may have arrived, because the broker ends or connections are cut."""
    moment = chance.randrange(60, 250)
    killed = chance.random() < 0.6
    options: dict[str, Any] = {
        "status": chance.choice(("pull", "roundrobin")),
        "delivery_handler": "at-least-once" if killed else chance.choice(("memory", "at-least-once")),
        "deduplication_window": WINDOWS[-1],
    }
    step = {"count": 150, "gap": 0, "confirm": True, "repeat": chance.choice((3, 10)), "retry": True}
    actors = [
        Actor(f"p{number}", "producer", "tmqp", "c0/0", 0, proxied=not killed, steps=(step,))
        for number in range(chance.choice((1, 2, 3)))
    ]
    if options["status"] == "pull" and chance.random() < 0.5:
        pulls = tuple({"count": 20, "timeout": 50, "gap": 5} for _ in range(6))
        actors.append(Actor("u0", "puller", "tmqp", "c0/0", 0, options={"join": False}, steps=pulls))
    broker = BrokerPlan(served=killed, storage=True, shards=chance.choice((1, 2)))
    faults = tuple(Fault(moment + 60 * number, "kill" if killed else "cut") for number in range(chance.choice((1, 2))))
    return Plan(seed, moment + 150, broker, (QueuePlan("c0/0", options),), actors=tuple(actors), faults=faults)
