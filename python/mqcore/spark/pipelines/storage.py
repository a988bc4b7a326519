"""Stored bytes of a history: journals by shard, and archives by queue. Does not need Spark."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mqcore import _core
from mqcore.spark.files import newest_manifest
from mqcore.spark.place import ObjectArchive, place_of

__all__ = ["Storage", "divided", "stored"]


@dataclass(frozen=True)
class Storage:
    """Stored bytes."""

    archive: Mapping[str, int]
    """Archive files by queue."""
    journals: Mapping[int, int]
    """Journals of shards."""
    shared: int
    """All other files: definitions, limits, schedules, manifests, and events of whole shards in the archive."""
    objects: int = 0
    """Archive on object storage, with its metadata and earlier snapshots. Its objects have rows of many queues."""

    @property
    def total(self) -> int:
        """All files of the directory, and all objects."""
        return sum(self.archive.values()) + sum(self.journals.values()) + self.shared + self.objects

    def with_objects_of(self, weights: Mapping[str, int]) -> Storage:
        """Divide the objects among queues in proportion to weights."""
        archive = Counter(self.archive)
        parts = divided(self.objects, weights)
        archive.update(parts)
        return replace(self, archive=dict(archive), objects=self.objects - sum(parts.values()))


def stored(source: str | os.PathLike[str]) -> Storage:
    """Measure a data directory, or an archive on object storage. A running broker may change it meanwhile."""
    place = place_of(source)
    if isinstance(place, ObjectArchive):
        return Storage({}, {}, 0, _core.object_archive_bytes(place.url, list(place.options)))
    location = place / "archive.json"
    objects = 0
    if location.exists():
        known = json.loads(location.read_bytes())
        objects = _core.object_archive_bytes(
            known["url"], [f"{name}={value}" for name, value in known["options"].items()]
        )
    return replace(_of_directory(place), objects=objects)


def _of_directory(data_dir: Path) -> Storage:
    archive: Counter[str] = Counter()
    manifest = newest_manifest(data_dir / "archive") or {"files": []}
    listed: dict[Path, str | None] = {}
    for file in manifest["files"]:
        queue = None if file.get("channel") is None else f"{file['channel']}/{file['queue_id']}"
        listed[data_dir / "archive" / file["path"]] = queue
    journals: Counter[int] = Counter()
    shared = 0
    for path, size in _files(data_dir):
        first = path.relative_to(data_dir).parts[0]
        shard = re.fullmatch(r"shard-([0-9]+)", first)
        queue = listed.get(path)
        if queue is not None:
            archive[queue] += size
        elif shard is not None:
            journals[int(shard[1])] += size
        else:
            shared += size
    return Storage(dict(archive), dict(journals), shared)


def _files(data_dir: Path) -> Iterator[tuple[Path, int]]:
    """Each file and the bytes that it occupies: at most its length, because segments are preallocated."""
    for folder, _, names in os.walk(data_dir):
        for name in names:
            path = Path(folder, name)
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            blocks = getattr(stat, "st_blocks", None)
            yield path, stat.st_size if blocks is None else min(stat.st_size, 512 * blocks)


def divided(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Divide bytes in proportion to weights, so that the parts add up to the total. Empty without any weight."""
    sum_ = sum(weights.values())
    if sum_ == 0:
        return {}
    found, passed, given = {}, 0, 0
    for name in sorted(weights):
        passed += weights[name]
        reach = total * passed // sum_
        found[name], given = reach - given, reach
    return found
