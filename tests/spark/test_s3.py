"""Real Spark reads the archive from a real S3 API: the broker serves only what is not archived yet."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mqcore import sync
from object_stores import BUCKET, ObjectStore, moto_server, relayed, relaying
from served import ServedBroker, clean_environment, serving, wait_until
from spark.clusters import Cluster
from spark.maven import jars_or_skip, listed, s3_settings
from spark.recorded import HISTORY, LENIENT, declare, java_or_skip

pytest.importorskip("moto")

pytestmark = [
    *LENIENT[1:],
    pytest.mark.timeout(1800),
    pytest.mark.full("archives and reads 200,000 messages; test_bulk.py reads an archive in a directory"),
    pytest.mark.skipif(sys.platform != "linux", reason="starts and kills groups of processes"),
]

COUNT = 200_000
"""Archived messages."""
TAIL = 500
"""Messages that a test adds, and that are not archived."""
QUEUES = tuple(f"orders/{number}" for number in range(6))
URL = f"s3://{BUCKET}/company/orders"
ARCHIVED = 600.0
"""Seconds until everything is archived: the thread has a low priority and is slow while others use all processors."""


def body(number: int) -> bytes:
    """A body of 440 bytes that proves that it is intact, and that compresses to less than half of its size."""
    lines = [hashlib.sha256(f"{number} {line}".encode()).hexdigest() for line in range(5)]
    return json.dumps({"n": number, "proof": hashlib.sha256(str(number).encode()).hexdigest(), "lines": lines}).encode()


def publish(broker: ServedBroker, first: int, count: int) -> None:
    with sync.connect(broker.url) as mq:
        for start in range(first, first + count, 5000):
            numbers = range(start, min(start + 5000, first + count))
            for index, queue in enumerate(QUEUES):
                mq.publish_many(queue, [body(number) for number in numbers if number % len(QUEUES) == index])


def archived(store: ObjectStore) -> int:
    """Messages in the archive, as the tables' metadata tells PyIceberg; 0 while one of the tables is behind."""
    from test_object_archive import table

    try:
        snapshots = [table(store, URL, name).current_snapshot() for name in ("messages", "steps")]
    except ValueError:
        return 0
    if None in snapshots or len({snapshot.summary["mqcore.shards"] for snapshot in snapshots}) != 1:
        return 0
    return int(snapshots[0].summary["total-records"])


@dataclass
class Lake:
    """An archive on S3 and the data directory of its broker, which is down."""

    store: ObjectStore
    data_dir: Path

    def copied(self, place: Path) -> Lake:
        """The same with another data directory, so that what is published there reaches no other test."""
        return Lake(self.store, Path(shutil.copytree(self.data_dir, place)))

    def serving(self, **more: str) -> contextlib.AbstractContextManager[ServedBroker]:
        """Its broker."""
        settings = {**HISTORY, **self.store.environment, "MQCORE_ARCHIVE_URL": URL, **more}
        return serving("--data-dir", str(self.data_dir), "--admin", "http://127.0.0.1:0", environment=settings)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    java_or_skip()
    jars_or_skip("s3")
    with moto_server() as store:
        made = Lake(store, tmp_path_factory.mktemp("s3") / "data")
        with made.serving() as broker:
            with sync.connect(broker.url) as mq:
                declare(mq, *QUEUES)
            publish(broker, 0, COUNT)
            wait_until(lambda: archived(store) == COUNT, limit=ARCHIVED, what="the archive of all messages")
            assert broker.terminate() == 0
        yield made


class Driver:
    """A program of Spark that reads from S3."""

    def __init__(self, store: ObjectStore, master: str, **config: str) -> None:
        settings = {"spark.jars": listed(jars_or_skip("s3")), **s3_settings(store), **config}
        given = {"master": master, "config": settings}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("s3_job.py")), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment() | store.environment,
        )

    def read(self, **request: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"source": URL, **request}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the driver ended; its reason is on stderr"
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def driver(store: ObjectStore, master: str, **config: str) -> Iterator[Driver]:
    running = Driver(store, master, **config)
    try:
        yield running
    finally:
        for end in (running.process.stdin, running.process.stdout):
            if end is not None:
                end.close()
        try:
            running.process.wait(60)
        finally:
            running.process.kill()


def check(found: dict[str, Any], count: int) -> None:
    """Each of the messages 0, 1, ... is there exactly once, and intact."""
    expected = {"rows": count, "different": count, "first": 0, "last": count - 1, "intact": count}
    assert {name: found[name] for name in expected} == expected
    assert found["queues"] == len(QUEUES)


@pytest.mark.parametrize("reader", ["read", "format"])
def test_spark_reads_s3_itself_and_the_broker_sends_only_the_tail(lake: Lake, tmp_path: Path, reader: str) -> None:
    with relayed(lake.store) as (relay, s3), driver(relay, "local[2]") as spark:
        check(spark.read(reader=reader), COUNT)
        from_s3 = s3.sent
        sizes = lake.store.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix="company/orders/messages"
        )
        stored = sum(found["Size"] for page in sizes for found in page["Contents"] if found["Key"].endswith(".parquet"))
        # All columns of the files but these few were read, so the counter of the relay works.
        assert from_s3 > stored / 4
        # Its first round has nothing to archive, and the second one is too late for the tail.
        with lake.copied(tmp_path / "data").serving(MQCORE_ARCHIVE_INTERVAL="1h") as broker:
            publish(broker, COUNT, TAIL)
            with relaying(broker.admin_url) as (admin, tail):
                check(spark.read(admin=admin, reader=reader), COUNT + TAIL)
                again = s3.sent - from_s3
        print(f"{reader}: {COUNT} + {TAIL} messages: {again} bytes from S3, {tail.sent} bytes from the broker")
        # A tail that did not pass the relay would prove nothing.
        assert tail.sent > TAIL * 64
        assert tail.sent <= again * 0.02
        assert archived(lake.store) == COUNT


@pytest.mark.timeout(900)
@pytest.mark.parametrize("reader", ["read", "format"])
def test_executors_of_a_cluster_read_s3_while_the_broker_is_down(lake: Lake, tmp_path: Path, reader: str) -> None:
    cluster = Cluster(tmp_path)
    try:
        for cores in (1, 2):
            settings = {"spark.driver.host": "127.0.0.1", "spark.cores.max": str(cores), "spark.executor.cores": "1"}
            with driver(lake.store, cluster.url, **settings) as spark:
                spark.read(reader=reader)
                found = spark.read(reader=reader)
            check(found, COUNT)
            assert found["executors"] - 1 == cores
            print(f"{reader}: {cores} executors with one core: {found['rows'] / found['seconds']:.0f} messages/s")
    finally:
        for process in cluster.processes:
            cluster.kill(process)
