"""A copy of the project whose crates have mutants behind switches, and its test programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mutant_runs import ROOT, Copy, kill_group
from rust_mutants import Region, RustMutant, switched

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

# Cargo runs the compiler of this project's crates through it. The lints stay out of RUSTFLAGS, so that what cargo built
# of other crates stays usable.
WRAPPER: Final = """\
#!/bin/sh
exec "$@" --cap-lints allow
"""


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

    def __init__(self, directory: Path, crates: Iterable[str], files: Iterable[Path], seed: int) -> None:
        self.copy = Copy(directory)
        # The project may change while mutants run.
        self.texts = {file: (directory / file).read_text(encoding="utf-8") for file in files}
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "mutants"
        self.target = target
        # Here and not in the copy: cargo builds again if the path changes.
        target.mkdir(parents=True, exist_ok=True)
        wrapper = target / "without-lints"
        wrapper.write_text(WRAPPER, encoding="utf-8")
        wrapper.chmod(0o700)
        self.environment = {
            **os.environ,
            "CARGO_TARGET_DIR": str(target),
            "CARGO_INCREMENTAL": "1",
            "RUSTC_WORKSPACE_WRAPPER": str(wrapper),
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
            own = [mutant for mutant in mutants if mutant.file == file]
            changed, regions[file] = switched(self.texts[file], own)
            self.replace(file, changed)
        return regions

    def restore(self, files: Iterable[Path]) -> None:
        """Removes all mutants from these files."""
        for file in set(files):
            self.replace(file, self.texts[file])

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

    def errors(self, crates: Iterable[str]) -> list[dict[str, Any]]:
        """The errors of the compiler in these crates and their tests; in all if there are none."""
        found = (
            each["message"]
            for each in self.messages("check", "--quiet", "--all-targets", "--keep-going", *selected(crates))
            if each["reason"] == "compiler-message"
        )
        return [message for message in found if message["level"] == "error" and message["spans"]]

    def build_extension(self) -> None:
        """Builds the extension module that the Python tests load."""
        command = ["--package", "mqcore-python", "--lib", "--crate-type", "cdylib", "--features", "shared-with-tests"]
        subprocess.run(
            ["cargo", "rustc", "--quiet", *command], cwd=self.copy.directory, env=self.environment, check=True
        )
        suffix = {"darwin": "lib_core.dylib"}.get(sys.platform, "lib_core.so")
        module = self.copy.directory / "python" / "mqcore" / "_core.abi3.so"
        module.unlink(missing_ok=True)
        module.write_bytes((self.target / "debug" / suffix).read_bytes())

    def build_programs(self, crates: Sequence[str]) -> list[TestProgram]:
        """Builds the test programs of these crates; all if there are none."""
        programs = []
        # mqcore-python has no test program. With it, cargo chooses the same features for any of these crates.
        packages = selected([*crates, "mqcore-python"]) if crates else []
        for each in self.messages("test", "--quiet", "--no-run", *packages):
            if each["reason"] == "compiler-artifact" and each["profile"]["test"] and each["executable"]:
                directory = Path(each["manifest_path"]).parent
                programs.append(TestProgram(directory.name, Path(each["executable"]), directory))
        return programs

    def run(
        self, program: TestProgram, arguments: Sequence[str], limit: float | None, environment: dict[str, str]
    ) -> ProgramRun:
        """Runs a test program. With a limit, it ends at the first test that fails."""
        begin = time.monotonic()
        variables = {**self.environment, **environment, "CARGO_MANIFEST_DIR": str(program.directory)}
        failed: list[str] = []
        with subprocess.Popen(
            [program.path, *arguments],
            cwd=program.directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            timer = threading.Timer(limit or 3600, kill_group, [process])
            timer.start()
            for line in process.stdout:
                if found := re.match(rb"test (.*?)(?: - should panic)? \.\.\. FAILED", line):
                    failed.append(found[1].decode())
                    if limit is not None:
                        kill_group(process)
            timer.cancel()
            code = process.wait()
        seconds = time.monotonic() - begin
        if code != 0 and not failed:
            timed_out = limit is not None and seconds >= limit
            return ProgramRun([], f"time limit of {limit:.0f} s" if timed_out else f"exit code {code}", seconds)
        return ProgramRun(failed, "", seconds)


@dataclass(frozen=True)
class ProgramRun:
    """The end of a test program."""

    failed: list[str]
    """The tests that failed."""
    crash: str
    """How the program ended without a failed test, if it did not succeed."""
    seconds: float


def selected(crates: Iterable[str]) -> list[str]:
    """The arguments with which cargo selects these crates."""
    return [argument for crate in crates for argument in ("--package", crate)]


def compiling(
    workspace: Workspace, mutants: list[RustMutant], crates: Iterable[str]
) -> tuple[list[RustMutant], set[RustMutant]]:
    """The mutants that compile behind switches in these crates (all if there are none), and those that compile nowhere.
    The workspace has the switches of the former after the call.
    """
    kept = mutants
    unviable: set[RustMutant] = set()
    while True:
        regions = workspace.write(kept)
        errors = workspace.errors(crates)
        if not errors:
            return kept, unviable
        blamed = {mutant for error in errors for mutant in responsible(error, regions, kept)}
        if not blamed:
            sys.exit("\n".join(error["rendered"] for error in errors))
        unviable |= {mutant for error in errors for mutant in certain(error, regions)}
        workspace.restore(mutant.file for mutant in blamed)
        kept = [mutant for mutant in kept if mutant not in blamed]


def certain(error: dict[str, Any], regions: dict[Path, list[Region]]) -> Iterator[RustMutant]:
    """The mutant whose own code has an error. A switch itself causes errors in a `const fn`, and where it would give an
    `impl` type two types.
    """
    if "const" in error["message"] or "`if` and `else`" in error["message"]:
        return
    for span in error["spans"]:
        for region in regions.get(Path(span["file_name"]), ()) if span["is_primary"] else ():
            if region.begin <= span["byte_start"] and span["byte_end"] <= region.end and region.is_own:
                yield from region.mutants


def responsible(
    error: dict[str, Any], regions: dict[Path, list[Region]], mutants: list[RustMutant]
) -> Iterator[RustMutant]:
    """The mutants that cause an error: those at its place, or those of the function that it names."""
    found: set[RustMutant] = set()
    if named := re.search(r"non-const [a-z ]*`([^`]*)`", error["message"]):
        # The type, or the module, and the function: many types have functions of the same name.
        words = re.findall(r"\w+", re.sub(r"<.*>", "", named[1]))[-2:]
        for wanted in (words, words[-1:]):
            fits = [all(re.search(rf"\b{word}\b", mutant.name) for word in wanted) for mutant in mutants]
            found = found or {mutant for mutant, is_named in zip(mutants, fits, strict=True) if is_named}
    yield from found or {
        mutant
        for message in (error, *error["children"])
        for span in message["spans"]
        for region in regions.get(Path(span["file_name"]), ())
        if region.begin <= span["byte_start"] < region.end
        for mutant in region.mutants
    }
