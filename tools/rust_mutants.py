"""Mutants of crates: all of a sample in one build, each behind a switch.

cargo-mutants lists the mutants of a crate. Run by cargo-mutants, each of them would need a build of all programs that
contain the crate, and all their tests. Here, a function gets another body for each of its mutants, and an environment
variable selects the mutant that runs:

    fn has_room(&self) -> bool {
        if ::mqcore_switch::selected(17) { self.used <= self.max } else { self.used < self.max }
    }

The same switch records which tests run the function. A mutant meets only these tests: first the programs of cargo test,
then the Python tests, the quickest first. A mutant that does not compile behind a switch, such as one in a `const fn`,
is built on its own and meets all tests.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mutant_runs import RECORDER, ROOT, Copy, quickest

SWITCH_MANIFEST: Final = """\
[package]
name = "mqcore-switch"
version = "0.0.0"
edition = "2024"

[dependencies]
libc = "0.2"
"""
SWITCH: Final = """\
//! Selects a mutant, and records which mutated functions run.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

struct Switch {
    selected: Option<usize>,
    reached: &'static [AtomicU8],
}

static SWITCH: OnceLock<Switch> = OnceLock::new();

pub fn selected(number: usize) -> bool {
    let switch = SWITCH.get_or_init(|| Switch { selected: from_environment(), reached: shared_file().unwrap_or(&[]) });
    if let Some(reached) = switch.reached.get(number) {
        reached.store(1, Ordering::Relaxed);
    }
    switch.selected == Some(number)
}

fn from_environment() -> Option<usize> {
    std::env::var("MUTANT").ok()?.parse().ok()
}

/// One byte for each mutant, shared by all processes of a test.
fn shared_file() -> Option<&'static [AtomicU8]> {
    let file = OpenOptions::new().read(true).write(true).open(std::env::var_os("MUTANTS_REACHED")?).ok()?;
    let length = usize::try_from(file.metadata().ok()?.len()).ok()?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the file keeps its length, and the mapping stays until the process ends.
    unsafe {
        let address = libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
        (address != libc::MAP_FAILED).then(|| std::slice::from_raw_parts(address.cast::<AtomicU8>(), length))
    }
}
"""

# Parts of Rust code in which a brace has no meaning, and single characters.
TOKEN: Final = re.compile(r"""//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'|.""", re.DOTALL)


@dataclass(frozen=True)
class RustMutant:
    """One defect of a crate, as cargo-mutants describes it. Places are offsets in characters of the file."""

    number: int
    crate: str
    name: str
    file: Path
    function: tuple[int, int] | None
    """The function that contains it, with its signature."""
    place: tuple[int, int]
    """The text that `replacement` replaces."""
    replacement: str

    def applied(self, text: str, begin: int, end: int) -> str:
        """That part of the file with the defect."""
        return text[begin : self.place[0]] + self.replacement + text[self.place[1] : end]


@dataclass(frozen=True)
class Region:
    """A part of a file with switches, in bytes, for which these mutants are responsible."""

    begin: int
    end: int
    mutants: tuple[RustMutant, ...]


@dataclass
class Tested:
    """The end of the tests of a sample."""

    viable: int = 0
    survivors: list[RustMutant] = field(default_factory=list)


def listed(crate: str) -> list[dict[str, Any]]:
    """All mutants of a crate, by name."""
    command = ["cargo", "mutants", "--list", "--json", "--package", crate]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    return sorted(found, key=lambda each: str(each["name"]))


def sampled(crates: Iterable[str], count: int, seed: int) -> list[RustMutant]:
    """`count` mutants of each crate."""
    sample: list[RustMutant] = []
    for crate in crates:
        everything = listed(crate)
        chosen = random.Random(f"{seed} {crate}").sample(everything, min(count, len(everything)))
        print(f"{crate}: {len(chosen)} of {len(everything)} mutants", flush=True)
        for each in chosen:
            text = (ROOT / each["file"]).read_text(encoding="utf-8")
            function = each["function"] and offsets(text, each["function"]["span"])
            place = offsets(text, each["span"])
            sample.append(
                RustMutant(len(sample), crate, each["name"], Path(each["file"]), function, place, each["replacement"])
            )
    return sample


def offsets(text: str, span: dict[str, dict[str, int]]) -> tuple[int, int]:
    """Begin and end of a span; its lines and columns count from 1."""
    begins = [0, *(match.end() for match in re.finditer("\n", text))]
    begin, end = (begins[span[side]["line"] - 1] + span[side]["column"] - 1 for side in ("start", "end"))
    return begin, end


