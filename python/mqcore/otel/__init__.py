"""Traces, metrics and logs with OpenTelemetry: ``pip install mqcore[otel]``.

Two parts work independently of each other.

The clients of a program make spans once the program has called `instrument`, or was started with
``opentelemetry-instrument``. A publish is a span of its own, and its W3C context travels in the header ``traceparent``
of the message: in TMQP, in MicroMessage2, and in jobs. Processing a message or a job is a span too. It links to the
span that published the message, or continues that trace with ``instrument(parent=True)``.

::

    import mqcore.otel

    mqcore.otel.instrument()

A broker with ``otel=True`` (``mqcore serve --otel``) exports its own spans of messages whose trace is recorded:
``save``, ``decide``, ``deliver``, ``settle`` and ``leave``. It also exports its metrics and its log records. The
standard variables ``OTEL_*`` configure the export:
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqcore import _tracing as tracing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["instrument", "uninstrument"]


def instrument(*, parent: bool = False, tracer_provider: TracerProvider | None = None) -> None:
    """Make spans in all clients of this program, also in those that are connected.

    `parent`: whether the span of a message's processing is a child of the span that published it. The default is a
    trace of its own with a link, because a message may be processed long after its publish, in a batch, or more than
    once. Requests and their handlers are always in one trace. `tracer_provider` defaults to the global one.

    A later call replaces the settings of an earlier one. Raises `ConfigError` if OpenTelemetry is not installed.

    >>> mqcore.otel.instrument(parent=True)
    >>> mqcore.otel.uninstrument()
    """
    with _installed():
        from mqcore.otel.client import ClientTracing
    tracing.active = ClientTracing(tracer_provider, parent)


def uninstrument() -> None:
    """Make no more spans in the clients of this program."""
    tracing.active = None


class _installed:  # noqa: N801 (read like a function)
    """Turns the failed import of OpenTelemetry into a `ConfigError` that says what to install."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ImportError):
            from mqcore.errors import ConfigError

            raise ConfigError(f"OpenTelemetry is not installed ({error}); run: pip install 'mqcore[otel]'") from error
