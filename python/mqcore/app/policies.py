"""How an app settles messages: acknowledgement policies, retries, and undecodable bodies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mqcore.backoff import Backoff
from mqcore.config import seconds
from mqcore.errors import ConfigError

__all__ = ["AckPolicy", "BadBody", "Reject", "Retry"]

_REQUEUES_MAX = 2**16 - 1


class AckPolicy(StrEnum):
    """When an app settles a message, and how if its handler raises."""

    ACK_FIRST = "ack-first"
    """Acknowledge before the handler runs. A message whose handler fails is lost."""
    ACK = "ack"
    """Acknowledge when the handler has ended, also if it raised."""
    REJECT_ON_ERROR = "reject-on-error"
    """Acknowledge on success. If the handler raises, move the message to the dead-letter queue without a retry."""
    NACK_ON_ERROR = "nack-on-error"
    """Acknowledge on success. If the handler raises, reject the message: the broker requeues it, and dead-letters it
    when it has no retries left. The default."""
    MANUAL = "manual"
    """The handler settles the message. A message that it does not settle is redelivered after the acknowledge
    timeout."""


class BadBody(StrEnum):
    """How an app treats a message whose body cannot be decoded as the handler's type."""

    DEAD_LETTER = "dead-letter"
    """Move it to the dead-letter queue, with the validation error in the header ``Dead-Letter-Error``. The default."""
    REJECT = "reject"
    """Reject it without calling the handler: the broker requeues it, and dead-letters it when it has no retries
    left."""
    RAISE = "raise"
    """Raise `BodyError` inside the middlewares as if the handler had raised it. The `AckPolicy` decides."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and when the broker redelivers the messages of a subscriber that its handler rejected.

    The broker counts attempts and keeps delays. `Retry` sets options of the queue: `retries` is ``put_back_limit``,
    the bounds of `backoff` are ``retry_delay`` and ``retry_delay_max``, `dead_letter` is ``dead_letter``. The delays of
    the broker double each time; if `backoff` has another factor or jitter, the app chooses the delay when it rejects a
    message. Raises `ConfigError` for an invalid value.

    >>> mqcore.Retry(5, backoff=mqcore.Backoff("1s", max="5m"), dead_letter="orders/9001").retries
    5
    """

    retries: int = 16
    """Redeliveries after the first attempt, 0 to 65,535. Default 16."""
    backoff: Backoff | None = None
    """Delays between attempts. Default: those of the queue."""
    dead_letter: str | None = None
    """Queue for messages without retries left, or ``drop``. The app creates a missing queue. Default: that of the
    queue."""

    def __post_init__(self) -> None:
        if (
            isinstance(self.retries, bool)
            or not isinstance(self.retries, int)
            or not 0 <= self.retries <= _REQUEUES_MAX
        ):
            raise ConfigError(f"retries must be a number from 0 to {_REQUEUES_MAX:,}, not {self.retries!r}")
        if self.backoff is not None and seconds(self.backoff.max) < seconds(self.backoff.first):
            raise ConfigError(
                f"the backoff begins with {self.backoff.first!r}, which exceeds its maximum {self.backoff.max!r}; "
                "set max to at least first"
            )

    def delay(self, attempt: int) -> float | None:
        """Return the seconds before the attempt after number `attempt`; ``None``: the broker's own delay."""
        backoff = self.backoff
        if backoff is None or (backoff.factor == 2 and backoff.jitter == 0):
            return None
        return backoff.wait(attempt)


class Reject(Exception):
    """Raised by a handler: move its message to the dead-letter queue now, without a retry.

    The text becomes the header ``Dead-Letter-Error``::

        if order.customer is None:
            raise mqcore.app.Reject(f"order {order.id} has no customer")
    """
