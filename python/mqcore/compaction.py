"""Making a stopped broker's data directory as small as what lives in it; offered to users by `mqcore.journal`."""

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
    """What became of one shard."""

    shard: int
    bytes_before: int
    """Octets of its segment files."""
    bytes_after: int
    segments_before: int
    segments_after: int
    quarantined: tuple[str, ...]
    """Names of damaged segments that stand aside."""
    dropped_bytes: int
    """Octets of damaged segments that were removed."""
    lost: int
    """Messages that could not be read any more when they were to be copied."""
    damage: str | None
    """What was wrong when it was opened, in words."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compaction did."""

    shards: tuple[CompactedShard, ...]
    """Those that have a journal."""

    @property
    def bytes_before(self) -> int:
        """Octets of all segment files."""
        return sum(shard.bytes_before for shard in self.shards)

    @property
    def bytes_after(self) -> int:
        """Octets of all segment files now."""
        return sum(shard.bytes_after for shard in self.shards)

    @property
    def is_damaged(self) -> bool:
        """Whether something that was confirmed may be lost."""
        return any(shard.damage or shard.lost for shard in self.shards)


def compact(
    data_dir: str | os.PathLike[str], *, drop_quarantined: bool = False, progress: Progress | None = None
) -> Compacted:
    """Rewrite every segment of a stopped broker of which more than a 64th is dead, and cut what is reserved.

    `drop_quarantined` removes damaged segments that stand aside, whose readable records were copied before. It may be
    interrupted or killed at any moment; another call goes on. `progress` is told octets of segments to rewrite.

    Raises `DataDirBusy` while a broker runs on the directory or somebody looks at it, `DataDirFull` if there is no
    space for the copies, which come before the removals, `DataDirMissing`, and `DataDirUnreadable`.
    """
    rows = _core.journal_compact(os.fspath(data_dir), drop_quarantined, progress or _unseen)
    return Compacted(tuple(CompactedShard(*row[:5], tuple(row[5]), *row[6:]) for row in rows))


def _unseen(_shard: int, _done: int, _total: int) -> None:
    return
