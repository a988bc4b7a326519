"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mqcore.config import Duration, seconds
from mqcore.errors import ConfigError

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """First `first`, then each time `factor` times as long, up to `max`; all of it up to `jitter` longer or shorter, so
    that what failed together does not come back together."""

    first: Duration = 1.0
    max: Duration = 60.0
    factor: float = 2.0
    jitter: float = 0.1
    """As a part of the time: 0.1 is 10 %."""

    def __post_init__(self) -> None:
        seconds(self.first)
        seconds(self.max)
        if not 1 <= self.factor <= 1000 or not 0 <= self.jitter <= 1:
            raise ConfigError("the factor of a backoff is 1 to 1000, and its jitter 0 to 1")

    def wait(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number `attempt`, of which the first is 1."""
        # The power is bounded, because a float has an end and attempts have not.
        wait = min(seconds(self.max), seconds(self.first) * self.factor ** min(attempt - 1, 64))
        return wait * (1 + random.uniform(-self.jitter, self.jitter))  # noqa: S311 - no secret depends on it
