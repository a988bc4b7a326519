"""The variables of OpenTelemetry that this package reads itself."""

from __future__ import annotations

import os
from typing import Final

from mqcore.errors import ConfigError

__all__ = ["names_service", "protocol", "seconds", "wants"]

_PROTOCOLS: Final = ("http/protobuf", "grpc")


def wants(signal: str) -> bool:
    """Return whether to export ``TRACES``, ``METRICS`` or ``LOGS``. All are exported unless a variable says no."""
    if _text("OTEL_SDK_DISABLED").lower() == "true":
        return False
    return _text(f"OTEL_{signal}_EXPORTER").lower() != "none"


def protocol() -> str:
    """Return the protocol of the export. Raises `ConfigError` for an unknown one."""
    found = _text("OTEL_EXPORTER_OTLP_PROTOCOL") or _PROTOCOLS[0]
    if found not in _PROTOCOLS:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {found!r}; the broker knows {' and '.join(_PROTOCOLS)}")
    return found


def names_service() -> bool:
    """Return whether a variable names the service."""
    return bool(_text("OTEL_SERVICE_NAME")) or "service.name=" in _text("OTEL_RESOURCE_ATTRIBUTES")


def seconds(name: str, default: float) -> float:
    """Return a duration in seconds; the variable has it in milliseconds. Raises `ConfigError` for an invalid one."""
    text = _text(name)
    if not text:
        return default
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if not milliseconds > 0:
        raise ConfigError(f"{name} is {text!r}; give milliseconds, such as {default * 1000:.0f}")
    return milliseconds / 1000


def _text(name: str) -> str:
    """A variable; an empty one counts as missing."""
    return os.environ.get(name, "").strip()
