"""Failed pipelines: the reason comes first, and the program's exit code is that of the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mqcore import errors
from mqcore.cli.program import run
from mqcore.spark import pipelines
from mqcore.spark.pipelines.failures import PipelineFailed, reason_first, reason_of
from spark.made import archive_of
from spark.made import step as made
from spark.recorded import LENIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT

JAVA = """An error occurred while calling o61.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2994)
"""
PYTHON = """Job aborted: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
mqcore.errors.{kind}: shard-0 cannot be read: permission denied

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""


def test_the_reason_is_that_of_the_innermost_error_without_its_traceback() -> None:
    assert str(reason_of("limits", Exception(JAVA))) == "limits: No space left on device (IOException)"
    found = reason_of("limits", Exception(PYTHON.format(kind="DataDirUnreadable")))
    assert (type(found), str(found)) == (errors.DataDirUnreadable, "shard-0 cannot be read: permission denied")
    # An error of a later version keeps its words.
    found = reason_of("limits", Exception(PYTHON.format(kind="Unheard")))
    assert (type(found), str(found)) == (PipelineFailed, "limits: shard-0 cannot be read: permission denied")
    memory = "java.lang.OutOfMemoryError: Java heap space"
    assert "raise --driver-memory" in str(reason_of("limits", Exception(memory)))
    assert str(reason_of("limits", Exception("only words\n\tat x.y(Z.java:1)"))) == "limits: only words"
    assert str(reason_of("limits", Exception(""))) == "limits: Spark gave no reason"
    assert len(str(reason_of("limits", Exception("x" * 9000)))) < 600


def test_errors_of_a_pipeline_itself_are_not_converted() -> None:
    for error in (errors.ConfigError("of the user"), KeyError("a defect")):
        with pytest.raises(type(error)) as raised, reason_first("limits"):
            raise error
        assert raised.value is error


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """An archive with a file that is not Parquet."""
    data = archive_of(tmp_path / "data", [made("started"), made("produced", 1)])
    (file,) = (data / "archive" / "steps").rglob("channel=*/**/*.parquet")
    file.write_bytes(b"PAR1 not really PAR1")
    return data


def test_a_failed_job_is_one_line_with_its_reason(spark: SparkSession, damaged: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineFailed) as raised:
        pipelines.run("reconcile", spark, damaged, tmp_path / "out")
    reason = str(raised.value)
    assert reason.startswith("reconcile: ")
    assert ".parquet" in reason
    assert "\n" not in reason
    assert "org.apache" not in reason.split("(")[0]
    assert not (tmp_path / "out" / "index.html").exists()


def test_the_command_prints_the_reason_first_and_exits_with_its_code(
    spark: SparkSession,
    damaged: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    (tmp_path / "empty").mkdir()

    def said(journal: Path, *options: str) -> tuple[int, str]:
        place = ("--journal", str(journal), "--out", str(tmp_path / "out"), "--master", "local[2]")
        code = run(["pipeline", "run", "reconcile", *place, *options])
        complaint = [line for line in capfd.readouterr().err.splitlines() if line.startswith("mqcore: ")]
        assert len(complaint) == 1
        return code, complaint[0]

    code, line = said(damaged)
    assert (code, line.startswith("mqcore: reconcile: ")) == (1, True)
    assert "Traceback" not in line
    code, line = said(tmp_path / "empty")
    assert code == 3, line
    assert said(damaged, "--set", "nothing=1") == (
        2,
        "mqcore: unknown option 'nothing' for reconcile; there is none",
    )


def test_an_error_that_a_task_raises_has_its_own_exit_code(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`compact` reads files in tasks of its own; the error of a task reaches the command as what it is."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    data = archive_of(tmp_path / "data", [made("produced", 1), made("acked", 1)])
    (path,) = (data / "archive" / "_manifests").iterdir()
    manifest = json.loads(path.read_text())
    manifest["files"][0]["rows"] = 5
    path.write_text(json.dumps(manifest))
    code = run(["pipeline", "run", "compact", "--journal", str(data), "--out", str(tmp_path / "out")])
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert "has 2 rows, which differs from its manifest entry (5 rows)" in complaint
    assert code == 2
