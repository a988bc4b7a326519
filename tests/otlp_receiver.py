"""An OTLP receiver over HTTP: it decodes what programs export, with OpenTelemetry's own message types."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_KINDS: dict[str, tuple[Any, Any]] = {
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
    "/v1/logs": (ExportLogsServiceRequest, ExportLogsServiceResponse),
}


def plain(attributes: Any) -> dict[str, Any]:
    """Attributes as a dict."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in attributes}


@dataclass(frozen=True)
class SeenSpan:
    """A received span."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: list[str]
    kind: int
    seconds: float
    start: float
    failed: bool
    attributes: dict[str, Any]


@dataclass
class Received:
    """Everything that a receiver has received."""

    url: str
    spans: list[SeenSpan] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    """The newest data of each metric, by name."""
    logs: list[tuple[str, str, str]] = field(default_factory=list)
    """Service, severity and text of each record."""
    resources: list[dict[str, Any]] = field(default_factory=list)
    refuse: bool = False
    """Whether to answer with 503."""

    def take(self, request: Any) -> None:
        """Keep the content of a request."""
        for group in getattr(request, "resource_spans", ()):
            resource = plain(group.resource.attributes)
            self.resources.append(resource)
            for span in (span for scope in group.scope_spans for span in scope.spans):
                self.spans.append(
                    SeenSpan(
                        resource["service.name"],
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        [link.span_id.hex() for link in span.links],
                        span.kind,
                        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        span.start_time_unix_nano / 1e9,
                        span.status.code == 2,
                        plain(span.attributes),
                    )
                )
        for group in getattr(request, "resource_metrics", ()):
            for metric in (metric for scope in group.scope_metrics for metric in scope.metrics):
                self.metrics[metric.name] = metric
        for group in getattr(request, "resource_logs", ()):
            service = plain(group.resource.attributes)["service.name"]
            for record in (record for scope in group.scope_logs for record in scope.log_records):
                self.logs.append((service, record.severity_text, record.body.string_value))

    def named(self, name: str) -> list[SeenSpan]:
        """The spans with this name, in the order of their starts."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start)


@contextlib.contextmanager
def receiving() -> Iterator[Received]:
    """Receive on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request, response = _KINDS[self.path]
            if received.refuse:
                self.send_response(503)
                self.end_headers()
                return
            received.take(request.FromString(body))
            answer = response().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_arguments: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = Received(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
