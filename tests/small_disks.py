"""File systems that are full soon, and files that fill them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


class CannotMount(Exception):
    """This system, or this user, mounts no file system."""


@contextlib.contextmanager
def mounted(place: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a file system of this size in memory. Raises `CannotMount`."""
    if sys.platform != "linux":
        raise CannotMount("only Linux mounts a tmpfs")
    place.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "mqcore-test", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotMount(f"nothing mounts here: {error}") from error
    if done.returncode != 0:
        raise CannotMount(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextlib.contextmanager
def mounted_or_skipped(place: Path, mebibytes: int) -> Iterator[Path]:
    """The same for a test, which is skipped where nothing can be mounted."""
    try:
        with mounted(place, mebibytes) as disk:
            yield disk
    except CannotMount as error:
        pytest.skip(str(error))


def occupy(filler: Path, *, leave: int) -> int:
    """Let a file take all space of its file system but this; return how much it takes."""
    with filler.open("ab") as file:
        space = os.statvfs(filler)
        size = file.tell() + max(0, space.f_bavail * space.f_frsize - leave)
        if size > file.tell():
            with contextlib.suppress(OSError):  # the broker may need some of it first
                os.posix_fallocate(file.fileno(), 0, size)
        return filler.stat().st_size
