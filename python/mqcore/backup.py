"""Consistent copies of the saved data of a running broker, and restoring them.

::

    from mqcore.backup import backup, restore

    backup("monday.tar.zst", url="http://127.0.0.1:2627")
    restore("monday.tar.zst", "/var/lib/mqcore-new")

A backup holds every message and definition that was confirmed as saved before it began, and the schedules and results
of jobs and the limits of listeners with ``persist=on`` as they are at that moment. It does not hold users and tokens,
the audit log, the archive, or messages that wait for upstream brokers. It is a directory, a ``.tar`` or a ``.tar.zst``,
and complete with its ``manifest.json``, which names each file with its length and SHA-256.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self

from mqcore import _core, _object_backups, errors
from mqcore._http import AdminClient, Rejections
from mqcore._object_backups import Moments
from mqcore.config import Duration
from mqcore.progress import Copied

if TYPE_CHECKING:
    from mqcore.journal import Finding
    from mqcore.tls import TLSConfig

__all__ = ["BackedUp", "Copied", "Moments", "Restored", "backup", "moments", "restore"]

_SCHEMA: Final = "mqcore.backup/1"
_MANIFEST: Final = "manifest.json"
_MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
_NAME: Final = re.compile(r"format(\.copy)?|(shard-\d{1,5}|limits|schedules)/(\d{10}\.segment|catalog)")
"""Files of a backup. No name leads out of the directory that it is restored to."""
_FILE_BYTES_MAX: Final = 0xFFFF_FFFF
"""No segment is longer."""
_PIECE: Final = 1024 * 1024
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
"""The first bytes of a compressed file."""


@dataclass(frozen=True, slots=True)
class BackedUp:
    """The result of `backup`."""

    path: str
    files: int
    bytes: int
    """Bytes of its files before compression."""
    messages: int | None
    """Saved messages in it; ``None`` if the broker was stopped. `restore` counts them."""
    created: datetime
    """When it began, in UTC."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of `restore`."""

    data_dir: str
    shards: int
    files: int
    bytes: int
    messages: int
    """Saved messages that are not settled."""
    definitions: int
    """Channels and queues."""
    limits: int
    """Saved limits."""
    schedules: int
    """Schedules of jobs."""
    created: datetime
    """When the backup began, in UTC."""
    findings: tuple[Finding, ...]
    """The findings of `mqcore.journal.verify` in the new directory: damage of the broker's files before the backup."""

    @property
    def is_damaged(self) -> bool:
        """Whether confirmed messages were lost before the backup."""
        return any(finding.is_damage for finding in self.findings)


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    bytes: int
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Manifest:
    created: datetime
    shards: int
    messages: int | None
    files: dict[str, _File]


def backup(
    to: str | os.PathLike[str],
    *,
    url: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
    keep: int | None = None,
    progress: Copied | None = None,
) -> BackedUp:
    """Copy the saved state of a broker, without disturbing it, into a new directory, ``.tar`` or ``.tar.zst``.

    This state is messages, definitions, limits, schedules and job results, without users and tokens, the audit log, the
    archive, and messages that wait for upstream brokers.

    `to` may also be an object: ``s3://BUCKET/NAME.tar.zst``, or a URL of Google or Azure. If it ends with ``/``, the
    name is the time, and `keep` is the number of backups that stay there; the oldest ones are deleted. Credentials come
    from the environment variables of the vendors. The backup is made in the directory for temporary files first.

    The broker is that whose admin side is at `url`, or the one that runs on `data_dir` of this machine; if none runs
    there, the directory itself is read. A broker with users wants the `token` of one who may administer it.
    `timeout` is the longest silence of the broker. An ``https://`` URL is verified with the system's authorities, or
    those of `tls` or of ``?ca=FILE`` in the URL. `to` appears when it is complete.

    Raises `ConfigError` if `to` exists, `ConnectFailed` and `ConnectionLost`, `Unacceptable` if the broker keeps
    nothing, `Unauthorized`, `Busy` while another backup is made, `DataDirFull`, and what `mqcore.journal.segments`
    raises.
    """
    if (url is None) == (data_dir is None):
        raise errors.InvalidArgument(
            "a backup is of the broker at a url, or of the one on a data_dir: name one of them"
        )
    if _object_backups.is_url(to):
        return _send(
            str(to), url=url, data_dir=data_dir, token=token, timeout=timeout, tls=tls, keep=keep, progress=progress
        )
    if keep is not None:
        raise errors.InvalidArgument("keep is for backups on object storage")
    path = Path(to)
    check_new(path)
    if data_dir is not None:
        try:
            stopped = _core.BackupArchive.of_stopped(os.fspath(data_dir))
        except errors.DataDirBusy:
            url = _admin_of(Path(data_dir))
        else:
            return take(stopped, path, progress)
    assert url is not None
    with _download(url, token, timeout, tls) as (source, total):
        return _take(source, total, path, progress)


