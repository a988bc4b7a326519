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
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int concerns(int file) {
    const char *part = getenv("SLOW_SYNC_PART");
    char link[64], path[4096];
    if (!part) return 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = 0;
    return strstr(path, part) != NULL;
}

int fdatasync(int file) {
    static int count;
    const char *gate = getenv("SLOW_SYNC_GATE"), *delay = getenv("SLOW_SYNC_MILLISECONDS");
    const char *every = getenv("SLOW_SYNC_EVERY");
    if (concerns(file)) {
        while (gate && access(gate, F_OK) == 0) usleep(1000);
        if (delay && __sync_add_and_fetch(&count, 1) % (every ? atoi(every) : 1) == 0) usleep(atoi(delay) * 1000);
    }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file);
}
"""


def slow_sync(
    directory: Path, *, gate: Path | None = None, milliseconds: int = 0, every: int = 1, part: str = ""
) -> dict[str, str]:
    """The environment of a broker with slow syncs.

    Each `every`-th `fdatasync` takes `milliseconds`, and none returns while `gate` exists. `part`: only those of files
    with this text in their paths.
    """
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    source, library = directory / "slow_sync.c", directory / "slow_sync.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    environment = {
        "LD_PRELOAD": str(library),
        "SLOW_SYNC_MILLISECONDS": str(milliseconds),
        "SLOW_SYNC_EVERY": str(every),
    }
    if gate:
        environment["SLOW_SYNC_GATE"] = str(gate)
    if part:
        environment["SLOW_SYNC_PART"] = part
    return environment
