"""Delays between retries, of jobs and of messages."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mqcore.config import Duration, seconds
from mqcore.errors import ConfigError

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delay between retries, with jitter.

    The delay starts at `first` (1 s) and grows by `factor` (2) up to `max` (60 s). Each delay varies randomly by
    `jitter` (10 %), so that jobs or messages that failed together do not retry together. Raises `ConfigError` for an
    invalid value.

    >>> Backoff(first=1, factor=3, jitter=0).wait(attempt=3)
    9.0
    """

    first: Duration = 1.0
    max: Duration = 60.0
    factor: float = 2.0
    jitter: float = 0.1
    """Maximum variation as a fraction of the delay: 0.1 is 10 %."""

    def __post_init__(self) -> None:
        seconds(self.first)
        seconds(self.max)
        if not 1 <= self.factor <= 1000:
            raise ConfigError(f"factor must be from 1 to 1000, not {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"jitter must be from 0 to 1, not {self.jitter}")

    def wait(self, attempt: int) -> float:
        """Return the delay in seconds after attempt number `attempt`, counted from 1."""
        # The exponent is bounded because large ones overflow a float.
        wait = min(seconds(self.max), seconds(self.first) * self.factor ** min(attempt - 1, 64))
        return wait * (1 + random.uniform(-self.jitter, self.jitter))  # noqa: S311 - no secret depends on it
