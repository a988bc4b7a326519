"""The demonstration, run for real: it is the widest test that there is."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from depth import FULL, choices
from mqcore.demo import analysed
from served import ROOT, clean_environment


def run_demo(*arguments: str, limit: float = 110) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mqcore.demo", *arguments],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
        cwd=ROOT,
        env=clean_environment(),
    )


@pytest.mark.full("runs the whole demonstration; the next test runs every part with a few files")
@pytest.mark.timeout(600)
def test_every_promise_of_the_demonstration_is_kept() -> None:
    result = run_demo(limit=580)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every file arrived as often as promised" in result.stdout
    for status in ("broadcast", "push", "roundrobin", "pull", "cache", "paused", "stopped"):
        assert f"library-{status}/0" in result.stdout
    assert "library-durable/0" in result.stdout
    for strategy in ("fixed-window", "sliding-window", "gcra"):
        assert f"limit-{strategy}-broker" in result.stdout
        assert f"limit-{strategy}-local" in result.stdout
    for queue in ("library-lines", "greetings"):
        assert queue in result.stdout
    assert "Dave    > Dave publish --confirm hello world\n" in result.stdout
    assert "Charlie < Charlie ok Dave event=hello world\n" in result.stdout
    assert "library-hashes" in result.stdout
    assert "killed by SIGKILL" in result.stdout
    assert "north" in result.stdout
    assert "archive" in result.stdout
    assert " NO" not in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    reports = [Path(line.split(": ", 1)[1]) for line in result.stdout.splitlines() if line.startswith("pipeline ")]
    assert [report.name for report in reports] == ["lifecycle.html", "reconcile.html"] or (
        "pipelines skipped: " in result.stderr
    )
    assert all(report.is_file() for report in reports)


@pytest.mark.timeout(120)
def test_the_demonstration_also_holds_for_a_few_files() -> None:
    result = run_demo("--files", "12", "--no-pipelines")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr


def run_damaged(part: str) -> subprocess.CompletedProcess[str]:
    """One part of the demonstration with a consumer that damages a file, which stands for a broker that does."""
    program = (
        f"import sys, mqcore.demo.{part} as part, mqcore.demo.__main__ as demo\n"
        "honest, seen = part.digest, []\n"
        "def damaged(body):\n"
        "    seen.append(body)\n"
        "    return 'f' * 64 if body == seen[0] else honest(body)\n"
        "part.digest = damaged\n"
        "part._LIMIT = 15.0\n"
        "demo.PARTS = (('damaged', part.run),)\n"
        "sys.argv = ['demo', '--files', '20', '--no-pipelines']\n"
        "sys.exit(demo.main())\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=ROOT,
        env=clean_environment(),
    )


PARTS = ["tmqp", "mqks", "micromessage", "jobs", "durable", "limits"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("part", PARTS if FULL else sorted(choices(__name__).sample(PARTS, 2)))
def test_a_broken_promise_is_seen_and_fails(part: str) -> None:
    result = run_damaged(part)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "a check failed" in result.stdout
    assert "failed" in result.stderr


def test_without_spark_the_demonstration_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    output = io.StringIO()
    assert analysed.run(tmp_path, Console(file=output, width=200))
    assert output.getvalue() == "pipelines skipped: pyspark is not installed; pip install 'mqcore[spark]'\n"
