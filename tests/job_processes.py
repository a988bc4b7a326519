"""Workers in processes of their own, and the files that their jobs leave."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from served import ROOT, ServedBroker, started, wait_until

SAMPLES = ROOT / "tests" / "jobs"
"""Where `sample_jobs` is, which has to be importable by the same name here and in workers."""

START_LIMIT = 30.0
"""Seconds that a process may take until it is there; far more than it needs."""


@dataclass
class WorkerProcess:
    """A `mqcore worker` that runs."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    lines: list[str] = field(default_factory=list)

    def children(self) -> list[int]:
        """Processes that run its jobs."""
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = []
        for number in task.read_text().split():
            command = Path(f"/proc/{number}/cmdline").read_text()
            if "spawn_main" in command:
                found.append(int(number))
        return found

    def terminate(self, limit: float = 20.0) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit)


@contextlib.contextmanager
def working(url: str, *arguments: str, app: str | None = "sample_jobs:jobs") -> Iterator[WorkerProcess]:
    """Run `mqcore worker` until the block ends."""
    named = [] if app is None else [app]
    command = [sys.executable, "-m", "mqcore", "worker", *named, "--broker", url, *arguments]
    path = os.pathsep.join(filter(None, (str(SAMPLES), os.environ.get("PYTHONPATH"))))
    with started(command, {"PYTHONPATH": path}, SAMPLES, START_LIMIT) as (process, ready, lines):
        yield WorkerProcess(process, ready, lines)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


def lines_of(path: Path) -> list[str]:
    """The lines that jobs left."""
    return path.read_text().splitlines() if path.exists() else []


def until_lines(path: Path, count: int, limit: float = 20.0) -> list[str]:
    """Wait until jobs have left so many lines."""
    wait_until(lambda: len(lines_of(path)) >= count, limit=limit, what=f"{count} lines in {path.name}")
    return lines_of(path)


def broker_url(served: ServedBroker) -> str:
    """The URL of a `mqcore serve --listen emqp://127.0.0.1:0`, whose sockets each have a port of their own."""
    listeners = served.ready["listeners"]
    ports = [address.rpartition(":")[2] for name, address in listeners.items() if name.partition("-")[0] == "emqp"]
    backend, frontend, admin, _, subscribe = ports
    return f"emqp://127.0.0.1:{backend}?frontend={frontend}&admin={admin}&subscribe={subscribe}"
