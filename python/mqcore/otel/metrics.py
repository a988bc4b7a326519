"""The metrics of a broker as OpenTelemetry's data model has them.

The names are those of `/metrics`. Counters and histograms count from the start of the broker.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from prometheus_client import Metric as Family

__all__ = ["metrics_data"]


def metrics_data(page: str, resource: Resource, began_ns: int, now_ns: int) -> MetricsData:
    """Return the metrics of a page in the Prometheus text format. Times are in nanoseconds since 1970."""
    families = text_string_to_metric_families(page)
    metrics = [_metric(family, began_ns, now_ns) for family in families if family.samples]
    scope = ScopeMetrics(InstrumentationScope("mqcore.broker"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Family, began_ns: int, now_ns: int) -> Metric:
    if family.type == "histogram":
        points = _histograms(family, began_ns, now_ns)
        return _named(family, Histogram(points, AggregationTemporality.CUMULATIVE))
    numbers = [NumberDataPoint(dict(found.labels), began_ns, now_ns, found.value) for found in family.samples]
    if family.type == "counter":
        return _named(family, Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True))
    return _named(family, Gauge(numbers))


def _named(family: Family, data: Any) -> Metric:
    name = family.samples[0].name if family.type == "counter" else family.name
    unit = next((unit for word, unit in {"seconds": "s", "bytes": "By"}.items() if word in name.split("_")), "1")
    return Metric(name, family.documentation, unit, data)


def _histograms(family: Family, began_ns: int, now_ns: int) -> list[HistogramDataPoint]:
    """One point for each combination of labels, from the cumulative buckets of the page."""
    found: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
        parts = found.setdefault(labels, {"buckets": [], "sum": 0.0})
        if sample.name.endswith("_bucket"):
            parts["buckets"].append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            parts["sum"] = sample.value
    points = []
    for labels, parts in found.items():
        buckets = sorted(parts["buckets"])
        counts = [int(later - earlier) for earlier, later in pairwise([0.0, *(count for _, count in buckets)])]
        bounds = [bound for bound, _ in buckets[:-1]]
        # The page does not have the smallest and the largest value; OTLP has both as optional.
        unknown: Any = None
        point = HistogramDataPoint(
            dict(labels), began_ns, now_ns, sum(counts), parts["sum"], counts, bounds, unknown, unknown
        )
        points.append(point)
    return points
