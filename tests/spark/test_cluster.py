"""A standalone cluster of two workers whose Python knows mqcore from the bundle only, and workers that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from mqcore import sync
from mqcore.spark import pipelines
from mqcore.spark.bundle import bundle
from served import clean_environment, wait_until
from spark.bundled import executors_python
from spark.clusters import LIMIT, Cluster
from spark.eventful import recorded_kinds
from spark.recorded import LENIENT, Recorded, drain, java_or_skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    *LENIENT[1:],
    pytest.mark.timeout(900),
    pytest.mark.full("starts a cluster; test_bundle.py reads with the bundle only, test_ledger.py kills in a write"),
    pytest.mark.skipif(sys.platform != "linux", reason="starts and kills groups of processes"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    java_or_skip()
    running = Cluster(tmp_path)
    yield running
    for process in running.processes:
        running.kill(process)


def told_by(job: subprocess.Popen[str], errors: list[str]) -> Iterator[dict[str, Any]]:
    """The output of the job, line by line."""
    assert job.stdout is not None
    for line in job.stdout:
        yield json.loads(line)
    pytest.fail(f"the job said nothing more: {''.join(errors)[-4000:]}")


def tables(outcome: pipelines.Outcome | Path) -> dict[str, list[Any]]:
    """The tables of a pipeline, in an order that does not depend on who wrote them."""
    places = (
        {path.name: path for path in outcome.iterdir() if not path.name.startswith(".")}
        if isinstance(outcome, Path)
        else outcome.tables
    )
    return {name: sorted(map(str, pq.read_table(path).to_pylist())) for name, path in places.items()}


def test_two_workers_that_know_nothing_but_the_bundle_do_the_same_as_one_machine_while_each_dies_in_turn(
    spark: SparkSession, cluster: Cluster, live: Recorded, tmp_path: Path
) -> None:
    with sync.connect(live.served.url) as mq:
        for _ in range(10):
            live.publish(mq, "orders/1", 400)
        for message in mq.queue("orders/1").pull(1000):
            message.ack()
    wait_until(lambda: recorded_kinds(live.data_dir)["acked"] == 1000, limit=LIMIT, what="the history")
    alone = pipelines.run("lifecycle", spark, live.data_dir, tmp_path / "alone", interval=1)
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
        "data_dir": str(live.data_dir),
        "out": str(tmp_path / "together"),
        "sink": {
            "url": live.served.url,
            "queue": "target/1",
            "admin": live.served.admin_url,
            "stagingLocation": str(tmp_path / "staging"),
        },
    }
    # The driver's own helpers run on the executors' Python, and find mqcore where the driver says.
    environment = {**clean_environment(), "PYSPARK_PYTHON": str(python), "PYTHONPATH": f"{unpacked}:{links}"}
    probe = subprocess.run([python, "-c", "import mqcore"], capture_output=True, check=False, env=clean_environment())
    assert probe.returncode != 0, "the executors' Python must not know mqcore by itself"
    job = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("cluster_job.py")), json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert job.stdin is not None
    assert job.stdout is not None
    errors: list[str] = []
    listener = threading.Thread(target=lambda: errors.extend(job.stderr or ()), daemon=True)
    listener.start()
    lines = told_by(job, errors)
    # The second step is begun, so what the first one left on both workers is partly gone.
    next(line for line in lines if line.get("step") == "losses")
    cluster.kill(cluster.workers[1])
    figures = next(line for line in lines if "figures" in line)["figures"]
    assert figures == alone.figures
    assert tables(tmp_path / "together" / "lifecycle") == tables(alone)
    assert figures["acked"] == 1000
    cluster.add_worker()
    job.stdin.write("\n")
    job.stdin.flush()
    wait_until(lambda: any((tmp_path / "staging").rglob("*.arrow")) or job.poll() is not None, limit=LIMIT, what="rows")
    cluster.kill(cluster.workers[0])
    assert next(line for line in lines if "workers" in line)["workers"] >= 1
    assert job.wait(LIMIT) == 0, "".join(errors)[-4000:]
    listener.join()
    for end in (job.stdin, job.stdout, job.stderr):
        assert end is not None
        end.close()
    found = drain(live.served.url, "target/1")
    assert Counter(found) == Counter(live.bodies["orders/1"])
