"""The bundle alone: what an executor imports and reads without mqcore. test_cluster.py runs it on a cluster."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from mqcore.spark.bundle import bundle
from served import clean_environment
from spark.bundled import executors_python
from spark.recorded import LENIENT, Recorded

pytestmark = [*LENIENT, pytest.mark.skipif(sys.platform == "win32", reason="makes a shell script and links")]

READING = """
import sys
from mqcore.spark.origin import Directory
from mqcore.spark.plan import Plan

origin, request = Directory(sys.argv[1]), Plan.request_of("steps", ["kind"])
pieces = origin.pieces(request, [(end.shard, 0, end.latest) for end in origin.ends()], 1 << 30)
rows = [rows for piece in pieces for rows in origin.read(request, piece, fail=True)]
print(sum(kind == "acked" for batch in rows for kind in batch.column("kind").to_pylist()))
"""


def test_a_python_with_nothing_but_the_bundle_reads_a_history(recorded: Recorded, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    settings = bundle(tmp_path / "bundle.tar.gz")
    assert settings["spark.archives"] == f"{tmp_path / 'bundle.tar.gz'}#mqcore_bundle"
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        archive.extractall(tmp_path / "mqcore_bundle", filter="data")
    python, links = executors_python(tmp_path)
    without = subprocess.run([python, "-c", "import mqcore"], capture_output=True, check=False, env=clean_environment())
    assert without.returncode != 0, "this Python must not know mqcore by itself"
    environment = {**clean_environment(), "PYTHONPATH": f"{tmp_path / 'mqcore_bundle'}:{links}"}
    read = [str(python), "-c", READING, str(recorded.data_dir)]
    result = subprocess.run(read, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == recorded.acked
