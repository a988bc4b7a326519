"""The export of a broker: its spans, its metrics and its log records.

A thread of its own takes finished spans from the core once a second, and the metrics once a minute. The broker never
waits for it: spans that it does not take in time are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Any, Final, Protocol

from opentelemetry import trace
from opentelemetry.instrumentation.logging.handler import LoggingHandler
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from mqcore.errors import ConfigError
from mqcore.otel import environment
from mqcore.otel.client import attributes
from mqcore.otel.metrics import metrics_data

__all__ = ["Export"]

_LOG: Final = logging.getLogger("mqcore.otel")
_SPANS_SECONDS: Final = 1.0
_METRICS_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0
"""Longest wait for the last export when the broker stops."""
_SPANS_MAX: Final = 512
"""Spans of one request to the destination."""
_SETTLING: Final = frozenset({"settle", "leave"})


class Source(Protocol):
    """The broker's core."""

    def take_spans(self, limit: int) -> tuple[list[dict[str, Any]], int]: ...
    def metrics(self) -> str | None: ...


class Owner(Protocol):
    """The broker that exports. Only a weak reference is kept, so that the export keeps no broker alive."""

    @property
    def _core(self) -> Source: ...


class _Collector(SpanProcessor):
    """Keeps finished spans until they are exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _LogHandler(LoggingHandler):
    """Exports log records. A program without handlers of its own still prints its warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        last = logging.lastResort
        if last is not None and not logging.getLogger().handlers and record.levelno >= last.level:
            last.handle(record)


class Export:
    """The export of one broker, from its start to its stop."""

    def __init__(self, owner: Owner, version: str) -> None:
        exporters = _exporters()
        self._metrics_seconds = environment.seconds("OTEL_METRIC_EXPORT_INTERVAL", _METRICS_SECONDS)
        self._spans_seconds = environment.seconds("OTEL_BSP_SCHEDULE_DELAY", _SPANS_SECONDS)
        self._owner = weakref.ref(owner)
        self._resource = Resource.create(
            {"service.version": version} | ({} if environment.names_service() else {"service.name": "mqcore"})
        )
        self._began_ns = time.time_ns()
        self._dropped = owner._core.take_spans(_SPANS_MAX)[1]
        self._last_page: str | None = None
        self._stop = threading.Event()
        self._collector = _Collector()
        self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        self._provider.add_span_processor(self._collector)
        self._tracer = self._provider.get_tracer("mqcore.broker", version)
        self._spans = exporters.spans() if environment.wants("TRACES") else None
        self._metrics = exporters.metrics() if environment.wants("METRICS") else None
        self._logs: LoggerProvider | None = None
        self._handler: logging.Handler | None = None
        if environment.wants("LOGS"):
            self._logs = LoggerProvider(resource=self._resource, shutdown_on_exit=False)
            self._logs.add_log_record_processor(BatchLogRecordProcessor(exporters.logs()))
            self._handler = _LogHandler(logger_provider=self._logs)
            logging.getLogger("mqcore").addHandler(self._handler)
        self._thread = threading.Thread(target=self._run, name="mqcore-otel", daemon=True)
        self._thread.start()

    def prepare_stop(self) -> None:
        """Remember the last metrics, which a stopped broker no longer has."""
        owner = self._owner()
        if self._metrics is not None and owner is not None:
            self._last_page = owner._core.metrics()

    def stop(self) -> None:
        """Export what is left, and end. A destination that does not answer delays this by some seconds at most."""
        self._stop.set()
        self._thread.join(_STOP_SECONDS)
        if self._handler is not None:
            logging.getLogger("mqcore").removeHandler(self._handler)

    def _run(self) -> None:
        try:
            due = time.monotonic() + self._metrics_seconds
            stopping = False
            while not stopping:
                stopping = self._stop.wait(self._spans_seconds)
                owner = self._owner()
                if owner is None:
                    return
                try:
                    self._export_spans(owner._core)
                    if stopping or time.monotonic() >= due:
                        due = time.monotonic() + self._metrics_seconds
                        self._export_metrics(owner._core.metrics() or self._last_page)
                except Exception:
                    _LOG.exception("cannot export to OpenTelemetry; the broker tries again")
                del owner
        finally:
            self._provider.shutdown()
            for exporter in (self._spans, self._metrics):
                if exporter is not None:
                    exporter.shutdown()
            if self._logs is not None:
                self._logs.shutdown()

    def _export_spans(self, core: Source) -> None:
        if self._spans is None:
            return
        lost = 0
        while True:
            # Few at a time: while Python objects are made of them, no handler can run.
            taken, dropped = core.take_spans(_SPANS_MAX)
            for span in taken:
                self._record(span)
            spans, self._collector.spans = self._collector.spans, []
            if spans and self._spans.export(spans) is not SpanExportResult.SUCCESS:
                lost += len(spans)
            if len(taken) < _SPANS_MAX:
                break
        lost += dropped - self._dropped
        self._dropped = dropped
        if lost:
            _LOG.warning("lost %d spans: OTEL_EXPORTER_OTLP_ENDPOINT does not accept them, or not fast enough", lost)

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

    def _export_metrics(self, page: str | None) -> None:
        if self._metrics is not None and page is not None:
            self._metrics.export(metrics_data(page, self._resource, self._began_ns, time.time_ns()))


class _Exporters(Protocol):
    def spans(self) -> SpanExporter: ...
    def metrics(self) -> MetricExporter: ...
    def logs(self) -> Any: ...


class _Http:
    """OTLP over HTTP, which the extra `otel` installs."""

    def spans(self) -> SpanExporter:
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

    def spans(self) -> SpanExporter:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        exporter: SpanExporter = OTLPSpanExporter()
        return exporter

    def metrics(self) -> MetricExporter:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        exporter: MetricExporter = OTLPMetricExporter()
        return exporter

    def logs(self) -> Any:
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter

        return OTLPLogExporter()


def _exporters() -> _Exporters:
    if environment.protocol() == "http/protobuf":
        return _Http()
    try:
        import opentelemetry.exporter.otlp.proto.grpc  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, whose exporter is not installed; "
            "run: pip install opentelemetry-exporter-otlp-proto-grpc, or use http/protobuf"
        ) from error
    return _Grpc()
