"""The data: every file of the running Python's standard library."""

from __future__ import annotations

import hashlib
import sysconfig
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Key", "Page", "digest", "expected", "read_library"]

Key = tuple[str, str]
"""A file's path within the library, and the SHA-256 of its content."""

# Installed beside the library or generated from it, but not part of it.
_OUTSIDE = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Page:
    """One file."""

    path: str
    body: bytes
    sha256: str

    @property
    def key(self) -> Key:
        """Identifies the file and its content."""
        return self.path, self.sha256


def digest(body: bytes | memoryview) -> str:
    """SHA-256 of the content, in hexadecimal."""
    return hashlib.sha256(body).hexdigest()


def read_library(limit: int | None = None) -> list[Page]:
    """Read every file of the standard library, in the order of their paths; only the first `limit` of them if given."""
    root = Path(sysconfig.get_path("stdlib"))
    pages = []
    for file in sorted(root.rglob("*")):
        inside = file.relative_to(root)
        # `config-*` contains the interpreter as a library for C programs.
        if _OUTSIDE.intersection(inside.parts) or inside.parts[0].startswith("config-") or not file.is_file():
            continue
        body = file.read_bytes()
        pages.append(Page(inside.as_posix(), body, digest(body)))
        if len(pages) == limit:
            break
    return pages


def expected(pages: Iterable[Page]) -> Counter[Key]:
    """Each file once."""
    return Counter(page.key for page in pages)
