"""The original EventMQ 0.3.13 from the package index, unchanged, in an environment of its own; and an older libzmq."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from served import ROOT, clean_environment

CACHE = ROOT / ".pytest_cache" / "eventmq"
"""Directory of environments, kept between runs."""

ORIGINAL = (("--no-deps", "--require-hashes", "-r", str(ROOT / "requirements" / "eventmq.lock")),)
"""The package with what it needs today; its own pins are of 2019."""

OLDER_LIBZMQ = (("pyzmq==24.0.1",),)
"""libzmq 4.3.4."""


def environment(name: str, installs: Sequence[Sequence[str]]) -> Path:
    """The interpreter of an environment with these packages; made once. Skips the test where they cannot be had."""
    place = CACHE / name
    python = place / "bin" / "python"
    done = place / "installed"
    if not done.exists():
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        for packages in installs:
            command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
            result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if result.returncode != 0:
                pytest.skip(f"{' '.join(packages)} cannot be installed here: {result.stderr.strip()[-300:]}")
        done.touch()
    return python


JOBS = textwrap.dedent(
    """
    import os
    import time


    def write(name, text):
        with open(os.path.join(os.environ["JOBS_OUT"], name), "a") as file:
            file.write(text + "\\n")
        return text.upper()


    def boom():
        raise ValueError("boom")


    def slow(name, seconds):
        write(name, "began")
        time.sleep(seconds)
        write(name, "ended")
        return "slept"
    """
)
"""Functions of the jobs in the tests."""


@dataclass
class Original:
    """Programs of the original, pointed at our broker."""

    python: Path
    folder: Path
    sockets: dict[str, str]
    """By role: `tcp://host:port`."""

    def _environment(self, **more: str) -> dict[str, str]:
        backend = self.sockets["backend"]
        return clean_environment() | {
            "PYTHONPATH": str(self.folder),
            "JOBS_OUT": str(self.folder),
            "EVENTMQ_WAL": str(self.folder / "wal.log"),
            "EVENTMQ_FRONTEND_ADDR": self.sockets["frontend"],
            "EVENTMQ_WORKER_ADDR": backend,
            "EVENTMQ_WORKER_ADDR_DEFAULT": backend,
            "EVENTMQ_WORKER_ADDR_FAILOVER": backend,
            "EVENTMQ_SCHEDULER_ADDR": self.sockets["frontend"],
            "EVENTMQ_REDIS_STARTUP_ERROR_HARD_KILL": "false",
            **more,
        }

    @contextlib.contextmanager
    def program(self, name: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run one of its programs until the block ends; what it says goes to a file."""
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [self.python.parent / name],
                env=self._environment(**environment),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def job_manager(
        self, queues: str = '[[10, "default"]]', slots: int = 2
    ) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """Run `emq-jobmanager`."""
        return self.program("emq-jobmanager", EVENTMQ_QUEUES=queues, EVENTMQ_CONCURRENT_JOBS=str(slots))

    def run(self, code: str, limit: float = 40.0) -> str:
        """Run a program that uses the original's client, connected as `s`; what it prints."""
        head = f"""
            from eventmq.sender import Sender
            from eventmq.client.messages import defer_job, schedule
            s = Sender()
            s.connect({self.sockets["frontend"]!r})
        """
        whole = textwrap.dedent(head) + textwrap.dedent(code)
        result = subprocess.run(
            [self.python, "-W", "ignore", "-c", whole],
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    def command_line(self, *commands: str) -> str:
        """Pipe commands into `emq-cli`; what it prints."""
        result = subprocess.run(
            [self.python.parent / "emq-cli", "-a", self.sockets["admin"]],
            input="\n".join((*commands, "quit")) + "\n",
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return result.stdout

    def written(self, name: str) -> list[str]:
        """The lines that jobs wrote to a file."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def addresses(listeners: Sequence[str]) -> dict[str, str]:
    """By role: what ZeroMQ connects to."""
    found = {}
    for url in listeners:
        address, _, role = url.partition("://")[2].partition("?role=")
        if role:
            found[role] = f"tcp://{address}"
    return found


INSTALLING = frozenset({"original_python", "older_libzmq"})
"""Fixtures that may have to install something first, which no test's own time should pay for."""


@pytest.fixture(scope="session")
def original_python() -> Path:
    """The interpreter that has the original."""
    if sys.platform == "win32":
        pytest.skip("the original does not run on Windows")
    return environment("original", ORIGINAL)


@pytest.fixture(scope="session")
def older_libzmq() -> Path:
    """An interpreter that has an older libzmq."""
    return environment("libzmq-4.3.4", OLDER_LIBZMQ)
