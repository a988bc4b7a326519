"""The audit of dependencies (`tools/audit.py`): findings fail, and what cannot be checked is skipped with a reason.

No test needs a network: advisories come from a git repository and a server on this machine. The tests of crates need
cargo-deny and are skipped without it.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from served import ROOT

ADVISORY = "RUSTSEC-2026-9999"
WEAKNESS = "PYSEC-2026-9999"
LIMIT_SECONDS = 250
NO_PROGRAMS = {"PATH": "/nonexistent", "NO_PROXY": "127.0.0.1"}

LOCK = """\
# Made for a test.
leaky==1.0 ; python_full_version < '3.12' \\
    --hash=sha256:0000000000000000000000000000000000000000000000000000000000000000
leaky==2.0 ; python_full_version >= '3.12' \\
    --hash=sha256:1111111111111111111111111111111111111111111111111111111111111111
sound==3.1 ; sys_platform == 'nowhere' \\
    --hash=sha256:2222222222222222222222222222222222222222222222222222222222222222
"""


def audit(project: Path, *arguments: str, env: dict[str, str], python: Sequence[str] = ()) -> tuple[int, str]:
    """The exit code and the output of an audit of `project`."""
    command = [sys.executable, *python, str(ROOT / "tools" / "audit.py"), "--project", str(project), *arguments]
    # A busy machine must not look like a server that does not answer.
    command.append(f"--timeout={LIMIT_SECONDS}")
    result = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=2 * LIMIT_SECONDS, check=False
    )
    assert result.stderr == ""
    return result.returncode, result.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a package `leaky` in its Cargo.lock and in its Python lock; the licenses are accepted."""
    project = tmp_path / "project"
    (project / "requirements").mkdir(parents=True)
    (project / "requirements" / "test.lock").write_text(LOCK)
    rules = (ROOT / "deny.toml").read_text()
    for warning in ("unused-allowed-license", "unused-license-exception"):
        assert f'{warning} = "deny"' in rules
        rules = rules.replace(f'{warning} = "deny"', f'{warning} = "allow"')
    (project / "deny.toml").write_text(rules)
    (project / "Cargo.lock").write_text("version = 4\n")
    return project


# --- without tools ---------------------------------------------------------------------------------------------


def test_missing_tools_are_skipped_with_a_reason_and_fail_only_if_required(project: Path) -> None:
    isolated = ("-I", "-S")  # finds no installed package
    code, output = audit(project, env=NO_PROGRAMS, python=isolated)
    assert code == 0
    assert output.splitlines() == [
        "crates: skipped: cargo-deny is not installed; install it with `cargo install cargo-deny --locked`",
        "crate advisories: skipped: cargo-deny is not installed; install it with `cargo install cargo-deny --locked`",
        "Python advisories: skipped: pip-audit is not installed; run `make audit`, which installs it",
    ]
    assert audit(project, "--require", env=NO_PROGRAMS, python=isolated) == (1, output)


