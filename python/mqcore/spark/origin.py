"""Where history is read: in a directory of this file system, or through the admin side of a broker elsewhere.

Both answer the same questions, and neither consumes anything. Nothing here knows Spark.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from mqcore import _core, errors

__all__ = ["Directory", "Ends", "Origin", "Piece", "Remote", "Stretch", "arrow_errors"]

Piece: TypeAlias = tuple[int, str, int, int, list[int], int, int]
"""Shard, journal, first sequence, behind the last, segments to look in, what retention had removed, about octets."""
Stretch: TypeAlias = tuple[int, int, int]
"""Shard, first sequence, behind the last."""

_ANSWER_MAX: Final = 64 << 20
_QUESTION_MAX: Final = 12 << 10
_PATIENCE: Final = 60.0
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
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise errors.ConfigError(
                f"{url} is no admin side; write http://HOST:PORT as the ready line of the broker tells"
            )
        self._url, self._token = url, token
        self._host, self._port, self._secure = parts.hostname, parts.port or 2627, parts.scheme == "https"

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
        connection, answer = self._open({"do": "rows", "request": request, "piece": named, "fail_on_loss": fail})
        try:
            with pa.ipc.open_stream(answer) as reader:
                yield from reader
        except (pa.ArrowInvalid, http.client.HTTPException, OSError) as error:
            why = str(error) or type(error).__name__
            raise errors.ConnectionLost(f"history from {self._url} broke off (its log says why): {why}") from error
        finally:
            connection.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        connection, answer = self._open(question)
        try:
            return dict(json.loads(answer.read(_ANSWER_MAX)))
        except (ValueError, http.client.HTTPException, OSError) as error:
            raise errors.BadAnswer(f"{self._url} answers in another form: {error}") from error
        finally:
            connection.close()

    def _open(self, question: dict[str, Any]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        words = json.dumps(question)
        if len(words) > _QUESTION_MAX:
            raise errors.InvalidArgument("too many queues or columns are named to be asked for at an admin side")
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_PATIENCE)
        headers = {"Mqcore-Request": words}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request("GET", "/history", headers=headers)
            answer = connection.getresponse()
            if answer.status == http.client.OK:
                return connection, answer
            refusal = answer.read(_ANSWER_MAX)
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            raise errors.ConnectFailed(f"{self._url} does not answer: {error}") from error
        connection.close()
        raise _refused(self._url, answer.status, refusal)


def _refused(url: str, status: int, octets: bytes) -> errors.MqcoreError:
    try:
        content = json.loads(octets)["error"]
        code, message = str(content["code"]), str(content["message"])
    except (ValueError, KeyError, TypeError):
        return errors.BadAnswer(f"{url} answers {status}, and not as the admin side of a broker does")
    match code:
        case "lost":
            return errors.HistoryLost(message)
        case "unauthorized" | "forbidden":
            return errors.Unauthorized(message, 401)
        case "nothing-kept":
            return errors.DataDirMissing(message)
        case "stopping":
            return errors.ConnectionLost(message)
        case "bad-request":
            return errors.InvalidArgument(message)
        case _:
            return errors.DataDirUnreadable(f"{url}: {message}")
