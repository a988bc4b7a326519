"""Reintroduces repaired bugs one by one, and looks how many random plans find each: `make promises-planted`.

It copies the project, adds all bugs to the copy, each behind a condition on an environment variable, and builds the
extension module there once. The sources of the project stay as they are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from served import ROOT

SEEDS: Final = 200
"""Random plans within which each bug has to be found."""
VARIABLE: Final = "PLANTED_BUG"
CONDITION: Final = "CONDITION"
"""In the text of a bug: whether it is the one to be found."""


@dataclass(frozen=True)
class Bug:
    """A bug that was repaired."""

    name: str
    effect: str
    """Its effect on messages."""
    file: str
    correct: str
    """The text that occurs once in the file."""
    wrong: str

    @property
    def planted(self) -> str:
        """The wrong text with its condition, in Rust."""
        return self.wrong.replace(CONDITION, f'std::env::var_os("{VARIABLE}").is_some_and(|bug| bug == "{self.name}")')


BUGS: Final = (
    Bug(
        "siblings",
        "a consumer of a queue joins the whole channel, and rejects the messages of its other queues",
        "rust/mqcore-client/src/request.rs",
        """
                let mut request = Self::queue_operation(Operation::JoinChannel, "consume", queue);
                request.header(key::QUEUE_IDS, &queue.id().to_string());
""",
        """
                let mut request = Self::queue_operation(Operation::JoinChannel, "consume", queue);
                if !CONDITION {
                    request.header(key::QUEUE_IDS, &queue.id().to_string());
                }
