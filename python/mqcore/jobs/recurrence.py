"""Checks of intervals, cron expressions and time zones when a schedule is declared."""

from __future__ import annotations

from typing import Final

from mqcore.config import Duration
from mqcore.errors import ConfigError

__all__ = ["check_cron", "check_interval"]

# Limits of the broker.
_INTERVAL_MIN_SECONDS: Final = 0.01
_INTERVAL_MAX_SECONDS: Final = 100 * 366 * 24 * 3600.0
# Words that the broker accepts in place of fields.
_SHORTCUTS: Final = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")


def check_interval(period: float, given: Duration) -> None:
    """Check an interval in seconds. Raises `ConfigError`, which quotes the interval as it was `given`."""
    if not _INTERVAL_MIN_SECONDS <= period <= _INTERVAL_MAX_SECONDS:
        raise ConfigError(f"the interval must be from 10 ms to 100 years, not {given!r}")


def check_cron(expression: str, timezone: str | None) -> None:
    """Check a cron expression and the name of a time zone as the broker does. Raises `ConfigError`."""
    from mqcore import _core

    if (mistake := _core.cron_mistake(expression, "")) is not None:
        hint = _shortcut_hint(expression) if expression.startswith("@") else mistake
        raise ConfigError(f"invalid cron expression {expression!r}: {hint}")
    if timezone is None:
        return
    if not timezone or _core.cron_mistake(expression, timezone) is not None:
        raise ConfigError(f"unknown time zone {timezone!r}; {_suggestion(timezone)}")


def _shortcut_hint(expression: str) -> str:
    from difflib import get_close_matches

    known = f"use one of {', '.join(_SHORTCUTS)}, or five fields"
    close = get_close_matches(expression.casefold(), _SHORTCUTS, 1)
    return f"did you mean {close[0]!r}? {known}" if close else known


def _suggestion(timezone: str) -> str:
    from difflib import get_close_matches

    from mqcore import _core

    names = {name.casefold(): name for name in _core.time_zones()}
    # A city without its continent is the most frequent mistake.
    cities = {key.rpartition("/")[2]: name for key, name in names.items()}
    key = timezone.casefold().replace(" ", "_")
    close = [cities[key]] if key in cities else [names[name] for name in get_close_matches(key, names, 1)]
    if close:
        return f"did you mean {close[0]!r}?"
    return "use a name of the IANA database, such as 'Europe/Berlin'"