def _send(to: str, *, keep: int | None, progress: Copied | None, **source: Any) -> BackedUp:
    """Make a backup and send it to object storage."""
    made: list[BackedUp] = []
    place = _object_backups.send(
        to, lambda file: made.append(backup(file, progress=progress, **source)), keep=keep, progress=progress
    )
    return replace(made[0], path=place)


def take(archive: _core.BackupArchive, to: Path, progress: Copied | None) -> BackedUp:
    """Write an archive of this process to `to`, and release its files."""
    try:
        return _take(archive, archive.file_bytes, to, progress)
    finally:
        archive.close()


def check_new(to: Path) -> None:
    """Raise `ConfigError` if `to` exists and is not an empty directory."""
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise errors.ConfigError(f"{to} exists and is not empty; name a new path")


def restore(
    source: str | os.PathLike[str],
    data_dir: str | os.PathLike[str],
    *,
    as_of: datetime | None = None,
    progress: Copied | None = None,
) -> Restored:
    """Create a data directory from a backup.

    `source` may also be an object, as for `backup`. If its URL ends with ``/``, it is the newest backup there, or the
    newest one of the moment `as_of` or before. A time without a zone is local time. Restore points of the broker's
    ``backup_url`` count as backups.

    All checksums are verified, and the new directory is read as `mqcore.journal.verify` does, before it appears at
    `data_dir`, which must not exist or be empty. It is the same journal as the one that was copied: start only one of
    the two brokers where clients could take them for one, or where both would make the same runs of schedules.

    Raises `DataDirMissing` if `source` is not a backup, `DataDirDamaged` if it is incomplete or was changed,
    `ConfigError` if something is at `data_dir`, and `DataDirFull`.
    """
    from mqcore import journal

    if _object_backups.is_url(source):
        with _object_backups.fetched(str(source), as_of=as_of, progress=progress) as fetched:
            return restore(fetched, data_dir, progress=progress)
    if as_of is not None:
        raise errors.InvalidArgument("as_of is for backups on object storage")
    path, target = Path(source), Path(data_dir)
    check_new(target)
    total = _input_size(path)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.part")
    with _cleared(unfinished, target):
        _make_directory(unfinished)
        manifest = _unpack(path, unfinished, total, progress)
        for file in manifest.files.values():
            _finish_file(unfinished / file.name, file.length)
        verified = journal.verify(unfinished)
        _sync_tree(unfinished)
        if target.exists():
            target.rmdir()
        unfinished.rename(target)
        _sync_directory(target.parent)
    return Restored(
        data_dir=str(target),
        shards=manifest.shards,
        files=len(manifest.files),
        bytes=sum(file.bytes for file in manifest.files.values()),
        messages=verified.listing.live,
        definitions=verified.listing.definitions,
        limits=verified.listing.limits,
        schedules=verified.listing.schedules,
        created=manifest.created,
        findings=verified.findings,
    )


def moments(url: str) -> Moments:
    """Return the moments that `restore` can choose from, at a URL of object storage that ends with ``/``.

    ::

        found = moments("s3://company-backups/orders/")
        print(found.restore_points, found.oldest, found.newest)

    Raises `InvalidArgument` for the URL of one object, `ConfigError` for an invalid URL, `ArchiveDenied` and
    `ArchiveUnreachable`.
    """
    return _object_backups.moments(url)


def _take(source: _Source, total: int, to: Path, progress: Copied | None) -> BackedUp:
    """Write the archive that `source` sends, and verify it."""
    unfinished = to.with_name(f"{to.name}.{os.getpid()}.part")
    with _cleared(unfinished, to):
        if to.name.endswith((".tar", ".tar.zst")):
            with _Sink(unfinished, compressed=to.name.endswith(".zst")) as sink:
                manifest = _read_archive(_Tee(source, sink), None, total, progress)
                sink.finish()
        else:
            _make_directory(unfinished)
            manifest = _read_archive(source, unfinished, total, progress)
            for file in manifest.files.values():
                _finish_file(unfinished / file.name, file.bytes)
            _finish_file(unfinished / _MANIFEST, None)
            _sync_tree(unfinished)
            if to.exists():
                to.rmdir()
        unfinished.rename(to)
        _sync_directory(to.parent)
    size = sum(file.bytes for file in manifest.files.values())
    return BackedUp(str(to), len(manifest.files), size, manifest.messages, manifest.created)


