"""The export of a broker: its spans, its metrics and its log records.

A thread of its own takes finished spans from the core once a second, and the metrics once a minute. The broker never
waits for it: spans that nothing takes are dropped and counted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Final, Protocol

from opentelemetry import trace
from opentelemetry.instrumentation.logging.handler import LoggingHandler
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from mqcore.errors import ConfigError
from mqcore.otel.client import attributes
from mqcore.otel.figures import metrics_data

__all__ = ["Export"]

_LOG: Final = logging.getLogger("mqcore.otel")
_SPANS_SECONDS: Final = 1.0
_METRICS_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0
"""Longest wait for the last export when the broker stops."""
_QUEUED_MAX: Final = 1 << 16
_SETTLING: Final = frozenset({"settle", "leave"})


class Source(Protocol):
    """The broker's core."""

    def take_spans(self) -> tuple[list[dict[str, Any]], int]: ...
    def metrics(self) -> str | None: ...


class Export:
    """The export of one broker, from its start to its stop."""

    def __init__(self, source: Source, version: str) -> None:
        exporters = _exporters()
        self._interval = _seconds("OTEL_METRIC_EXPORT_INTERVAL", _METRICS_SECONDS)
        self._source = source
        self._resource = Resource.create(
            {"service.version": version} | ({} if _names_service() else {"service.name": "mqcore"})
        )
        self._began_ns = time.time_ns()
        self._dropped = 0
        self._stop = threading.Event()
        self._spans = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        self._has_spans = _wants("TRACES")
        if self._has_spans:
            self._spans.add_span_processor(BatchSpanProcessor(exporters.spans(), max_queue_size=_QUEUED_MAX))
        self._tracer = self._spans.get_tracer("mqcore.broker", version)
        self._metrics: MetricExporter | None = exporters.metrics() if _wants("METRICS") else None
        self._logs: LoggerProvider | None = None
        self._handler: logging.Handler | None = None
        if _wants("LOGS"):
            self._logs = LoggerProvider(resource=self._resource, shutdown_on_exit=False)
            self._logs.add_log_record_processor(BatchLogRecordProcessor(exporters.logs()))
            self._handler = LoggingHandler(logger_provider=self._logs)
            logging.getLogger("mqcore").addHandler(self._handler)
        self._thread = threading.Thread(target=self._run, name="mqcore-otel", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Export what is left, and end. A destination that does not answer delays this by some seconds at most."""
        self._stop.set()
        self._thread.join(_STOP_SECONDS)
        if self._handler is not None:
            logging.getLogger("mqcore").removeHandler(self._handler)

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        stopping = False
        while not stopping:
            stopping = self._stop.wait(_SPANS_SECONDS)
            try:
                self._take_spans()
                if stopping or time.monotonic() >= due:
                    due = time.monotonic() + self._interval
                    self._export_metrics()
            except Exception:
                _LOG.exception("cannot export to OpenTelemetry; the broker tries again")
        self._spans.shutdown()
        if self._metrics is not None:
            self._metrics.shutdown()
        if self._logs is not None:
            self._logs.shutdown()

    def _take_spans(self) -> None:
        if not self._has_spans:
            return
        spans, dropped = self._source.take_spans()
        for span in spans:
            self._record(span)
        if dropped > self._dropped:
            _LOG.warning("dropped %d spans, because the export is too slow for them", dropped - self._dropped)
            self._dropped = dropped

    def _record(self, span: dict[str, Any]) -> None:
        kind, queue = span["kind"], span["queue"]
        parent = SpanContext(span["trace_id"], span["parent_id"], True, TraceFlags(TraceFlags.SAMPLED))
        about = attributes(kind, "settle" if kind in _SETTLING else kind, queue) | {
            "messaging.message.id": span["message_id"],
            "mqcore.attempt": span["attempt"],
            "mqcore.outcome": span["outcome"],
        }
        if span["subject"]:
            about["mqcore.handler" if kind == "decide" else "mqcore.consumer"] = span["subject"]
        made = self._tracer.start_span(
            f"{kind} {queue}",
            trace.set_span_in_context(NonRecordingSpan(parent)),
            SpanKind.INTERNAL,
            about,
            start_time=span["start_micros"] * 1000,
        )
        if span["failure"] is not None:
            made.set_attribute("error.type", span["outcome"])
            made.set_status(Status(StatusCode.ERROR, span["failure"]))
        made.end(span["end_micros"] * 1000)

    def _export_metrics(self) -> None:
        if self._metrics is None or (page := self._source.metrics()) is None:
            return
        self._metrics.export(metrics_data(page, self._resource, self._began_ns, time.time_ns()))


class _Exporters(Protocol):
    def spans(self) -> Any: ...
    def metrics(self) -> MetricExporter: ...
    def logs(self) -> Any: ...


class _Http:
    """OTLP over HTTP, which the extra `otel` installs."""

    def spans(self) -> Any:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()

    def metrics(self) -> MetricExporter:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        return OTLPMetricExporter()

    def logs(self) -> Any:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter

        return OTLPLogExporter()


class _Grpc:
    """OTLP over gRPC, if its exporter is installed."""

    def spans(self) -> Any:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()

    def metrics(self) -> MetricExporter:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        exporter: MetricExporter = OTLPMetricExporter()
        return exporter

    def logs(self) -> Any:
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter

        return OTLPLogExporter()


def _exporters() -> _Exporters:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf").strip()
    if protocol == "http/protobuf":
        return _Http()
    if protocol != "grpc":
        raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; the broker knows http/protobuf and grpc")
    try:
        import opentelemetry.exporter.otlp.proto.grpc  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, whose exporter is not installed; "
            "run: pip install opentelemetry-exporter-otlp-proto-grpc, or use http/protobuf"
        ) from error
    return _Grpc()


def _wants(signal: str) -> bool:
    """Whether the environment asks for this signal: all are exported unless it says otherwise."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp").strip().lower() != "none"


def _names_service() -> bool:
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )


def _seconds(name: str, default: float) -> float:
    """A duration of the environment, which has it in milliseconds."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if milliseconds <= 0:
        raise ConfigError(f"{name} is {text!r}; give milliseconds, such as 60000")
    return milliseconds / 1000
