"""One Spark session for all tests here, and a broker whose history is also counted without Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import mqcore.journal
from damaged_files import use_old_placement
from mqcore import QueueOptions, QueueStatus, sync
from mqcore.spark.jvm import JavaMissing, ensure_java
from served import ServedBroker, serving, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORY = {"MQCORE_SHARDS": "2", "MQCORE_HISTORY": "on", "MQCORE_ARCHIVE_INTERVAL": "300ms"}
QUEUES = ("orders/1", "orders/7", "logs/2", "Mixed-Case/0")
SAVING = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")

ARCHIVE_SECONDS = 200.0
"""Longest wait for the archive: its thread has a low priority and is slow while others use all processors."""

# Spark and its processes leave resources open, and they start slowly on a busy machine.
# Tests that need a longer timeout leave out the first mark.
LENIENT = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# Each of these pipelines takes many seconds, and all read, group and report in the same way. The reconciliation,
# the replay and the common parts of pipelines are tested in each run.
IN_TURN = pytest.mark.in_turn(
    "test_features",
    *(f"test_pipeline_{name}" for name in ("anomalies", "cost", "fates", "letters", "lifecycle", "limits", "quality")),
    *(f"test_pipeline_{name}" for name in ("sessions", "site", "sources")),
)


def java_or_skip() -> None:
    """Skip, and say why, where Spark cannot run."""
    try:
        ensure_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    pytest.importorskip("pyspark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real session with two cores. Tasks that fail are tried again, as on a cluster."""
    java_or_skip()
    import mqcore.spark

    warehouse = tmp_path_factory.mktemp("warehouse")
    settings = {"spark.log.level": "OFF", "spark.sql.warehouse.dir": str(warehouse), "spark.driver.memory": "1g"}
    session = mqcore.spark.session("local[2,4]", config=settings)
    from pyspark.logger import PySparkLogger

    # pytest adds its handler to loggers of Spark. They would give it a format that calls `str` of every exception,
    # also in later tests of this process.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PySparkLogger, "addHandler", logging.Logger.addHandler)
        yield session
    session.stop()


@dataclass
class Recorded:
    """A broker's directory, and what its clients did."""

    data_dir: Path
    served: ServedBroker
    bodies: dict[str, list[bytes]] = field(default_factory=dict)
    """Published messages, by queue and in order."""
    acked: int = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.bodies.values()))

    def publish(self, mq: sync.Client, queue: str, count: int) -> None:
        known = self.bodies.setdefault(queue, [])
        new = [json.dumps({"queue": queue, "n": len(known) + n}).encode() for n in range(count)]
        mq.publish_many(queue, new, headers={"Source": queue, "Empty": ""})
        known += new

    def steps(self) -> list[dict[str, Any]]:
        """Every step, as the journal's own export and pyarrow tell it: nothing of what is tested takes part in it."""
        rows: list[dict[str, Any]] = []
        for path in sorted((self.data_dir / "archive" / "steps").rglob("*.parquet")):
            rows += pa.parquet.ParquetFile(path).read().to_pylist()
        archived = {(row["shard"], row["note"], row["position"]) for row in rows}
        exported = self.data_dir.with_name(f"{self.data_dir.name}.arrow")
        mqcore.journal.history(self.data_dir).write(exported, "arrow")
        with pa.ipc.open_stream(exported.read_bytes()) as reader:
            later = [row for batch in reader for row in batch.to_pylist()]
        exported.unlink()
        return rows + [row for row in later if (row["shard"], row["note"], row["position"]) not in archived]


def declare(mq: sync.Client, *queues: str) -> None:
    for queue in queues:
        channel, _, number = queue.rpartition("/")
        mq.declare(channel, int(number), SAVING)


def archived(data_dir: Path, least: int) -> bool:
    """Whether so many messages are in the archive."""
    from mqcore.spark.archive import newest_manifest

    manifest = newest_manifest(data_dir / "archive")
    return manifest is not None and sum(f["rows"] for f in manifest["files"] if f["table"] == "messages") >= least


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Part of the history is in the archive, the rest in the journal; the broker was killed and is gone."""
    import pyarrow.parquet  # noqa: F401 (used by Recorded)

    data_dir = tmp_path_factory.mktemp("recorded")
    use_old_placement(data_dir, HISTORY["MQCORE_SHARDS"])  # Its channels are on both shards.
    with serving("--data-dir", str(data_dir), "--auto-create", environment=HISTORY) as served:
        work = Recorded(data_dir, served)
        with sync.connect(served.url) as mq:
            declare(mq, *QUEUES)
            for queue in QUEUES:
                work.publish(mq, queue, 500)
            for message in mq.queue("orders/1").pull(200):
                message.ack()
                work.acked += 1
            wait_until(lambda: archived(data_dir, work.count), limit=ARCHIVE_SECONDS, what="the archive")
    # With the archive off, what comes now stays in the journal.
    with serving("--data-dir", str(data_dir), environment={**HISTORY, "MQCORE_ARCHIVE": "off"}) as served:
        work.served = served
        with sync.connect(served.url) as mq:
            for queue in QUEUES:
                work.publish(mq, queue, 300)
        served.process.kill()
    return work


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Recorded]:
    """A broker that runs, with an admin side and an archive."""
    data_dir = tmp_path / "live"
    use_old_placement(data_dir, HISTORY["MQCORE_SHARDS"])  # Its channels are on both shards.
    arguments = ("--data-dir", str(data_dir), "--admin", "http://127.0.0.1:0")
    with serving(*arguments, environment=HISTORY) as served:
        with sync.connect(served.url) as mq:
            declare(mq, *QUEUES, "target/1", "target/2")
        yield Recorded(data_dir, served)


def drain(url: str, queue: str) -> list[bytes]:
    """Take everything out of a queue."""
    found: list[bytes] = []
    with sync.connect(url) as mq:
        while left := mq.queue(queue).information().messages:
            for message in mq.queue(queue).pull(min(left, 1000)):
                found.append(message.raw)
                message.ack()
    return found


def eventually(condition: Any, limit: float = 60.0) -> None:
    wait_until(condition, limit=limit)
