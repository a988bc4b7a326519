"""Checks at the start of a query that there is something to read: a history, and the queues and shards that are named.

Without these checks, a typing mistake would be a query without rows, or a stream that waits forever.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Final

from mqcore import errors
from mqcore.spark.origin import Ends, Origin
from mqcore.spark.plan import Plan

__all__ = ["check_history", "check_start"]

_PIECE_BYTES: Final = 16 << 20
_SEARCHED_PIECES: Final = 4
"""Pieces that are searched for similar names."""
_SUGGESTIONS: Final = 5


def check_start(plan: Plan, origin: Origin, ends: Sequence[Ends]) -> None:
    """Raise an error if a query would wait for something that does not exist.

    `ConfigError`: a shard that options name does not exist. Unless the option `failOnMissingQueue` is off:
    `DataDirMissing` if there is no history at all, and `NotFound` for a channel or queue whose exact name the option
    `subscribe` or `assign` contains, if no message has ever entered it. A queue without messages is found only through
    the admin side, because a data directory tells nothing else about it.
    """
    _check_shards(plan, ends)
    check_history(plan, ends)
    if not plan.options.fail_on_missing_queue:
        return
    for name in plan.options.queues or ():
        if "*" not in name and not _exists(name, origin, ends):
            raise errors.NotFound(_missing(name, plan.options.place, origin, ends), 404, name)


def check_history(plan: Plan, ends: Sequence[Ends]) -> None:
    """Raise `DataDirMissing` if there is no history at all, unless the option `failOnMissingQueue` is off."""
    options = plan.options
    if options.fail_on_missing_queue and all(end.latest == 0 for end in ends):
        needed = "--history" if options.archive is None else f"history and archive_url = {options.archive!r}"
        raise errors.DataDirMissing(
            f"{options.place} has no history: run its broker with {needed}. Set failOnMissingQueue=false to wait for it"
        )


def _check_shards(plan: Plan, ends: Sequence[Ends]) -> None:
    options, shards = plan.options, {end.shard for end in ends}
    assigned = {shard for chosen in (options.assigned or {}).values() for shard in chosen}
    if not assigned <= shards:
        raise errors.ConfigError(f"assign names the shard {min(assigned - shards)}; the shards are {sorted(shards)}")
    needed = assigned or shards
    for name, moments in (
        ("startingOffsetsByTimestamp", options.since_by_shard),
        ("endingOffsetsByTimestamp", options.until_by_shard),
    ):
        if moments is not None and not needed <= set(moments) <= shards:
            raise errors.ConfigError(
                f"{name} must have a time for each of the shards {sorted(needed)}, not for {sorted(moments)}"
            )


def _is_meant(name: str, queue: str) -> bool:
    """Whether a subscription selects a queue, by its address or by its channel."""
    return name.lower() in {queue.lower(), queue.lower().rpartition("/")[0]}


def _exists(name: str, origin: Origin, ends: Sequence[Ends]) -> bool:
    if any(_is_meant(name, queue) for queue in origin.queues(name)):
        return True
    return next(_found_queues(Plan.request_of("steps", ["queue"], [name]), origin, ends), None) is not None


def _found_queues(request: str, origin: Origin, ends: Sequence[Ends], pieces: int | None = None) -> Iterator[str]:
    """Yield queues of the history in the order in which they are found; a queue can be yielded repeatedly."""
    stretches = [(end.shard, 0, end.latest) for end in ends if end.latest > 0]
    for piece in origin.pieces(request, stretches, _PIECE_BYTES)[:pieces]:
        for rows in origin.read(request, piece, fail=False):
            yield from (queue for queue in rows.column(0).unique().to_pylist() if queue is not None)


def _missing(name: str, place: str, origin: Origin, ends: Sequence[Ends]) -> str:
    queues = origin.queues()
    queues.update(_found_queues(Plan.request_of("steps", ["queue"]), origin, ends, _SEARCHED_PIECES))
    names = {queue.lower(): queue for queue in sorted(queues)}
    names |= {channel.lower(): channel for queue in queues if (channel := queue.rpartition("/")[0])}
    near = difflib.get_close_matches(name.lower(), names, _SUGGESTIONS)
    if near:
        hint = f"did you mean {', '.join(names[other] for other in near)}?"
    elif queues:
        others = " and others" if len(queues) > _SUGGESTIONS else ""
        hint = f"it has {', '.join(sorted(queues)[:_SUGGESTIONS])}{others}."
    else:
        hint = "it has no messages at all."
    return (
        f"no message has ever entered the channel or queue {name!r} in the history of {place}; {hint} "
        "Set failOnMissingQueue=false to read without it"
    )
