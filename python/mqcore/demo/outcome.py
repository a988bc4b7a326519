"""What a queue did, what it had promised, and the table of both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from mqcore.broker import QueueStats

__all__ = ["Outcome", "table"]


@dataclass(slots=True)
class Outcome:
    """One queue's story."""

    queue: str
    status: str
    promise: str
    """In words."""
    arrived: int
    """Files that arrived whole, counted once a consumer."""
    stats: QueueStats
    """What the queue itself counted."""
    broken: list[str] = field(default_factory=list)
    """In which ways the promise was broken; empty if it was kept."""

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        return not self.broken

    def require(self, condition: bool, otherwise: str) -> None:
        """Note a broken promise."""
        if not condition:
            self.broken.append(otherwise)


def table(title: str, outcomes: Iterable[Outcome]) -> Table:
    """Return the table of what each queue did."""
    drawn = Table(title=title, title_justify="left", title_style="bold")
    drawn.add_column("queue", no_wrap=True)
    drawn.add_column("status", no_wrap=True)
    for number in ("taken", "deliveries", "acks", "nacks", "put back", "dropped", "arrived"):
        drawn.add_column(number, justify="right")
    drawn.add_column("promise")
    drawn.add_column("kept", justify="center")
    for outcome in outcomes:
        stats = outcome.stats
        drawn.add_row(
            outcome.queue,
            outcome.status,
            *map(
                str,
                (
                    stats.received,
                    stats.deliveries,
                    stats.acks,
                    stats.negative_acks,
                    stats.put_back,
                    sum(stats.dropped.values()),
                    outcome.arrived,
                ),
            ),
            outcome.promise,
            "[green]yes[/green]" if outcome.kept else "[red]NO[/red]",
        )
    return drawn
