"""Sources of history: a directory of this file system, or the admin API of a remote broker.

Both answer the same questions, and neither consumes anything. Nothing here knows Spark.
"""

from __future__ import annotations

import functools
import json
import os
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from mqcore import _core, errors
from mqcore._http import AdminClient, Rejections, query
from mqcore.spark.attempts import PASSING, Attempts
from mqcore.spark.files import newest_manifest
from mqcore.spark.stores import StoreAccess

__all__ = ["Directory", "Ends", "Origin", "Piece", "Remote", "Stretch", "arrow_errors", "piece_of"]


class Piece(NamedTuple):
    """Rows that one task reads."""

    shard: int
    journal: str
    first: int
    """First sequence."""
    behind: int
    """Sequence after the last."""
    segments: list[int]
    """Segments of the journal to search."""
    kept_from: int
    """Rows below it were removed by retention."""
    size: int
    """Estimated bytes."""
    queues: tuple[str | None, str | None] | None = None
    """First queue, and the one after the last; `None`: all."""
    is_archived: bool = False
    """Whether an archive on object storage has all rows, so that the broker is not asked."""


Stretch: TypeAlias = tuple[int, int, int]
"""Shard, first sequence, sequence after the last."""

_ANSWER_BYTES_MAX: Final = 64 << 20
_REQUEST_BYTES_MAX: Final = 12 << 10
_TIMEOUT_SECONDS: Final = 60.0
_LISTED_QUEUES: Final = 1_000
_NAMES: Final = ("shard", "journal", "from", "until", "segments", "kept_from", "bytes")


@dataclass(frozen=True, slots=True)
class Ends:
    """Extent of a shard's history."""

    shard: int
    journal: str
    """Id of the journal; empty if there is none yet. Sequences of different journals cannot be compared."""
    earliest: int
    """First sequence from which the history is complete."""
    latest: int
    """Sequence after the last row."""


