"""A disk whose syncs take long: a library that `mqcore serve` loads in front of the C library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int file) {
    const char *gate = getenv("SLOW_SYNC_GATE"), *delay = getenv("SLOW_SYNC_MILLISECONDS");
    while (gate && access(gate, F_OK) == 0) usleep(1000);
    if (delay) usleep(atoi(delay) * 1000);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file);
}
"""


def slow_sync(directory: Path, *, gate: Path | None = None, milliseconds: int = 0) -> dict[str, str]:
    """The environment of a broker whose `fdatasync` takes `milliseconds`, and does not return while `gate` exists."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    source, library = directory / "slow_sync.c", directory / "slow_sync.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(library), "SLOW_SYNC_MILLISECONDS": str(milliseconds)}
    return environment | ({"SLOW_SYNC_GATE": str(gate)} if gate else {})
