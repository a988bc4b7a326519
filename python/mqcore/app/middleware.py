"""Middlewares: functions around each handler and each publish of an app, in one shape for both directions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from mqcore.app.dependencies import Kind, kind_of, name_of
from mqcore.client.options import PublishOptions
from mqcore.errors import ConfigError

__all__ = ["CallNext", "Middleware", "Outgoing", "chained", "check_middlewares"]


@dataclass(slots=True)
class Outgoing:
    """A message that an app publishes. A middleware may change it."""

    queue: str
    """Its target: a queue, ``@topic:NAME`` or ``@router:NAME``."""
    body: object
    """Its body before it is encoded."""
    headers: dict[str, str] = field(default_factory=dict)
    """Its headers."""
    options: PublishOptions = field(default_factory=PublishOptions)
    """The other arguments of `Client.publish`, such as ``delay`` and ``id``."""


class CallNext(Protocol):
    """Continues with a message: returns what the handler returned, or the `Receipt` of a published message."""

    def __call__(self, message: Any, /) -> Awaitable[Any]:
        """Call the next middleware, or the handler, or publish the message."""


class Middleware(Protocol):
    """A function around handlers and publishers: ``async def timed(message, call_next): ...``.

    The message is a `Delivered` of a subscriber, a `Batch` of a batch subscriber, a `Request` of `App.on_request`, or
    an `Outgoing` message to publish.
    """

    def __call__(self, message: Any, call_next: CallNext, /) -> Awaitable[Any]:
        """Handle or publish a message, usually by ``await call_next(message)``."""


def check_middlewares(middlewares: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Return middlewares. Raises `ConfigError` for one that is not an ``async`` function of two arguments."""
    found = tuple(middlewares)
    for each in found:
        if not callable(each) or isinstance(each, type) or kind_of(each) is not Kind.ASYNC:
            raise ConfigError(
                f"middleware {name_of(each)} is not an async function; write 'async def middleware(message, call_next)'"
            )
        try:
            inspect.signature(each).bind(None, None)
        except TypeError as error:
            raise ConfigError(
                f"middleware {name_of(each)} must take two arguments, message and call_next: {error}"
            ) from None
    return found


def chained(middlewares: Iterable[Middleware], last: CallNext) -> CallNext:
    """Return a call that passes the middlewares, the first one outermost, and ends with `last`."""
    call = last
    for middleware in reversed(tuple(middlewares)):
        call = _around(middleware, call)
    return call


def _around(middleware: Middleware, call: CallNext) -> CallNext:
    return lambda message: middleware(message, call)