# --- Python ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def osv_server(port: int, weak: dict[str, str]) -> Iterator[list[tuple[str, str]]]:
    """A server of advisories that knows a weakness of the versions `weak`; yields what it was asked."""
    asked: list[tuple[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name, version = query["package"]["name"], query["version"]
            asked.append((name, version))
            answer: dict[str, Any] = {}
            if weak.get(name) == version:
                package = {"name": name, "ecosystem": "PyPI"}
                ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.1"}]}]
                affected = [{"package": package, "ranges": ranges}]
                answer = {"vulns": [{"id": WEAKNESS, "summary": "It leaks.", "affected": affected}]}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def osv_url(port: int) -> str:
    return f"--osv-url=http://127.0.0.1:{port}/v1/query"


@pytest.mark.timeout(4 * LIMIT_SECONDS)
def test_a_vulnerable_python_package_fails_even_if_its_version_is_for_another_platform(project: Path) -> None:
    port = free_port()
    with osv_server(port, {"leaky": "2.0"}) as asked:
        code, output = audit(project, osv_url(port), env=NO_PROGRAMS)
    assert code == 1
    assert "Python advisories: failed:\n  leaky 2.0: " in output
    assert f"{WEAKNESS}, fixed in 2.1: It leaks." in output
    assert "leaky 1.0" not in output
    assert sorted(asked) == [("leaky", "1.0"), ("leaky", "2.0"), ("sound", "3.1")]


@pytest.mark.timeout(4 * LIMIT_SECONDS)
def test_unreachable_python_advisories_are_skipped_and_asked_again_when_a_lock_changes(
    project: Path, tmp_path: Path
) -> None:
    port = free_port()
    arguments = (osv_url(port), f"--remember={tmp_path / 'audit.json'}")
    code, output = audit(project, *arguments, env=NO_PROGRAMS)
    assert code == 0
    assert "Python advisories: skipped: the advisories are unreachable: " in output
    with osv_server(port, {}) as asked:
        # Nothing has changed: the output marks the result as reused.
        code, output = audit(project, *arguments, "--require", env=NO_PROGRAMS)
        assert code == 1
        assert "Python advisories: skipped (at " in output
        assert asked == []
        (project / "requirements" / "test.lock").write_text(LOCK + "more==1.0\n")
        code, output = audit(project, *arguments, env=NO_PROGRAMS)
        assert code == 0
        assert "Python advisories: passed: 4 versions in requirements/*.lock\n" in output
        assert len(asked) == 4


def test_a_lock_without_versions_is_a_failure_and_no_reason_to_skip(project: Path) -> None:
    (project / "requirements" / "test.lock").write_text("")
    code, output = audit(project, env=NO_PROGRAMS)
    assert code == 1
    assert "Python advisories: failed:\n  requirements/*.lock name no versions\n" in output


# --- Rust ------------------------------------------------------------------------------------------------------


@pytest.fixture
def crates(project: Path, tmp_path: Path) -> dict[str, str]:
    """Complete `project` by a program that uses a crate `leaky` of crates.io; returns the environment of an audit."""
    if shutil.which("cargo-deny") is None:
        pytest.skip("cargo-deny is not installed")
    vendored = tmp_path / "vendored" / "leaky"
    for place in (vendored, project):
        (place / "src").mkdir(parents=True)
        (place / "src" / "lib.rs").touch()
    (vendored / ".cargo-checksum.json").write_text(json.dumps({"files": {}, "package": "0" * 64}))
    package = '[package]\nname = "{}"\nversion = "0.1.0"\nedition = "2024"\nlicense = "MIT"\npublish = false\n'
    (vendored / "Cargo.toml").write_text(package.format("leaky"))
    (project / "Cargo.toml").write_text(package.format("program") + '[dependencies]\nleaky = "0.1.0"\n')
    (project / ".cargo").mkdir()
    (project / ".cargo" / "config.toml").write_text(
        '[source.crates-io]\nreplace-with = "vendored"\n'
        f"[source.vendored]\ndirectory = {json.dumps(str(vendored.parent))}\n"
    )
    (project / "Cargo.lock").unlink()
    # An empty directory of cargo, so that no advisories of this machine are found, and no way to any other machine.
    env = {"CARGO_HOME": str(tmp_path / "cargo"), "HTTPS_PROXY": "http://127.0.0.1:9", "CARGO_NET_RETRY": "0"}
    command = ["cargo", "generate-lockfile", "--offline"]
    subprocess.run(
        command, cwd=project, env={**os.environ, **env}, check=True, capture_output=True, timeout=LIMIT_SECONDS
    )
    (project / "requirements" / "test.lock").write_text("")
    return env


def advisories_at(url: str) -> dict[str, str]:
    """Variables that make git read `url` in place of the RustSec database."""
    key = f"url.{url}.insteadOf"
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": key,
        "GIT_CONFIG_VALUE_0": "https://github.com/RustSec/advisory-db",
    }


UNREACHABLE_ADVISORIES = advisories_at("http://127.0.0.1:9/advisory-db")


@pytest.fixture
def advisory(tmp_path: Path) -> dict[str, str]:
    """A database with one advisory, about every version of `leaky`."""
    database = tmp_path / "advisories"
    (database / "crates" / "leaky").mkdir(parents=True)
    (database / "crates" / "leaky" / f"{ADVISORY}.md").write_text(
        f'```toml\n[advisory]\nid = "{ADVISORY}"\npackage = "leaky"\ndate = "2026-01-01"\n\n'
        "[versions]\npatched = []\n```\n\n# Leaks\n\nEverywhere.\n"
    )
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet", "--initial-branch=main"], ["add", "."], ["commit", "--quiet", "-m", "Leaks"]):
        subprocess.run(["git", *identity, *command], cwd=database, check=True, timeout=50)
    return advisories_at(database.as_uri())


@pytest.mark.timeout(4 * LIMIT_SECONDS)
def test_a_vulnerable_crate_fails(project: Path, crates: dict[str, str], advisory: dict[str, str]) -> None:
    code, output = audit(project, env={**crates, **advisory}, python=("-I", "-S"))
    assert code == 1
    assert "crates: passed: Cargo.lock (bans, licenses, sources)\n" in output
    assert "crate advisories: failed:\n" in output
    assert ADVISORY in output


@pytest.mark.timeout(4 * LIMIT_SECONDS)
def test_unreachable_crate_advisories_are_skipped_and_hide_no_forbidden_license(
    project: Path, crates: dict[str, str]
) -> None:
    code, output = audit(project, env={**crates, **UNREACHABLE_ADVISORIES}, python=("-I", "-S"))
    assert code == 0
    assert "crates: passed: Cargo.lock (bans, licenses, sources)\n" in output
    assert "crate advisories: skipped: cargo-deny cannot get its data: " in output
    manifest = next(project.parent.glob("vendored/leaky/Cargo.toml"))
    manifest.write_text(manifest.read_text().replace('"MIT"', '"GPL-3.0-only"'))
    code, output = audit(project, env={**crates, **UNREACHABLE_ADVISORIES}, python=("-I", "-S"))
    assert code == 1
    assert "crates: failed:\n" in output
    assert "GPL-3.0-only" in output
    assert "crate advisories: skipped: cargo-deny cannot get its data: " in output


@pytest.mark.timeout(4 * LIMIT_SECONDS)
def test_invalid_rules_are_a_failure_and_no_reason_to_skip(project: Path, crates: dict[str, str]) -> None:
    (project / "deny.toml").write_text('[licenses]\nallow = "MIT"\n')
    code, output = audit(project, env={**crates, **UNREACHABLE_ADVISORIES}, python=("-I", "-S"))
    assert code == 1
    assert "crates: failed:\n" in output
