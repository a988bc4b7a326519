"""The job of the demonstration: the SHA-256 of one file of the standard library. Workers load `jobs` from here."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from mqcore.demo.library import digest
from mqcore.jobs import Jobs, current

__all__ = ["Hashed", "hash_file", "jobs"]

jobs = Jobs()


@dataclass(frozen=True, slots=True)
class Hashed:
    """Result of a job."""

    sha256: str
    attempt: int
    """Number of the attempt; above 1 if a worker died with the job before."""
    worker: int
    """Process id of the worker, the parent of the process that ran the job."""


@jobs.task(queue="library-hashes")
def hash_file(path: str) -> Hashed:
    """Hash one file; `path` is within the standard library."""
    body = (Path(sysconfig.get_path("stdlib")) / path).read_bytes()
    return Hashed(digest(body), current().attempt, os.getppid())
