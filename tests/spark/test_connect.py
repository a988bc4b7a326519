"""Spark Connect: batches and streams in both directions, with nothing registered manually."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mqcore import sync
from mqcore.spark.jvm import ensure_java
from served import clean_environment
from spark.recorded import LENIENT, Recorded, drain, java_or_skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = LENIENT


def test_format_is_found_without_registration(spark: SparkSession, recorded: Recorded) -> None:
    other = spark.newSession()  # mqcore.spark.session() registers the format in its own session only
    assert other.read.format("mqcore").option("subscribe", "logs").load(str(recorded.data_dir)).count() == 800


@pytest.mark.full("starts a server; test_format_is_found_... reads without it, test_sink.py and test_stream.py write")
@pytest.mark.skipif(sys.platform != "linux", reason="ends a group of processes")
def test_connect_reads_follows_and_writes(live: Recorded, tmp_path: Path) -> None:
    java_or_skip()
    pytest.importorskip("grpc")
    with sync.connect(live.served.url) as mq:
        live.publish(mq, "orders/1", 500)
        live.publish(mq, "logs/2", 50)
    sink = {"url": live.served.url, "admin": live.served.admin_url}
    given = {
        "data_dir": str(live.data_dir),
        "checkpoint": str(tmp_path / "checkpoint"),
        "sink": {**sink, "queue": "target/1", "stagingLocation": str(tmp_path / "staging")},
        "stream": {**sink, "queue": "target/2"},
    }
    environment = {
        **clean_environment(),
        "JAVA_HOME": str(ensure_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    job = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("connect_job.py")), json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=600)
    finally:
        # The server that the client started is of its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, output[-4000:]
    # The server writes to the same place.
    assert [json.loads(line) for line in output.splitlines() if line.startswith('{"read"')] == [
        {"read": 500, "logs": 0}
    ]
    assert drain(live.served.url, "target/1") == live.bodies["orders/1"]
    assert drain(live.served.url, "target/2") == live.bodies["orders/1"]
