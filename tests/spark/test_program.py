"""Pipelines from the command line: a process that starts a Spark of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from served import clean_environment
from spark.told import LENIENT, Told, java_or_skip

pytestmark = LENIENT


def test_the_program_runs_a_pipeline_and_says_where_its_report_lies(told: Told, tmp_path: Path) -> None:
    java_or_skip()
    arguments = (
        "reconcile",
        "--journal",
        str(told.data_dir),
        "--out",
        str(tmp_path),
        "--master",
        "local[2]",
        "--json",
    )
    result = subprocess.run(
        [sys.executable, "-m", "mqcore", "pipeline", "run", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=clean_environment(),
    )
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert (printed["schema"], printed["ok"]) == ("mqcore.pipeline.run/1", True)
    assert printed["figures"]["difference"] == 0
    assert f"report: {tmp_path / 'reconcile.html'}" in result.stderr
    assert "reconcile: lives" in result.stderr, "progress is shown while it runs"
    assert Path(printed["report"]).is_file()
