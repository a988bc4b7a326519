"""Promises of the documents about each queue, as plain data. It does not depend on mqcore."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Return = Literal["requeue", "drop"]

DEFAULT_ACKNOWLEDGE_TIMEOUT = 15.0
DEFAULT_PUT_BACK_LIMIT = 16
DEFAULT_DEAD_LETTER_ID = 65535
"""The queue of each channel that gets dead letters of queues that name no other."""
DEFAULT_RETRY_DELAY = 0.1
"""Least seconds between a nack and the redelivery, in a queue that saves."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A row of the table of ready-made policies in docs/delivery.md."""

    saves: bool
    nack: Return
    timeout: Return
    lost: Return
    confirms_at: Literal["receipt", "saved", "sent", "consumed"]


POLICIES: dict[str, Policy] = {
    "memory": Policy(False, "requeue", "requeue", "requeue", "receipt"),
    "at-most-once": Policy(False, "drop", "drop", "drop", "receipt"),
    "ack-on-send": Policy(False, "requeue", "requeue", "requeue", "sent"),
    "ack-on-consume": Policy(False, "drop", "requeue", "requeue", "consumed"),
    "at-least-once": Policy(True, "requeue", "requeue", "requeue", "saved"),
    "ack-on-save": Policy(True, "drop", "drop", "drop", "saved"),
}

RETAINING = frozenset({"push", "roundrobin", "pull", "paused"})
"""Statuses in which a queue keeps a message until a consumer takes it."""

SHARED = frozenset({"roundrobin", "pull"})
"""Statuses in which one consumer gets a message."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Options that the owner of a queue chose."""

    address: str
    status: str = "push"
    policy: str = "memory"
    acks: bool = False
    """Whether consumers acknowledge."""
    acknowledge_timeout: float = DEFAULT_ACKNOWLEDGE_TIMEOUT
    message_timeout: float = 0.0
    message_limit: int = 0
    put_back_limit: int = DEFAULT_PUT_BACK_LIMIT
    dead_letter: str | None = None
    """The queue of messages whose attempts are used up; `None`: they are dropped."""
    expired_to: str | None = None
    """The queue of messages that waited too long; `None`: they are dropped."""
    only_first: bool = False
    handler: bool = False
    """Whether a Python handler decides; `policy` is then its policy."""
    storage: bool = False
    """Whether the broker has a data directory."""
    deduplication_window: float = 0.0
    """Seconds for which it recognizes another message with the same id; 0: never."""
    first_backoff: float = 0.0
    """Least delay before the first redelivery after a nack."""
    bound_by: frozenset[str] = frozenset()
    """Statuses that an administrator gave it besides `status` during the run."""

    @property
    def decisions(self) -> Policy:
        """How its policy decides."""
        return POLICIES[self.policy]

    @property
    def durable(self) -> bool:
        """Whether a confirmed message survives a crash."""
        return self.decisions.saves and self.storage

    @property
    def statuses(self) -> frozenset[str]:
        """All statuses that it had."""
        return self.bound_by | {self.status}

    @property
    def retains(self) -> bool:
        """Whether it kept every message until a consumer took it, in every status that it had."""
        return self.statuses <= RETAINING

    @property
    def one_consumer_each(self) -> bool:
        """Whether a message goes to one consumer, in every status that delivers."""
        return self.only_first or self.statuses - {"paused"} <= SHARED


def default_graves(channel: str, *, storage: bool) -> QueueRules:
    """The queue for dead letters that the broker creates in a channel."""
    policy = "at-least-once" if storage else "memory"
    address = f"{channel}/{DEFAULT_DEAD_LETTER_ID}"
    return QueueRules(address, status="pull", policy=policy, acks=True, storage=storage, dead_letter=address)


@dataclass(frozen=True, slots=True)
class World:
    """All queues of a run."""

    queues: dict[str, QueueRules] = field(default_factory=dict)
    jobs_queue: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken promise."""

    rule: str
    """Which one: lost, doubled, early, settled-returns, order, drop, counter, prefetch, rejected, unconfirmed,
    premature, stuck, expired, duplicate, terms.
    """
    queue: str
    text: str
    labels: tuple[str, ...] = ()
    """The messages concerned."""

    def __str__(self) -> str:
        return f"{self.rule} in {self.queue}: {self.text}"
