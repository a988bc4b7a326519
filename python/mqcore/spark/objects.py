"""Sources of history on object storage: the archive of a broker alone, or together with the broker for newer rows.

Executors open the objects themselves. The broker is asked only for rows that are not archived yet.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from mqcore import _core
from mqcore.spark.origin import Ends, Origin, Piece, Remote, Stretch, arrow_errors, piece_of
from mqcore.spark.place import check_owner
from mqcore.spark.stores import StoreAccess

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Joined", "Objects"]

_TAIL_BYTES: Final = 1 << 20
"""Bytes of the tail from which on it is worthwhile to ask whether they are archived now."""
_LOOK_SECONDS: Final = 10.0
"""Shortest time between two such questions."""


class Objects(Origin):
    """The archive of a broker on object storage, which ends where both of its tables end.

    Raises `ArchiveDenied`, `ArchiveUnreachable`, `DataDirUnreadable`, and `ConfigError` for an invalid URL or option.
    """

    def __init__(self, url: str, store: StoreAccess = StoreAccess()) -> None:  # noqa: B008 (immutable)
        self.url = url
        self._core = _core.History.of_archive(url, store.core)

    @classmethod
    def known(cls, url: str, store: StoreAccess) -> Objects:
        """Return this process's instance for a URL. It caches the metadata, and reads it again after a new commit."""
        return _opened(url, store)

    def ends(self) -> list[Ends]:
        """See `Origin.ends`. Empty if there are no tables."""
        return [Ends(*ends) for ends in self._core.ends()]

    def begins(self) -> dict[int, int]:
        """Return the sequence of each shard at which the archive begins. The data directory has earlier rows."""
        return dict(self._core.archived_from())

    def pieces(self, request: str, stretches: Sequence[Stretch], target_bytes: int) -> list[Piece]:
        """See `Origin.pieces`."""
        found = self._core.pieces(request, list(stretches), target_bytes)
        return [Piece(*piece, is_archived=True) for piece in found]

    def advance(self, request: str, stretches: Sequence[Stretch], rows: int, fail: bool) -> list[int]:
        """See `Origin.advance`."""
        return self._core.advance(request, list(stretches), rows, fail)

    def read(self, request: str, piece: Piece, fail: bool) -> Iterator[pa.RecordBatch]:
        """See `Origin.read`."""
        import pyarrow

        with arrow_errors():
            yield from pyarrow.RecordBatchReader.from_stream(self._core.read(request, piece_of(piece), fail))

    def queues(self, containing: str = "") -> set[str]:
        """See `Origin.queues`. These are the first and the last queue of each file."""
        return {name for name in self._core.archived_queues() if containing.lower() in name.lower()}


@functools.lru_cache(maxsize=8)
def _opened(url: str, store: StoreAccess) -> Objects:
    return Objects(url, store)


class Joined(Origin):
    """The archive of a broker on object storage, and the broker for rows that are not in it.

    The archive is the source of the rows that it has when they are planned, and the broker of all others. So each row
    has one source, although the broker archives, merges files and expires snapshots meanwhile.

    `broker` connects, and is called when the broker is first needed. Raises `ConfigError` if the archive belongs to
    another broker.
    """

    def __init__(
        self, archive: Objects, broker: Callable[[], Remote], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._archive = archive
        self._connect = broker
        self._clock = clock
        self._looked: float | None = None
        self._archived: dict[int, tuple[int, int]] = {}
        """First sequence of each shard in the archive, and the one after the last."""
        self._journals: dict[int, str] = {}

    @functools.cached_property
    def _broker(self) -> Remote:
        return self._connect()

    def ends(self) -> list[Ends]:
        """See `Origin.ends`."""
        ends = self._broker.ends()
        journals = {end.shard: end.journal for end in ends}
        if self._looked is None or journals != self._journals:
            self._journals = journals
            self._look()
        return ends

    def pieces(self, request: str, stretches: Sequence[Stretch], target_bytes: int) -> list[Piece]:
        """See `Origin.pieces`. Pieces of the archive come first."""
        found = self._split(request, stretches, target_bytes)
        # The archive may have grown since, if a stream has lagged behind.
        if sum(piece.size for piece in found if not piece.is_archived) > _TAIL_BYTES and self._has_grown():
            found = self._split(request, stretches, target_bytes)
        return found

    def advance(self, request: str, stretches: Sequence[Stretch], rows: int, fail: bool) -> list[int]:
        """See `Origin.advance`. A range does not reach beyond the end of the archive, if it begins in it."""
        split = [self._parts(stretch) for stretch in stretches]
        ends = [behind for _, _, behind in stretches]
        for origin in (self._archive, self._broker):
            mine = [at for at, parts in enumerate(split) if parts[0][0] is origin]
            if mine:
                share = max(1, rows * len(mine) // len(stretches))
                reached = origin.advance(request, [split[at][0][1] for at in mine], share, fail)
                for at, end in zip(mine, reached, strict=True):
                    ends[at] = end
        return ends

    def read(self, request: str, piece: Piece, fail: bool) -> Iterator[pa.RecordBatch]:
        """See `Origin.read`."""
        return (self._archive if piece.is_archived else self._broker).read(request, piece, fail)

    def queues(self, containing: str = "") -> set[str]:
        """See `Origin.queues`."""
        return self._broker.queues(containing) or self._archive.queues(containing)

    def _split(self, request: str, stretches: Sequence[Stretch], target_bytes: int) -> list[Piece]:
        parts = [part for stretch in stretches for part in self._parts(stretch)]
        found: list[Piece] = []
        for origin in (self._archive, self._broker):
            mine = [stretch for source, stretch in parts if source is origin]
            found += origin.pieces(request, mine, target_bytes) if mine else []
        return found

    def _parts(self, stretch: Stretch) -> list[tuple[Origin, Stretch]]:
        """Divide a range, which is not empty, among the sources."""
        shard, first, behind = stretch
        begin, end = self._archived.get(shard, (0, 0))
        parts: list[tuple[Origin, Stretch]] = []
        for origin, low, high in (
            (self._broker, first, min(behind, begin)),
            (self._archive, max(first, begin), min(behind, end)),
            (self._broker, max(first, begin, end), behind),
        ):
            if low < high:
                parts.append((origin, (shard, low, high)))
        return parts

    def _has_grown(self) -> bool:
        if self._looked is not None and self._clock() - self._looked < _LOOK_SECONDS:
            return False
        before = dict(self._archived)
        self._look()
        return self._archived != before

    def _look(self) -> None:
        """Read how far the archive extends. Raises `ConfigError` if it belongs to another broker."""
        ends, begins = self._archive.ends(), self._archive.begins()
        for end in ends:
            check_owner(self._archive.url, end.shard, end.journal, self._broker.url, self._journals.get(end.shard))
        self._archived = {end.shard: (begins.get(end.shard, 0), end.latest) for end in ends}
        self._looked = self._clock()
