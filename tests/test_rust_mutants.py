"""The switches with which `make mutants` builds all mutants of a crate at once."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from served import ROOT

SWITCH: Final = """
pub fn selected(number: usize) -> bool {
    std::env::var("MUTANT").is_ok_and(|value| value == number.to_string())
}
"""
SOURCE: Final = """
fn main() {
    println!("{} {} {}", are_short(["a", "{"], 2), are_short(["ab", "{"], 2), are_short(["abc", "}"], 2));
}

/// A comment with a brace: {
const fn are_short<'a>(texts: [&'a str; { 1 + 1 }], limit: usize) -> bool
where
    'a: 'static,
{
    let brace = '}'; // {
    texts[0].len() < limit && texts[1].len() == brace.len_utf8()
}
"""


@pytest.fixture
def rust_mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of `make mutants` for crates."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("rust_mutants")


def position(offset: int) -> dict[str, int]:
    """A place of `SOURCE` as cargo-mutants describes it: lines and columns count from 1."""
    return {"line": SOURCE.count("\n", 0, offset) + 1, "column": offset - SOURCE.rfind("\n", 0, offset)}


@pytest.mark.skipif(shutil.which("rustc") is None, reason="needs rustc")
def test_an_environment_variable_selects_the_mutant_that_runs(rust_mutants: ModuleType, tmp_path: Path) -> None:
    """Without it, the program does what its source says."""
    function = SOURCE[SOURCE.index("const fn are_short") :].rstrip()
    body = function[function.index("let brace") : -1].rstrip()

    def mutant(number: int, part: str, replacement: str) -> object:
        places = []
        for text in (function, part):
            begin = SOURCE.index(text)
            where = {"start": position(begin), "end": position(begin + len(text))}
            assert rust_mutants.offsets(SOURCE, where) == (begin, begin + len(text))
            places.append((begin, begin + len(text)))
        return rust_mutants.RustMutant(number, "crate", "name", Path("main.rs"), *places, replacement)

    mutants = [mutant(0, "< limit", "<= limit"), mutant(1, body, "true"), mutant(2, "== brace", "!= brace")]
    text, regions = rust_mutants.switched(SOURCE, mutants)
    assert [part.mutants for part in regions if len(part.mutants) == 1] == [(each,) for each in mutants]
    (tmp_path / "switch.rs").write_text(SWITCH)
    (tmp_path / "main.rs").write_text(text)
    options = ["--edition", "2024", "--cap-lints", "allow"]
    switch = ["--crate-type", "rlib", "--crate-name", "mqcore_switch", "switch.rs"]
    program = ["--extern", "mqcore_switch=libmqcore_switch.rlib", "main.rs"]
    for arguments in (switch, program):
        subprocess.run(["rustc", *options, *arguments], cwd=tmp_path, check=True)

    def output(**variables: str) -> str:
        return subprocess.check_output([tmp_path / "main"], env={**os.environ, **variables}, text=True).strip()

    assert output() == "true false false"
    assert output(MUTANT="0") == "true true false"
    assert output(MUTANT="1") == "true true true"
    assert output(MUTANT="2") == "false false false"


def test_survivors_of_another_run_are_found_after_their_lines_moved(
    rust_mutants: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A name says the line and column of the mutant, which change when code before it does."""
    file = "rust/mqcore-tls/src/lib.rs"

    def described(line: int, change: str) -> dict[str, object]:
        span = {"start": {"line": line, "column": 1}, "end": {"line": line, "column": 2}}
        return {"name": f"{file}:{line}:1: {change}", "file": file, "function": None, "span": span, "replacement": ""}

    now = [
        described(line, change) for line, change in ((2, "delete ! in a"), (3, "delete ! in b"), (4, "delete - in c"))
    ]
    monkeypatch.setattr(rust_mutants, "listed", lambda crate: now)
    output = tmp_path / "output"
    output.write_text(
        f"mqcore-tls: 3 of 3 mutants\n  caught    {file}:1:1: delete - in c  [a test]\n"
        f"  SURVIVED  {file}:1:1: delete ! in a\n  SURVIVED  {file}:3:1: delete ! in b\n"
    )
    again = rust_mutants.sampled(["mqcore-tls"], 40, 7, rust_mutants.survivors_of(output))
    assert sorted(mutant.name for mutant in again) == [now[0]["name"], now[1]["name"]]


def test_mutant_of_a_function_that_must_be_const_is_blamed_and_no_other_of_its_name(rust_mutants: ModuleType) -> None:
    """A switch reads the environment, so its function is no longer `const`, and the compiler rejects its callers."""
    workspace = importlib.import_module("rust_workspace")

    def mutant(number: int, name: str) -> object:
        return rust_mutants.RustMutant(number, "crate", name, Path("src/filter.rs"), (0, 9), (4, 5), "")

    mutants = [
        mutant(0, "src/filter.rs:1:1: delete ! in Kind::of"),
        mutant(1, "src/filter.rs:2:1: delete ! in List<T>::of"),
    ]
    for called, blamed in (("Kind::of", 0), ("filter::List::<u8>::of", 1)):
        message = f"cannot call non-const associated function `{called}` in constants"
        error = {"message": message, "children": [], "spans": []}
        assert list(workspace.responsible(error, {}, mutants)) == [mutants[blamed]]
