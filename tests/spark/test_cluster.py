"""A standalone cluster of two workers whose Python knows mqcore from the bundle only, and one worker that is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqcore import sync
from mqcore.spark.bundle import bundle
from served import clean_environment, wait_until
from spark.told import LENIENT, Told, drain, java_or_skip

pytestmark = [*LENIENT, pytest.mark.skipif(sys.platform != "linux", reason="starts and kills groups of processes")]

LIMIT = 120.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Cluster:
    """One master and two workers on this machine."""

    def __init__(self, place: Path) -> None:
        import pyspark

        self.place = place
        self.home = Path(pyspark.__file__).parent
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self.lines: list[str] = []
        self.processes: list[subprocess.Popen[str]] = []
        self.start("master.Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        wait_until(lambda: self.said("I have been elected leader"), limit=LIMIT, what="the master")
        for number in (1, 2):
            work = place / f"worker{number}"
            options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0")
            self.start("worker.Worker", *options, "--work-dir", str(work), self.url)
        wait_until(lambda: self.said("Registering worker") >= 2, limit=LIMIT, what="both workers")

    def said(self, words: str) -> int:
        return sum(words in line for line in self.lines)

    def start(self, name: str, *arguments: str) -> None:
        environment = {**clean_environment(), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(self.home)}
        process = subprocess.Popen(
            [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.processes.append(process)
        threading.Thread(target=lambda: self.lines.extend(process.stderr or ()), daemon=True).start()

    def kill(self, process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    java_or_skip()
    running = Cluster(tmp_path)
    yield running
    for process in running.processes:
        running.kill(process)


def executors_python(place: Path) -> tuple[Path, Path]:
    """A Python that finds no site-packages, and a directory with what executors need besides the bundle."""
    import numpy
    import pandas
    import pyarrow

    links = place / "links"
    links.mkdir()
    for module in (pyarrow, numpy, pandas):
        origin = Path(module.__file__ or "").parent
        for path in (origin, *origin.parent.glob(f"{origin.name}.libs")):
            (links / path.name).symlink_to(path)
    for name in ("pytz", "dateutil", "six.py", "tzdata"):
        if (found := Path(pyarrow.__file__).parents[1] / name).exists():
            (links / name).symlink_to(found)
    python = place / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return python, links


def test_two_workers_read_and_write_with_nothing_but_the_bundle_and_one_may_die(
    cluster: Cluster, living: Told, tmp_path: Path
) -> None:
    with sync.connect(living.served.url) as mq:
        for _ in range(10):
            living.publish(mq, "orders/1", 400)
    config = bundle(tmp_path / "bundle.tar.gz")
    python, links = executors_python(tmp_path)
    unpacked = tmp_path / "driver"
    subprocess.run(["tar", "-xf", str(tmp_path / "bundle.tar.gz"), f"--one-top-level={unpacked}"], check=True)
    config["spark.executorEnv.PYTHONPATH"] += f":{links}"
    config["spark.pyspark.python"] = str(python)
    config["spark.pyspark.driver.python"] = sys.executable
    given: dict[str, Any] = {
        "master": cluster.url,
        "config": config,
        "data_dir": str(living.data_dir),
        "sink": {
            "url": living.served.url,
            "queue": "target/1",
            "admin": living.served.admin_url,
            "stagingLocation": str(tmp_path / "staging"),
        },
    }
    # The driver's own helpers run on the executors' Python, and find mqcore where the driver says.
    environment = {**clean_environment(), "PYSPARK_PYTHON": str(python), "PYTHONPATH": f"{unpacked}:{links}"}
    probe = subprocess.run([python, "-c", "import mqcore"], capture_output=True, check=False, env=clean_environment())
    assert probe.returncode != 0, "the executors' Python must not know mqcore by itself"
    job = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("cluster_job.py")), json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    errors: list[str] = []
    assert job.stderr is not None
    listener = threading.Thread(target=lambda: errors.extend(job.stderr or ()), daemon=True)
    listener.start()
    assert job.stdout is not None
    first = job.stdout.readline()
    assert first, "".join(errors)[-4000:]
    kinds = json.loads(first)["kinds"]
    assert kinds["produced"] == 4000
    cluster.kill(cluster.processes[-1])
    rest = job.stdout.read()
    assert job.wait(LIMIT) == 0, "".join(errors)[-4000:]
    assert json.loads(rest)["workers"] >= 1
    listener.join()
    job.stdout.close()
    job.stderr.close()
    found = drain(living.served.url, "target/1")
    assert Counter(found) == Counter(living.bodies["orders/1"])
