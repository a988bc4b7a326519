"""A test process that dies fails the test that it ran, and no other, and a timeout shows where that test was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from depth import by_depth

pytest.importorskip("xdist")

TESTS = 24
CONFTEST = """
from scheduling import GroupScheduling

def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)
"""
MODULE = f"""
import os
import pytest

@pytest.mark.parametrize("number", range({TESTS}))
def test_one(number):
    if number == int(os.environ["DIES_IN"]):
        os._exit(1)
"""


HANGS = """
import time
import pytest

@pytest.mark.timeout(1.5)
def test_that_hangs():
    time.sleep(30)
"""
REGISTERS = """
import timeouts

def pytest_configure(config):
    config.pluginmanager.register(timeouts)
"""


ALONE = {"PYTHONPATH": str(Path(__file__).parent), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run(directory: Path, conftest: str, module: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run these tests in two processes, without the plugins that they do not need."""
    (directory / "conftest.py").write_text(conftest)
    (directory / "test_numbers.py").write_text(module)
    plugins = [part for name in ("xdist", "pytest_timeout", "no:cacheprovider") for part in ("-p", name)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", *plugins, "--rootdir", str(directory), "."],
        cwd=directory,
        env={**os.environ, **ALONE, **environment},
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.mark.parametrize("number", by_depth([0, TESTS - 1], [0, TESTS // 2, TESTS - 2, TESTS - 1]))
def test_only_the_test_fails_in_which_a_process_dies(number: int, tmp_path: Path) -> None:
    done = run(tmp_path, CONFTEST, MODULE, DIES_IN=str(number))
    assert f"1 failed, {TESTS - 1} passed" in done.stdout, done.stdout
    assert f"crashed while running 'test_numbers.py::test_one[{number}]'" in done.stdout


def test_timeout_shows_where_the_test_was(tmp_path: Path) -> None:
    done = run(tmp_path, REGISTERS, HANGS)
    assert "1 failed" in done.stdout, done.stdout
    assert "in test_that_hangs" in done.stderr, done.stderr
