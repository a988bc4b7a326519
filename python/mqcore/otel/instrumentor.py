"""The entry point for ``opentelemetry-instrument`` and other loaders of instrumentations."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from mqcore.otel import instrument, uninstrument

__all__ = ["MqcoreInstrumentor"]


class MqcoreInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments the clients of a program; see `mqcore.otel.instrument`."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no requirements, because this is part of mqcore."""
        return ()

    def _instrument(self, **options: Any) -> None:
        instrument(parent=options.get("parent", False), tracer_provider=options.get("tracer_provider"))

    def _uninstrument(self, **_options: Any) -> None:
        uninstrument()
