"""Queues as the admin side lists them, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from mqcore.cli import output
from mqcore.cli.figures import age

if TYPE_CHECKING:
    from mqcore.admin import QueueState

__all__ = ["dead_letter_rows", "every_queue", "row"]

_PAGE: Final = 10_000
"""Queues of one answer."""

_DEAD_LETTERS: Final = "/65535"
"""End of the address of a channel's dead-letter queue."""


def every_queue(
    url: str, *, token: str | None, timeout: float, matching: str = "", sort: str = "name"
) -> Iterator[QueueState]:
    """Yield all queues whose addresses contain `matching`. Raises what `mqcore.admin.queues` raises."""
    from mqcore import admin

    offset = 0
    while True:
        page = admin.queues(url, matching=matching, sort=sort, offset=offset, limit=_PAGE, token=token, timeout=timeout)
        yield from page.queues
        offset += len(page.queues)
        if not page.queues or offset >= page.matched:
            return


def row(queue: QueueState) -> dict[str, Any]:
    """Return a queue as a row of a table."""
    return {**output.plain(queue), "oldest": age(queue.oldest_seconds)}


def dead_letter_rows(url: str, *, token: str | None, timeout: float) -> list[dict[str, Any]]:
    """Return the dead-letter queues that have messages, the oldest message first."""
    found = list(every_queue(url, token=token, timeout=timeout, sort="oldest"))
    named = {queue.dead_letter for queue in found}
    return [
        row(queue)
        for queue in found
        if queue.ready > 0 and (queue.queue in named or queue.queue.endswith(_DEAD_LETTERS))
    ]
