"""System calls that fail: a library that a program loads in front of the C library, and its control.

The library is compiled when a test first needs it. It maps a file that this module writes: which call on files below a
directory fails, with which error, and from which occurrence on.
"""

from __future__ import annotations

import atexit
import errno
import functools
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

CALLS: Final = (
    "open", "create", "read", "pread", "write", "pwrite", "fdatasync", "fsync", "fsync directory", "ftruncate",
    "fallocate", "unlink", "rename", "opendir", "mkdir",
)  # fmt: skip
"""The calls that can fail, as in shim.c. `create` is `open` of a file that may be new."""

ERRORS: Final = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EMFILE": errno.EMFILE, "EINTR": errno.EINTR, "short": 0}
"""The errors, and `short`: a call that transfers the first half only."""

_MANY = 2**31 - 1
_HEAD = struct.Struct("<IIIiiII")
_SIZE = _HEAD.size + 4 * len(CALLS) + 128


@functools.cache
def _library() -> Path:
    """Compile the library once for each test worker."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    library = Path(tempfile.mkdtemp(prefix="mqcore-faults-")) / "shim.so"
    atexit.register(shutil.rmtree, library.parent, ignore_errors=True)
    source = Path(__file__).with_name("shim.c")
    built = subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        pytest.skip(f"the C compiler cannot build the library: {built.stderr.strip()[:500]}")
    return library


class Faults:
    """Faults of the programs that run with `environment`, on files below `directory`."""

    def __init__(self, control: Path, directory: Path) -> None:
        control.write_bytes(bytes(_SIZE))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _SIZE)
        self.environment = {
            "LD_PRELOAD": str(_library()),
            "FAULTS_CONTROL": str(control),
            "FAULTS_DIRECTORY": os.fspath(directory),
        }
        """Environment of the programs."""

    def arm(self, call: str, error: str, *, skip: int = 0, count: int = _MANY, part: str = "") -> None:
        """From now on, let `count` calls fail after `skip` others, on paths with `part`. Count from 0 again."""
        self.disarm()
        traps = self.can_fail_fallocate
        self._control[:] = bytes(_SIZE)
        self._control[_SIZE - 128 : _SIZE - 128 + len(part)] = part.encode()
        _HEAD.pack_into(self._control, 0, 0, CALLS.index(call), ERRORS[error], skip, count, 0, traps)
        self._control[0] = 1

    def count(self) -> None:
        """From now on, count calls without a fault."""
        self.arm("open", "EIO", count=0)

    def disarm(self) -> None:
        """From now on, no call fails or is counted."""
        self._control[0] = 0

    @property
    def struck(self) -> int:
        """Number of calls that failed."""
        return int(_HEAD.unpack_from(self._control)[5])

    @property
    def can_fail_fallocate(self) -> bool:
        """Whether a program that has started can filter its own system calls, which `fallocate` needs."""
        return bool(_HEAD.unpack_from(self._control)[6])

    @property
    def seen(self) -> dict[str, int]:
        """Number of calls of each kind, without those that did not occur."""
        counts = struct.unpack_from(f"<{len(CALLS)}I", self._control, _HEAD.size)
        return {call: count for call, count in zip(CALLS, counts, strict=True) if count}