def _read_archive(source: _Source, into: Path | None, total: int | None, progress: Copied | None) -> _Manifest:
    """Read a tar archive to its end, keep its files if there is a place for them, and compare with its manifest."""
    seen: dict[str, tuple[int, str]] = {}
    manifest: _Manifest | None = None
    done = 0
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=_PIECE) as archive:  # type: ignore[call-overload]
            for member in archive:
                content = archive.extractfile(member)
                if content is None or manifest is not None:
                    raise errors.DataDirDamaged(f"{member.name} does not belong into a backup")
                if member.name == _MANIFEST:
                    text = content.read(_MANIFEST_BYTES_MAX)
                    manifest = _manifest(text)
                    if into is not None:
                        with open(into / _MANIFEST, "wb", opener=_open_private) as file:
                            file.write(text)
                    continue
                if not _NAME.fullmatch(member.name):
                    raise errors.DataDirDamaged(f"{member.name} does not belong into a backup")
                seen[member.name] = _copy(content, into and into / member.name)
                done += member.size
                if progress is not None:
                    progress(done, total)
    except tarfile.TarError as error:
        raise errors.DataDirDamaged(f"the backup is not whole: {error}") from error
    if manifest is None:
        raise errors.DataDirDamaged("the backup is not whole: its manifest is missing, so its making was interrupted")
    # Padding may follow the end of the archive.
    while source.read(_PIECE):
        pass
    _compare(manifest, seen)
    return manifest


def _unpack(path: Path, into: Path, total: int | None, progress: Copied | None) -> _Manifest:
    """Copy the files of a backup of any form, verified."""
    if not path.exists():
        raise errors.DataDirMissing(f"there is no backup at {path}")
    if not path.is_dir():
        with path.open("rb") as plain:
            compressed = plain.read(4) == _ZSTD
            plain.seek(0)
            manifest = _read_archive(_Compressed(path) if compressed else plain, into, total, progress)
        (into / _MANIFEST).unlink()
        return manifest
    try:
        manifest = _manifest((path / _MANIFEST).read_bytes())
    except FileNotFoundError:
        raise errors.DataDirMissing(f"{path} is not a backup: {_MANIFEST} is missing") from None
    seen: dict[str, tuple[int, str]] = {}
    done = 0
    for name, file in manifest.files.items():
        try:
            with (path / name).open("rb") as content:
                seen[name] = _copy(content, into / name)
        except FileNotFoundError:
            continue
        done += file.bytes
        if progress is not None:
            progress(done, total)
    _compare(manifest, seen)
    return manifest


