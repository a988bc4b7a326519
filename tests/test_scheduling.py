"""A test process that dies fails the test that it ran, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("number", [0, TESTS // 2, TESTS - 2, TESTS - 1])
def test_only_the_test_fails_in_which_a_process_dies(number: int, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_numbers.py").write_text(MODULE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "DIES_IN": str(number), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert f"1 failed, {TESTS - 1} passed" in done.stdout, done.stdout
    assert f"crashed while running 'test_numbers.py::test_one[{number}]'" in done.stdout
