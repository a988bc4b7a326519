"""Audits what mqcore depends on: `make audit`, and as a part of `make check`.

cargo-deny compares Cargo.lock with deny.toml (licenses, banned crates, sources) and with the RustSec advisories.
pip-audit compares every version in requirements/*.lock with the advisories for Python packages. A finding makes this
program exit with 1. A missing tool, or advisories that cannot be reached, do not: the program prints `skipped` and the
reason. With `--require`, which CI uses, they exit with 1 too.

With `--remember FILE` the program does not repeat a check that passed within the last day or was skipped within the
last hour, unless a lock, deny.toml or the set of installed tools has changed. It never remembers findings.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parents[1]

# The comparison with deny.toml needs no network once cargo has the crates, so that only a hung program reaches this.
POLICY_TIMEOUT_SECONDS: Final = 300
# A server that does not answer must not stop `make check`.
ADVISORIES_TIMEOUT_SECONDS: Final = 60

PASSED_REMEMBERED_SECONDS: Final = 24 * 3600
SKIPPED_REMEMBERED_SECONDS: Final = 3600

# Advisories for Python packages that cannot affect mqcore, each with the reason; deny.toml has those for crates.
ACCEPTED_PYTHON: Final[dict[str, str]] = {}

# Programs exit with it if they do not know an option.
USAGE_ERROR: Final = 2

# Messages of git, cargo and pip-audit if a server or a copy of its data is out of reach. Any other error is a failure:
# a broken deny.toml or lock must not look like a missing network.
UNREACHABLE: Final = re.compile(
    r"could not resolve|failed to resolve|unable to access|couldn't connect|connection(error| refused| reset)"
    r"|timed out|proxyerror|failed to (fetch|download|clone|query)|unable to update|spurious network error|ServiceError"
    r"|attempting to make an HTTP request",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Result:
    """How one check ended."""

    check: str
    status: Literal["passed", "skipped", "failed"]
    text: str
    """Why it was skipped, or what was found; otherwise what was checked."""
    time: float
    """Unix time in seconds."""

    def reusable(self, now: float) -> bool:
        """Whether a run at `now` may repeat this result instead of the check."""
        limits = {"passed": PASSED_REMEMBERED_SECONDS, "skipped": SKIPPED_REMEMBERED_SECONDS, "failed": 0}
        return 0 <= now - self.time < limits[self.status]


@dataclass(frozen=True)
class Finished:
    """A program that ended or ran out of time."""

    code: int
    output: str
    errors: str

    @property
    def unreachable(self) -> bool:
        """Whether it failed because of the network."""
        return self.code != USAGE_ERROR and UNREACHABLE.search(self.errors) is not None

    @property
    def reason(self) -> str:
        """The line that states best why it failed."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        telling = [line for line in lines if UNREACHABLE.search(line)]
        return (telling or lines or ["no output"])[-1][:300]


def run(command: Sequence[str], project: Path, timeout: int) -> Finished:
    """Run `command` in the directory `project` for at most `timeout` seconds."""
    try:
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return Finished(-1, "", f"{command[0]} timed out after {timeout} s")
    except OSError as error:
        return Finished(-1, "", f"{command[0]}: {error}")
    return Finished(done.returncode, done.stdout, done.stderr)


# --- Rust ------------------------------------------------------------------------------------------------------


def has_cargo_deny() -> bool:
    """Whether cargo finds cargo-deny."""
    return run(["cargo", "deny", "--version"], ROOT, 60).code == 0


def cargo_deny(project: Path, checks: Sequence[str], timeout: int, *, offline: bool) -> tuple[Finished, bool]:
    """Run cargo-deny; the second value is true if it ended every check, with findings or without."""
    command = ["cargo", "deny", "--locked", *(["--offline"] if offline else []), "--color", "never"]
    done = run([*command, "check", *checks], project, timeout)
    ended = all(re.search(rf"\b{check} (ok|FAILED)\b", done.output) for check in checks)
    return done, ended


def check_crates(project: Path, check: str, checks: Sequence[str], timeout: int) -> Result:
    """Run some checks of cargo-deny, or skip them if it needs data that cannot be reached."""

    def result(status: Literal["passed", "skipped", "failed"], text: str) -> Result:
        return Result(check, status, text, time.time())

    if not has_cargo_deny():
        return result("skipped", "cargo-deny is not installed; install it with `cargo install cargo-deny --locked`")
    done, ended = cargo_deny(project, checks, timeout, offline=False)
    reason = ""
    if not ended and done.unreachable:
        # Data of an earlier run are better than none: a finding in them is one.
        reason = done.reason
        done, ended = cargo_deny(project, checks, timeout, offline=True)
        if not ended and done.code != 0:
            return result("skipped", f"cargo-deny cannot get its data: {reason}")
    if not ended or done.code != 0:
        return result("failed", f"{done.output}{done.errors}".strip())
    if reason and "advisories" in checks:
        return result("skipped", f"nothing found in an old copy of the advisories; no newer one is available: {reason}")
    return result("passed", f"Cargo.lock ({', '.join(checks)})")


# --- Python ----------------------------------------------------------------------------------------------------


def has_pip_audit() -> bool:
    """Whether this Python finds pip-audit."""
    return importlib.util.find_spec("pip_audit") is not None


