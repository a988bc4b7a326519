"""Messages and requests that limits of a running broker refused, from its admin side. Does not need Spark.

The history has accepted messages only, so the broker counts what it refuses. Its counters begin with its start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mqcore import admin
from mqcore._http import AdminClient, queue_path

__all__ = ["Refusals", "ThrottrKey"]

_QUEUES_MAX: Final = 10_000
_NAMED_MAX: Final = 1000
"""Maximum number of queues whose options are queried."""
_KEYS_MAX: Final = 1000
_METRICS_BYTES_MAX: Final = 64 << 20
_SAMPLE: Final = re.compile(r'^(mqcore_\w+)(?:\{limit="(\w+)"\})? (\d+)$', re.MULTILINE)
_LIMITS: Final = ("publish_limit", "message_limit", "message_size_limit")
_GUARD: Final = "mqcore_guard_rejected_total"
_THROTTR: Final = "mqcore_limiter_rejected_total"


@dataclass(frozen=True, slots=True)
class ThrottrKey:
    """A key of the broker's limiter, as Throttr clients see it."""

    key: str
    kind: str
    left: int
    expires_in_seconds: float | None
    reads_per_minute: int
    writes_per_minute: int


@dataclass(frozen=True, slots=True)
class Refusals:
    """Refusals since the start of a broker, and the limits that caused them."""

    rows: tuple[tuple[str, str, str, int], ...]
    """``by`` (``queue``, ``guard`` or ``throttr``), subject, its limits as text, and the number of refusals."""
    keys: tuple[ThrottrKey, ...]
    """Keys of the limiter, the most used first, at most 1,000."""
    keys_total: int
    """Number of all keys."""

    @classmethod
    def of(cls, url: str) -> Refusals:
        """Ask the admin side at `url`, such as ``http://TOKEN@HOST:2627``. Raises what `mqcore.admin.queues` raises."""
        client = AdminClient(url)
        rows = [*_of_queues(client, url), *_of_guards(client)]
        page = admin.limits(url, sort="writes", limit=_KEYS_MAX)
        keys = tuple(
            ThrottrKey(
                state.key.decode("utf-8", "backslashreplace"),
                state.kind,
                state.left,
                state.expires_in_seconds,
                state.reads_per_minute,
                state.writes_per_minute,
            )
            for state in page.limits
        )
        return cls(tuple(sorted(rows, key=lambda row: (-row[3], row[:2]))), keys, page.total)

    def total(self, by: str) -> int:
        """Return the number of refusals by queues, guards or Throttr."""
        return sum(row[3] for row in self.rows if row[0] == by)


def _of_queues(client: AdminClient, url: str) -> list[tuple[str, str, str, int]]:
    # A copy of a message that a queue refuses is counted as dropped, because its producer does not know the queue.
    counts = {
        state.queue: int(state.messages["rejected"]) + int(state.messages["dropped"]["limit"])
        for state in admin.queues(url, limit=_QUEUES_MAX).queues
    }
    refusing = sorted((queue for queue, count in counts.items() if count), key=lambda queue: (-counts[queue], queue))
    found = []
    for index, queue in enumerate(refusing):
        limits = "-"
        if index < _NAMED_MAX:
            options = client.ask("GET", queue_path(queue))["options"]
            limits = _limits(options)
        found.append(("queue", queue, limits, counts[queue]))
    return found


def _limits(options: Mapping[str, Any]) -> str:
    """The limits of a queue, such as ``publish_limit 10/s, message_limit 100``."""
    return ", ".join(f"{name} {options[name]}" for name in _LIMITS if options.get(name)) or "none"


def _of_guards(client: AdminClient) -> list[tuple[str, str, str, int]]:
    with client.stream("GET", "/metrics") as body:
        text = body.read(_METRICS_BYTES_MAX).decode("utf-8", "replace")
    found = []
    for name, limit, value in _SAMPLE.findall(text):
        if name == _GUARD and int(value):
            found.append(
                ("guard", f"each {'client' if limit == 'publish' else 'address'}", f"{limit}_limit", int(value))
            )
        elif name == _THROTTR and int(value):
            found.append(("throttr", "all keys", "quotas", int(value)))
    return found
