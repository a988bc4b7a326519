"""A plan: what clients do with which broker. A plan derives from its seed only, and can be written as JSON.

Times are milliseconds from the start of the run. It does not depend on mqcore.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Role = Literal["producer", "consumer", "puller", "administrator", "idler", "jobs"]
Step = dict[str, Any]


@dataclass(frozen=True)
class BrokerPlan:
    """The broker."""

    served: bool = False
    """Whether it is a process of its own; otherwise it is embedded."""
    storage: bool = False
    shards: int = 1
    watermark: int | None = None


@dataclass(frozen=True)
class QueuePlan:
    """A queue and the options that differ from the defaults."""

    address: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def channel(self) -> str:
        """The name of its channel."""
        return self.address.rpartition("/")[0]


@dataclass(frozen=True)
class Actor:
    """One client, or several one after the other."""

    name: str
    role: Role
    protocol: str = "tmqp"
    """A scheme for the public clients (tmqp, mqks, mm2, throttr, emqp); with the prefix ``raw-`` a peer of bytes."""
    target: str = ""
    """A queue, ``@topic:NAME`` or ``@router:NAME``."""
    start: int = 0
    proxied: bool = False
    """Whether its connection can be cut."""
    options: dict[str, Any] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Fault:
    """Something that happens to the broker or to connections."""

    at: int
    kind: Literal["kill", "term", "cut"]
    handlers: bool = True
    """Whether the next broker has its Python handlers."""


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs."""

    seed: int
    duration: int
    """Least time that consumers have."""
    broker: BrokerPlan = BrokerPlan()
    queues: tuple[QueuePlan, ...] = ()
    topics: dict[str, list[str]] = field(default_factory=dict)
    """Queues that are bound to each topic."""
    routers: dict[str, list[str]] = field(default_factory=dict)
    """Queues that each router distributes to."""
    actors: tuple[Actor, ...] = ()
    faults: tuple[Fault, ...] = ()

    def queue(self, address: str) -> QueuePlan | None:
        """The queue with this address."""
        return next((queue for queue in self.queues if queue.address == address), None)

    def with_actor(self, at: int, actor: Actor) -> Plan:
        """The plan with another actor at this place."""
        return replace(self, actors=(*self.actors[:at], actor, *self.actors[at + 1 :]))

    @property
    def size(self) -> int:
        """How much there is to drop."""
        parts = len(self.queues) + len(self.topics) + len(self.routers) + len(self.faults) + len(self.actors)
        options = sum(len(queue.options) for queue in self.queues)
        return parts + options + sum(len(actor.steps) for actor in self.actors)

    def to_json(self) -> str:
        """The plan as one line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Plan:
        """A plan that `to_json` wrote."""
        made = json.loads(text)
        made["broker"] = BrokerPlan(**made["broker"])
        made["queues"] = tuple(QueuePlan(**queue) for queue in made["queues"])
        made["actors"] = tuple(Actor(**{**actor, "steps": tuple(actor["steps"])}) for actor in made["actors"])
        made["faults"] = tuple(Fault(**fault) for fault in made["faults"])
        return Plan(**made)

    def describe(self) -> str:
        """The plan for people, one line for each part."""
        where = "mqcore serve" if self.broker.served else "embedded"
        stored = "data directory" if self.broker.storage else "memory only"
        lines = [f"seed {self.seed}: {where}, {stored}, {self.broker.shards} shards, {self.duration} ms"]
        lines += [f"  queue {queue.address} {queue.options}" for queue in self.queues]
        lines += [f"  topic {name} -> {', '.join(bound)}" for name, bound in self.topics.items()]
        lines += [f"  router {name} -> {', '.join(bound)}" for name, bound in self.routers.items()]
        for actor in self.actors:
            proxied = ", proxied" if actor.proxied else ""
            head = f"  {actor.start:4} ms {actor.name}: {actor.role} of {actor.target} over {actor.protocol}{proxied}"
            lines.append(f"{head} {actor.options or ''}")
            lines += [f"          {step}" for step in actor.steps]
        lines += [
            f"  {fault.at:4} ms {fault.kind}{'' if fault.handlers else ' (handlers missing)'}" for fault in self.faults
        ]
        return "\n".join(lines)
