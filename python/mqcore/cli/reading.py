"""The progress bar of commands that read a data directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mqcore.cli import output

if TYPE_CHECKING:
    from mqcore.journal import Progress

__all__ = ["reading"]


@contextmanager
def reading(what: str, directory: Path) -> Iterator[Progress]:
    """Show how much of all segments of a data directory is read."""
    shown: dict[int, int] = {}
    with output.progress(what, _octets(directory), octets=True) as advance:

        def progress(number: int, done: int, _total: int) -> None:
            advance(done - shown.get(number, 0))
            shown[number] = done

        yield progress


def _octets(directory: Path) -> int | None:
    """What there is to read. Journals tell their part only when it is their turn, so the files are asked."""
    try:
        journals = ("shard-*", "limits", "schedules")
        return sum(path.stat().st_size for name in journals for path in directory.glob(f"{name}/*.segment"))
    except OSError:
        # The reading itself says what is wrong.
        return None
