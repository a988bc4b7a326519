"""Runs kombu's and Celery's own integration tests, unchanged, against mqcore: `make celery-suites`.

It downloads both source distributions, in the versions that are installed, starts a broker for each suite, and prints
how many tests passed, and which failed. kombu's suite has one module of test classes for each transport; the one for
mqcore is below. Celery's takes the URLs of broker and backend from the environment.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from celery_programs import Place
from ports import free_port
from served import ROOT, clean_environment

KOMBU_MODULE = """
import os

import kombu
import mqcore.celery.registration
import pytest

from . import common


@pytest.fixture
def connection():
    return kombu.Connection(os.environ["TEST_BROKER"])


@pytest.fixture
def invalid_connection():
    return kombu.Connection("mqcore://localhost:12345")


@pytest.fixture
def failover_connection():
    return kombu.Connection("mqcore://localhost:12345;" + os.environ["TEST_BROKER"])


for name in (
    "BasicFunctionality", "BaseExchangeTypes", "BaseTimeToLive", "BasePriority", "BaseFailover", "BaseMessage",
    "BaseEventLoop",
):
    if hasattr(common, name):
        globals()[f"test_{name}"] = type(f"test_{name}", (getattr(common, name),), {"__module__": __name__})
"""

# Test modules of Celery that test another backend, and need its server or its library.
FOREIGN = ("backend", "cache_backend", "database_backend", "redis_backend")

KNOWN_FAILURES = {
    "test_Inspect::test_scheduled": "the broker holds tasks with an ETA, so workers have none to list",
    "test_chord::test_error_propagates_from_chord": "issue 6437 of Celery; expected to fail with Redis, too",
    "test_worker::test_pidbox_reset_after_repeated_control_errors": "flaky, as Celery marks it; passes alone",
    "test_task_replacement::test_replaced_task_nesting_level_0": "sets a variable that a fast worker has read before",
    "test_trace_log_arguments::test_task_success": "waits 10 ms for logs, too short on a busy machine",
    "test_trace_log_arguments::test_task_failed": "waits 10 ms for logs, too short on a busy machine",
    "test_mem_leak_in_exception_handling::test_mem_leak_unhandled_exceptions": "its broker is memory://",
}
"""Tests that fail here, with the reason."""

# Without a Redis server, this test leaves a handler behind that blocks all later ones.
NEEDS_REDIS = "test_chord_header_id_duplicated_on_rabbitmq_msg_duplication"


@dataclass
class Outcome:
    """The result of one suite."""

    name: str
    version: str
    passed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def unexpected(self) -> dict[str, str]:
        """Failures that are not known."""
        return {name: text for name, text in self.failed.items() if name not in KNOWN_FAILURES}

    def report(self) -> str:
        """Text for people."""
        lines = [f"{self.name} {self.version}: {self.passed} passed, {len(self.failed)} failed"]
        lines += [f"  failed {name}: {KNOWN_FAILURES.get(name, text)}" for name, text in sorted(self.failed.items())]
        lines += [f"  skipped {count}: {reason}" for reason, count in sorted(self.skipped.items())]
        return "\n".join(lines)


def download(name: str, directory: Path) -> Path:
    """Download and unpack the source distribution of the installed version."""
    version = importlib.metadata.version(name)
    unpacked = directory / f"{name}-{version}"
    if unpacked.exists():
        return unpacked
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        subprocess.run([sys.executable, "-m", "ensurepip"], check=True, capture_output=True)
    command = [*pip, "download", "--quiet", "--no-binary", ":all:", "--no-deps", f"{name}=={version}"]
    subprocess.run([*command, "--dest", str(directory)], check=True)
    with tarfile.open(directory / f"{name}-{version}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    # The tests must use the installed package.
    shutil.rmtree(unpacked / name)
    return unpacked


def plugins(directory: Path) -> Path:
    """Install what Celery's tests need beside pytest, apart from the environment of mqcore's own tests."""
    home = directory / "plugins"
    if not home.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(home)]
        # One of its modules imports the client of Redis even if there is no server.
        subprocess.run([*pip, "pytest-rerunfailures", "pytest-subtests", "redis"], check=True)
    return home


@contextlib.contextmanager
def redis() -> Iterator[str | None]:
    """A Redis server, in which some of Celery's tests note what ran: its port, or `None` if there is none here."""
    unpacked = ROOT / "target" / "bench-peers" / "debian" / "redis-server"
    program = shutil.which("redis-server") or next(map(str, unpacked.glob("usr/bin/redis-server")), None)
    if program is None:
        yield None
        return
    port = str(free_port())
    libraries = os.pathsep.join(map(str, [*unpacked.glob("usr/lib/*-linux-gnu"), *unpacked.glob("lib/*-linux-gnu")]))
    command = [program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    environment = os.environ | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()


def run(name: str, source: Path, arguments: list[str], extra: Path) -> Outcome:
    """Run tests of a suite against a broker of its own."""
    place, junit = Place(), source / "junit.xml"
    environment = clean_environment() | {
        "TEST_BROKER": place.urls[0],
        "TEST_BACKEND": place.urls[1],
        "PYTHONPATH": str(extra),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:xdist", "--rootdir", str(source)]
    with place.serve(), redis() as redis_port:
        if redis_port is None:
            options += ["--deselect", f"t/integration/test_canvas.py::test_chain::{NEEDS_REDIS}"]
        else:
            environment["REDIS_PORT"] = redis_port
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"--junit-xml={junit}", *arguments],
            cwd=source,
            env=environment,
            check=False,
        )
    outcome = Outcome(name, importlib.metadata.version(name))
    for case in ElementTree.parse(junit).iter("testcase"):
        test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        broken, skipped = case.find("failure"), case.find("skipped")
        broken = case.find("error") if broken is None else broken
        if broken is not None:
            outcome.failed[test] = (broken.get("message") or "").splitlines()[0][:200]
        elif skipped is not None:
            reason = (skipped.get("message") or "").splitlines()[0][:100]
            outcome.skipped[reason] = outcome.skipped.get(reason, 0) + 1
        else:
            outcome.passed += 1
    return outcome


def suites(directory: Path, select: list[str]) -> list[Outcome]:
    """Run both suites; `select` are further arguments of pytest for Celery's."""
    directory.mkdir(parents=True, exist_ok=True)
    extra = plugins(directory)
    kombu = download("kombu", directory)
    (kombu / "t" / "integration" / "test_mqcore.py").write_text(KOMBU_MODULE)
    outcomes = [run("kombu", kombu, ["-c", "setup.cfg", "t/integration/test_mqcore.py"], extra)]
    celery = download("celery", directory)
    ignored = [f"--ignore=t/integration/test_{name}.py" for name in FOREIGN]
    arguments = ["-c", "pyproject.toml", "-p", "celery.contrib.pytest", "--timeout", "180", *ignored]
    outcomes.append(run("celery", celery, [*arguments, *(select or ["t/integration"])], extra))
    return outcomes


def main() -> None:
    """Run both suites, print the results, and exit with 1 if a test failed that is not known to fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=ROOT / "target" / "celery-suites")
    parser.add_argument("select", nargs="*", help="arguments of pytest for Celery's suite [t/integration]")
    arguments = parser.parse_args()
    os.environ.pop("PYTEST_ADDOPTS", None)
    outcomes = suites(arguments.directory, arguments.select)
    print("\n".join(outcome.report() for outcome in outcomes))
    sys.exit(any(outcome.unexpected for outcome in outcomes))


if __name__ == "__main__":
    main()
