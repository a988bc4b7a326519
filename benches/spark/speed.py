"""How fast Spark reads, follows and writes a broker, beside what it does with files of the same messages.

    maturin develop --release
    python benches/spark/speed.py [--messages 2000000] [--only reading,stream,archive,latency,sink] [--runs 3]

One session of ``local[2]``; every scan ends in Spark's ``noop`` sink, which makes every row. A figure is the best of
the runs. Bodies are JSON of some 540 bytes, no two alike. Two million messages need some 6 GB of disk. `--keep` makes
all that is read in a directory and leaves it there; what is there already is not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import mqcore.spark
from mqcore import QueueOptions, QueueStatus, sync
from mqcore.spark.archive import newest_manifest

PARTS = ("reading", "stream", "archive", "latency", "sink")
QUEUES = ("orders/1", "orders/2", "logs/1", "logs/2")
AT_ONCE = 4000
"""Messages of one queue that are published together."""
LATENCY_SECONDS = 30
WARM_SECONDS = 20
LATENCY_EVERY = 0.01
PATIENCE = 120.0


@dataclass
class Bench:
    """Environment of all measurements."""

    spark: Any
    place: Path
    """Directory of the data that the benchmark reads."""
    scratch: Path
    """Directory for the output of a run."""
    messages: int
    runs: int
    bar: Progress
    task: TaskID

    @property
    def data_dir(self) -> Path:
        """The directory that is read."""
        return self.place / "data"

    def step(self, what: str, total: int = 0) -> None:
        """Show what is being done."""
        self.bar.update(self.task, description=what, completed=0, total=total or None)

    def advance(self, count: int = 1) -> None:
        """Show that more of it is done."""
        self.bar.update(self.task, advance=count)

    def best(self, rows: int, works: dict[str, Callable[[], object]]) -> dict[str, float]:
        """Run works in turn, some rounds of them; print the best of each, and return its rows/s by name.

        In turn, so that a machine that becomes busier is that for all. The processor time of Spark and its helpers
        differs less on a machine with other work to do.
        """
        took: dict[str, list[tuple[float, float]]] = {what: [] for what in works}
        self.step("", self.runs * len(works))
        for _ in range(self.runs):
            for what, work in works.items():
                self.bar.update(self.task, description=what)
                start, used = time.monotonic(), processor_seconds(self.jvm)
                work()
                took[what].append((time.monotonic() - start, processor_seconds(self.jvm) - used))
                self.advance()
        for what, runs in took.items():
            wall, used = min(run[0] for run in runs), min(run[1] for run in runs)
            print(f"{what:54} {wall:7.2f} s {rows / wall:11,.0f} rows/s {used:7.2f} s of processors", flush=True)
        return {what: rows / min(run[0] for run in runs) for what, runs in took.items()}

    @property
    def jvm(self) -> int:
        """The process of Spark's driver, which is all of Spark here."""
        return int(self.spark.sparkContext._gateway.proc.pid)


