"""Where a history is: a data directory, or an archive on object storage."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mqcore import errors

__all__ = ["ObjectArchive", "archive_url", "check_owner", "local_path", "place_of"]

_STORES: Final = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss"})
"""Schemes of URLs that name an archive on object storage."""
_URL: Final = re.compile(r"(?:^|/)([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""A URL, also one that `pathlib` has made a relative path of. A single letter is a drive."""


@dataclass(frozen=True)
class ObjectArchive(os.PathLike[str]):
    """An archive on object storage, and its broker, for everything that takes a data directory.

    ::

        source = mqcore.spark.ObjectArchive("s3://company-data/mqcore/orders", admin="http://broker:2627")
        mqcore.spark.pipelines.run("lifecycle", spark, source, "reports")
    """

    url: str
    """``archive_url`` of the broker."""
    admin: str | None = None
    """Admin side of the broker, for rows that are not archived yet; `None`: the history ends where the archive ends."""
    token: str | None = field(default=None, repr=False)
    """Token for the admin side."""
    options: tuple[str, ...] = field(default=(), repr=False)
    """Settings ``name=value`` of the object store. They override the environment."""

    def __fspath__(self) -> str:
        return self.url


def archive_url(path: str) -> str | None:
    """Return the URL of an archive on object storage that a path names, also if `pathlib` has shortened it.

    A ``file:`` URL names one if the directory has the tables of an archive and is not a data directory. `None`: it is
    something else.
    """
    url = _URL.search(path)
    if url is None:
        return None
    scheme, rest = url.groups()
    if scheme.lower() in _STORES:
        return f"{scheme.lower()}://{rest}"
    if scheme.lower() != "file":
        return None
    directory = Path(local_path("path", path))
    is_archive = (directory / "messages" / "metadata").is_dir() and not (directory / "format").exists()
    return directory.as_uri() if is_archive else None


def local_path(name: str, path: str) -> str:
    """Return the path of a ``file:`` URL, and other paths as absolute ones.

    Raises `ConfigError` for other URLs. This is the only place that decides which URLs can be read.
    """
    url = _URL.search(path)
    if url is None:
        return str(Path(path).absolute())
    scheme, rest = url.groups()
    if scheme.lower() == "file":
        return f"/{rest}" if url.start() else urlsplit(path).path
    raise errors.ConfigError(
        f"{name} must be a directory that the driver and every executor see under the same path, not {path!r}: the "
        f"file system {scheme} cannot be read. Mount it, copy the directory, or read the running broker with the "
        "option admin, such as http://HOST:2627"
    )


def place_of(source: str | os.PathLike[str]) -> ObjectArchive | Path:
    """Return the archive that a URL names, or the absolute path of a data directory.

    Raises `ConfigError` for other URLs.
    """
    if isinstance(source, ObjectArchive):
        return source
    url = archive_url(os.fspath(source))
    return Path(local_path("data_dir", os.fspath(source))) if url is None else ObjectArchive(url)


def check_owner(archive: str, shard: int, archived: str, broker: str, journal: str | None) -> None:
    """Raise `ConfigError` if a shard of an archive is that of another broker, or of an earlier journal.

    `archived` and `journal` are the journals' identities; `None`: the broker has no such shard.
    """
    if journal == archived:
        return
    here = "no such shard" if journal is None else f"the journal {journal}" if journal else "no history"
    raise errors.ConfigError(
        f"the archive {archive} belongs to another broker than {broker}: shard {shard} of the archive has the journal "
        f"{archived}, and the broker has {here}. Use the archive_url of this broker, or the admin side of the other one"
    )
