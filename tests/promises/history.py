"""The record of a run: what each client asked, what it was answered, and when. It does not depend on mqcore."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "publish",  # outcome: confirmed, sent, rejected, unknown
    "join",  # a session begins to consume `queue`; `limit` is its prefetch
    "leave",  # the session ends; outcome: closed, died
    "deliver",  # the program of the session received `label`
    "settle",  # outcome: ack, nack, late: an ack that the broker may have had in time; empty if the client sent none
    "fence",  # the broker processed everything that this session sent before; outcome "saved": and synced it
    "erase",  # an administrator cleared, stopped or removed `queue`
    "status",  # an administrator changed the status of `queue`; outcome: the new status
    "cut",  # the connection of this client was cut
    "crash",  # the broker was killed
    "stop",  # the broker stopped and had time to finish
    "start",  # it was started again; outcome "without-handlers": its Python handlers are not registered
    "in-flight",  # `count` messages of `queue` were in flight at that moment
    "saved",  # `count` messages of `queue` were stored and saved at that moment
    "stored",  # `label` was still in `queue` at the end, at position `count`
    "remaining",  # `count` messages were left in `queue` after the last look
    "dropped",  # the broker counted `count` dropped messages of `queue` with the reason `outcome`
    "counter",  # the counter `outcome` of `queue` was `count` at the end
    "job",  # a client sent the job `label` to `queue`; outcome: result, failed, unknown
    "job-run",  # a worker ran the job `label`
    "schedule",  # `count` runs of the schedule `label` were requested
]


@dataclass(frozen=True, slots=True)
class Event:
    """One operation, or one observation."""

    kind: Kind
    at: float
    """Seconds when it began. A delivery begins when the program receives it."""
    until: float
    """Seconds when its answer arrived."""
    client: str = ""
    """The session: one consumer or one connection of a producer. A session that joins twice has two names."""
    queue: str = ""
    label: str = ""
    """The message, by a name that its body contains. Copies for other queues have the same label."""
    outcome: str = ""
    detail: str = ""
    """Text for people."""
    count: int = 0
    high: bool = False
    """A message of high priority."""
    via: str = "queue"
    """How a message was published: queue, cc, topic, router."""
    asked: bool = False
    """Whether the producer asked for a confirmation."""
    verdict: str = ""
    """How the program's delivery handler decides about the message."""
    retried: bool = False
    """Whether its queue may have the message twice, because the program allowed its client to publish it again."""
    identity: str = ""
    """The id that the program chose. Another message with this id may be a duplicate."""
    delay: float = 0.0
    """Seconds for which the queue holds the message back."""
    expires_in: float = 0.0
    """Seconds after which the message expires; 0: never."""
    priority: int = 0

    @property
    def level(self) -> int:
        """Its priority from 0 to 255."""
        return 255 if self.high else self.priority


@dataclass
class History:
    """All events of a run, in the order in which they were recorded."""

    events: list[Event] = field(default_factory=list)
    _sessions: Iterator[int] = field(default_factory=lambda: itertools.count(1), repr=False)

    @staticmethod
    def now() -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def session(self, client: str) -> str:
        """A new name for a session of `client`."""
        return f"{client}#{next(self._sessions)}"

    def add(self, kind: Kind, at: float | None = None, **fields: object) -> Event:
        """Record an event that ends now and began at `at`, or now."""
        now = self.now()
        event = Event(kind, now if at is None else at, now, **fields)  # type: ignore[arg-type]
        self.events.append(event)
        return event

    def of(self, *kinds: Kind) -> Iterator[Event]:
        """The events of these kinds."""
        return (event for event in self.events if event.kind in kinds)


def as_lines(events: Iterable[Event]) -> str:
    """Events as text, one on each line, with times relative to the first."""
    listed = sorted(events, key=lambda event: event.at)
    if not listed:
        return ""
    zero = listed[0].at
    return "\n".join(_line(event, zero) for event in listed)


def _line(event: Event, zero: float) -> str:
    words = [f"{event.at - zero:8.3f}", f"{event.until - event.at:7.3f}", f"{event.client:14}", event.kind]
    words += [word for word in (event.queue, event.label, event.outcome, event.detail) if word]
    if event.count:
        words.append(f"count={event.count}")
    terms = {"id": event.identity, "delay": event.delay, "expires_in": event.expires_in, "priority": event.level}
    words += [f"{name}={value}" for name, value in terms.items() if value]
    if event.via != "queue":
        words.append(f"via {event.via}")
    return " ".join(words)
