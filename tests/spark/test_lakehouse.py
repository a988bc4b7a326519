"""Tables of Delta and Iceberg as targets of a stream: each message once, however often the query is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from depth import choices, rounds
from mqcore import sync
from served import clean_environment
from spark.maven import jars_or_skip, listed
from spark.recorded import LENIENT, Recorded, java_or_skip
from spark.test_versions import interpreter

ROUNDS = rounds("LAKEHOUSE", quick=1, full=6)
ROWS = 400

pytestmark = [
    *LENIENT[1:],
    pytest.mark.timeout(600 + 300 * ROUNDS),
    pytest.mark.full("installs another version of Spark, and starts it anew after each kill"),
    pytest.mark.skipif(sys.platform != "linux", reason="kills a group of processes"),
]
SPARK = "4.1"
"""Version that both formats support."""


def config(name: str, place: Path) -> dict[str, str]:
    """Settings of a session, as docs/spark.md lists them."""
    common = {"spark.jars": listed(jars_or_skip(name)), "spark.log.level": "OFF"}
    if name == "delta":
        return common | {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.warehouse.dir": str(place / "warehouse"),
        }
    return common | {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(place / "warehouse"),
    }


def start(python: Path | str, given: dict[str, Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(python), str(Path(__file__).with_name("lakehouse_job.py")), json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if not given["follow"] else subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
        start_new_session=True,
    )


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_each_message_is_in_the_table_once_although_the_query_is_killed(
    name: str, live: Recorded, tmp_path: Path
) -> None:
    java_or_skip()
    python = interpreter(SPARK)
    if isinstance(python, str):
        pytest.skip(python)
    chance = choices(f"{__name__} {name}")
    given = {
        "format": name,
        "config": config(name, tmp_path),
        "data_dir": str(live.data_dir),
        "checkpoint": str(tmp_path / "checkpoint"),
        "table": str(tmp_path / "table") if name == "delta" else "lake.events.orders",
    }
    with sync.connect(live.served.url) as mq:
        for _ in range(ROUNDS):
            live.publish(mq, "orders/1", ROWS)
            process = start(python, {**given, "follow": True})
            assert process.stdout is not None
            batches = 0
            for line in process.stdout:
                # Further messages make further batches, one of which is killed.
                live.publish(mq, "orders/7", ROWS // 4)
                batches += line.startswith('{"batch"')
                if batches == 3:
                    break
            assert batches == 3, "the query failed"
            live.publish(mq, "logs/2", ROWS)
            time.sleep(chance.random())
            assert process.poll() is None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
    last = start(python, {**given, "follow": False})
    out, err = last.communicate(timeout=600)
    assert last.returncode == 0, err[-4000:]
    bodies, about = (json.loads(line) for line in out.splitlines()[1:])
    sent = Counter(body.decode() for bodies in live.bodies.values() for body in bodies)
    assert Counter(bodies["bodies"]) == sent
    assert about["version"].startswith(SPARK)
    assert about["commits"] > 3 * ROUNDS
