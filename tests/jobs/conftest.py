"""Fixtures of the job tests: brokers, the original's among them, and the tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventmq_original import original_python
from job_processes import SAMPLES, START_LIMIT, answers, broker_url, working
from ports import free_ports
from served import clean_environment, serving, wait_until

__all__ = ["original_python"]

sys.path.insert(0, str(SAMPLES))


@pytest.fixture(scope="session")
def original_programs(original_python: Path) -> Path:
    """Path of the original's programs."""
    return original_python.parent


@pytest.fixture
def original(original_programs: Path, tmp_path: Path) -> Iterator[str]:
    """The original's router, unmodified; its URL."""
    backend, frontend, admin = free_ports(3)
    # By default it logs each message, which takes most of its time.
    (tmp_path / "quiet").mkdir()
    (tmp_path / "quiet" / "sitecustomize.py").write_text("import logging\nlogging.disable(logging.CRITICAL)\n")
    process = subprocess.Popen(
        [str(original_programs / "emq-router")],
        env=clean_environment()
        | {
            "EVENTMQ_BACKEND_ADDR": f"tcp://127.0.0.1:{backend}",
            "EVENTMQ_FRONTEND_ADDR": f"tcp://127.0.0.1:{frontend}",
            "EVENTMQ_ADMINISTRATIVE_ADDR": f"tcp://127.0.0.1:{admin}",
            "EVENTMQ_WAL": str(tmp_path / "wal.log"),
            "PYTHONPATH": str(tmp_path / "quiet"),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    try:
        for port in (backend, frontend, admin):
            wait_until(lambda port=port: answers(port), limit=START_LIMIT, what="the original's router")
        yield f"emqp://127.0.0.1:{backend}?frontend={frontend}&admin={admin}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def tasks() -> Iterator[Callable[[str], Any]]:
    """`sample_jobs`, with its jobs sent to the broker of this URL."""
    import sample_jobs

    def located(url: str) -> Any:
        sample_jobs.jobs.locate(url)
        return sample_jobs

    try:
        yield located
    finally:
        sample_jobs.jobs.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a broker with a data directory, for all tests of a module."""
    data = tmp_path_factory.mktemp("jobs") / "data"
    with serving("--listen", "emqp://127.0.0.1:0", "--data-dir", str(data)) as served:
        yield broker_url(served)


@pytest.fixture(scope="module")
def worker(url: str) -> Iterator[None]:
    """A worker of that broker."""
    with working(url, "--concurrency", "2"):
        yield


@pytest.fixture
def samples(url: str, tasks: Callable[[str], Any]) -> Any:
    """The tasks, with their jobs sent to that broker."""
    return tasks(url)
