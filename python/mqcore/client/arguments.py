"""From the arguments of public calls to those of the core, and from its plain results to public objects."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from mqcore import bodies, errors
from mqcore.client.models import CopyReceipt, Receipt
from mqcore.client.options import Clear, ClientOptions, ConsumeOptions, Copies, Headers, Order, Subscription
from mqcore.config import Duration, QueueOptions, RouteMethod, seconds
from mqcore.config.queues import QUEUE_ID_MAX

__all__ = [
    "UNCONFIRMED",
    "Confirmation",
    "Outcome",
    "address",
    "chunks",
    "consume_options",
    "copies",
    "names",
    "new_id",
    "numbered",
    "optional_seconds",
    "pairs",
    "publish_options",
    "pull_count",
    "pull_options",
    "queue_handlers",
    "rebinding",
    "receipt",
    "receipts",
    "route_method",
    "subscriptions",
    "tagged",
    "terms",
    "total",
    "unknown_keyword",
]

_PUBLISH_CHUNK_MESSAGES: Final = 8192
_PULL_COUNT_MAX: Final = 2**31 - 1

Copy: TypeAlias = tuple[str, Literal["confirmed", "rejected", "unconfirmed"], str | None]
"""Queue, status and reason of a copy."""
Confirmation: TypeAlias = tuple[Literal["server", "consumer"] | None, float, list[Copy] | None]
"""The sender of an acknowledgement, the latency in seconds, and the outcomes of the copies."""
Outcome: TypeAlias = Confirmation | errors.MqcoreError
"""The outcome of one of many published messages: its confirmation, or why it failed."""


UNCONFIRMED: Final = Receipt(None, 0.0)
"""The receipt of each message that is published without confirmation."""


def address(channel: str, id: int | None) -> str:  # noqa: A002 (as in the protocol)
    """Return the address of a queue."""
    return channel if id is None else f"{channel}/{id}"


def optional_seconds(duration: Duration | None) -> float | None:
    """Return a duration in seconds, or ``None``."""
    return None if duration is None else seconds(duration)


def pairs(headers: Headers) -> list[tuple[str, str]]:
    """Return headers as pairs. Raises `TypeError` for a name or value that is not a string."""
    found = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    for pair in found:
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], str):
            raise TypeError(f"headers must contain pairs of strings, not {pair!r}; convert the value with str()")
    return found


def copies(cc: Copies) -> list[tuple[str, str | None]]:
    """Return further queues with their message ids."""
    # A text is a sequence of texts: without this, "a/1" would be three queues.
    several = [cc] if isinstance(cc, str) else cc
    return [(copy, None) if isinstance(copy, str) else copy for copy in several]


def names(given: str | Iterable[str]) -> list[str]:
    """Return one name or several as a list."""
    return [given] if isinstance(given, str) else list(given)


def queue_handlers(handlers: Mapping[int, Callable[..., object]]) -> Iterable[tuple[int, Callable[..., object]]]:
    """Return the queues of `Client.join` with their functions. Raises `InvalidArgument` and `TypeError`."""
    for queue, handler in handlers.items():
        if isinstance(queue, bool) or not isinstance(queue, int) or not 0 <= queue <= QUEUE_ID_MAX:
            raise errors.InvalidArgument(f"a queue id is a number from 0 to {QUEUE_ID_MAX:,}, not {queue!r}")
        if not callable(handler):
            raise TypeError(f"queue {queue} needs a function that takes its messages, not {handler!r}")
    return handlers.items()


def unknown_keyword(call: str, given: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword argument that a call does not have."""
    near = difflib.get_close_matches(given, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{call}() got an unexpected keyword argument {given!r}{hint}")


def publish_options(
    headers: Headers,
    high_priority: bool,
    confirm: bool,
    cc: Copies,
    timeout: Duration | None,
    terms: tuple[int | None, float | None, float | None],
) -> dict[str, Any]:
    """Return the core's arguments that many messages share."""
    return {
        "headers": pairs(headers),
        "high_priority": high_priority,
        "confirm": confirm,
        "cc": copies(cc),
        "timeout": optional_seconds(timeout),
        "terms": terms,
    }


def new_id(given: str | None, options: ClientOptions) -> str | None:
    """Return the id of a message: the given one, or one of the client's generator; ``None``: the core generates it."""
    return options.id_generator() if given is None and options.id_generator is not None else given


def numbered(
    chunk: list[bytes], options: ClientOptions, headers: Headers
) -> list[tuple[bytes, str | None, list[tuple[str, str]]]]:
    """Return bodies with an id of the client's generator each, and headers."""
    shared = pairs(headers)
    return [(body, new_id(None, options), shared) for body in chunk]


def chunks(values: Iterable[object]) -> Iterator[list[bytes]]:
    """Yield encoded bodies in lists of bounded length."""
    remaining = iter(values)
    while chunk := [bodies.encode(value) for value in itertools.islice(remaining, _PUBLISH_CHUNK_MESSAGES)]:
        yield chunk


def receipts(outcomes: list[Outcome], return_exceptions: bool) -> list[Receipt] | list[Receipt | errors.MqcoreError]:
    """Return outcomes as receipts. Raise the first failure unless failures may stand among them."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, errors.MqcoreError)]
    if failures and not return_exceptions:
        failures[0].add_note(f"{len(failures)} of {len(outcomes)} messages were not published; this is the first")
        raise failures[0]
    return [outcome if isinstance(outcome, errors.MqcoreError) else receipt(outcome) for outcome in outcomes]


def receipt(confirmation: Confirmation) -> Receipt:
    """Return a confirmation as a receipt."""
    by, latency, copies = confirmation
    if copies is None:
        return Receipt(by, latency)
    return Receipt(by, latency, tuple(CopyReceipt(*copy) for copy in copies))


def consume_options(options: ConsumeOptions) -> dict[str, Any]:
    """Return the core's arguments for the options of one consumer."""
    for given in options:
        if given not in ConsumeOptions.__optional_keys__:
            raise unknown_keyword("consume", given, (*ConsumeOptions.__optional_keys__, "prefetch", "idle_timeout"))
    unused = options.get("delete_when_unused", False)
    return {
        "events": names(options["events"]) if "events" in options else None,
        "add_events": names(options.get("add_events", ())),
        "delete_unused": (0.0 if unused else None) if isinstance(unused, bool) else seconds(unused),
        "filter": options.get("filter"),
        "manual_ack": options.get("manual_ack", True),
    }


def rebinding(
    events: str | Iterable[str] | None,
    remove: str | Iterable[str],
    remove_masks: str | Iterable[str],
    add: str | Iterable[str],
) -> dict[str, Any]:
    """Return the core's arguments of a change of bindings."""
    return {
        "replace": None if events is None else names(events),
        "remove": names(remove),
        "remove_masks": names(remove_masks),
        "add": names(add),
    }


def route_method(method: RouteMethod | str) -> RouteMethod:
    """Return the method of a router. Raises `InvalidArgument` for another word."""
    try:
        return RouteMethod(method)
    except ValueError:
        known = ", ".join(RouteMethod)
        raise errors.InvalidArgument(f"the method of a router is one of {known}, not {method!r}") from None


def pull_count(count: int) -> int:
    """Return the number of messages of a pull. Raises `InvalidArgument`."""
    if count < 1:
        raise errors.InvalidArgument(f"a pull takes at least 1 message, not {count}")
    return min(count, _PULL_COUNT_MAX)


def pull_options(order: Order, clear: Clear | None, timeout: Duration | None) -> dict[str, Any]:
    """Return the core's arguments of a pull. Raises `InvalidArgument` for an unknown order or clear."""
    if order not in {"fifo", "lifo"}:
        raise errors.InvalidArgument(f"the order of a pull is 'fifo' or 'lifo', not {order!r}")
    if clear not in {None, "all", "high-priority", "normal"}:
        raise errors.InvalidArgument(f"a pull clears 'all', 'high-priority' or 'normal', not {clear!r}")
    return {
        "lifo": order == "lifo",
        "clear_high_priority": clear in {"all", "high-priority"},
        "clear_normal": clear in {"all", "normal"},
        "timeout": optional_seconds(timeout),
    }


def terms(
    priority: int | None, delay: Duration | None, expires_in: Duration | None
) -> tuple[int | None, float | None, float | None]:
    """Return the core's argument for the terms of a message. Raises `InvalidArgument` for a priority out of range."""
    if priority is not None and not 0 <= priority <= 255:
        raise errors.InvalidArgument(f"a priority is 0 to 255, not {priority}")
    return priority, optional_seconds(delay), optional_seconds(expires_in)


def total(remaining: tuple[int, int] | None) -> int | None:
    """Return the messages of both priorities together."""
    return None if remaining is None else sum(remaining)


def subscriptions(kind: str | Iterable[Subscription], channel: str | None, queue: int | None) -> list[Subscription]:
    """Return one event with its place, or several."""
    return [(kind, channel, queue)] if isinstance(kind, str) else list(kind)


def tagged(options: QueueOptions | None, tag: str | None) -> QueueOptions:
    """Return options with a tag."""
    options = options or QueueOptions()
    return options if tag is None else dataclasses.replace(options, tag=tag)
