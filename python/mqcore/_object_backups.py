"""Backups on object storage: made and restored through files of this machine."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqcore import _core, errors

if TYPE_CHECKING:
    from mqcore.progress import Copied

__all__ = ["Moments", "fetched", "is_url", "moments", "send"]

_NAME: Final = re.compile(r"mqcore-(\d{8}T\d{6}\.\d{3})Z\.tar\.zst")
"""Names that are chosen here. Their order is that of time."""
_TIME: Final = "%Y%m%dT%H%M%S.%f"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def is_url(place: object) -> bool:
    """Whether a place is a URL of object storage."""
    return "://" in str(place)


def send(url: str, make: Callable[[Path], object], *, keep: int | None, progress: Copied | None) -> str:
    """Let `make` write a backup into a temporary file, and send it. Returns the URL of the object.

    If `url` ends with ``/``, the name is the time, and at most `keep` backups with such names stay.
    """
    if keep is not None and (keep < 1 or not url.endswith("/")):
        raise errors.InvalidArgument("keep needs a URL that ends with /, and is at least 1")
    directory, name = _split(url, datetime.now(UTC))
    objects = _core.ObjectFiles(directory)
    with tempfile.TemporaryDirectory(prefix="mqcore-backup-") as spool:
        file = Path(spool) / name
        make(file)
        objects.send(name, str(file), progress or _silent)
    if keep is not None:
        kept = [other for other in objects.names() if _NAME.fullmatch(other)]
        for obsolete in kept[:-keep]:
            objects.delete(obsolete)
    return f"{directory}/{name}"


@contextmanager
def fetched(url: str, *, as_of: datetime | None, progress: Copied | None) -> Iterator[Path]:
    """Receive a backup into a temporary file.

    If `url` ends with ``/``, it is the newest backup or restore point there, or the newest one of `as_of` or before.
    """
    if not url.endswith("/"):
        if as_of is not None:
            raise errors.InvalidArgument("as_of chooses among backups: name a URL that ends with /")
        directory, name = _split(url, datetime.now(UTC))
        with tempfile.TemporaryDirectory(prefix="mqcore-restore-") as spool:
            file = Path(spool) / name
            _core.ObjectFiles(directory).receive(name, str(file), progress or _silent)
            yield file
        return
    directory = url.rstrip("/")
    objects = _core.ObjectFiles(directory)
    complete = _newest(objects.names(), as_of)
    point = _newest_point(objects, as_of)
    if point is None and complete is None:
        until = "" if as_of is None else f" of {as_of.isoformat()} or before"
        raise errors.DataDirMissing(f"there is no backup{until} at {directory}/")
    with tempfile.TemporaryDirectory(prefix="mqcore-restore-") as spool:
        if point is not None and (complete is None or _time(complete) <= point.moment):
            place = Path(spool)
            objects.receive_restore_point(point.number, spool, progress or _silent)
        else:
            assert complete is not None
            place = Path(spool) / complete
            objects.receive(complete, str(place), progress or _silent)
        yield place


def _newest(names: list[str], as_of: datetime | None) -> str | None:
    """Return the name of the newest complete backup."""
    limit = datetime.max.replace(tzinfo=UTC) if as_of is None else as_of.astimezone(UTC)
    found = [name for name in names if _NAME.fullmatch(name) and _time(name) <= limit]
    return found[-1] if found else None


def _time(name: str) -> datetime:
    match = _NAME.fullmatch(name)
    assert match is not None
    return datetime.strptime(match[1], _TIME).replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Point:
    number: int
    moment: datetime


def _newest_point(objects: _core.ObjectFiles, as_of: datetime | None) -> _Point | None:
    numbers = objects.restore_points()
    if not numbers:
        return None
    row = (
        objects.restore_point(numbers[-1])
        if as_of is None
        else objects.find_restore_point(numbers, _milliseconds(as_of.astimezone(UTC)))
    )
    return None if row is None else _Point(row[0], _moment(row[1]))


def _milliseconds(time: datetime) -> int:
    # In whole numbers: a float may be just below the millisecond, and would choose the restore point before it.
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments that can be restored from a place on object storage."""

    backups: tuple[datetime, ...]
    """Times of complete backups, oldest first."""
    restore_points: int
    """Number of restore points of a continuous backup."""
    oldest: datetime | None
    """The oldest restore point; ``None`` if there is none."""
    newest: datetime | None
    """The newest restore point; ``None`` if there is none."""
    bytes: int | None
    """Size of the files of the newest restore point; ``None`` if there is none."""


def moments(url: str) -> Moments:
    """Return what can be restored from a URL that ends with ``/``."""
    if not url.endswith("/"):
        raise errors.InvalidArgument(f"{url} is one object; the URL of a place with backups ends with /")
    objects = _core.ObjectFiles(url.rstrip("/"))
    backups = tuple(_time(name) for name in objects.names() if _NAME.fullmatch(name))
    numbers = objects.restore_points()
    while numbers:
        try:
            _, oldest, _ = objects.restore_point(numbers[0])
        except errors.DataDirMissing:
            # The broker has removed it meanwhile, as too old.
            del numbers[0]
            continue
        _, newest, size = objects.restore_point(numbers[-1])
        return Moments(backups, len(numbers), _moment(oldest), _moment(newest), size)
    return Moments(backups, 0, None, None, None)


def _split(url: str, now: datetime) -> tuple[str, str]:
    """Return the URL of the directory, and the name."""
    directory, _, name = url.rpartition("/")
    if not name:
        name = f"mqcore-{now.strftime(_TIME)[:-3]}Z.tar.zst"
    if not name.endswith((".tar", ".tar.zst")):
        raise errors.ConfigError(
            f"a backup on object storage is one object: end the URL with .tar.zst, or with / for a name by time, "
            f"not {name!r}"
        )
    return directory, name


def _silent(_done: int, _total: int | None) -> None:
    pass