""",
    ),
    Bug(
        "prefetch",
        "the broker ignores the prefetch of consumers",
        "rust/mqcore-broker/src/queue/members.rs",
        "let terms = Terms { window: prefetch, ..Terms::default() };",
        "let terms = Terms { window: if CONDITION { 0 } else { prefetch }, ..Terms::default() };",
    ),
    Bug(
        "backoff",
        "the broker redelivers a rejected message without a delay",
        "rust/mqcore-broker/src/queue/settlement.rs",
        "pub(crate) fn retry_delay(&self, entry: &Entry) -> Duration {\n",
        """pub(crate) fn retry_delay(&self, entry: &Entry) -> Duration {
        if CONDITION {
            return Duration::ZERO;
        }
""",
    ),
    Bug(
        "dead-letters",
        "dead letters of a queue in memory are not saved in a dead-letter queue that saves",
        "rust/mqcore-broker/src/queue/arriving.rs",
        "if !self.metadata.policy_saves && self.metadata.missing_handler.is_none() {",
        "if CONDITION || (!self.metadata.policy_saves && self.metadata.missing_handler.is_none()) {",
    ),
    Bug(
        "missing-handler",
        "a queue whose handler is not registered uses the policy for memory",
        "rust/mqcore-broker/src/queue/mod.rs",
        "let found = state.handler(key).filter(",
        'let found = state.handler(if CONDITION && state.handler(key).is_none() { "memory" } else { key }).filter(',
    ),
    Bug(
        "refused-consumer",
        "the broker drops a message that the first consumer may not receive",
        "rust/mqcore-broker/src/queue/workflow.rs",
        "        // The others are still tried.\n",
        """        if CONDITION && matches!(flow.mode, FlowTarget::One) {
            return Some(self.refused(flow));
        }
        // The others are still tried.
""",
    ),
    Bug(
        "expiry",
        "the broker delivers a message after it has expired",
        "rust/mqcore-broker/src/queue/admission.rs",
        "        let terms = message.terms();\n        self.deadline(",
        """        let mut terms = message.terms();
        if CONDITION {
            terms.expires_in = None;
        }
        self.deadline(""",
    ),
    Bug(
        "delay",
        "the broker delivers a delayed message at once after a restart",
        "rust/mqcore-broker/src/queue/admission.rs",
        "let not_before = progress.not_before.max(terms.not_before);",
        """let not_before =
            if CONDITION { progress.not_before } else { progress.not_before.max(terms.not_before) };""",
    ),
    Bug(
        "duplicates",
        "the queue takes another message with the id of one that it has",
        "rust/mqcore-broker/src/queue/recent.rs",
        "IdStatus::Yes => Ok(true),",
        "IdStatus::Yes => Ok(!CONDITION),",
    ),
)


def plant(project: Path, bugs: tuple[Bug, ...] = BUGS) -> None:
    """Add the bugs to a copy of the project. Raises `ValueError` if the place of one is not found."""
    for bug in bugs:
        path = project / bug.file
        text = path.read_text(encoding="utf-8")
        if text.count(bug.correct) != 1:
            raise ValueError(f"{bug.name}: {bug.file} has its place {text.count(bug.correct)} times, not once")
        path.write_text(text.replace(bug.correct, bug.planted), encoding="utf-8")


def copied(directory: Path) -> Path:
    """Copy the tracked files of the project. The copy shares the target directory, and has another version.

    Cargo identifies a crate of the project by its name and version, not by its directory. With the same version, it
    would take what it built from the copy, bugs included, for the project's own crates.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            # Not the times: a file that another copy changed must look newer than what was built from that copy.
            shutil.copyfile(ROOT / name, directory / name)
    _mark_version(directory)
    return directory


def _mark_version(project: Path) -> None:
    manifest, lock = project / "Cargo.toml", project / "Cargo.lock"
    version = tomllib.loads(manifest.read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    own = [package["name"] for package in packages if "source" not in package]
    line = f'version = "{version}"'
    for path, places in ((manifest, [line]), (lock, [f'name = "{name}"\n{line}' for name in own])):
        text = path.read_text(encoding="utf-8")
        for place in places:
            if text.count(place) != 1:
                raise ValueError(f"{path.name} has {place!r} {text.count(place)} times, not once")
            text = text.replace(place, f'{place[:-1]}-planted"')
        path.write_text(text, encoding="utf-8")


def build(project: Path) -> None:
    """Build the extension module of a copy, and put it beside its Python modules."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(target),
        "PYO3_PYTHON": sys.executable,
        "PYO3_BUILD_EXTENSION_MODULE": "1",
    }
    command = ["cargo", "rustc", "--locked", "--package", "mqcore-python", "--lib", "--crate-type", "cdylib"]
    subprocess.run(command, cwd=project, env=environment, check=True)
    built = target / "debug" / {"darwin": "lib_core.dylib", "win32": "_core.dll"}.get(sys.platform, "lib_core.so")
    shutil.copy2(built, project / "python" / "mqcore" / ("_core.pyd" if os.name == "nt" else "_core.abi3.so"))


def search(project: Path, bug: Bug, seeds: int) -> tuple[bool, str]:
    """Run random plans until one finds the bug; whether one did, and the line that reports it."""
    path = os.pathsep.join(str(project / part) for part in ("python", "tests"))
    done = subprocess.run(
        [sys.executable, "-m", "promises.search", "--first", "0", "--seeds", str(seeds), "--until-failure"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path, VARIABLE: bug.name},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout + done.stderr).splitlines()
    finding = next((line for line in lines if line.startswith("seed ")), lines[-1] if lines else "no output")
    return done.returncode != 0 and finding.startswith("seed "), finding


def run(names: list[str], seeds: int = SEEDS) -> list[str]:
    """Look for bugs, and return the names of those that no plan finds."""
    missed = []
    with tempfile.TemporaryDirectory(prefix="promises-planted-") as directory:
        project = copied(Path(directory))
        plant(project)
        build(project)
        for bug in (bug for bug in BUGS if bug.name in names):
            began = time.monotonic()
            found, line = search(project, bug, seeds)
            print(f"{bug.name}: {'found' if found else 'MISSED'} after {time.monotonic() - began:.0f} s: {line}")
            sys.stdout.flush()
            missed += [] if found else [bug.name]
    return missed


def main() -> int:
    """Read the arguments, which `make promises-planted` passes."""
    parser = argparse.ArgumentParser(description="Check that random plans find bugs that were repaired.")
    parser.add_argument("bugs", nargs="*", help=f"of {', '.join(bug.name for bug in BUGS)} [default: all]")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds for each bug [default: {SEEDS}]")
    given = parser.parse_args()
    names = [bug.name for bug in BUGS]
    if unknown := set(given.bugs) - set(names):
        parser.error(f"unknown bugs: {', '.join(sorted(unknown))}; use {', '.join(names)}")
    return 1 if run(given.bugs or names, given.seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
