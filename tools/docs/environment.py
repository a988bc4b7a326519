"""The environment of the site's tools, with the versions and hashes of requirements/docs.lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


class Unavailable(Exception):
    """The tools cannot be installed on this machine; the text says why."""


def prepare(directory: Path, lock: Path) -> Path:
    """Install the tools into a virtual environment, unless the lock has not changed; return its Python.

    Uses uv if installed, which is faster. Raises `Unavailable`, for example without a network.
    """
    python = directory / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    installed = directory / ".installed.lock"
    if python.exists() and installed.exists() and installed.read_bytes() == lock.read_bytes():
        return python
    uv = shutil.which("uv")
    if uv:
        commands = [
            [uv, "venv", "--quiet", "--clear", "--no-python-downloads", "--python", sys.executable, str(directory)],
            [uv, "pip", "install", "--quiet", "--python", str(python), "--require-hashes", "-r", str(lock)],
        ]
    else:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        commands = [
            [sys.executable, "-m", "venv", "--clear", str(directory)],
            [*pip, "--require-hashes", "-r", str(lock)],
        ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
            raise Unavailable(f"cannot install {lock.name}: {lines[-1].strip()}")
    shutil.copyfile(lock, installed)
    return python
