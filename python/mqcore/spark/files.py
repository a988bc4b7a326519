"""The files of an archive, in a data directory or on object storage, as Spark's own Parquet relation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mqcore import _core, errors
from mqcore.spark.place import ObjectArchive, check_owner

if TYPE_CHECKING:
    import os

    from pyspark.sql import Column, DataFrame, SparkSession

    from mqcore.spark.origin import Ends

__all__ = ["FileList", "Table", "check_table", "newest_manifest", "table_schema"]

Table: TypeAlias = Literal["messages", "steps"]

_ATTEMPTS = 8
TABLES = frozenset({"messages", "steps"})
"""Tables of an archive."""
_LISTED_HERE = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_FILES_MAX = 10_000
"""Number of files beyond which listing them in tasks is faster than in the driver."""


def newest_manifest(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the newest manifest of an archive (format in docs/archive.md), or `None` if it has none.

    `directory` is the archive itself. Raises `DataDirUnreadable` for one that is damaged or of a later version.
    """
    for _ in range(_ATTEMPTS):
        paths = sorted((Path(directory) / "_manifests").glob("*.json"))
        if not paths:
            return None
        try:
            manifest: dict[str, Any] = json.loads(paths[-1].read_bytes())
        except FileNotFoundError:
            continue  # A newer manifest replaced it.
        except ValueError as error:
            raise errors.DataDirUnreadable(f"damaged manifest {paths[-1]}: {error}") from error
        if manifest.get("format") != "mqcore.archive/1":
            raise errors.DataDirUnreadable(f"unsupported format {manifest.get('format')!r} of manifest {paths[-1]}")
        return manifest
    raise errors.DataDirUnreadable(
        f"cannot read the manifests of {directory}: each was replaced during the read; retry"
    )


@dataclass(frozen=True)
class FileList:
    """The content of an archive at one moment."""

    root: Path | None
    """The archive in the data directory, if there is one."""
    name: str
    """The archive, for messages."""
    shards: Mapping[int, Mapping[str, Any]]
    """How far the archive extends, by shard, as in a manifest."""
    files: Sequence[Mapping[str, Any]]
    """Its files, as in a manifest. Paths are relative to `root`, or URLs."""

    @classmethod
    def of(cls, place: ObjectArchive | Path, options: Sequence[str] = ()) -> FileList | None:
        """Return the files of an archive, or of both archives of a data directory; `None` if there is none.

        `options` are further settings of the object store.

        Raises `DataDirUnreadable` for one that is damaged or of a later version, and its subclasses for object storage.
        """
        if isinstance(place, ObjectArchive):
            return cls._made(None, place.url, _objects(place.url, place.options))
        root = place / "archive"
        manifest = newest_manifest(root)
        location = place / "archive.json"
        if location.exists():
            known = json.loads(location.read_bytes())
            own = [f"{name}={value}" for name, value in known["options"].items()]
            manifest = _both(manifest, _objects(known["url"], [*own, *options]))
        return cls._made(root, str(root), manifest)

    @classmethod
    def _made(cls, root: Path | None, name: str, manifest: dict[str, Any] | None) -> FileList | None:
        if manifest is None:
            return None
        return cls(root, name, {int(shard): reach for shard, reach in manifest["shards"].items()}, manifest["files"])

    def extent(self, ends: Iterable[Ends], broker: str | None) -> tuple[dict[int, int], dict[int, int]]:
        """Return for each shard of a broker the first record in the archive, and the one after the last.

        `broker` is the address of the broker, if the archive may be that of another one; this raises `ConfigError`. A
        data directory can have an archive of a journal that was replaced.
        """
        journals = {end.shard: end.journal for end in ends}
        known = {}
        for shard, reach in self.shards.items():
            if broker is not None:
                check_owner(self.name, shard, reach["journal"], broker, journals.get(shard))
            if reach["journal"] == journals.get(shard):
                known[shard] = reach
        begins = {shard: int(known.get(shard, {}).get("begins", 0)) for shard in journals}
        return begins, {shard: int(known.get(shard, {}).get("notes", 0)) for shard in journals}

    @property
    def scheme(self) -> str | None:
        """Scheme of the URLs that Spark has to open; `None`: all files are local."""
        urls = (str(file["path"]) for file in self.files if ":/" in file["path"])
        url = next(urls, None)
        return None if url is None else _spelled(url).partition(":")[0]

    def rows(
        self, spark: SparkSession, table: Table, may_have: Callable[[Mapping[str, Any]], bool] = lambda _: True
    ) -> DataFrame:
        """Return the archived rows of a table, in the files that `may_have` selects.

        An interrupted round may have committed more to one of the tables. These rows are not part of the result.
        """
        schema = table_schema(table)
        files = [file for file in self.files if file["table"] == table and may_have(file)]
        if not files:
            return spark.createDataFrame([], schema)
        with _listed_in_driver(spark):
            # A file that another program has written can have several shards, and is then listed for each of them.
            paths = dict.fromkeys(self._path(file["path"]) for file in files)
            return spark.read.schema(schema).parquet(*paths).where(self._condition(files))

    def _path(self, path: str) -> str:
        if ":/" in path:
            return _spelled(path)
        assert self.root is not None
        return str(self.root / path)

    def _condition(self, files: Sequence[Mapping[str, Any]]) -> Column:
        from pyspark.sql import functions as f

        condition = f.lit(True)
        for shard, archived in self.shards.items():
            reach = int(archived["notes"])
            if any(file["shard"] == shard and file["max_note"] >= reach for file in files):
                condition = condition & ((f.col("shard") != shard) | (f.col("note") < reach))
        return condition