def processor_seconds(root: int) -> float:
    """Processor time of a process and all that descend from it, those that are gone included; 0 without a /proc."""
    ticks: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parts = path.read_text().rpartition(")")[2].split()
            ticks[int(path.parent.name)] = int(parts[1]), sum(map(int, parts[11:15]))
    ours = {root}
    while more := {process for process, (parent, _) in ticks.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[process][1] for process in ours if process in ticks) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(data_dir: Path, **settings: str) -> Iterator[dict[str, Any]]:
    """Run a broker, and stop it in order."""
    environment = {**os.environ, "MQCORE_HISTORY": "on", "MQCORE_HISTORY_MAX_BYTES": str(32 << 30), **settings}
    command = [sys.executable, "-m", "mqcore", "serve", "--data-dir", str(data_dir), "--listen", "tmqp://127.0.0.1:0"]
    with (data_dir.parent / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--admin", "http://127.0.0.1:0"], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def url(ready: dict[str, Any]) -> str:
    """Return where a broker listens."""
    return f"tmqp://{ready['listeners']['tmqp']}"


def declare(mq: sync.Client, queue: str, handler: str) -> None:
    """Make a queue that is pulled from."""
    channel, _, number = queue.rpartition("/")
    mq.declare(channel, int(number), QueueOptions(status=QueueStatus.PULL, delivery_handler=handler))


def bodies(chance: random.Random) -> Iterator[str]:
    """JSON with words in it, which compress about as well as what people write."""
    words = [f"{chance.randrange(1 << 40):x}"[: chance.randrange(2, 9)] for _ in range(3000)]
    text = " ".join(chance.choice(words) for _ in range(200_000))
    number = 0
    while True:
        at = chance.randrange(len(text) - 480)
        yield json.dumps({"n": number, "text": text[at : at + 480], "price": number / 8, "paid": number % 3 == 0})
        number += 1


def fill(bench: Bench) -> None:
    """Publish to a broker whose history stays in its journal."""
    made = bodies(random.Random(1))
    if bench.data_dir.exists():
        return
    bench.step("publishing", bench.messages)
    with serving(bench.data_dir, MQCORE_ARCHIVE="off") as ready, sync.connect(url(ready)) as mq:
        for queue in QUEUES:
            declare(mq, queue, "memory")
        for first in range(0, bench.messages, AT_ONCE):
            count = min(AT_ONCE, bench.messages - first)
            mq.publish_many(QUEUES[first // AT_ONCE % len(QUEUES)], [next(made) for _ in range(count)])
            bench.advance(count)


def scan(rows: Any) -> None:
    """Make every row, and keep none."""
    rows.write.format("noop").mode("overwrite").save()


def size(path: Path) -> str:
    """Bytes of a directory in words."""
    return f"{sum(file.stat().st_size for file in path.rglob('*') if file.is_file()) / 1e6:,.0f} MB"


def reading(bench: Bench) -> None:
    """Sealed segments beside files of the same rows."""
    spark, place, count = bench.spark, bench.place, bench.messages
    rows = spark.read.format("mqcore").load(str(bench.data_dir))
    found = rows.select("shard").count()
    if found != count:
        raise SystemExit(f"{count:,} messages were published, and the history has {found:,}")
    bench.step("writing the same rows as Parquet and as JSON lines")
    rows.write.mode("ignore").option("compression", "zstd").parquet(str(place / "zstd"))
    rows.write.mode("ignore").option("compression", "none").parquet(str(place / "plain"))
    # Bytes in JSON are base64. Bodies that are text can stand there as text; then they need not be bytes here either.
    text = rows.selectExpr("string(key) key", "string(value) value", *rows.columns[2:])
    rows.write.mode("ignore").json(str(place / "lines-binary"))
    text.write.mode("ignore").json(str(place / "lines-text"))
    for name in ("data", "zstd", "plain", "lines-binary", "lines-text"):
        print(f"  {name}: {size(place / name)}")
    few = spark.read.format("mqcore").option("columns", "queue_id,sequence,timestamp").load(str(bench.data_dir))
    as_text = spark.read.format("mqcore").schema(text.schema).load(str(bench.data_dir))
    rates = bench.best(
        count,
        {
            "mqcore": lambda: scan(rows),
            "mqcore, bodies as text": lambda: scan(as_text),
            "mqcore, three columns": lambda: scan(few),
            "JSON lines": lambda: scan(spark.read.schema(rows.schema).json(str(place / "lines-binary"))),
            "JSON lines, bodies as text": lambda: scan(spark.read.schema(text.schema).json(str(place / "lines-text"))),
            "Parquet, zstd": lambda: scan(spark.read.parquet(str(place / "zstd"))),
            "Parquet, not packed": lambda: scan(spark.read.parquet(str(place / "plain"))),
        },
    )
    mq = rates["mqcore"]
    print(
        f"  {mq / rates['JSON lines']:.2f} x JSON lines of the same rows, and with bodies as text on both sides "
        f"{rates['mqcore, bodies as text'] / rates['JSON lines, bodies as text']:.2f} x; "
        f"{mq / rates['Parquet, zstd']:.2f} x Parquet zstd, "
        f"{mq / rates['Parquet, not packed']:.2f} x Parquet not packed"
    )


def stream(bench: Bench) -> None:
    """A stream from the beginning to the end of what there is, in one batch and in many."""
    number = iter(range(1000))

    def run(**options: str) -> None:
        rows = bench.spark.readStream.format("mqcore").options(startingOffsets="earliest", **options)
        writer = rows.load(str(bench.data_dir)).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(bench.scratch / f"checkpoint{next(number)}"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    few = str(max(1, bench.messages // 10))
    bench.best(
        bench.messages,
        {
            "stream of all in one batch, with start and stop": run,
            "the same in ten batches": lambda: run(maxOffsetsPerTrigger=few),
        },
    )


def archive(bench: Bench) -> None:
    """The archive beside Parquet that Spark wrote of the same rows."""
    spark, place, count = bench.spark, bench.place, bench.messages
    archived = place / "archived"
    if not archived.exists():
        # Archiving removes the segments that the other parts read, so it works on a copy.
        shutil.copytree(bench.data_dir, archived)
    bench.step("archiving", count)
    with serving(archived, MQCORE_ARCHIVE_INTERVAL="3s"):
        done = 0
        while done < count:
            manifest = newest_manifest(archived / "archive") or {"files": []}
            before, done = done, sum(file["rows"] for file in manifest["files"] if file["table"] == "messages")
            bench.advance(done - before)
            time.sleep(0.2)
    bench.step("writing the same rows as Parquet")
    relation = mqcore.spark.archive(spark, archived)
    relation.write.mode("ignore").option("compression", "zstd").parquet(str(place / "hand"))
    text = relation.selectExpr(
        *(f"string({name}) {name}" if kind == "binary" else name for name, kind in relation.dtypes)
    )
    text.write.mode("ignore").json(str(place / "hand-lines"))
    print(f"  archive: {size(archived / 'archive' / 'messages')}, by hand: {size(place / 'hand')}")
    source = spark.read.format("mqcore").load(str(archived))
    hand, ours = "the same rows as Parquet of Spark's", "the archive as a Parquet relation"
    few, lines = "the archive, three columns", "the same rows as JSON lines, bodies as text"
    rates = bench.best(
        count,
        {
            hand: lambda: scan(spark.read.parquet(str(place / "hand"))),
            ours: lambda: scan(mqcore.spark.archive(spark, archived)),
            few: lambda: scan(mqcore.spark.archive(spark, archived).select("queue", "number", "time")),
            lines: lambda: scan(spark.read.schema(text.schema).json(str(place / "hand-lines"))),
            'format("mqcore") over the archive': lambda: scan(source),
        },
    )
    print(
        f"  {rates[ours] / rates[hand]:.2f} x Parquet by hand, {rates[ours] / rates[lines]:.2f} x JSON lines; "
        f"three columns {rates[few] / rates[ours]:.2f} x all"
    )


def latency(bench: Bench) -> None:
    """Age of a message when its row is in the sink: from a directory and through the admin side, and with a trigger."""
    living = bench.scratch / "living"
    with serving(living) as ready, sync.connect(url(ready)) as mq:
        declare(mq, "orders/1", "at-least-once")
        for where, options in (
            ("directory", {"path": str(living)}),
            ("admin side", {"admin": f"http://{ready['admin']}"}),
        ):
            ages = followed(bench, mq, options, {"processingTime": "0 seconds"})
            print(f"from publishing to the row, {where}, no trigger: {ages}", flush=True)
        ages = followed(bench, mq, {"path": str(living)}, {"processingTime": "1 second"})
        print(f"from publishing to the row, directory, trigger 1 s: {ages}", flush=True)


def followed(bench: Bench, mq: sync.Client, options: dict[str, str], trigger: dict[str, str]) -> str:
    """Publish at fixed times while a stream runs, and describe how late each row came."""
    ages: list[float] = []
    batches = 0

    def take(batch: Any, _number: int) -> None:
        nonlocal batches
        found = [float(row["value"]) for row in batch.collect()]
        now = time.time()
        ages.extend(now - at for at in found)
        batches += 1

    rows = bench.spark.readStream.format("mqcore").options(**options, columns="value", subscribe="orders/1").load()
    checkpoint = tempfile.mkdtemp(dir=bench.scratch)
    query = rows.writeStream.foreachBatch(take).trigger(**trigger).option("checkpointLocation", checkpoint).start()
    bench.step("latency", LATENCY_SECONDS + WARM_SECONDS)
    ended = threading.Event()

    def produce() -> None:
        begun = time.time()
        number = 0
        while not ended.is_set():
            # The time at which it should be published: a publisher that is late counts as well.
            due = begun + number * LATENCY_EVERY
            time.sleep(max(0.0, due - time.time()))
            mq.publish("orders/1", repr(due), confirm=False)
            number += 1

    thread = threading.Thread(target=produce)
    thread.start()
    # Spark starts its helpers, and Java compiles what it runs often.
    for second in range(WARM_SECONDS + LATENCY_SECONDS):
        time.sleep(1)
        bench.advance()
        if second == WARM_SECONDS:
            ages.clear()
            batches = 0
    late, count = sorted(ages), batches
    ended.set()
    thread.join()
    query.processAllAvailable()
    query.stop()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"p50 {late[len(late) // 2] * 1000:.0f} ms, p99 {late[int(len(late) * 0.99)] * 1000:.0f} ms, "
        f"largest {late[-1] * 1000:.0f} ms ({len(late)} rows in {count} batches; load {load})"
    )


def sink(bench: Bench) -> None:
    """Rows to a queue that saves, without and with keys, and to many queues."""
    count = bench.messages // 2
    with serving(bench.scratch / "target") as ready:
        with sync.connect(url(ready)) as mq:
            queues = ["target/1", *(f"many/{number}" for number in range(100))]
            for queue in queues:
                declare(mq, queue, "at-least-once")
        ids, value = bench.spark.range(0, count, 1, 2), f"concat(string(id), '{'x' * 120}') as value"
        kinds = {
            "sink, 130 bytes, confirmed as saved by fsync": ids.selectExpr(value),
            "sink, the same, each with another key": ids.selectExpr(value, "string(id) as key"),
            "sink, the same, keys repeat after 5,000 rows": ids.selectExpr(value, "string(id % 5000) as key"),
            "sink, the same to 100 queues in turn": ids.selectExpr(value, "concat('many/', id % 100) as queue"),
        }
        number = iter(range(100))

        def run(rows: Any) -> None:
            writer = rows.write.format("mqcore").mode("append")
            writer = writer.option("stagingLocation", str(bench.scratch / f"staging{next(number)}"))
            if "queue" not in rows.columns:
                writer = writer.option("queue", "target/1")
            writer.options(url=url(ready), admin=f"http://{ready['admin']}").save()

        bench.best(count, {what: functools.partial(run, each) for what, each in kinds.items()})
        with sync.connect(url(ready)) as mq:
            there = sum(mq.queue(queue).information().messages for queue in queues)
        if there != count * bench.runs * len(kinds):
            raise SystemExit(f"{count * bench.runs * len(kinds):,} rows were written, and {there:,} are there")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where everything is made that is read, and left")
    given = parser.parse_args()
    only = given.only.split(",")
    if unknown := set(only) - set(PARTS):
        parser.error(f"there is no part {min(unknown)}; there are {', '.join(PARTS)}")
    spark = mqcore.spark.session("local[2]", config={"spark.log.level": "OFF", "spark.driver.memory": "2g"})
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=given.keep) as folder,
        Progress(*columns, console=Console(stderr=True), transient=True) as bar,
    ):
        task = bar.add_task("start", total=None)
        bench = Bench(spark, given.keep or Path(folder), Path(folder), given.messages, given.runs, bar, task)
        if {"reading", "archive", "stream"} & set(only):
            fill(bench)
        for part, measure in zip(PARTS, (reading, stream, archive, latency, sink), strict=True):
            if part in only:
                measure(bench)
        spark.stop()


if __name__ == "__main__":
    main()
