"""The table of conformance cases in docs/protocols/tmqp.md says the truth about which test shows which case."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "protocols" / "tmqp.md"

CASES = 120


def rows() -> dict[int, str]:
    """The test column of each case."""
    found = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(case): tests for case, tests in found}


def claimed() -> dict[str, set[int]]:
    """The cases that each test here names in its docstring: `Twino cases 1, 2 and 3`."""
    claims = {}
    for file in HERE.glob("test_tmqp_*.py"):
        for item in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and item.name.startswith("test_"):
                text = " ".join((ast.get_docstring(item) or "").split())
                numbers = re.findall(r"Twino cases? (\d+(?:(?:, | and )\d+)*)", text)
                cases = {int(number) for group in numbers for number in re.findall(r"\d+", group)}
                claims[f"tests/protocols/{file.name}::{item.name}"] = cases
    return claims


def test_every_case_has_its_row_and_every_row_a_test_or_a_reason() -> None:
    table = rows()
    assert sorted(table) == list(range(1, CASES + 1))
    for case, tests in table.items():
        assert "`" in tests or "comes with" in tests, f"case {case} has neither a test nor a reason"


def test_the_table_names_the_tests_that_name_the_case() -> None:
    claims = claimed()
    for case, tests in rows().items():
        named = set(re.findall(r"`(tests/protocols/[^`]+)`", tests))
        assert named == {test for test, cases in claims.items() if case in cases}, f"case {case}"


def test_the_tests_in_rust_that_the_table_names_exist() -> None:
    for case, tests in rows().items():
        for crate, module, name in re.findall(r"`(session|wire) (\w+)::(\w+)`", tests):
            files = (ROOT / "rust" / f"mqcore-{crate}" / "tests").rglob(f"{module}.rs")
            assert any(f"fn {name}(" in path.read_text(encoding="utf-8") for path in files), f"case {case}: {name}"