def _objects(url: str, options: Sequence[str]) -> dict[str, Any] | None:
    manifest = _core.object_archive_manifest(url, list(options))
    return None if manifest is None else json.loads(manifest)


def _both(earlier: dict[str, Any] | None, objects: dict[str, Any] | None) -> dict[str, Any] | None:
    """Object storage continues where the directory ends."""
    if objects is None or earlier is None:
        return objects or earlier
    for shard, reach in earlier["shards"].items():
        later = objects["shards"].setdefault(shard, reach)
        if later["journal"] == reach["journal"]:
            later["notes"] = max(later["notes"], reach["notes"])
            later["begins"] = 0
    objects["files"] = [*earlier["files"], *objects["files"]]
    return objects


def _spelled(url: str) -> str:
    """Return a URL as Spark needs it: Hadoop knows S3 as ``s3a``."""
    return url.replace("s3://", "s3a://", 1) if url.startswith("s3://") else url


def check_table(table: str) -> None:
    """Raise `ConfigError` for an unknown table of the archive."""
    if table not in TABLES:
        raise errors.ConfigError(f"unknown table {table!r}; use messages or steps")


def table_schema(table: str) -> Any:
    """Return the Spark schema of a table of the archive. Raises `ConfigError` for an unknown table."""
    from pyspark.sql.types import _parse_datatype_string

    check_table(table)
    return _parse_datatype_string(_MESSAGES if table == "messages" else _STEPS)


@contextmanager
def _listed_in_driver(spark: SparkSession) -> Iterator[None]:
    """Make Spark list files in the driver. For more than 32 files it would start a job, which takes longer."""
    before = spark.conf.get(_LISTED_HERE, None)
    spark.conf.set(_LISTED_HERE, str(_FILES_MAX))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_LISTED_HERE)
        else:
            spark.conf.set(_LISTED_HERE, before)


_PLACED = (
    "time timestamp, shard int, note bigint, position int, kind string, queue string, number bigint, message_id string"
)
_PRODUCER = "producer_id string, producer_name string, producer_type string, producer_protocol string"
_MESSAGES = (
    f"{_PLACED}, high_priority boolean, content_type int, {_PRODUCER}, headers array<struct<key:string,value:binary>>, "
    "header_bytes bigint, body binary, body_bytes bigint"
)
_STEPS = (
    f"{_PLACED}, attempt int, last boolean, reason string, target string, header_bytes bigint, body_bytes bigint, "
    f"{_PRODUCER}, consumer_id string, consumer_name string, consumer_type string, consumer_protocol string, "
    "missing bigint, messages bigint, numbers array<struct<first:bigint,last:bigint>>"
)
