"""Limits, and the base of all limiters, which parses and caches them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from mqcore._core import Verdict
from mqcore.config import Duration, seconds
from mqcore.errors import ConfigError, RateLimited
from mqcore.throttr import Algorithm

Strategy = Algorithm | Literal["fixed-window", "sliding-window", "gcra"]
_LIMIT: Final = re.compile(r"\s*(\d+)\s*/\s*(\d+(?:\.\d+)?)?\s*(ms|s|m|h|d)\s*")
_UNITS: Final = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_KEY_BYTES_MAX: Final = 255
# Maximum number of cached prepared limits. Without it, a program that computes limits would fill the memory.
_CACHED_LIMITS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Limit:
    """An amount per period. Raises `ConfigError` for a negative amount or an empty period.

    >>> Limit.parse("500/10s")
    Limit(amount=500, period=10.0, strategy=None)
    """

    amount: int
    """Maximum total cost per period, 0 to 2**64 - 1."""
    period: Duration
    """Seconds, a timedelta, or text such as ``"10s"``."""
    strategy: Strategy | None = None
    """Strategy of counting. Default: that of the limiter."""

    def __post_init__(self) -> None:
        if self.amount < 0 or self.amount >= 1 << 64:
            raise ConfigError(f"the amount of a limit must be from 0 to 2**64 - 1, not {self.amount}")
        if self.nanoseconds <= 0:
            raise ConfigError(f"the period of a limit must be longer than 0 s, not {self.period!r}")
        if self.strategy is not None:
            _algorithm(self.strategy)

    @property
    def nanoseconds(self) -> int:
        """The period in nanoseconds."""
        return round(seconds(self.period) * 1e9)

    @classmethod
    def parse(cls, text: str, strategy: Strategy | None = None) -> Limit:
        """Parse text such as ``"20/m"`` or ``"100/10s"``. Raises `ConfigError`."""
        match = _LIMIT.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"invalid limit {text!r}; use AMOUNT/PERIOD, for example '100/s', '20/m', '500/10s' or '10000/d'"
            )
        period = float(match[2] or 1) * _UNITS[match[3]] / 1e9
        return cls(int(match[1]), period, strategy)


def _algorithm(strategy: Strategy) -> Algorithm:
    try:
        return Algorithm(strategy)
    except ValueError:
        known = ", ".join(Algorithm)
        raise ConfigError(f"unknown strategy {strategy!r}; use one of {known}") from None


class _Limits:
    """Base of all limiters: parses and caches limits, and adds the prefix to keys."""

    def __init__(self, strategy: Strategy, prefix: str) -> None:
        self._strategy = _algorithm(strategy)
        self._prefix = prefix
        self._ready: dict[str | Limit, Any] = {}

    def _of(self, limit: str | Limit) -> Any:
        """Return the prepared form of a limit, from the cache if possible."""
        found = self._ready.get(limit)
        if found is None:
            parsed = Limit.parse(limit) if isinstance(limit, str) else limit
            algorithm = self._strategy if parsed.strategy is None else _algorithm(parsed.strategy)
            if len(self._ready) >= _CACHED_LIMITS_MAX:
                self._ready.clear()
            found = self._ready[limit] = self._prepare(parsed, algorithm)
        return found

    def _prepare(self, limit: Limit, algorithm: Algorithm) -> Any:
        raise TypeError(f"{type(self).__name__} has no limits")

    def _key(self, key: str | bytes) -> str | bytes:
        if not self._prefix:
            return key
        return self._prefix + key if isinstance(key, str) else self._prefix.encode() + key


def _parts(
    parts: Iterable[tuple[str | bytes, str | Limit] | tuple[str | bytes, str | Limit, int]],
) -> list[tuple[str | bytes, str | Limit, int]]:
    return [(part[0], part[1], part[2] if len(part) == 3 else 1) for part in parts]


def _own_name(function: Callable[..., object]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _worth_waiting(verdict: Verdict, deadline: float) -> bool:
    return time.monotonic() + verdict.retry_after <= deadline


def _limited(key: str | bytes, verdict: Verdict) -> RateLimited:
    name = key if isinstance(key, str) else key.decode(errors="replace")
    if math.isinf(verdict.retry_after):
        message = f"{name}: the cost exceeds the limit of {verdict.limit}, so it can never be allowed"
    elif not verdict.available:
        message = f"{name}: denied because the broker is unreachable (on_unavailable='deny')"
    else:
        message = f"{name}: the limit of {verdict.limit} is reached; retry in {verdict.retry_after:.3f} s"
    return RateLimited(message, verdict.retry_after, verdict.limit)
