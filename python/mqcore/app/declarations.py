"""Declarations of a program on an app or a group: subscribers, publishers and handlers of requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mqcore.app.middleware import Middleware
from mqcore.app.policies import AckPolicy, BadBody, Retry
from mqcore.config import QueueOptions

__all__ = ["BatchTerms", "RequestDeclaration", "SubscriberDeclaration"]


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """How a batch subscriber forms batches."""

    max: int
    """Messages per batch at most."""
    wait: float
    """Seconds to wait for more messages after the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberDeclaration:
    """A handler of the messages of a queue or topic."""

    function: Callable[..., Any]
    queue: str
    prefetch: int
    concurrency: int
    ack_policy: AckPolicy
    retry: Retry | None
    on_bad_body: BadBody
    queue_options: QueueOptions
    extend_timeout: bool
    consume_options: Mapping[str, Any]
    batch: BatchTerms | None = None
    middlewares: tuple[Middleware, ...] = ()
    """From the outermost to the innermost."""
    local_names: Mapping[str, Any] = field(default_factory=dict)
    """Names of the function that declares it, for annotations that use them."""
    title: str | None = None
    description: str | None = None

    def inside(self, prefix: str, middlewares: tuple[Middleware, ...]) -> SubscriberDeclaration:
        """Return it as a group declares it."""
        retry = self.retry
        if retry is not None and retry.dead_letter not in {None, "drop"}:
            retry = replace(retry, dead_letter=f"{prefix}{retry.dead_letter}")
        return replace(
            self, queue=prefixed(prefix, self.queue), retry=retry, middlewares=(*middlewares, *self.middlewares)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDeclaration:
    """A handler of direct messages."""

    function: Callable[..., Any]
    content_type: int | None
    concurrency: int
    middlewares: tuple[Middleware, ...] = ()
    local_names: Mapping[str, Any] = field(default_factory=dict)
    description: str | None = None

    def inside(self, middlewares: tuple[Middleware, ...]) -> RequestDeclaration:
        """Return it as a group declares it."""
        return replace(self, middlewares=(*middlewares, *self.middlewares))


def prefixed(prefix: str, target: str) -> str:
    """Return a target with the prefix of a group, also inside ``@topic:NAME`` and ``@router:NAME``."""
    if target.startswith("@"):
        kind, colon, name = target.partition(":")
        return f"{kind}{colon}{prefix}{name}"
    return f"{prefix}{target}"
