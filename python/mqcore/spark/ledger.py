"""Ledger of a sink: staged rows, one manifest per batch, and the progress of publishing.

::

    STAGING/<sink>/staged/<batch>-<partition>-<attempt>.arrow   rows of one attempt of a task; not yet committed
    STAGING/<sink>/manifests/<batch>.json                       which of them are the batch, in which order; made once
    STAGING/<sink>/manifests/<batch>.progress                   how many of its rows are published

When Spark repeats a batch, it may split it into other tasks than before. So the manifest defines the batch, not the
tasks: the first manifest wins, and each repetition publishes its rows. A write with a version may be repeated at any
time. So the manifest of a finished one stays: it shrinks to its number of rows, and replaces the progress. This module
depends on neither Spark nor a broker.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from mqcore import errors

__all__ = ["Batch", "Contents", "Ledger", "Place", "Staged", "Stager", "row_prefix", "sink_name"]

_FORMAT: Final = "mqcore.sink/1"
_KEPT_MANIFESTS: Final = 100
"""Number of manifests of a stream to keep. Spark repeats only the most recent batches."""


@dataclass(frozen=True)
class Contents:
    """Findings of a check in staged rows."""

    invalid: int = 0
    """Number of invalid rows."""
    largest: Mapping[str, int] = field(default_factory=dict)
    """Size in bytes of the largest body of each queue, of valid rows."""
    delayed: frozenset[str] = frozenset()
    """Queues of valid rows with a delay."""

    def plus(self, other: Contents) -> Contents:
        """Return the contents of both."""
        largest = dict(self.largest)
        for queue, size in other.largest.items():
            largest[queue] = max(size, largest.get(queue, 0))
        return Contents(self.invalid + other.invalid, largest, self.delayed | other.delayed)


@dataclass(frozen=True)
class Staged:
    """Staged rows of one task, as reported to the driver."""

    sink: str
    batch: int
    partition: int
    file: str
    """Name of the file in ``staged/``."""
    rows: int
    contents: Contents | None = None
    """``None``: the rows are not checked."""


class Place(NamedTuple):
    """Staged rows, and where they are."""

    file: str
    first: int
    """Number of the first row in its file."""
    number: int
    """Number of the first row in the batch."""
    rows: pa.RecordBatch


@dataclass(frozen=True)
class Batch:
    """The rows of a batch, with its manifest unless it is a draft."""

    number: int
    files: tuple[str, ...]
    rows: int
    before: Any
    """End of the broker's history before any row was published; ``None`` if it is unknown."""
    published: int
    """Number of rows that are confirmed as published."""
    contents: Contents | None = None
    """``None``: the rows are not checked."""

    @property
    def is_done(self) -> bool:
        """Whether all rows are published."""
        return self.published >= self.rows


def sink_name(query: str | None, wanted: str | None) -> str:
    """Return the directory name of a sink, from the name of the query and the name that the user chose."""
    words = "-".join(word for word in (wanted, query) if word)
    if re.fullmatch(r"[A-Za-z0-9_-]{1,100}", words):
        return words
    return hashlib.sha256(words.encode()).hexdigest()[:32]


def row_prefix(sink: str, batch: int) -> str:
    """Return the beginning of the names of a batch's rows; the number of the row follows."""
    return f"{sink}/{batch}/"


