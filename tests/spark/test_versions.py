"""Each version of Spark that is supported reads, follows and writes a broker, in an environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mqcore import sync
from served import ROOT, clean_environment, serving
from spark.recorded import HISTORY, LENIENT, Recorded, declare, java_or_skip

pytestmark = [
    *LENIENT[1:],
    pytest.mark.timeout(1800),
    pytest.mark.full("installs other versions of Spark; the other tests run with the newest one"),
]

CACHE = ROOT / ".pytest_cache" / "spark"
"""Directory of environments, kept between runs."""

VERSIONS = {"4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1", "4.3": None}
"""Newest releases by minor version; the last one is that of the test environment."""

QUEUES = ("orders/1", "logs/2")


@cache
def interpreter(minor: str) -> Path | str:
    """The interpreter of an environment with this version; made once. Otherwise, why there is none."""
    release = VERSIONS[minor]
    if release is None:
        return Path(sys.executable)
    place = CACHE / release
    python, done = place / "bin" / "python", place / "installed"
    if not done.exists():
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        command = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--no-deps",
        ]
        result = subprocess.run(
            [*command, f"pyspark=={release}"], capture_output=True, text=True, timeout=1500, check=False
        )
        if result.returncode != 0:
            return f"pyspark {release} cannot be installed here: {result.stderr.strip()[-300:]}"
        # Everything else comes from the environment of the tests; its own pyspark is found later.
        own = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
        own.joinpath("tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        done.touch()
    return python


@pytest.fixture(scope="module", params=list(VERSIONS))
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Findings of the job of one version, by cell, and the content of the target queues then."""
    java_or_skip()
    python = interpreter(request.param)
    if isinstance(python, str):
        pytest.skip(python)
    place = tmp_path_factory.mktemp(f"spark-{request.param}")
    arguments = ("--data-dir", str(place / "data"), "--admin", "http://127.0.0.1:0")
    with serving(*arguments, environment=HISTORY) as served:
        recorded = Recorded(place / "data", served)
        with sync.connect(served.url) as mq:
            declare(mq, *QUEUES, "target/1", "target/2")
            for queue in QUEUES:
                recorded.publish(mq, queue, 150)
        given = {
            "data_dir": str(place / "data"),
            "admin": served.admin_url,
            "url": served.url,
            "checkpoint": str(place / "checkpoint"),
            "crossing": str(place / "crossing"),
            "staging": str(place / "staging"),
            "config": {"spark.log.level": "OFF", "spark.sql.warehouse.dir": str(place / "warehouse")},
        }
        job = subprocess.run(
            [str(python), str(Path(__file__).with_name("version_job.py")), json.dumps(given)],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            cwd=place,
            env=clean_environment(),
        )
        lines = [json.loads(line) for line in job.stdout.splitlines() if line.startswith('{"cell"')]
        assert job.returncode == 0, job.stderr[-4000:]
        with sync.connect(served.url) as mq:
            targets = {queue: mq.queue(queue).pull(1000) for queue in ("target/1", "target/2")}
        yield {
            "minor": request.param,
            "sent": {queue: [body.decode() for body in bodies] for queue, bodies in recorded.bodies.items()},
            "targets": {queue: [(m.raw.decode(), dict(m.headers)) for m in found] for queue, found in targets.items()},
            **{line["cell"]: line for line in lines},
        }


def of_cell(results: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = results[name]
    assert "failed" not in found, found["failed"]
    assert found["version"].startswith(results["minor"])
    return found


def test_batches_of_all_versions(results: dict[str, Any]) -> None:
    found = of_cell(results, "batch")
    sent = sorted(body for bodies in results["sent"].values() for body in bodies)
    assert found["columns"] == ["key", "value", "channel", "queue_id", "sequence", "timestamp", "shard"]
    assert found["values"] == found["remote"] == found["texts"] == sent
    assert found["filtered"] == 150
    assert "did you mean subscribe?" in found["error"].splitlines()[0]
    assert "Traceback" not in found["error"]


def test_streams_of_all_versions(results: dict[str, Any]) -> None:
    found = of_cell(results, "stream")
    sent = sorted(body for bodies in results["sent"].values() for body in bodies)
    assert found["values"] == sent
    assert found["again"] == 0
    assert found["lag"] == 0
    assert "endingOffsets is only for spark.read" in found["reason"]
    if results["minor"] in {"4.0", "4.1"}:
        assert "maxOffsetsPerTrigger needs Spark 4.2 or newer" in found["refused"]
    else:
        assert found["largest"] <= 40


def test_sinks_of_all_versions(results: dict[str, Any]) -> None:
    of_cell(results, "sink")
    batch, stream = results["targets"]["target/1"], results["targets"]["target/2"]
    assert sorted(value for value, _ in batch) == sorted(f"batch {number}" for number in range(20))
    assert all(headers["n"] == value.removeprefix("batch ") for value, headers in batch)
    assert sorted(value for value, _ in stream) == sorted(results["sent"]["logs/2"])
    assert all(headers["Source"] == "logs/2" for _, headers in stream)
