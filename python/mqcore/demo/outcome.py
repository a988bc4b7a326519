"""What a queue did, what it had promised, and the table of both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

__all__ = ["Outcome", "table"]


@dataclass(slots=True)
class Outcome(ABC):
    """One queue's story; each part says which numbers tell it."""

    queue: str
    status: str
    promise: str
    """In words."""
    broken: list[str] = field(default_factory=list, kw_only=True)
    """In which ways the promise was broken; empty if it was kept."""
    transcript: list[str] = field(default_factory=list, kw_only=True)
    """What was said, line by line, where that is worth reading."""
    data_dir: Path | None = field(default=None, kw_only=True)
    """What a broker left, with its history; whoever asked for the outcome removes it."""

    @abstractmethod
    def numbers(self) -> dict[str, int]:
        """What was counted, by the titles of the columns; the same titles for all outcomes of a part."""

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        return not self.broken

    def require(self, condition: bool, otherwise: str) -> None:
        """Note a broken promise."""
        if not condition:
            self.broken.append(otherwise)


def table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """Return the table of what each queue did."""
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