class Stager:
    """Writer of the rows of one attempt of a task, for the driver."""

    def __init__(self, staging: str, sink: str, batch: int, partition: int, attempt: int) -> None:
        self._directory = Path(staging) / sink / "staged"
        self._directory.mkdir(parents=True, exist_ok=True)
        # The random part distinguishes attempts of two applications with the same numbers.
        self._file = f"{batch}-{partition:05d}-{attempt}-{uuid.uuid4().hex[:8]}.arrow"
        self._place = sink, batch, partition

    def write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Write all rows and sync the file. After that, the driver may commit them."""
        path, rows, writer = self._directory / self._file, 0, None
        with path.open("wb") as file:
            for batch in batches:
                if writer is None:
                    writer = pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
                rows += batch.num_rows
            if writer is not None:
                writer.close()
            file.flush()
            os.fsync(file.fileno())
        sink, number, partition = self._place
        if rows == 0:
            path.unlink()
        return Staged(sink, number, partition, self._file if rows else "", rows)


class Ledger:
    """Directory of a sink, for the driver."""

    def __init__(self, staging: str, sink: str) -> None:
        self.sink = sink
        self._staged = Path(staging) / sink / "staged"
        self._manifests = Path(staging) / sink / "manifests"
        self._manifests.mkdir(parents=True, exist_ok=True)

    def find(self, number: int) -> Batch | None:
        """Return the committed batch of this number, if any. Raises `DataDirDamaged` for an invalid manifest."""
        batch = self._committed(number)
        return None if batch is None else replace(batch, published=self.published(number))

    def _committed(self, number: int) -> Batch | None:
        """Return what the manifest of a batch tells."""
        try:
            text = self._manifest(number).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            manifest = json.loads(text)
            if manifest["format"] != _FORMAT:
                raise ValueError(manifest["format"])
            files, rows, before = tuple(manifest["files"]), int(manifest["rows"]), manifest["before"]
            published = rows if manifest.get("done") is True else 0
            contents = _contents(manifest.get("contents"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise errors.DataDirDamaged(f"invalid manifest {self._manifest(number)}: {error}") from error
        return Batch(number, files, rows, before, published, contents)

    @staticmethod
    def draft(number: int, staged: Sequence[Staged], before: Any = None) -> Batch:
        """Return the batch that `promise` would commit."""
        files = tuple(part.file for part in sorted(staged, key=lambda part: part.partition) if part.rows)
        contents: Contents | None = Contents()
        for part in staged:
            if part.rows:
                contents = None if contents is None or part.contents is None else contents.plus(part.contents)
        return Batch(number, files, sum(part.rows for part in staged), before, 0, contents)

    def promise(self, number: int, staged: Sequence[Staged], before: Any) -> tuple[Batch, bool]:
        """Commit a batch, unless it already is; return the committed batch, and whether this call committed it."""
        unfinished = self._written(self.draft(number, staged, before))
        ours = True
        try:
            os.link(unfinished, self._manifest(number))
        except FileExistsError:
            ours = False
        finally:
            unfinished.unlink(missing_ok=True)
        _sync_directory(self._manifests)
        batch = self.find(number)
        assert batch is not None
        return batch, ours

    def _written(self, batch: Batch, **more: Any) -> Path:
        """Write the manifest of a batch to a file that does not count yet."""
        manifest = {
            "format": _FORMAT,
            "sink": self.sink,
            "batch": batch.number,
            "files": batch.files,
            "rows": batch.rows,
            "before": batch.before,
            "contents": _plain(batch.contents),
        }
        unfinished = self._manifests / f"{batch.number}.{uuid.uuid4().hex}.part"
        _write_durably(unfinished, json.dumps(manifest | more))
        return unfinished

    def rows(self, batch: Batch, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of a batch from row `first` on, each part with the number of its first row."""
        for place in self.places(batch, first):
            yield place.number, place.rows

    def places(self, batch: Batch, first: int) -> Iterator[Place]:
        """Yield the rows of a batch from row `first` on, each part with its place."""
        at = 0
        for name in batch.files:
            path, begin = self._staged / name, at
            try:
                with path.open("rb") as file, pa.ipc.open_stream(file) as reader:
                    for rows in reader:
                        if at + rows.num_rows > first:
                            skipped = max(0, first - at)
                            yield Place(name, at + skipped - begin, at + skipped, rows.slice(skipped))
                        at += rows.num_rows
            except (FileNotFoundError, pa.ArrowInvalid) as error:
                raise errors.DataDirDamaged(
                    f"staged rows of batch {batch.number} are missing: {path}: {error}"
                ) from error

    def published(self, number: int) -> int:
        """Return the number of rows of a batch that are confirmed as published. Raises `DataDirDamaged`."""
        try:
            return int(json.loads((self._manifests / f"{number}.progress").read_bytes())["published"])
        except FileNotFoundError:
            batch = self._committed(number)
            return 0 if batch is None else batch.published
        except (ValueError, KeyError, TypeError) as error:
            raise errors.DataDirDamaged(
                f"cannot read the progress of batch {number} in {self._manifests}: {error}"
            ) from error

    def advance(self, number: int, published: int) -> None:
        """Save the number of rows that are confirmed as published. The number never decreases."""
        if published <= self.published(number):
            return
        path = self._manifests / f"{number}.progress"
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
        _write_durably(unfinished, json.dumps({"published": published}))
        unfinished.replace(path)

    def sweep(self, number: int, *, ascending: bool = False) -> None:
        """Remove files that finished batches no longer need, after batch `number`.

        `ascending`: the batches are those of a stream, which repeats none of those long before `number`. Otherwise the
        numbers have no order: smaller ones may be written later, or in parallel. Batches that are committed but not
        finished keep everything.
        """
        below = number if ascending else 0
        staged = [(path, _leading_number(path)) for path in self._staged.glob("*.arrow")]
        over = {other for other in {number, *(other for _, other in staged)} if self._is_over(other, below)}
        if ascending:
            self._forget(below)
        else:
            for other in over:
                self._shrink(other)
        for path, other in staged:
            if other in over:
                path.unlink(missing_ok=True)

    def _is_over(self, number: int | None, below: int) -> bool:
        """Whether all rows of a batch are published, or it was never committed and has a number below `below`."""
        if number is None:
            return False
        try:
            batch = self.find(number)
        except errors.DataDirDamaged:
            return False
        return number < below if batch is None else batch.is_done

    def _forget(self, below: int) -> None:
        """Remove all but the last manifests of a stream."""
        # A manifest is removed before its progress: without that, its rows would not count as published.
        paths = [(path, _leading_number(path)) for path in sorted(self._manifests.iterdir())]
        known = sorted({number for _, number in paths if number is not None})
        old = {number for number in known[:-_KEPT_MANIFESTS] if self._is_over(number, below)}
        for path, number in paths:
            if number in old:
                path.unlink(missing_ok=True)

    def _shrink(self, number: int | None) -> None:
        """Reduce the manifest of a finished batch to its number of rows."""
        if number is None or (batch := self._committed(number)) is None or not batch.files:
            return
        self._written(Batch(number, (), batch.rows, None, 0), done=True).replace(self._manifest(number))
        # Without either of them, no row would count as published.
        _sync_directory(self._manifests)
        (self._manifests / f"{number}.progress").unlink(missing_ok=True)

    def _manifest(self, number: int) -> Path:
        return self._manifests / f"{number}.json"


def _plain(contents: Contents | None) -> dict[str, Any] | None:
    """Contents as JSON has them."""
    if contents is None:
        return None
    return {"invalid": contents.invalid, "largest": dict(contents.largest), "delayed": sorted(contents.delayed)}


def _contents(plain: Any) -> Contents | None:
    if plain is None:
        return None
    largest = {str(queue): int(size) for queue, size in plain["largest"].items()}
    return Contents(int(plain["invalid"]), largest, frozenset(map(str, plain["delayed"])))


def _leading_number(path: Path) -> int | None:
    """Return the number of the batch that a file belongs to, if any."""
    match = re.match(r"(\d+)[.-]", path.name)
    return int(match.group(1)) if match else None


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    if os.name != "posix":
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
