"""The last part: Spark pipelines over the history of the durable part, if Spark is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run"]

_PIPELINES: Final = ("lifecycle", "reconcile")


def run(data_dir: Path, talk: Console) -> bool:
    """Run pipelines with the command line, print the paths of their reports, and return whether they found no error.

    Without Spark or Java, print what is missing and return true.
    """
    if reason := _missing():
        talk.print(f"pipelines skipped: {reason}", highlight=False, markup=False)
        return True
    out = Path(tempfile.mkdtemp(prefix="mqcore-demo-reports-"))
    arguments = ("--journal", str(data_dir), "--out", str(out), "--master", "local[2]", "--set", "interval=1")
    command = [sys.executable, "-m", "mqcore", "pipeline", "run", *_PIPELINES, *arguments]
    # A process of its own, so that Spark's processes end with it. Its progress bar and result are shown.
    code = subprocess.run(command, check=False).returncode  # noqa: S603 (fixed arguments)
    for name in _PIPELINES:
        report = out / f"{name}.html"
        print(f"pipeline {name}: {report}" if report.exists() else f"pipeline {name}: failed")
    return code == 0


def _missing() -> str | None:
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed; pip install 'mqcore[spark]'"
    from mqcore.spark.jvm import JavaMissing, find_java

    try:
        find_java()
    except JavaMissing as error:
        return str(error)
    return None