def locked_versions(locks: Sequence[Path]) -> list[tuple[str, str]]:
    """All names and versions of the locks, including those for other platforms and versions of Python."""
    pins = {
        (match[1], match[2])
        for lock in locks
        for match in re.finditer(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock.read_text(), flags=re.MULTILINE)
    }
    return sorted(pins)


def write_requirements(pins: Sequence[tuple[str, str]], directory: Path) -> list[Path]:
    """Write the versions to files for pip-audit, which accepts one version of a package in each file."""
    files: list[dict[str, str]] = []
    for name, version in pins:
        free = next((file for file in files if name not in file), None)
        if free is None:
            files.append(free := {})
        free[name] = version
    paths = []
    for number, file in enumerate(files):
        paths.append(directory / f"{number}.txt")
        paths[-1].write_text("".join(f"{name}=={version}\n" for name, version in file.items()))
    return paths


def check_python(project: Path, check: str, timeout: int, osv_url: str | None) -> Result:
    """Compare all locked versions with the advisories of the package index, or of an OSV server."""

    def result(status: Literal["passed", "skipped", "failed"], text: str) -> Result:
        return Result(check, status, text, time.time())

    if not has_pip_audit():
        return result("skipped", "pip-audit is not installed; run `make audit`, which installs it")
    pins = locked_versions(sorted(project.glob("requirements/*.lock")))
    if not pins:
        return result("failed", "requirements/*.lock name no versions")
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--no-deps"]
    command += ["--disable-pip", *(["--vulnerability-service", "osv", "--osv-url", osv_url] if osv_url else [])]
    command += [argument for number in ACCEPTED_PYTHON for argument in ("--ignore-vuln", number)]
    with tempfile.TemporaryDirectory() as directory:
        files = write_requirements(pins, Path(directory))
        runs = [run([*command, "--requirement", str(file)], project, timeout) for file in files]
    packages, incomplete = [], []
    for done in runs:
        try:
            packages += json.loads(done.output)["dependencies"]
        except (ValueError, KeyError):
            incomplete.append(done)
    found = [
        f"{package['name']} {package['version']}: {weakness['id']}, "
        f"fixed in {', '.join(weakness['fix_versions']) or 'no version'}: {weakness['description']}"
        for package in packages
        for weakness in package.get("vulns", ())
    ]
    found += [
        f"pip-audit exited with {done.code}: {done.errors.strip()}"
        for done in runs
        if not done.unreachable and (done in incomplete or (done.code != 0 and not found))
    ]
    if found:
        return result("failed", "\n".join(found))
    if incomplete:
        return result("skipped", f"the advisories are unreachable: {incomplete[0].reason}")
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if unknown:
        shown = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        return result(
            "skipped", f"the index has no advisory data for {len(unknown)} of {len(packages)} packages: {shown}"
        )
    return result("passed", f"{len(packages)} versions in requirements/*.lock")


# --- the program -----------------------------------------------------------------------------------------------


def inputs(project: Path, osv_url: str | None) -> str:
    """A hash of everything that results depend on, except the advisories."""
    digest = hashlib.sha256(f"{has_cargo_deny()} {has_pip_audit()} {osv_url}".encode())
    files = [
        project / "Cargo.lock",
        project / "deny.toml",
        *sorted(project.glob("requirements/*.lock")),
        Path(__file__),
    ]
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def recall(file: Path, key: str, now: float) -> dict[str, Result]:
    """Results in `file` that need no new check, by name; none if the file is missing, damaged or about other inputs."""
    try:
        content = json.loads(file.read_text())
        results = [Result(**each) for each in content["results"]] if content["inputs"] == key else []
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {result.check: result for result in results if result.reusable(now)}


def main() -> int:
    """Run the checks side by side and print how each ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, default=ROOT, help="directory with deny.toml and the locks")
    parser.add_argument("--require", action="store_true", help="exit with 1 if a check is skipped")
    parser.add_argument("--remember", type=Path, metavar="FILE", help="reuse recent results, and keep new ones in FILE")
    parser.add_argument("--osv-url", help="ask this OSV server about Python packages, not the package index")
    parser.add_argument(
        "--timeout",
        type=int,
        default=ADVISORIES_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="time to get and compare the advisories of one language [default: %(default)s]",
    )
    options = parser.parse_args()
    project: Path = options.project.resolve()
    policy = ("bans", "licenses", "sources")
    checks: dict[str, Callable[[str], Result]] = {
        "crates": lambda name: check_crates(project, name, policy, POLICY_TIMEOUT_SECONDS),
        "crate advisories": lambda name: check_crates(project, name, ["advisories"], options.timeout),
        "Python advisories": lambda name: check_python(project, name, options.timeout, options.osv_url),
    }
    remember: Path | None = options.remember
    key = inputs(project, options.osv_url) if remember else ""
    recent = recall(remember, key, time.time()) if remember else {}
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(check, name) for name, check in checks.items() if name not in recent}
        results = [recent[name] if name in recent else running[name].result() for name in checks]
    for result in results:
        earlier = f" (at {time.strftime('%H:%M', time.localtime(result.time))})" if result.check in recent else ""
        separator = "\n  " if result.status == "failed" else " "
        print(f"{result.check}: {result.status}{earlier}:{separator}" + result.text.replace("\n", "\n  "))
    if remember:
        remember.write_text(json.dumps({"inputs": key, "results": [asdict(result) for result in results]}))
    bad = {"failed", "skipped"} if options.require else {"failed"}
    return 1 if any(result.status in bad for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