class _Compressed:
    """A compressed file, whose damage shows itself while it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = _core.ZstdReader(str(path))

    def read(self, size: int, /) -> bytes:
        try:
            return self._reader.read(size)
        except OSError as error:
            raise errors.DataDirDamaged(f"{self._path} is not whole: {error}") from error


class _Sink:
    """A file that is being written, compressed or not."""

    def __init__(self, path: Path, *, compressed: bool) -> None:
        self._plain: IO[bytes] | None = None if compressed else _create_private(path)
        self._compressed = _core.ZstdWriter(str(path)) if compressed else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_unused: object) -> None:
        if self._plain is not None:
            self._plain.close()
        self._plain = self._compressed = None

    def write(self, data: bytes) -> None:
        if self._plain is not None:
            self._plain.write(data)
        elif self._compressed is not None:
            self._compressed.write(data)

    def finish(self) -> None:
        if self._plain is not None:
            self._plain.flush()
            os.fsync(self._plain.fileno())
        elif self._compressed is not None:
            self._compressed.finish()


class _Tee:
    """Copies the bytes that are read to a sink."""

    def __init__(self, source: _Source, sink: _Sink) -> None:
        self._source = source
        self._sink = sink

    def read(self, size: int, /) -> bytes:
        data = self._source.read(size)
        self._sink.write(data)
        return data


def _copy(content: IO[bytes], to: Path | None) -> tuple[int, str]:
    """Read a file to its end, write it if there is a place for it, and return its length and its sum."""
    digest, length = hashlib.sha256(), 0
    if to is None:
        while piece := content.read(_PIECE):
            digest.update(piece)
            length += len(piece)
        return length, digest.hexdigest()
    to.parent.mkdir(mode=0o700, exist_ok=True)
    with open(to, "wb", opener=_open_private) as file:
        while piece := content.read(_PIECE):
            digest.update(piece)
            length += len(piece)
            file.write(piece)
    return length, digest.hexdigest()


def _manifest(text: bytes) -> _Manifest:
    try:
        found: dict[str, Any] = json.loads(text)
        if found["schema"] != _SCHEMA:
            raise errors.DataDirUnreadable(f"the backup is {found['schema']}; this version of mqcore reads {_SCHEMA}")
        files = [_File(**file) for file in found["files"]]
        created = datetime.fromtimestamp(found["created_ms"] / 1000, UTC)
        manifest = _Manifest(created, found["shards"], found["messages"], {file.name: file for file in files})
        if _version(found["version"]) > _version(_core.__version__):
            raise errors.DataDirUnreadable(
                f"mqcore {found['version']} made the backup; this is {_core.__version__}; use a newer mqcore"
            )
        if not all(_NAME.fullmatch(file.name) and 0 <= file.bytes <= file.length for file in files):
            raise ValueError("a file that does not belong here")
        longest = max((file.length for file in files), default=0)
        if longest > _FILE_BYTES_MAX:
            raise ValueError(f"a file of {longest} bytes; the limit is {_FILE_BYTES_MAX}")
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise errors.DataDirDamaged(f"the manifest of the backup cannot be read: {error}") from error
    return manifest


def _version(text: object) -> tuple[int, ...]:
    """The numbers of a version of mqcore. Raises `ValueError` if it is none."""
    release = re.match(r"\d+(\.\d+)*", str(text))
    if release is None:
        raise ValueError(f"{text!r} is not a version of mqcore")
    return tuple(int(number) for number in release[0].split("."))


def _compare(manifest: _Manifest, seen: dict[str, tuple[int, str]]) -> None:
    for name, file in manifest.files.items():
        if name not in seen:
            raise errors.DataDirDamaged(f"the backup is not whole: {name} is missing")
        if seen[name] != (file.bytes, file.sha256):
            raise errors.DataDirDamaged(f"the backup is damaged: {name} is not what was written")
    if extra := seen.keys() - manifest.files.keys():
        raise errors.DataDirDamaged(f"the backup is damaged: its manifest does not know {min(extra)}")


def _input_size(path: Path) -> int | None:
    """Number of bytes to read, for a progress bar; ``None`` if only reading a compressed file would show it."""
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and file.name != _MANIFEST)
        return None if path.suffix == ".zst" else path.stat().st_size
    except OSError:
        return None


def _open_private(path: str, flags: int) -> int:
    """Open a file that only its owner can access if it is new: it holds messages."""
    return os.open(path, flags, 0o600)


def _create_private(path: Path) -> IO[bytes]:
    return os.fdopen(_open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")


def _make_directory(path: Path) -> None:
    """Create a directory that only its owner can access. Parents get the modes that the umask allows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700)


def _finish_file(path: Path, length: int | None) -> None:
    """Give a file the length that its journal expects, with zeros, and make it durable."""
    with path.open("r+b") as file:
        if length is not None:
            file.truncate(length)
        os.fsync(file.fileno())


def _sync_tree(root: Path) -> None:
    """Make the names of all files below a directory durable."""
    for path in [*root.rglob("*"), root]:
        if path.is_dir():
            _sync_directory(path)


def _sync_directory(path: Path) -> None:
    if os.name != "posix":
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextmanager
def _cleared(unfinished: Path, target: Path) -> Iterator[None]:
    """Leave nothing half-done behind, and say in words that there was no space."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise errors.DataDirFull(f"there is no space for {target}; nothing was left there") from error
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
        else:
            unfinished.unlink(missing_ok=True)


def _admin_of(data_dir: Path) -> str:
    """Return the URL of the admin side of the broker that runs on a directory."""
    try:
        return (data_dir / "admin").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise errors.DataDirBusy(
            f"the broker that runs on {data_dir} has no admin side; start it with --admin, "
            "or call Broker.backup in the program that runs it"
        ) from None


@contextmanager
def _download(url: str, token: str | None, timeout: Duration, tls: TLSConfig | None) -> Iterator[tuple[_Source, int]]:
    """The body of a backup that a broker sends, and the bytes of its files."""
    admin = AdminClient(url, token=token, timeout=timeout, tls=tls)
    rejections: Rejections = {
        "nothing-kept": lambda message: errors.Unacceptable(message, 406),
        "not-found": lambda message: errors.NotFound(f"{url} makes no backups: {message}", 404),
        "method-not-allowed": lambda message: errors.NotFound(f"{url} makes no backups: {message}", 404),
    }
    headers = {"Mqcore-Request": "backup"}
    with admin.stream("GET", "/backup", headers, rejections=rejections, otherwise=errors.DataDirUnreadable) as body:
        yield body, int(body.headers.get("Mqcore-Backup-Bytes", "0"))
