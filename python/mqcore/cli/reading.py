"""Progress bar of commands that read a data directory."""

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
    """Show how many bytes of a data directory's segments have been read."""
    shown: dict[int, int] = {}
    with output.progress(what, _segment_bytes(directory), in_bytes=True) as advance:

        def progress(number: int, done: int, _total: int) -> None:
            advance(done - shown.get(number, 0))
            shown[number] = done

        yield progress


def _segment_bytes(directory: Path) -> int | None:
    """Total size of the segments in bytes, from the file system: a journal reports its size only once it is read."""
    try:
        journals = ("shard-*", "limits", "schedules")
        return sum(path.stat().st_size for name in journals for path in directory.glob(f"{name}/*.segment"))
    except OSError:
        # Reading the directory reports the error with more detail.
        return None
