"""The place where `mqcore.otel` attaches to the clients. Clients import nothing of OpenTelemetry by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mqcore.client.incoming import Incoming
    from mqcore.client.options import Headers

__all__ = ["Propagated", "SpanHolder", "Spanned", "Tracing", "active", "enqueuing", "sending"]


class Propagated(list[tuple[str, str]]):
    """Headers of a message that has a span."""


class Spanned(Protocol):
    """The span in which a program processes a message or a batch."""

    def end(self, outcome: str, error: BaseException | str | None = None) -> None:
        """End it, unless it has ended: the message is settled."""

    def leave(self) -> None:
        """The program asks for the next message: this span is no longer the current one. It ends if nothing settles
        the message."""


class Tracing(Protocol):
    """Makes the spans of clients."""

    def sending(
        self, operation: str, target: str, headers: Headers, count: int | None, carries: bool
    ) -> AbstractContextManager[Propagated]:
        """The span of `count` messages, which the block sends with the returned headers. `carries`: whether the
        protocol has headers."""

    def processing(self, target: str, messages: Sequence[Incoming[Any]], settles: bool) -> Spanned:
        """The span of messages that the program gets now. `settles`: whether settling them ends it."""

    def working(self, queue: str, job_id: str, task: str, attempt: int, trace: str | None) -> Spanned:
        """The span of a job that a worker begins to run. `trace`: the context that the job carries."""

    def serving(self, request: Incoming[Any]) -> Spanned:
        """The span of a handler of direct messages."""


active: Tracing | None = None
"""Makes the spans of all clients of this program; ``None``: there are none."""


def sending(
    operation: str, target: str, headers: Headers, count: int | None, *, carries: bool = True
) -> AbstractContextManager[Headers]:
    """Begin the span of messages that the block sends with the returned headers, if spans are made.

    `count`: the number of messages, if it is known. `carries`: whether the protocol has headers.
    """
    return nullcontext(headers) if active is None else active.sending(operation, target, headers, count, carries)


def enqueuing(queue: str) -> AbstractContextManager[Sequence[tuple[str, str]]]:
    """Begin the span of a job that the block sends with the returned headers, if spans are made."""
    return nullcontext(()) if active is None else active.sending("enqueue", queue, (), 1, True)


class SpanHolder:
    """A stream of messages. It knows the span of the message that the program got last."""

    _span: Spanned | None = None

    def _leave_span(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.leave()

    def _begin_span(self, target: str, messages: Sequence[Incoming[Any]], settles: bool) -> Spanned | None:
        if active is not None:
            self._span = active.processing(target, messages, settles)
        return self._span