def body_of(text: str, function: tuple[int, int]) -> int:
    """Where the body of a function begins: at the first brace outside of parentheses and brackets."""
    depth = 0
    for token in TOKEN.finditer(text, *function):
        match token[0]:
            case "(" | "[":
                depth += 1
            case ")" | "]":
                depth -= 1
            case "{" if depth == 0:
                return token.start()
    raise ValueError(f"a function without a body: {text[function[0] : function[0] + 80]!r}")


def switched(text: str, mutants: list[RustMutant]) -> tuple[str, list[Region]]:
    """A file in which a switch precedes each body that has mutants, and who is responsible for which part."""
    functions: dict[tuple[int, int], list[RustMutant]] = {}
    for mutant in mutants:
        if mutant.function is not None:
            functions.setdefault(mutant.function, []).append(mutant)
    parts: list[str] = []
    regions: list[Region] = []
    size = 0

    def put(part: str, responsible: tuple[RustMutant, ...] = ()) -> None:
        nonlocal size
        parts.append(part)
        begin, size = size, size + len(part.encode())
        if responsible:
            regions.append(Region(begin, size, responsible))

    done = 0
    for function, own in sorted(functions.items()):
        begin, end = body_of(text, function), function[1]
        put(text[done : function[0]])
        put(text[function[0] : begin], tuple(own))
        put("{ ", tuple(own))
        for mutant in own:
            put(f"if ::mqcore_switch::selected({mutant.number}) {{", tuple(own))
            put(mutant.applied(text, begin, end), (mutant,))
            put("} else ", tuple(own))
        put(text[begin:end] + " }", tuple(own))
        done = end
    put(text[done:])
    return "".join(parts), regions


def is_switchable(mutant: RustMutant, text: str, others: Iterable[RustMutant]) -> bool:
    """Whether a function contains the mutant that none of the functions of `others` is a part of."""
    if mutant.function is None or mutant.place[0] < body_of(text, mutant.function):
        return False
    begin, end = mutant.function
    return not any(
        other.function != mutant.function and begin < other.function[1] and other.function[0] < end
        for other in others
        if other.file == mutant.file and other.function is not None
    )


@dataclass(frozen=True)
class TestProgram:
    """A program that cargo test runs."""

    crate: str
    path: Path
    directory: Path

    @property
    def name(self) -> tuple[str, str]:
        """The crate and the name of the program, which stay when it is built again."""
        return self.crate, self.path.name.rpartition("-")[0]


