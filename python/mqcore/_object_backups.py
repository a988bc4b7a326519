"""Backups on object storage: made and restored through a file of this machine."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqcore import _core, errors

if TYPE_CHECKING:
    from mqcore.progress import Copied

__all__ = ["fetched", "is_url", "send"]

_NAME: Final = re.compile(r"mqcore-(\d{8}T\d{6}Z)\.tar\.zst")
"""Names that are chosen here. Their order is that of time."""
_TIME: Final = "%Y%m%dT%H%M%SZ"


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

    If `url` ends with ``/``, it is the newest backup there, or the newest one that was begun at `as_of` or before.
    """
    if url.endswith("/"):
        directory = url.rstrip("/")
        name = _newest(_core.ObjectFiles(directory).names(), directory, as_of)
    elif as_of is not None:
        raise errors.InvalidArgument("as_of chooses among backups: name a URL that ends with /")
    else:
        directory, name = _split(url, datetime.now(UTC))
    with tempfile.TemporaryDirectory(prefix="mqcore-restore-") as spool:
        file = Path(spool) / name
        _core.ObjectFiles(directory).receive(name, str(file), progress or _silent)
        yield file


def _newest(names: list[str], directory: str, as_of: datetime | None) -> str:
    limit = None if as_of is None else as_of.astimezone(UTC).strftime(_TIME)
    found = [name for name in names if (match := _NAME.fullmatch(name)) and (limit is None or match.group(1) <= limit)]
    if not found:
        until = "" if as_of is None else f" of {as_of.isoformat()} or before"
        raise errors.DataDirMissing(f"there is no backup{until} at {directory}/")
    return found[-1]


def _split(url: str, now: datetime) -> tuple[str, str]:
    """Return the URL of the directory, and the name."""
    directory, _, name = url.rpartition("/")
    if not name:
        name = f"mqcore-{now.strftime(_TIME)}.tar.zst"
    if not name.endswith((".tar", ".tar.zst")):
        raise errors.ConfigError(
            f"a backup on object storage is one object: end the URL with .tar.zst, or with / for a name by time, "
            f"not {name!r}"
        )
    return directory, name


def _silent(_done: int, _total: int | None) -> None:
    pass