class Origin(ABC):
    """A source of history. Requests are JSON text, which the core parses."""

    @abstractmethod
    def ends(self) -> list[Ends]:
        """Return the current extent of each shard's history."""

    @abstractmethod
    def pieces(self, request: str, stretches: Sequence[Stretch], target_bytes: int) -> list[Piece]:
        """Split ranges into pieces of about this many bytes."""

    @abstractmethod
    def advance(self, request: str, stretches: Sequence[Stretch], rows: int, fail: bool) -> list[int]:
        """Return the ranges that contain the next `rows` rows, in order."""

    @abstractmethod
    def read(self, request: str, piece: Piece, fail: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece. With `fail`, raises `HistoryLost` if rows have been removed."""

    @abstractmethod
    def queues(self, containing: str = "") -> set[str]:
        """Return queues whose names contain a text, as far as they are known without reading the history."""


class Directory(Origin):
    """A data directory of a running or stopped broker. Raises `DataDirMissing` and `DataDirUnreadable`.

    `store` is for an archive on object storage that belongs to it.
    """

    def __init__(self, path: str, store: StoreAccess = StoreAccess()) -> None:  # noqa: B008 (immutable)
        self._core = _core.History(path, store.core)
        self._path = path

    @classmethod
    def known(cls, path: str, store: StoreAccess = StoreAccess()) -> Directory:  # noqa: B008 (immutable)
        """Return this process's instance for a path. It caches what it has read and reads only new records."""
        return _opened(path, store, _made(path), _archive_of(path))

    def ends(self) -> list[Ends]:
        """See `Origin.ends`."""
        return [Ends(*ends) for ends in self._core.ends()]

    def pieces(self, request: str, stretches: Sequence[Stretch], target_bytes: int) -> list[Piece]:
        """See `Origin.pieces`."""
        return [Piece(*piece) for piece in self._core.pieces(request, list(stretches), target_bytes)]

    def advance(self, request: str, stretches: Sequence[Stretch], rows: int, fail: bool) -> list[int]:
        """See `Origin.advance`."""
        return self._core.advance(request, list(stretches), rows, fail)

    def read(self, request: str, piece: Piece, fail: bool) -> Iterator[pa.RecordBatch]:
        """See `Origin.read`."""
        with arrow_errors():
            yield from pa.RecordBatchReader.from_stream(self._core.read(request, piece_of(piece), fail))

    def queues(self, containing: str = "") -> set[str]:
        """See `Origin.queues`. These are the queues of the archive."""
        manifest = newest_manifest(os.path.join(self._path, "archive")) or {"files": []}
        names = {f"{file['channel']}/{file['queue_id']}" for file in manifest["files"] if file["channel"] is not None}
        return {name for name in names if containing.lower() in name.lower()}


def _made(path: str) -> tuple[int, int, int] | None:
    """Return an identifier that changes if the directory is replaced by another one."""
    try:
        mark = os.stat(os.path.join(path, "format"))
    except OSError:
        return None
    return mark.st_dev, mark.st_ino, mark.st_mtime_ns


def _archive_of(path: str) -> bytes | None:
    """Return the text that tells where the archive on object storage is, which an open directory does not read again.

    The broker writes it at its first start with such an archive.
    """
    try:
        return Path(path, "archive.json").read_bytes()
    except OSError:
        return None


@functools.lru_cache(maxsize=8)
def _opened(path: str, store: StoreAccess, _made: tuple[int, int, int] | None, _archive: bytes | None) -> Directory:
    return Directory(path, store)


def piece_of(piece: Piece) -> _core._Piece:
    """Return a piece as the core takes it."""
    shard, journal, first, behind, segments, kept_from, size, queues, _ = piece
    return shard, journal, first, behind, segments, kept_from, size, queues


@contextmanager
def arrow_errors() -> Iterator[None]:
    """Convert an exception that pyarrow raises for an error of the core back to that error."""
    try:
        yield
    except errors.MqcoreError:
        raise
    except (pa.ArrowException, OSError) as error:
        words = str(error).removeprefix("External error: ").partition(". Detail:")[0]
        raise _kind(words)(words) from error


def _kind(words: str) -> type[errors.MqcoreError]:
    """Return the type of an error of the core. Arrow keeps only its text."""
    if words.startswith("history of shard") and " is lost (" in words:
        return errors.HistoryLost
    if words.startswith("reading the archive "):
        if ": the object store denies access: " in words:
            return errors.ArchiveDenied
        if ": the object store does not answer: " in words:
            return errors.ArchiveUnreachable
    return errors.DataDirUnreadable


class Remote(Origin):
    """A broker's admin API.

    After a temporary error, such as a restart of the broker, a request is repeated up to `retries` times. Rows that
    have arrived are not repeated.

    Raises `ConnectFailed`, `ConnectionLost` and `Unauthorized`.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        context: ssl.SSLContext | None = None,
        timeout: float = _TIMEOUT_SECONDS,
        retries: int = 0,
    ) -> None:
        self._admin = AdminClient(url, token=token, timeout=timeout, context=context)
        self.url = self._admin.url
        """The address, without credentials."""
        self._retries = retries

    def ends(self, settled: bool = False) -> list[Ends]:
        """See `Origin.ends`. With `settled`, the broker first writes all pending events to its history."""
        answer = self._ask({"do": "ends", "settled": settled})["ends"]
        return [Ends(ends["shard"], ends["journal"], ends["earliest"], ends["latest"]) for ends in answer]

    def pieces(self, request: str, stretches: Sequence[Stretch], target_bytes: int) -> list[Piece]:
        """See `Origin.pieces`. Each piece has all queues."""
        question = {"do": "pieces", "request": request, "stretches": stretches, "target_bytes": target_bytes}
        return [Piece(*(piece[name] for name in _NAMES)) for piece in self._ask(question)["pieces"]]

    def advance(self, request: str, stretches: Sequence[Stretch], rows: int, fail: bool) -> list[int]:
        """See `Origin.advance`."""
        question = {"do": "advance", "request": request, "stretches": stretches, "rows": rows, "fail_on_loss": fail}
        return list(self._ask(question)["ends"])

    def read(self, request: str, piece: Piece, fail: bool) -> Iterator[pa.RecordBatch]:
        """See `Origin.read`."""
        if not self._retries:
            yield from self._rows(request, piece, fail)
            return
        attempts, received = Attempts(self._retries), _Received(request)
        while True:
            try:
                for batch in self._rows(received.request, piece, fail):
                    rows = received.fresh(batch)
                    if rows.num_rows:
                        attempts.succeeded()
                        yield rows
                return
            except PASSING as error:
                attempts.failed(error)
                received.begin_again()

    def queues(self, containing: str = "") -> set[str]:
        """See `Origin.queues`. These are the broker's queues, if the credential may list them."""
        parameters = query({"filter": containing, "limit": _LISTED_QUEUES})
        try:
            answer = self._admin.ask("GET", f"/queues?{parameters}", bytes_max=_ANSWER_BYTES_MAX)
            return {str(state["queue"]) for state in answer["queues"]}
        except (errors.MqcoreError, KeyError, TypeError):
            return set()

    def _rows(self, request: str, piece: Piece, fail: bool) -> Iterator[pa.RecordBatch]:
        named = dict(zip(_NAMES, piece, strict=False))
        question = {"do": "rows", "request": request, "piece": named, "fail_on_loss": fail}
        with self._admin.stream(
            "GET", "/history", _headers(question), rejections=_REJECTIONS, otherwise=self._unreadable
        ) as body:
            try:
                with pa.ipc.open_stream(body) as reader:
                    yield from reader
            except (pa.ArrowInvalid, errors.ConnectionLost, OSError) as error:
                why = str(error) or type(error).__name__
                raise errors.ConnectionLost(
                    f"history from {self.url} is incomplete (see the broker's log): {why}"
                ) from error

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        attempts = Attempts(self._retries)
        while True:
            try:
                return self._admin.ask(
                    "GET",
                    "/history",
                    _headers(question),
                    bytes_max=_ANSWER_BYTES_MAX,
                    rejections=_REJECTIONS,
                    otherwise=self._unreadable,
                )
            except PASSING as error:
                attempts.failed(error)

    def _unreadable(self, message: str) -> errors.MqcoreError:
        return errors.DataDirUnreadable(f"{self.url}: {message}")


_REJECTIONS: Final[Rejections] = {
    "lost": errors.HistoryLost,
    "nothing-kept": errors.DataDirMissing,
    "stopping": errors.ConnectionLost,
    "bad-request": errors.InvalidArgument,
}


class _Received:
    """Knows which rows of a piece have arrived, so that a repeated request yields the others only.

    Sequences identify rows. Their order may differ between two requests, because the broker archives meanwhile.
    """

    def __init__(self, request: str) -> None:
        words = json.loads(request)
        columns = words["columns"]
        self._column = next((name for name in ("sequence", "offset") if name in columns), None)
        self._names = list(columns)
        if self._column is None:
            words["columns"] = [*columns, "sequence"]
        self.request = json.dumps(words)
        """The request, with sequences."""
        self._arrived: list[pa.Array] = []
        self._earlier: pa.Array | None = None

    def begin_again(self) -> None:
        """Leave out all rows that have arrived so far."""
        if self._arrived:
            self._earlier = pa.concat_arrays(self._arrived)
            self._arrived = [self._earlier]

    def fresh(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that have not arrived yet, with the columns of the original request."""
        sequences = batch.column(self._column or "sequence")
        if self._earlier is not None:
            new = pc.invert(pc.is_in(sequences, value_set=self._earlier))
            batch, sequences = batch.filter(new), sequences.filter(new)
        # A copy, because a slice of the batch would keep all of it in memory.
        self._arrived.append(pc.add(sequences, 0))
        return batch if self._column is not None else batch.select(self._names)


def _headers(question: dict[str, Any]) -> dict[str, str]:
    text = json.dumps(question)
    if len(text) > _REQUEST_BYTES_MAX:
        raise errors.InvalidArgument(
            f"too many queues or columns: the request has {len(text)} bytes, the limit is {_REQUEST_BYTES_MAX}"
        )
    return {"Mqcore-Request": text}
