"""Compaction of a stopped broker's data directory. Users import it from `mqcore.journal`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqcore import _core

if TYPE_CHECKING:
    from mqcore.progress import Progress

__all__ = ["Compacted", "CompactedShard", "compact"]


@dataclass(frozen=True, slots=True)
class CompactedShard:
    """The result of compacting one shard."""

    shard: int
    bytes_before: int
    """Bytes of its segment files."""
    bytes_after: int
    segments_before: int
    segments_after: int
    quarantined: tuple[str, ...]
    """Names of quarantined segments: damaged ones that were renamed."""
    dropped_bytes: int
    """Bytes of removed damaged segments."""
    lost: int
    """Messages that could not be read for copying."""
    damage: str | None
    """Damage found when the shard was opened; ``None``: none."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction."""

    shards: tuple[CompactedShard, ...]
    """The shards that have a journal."""

    @property
    def bytes_before(self) -> int:
        """Bytes of all segment files before the compaction."""
        return sum(shard.bytes_before for shard in self.shards)

    @property
    def bytes_after(self) -> int:
        """Bytes of all segment files after the compaction."""
        return sum(shard.bytes_after for shard in self.shards)

    @property
    def is_damaged(self) -> bool:
        """Whether confirmed messages may be lost."""
        return any(shard.damage or shard.lost for shard in self.shards)


def compact(
    data_dir: str | os.PathLike[str], *, drop_quarantined: bool = False, progress: Progress | None = None
) -> Compacted:
    """Rewrite segments of a stopped broker of which more than 1/64 is dead, and truncate reserved space.

    `drop_quarantined` removes quarantined segments; their readable records were copied before. The call may be
    interrupted or killed at any time; another call continues. `progress` gets bytes of the segments to rewrite.

    Raises `DataDirBusy` while a broker or another reader uses the directory, `DataDirFull` if there is no space for the
    copies, which are written before the removals, `DataDirMissing`, and `DataDirUnreadable`.
    """
    rows = _core.journal_compact(os.fspath(data_dir), drop_quarantined, progress or _unseen)
    return Compacted(tuple(CompactedShard(*row[:5], tuple(row[5]), *row[6:]) for row in rows))


def _unseen(_shard: int, _done: int, _total: int) -> None:
    return
