"""A pytest plugin that tells `sitecustomize.py` which test runs, also in programs that outlive a test."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

_RECORD: Final = Path(os.environ["MUTANTS_RECORD"])
_PROCESS: Final = str(os.getpid())
# Programs inherit both. Their own environment names the test that started them, not the one that uses them.
os.environ["MUTANTS_PROCESS"] = _PROCESS
os.environ["MUTANTS_TEST"] = ""
_number = 0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give the test a short name."""
    global _number
    _number += 1
    name = f"{_PROCESS}-{_number}"
    with (_RECORD / "tests").open("a", encoding="utf-8") as tests:
        tests.write(f"{name}\t{item.nodeid}\n")
    os.environ["MUTANTS_TEST"] = name
    (_RECORD / f"current.{_PROCESS}.new").write_text(name, encoding="utf-8")
    (_RECORD / f"current.{_PROCESS}.new").replace(_RECORD / f"current.{_PROCESS}")
    return (yield)
