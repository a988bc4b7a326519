"""How fast Spark reads, follows and writes a broker, beside what it does with files of the same messages.

    maturin develop --release
    python benches/spark/speed.py [--messages 400000] [--only reading,archive,stream,latency,sink]

One session of ``local[2]``; every scan ends in Spark's ``noop`` sink, which makes every row. A figure is the best of
three runs. Bodies are JSON of some 540 octets.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mqcore.spark
from mqcore import QueueOptions, QueueStatus, sync
from mqcore.spark.archive import newest_manifest

RUNS = 3
QUEUES = ("orders/1", "orders/2", "logs/1", "logs/2")
BODY = json.dumps({"n": 0, "text": "x" * 500, "price": 12.5})


@contextlib.contextmanager
def serving(data_dir: Path, **settings: str) -> Iterator[dict[str, Any]]:
    """Run a broker, and stop it in order."""
    environment = {**os.environ, "MQCORE_HISTORY": "on", "MQCORE_HISTORY_MAX_BYTES": str(8 << 30), **settings}
    command = [sys.executable, "-m", "mqcore", "serve", "--data-dir", str(data_dir), "--listen", "tmqp://127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--admin", "http://127.0.0.1:0"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def url(ready: dict[str, Any]) -> str:
    """Return where a broker listens."""
    return f"tmqp://{ready['listeners']['tmqp']}"


def declare(mq: sync.Client, queue: str, handler: str) -> None:
    """Make a queue that is pulled from."""
    channel, _, number = queue.rpartition("/")
    mq.declare(channel, int(number), QueueOptions(status=QueueStatus.PULL, delivery_handler=handler))


def fill(data_dir: Path, messages: int) -> None:
    """Publish so many messages to a broker whose history stays in its journal."""
    with serving(data_dir, MQCORE_ARCHIVE="off") as ready, sync.connect(url(ready)) as mq:
        for queue in QUEUES:
            declare(mq, queue, "memory")
        for first in range(0, messages, 4000):
            bodies = [BODY.replace('"n": 0', f'"n": {first + n}') for n in range(4000)]
            mq.publish_many(QUEUES[first // 4000 % len(QUEUES)], bodies)


def best(work: Callable[[], object]) -> float:
    """Seconds of the quickest of some runs."""
    took = []
    for _ in range(RUNS):
        start = time.monotonic()
        work()
        took.append(time.monotonic() - start)
    return min(took)


def scan(rows: Any) -> None:
    """Make every row, and keep none."""
    rows.write.format("noop").mode("overwrite").save()


def tell(what: str, rows: int, seconds: float) -> float:
    """Print a figure, and return the rate."""
    rate = rows / seconds
    print(f"{what:58} {seconds:8.2f} s {rate:12,.0f} rows/s", flush=True)
    return rate


def reading(spark: Any, place: Path, data_dir: Path, messages: int) -> None:
    """Sealed segments beside files of the same rows."""
    rows = spark.read.format("mqcore").load(str(data_dir))
    rows.write.mode("overwrite").option("compression", "zstd").parquet(str(place / "zstd"))
    rows.write.mode("overwrite").option("compression", "none").parquet(str(place / "plain"))
    text = rows.selectExpr("string(key) key", "string(value) value", *rows.columns[2:])
    text.write.mode("overwrite").json(str(place / "lines"))
    mq = tell('format("mqcore"), all default columns', messages, best(lambda: scan(rows)))
    few = spark.read.format("mqcore").option("columns", "queue_id,sequence,timestamp").load(str(data_dir))
    tell('format("mqcore"), three columns', messages, best(lambda: scan(few)))
    lines = tell(
        "JSON lines, explicit schema",
        messages,
        best(lambda: scan(spark.read.schema(text.schema).json(str(place / "lines")))),
    )
    zstd = tell("Parquet of Spark's, zstd", messages, best(lambda: scan(spark.read.parquet(str(place / "zstd")))))
    plain = tell(
        "Parquet of Spark's, uncompressed", messages, best(lambda: scan(spark.read.parquet(str(place / "plain"))))
    )
    print(f"  {mq / lines:.1f} x JSON lines, {mq / zstd:.2f} x Parquet zstd, {mq / plain:.2f} x Parquet uncompressed")


def archive(spark: Any, place: Path, data_dir: Path, messages: int) -> None:
    """The archive beside Parquet that Spark wrote of the same rows."""
    with serving(data_dir, MQCORE_ARCHIVE_INTERVAL="100ms"):
        while True:
            manifest = newest_manifest(data_dir / "archive") or {"files": []}
            if sum(file["rows"] for file in manifest["files"] if file["table"] == "messages") >= messages:
                break
            time.sleep(0.5)
    relation = mqcore.spark.archive(spark, data_dir)
    relation.write.mode("overwrite").option("compression", "zstd").parquet(str(place / "hand"))
    hand = best(lambda: scan(spark.read.parquet(str(place / "hand"))))
    ours = best(lambda: scan(mqcore.spark.archive(spark, data_dir)))
    tell("the archive as a Parquet relation", messages, ours)
    tell("the same rows as Parquet of Spark's, zstd", messages, hand)
    print(f"  {hand / ours:.2f} x hand-made Parquet")
    source = spark.read.format("mqcore").load(str(data_dir))
    tell('format("mqcore") over the archive', messages, best(lambda: scan(source)))


def stream(spark: Any, place: Path, data_dir: Path, messages: int) -> None:
    """A stream from the beginning to the end of what there is."""
    number = iter(range(100))

    def run() -> None:
        rows = spark.readStream.format("mqcore").option("startingOffsets", "earliest").load(str(data_dir))
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(place / f"checkpoint{next(number)}"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    tell("stream of what is available, start and stop included", messages, best(run))


def latency(spark: Any, place: Path) -> None:
    """How old a message is when its row is there."""
    ages: list[float] = []
    with serving(place / "living") as ready, sync.connect(url(ready)) as mq:
        declare(mq, "orders/1", "at-least-once")
        rows = spark.readStream.format("mqcore").option("columns", "value").load(str(place / "living"))

        def take(batch: Any, _number: int) -> None:
            found = [float(row["value"]) for row in batch.collect()]
            ages.extend(time.time() - at for at in found)

        query = rows.writeStream.foreachBatch(take).trigger(processingTime="1 second")
        running = query.option("checkpointLocation", str(place / "latency")).start()
        end = threading.Event()

        def produce() -> None:
            while not end.wait(0.05):
                # The time at which the receipt came is a little later, so this is not too good.
                mq.publish("orders/1", repr(time.time()))

        thread = threading.Thread(target=produce)
        thread.start()
        time.sleep(25)
        end.set()
        thread.join()
        time.sleep(3)
        running.stop()
    late = sorted(ages[len(ages) // 3 :])
    print(
        f"from publishing to the row, trigger 1 s: p50 {late[len(late) // 2]:.2f} s, "
        f"p99 {late[int(len(late) * 0.99)]:.2f} s, largest {late[-1]:.2f} s ({len(late)} rows)",
        flush=True,
    )


def sink(spark: Any, place: Path, messages: int) -> None:
    """Rows to a queue that saves."""
    with serving(place / "target") as ready:
        with sync.connect(url(ready)) as mq:
            declare(mq, "target/1", "at-least-once")
        rows = spark.range(0, messages, 1, 2).selectExpr(f"concat(string(id), '{'x' * 120}') as value")
        number = iter(range(100))

        def run() -> None:
            writer = (
                rows.write.format("mqcore").mode("append").option("stagingLocation", str(place / f"s{next(number)}"))
            )
            writer.options(url=url(ready), queue="target/1", admin=f"http://{ready['admin']}").save()

        tell("sink, 130 octets, confirmed as saved by fsync", messages, best(run))


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--only", default="reading,archive,stream,latency,sink")
    given = parser.parse_args()
    only = given.only.split(",")
    config = {"spark.log.level": "OFF", "spark.driver.memory": "2g"}
    spark = mqcore.spark.session("local[2]", config=config)
    with tempfile.TemporaryDirectory() as folder:
        place, data_dir = Path(folder), Path(folder) / "data"
        if {"reading", "archive", "stream"} & set(only):
            fill(data_dir, given.messages)
        if "reading" in only:
            reading(spark, place, data_dir, given.messages)
        if "stream" in only:
            stream(spark, place, data_dir, given.messages)
        if "archive" in only:
            archive(spark, place, data_dir, given.messages)
        if "latency" in only:
            latency(spark, place)
        if "sink" in only:
            sink(spark, place, given.messages // 2)
        spark.stop()


if __name__ == "__main__":
    main()
