"""Export of a stopped broker's history to tables. Users import it from `mqcore.journal`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mqcore import _core

if TYPE_CHECKING:
    from mqcore.progress import Progress

__all__ = ["History", "history", "unfinished"]

TableFormat = Literal["parquet", "arrow"]
"""Apache Parquet compressed with zstd, or the stream format of Arrow IPC."""


@contextmanager
def unfinished(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path. It is renamed to `path` when the block succeeds, and removed when it raises."""
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


class History:
    """The lifecycle events in the journals of a stopped broker. Archived events may be removed from the journals; the
    archive has them."""

    def __init__(self, source: _core.JournalHistory) -> None:
        self._source = source
        self._unreadable = False

    @property
    def is_damaged(self) -> bool:
        """Whether the directory has damage, so that steps may be missing here. `verify` says which. Writing them may
        find some more."""
        return self._source.damaged or self._unreadable

    @property
    def blocks(self) -> int:
        """How many blocks of steps there are; a broker writes one for all that it does at once."""
        return self._source.blocks

    def write(
        self,
        path: str | os.PathLike[str],
        format: TableFormat,  # noqa: A002
        *,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Write them to a file, and return how many there are. `progress` is called with the number of blocks that are
        done; what it raises ends the writing.

        The file appears under its name when it is complete and durable, in the place of one that was there. Raises
        `OSError` if it cannot be written, and `DataDirUnreadable` for history that a later version wrote.
        """
        with unfinished(path) as part:
            rows, readable = self._source.write(os.fspath(part), format, progress or _unseen)
        self._unreadable |= not readable
        return rows


def history(data_dir: str | os.PathLike[str], queue: str | None = None, *, progress: Progress | None = None) -> History:
    """Return the history in the journals of a stopped broker: of all queues, or of one, and of the shards themselves
    (that they started, and gaps).

    Raises the same as `segments`. A queue without history is not an error.
    """
    return History(_core.JournalHistory(os.fspath(data_dir), queue, progress or _unread))


def _unseen(_done: int) -> None:
    return


def _unread(_shard: int, _done: int, _total: int) -> None:
    return
