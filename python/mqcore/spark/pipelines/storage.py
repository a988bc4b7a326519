"""Bytes on disk of a data directory: journals by shard, and the archive by queue. Does not need Spark."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mqcore.spark.archive import newest_manifest

__all__ = ["Storage", "divided", "stored"]


@dataclass(frozen=True)
class Storage:
    """Bytes on disk."""

    archive: Mapping[str, int]
    """Archive files by queue."""
    journals: Mapping[int, int]
    """Journals of shards."""
    shared: int
    """All other files: definitions, limits, schedules, manifests, and events of whole shards in the archive."""

    @property
    def total(self) -> int:
        """All files of the directory."""
        return sum(self.archive.values()) + sum(self.journals.values()) + self.shared


def stored(data_dir: Path) -> Storage:
    """Measure a data directory. A running broker may change it meanwhile."""
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
