"""Random plans that concentrate on one promise. It does not depend on mqcore."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from promises.plan import Actor, BrokerPlan, Fault, Plan, QueuePlan


def dead_letters(seed: int, chance: random.Random) -> Plan:
    """Consumers that fail, and a count of dead letters before a crash."""
    # Long enough for some dead letters before the crash, also on a busy machine.
    duration = chance.randrange(600, 900)
    broker = BrokerPlan(served=chance.random() < 0.7, storage=chance.random() < 0.9, shards=chance.choice((1, 2)))
    saves = broker.storage and chance.random() < 0.3
    options: dict[str, Any] = {"status": "roundrobin", "request_acknowledge": True}
    if saves:
        options["delivery_handler"] = "at-least-once"
    options["put_back_limit"] = chance.choice((1, 2))
    graves = {"status": "pull", **({"delivery_handler": "at-least-once"} if broker.storage else {})}
    queues = [QueuePlan("c0/0", options)]
    actors = [
        Actor(
            "p0", "producer", "tmqp", "c0/0", 0, steps=({"count": 20, "gap": chance.choice((0, 2)), "confirm": True},)
        ),
        Actor(
            "k0",
            "consumer",
            "tmqp",
            "c0/0",
            0,
            options={"prefetch": chance.choice((1, 10)), "work": 0},
            steps=({"habits": [chance.choice(("nack", "raise", "ack")), "nack"], "messages": 20, "end": "stay"},),
        ),
    ]
    where = chance.choice(("default", "exists", "exists", "missing"))
    if where != "default":
        options["dead_letter"] = "graves/1" if where == "exists" else "nowhere/1"
    faults: tuple[Fault, ...] = ()
    if where == "exists":
        queues.append(QueuePlan("graves/1", graves))
        census = {"at": duration, "do": "census", "queue": "graves/1"}
        actors.append(Actor("a0", "administrator", steps=(census,)))
        faults = (Fault(duration + 30, "kill"),) if broker.served else ()
    return Plan(seed, duration, broker, tuple(queues), actors=tuple(actors), faults=faults)


def confirmed_copies(seed: int, chance: random.Random) -> Plan:
    """Topics bound to queues that save, and a crash while producers get confirmations."""
    kill = chance.randrange(60, 250)
    queues = tuple(
        QueuePlan(
            f"c{number}/0", {"status": chance.choice(("pull", "roundrobin")), "delivery_handler": "at-least-once"}
        )
        for number in range(chance.choice((1, 2)))
    )
    step = {"count": 400, "gap": 0, "confirm": True}
    producers = tuple(
        Actor(f"p{number}", "producer", chance.choice(("mqks", "mm2")), "@topic:t0", 0, steps=(step,))
        for number in range(chance.choice((1, 2, 3)))
    )
    direct = Actor("p9", "producer", "tmqp", queues[0].address, 0, steps=(step,))
    broker = BrokerPlan(served=True, storage=True, shards=chance.choice((1, 2)))
    topics = {"t0": [queue.address for queue in queues]}
    faults = (Fault(kill, "kill"),)
    return Plan(seed, kill + 50, broker, queues, topics, actors=(*producers, direct), faults=faults)


def pulls(seed: int, chance: random.Random) -> Plan:
    """Pulls that end before the broker has sent everything, because a handler is slow."""
    duration = chance.randrange(200, 400)
    options: dict[str, Any] = {"status": "pull", "delivery_handler": chance.choice(("slow", "slow", "memory"))}
    if chance.random() < 0.4:
        options["request_acknowledge"] = True
    steps = tuple(
        {"count": chance.choice((3, 5, 20)), "timeout": chance.choice((15, 30, 60)), "gap": chance.choice((0, 40))}
        for _ in range(chance.randint(2, 6))
    )
    puller = Actor("u0", "puller", "tmqp", "c0/0", 40, options={"join": chance.random() < 0.8}, steps=steps)
    producer = Actor("p0", "producer", "tmqp", "c0/0", 0, steps=({"count": 20, "gap": 0, "confirm": True},))
    broker = BrokerPlan(shards=chance.choice((1, 2)))
    return Plan(seed, duration, broker, (QueuePlan("c0/0", options),), actors=(producer, puller))


def jobs(seed: int, chance: random.Random) -> Plan:
    """Jobs and schedules, with workers that come late or leave."""
    duration = chance.randrange(200, 500)
    senders = [
        Actor(
            f"j{number}",
            "jobs",
            "emqp",
            chance.choice(("work", "other")),
            chance.randrange(100),
            options={"part": "sender", "guarantee": chance.random() < 0.7},
            steps=tuple(
                {"count": chance.choice((1, 5)), "gap": chance.choice((0, 5))} for _ in range(chance.randint(1, 3))
            ),
        )
        for number in range(chance.choice((1, 2)))
    ]
    workers = [
        Actor(
            f"w{number}",
            "jobs",
            "emqp",
            "work,other",
            0 if number else chance.choice((0, 0, 60)),
            options={"part": "worker", "concurrency": chance.choice((1, 3)), "prefetch": chance.choice((0, 2))},
            steps=({"for": duration if not number else chance.randrange(50, duration)},),
        )
        for number in range(chance.choice((1, 2)))
    ]
    if chance.random() < 0.5:
        schedule = {"interval": chance.choice((20, 50)), "runs": chance.choice((1, 3))}
        senders.append(Actor("s0", "jobs", "emqp", "work", 0, options={"part": "schedule"}, steps=(schedule,)))
    broker = BrokerPlan(storage=chance.random() < 0.5, shards=chance.choice((1, 2)))
    return Plan(seed, duration, broker, actors=(*senders, *workers))


FOCUSED: dict[str, Callable[[int, random.Random], Plan]] = {
    "dead letters": dead_letters,
    "confirmed copies": confirmed_copies,
    "pulls": pulls,
    "jobs": jobs,
}
"""Plans by their focus."""
