"""The fate of each message in plain Python, event by event: what all reports are compared with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

FATES = (
    *("acked", "sent", "failed", "dead-lettered", "moved", "replaced", "expired", "dropped", "lost"),
    *("waiting", "in-flight", "requeued"),
)
PRESENT = ("waiting", "in-flight", "requeued")
LOSSES = ("dropped", "expired", "failed", "lost", "dead-lettered")
ENDS = {
    "acked": "acked",
    "nacked": "failed",
    "timed-out": "failed",
    "consumer-lost": "failed",
    "expired": "expired",
    "replaced": "replaced",
    "moved": "moved",
    "dead-lettered": "dead-lettered",
    "dropped": "dropped",
}
"""Fates by kind of the last event; all other kinds are ``sent``."""
REASONS = ("no-consumer", "slow", "limit", "expired", "refused", "erased", "unreadable", "duplicate")
STATES = {
    **dict.fromkeys(("produced", "arrived", "restored"), "waiting"),
    **dict.fromkeys(("delivered", "acked"), "in-flight"),
    **dict.fromkeys(("nacked", "timed-out", "consumer-lost", "put-back"), "requeued"),
}
KINDS = (
    *("acked", "nacked", "timed-out", "consumer-lost", "expired", "replaced", "moved", "delivered", "done", "put-back"),
    *("saved", "restored", "produced", "arrived"),
)
"""Kinds of events that can be the last one, apart from those with a reason."""


def columns(names: Iterable[str]) -> tuple[str, ...]:
    """Names of columns for fates."""
    return tuple(name.replace("-", "_") for name in names)


@dataclass
class Life:
    """A message and its events."""

    shard: int
    number: int
    queue: str
    events: list[tuple[int, Mapping[str, Any]]]
    """Position in the history and event, in order."""
    starts: Sequence[tuple[int, datetime]]
    """Position and time of each start of its shard."""

    @property
    def entered(self) -> int:
        return sum(step["kind"] in {"produced", "arrived"} for _, step in self.events)

    @property
    def lasts(self) -> list[int]:
        """Positions of the final events that no restart undid."""
        lasts = [at for at, step in self.events if step["last"]]
        restored = [at for at, step in self.events if step["kind"] == "restored"]
        if lasts and restored and lasts[0] < restored[-1]:
            return lasts[-1:] if lasts[-1] > restored[-1] else []
        return lasts

    @property
    def results(self) -> int:
        return max(1, len(self.lasts))

    @property
    def fate(self) -> tuple[str, str | None]:
        """The fate, and its detail."""
        if self.lasts:
            return end_of(dict(self.events)[self.lasts[-1]])
        if self.starts and self.events[-1][0] < self.starts[-1][0]:
            return "lost", None
        states = [STATES[step["kind"]] for _, step in self.events if step["kind"] in STATES]
        return (states[-1] if states else "waiting"), None

    @property
    def ended(self) -> datetime | None:
        """Time of the result; ``None`` for a message that is still there."""
        if self.lasts:
            return max(step["time"] for at, step in self.events if step["last"])
        if self.fate[0] == "lost":
            return next(time for at, time in self.starts if at > self.events[-1][0])
        return None


def end_of(step: Mapping[str, Any]) -> tuple[str, str | None]:
    """The fate of a message whose last event is this, and its detail."""
    kind, reason = step["kind"], step.get("reason")
    if kind == "dropped" and reason == "expired":
        return "expired", None
    if kind in {"dropped", "dead-lettered"}:
        return kind, None if reason is None else reason if reason in REASONS else "other"
    name = ENDS.get(kind, "sent")
    return name, None if name == kind else kind if kind in KINDS else "unknown"


def numbers_of(step: Mapping[str, Any]) -> list[int]:
    """Numbers of the messages that a step stands for."""
    if step.get("numbers") is None:
        return [step["number"]]
    return [number for part in step["numbers"] for number in range(part["first"], part["last"] + 1)]


def lives_of(steps: Sequence[Mapping[str, Any]]) -> list[Life]:
    """All messages of a history, whose steps are in the order of their shards."""
    starts: defaultdict[int, list[tuple[int, datetime]]] = defaultdict(list)
    found: defaultdict[tuple[int, int, str], list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for index, step in enumerate(steps):
        shard = step.get("shard", 0)
        if step["kind"] == "started":
            starts[shard].append((index, step["time"]))
        elif step["queue"] is not None:
            for number in numbers_of(step):
                found[(shard, number, step["queue"])].append((index, step))
    return [Life(*place, events, starts[place[0]]) for place, events in sorted(found.items())]


def totals_of(lives: Iterable[Life]) -> Counter[str]:
    """Numbers of messages by fate."""
    found: Counter[str] = Counter()
    for life in lives:
        found[life.fate[0]] += life.results
    return found
