"""The history of one queue, indexed by message and by session, for the rules. It does not depend on mqcore."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from promises.history import Event, History
from promises.model import QueueRules, World

ARRIVED = frozenset({"confirmed", "accepted"})
"""Outcomes of a publish after which the message must be in its queue. ``accepted``: it need not survive a crash."""

END = float("inf")


@dataclass
class Session:
    """One consumer of a queue, from its join until it left."""

    name: str
    limit: int
    """Its prefetch; 0: unlimited."""
    joined: float
    """When it began to join."""
    left: float = END
    """When it began to leave."""
    gone: float = END
    """When it had left."""
    outcome: str = ""


@dataclass
class Headless:
    """A time in which the broker ran without its Python handlers."""

    since: float
    """When the broker before ended."""
    started: float
    """When it was ready for certain."""
    until: float = END
    """When it began to end."""


@dataclass
class Lives:
    """Events of one queue."""

    rules: QueueRules
    published: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    delivered: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    settled: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    stored: dict[str, Event] = field(default_factory=dict)
    looked: list[Event] = field(default_factory=list)
    """Every message that the last look got, one that it got twice also twice."""
    last_look: Event | None = None
    """The count of messages that remained after it."""
    sessions: dict[str, Session] = field(default_factory=dict)
    erased: list[Event] = field(default_factory=list)
    observed: list[Event] = field(default_factory=list)
    """Counts: in flight, saved, dropped, counters."""
    remaining: int = 0
    interruptions: list[Event] = field(default_factory=list)
    """Crashes, stops and cuts of the whole run."""
    fences: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """Fences of the whole run by session."""
    end: float = 0.0
    headless: list[Headless] = field(default_factory=list)

    @property
    def crashes(self) -> list[Event]:
        """Ends of the broker, with or without time to finish."""
        return [event for event in self.interruptions if event.kind in {"crash", "stop"}]

    def could_lack_handler(self, event: Event) -> bool:
        """Whether the broker may have answered while the handler of the queue was not registered."""
        return self.rules.handler and any(one.since <= event.until and event.at <= one.until for one in self.headless)

    def lacks_handler(self, event: Event) -> bool:
        """Whether the broker answered while the handler of the queue was not registered, for certain."""
        return self.rules.handler and any(one.started <= event.at and event.until <= one.until for one in self.headless)

    def crashed_after(self, moment: float) -> bool:
        """Whether the broker ended after this moment."""
        return any(event.until >= moment for event in self.crashes)

    def erased_after(self, moment: float) -> bool:
        """Whether an administrator erased messages after this moment."""
        return any(event.until >= moment for event in self.erased)

    def leaves(self, since: float, until: float = END) -> list[Session]:
        """Sessions that could have held a message and left in between."""
        return [one for one in self.sessions.values() if one.gone >= since and one.left <= until]

    def nacks(self, label: str, until: float = END) -> list[Event]:
        """Nacks of a message that were sent."""
        return [event for event in self.settled[label] if event.outcome == "nack" and event.at <= until]

    def acks(self, label: str) -> list[Event]:
        """Acks of a message that were sent."""
        return [event for event in self.settled[label] if event.outcome == "ack"]

    def late_acks(self, label: str) -> list[Event]:
        """Acks that the client sent after the acknowledge timeout; the broker may have had them in time."""
        return [event for event in self.settled[label] if event.outcome == "late"]

    def could_time_out(self, since: float, until: float) -> bool:
        """Whether a delivery that began after `since` could be late by `until`."""
        joined = min((one.joined for one in self.sessions.values()), default=END)
        return self.rules.acks and until - max(since, joined) >= 0.9 * self.rules.acknowledge_timeout

    def requeues(self, label: str, since: float) -> int:
        """How often the message can have been requeued, at most."""
        timeouts = int((self.end - since) / self.rules.acknowledge_timeout) + 1 if self.rules.acks else 0
        late = timeouts * max(1, len(self.sessions)) if self.could_time_out(since, self.end) else 0
        return len(self.nacks(label)) + len(self.leaves(since)) + len(self.interruptions) + late

    def arrivals(self, label: str) -> list[Event]:
        """Publishes of a message that may have put it into the queue."""
        return [event for event in self.published[label] if event.outcome != "rejected"]


def lives_of(world: World, history: History) -> dict[str, Lives]:
    """Index a history by queue."""
    found = {address: Lives(rules) for address, rules in world.queues.items()}
    interruptions: list[Event] = []
    fences: dict[str, list[Event]] = defaultdict(list)
    end = max((event.until for event in history.events), default=0.0)
    headless: list[Headless] = []
    for event in sorted(history.events, key=lambda event: event.at):
        match event.kind:
            case "crash" | "stop" | "cut":
                interruptions.append(event)
                if headless and event.kind != "cut":
                    headless[-1].until = min(headless[-1].until, event.at)
            case "fence":
                fences[event.client].append(event)
            case "start" if event.outcome == "without-handlers":
                ends = [other.at for other in interruptions if other.kind != "cut"]
                headless.append(Headless(max(ends, default=event.at), event.until))
            case _:
                if event.queue in found:
                    _file(found[event.queue], event)
    for lives in found.values():
        lives.interruptions, lives.fences = interruptions, fences
        lives.end, lives.headless = end, headless
    return found


def _file(lives: Lives, event: Event) -> None:
    match event.kind:
        case "publish":
            lives.published[event.label].append(event)
        case "deliver":
            lives.delivered[event.label].append(event)
        case "settle" if event.outcome:
            lives.settled[event.label].append(event)
        case "join":
            lives.sessions[event.client] = Session(event.client, event.count, event.at)
        case "leave" if event.client in lives.sessions:
            session = lives.sessions[event.client]
            session.left, session.gone, session.outcome = event.at, event.until, event.outcome
        case "erase":
            lives.erased.append(event)
        case "stored":
            lives.stored[event.label] = event
            lives.looked.append(event)
        case "remaining":
            lives.remaining = event.count
            lives.last_look = event
        case "in-flight" | "saved" | "dropped" | "counter":
            lives.observed.append(event)
