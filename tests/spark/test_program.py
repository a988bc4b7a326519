"""Pipelines from the command line: a process that starts a Spark of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqcore.cli.program import run
from served import clean_environment
from spark.recorded import LENIENT, Recorded, java_or_skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT


def arguments(recorded: Recorded, out: Path) -> list[str]:
    """A run of a pipeline that finds no error."""
    place = ["--journal", str(recorded.data_dir), "--out", str(out), "--master", "local[2]"]
    return ["pipeline", "run", "reconcile", *place, "--json"]


def check(stdout: str, stderr: str, out: Path) -> None:
    """Check what the program wrote."""
    printed: dict[str, Any] = json.loads(stdout)
    assert (printed["schema"], printed["ok"]) == ("mqcore.pipeline.run/1", True)
    assert printed["figures"]["difference"] == 0
    assert f"report: {out / 'reconcile.html'}" in stderr
    assert "reconcile: lives" in stderr, "progress is shown while it runs"
    assert Path(printed["report"]).is_file()


@pytest.mark.full("starts a Spark of its own; test_the_command_runs_... uses the session of the other tests")
def test_the_program_runs_a_pipeline_and_says_where_its_report_lies(recorded: Recorded, tmp_path: Path) -> None:
    java_or_skip()
    result = subprocess.run(
        [sys.executable, "-m", "mqcore", *arguments(recorded, tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=clean_environment(),
    )
    assert result.returncode == 0, result.stderr
    check(result.stdout, result.stderr, tmp_path)


def test_the_command_runs_a_pipeline_and_stops_its_session(
    spark: SparkSession,
    recorded: Recorded,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[SparkSession] = []
    monkeypatch.setattr(type(spark), "stop", lambda session: stopped.append(session))
    assert run(arguments(recorded, tmp_path)) == 0
    check(*capsys.readouterr(), tmp_path)
    assert stopped == [spark]
