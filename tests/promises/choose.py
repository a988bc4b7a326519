"""Chooses a random plan from a seed. It does not depend on mqcore."""

from __future__ import annotations

import random
from typing import Any

from promises.focus import FOCUSED
from promises.plan import Actor, BrokerPlan, Fault, Plan, QueuePlan, Step
from promises.terms import plan_with_terms

RECEIVING = ("tmqp", "tmqp", "tmqp", "mqks", "mm2")
"""Protocols of consumers, the most used one more often."""
HABITS = ("ack",) * 12 + ("slow", "slow", "nack", "raise", "hold")
VERDICTS = ("",) * 6 + ("refuse", "refuse-late", "raise")


def plan_for(seed: int) -> Plan:
    """The plan of a seed."""
    # Terms are chosen apart: a new one changes no other choice of a seed.
    return plan_with_terms(_plan(seed), random.Random(f"terms {seed}"))


def _plan(seed: int) -> Plan:
    chance = random.Random(f"promises {seed}")
    kind = chance.choices(("mixed", "defaults", "crashes", *FOCUSED), (40, 14, 18, 7, 7, 7, 7))[0]
    if kind in FOCUSED:
        return FOCUSED[kind](seed, chance)
    duration = chance.randrange(150, 450)
    broker = _broker(chance, crashes=kind == "crashes")
    queues = _queues(chance, broker, with_defaults=kind == "defaults")
    addresses = [queue.address for queue in queues]
    topics = (
        {"t0": chance.sample(addresses, chance.randint(1, min(2, len(addresses))))} if chance.random() < 0.5 else {}
    )
    routers = {"r0": chance.sample(addresses, 1)} if chance.random() < 0.2 else {}
    actors = _actors(chance, broker, queues, topics, routers, duration)
    faults = _faults(chance, broker, actors, queues, duration)
    return Plan(seed, duration, broker, tuple(queues), topics, routers, tuple(actors), tuple(faults))


def _broker(chance: random.Random, *, crashes: bool) -> BrokerPlan:
    return BrokerPlan(
        served=crashes and chance.random() < 0.75,
        storage=crashes or chance.random() < 0.5,
        shards=chance.choice((1, 1, 2, 3)),
        watermark=chance.choice((None, None, None, 1000)) if crashes else None,
    )


def _queues(chance: random.Random, broker: BrokerPlan, *, with_defaults: bool) -> list[QueuePlan]:
    found: list[QueuePlan] = []
    for channel in ("c0", "c1")[: chance.choice((1, 1, 2))]:
        for number in range(chance.choice((1, 2, 2, 3))):
            options = _default_options(chance, broker) if with_defaults else _options(chance, broker)
            found.append(QueuePlan(f"{channel}/{number}", options))
    if chance.random() < 0.3:
        found = _with_dead_letters(chance, broker, found)
    return found


def _default_options(chance: random.Random, broker: BrokerPlan) -> dict[str, Any]:
    """A status, and what makes a queue durable: everything else keeps its default."""
    options: dict[str, Any] = {"status": chance.choice(("push", "roundrobin", "roundrobin", "pull"))}
    if chance.random() < 0.6:
        options["request_acknowledge"] = True
    if broker.storage and chance.random() < 0.7:
        options["delivery_handler"] = "at-least-once"
    return options


def _options(chance: random.Random, broker: BrokerPlan) -> dict[str, Any]:
    statuses = ("push", "roundrobin", "roundrobin", "roundrobin", "pull", "pull", "cache", "broadcast", "paused")
    options: dict[str, Any] = {"status": chance.choice(statuses)}
    if chance.random() < 0.65:
        options["request_acknowledge"] = True
    saving = ("at-least-once", "at-least-once", "ack-on-save") if broker.storage else ()
    policies = ("memory", "at-most-once", "ack-on-send", "ack-on-consume", *saving * 2)
    if chance.random() < 0.75:
        options["delivery_handler"] = chance.choice(policies)
    if chance.random() < 0.15:
        options["delivery_handler"] = chance.choice(
            ("verdict-memory", "choosy", *(("verdict-saving",) if saving else ()))
        )
    if options["status"] == "push" and chance.random() < 0.3:
        options["only_first_acquirer"] = True
    if options.get("request_acknowledge") and chance.random() < 0.15:
        options["acknowledge_timeout"] = chance.choice((0.15, 0.3))
    # A broadcast queue refuses the option: it stores no messages that could wait.
    if options.get("request_acknowledge") and chance.random() < 0.15 and options["status"] != "broadcast":
        options["wait_for_acknowledge"] = True
    if chance.random() < 0.1:
        options["message_timeout"] = chance.choice((0.1, 0.25))
    if chance.random() < 0.1:
        options["message_limit"] = chance.choice((5, 50))
    if chance.random() < 0.2:
        options["put_back_limit"] = chance.choice((1, 3))
    return options


