"""Mutants of Python modules: which defects there are, and which tests run their lines."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from served import ROOT

MODULE = """
import logging

_LOG = logging.getLogger("a")
_MOST = 10


def is_short(text: str, most: int = 5) -> bool:
    if not text:
        raise ValueError("no text")
    _LOG.info("%d", len(text))
    return len(text) < most and text != "x"
"""
CHANGES = [
    (5, "10  ->  11"),
    (8, "5  ->  6"),
    (9, "if not text:  ->  if not not text:"),
    (9, "not text  ->  text"),
    (10, "raise ValueError('no text')  ->  pass"),
    (12, "return len(text) < most and text != 'x'  ->  return None"),
    (12, "len(text) < most and text != 'x'  ->  len(text) < most or text != 'x'"),
    (12, "len(text) < most  ->  len(text) <= most"),
    (12, "text != 'x'  ->  text == 'x'"),
]


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of `make mutants`."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("mutants")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "short.py"
    path.write_text(MODULE)
    return path


def test_each_mutant_has_one_defect_and_logs_and_types_have_none(mutants: ModuleType, module: Path) -> None:
    found = mutants.mutants_of(module)
    assert sorted((mutant.line, mutant.change) for mutant in found) == sorted(CHANGES)
    plain = mutants.ast.unparse(mutants.ast.parse(MODULE)).splitlines()
    for mutant in found:
        changed = [line for line in difflib.ndiff(plain, mutant.source().splitlines()) if line[:2] in {"- ", "+ "}]
        assert len(changed) == 2, mutant.change


def test_tests_of_a_mutant_run_its_line_or_its_function_the_quickest_first(
    mutants: ModuleType, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", module.parent)
    durations = {"tests/a.py::slow": 3.0, "tests/a.py::quick": 1.0, "tests/b.py::other": 2.0}
    lines = {"short.py": {"12": {"tests/a.py::slow", "tests/a.py::quick"}, "9": {mutants.IMPORT}}}
    reach = mutants.Reach(durations, lines)
    of = {mutant.line: reach.tests_of(mutant) for mutant in mutants.mutants_of(module)}
    assert of[12] == ["tests/a.py::quick", "tests/a.py::slow"]
    assert of[10] == of[8] == of[12], "no test runs the raise or the default alone: those of the function"
    assert of[9] == ["tests/a.py::quick", "tests/b.py::other", "tests/a.py::slow"], "runs while modules are imported"
    reach.save(module.with_suffix(".json"))
    again = mutants.Reach.load(module.with_suffix(".json"))
    assert (again.durations, again.lines) == (durations, lines)
