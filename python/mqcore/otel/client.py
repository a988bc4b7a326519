"""Spans of the clients, named and described as OpenTelemetry's conventions for messaging demand:
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mqcore._raised import text_of
from mqcore._tracing import Propagated
from mqcore.client.arguments import pairs

if TYPE_CHECKING:
    from mqcore.client.incoming import Incoming
    from mqcore.client.options import Headers

__all__ = ["ClientTracing", "attributes"]

_LINKS_MAX: Final = 128
"""Links of one span, as many as the SDK keeps by default."""
_NAMES: Final = ("traceparent", "tracestate")
_INSIDE: Final = re.compile(r"(?:^|[,;])traceparent:T?([0-9a-f]{2}(?:-[0-9a-f]+){3})(?:[,;]|$)")
_ACTIVATION: Final = "_mqcore_activation"
_CONTEXT: Final = TraceContextTextMapPropagator()


def attributes(operation: str, kind: str, target: str) -> dict[str, Any]:
    """Return what each span about a message says."""
    return {
        "messaging.system": "mqcore",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": target,
    }


class ClientTracing:
    """Makes the spans of all clients of this program."""

    def __init__(self, provider: TracerProvider | None, parent: bool) -> None:
        self._tracer = trace_api.get_tracer("mqcore", tracer_provider=provider)
        self._parent = parent

    @contextmanager
    def sending(
        self, operation: str, target: str, headers: Headers, count: int | None, carries: bool
    ) -> Iterator[Propagated]:
        """The span of `count` messages. It is the current one in the block, and fails if the block raises."""
        about = attributes(operation, "send", target)
        if count is not None and count != 1:
            about["messaging.batch.message_count"] = count
        kind = SpanKind.CLIENT if operation == "request" else SpanKind.PRODUCER
        name = f"{operation} {target}"
        with self._tracer.start_as_current_span(name, context=_live(), kind=kind, attributes=about) as span:
            sent = Propagated(pairs(headers))
            if carries and span.get_span_context().is_valid:
                own = {name.lower() for name, _ in sent}
                carrier: dict[str, str] = {}
                _CONTEXT.inject(carrier)
                # A program that passes a context on by itself knows better.
                if "traceparent" not in own:
                    sent.extend(carrier.items())
            yield sent

    def processing(self, target: str, messages: Sequence[Incoming[Any]], settles: bool) -> Processing:
        """The span of messages that the program gets now."""
        about = attributes("process", "process", target)
        if len(messages) == 1:
            message = messages[0]
            about |= {"messaging.message.id": message.id, "messaging.message.body.size": len(message)}
            attempt = getattr(message, "attempt", None)
            if attempt is not None:
                about["mqcore.attempt"] = attempt
        else:
            about["messaging.batch.message_count"] = len(messages)
        parent = Context()
        if self._parent and len(messages) == 1:
            parent = _context_of(messages[0])
        links = [] if self._parent and len(messages) == 1 else _links_to(messages)
        return self._begin(f"process {target}", SpanKind.CONSUMER, parent, links, about, settles)

    def working(self, queue: str, job_id: str, task: str, attempt: int, trace: str | None) -> Processing:
        """The span of a job. It is not the current one, because the job runs in another process or thread."""
        about = attributes("work", "process", queue) | {
            "messaging.message.id": job_id,
            "mqcore.task": task,
            "mqcore.attempt": attempt,
        }
        sender = Context() if trace is None else _CONTEXT.extract({"traceparent": trace}, Context())
        found = trace_api.get_current_span(sender).get_span_context()
        links = [Link(found)] if found.is_valid and not self._parent else []
        parent = sender if self._parent else Context()
        return self._begin(f"work {queue}", SpanKind.CONSUMER, parent, links, about, True, is_current=False)

    def serving(self, request: Incoming[Any]) -> Processing:
        """The span of a handler of direct messages: it continues the trace of the request."""
        about = attributes("serve", "process", request.target) | {"messaging.message.body.size": len(request)}
        name = f"serve {request.target}"
        return self._begin(name, SpanKind.SERVER, _context_of(request), [], about, True)

    def _begin(
        self,
        name: str,
        kind: SpanKind,
        parent: Context,
        links: list[Link],
        about: dict[str, Any],
        settles: bool,
        is_current: bool = True,
    ) -> Processing:
        span = self._tracer.start_span(name, context=parent, kind=kind, attributes=about, links=links)
        return Processing(span, settles, is_current)


class _Activation:
    """Whether a span of processing is open, and the context before it."""

    __slots__ = ("before", "is_open")

    def __init__(self, before: Context) -> None:
        self.before = before
        self.is_open = True


def _live() -> Context:
    """The current context without spans of processing that have ended.

    A loop that is left with ``break`` is closed by another task, which cannot change the context of the first.
    """
    context = contexts.get_current()
    while True:
        activation = getattr(trace_api.get_current_span(context), _ACTIVATION, None)
        if not isinstance(activation, _Activation) or activation.is_open:
            return context
        context = activation.before


class Processing:
    """The span of a message's processing. If `is_current`, it is the current one from now until it ends."""

    def __init__(self, span: Span, settles: bool, is_current: bool) -> None:
        self._span = span
        self._settles = settles
        self._activation = _Activation(_live())
        # Without an attribute of its own, a later publish could not see that this span has ended.
        setattr(span, _ACTIVATION, self._activation)
        if is_current:
            contexts.attach(trace_api.set_span_in_context(span, self._activation.before))

    def end(self, outcome: str, error: BaseException | str | None = None) -> None:
        """End it, unless it has ended."""
        self._restore()
        if not self._activation.is_open:
            return
        self._activation.is_open = False
        self._span.set_attribute("mqcore.outcome", outcome)
        if isinstance(error, BaseException):
            self._span.record_exception(error)
            self._span.set_attribute("error.type", type(error).__qualname__)
            self._span.set_status(Status(StatusCode.ERROR, text_of(error)))
        elif error is not None:
            self._span.set_attribute("error.type", outcome)
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()

    def leave(self) -> None:
        """Another span may be the current one. A message that is to be settled may still be, by another task."""
        if self._settles:
            self._restore()
        else:
            self.end("processed")

    def _restore(self) -> None:
        # Not with the token of `attach`: it is invalid in other tasks, which have copies of this context.
        if trace_api.get_current_span() is self._span:
            contexts.attach(self._activation.before)

    def __del__(self) -> None:
        if self._activation.is_open:
            self._activation.is_open = False
            self._span.set_attribute("mqcore.outcome", "abandoned")
            self._span.end()


def _context_of(message: Incoming[Any]) -> Context:
    """The context in the headers of a message."""
    headers = message.headers
    carrier = {name: value for name in _NAMES if (value := headers.get(name)) is not None}
    if not carrier:
        # Headers of jobs and properties of MicroMessage2 are inside one header for clients of other protocols.
        texts = (headers.get("EventMQ-Headers", ""), headers.get("Mm2-Properties", ""))
        found = next((match for text in texts if (match := _INSIDE.search(text))), None)
        carrier = {} if found is None else {"traceparent": found[1]}
    return _CONTEXT.extract(carrier, Context())


def _links_to(messages: Sequence[Incoming[Any]]) -> list[Link]:
    """Links to the spans that published messages."""
    links: list[Link] = []
    for message in messages:
        found = trace_api.get_current_span(_context_of(message)).get_span_context()
        if found.is_valid:
            links.append(Link(found))
            if len(links) == _LINKS_MAX:
                break
    return links
