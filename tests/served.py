"""A broker in a process of its own, and what else tests and fixtures of every directory begin with."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import mqcore
import programs

ROOT = Path(__file__).resolve().parent.parent
"""Root directory of the project."""

START_LIMIT = 20.0
"""Seconds that a broker process may take until it is ready; far more than it needs."""


DISK_MIB = 48
"""Capacity of the file system of `small_disk`."""


def clean_environment() -> dict[str, str]:
    """The environment without settings and contexts of mqcore, so that those of a developer do not change a test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MQCORE_")}
    return kept | {"XDG_CONFIG_HOME": os.path.join(tempfile.gettempdir(), "mqcore-tests-without-contexts")}


def wait_until(condition: Callable[[], bool], *, limit: float = 10.0, what: str = "the condition") -> None:
    """Poll until `condition()` is true; fail after `limit` seconds.

    A question that costs much, such as a scan of a table, is asked less often: what it waits for needs the processor.
    """
    deadline = time.monotonic() + limit
    while True:
        began = time.monotonic()
        if condition():
            return
        ended = time.monotonic()
        if ended > deadline:
            pytest.fail(f"{what} did not become true within {limit} s")
        time.sleep(min(max(0.01, 2 * (ended - began)), 1.0))


@dataclass
class ServedBroker:
    """A `mqcore serve` that runs, and what its ready line said."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    stderr_lines: list[str] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the TMQP listener."""
        host, _, port = self.ready["listeners"]["tmqp"].rpartition(":")
        return host, int(port)

    @property
    def url(self) -> str:
        """URL of the TMQP listener."""
        return f"tmqp://{self.ready['listeners']['tmqp']}"

    @property
    def admin_url(self) -> str:
        """URL of the admin side."""
        return f"http://{self.ready['admin']}"

    def terminate(self, limit: float = 15.0) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            threads = sorted(path.read_text().strip() for path in Path(f"/proc/{self.process.pid}/task").glob("*/comm"))
            pytest.fail(f"not stopped after {limit} s; threads: {threads}; it printed:\n{''.join(self.stderr_lines)}")


@contextlib.contextmanager
def serving(
    *arguments: str,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
    under: Sequence[str] = (),
) -> Iterator[ServedBroker]:
    """Run `mqcore serve` with these arguments until the block ends. Ports are free ones unless `--listen` is given.

    `under` is a command that runs it, and must leave it the process id.
    """
    ports = () if "--listen" in arguments or "--app" in arguments else ("--listen", "tmqp://127.0.0.1:0")
    command = [*under, sys.executable, "-m", "mqcore", "serve", *ports, *arguments]
    with started(command, environment or {}, cwd) as (process, ready, lines):
        yield ServedBroker(process, ready, lines)


@contextlib.contextmanager
def started(
    command: Sequence[str], environment: dict[str, str], cwd: Path | None, limit: float = START_LIMIT
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any], list[str]]]:
    """Run a program of mqcore's until the block ends: its process, the ready line, and what it writes to stderr."""
    process = programs.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment() | environment,
        cwd=cwd,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    # Read all the time, because a full pipe would stop the program.
    reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
    reader.start()
    guard = threading.Timer(limit, process.kill)
    guard.start()
    try:
        line = process.stdout.readline()
        guard.cancel()
        if not line:
            process.wait()
            reader.join()
            pytest.fail(f"{' '.join(command)} did not become ready: {''.join(lines)}")
        yield process, json.loads(line), lines
    except BaseException:
        # The program often knows why a test waited in vain.
        sys.stderr.writelines(["It printed:\n", *lines])
        raise
    finally:
        guard.cancel()
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


def tmqp_address(running: mqcore.Broker) -> tuple[str, int]:
    """Host and port of an embedded broker's first listener."""
    host, _, port = running.listeners[0].removeprefix("tmqp://").rpartition(":")
    return host, int(port)