def _with_dead_letters(chance: random.Random, broker: BrokerPlan, queues: list[QueuePlan]) -> list[QueuePlan]:
    """Some queues get a dead-letter queue: one that exists, or one that does not."""
    grave: dict[str, Any] = {"status": "pull"}
    if broker.storage and chance.random() < 0.7:
        grave["delivery_handler"] = "at-least-once"
    exists = chance.random() < 0.8
    target = "graves/1" if exists else "nowhere/1"
    chosen = [
        QueuePlan(queue.address, {**queue.options, "dead_letter": target, "put_back_limit": chance.choice((1, 2))})
        if chance.random() < 0.6
        else queue
        for queue in queues
    ]
    return [*chosen, QueuePlan("graves/1", grave)] if exists else chosen


def _actors(
    chance: random.Random,
    broker: BrokerPlan,
    queues: list[QueuePlan],
    topics: dict[str, list[str]],
    routers: dict[str, list[str]],
    duration: int,
) -> list[Actor]:
    used = [queue for queue in queues if queue.channel != "graves"]
    producers = chance.randint(1, 3)
    actors = [_producer(chance, f"p{number}", used, topics, routers, duration) for number in range(producers)]
    if topics:
        actors.append(_topic_producer(chance, f"p{len(actors)}", duration))
    consumers = [queue for queue in used if chance.random() < 0.7]
    for queue in consumers:
        status = queue.options["status"]
        for _ in range(1 if status in {"pull", "cache"} else chance.choice((1, 1, 2, 3))):
            if status == "pull":
                actors.append(_puller(chance, f"u{len(actors)}", queue))
            elif status != "cache":
                actors.append(_consumer(chance, f"k{len(actors)}", queue, duration))
    if chance.random() < 0.2:
        actors.append(_raw_actor(chance, f"w{len(actors)}", used, duration))
    if chance.random() < 0.12:
        target = chance.choice(used).address
        hold = chance.randrange(50, duration)
        actors.append(
            Actor(
                f"n{len(actors)}", "idler", "raw-tmqp", target, chance.randrange(duration // 2), steps=({"hold": hold},)
            )
        )
    if chance.random() < 0.15:
        actors.append(_administrator(chance, f"a{len(actors)}", used, duration))
    if any(queue.channel == "graves" for queue in queues) and broker.storage:
        census = {"at": duration, "do": "census", "queue": "graves/1"}
        actors.append(Actor(f"a{len(actors)}", "administrator", steps=(census,)))
    return actors


def _producer(
    chance: random.Random,
    name: str,
    queues: list[QueuePlan],
    topics: dict[str, list[str]],
    routers: dict[str, list[str]],
    duration: int,
) -> Actor:
    queue = chance.choice(queues)
    protocol = chance.choice(("tmqp", "tmqp", "mm2"))
    target = queue.address
    if routers and chance.random() < 0.5:
        protocol, target = "tmqp", "@router:r0"
    steps = [_burst(chance, queue, queues, protocol, target) for _ in range(chance.randint(1, 4))]
    proxied = chance.random() < 0.15
    return Actor(name, "producer", protocol, target, chance.randrange(duration // 3), proxied, {}, tuple(steps))


def _burst(chance: random.Random, queue: QueuePlan, queues: list[QueuePlan], protocol: str, target: str) -> Step:
    step: Step = {
        "count": chance.choice((1, 3, 10, 25)),
        "gap": chance.choice((0, 0, 1, 5)),
        "confirm": chance.random() < 0.8,
    }
    if protocol == "tmqp" and target == queue.address:
        if chance.random() < 0.2:
            step["high"] = True
        if chance.random() < 0.15:
            others = [other.address for other in queues if other.address != queue.address]
            step["cc"] = [chance.choice([*others, "missing/9"])]
        if chance.random() < 0.2:
            step["batch"] = True
    handler = str(queue.options.get("delivery_handler", ""))
    if handler.startswith("verdict"):
        step["verdicts"] = [chance.choice(VERDICTS) for _ in range(3)]
        step["confirm"] = step["confirm"] and "raise" not in step["verdicts"]
    if chance.random() < 0.1:
        step["size"] = chance.choice((2_000, 70_000))
    return step


def _topic_producer(chance: random.Random, name: str, duration: int) -> Actor:
    protocol = chance.choice(
        ("mqks", "mqks", "mm2", "throttr", "raw-tmqp", "raw-mqks", "raw-mm2", "raw-throttr", "raw-emqp")
    )
    steps = tuple(
        {"count": chance.choice((1, 5, 20)), "gap": chance.choice((0, 1, 5)), "confirm": chance.random() < 0.7}
        for _ in range(chance.randint(1, 3))
    )
    return Actor(name, "producer", protocol, "@topic:t0", chance.randrange(duration // 3), steps=steps)


def _consumer(chance: random.Random, name: str, queue: QueuePlan, duration: int) -> Actor:
    options: dict[str, Any] = {"prefetch": chance.choice((1, 1, 2, 10, 100)), "work": chance.choice((0, 0, 0, 2, 10))}
    if str(queue.options.get("delivery_handler")) == "choosy" and chance.random() < 0.5:
        options["name"] = "unwanted"
    lives: list[Step] = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        habits = [chance.choice(HABITS) for _ in range(chance.randint(1, 6))]
        if not queue.options.get("request_acknowledge"):
            habits = ["ack"]
        end = chance.choice(("stay", "stay", "close", "break", "die"))
        lives.append({"habits": habits, "messages": chance.choice((1, 5, 20)), "end": end})
    lives[-1]["end"] = chance.choice(("stay", "stay", "stay", lives[-1]["end"]))
    proxied = chance.random() < 0.15
    start = chance.choice((0, chance.randrange(duration)))
    return Actor(name, "consumer", chance.choice(RECEIVING), queue.address, start, proxied, options, tuple(lives))


def _puller(chance: random.Random, name: str, queue: QueuePlan) -> Actor:
    steps = tuple(
        {
            "count": chance.choice((1, 3, 5, 50)),
            "timeout": chance.choice((20, 50, 2000)),
            "gap": chance.choice((0, 5, 30)),
        }
        for _ in range(chance.randint(1, 6))
    )
    options: dict[str, Any] = {"join": chance.random() < 0.5}
    if chance.random() < 0.2:
        options["order"] = "lifo"
    return Actor(name, "puller", "tmqp", queue.address, chance.randrange(60), False, options, steps)


def _raw_actor(chance: random.Random, name: str, queues: list[QueuePlan], duration: int) -> Actor:
    """A peer of bytes that consumes, or produces jobs."""
    queue = chance.choice(queues)
    if queue.options["status"] not in {"push", "roundrobin"}:
        steps: tuple[Step, ...] = ({"count": 5, "gap": 1, "confirm": False},)
        return Actor(name, "producer", "raw-mm2", queue.address, 0, steps=steps)
    protocol = chance.choice(("raw-mm2", "raw-mqks", "raw-tmqp"))
    target = f"{queue.channel}/0" if protocol == "raw-tmqp" else queue.address
    life = {
        "habits": ["ack", "ack", "nack"],
        "messages": chance.choice((1, 5, 20)),
        "end": chance.choice(("stay", "die")),
    }
    return Actor(
        name, "consumer", protocol, target, chance.randrange(duration // 2), options={"work": 0}, steps=(life,)
    )


def _administrator(chance: random.Random, name: str, queues: list[QueuePlan], duration: int) -> Actor:
    queue = chance.choice(queues)
    steps: list[Step] = []
    if queue.options["status"] in {"push", "roundrobin"} and chance.random() < 0.7:
        first, second = sorted(chance.randrange(duration) for _ in range(2))
        steps.append({"at": first, "do": "status", "queue": queue.address, "status": "paused"})
        steps.append({"at": second, "do": "status", "queue": queue.address, "status": queue.options["status"]})
    else:
        steps.append({"at": chance.randrange(duration), "do": "clear", "queue": queue.address})
    return Actor(name, "administrator", steps=tuple(steps))


def _faults(
    chance: random.Random, broker: BrokerPlan, actors: list[Actor], queues: list[QueuePlan], duration: int
) -> list[Fault]:
    faults: list[Fault] = []
    if broker.served:
        handled = any(str(queue.options.get("delivery_handler")).startswith(("verdict", "choosy")) for queue in queues)
        moments = sorted(chance.randrange(30, duration) for _ in range(chance.choice((1, 1, 2))))
        kinds = [chance.choice(("kill", "kill", "term")) for _ in moments]
        for at, kind in zip(moments, kinds, strict=True):
            faults.append(Fault(at, kind, not (handled and chance.random() < 0.5)))
    elif broker.storage and chance.random() < 0.4:
        faults.append(Fault(chance.randrange(30, duration), "term"))
    if any(actor.proxied for actor in actors):
        faults += [Fault(chance.randrange(duration), "cut") for _ in range(chance.randint(1, 2))]
    return sorted(faults, key=lambda fault: fault.at)
