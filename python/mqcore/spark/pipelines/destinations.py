"""Destinations of a replay: the same queue, one queue for all messages, or one for each queue that is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mqcore import errors

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Destinations", "queue_name"]

_ID_MAX: Final = 65_535


def queue_name(option: str, text: str) -> str:
    """Return ``channel/id`` for it or for a channel alone, whose queue is 0. Raises `ConfigError` with the option."""
    channel, slash, number = text.strip().rpartition("/")
    if not slash:
        channel, number = text.strip(), "0"
    if not channel or not number.isascii() or not number.isdigit() or int(number) > _ID_MAX:
        raise errors.ConfigError(
            f"{option} has an invalid queue {text!r}; use CHANNEL/ID with an id from 0 to {_ID_MAX}, such as orders/1"
        )
    return f"{channel}/{int(number)}"


@dataclass(frozen=True)
class Destinations:
    """Destinations of messages by queue. Without any, each message goes to the queue that it was published to."""

    every: str | None = None
    """Destination of all messages."""
    by_queue: Mapping[str, str] = field(default_factory=dict)
    """Destination by queue, in lower case. Other queues keep their name."""

    @classmethod
    def parse(cls, text: str) -> Destinations:
        """Parse ``CHANNEL/ID``, or ``QUEUE=QUEUE`` pairs separated by commas. Raises `ConfigError`."""
        if not text.strip():
            return cls()
        if "=" not in text:
            return cls(every=queue_name("to", text))
        found: dict[str, str] = {}
        for pair in text.split(","):
            source, equals, target = pair.partition("=")
            if not equals:
                raise errors.ConfigError(f"to has {pair.strip()!r} between pairs; use QUEUE=QUEUE, or one queue alone")
            name = queue_name("to", source).lower()
            if name in found:
                raise errors.ConfigError(f"to names the queue {source.strip()!r} twice; a queue has one destination")
            found[name] = queue_name("to", target)
        return cls(by_queue=found)

    def of(self, queue: str) -> str:
        """Return the destination of the messages of a queue."""
        return self.every or self.by_queue.get(queue.lower(), queue)

    def column(self, queue: str = "queue") -> Column:
        """Return the destination as a column."""
        from pyspark.sql import functions as F  # noqa: N812

        if self.every is not None:
            return F.lit(self.every)
        target = F.col(queue)
        for source, to in self.by_queue.items():
            target = F.when(F.lower(queue) == source, F.lit(to)).otherwise(target)
        return target
