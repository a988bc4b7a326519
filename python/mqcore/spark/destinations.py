"""Queues of a batch, as the broker describes them before the first row is published.

A queue that does not exist, that is stopped, or that takes no messages of this size refuses rows for good. If the sink
learned that only from a refusal, other rows of the batch would be published by then. Rows wait for a full queue, so
it does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mqcore import errors
from mqcore.spark.checks import Rejection, is_delayed
from mqcore.spark.rows import Outgoing

if TYPE_CHECKING:
    from mqcore import sync
    from mqcore.spark.ledger import Contents

__all__ = ["Destinations", "refused_by_queue"]

_IMMEDIATE: Final = frozenset({"broadcast", "cache"})
"""Statuses of queues that cannot hold a message back."""
_REASONS: Final[tuple[tuple[type[errors.MqcoreError], str], ...]] = (
    (errors.NotFound, "queue-missing"),
    (errors.Unauthorized, "not-permitted"),
    (errors.QueueStopped, "queue-stopped"),
)


@dataclass
class Destinations:
    """Queues that will refuse rows of a batch."""

    refused: dict[str, Rejection] = field(default_factory=dict)
    """Queues that take no rows."""
    size_limits: dict[str, int] = field(default_factory=dict)
    """Largest body, of queues for which some row is larger."""
    limits: dict[str, int] = field(default_factory=dict)
    """Largest body of each queue that has such a limit."""
    immediate: dict[str, str] = field(default_factory=dict)
    """Statuses of queues that cannot delay messages, and for which some row has a delay."""
    unknown: list[str] = field(default_factory=list)
    """Queues that this client may not inspect. Only publishing shows whether they take rows."""

    @classmethod
    def ask(cls, client: sync.Client, contents: Contents, *, creates_queues: bool) -> Destinations:
        """Ask the broker about the queues of rows.

        `creates_queues`: the broker creates missing queues. With a single queue, one that is missing counts as unknown:
        its refusal of the first row is early enough.
        """
        found = cls()
        for queue, largest in contents.largest.items():
            if queue.startswith("@topic:"):
                continue
            try:
                information = client.queue_information(queue)
            except errors.NotFound as error:
                if creates_queues or len(contents.largest) == 1:
                    found.unknown.append(queue)
                else:
                    found.refused[queue] = Rejection(
                        "queue-missing",
                        f"{error}; or set the option autoCreateQueues, if the broker creates missing queues",
                    )
                continue
            except errors.Unauthorized:
                found.unknown.append(queue)
                continue
            limit = information.message_size_limit
            if limit > 0:
                found.limits[queue] = limit
            if information.status == "stopped":
                found.refused[queue] = Rejection(
                    "queue-stopped", f"queue {queue} is stopped and takes no messages; give it another status"
                )
            elif 0 < limit < largest:
                found.size_limits[queue] = limit
            if information.status in _IMMEDIATE and queue in contents.delayed:
                found.immediate[queue] = information.status
        return found

    @property
    def refuses_rows(self) -> bool:
        """Whether some row will be refused."""
        return bool(self.refused or self.size_limits or self.immediate)

    def rejection(self, row: Outgoing) -> Rejection | None:
        """Why the queue of a row will refuse it, if it will."""
        if (rejection := self.refused.get(row.queue)) is not None:
            return rejection
        limit = self.size_limits.get(row.queue)
        if limit is not None and len(row.body) > limit:
            detail = f"the body has {len(row.body):,} bytes, the limit of queue {row.queue} is {limit:,}"
            return Rejection("value-too-large", detail)
        status = self.immediate.get(row.queue)
        if status is not None and is_delayed(row.headers):
            detail = f"queue {row.queue} has the status {status} and cannot delay messages; remove Mqcore-Delay"
            return Rejection("header-invalid", detail)
        return None


def refused_by_queue(error: errors.MqcoreError) -> Rejection | None:
    """Return the rejection of all rows of a queue, if this answer to one of them means that."""
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return Rejection(reason, str(error))
    return None


def first_of(names: Iterable[str | None], wanted: set[str]) -> dict[str, int]:
    """Return the index of the first row of each wanted queue."""
    found: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in wanted and name not in found:
            found[name] = index
    return found
