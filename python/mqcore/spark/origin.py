"""Where history is read: in a directory of this file system, or through the admin side of a broker elsewhere.

Both answer the same questions, and neither consumes anything. Nothing here knows Spark.
"""

from __future__ import annotations

import functools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from mqcore import _core, errors
from mqcore._http import AdminClient, Rejections

__all__ = ["Directory", "Ends", "Origin", "Piece", "Remote", "Stretch", "arrow_errors"]

Piece: TypeAlias = tuple[int, str, int, int, list[int], int, int]
"""Shard, journal, first sequence, behind the last, segments to look in, what retention had removed, about octets."""
Stretch: TypeAlias = tuple[int, int, int]
"""Shard, first sequence, behind the last."""

_ANSWER_BYTES_MAX: Final = 64 << 20
_REQUEST_BYTES_MAX: Final = 12 << 10
_TIMEOUT_SECONDS: Final = 60.0
_NAMES: Final = ("shard", "journal", "from", "until", "segments", "kept_from", "bytes")


@dataclass(frozen=True, slots=True)
class Ends:
    """How far the history of a shard reaches."""

    shard: int
    journal: str
    """Which journal it is; empty as long as there is none. Sequences mean nothing beside it."""
    earliest: int
    """From here on everything is there."""
    latest: int
    """Behind the last row."""


class Origin(ABC):
    """Where history is read. Requests are JSON text, as the core reads it."""

    @abstractmethod
    def ends(self) -> list[Ends]:
        """Return how far each shard's history reaches now."""

    @abstractmethod
    def pieces(self, request: str, stretches: Sequence[Stretch], target_bytes: int) -> list[Piece]:
        """Part stretches into pieces of about so many octets."""

    @abstractmethod
    def advance(self, request: str, stretches: Sequence[Stretch], rows: int, fail: bool) -> list[int]:
        """Return where the next `rows` rows of the stretches end, in their order."""

    @abstractmethod
    def read(self, request: str, piece: Piece, fail: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece. Raises `HistoryLost` if some are gone and `fail`."""


class Directory(Origin):
    """A data directory, whether a broker runs on it or not. Raises `DataDirMissing` and `DataDirUnreadable`."""

    def __init__(self, path: str) -> None:
        self._core = _core.History(path)

    @classmethod
    def known(cls, path: str) -> Directory:
        """Return the one that this process has for a path: it remembers what it has seen, and looks at news only."""
        return _opened(path, _made(path))

    def ends(self) -> list[Ends]:
        """See `Origin.ends`."""
        return [Ends(*ends) for ends in self._core.ends()]

    def pieces(self, request: str, stretches: Sequence[Stretch], target_bytes: int) -> list[Piece]:
        """See `Origin.pieces`."""
        return self._core.pieces(request, list(stretches), target_bytes)

    def advance(self, request: str, stretches: Sequence[Stretch], rows: int, fail: bool) -> list[int]:
        """See `Origin.advance`."""
        return self._core.advance(request, list(stretches), rows, fail)

    def read(self, request: str, piece: Piece, fail: bool) -> Iterator[pa.RecordBatch]:
        """See `Origin.read`."""
        with arrow_errors():
            yield from pa.RecordBatchReader.from_stream(self._core.read(request, piece, fail))


def _made(path: str) -> tuple[int, int, int] | None:
    """Tell apart a directory and another one that is made in its place."""
    try:
        mark = os.stat(os.path.join(path, "format"))
    except OSError:
        return None
    return mark.st_dev, mark.st_ino, mark.st_mtime_ns


@functools.lru_cache(maxsize=8)
def _opened(path: str, _made: tuple[int, int, int] | None) -> Directory:
    return Directory(path)


@contextmanager
def arrow_errors() -> Iterator[None]:
    """Turn what pyarrow raises for an error of the core into that error."""
    try:
        yield
    except errors.MqcoreError:
        raise
    except (pa.ArrowException, OSError) as error:
        words = str(error).removeprefix("External error: ").partition(". Detail:")[0]
        lost = words.startswith("history of shard") and " is lost (" in words
        raise (errors.HistoryLost if lost else errors.DataDirUnreadable)(words) from error


class Remote(Origin):
    """A broker that is asked through its admin side. Raises `ConnectFailed`, `ConnectionLost` and `Unauthorized`."""

    def __init__(self, url: str, token: str | None) -> None:
        self._admin = AdminClient(url, token=token, timeout=_TIMEOUT_SECONDS)
        self._url = self._admin.url

    def ends(self, settled: bool = False) -> list[Ends]:
        """See `Origin.ends`; `settled`: first the broker writes down whatever happened so far."""
        told = self._ask({"do": "ends", "settled": settled})["ends"]
        return [Ends(ends["shard"], ends["journal"], ends["earliest"], ends["latest"]) for ends in told]

    def pieces(self, request: str, stretches: Sequence[Stretch], target_bytes: int) -> list[Piece]:
        """See `Origin.pieces`."""
        question = {"do": "pieces", "request": request, "stretches": stretches, "target_bytes": target_bytes}
        return [tuple(piece[name] for name in _NAMES) for piece in self._ask(question)["pieces"]]

    def advance(self, request: str, stretches: Sequence[Stretch], rows: int, fail: bool) -> list[int]:
        """See `Origin.advance`."""
        question = {"do": "advance", "request": request, "stretches": stretches, "rows": rows, "fail_on_loss": fail}
        return list(self._ask(question)["ends"])

    def read(self, request: str, piece: Piece, fail: bool) -> Iterator[pa.RecordBatch]:
        """See `Origin.read`."""
        named = dict(zip(_NAMES, piece, strict=True))
        question = {"do": "rows", "request": request, "piece": named, "fail_on_loss": fail}
        with self._admin.stream(
            "GET", "/history", _headers(question), rejections=_REJECTIONS, otherwise=self._unreadable
        ) as body:
            try:
                with pa.ipc.open_stream(body) as reader:
                    yield from reader
            except (pa.ArrowInvalid, errors.ConnectionLost, OSError) as error:
                why = str(error) or type(error).__name__
                raise errors.ConnectionLost(f"history from {self._url} broke off (its log says why): {why}") from error

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        return self._admin.ask(
            "GET",
            "/history",
            _headers(question),
            bytes_max=_ANSWER_BYTES_MAX,
            rejections=_REJECTIONS,
            otherwise=self._unreadable,
        )

    def _unreadable(self, message: str) -> errors.MqcoreError:
        return errors.DataDirUnreadable(f"{self._url}: {message}")


_REJECTIONS: Final[Rejections] = {
    "lost": errors.HistoryLost,
    "nothing-kept": errors.DataDirMissing,
    "stopping": errors.ConnectionLost,
    "bad-request": errors.InvalidArgument,
}


def _headers(question: dict[str, Any]) -> dict[str, str]:
    text = json.dumps(question)
    if len(text) > _REQUEST_BYTES_MAX:
        raise errors.InvalidArgument(
            f"the request names too many queues or columns: {len(text)} bytes, of at most {_REQUEST_BYTES_MAX}"
        )
    return {"Mqcore-Request": text}
