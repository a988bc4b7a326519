"""A copy of the project in which tests run against mutants."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "python" / "mqcore"
RECORDER: Final = ROOT / "tools" / "recorder"

# Seconds of tests that run the mutated code, before all tests of the target run.
NEAREST_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Outcome:
    """The end of a run of tests."""

    passed: bool
    seconds: float
    why: list[str]
    """The tests that failed, or another reason."""
    durations: dict[str, float]
    """Seconds of each test."""


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Ends a process that leads a session, and the processes that it started there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def quickest(tests: Iterable[str], durations: dict[str, float]) -> list[str]:
    """The quickest of `tests`, which together take at most `NEAREST_SECONDS`, and at least one."""
    found: list[str] = []
    total = 0.0
    for test in sorted(tests, key=lambda test: (durations[test], test)):
        total += durations[test]
        if found and total > NEAREST_SECONDS:
            break
        found.append(test)
    return found


def tracked_files() -> list[Path]:
    """The files of the project, relative to its directory."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [Path(name) for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


class Copy:
    """The project in a directory of its own, whose files can be replaced."""

    def __init__(self, directory: Path, built: Iterable[Path] = ()) -> None:
        """Copies the tracked files and those of `built`, relative to the project."""
        self.directory = directory
        for path in {*tracked_files(), *built}:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            # Not the times: what cargo built from another copy must look older than these files.
            shutil.copyfile(ROOT / path, directory / path)
            shutil.copymode(ROOT / path, directory / path)

    def run(
        self, tests: list[str], processes: int, limit: float | None, environment: dict[str, str] | None = None
    ) -> Outcome:
        """Runs Python tests until one fails; all of them without a limit."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes)]
        command += ["--dist", "loadscope", "--durations=0", "--durations-min=0", *tests]
        if limit is not None:
            command.append("-x")
        paths = os.pathsep.join(filter(None, [str(self.directory / "python"), (environment or {}).get("PYTHONPATH")]))
        fixed = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""}
        begin = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env={**os.environ, **(environment or {}), **fixed},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                kill_group(process)
                return Outcome(False, time.monotonic() - begin, [f"time limit of {limit:.0f} s"], {})
            except BaseException:
                kill_group(process)
                raise
        if process.returncode in {4, 5} and "found" in output + errors:
            raise RuntimeError(f"pytest does not find some of {tests}: {output[-2000:]}{errors[-2000:]}")
        durations: dict[str, float] = {}
        for match in re.finditer(r"^([0-9.]+)s (?:setup|call|teardown) +(\S.*)$", output, re.MULTILINE):
            durations[match[2]] = durations.get(match[2], 0.0) + float(match[1])
        failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", output, re.MULTILINE)
        why = failed or [f"exit code {process.returncode}", errors[-2000:]]
        return Outcome(process.returncode == 0, time.monotonic() - begin, why, durations)
