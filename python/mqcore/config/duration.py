"""Durations: seconds as a number, a timedelta, or text with a unit."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

from mqcore.errors import ConfigError

__all__ = ["PATTERN", "Duration", "seconds"]

Duration: TypeAlias = float | timedelta | str
"""Seconds, a timedelta, or text such as ``"30s"``."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PATTERN: Final = r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*"
"""The form of a text, as a regular expression that JSON Schema knows too."""

_DURATION: Final = re.compile(PATTERN)


def seconds(duration: Duration) -> float:
    """Return `duration` as seconds.

    Raises `ConfigError` for other text, and for a negative or infinite number.
    """
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, str):
        match = _DURATION.fullmatch(duration)
        if match is None:
            raise ConfigError(f"{duration!r} is not a duration; write for example '250ms', '30s', '5m', '1h' or '1d'")
        value = float(match[1]) * _UNITS[match[2] or "s"]
    else:
        try:
            value = float(duration)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{duration!r} is not a duration; give seconds, a timedelta, or text such as '30s'"
            ) from None
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"a duration cannot be {duration!r}: it is finite and not negative")
    return value
