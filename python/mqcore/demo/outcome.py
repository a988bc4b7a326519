"""Results of queues, and the table that shows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

__all__ = ["Outcome", "table"]


@dataclass(slots=True)
class Outcome(ABC):
    """Result of one queue; each part defines its numbers."""

    queue: str
    status: str
    promise: str
    """In words."""
    broken: list[str] = field(default_factory=list, kw_only=True)
    """Failed checks; empty if all passed."""
    transcript: list[str] = field(default_factory=list, kw_only=True)
    """Log of the conversation, if it is worth reading."""
    data_dir: Path | None = field(default=None, kw_only=True)
    """Data directory of the broker, with its history. The caller removes it."""

    @abstractmethod
    def numbers(self) -> dict[str, int]:
        """Numbers by column title, with the same titles in all outcomes of a part."""

    @property
    def kept(self) -> bool:
        """Whether all checks passed."""
        return not self.broken

    def require(self, condition: bool, otherwise: str) -> None:
        """Add a failed check."""
        if not condition:
            self.broken.append(otherwise)


def table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """Return the table of all results."""
    drawn = Table(title=title, title_justify="left", title_style="bold")
    drawn.add_column("queue", no_wrap=True)
    drawn.add_column("status", no_wrap=True)
    for number in outcomes[0].numbers() if outcomes else ():
        drawn.add_column(number, justify="right")
    drawn.add_column("promise")
    drawn.add_column("kept", justify="center")
    for outcome in outcomes:
        drawn.add_row(
            outcome.queue,
            outcome.status,
            *map(str, outcome.numbers().values()),
            outcome.promise,
            "[green]yes[/green]" if outcome.kept else "[red]NO[/red]",
        )
    return drawn