class Workspace:
    """A copy of the project that has mutants."""

    def __init__(self, directory: Path, crates: Iterable[str], seed: int) -> None:
        self.copy = Copy(directory)
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "mutants"
        self.target = target
        self.environment = {
            **os.environ,
            "CARGO_TARGET_DIR": str(target),
            "CARGO_INCREMENTAL": "1",
            "RUSTFLAGS": "--cap-lints allow",
            "PYO3_PYTHON": sys.executable,
            "PYO3_BUILD_EXTENSION_MODULE": "1",
            "MQCORE_TEST_DEPTH": "quick",
            "MQCORE_SEED": str(seed),
        }
        switch = directory / "rust" / "mqcore-switch"
        (switch / "src").mkdir(parents=True)
        (switch / "Cargo.toml").write_text(SWITCH_MANIFEST, encoding="utf-8")
        (switch / "src" / "lib.rs").write_text(SWITCH, encoding="utf-8")
        for crate in crates:
            manifest = directory / "rust" / crate / "Cargo.toml"
            text = manifest.read_text(encoding="utf-8")
            line = '[dependencies]\nmqcore-switch = { path = "../mqcore-switch" }\n'
            manifest.write_text(text.replace("[dependencies]\n", line, 1), encoding="utf-8")

    def write(self, mutants: list[RustMutant]) -> dict[Path, list[Region]]:
        """Puts these mutants, and no others, behind switches."""
        regions = {}
        for file in {mutant.file for mutant in mutants}:
            text = (ROOT / file).read_text(encoding="utf-8")
            changed, regions[file] = switched(text, [mutant for mutant in mutants if mutant.file == file])
            self.replace(file, changed)
        return regions

    def restore(self, files: Iterable[Path]) -> None:
        """Removes all mutants from these files."""
        for file in set(files):
            self.replace(file, (ROOT / file).read_text(encoding="utf-8"))

    def replace(self, file: Path, text: str) -> None:
        """Writes a file if it differs, because cargo looks at its time."""
        path = self.copy.directory / file
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")

    def messages(self, *command: str) -> Iterator[dict[str, Any]]:
        """The reports of cargo as JSON."""
        done = subprocess.run(
            ["cargo", *command, "--message-format=json"],
            cwd=self.copy.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            # Errors of mutants are expected, and are among the messages.
            stderr=subprocess.DEVNULL,
            check=False,
        )
        for line in done.stdout.splitlines():
            if line.startswith(b"{"):
                yield json.loads(line)

    def errors(self) -> list[dict[str, Any]]:
        """The errors of the compiler in all crates and their tests."""
        found = (
            each["message"]
            for each in self.messages("check", "--quiet", "--all-targets", "--keep-going")
            if each["reason"] == "compiler-message"
        )
        return [message for message in found if message["level"] == "error" and message["spans"]]

    def build(self) -> list[TestProgram]:
        """Builds the extension module and all test programs."""
        command = ["--package", "mqcore-python", "--lib", "--crate-type", "cdylib", "--features", "shared-with-tests"]
        subprocess.run(
            ["cargo", "rustc", "--quiet", *command], cwd=self.copy.directory, env=self.environment, check=True
        )
        suffix = {"darwin": "lib_core.dylib"}.get(sys.platform, "lib_core.so")
        module = self.copy.directory / "python" / "mqcore" / "_core.abi3.so"
        module.unlink(missing_ok=True)
        module.write_bytes((self.target / "debug" / suffix).read_bytes())
        programs = []
        for each in self.messages("test", "--quiet", "--no-run"):
            if each["reason"] == "compiler-artifact" and each["profile"]["test"] and each["executable"]:
                directory = Path(each["manifest_path"]).parent
                programs.append(TestProgram(directory.name, Path(each["executable"]), directory))
        if not programs:
            sys.exit("the tests do not compile")
        return programs

    def run(self, program: TestProgram, limit: float | None, environment: dict[str, str]) -> tuple[bool, float]:
        """Runs a test program; whether it succeeded, and its seconds."""
        begin = time.monotonic()
        variables = {**self.environment, **environment, "CARGO_MANIFEST_DIR": str(program.directory)}
        try:
            done = subprocess.run(
                [program.path, "--quiet"],
                cwd=program.directory,
                env=variables,
                capture_output=True,
                check=False,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return False, time.monotonic() - begin
        return done.returncode == 0, time.monotonic() - begin


def compiling(workspace: Workspace, mutants: list[RustMutant]) -> list[RustMutant]:
    """The mutants that compile behind switches. The workspace has these switches after the call."""
    kept = mutants
    while True:
        regions = workspace.write(kept)
        errors = workspace.errors()
        if not errors:
            return kept
        blamed = {mutant for error in errors for mutant in responsible(error, regions, kept)}
        if not blamed:
            sys.exit("\n".join(error["rendered"] for error in errors))
        workspace.restore(mutant.file for mutant in blamed)
        kept = [mutant for mutant in kept if mutant not in blamed]


def responsible(
    error: dict[str, Any], regions: dict[Path, list[Region]], mutants: list[RustMutant]
) -> Iterator[RustMutant]:
    """The mutants that cause an error: those at its place, or those of the function that it names."""
    found = {
        mutant
        for message in (error, *error["children"])
        for span in message["spans"]
        for region in regions.get(Path(span["file_name"]), ())
        if region.begin <= span["byte_start"] < region.end
        for mutant in region.mutants
    }
    if not found and (named := re.search(r"non-const [a-z ]*`(?:[^`]*::)?(\w+)[^`:]*`", error["message"])):
        found = {mutant for mutant in mutants if re.search(rf"\b{named[1]}\b", mutant.name)}
    yield from found


@dataclass
class Reach:
    """Which tests run the functions of which mutants."""

    programs: dict[TestProgram, tuple[float, set[int]]]
    """Seconds and mutants of the programs that succeed without a mutant."""
    tests: dict[str, set[int]]
    """Mutants of the Python tests that pass without one."""
    durations: dict[str, float]
    """Seconds of these tests."""


def recorded(workspace: Workspace, programs: list[TestProgram], count: int, processes: int) -> Reach:
    """Runs all tests without a mutant."""
    reach = Reach({}, {}, {})
    with tempfile.TemporaryDirectory(prefix="mqcore-reached-") as name:
        directory = Path(name)
        for program in programs:
            reached = directory / "program"
            reached.write_bytes(bytes(count))
            passed, seconds = workspace.run(program, None, {"MUTANTS_REACHED": str(reached)})
            if not passed:
                print(f"left out, because it fails without a mutant: {program.path.name}", flush=True)
                continue
            reach.programs[program] = (seconds, {number for number, byte in enumerate(reached.read_bytes()) if byte})
        variables = {
            **workspace.environment,
            "PYTHONPATH": str(RECORDER),
            "PYTEST_ADDOPTS": "-p reached_mutants",
            "MUTANTS_COUNT": str(count),
            "MUTANTS_DIRECTORY": str(directory),
        }
        outcome = workspace.copy.run(["tests"], processes, None, variables)
        failed = set() if outcome.passed else set(outcome.why)
        if failed:
            print(f"left out, because they fail without a mutant: {' '.join(sorted(failed))}", flush=True)
        reach.durations = {test: each for test, each in outcome.durations.items() if test not in failed}
        for record in directory.glob("*.reached"):
            for line in record.read_text(encoding="utf-8").splitlines():
                test, _, numbers = line.rpartition("\t")
                if test in reach.durations:
                    reach.tests.setdefault(test, set()).update(map(int, numbers.split(",")))
    return reach


def catching(workspace: Workspace, mutant: RustMutant, reach: Reach, processes: int, *, everything: bool) -> str | None:
    """The test that fails with a mutant, of those that run its function or of all."""
    variables = {"MUTANT": str(mutant.number)}
    programs = sorted(
        (program.crate != mutant.crate, seconds, program.path.name, program)
        for program, (seconds, numbers) in reach.programs.items()
        if everything or mutant.number in numbers
    )
    for _, seconds, name, program in programs:
        if not workspace.run(program, 3 * seconds + 60, variables)[0]:
            return name
    tests = [test for test in reach.durations if everything or mutant.number in reach.tests.get(test, ())]
    first = quickest(tests, reach.durations)
    rest = [test for test in tests if test not in first]
    for some, number in ((first, 0), (rest, processes)):
        seconds = sum(reach.durations[test] for test in some)
        if some:
            outcome = workspace.copy.run(some, number, 3 * seconds + 60, {**workspace.environment, **variables})
            if not outcome.passed:
                return outcome.why[0]
    return None


def run_crates(crates: list[str], count: int, seed: int, processes: int) -> dict[str, Tested] | None:
    """Runs a sample of each crate; `None` without cargo-mutants."""
    if subprocess.run(["cargo", "mutants", "--version"], capture_output=True, check=False).returncode != 0:
        print(f"{' '.join(crates)}: skipped: needs cargo-mutants (cargo install cargo-mutants)")
        return None
    sample = sampled(crates, count, seed)
    results = {crate: Tested() for crate in crates}
    with tempfile.TemporaryDirectory(prefix="mqcore-mutants-") as directory:
        workspace = Workspace(Path(directory), crates, seed)
        candidates: list[RustMutant] = []
        for mutant in sample:
            if is_switchable(mutant, (ROOT / mutant.file).read_text(encoding="utf-8"), candidates):
                candidates.append(mutant)
        kept = compiling(workspace, candidates)
        print(f"{len(kept)} of {len(sample)} mutants in one build", flush=True)
        reach = recorded(workspace, workspace.build(), len(sample), processes)
        for mutant in kept:
            report(results, mutant, catching(workspace, mutant, reach, processes, everything=False))
        workspace.restore(mutant.file for mutant in kept)
        for mutant in sample:
            if mutant in kept:
                continue
            text = (ROOT / mutant.file).read_text(encoding="utf-8")
            workspace.replace(mutant.file, mutant.applied(text, 0, len(text)))
            if workspace.errors():
                print(f"  unviable  {mutant.name}", flush=True)
            else:
                programs = workspace.build()
                known = {program.name: found for program, found in reach.programs.items()}
                rebuilt = {program: known[program.name] for program in programs if program.name in known}
                renamed = Reach(rebuilt, reach.tests, reach.durations)
                report(results, mutant, catching(workspace, mutant, renamed, processes, everything=True))
            workspace.restore([mutant.file])
    return results


def report(results: dict[str, Tested], mutant: RustMutant, failed: str | None) -> None:
    """Prints and counts the end of a mutant."""
    result = results[mutant.crate]
    result.viable += 1
    if failed is None:
        result.survivors.append(mutant)
    verdict = "SURVIVED" if failed is None else "caught  "
    print(f"  {verdict}  {mutant.name}{'' if failed is None else f'  [{failed}]'}", flush=True)
