"""How long `reconcile` takes over 10 million messages: made-up steps in an archive, one run on two cores and 4 GiB.

    python benches/spark/reconcile.py [--messages 10000000] [--keep DIR]

`--keep` makes the archive in DIR and leaves it there; where one is already, it is read. Of a thousand messages 985
are acknowledged, ten are dropped, five are still there. The archive has 20 queues and files of half a million rows.
The findings are compared with the generated faults.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_QUEUES = 20
_FILE_MESSAGES = 125_000
_START_US = 1_790_000_000_000_000
_STEPS = ("produced", "saved", "delivered", "acked")


def fates_of(messages: int) -> dict[str, int]:
    """How many messages there are of each fate."""
    of_thousand = np.arange(1, messages + 1) % 1000
    acked, there = int((of_thousand < 985).sum()), int((of_thousand >= 995).sum())
    return {"acked": acked, "dropped": messages - acked - there, "waiting": there}


def make(data_dir: Path, messages: int, bar: Progress) -> None:
    """Write an archive of one shard."""
    files = []
    task = bar.add_task("making messages", total=messages)
    (data_dir / "format").write_text("mqcore data 1, shards 1\n")
    for index, first in enumerate(range(0, messages, _FILE_MESSAGES)):
        numbers = np.arange(first + 1, min(messages, first + _FILE_MESSAGES) + 1)
        table = steps_of(numbers, index % _QUEUES)
        path = Path(f"steps/channel=orders/queue_id={index % _QUEUES}/date=2026-11-21/{index:010}-00000.parquet")
        whole = data_dir / "archive" / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, whole, compression="zstd", compression_level=1, row_group_size=131_072)
        notes = table.column("note")
        files.append(entry(path, index % _QUEUES, whole.stat().st_size, table.num_rows, numbers, notes))
        bar.update(task, completed=int(numbers[-1]))
    reach = {"journal": "00000000000000aa", "notes": files[-1]["max_note"] + 1, "missing": 0, "kept_from": 0}
    manifest = {
        "format": "mqcore.archive/1",
        "schema_version": 1,
        "number": 1,
        "written_ms": _START_US // 1000,
        "shards": {"0": reach},
        "removed": {"files": 0, "rows": 0, "bytes": 0},
        "files": files,
    }
    manifests = data_dir / "archive" / "_manifests"
    manifests.mkdir()
    (manifests / "0000000001.json").write_text(json.dumps(manifest))
    bar.remove_task(task)


def steps_of(numbers: Any, queue: int) -> pa.Table:
    """The steps of messages, in the order in which a broker that is under load writes them: blocks of many messages."""
    of_thousand = numbers % 1000
    ends = np.where(of_thousand < 985, 3, np.where(of_thousand < 995, 2, 1))
    steps = np.arange(4)
    shown = steps[None, :] <= ends[:, None]
    kinds = np.broadcast_to(steps, shown.shape)[shown]
    number = np.broadcast_to(numbers[:, None], shown.shape)[shown]
    last = np.broadcast_to(ends[:, None], shown.shape)[shown]
    dropped = (last == 2) & (kinds == 2)
    final = (kinds == last) & (last >= 2)
    # A block has the same step of 64 messages, then the next step of them.
    order = np.lexsort((number, kinds, number // 64))
    kinds, number, dropped, final = kinds[order], number[order], dropped[order], final[order]
    count = len(kinds)
    row = np.arange(count) + int(numbers[0]) * 4
    names = pa.array([*_STEPS, "dropped"])
    kind = pa.DictionaryArray.from_arrays(pa.array(np.where(dropped, 4, kinds).astype(np.int32)), names)
    nothing = pa.nulls(count, pa.string())
    ids = pc.binary_join_element_wise("message-", pa.array(number).cast(pa.string()), "")
    named = pa.array(kinds == 0)
    columns = {
        "time": pa.array(_START_US + row * 10, pa.timestamp("us", tz="UTC")),
        "shard": pa.array(np.zeros(count, np.int32)),
        "note": pa.array(row // 256 + 1),
        "position": pa.array((row % 256).astype(np.int32)),
        "kind": kind.cast(pa.string()),
        "number": pa.array(number),
        "message_id": pc.if_else(named, ids, None),
        "attempt": pa.array((kinds >= 2).astype(np.int32)),
        "last": pa.array(final),
        "reason": pc.if_else(pa.array(dropped), "refused", None),
        "target": nothing,
        "header_bytes": pa.array(np.full(count, 40)),
        "body_bytes": pa.array(np.full(count, 550)),
        "missing": pa.nulls(count, pa.int64()),
    }
    columns["queue"] = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(count, np.int32)), pa.array([f"orders/{queue}"])
    ).cast(pa.string())
    for who in ("producer", "consumer"):
        for what in ("id", "name", "type", "protocol"):
            columns[f"{who}_{what}"] = nothing
    return pa.table(columns)


def entry(path: Path, queue: int, size: int, rows: int, numbers: Any, notes: Any) -> dict[str, Any]:
    """A file as the manifest names it."""
    return {
        "table": "steps",
        "path": str(path),
        "shard": 0,
        "channel": "orders",
        "queue_id": queue,
        "date": "2026-11-21",
        "bytes": size,
        "rows": rows,
        "min_time_ms": _START_US // 1000,
        "max_time_ms": _START_US // 1000 + 86_400_000,
        "min_number": int(numbers[0]),
        "max_number": int(numbers[-1]),
        "min_note": pc.min(notes).as_py(),
        "max_note": pc.max(notes).as_py(),
    }


def largest_mib(process: int) -> int:
    """How much memory a process had in use at most; 0 where the system does not tell."""
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:")), 0)


def main() -> int:
    """Make the archive, run the pipeline, print the figures; 1 if a sum is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="where the archive is made and left")
    arguments = parser.parse_args()
    import mqcore.spark
    from mqcore.spark import pipelines

    place = arguments.keep or Path(tempfile.mkdtemp(prefix="mqcore-bench-"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            if not (place / "archive" / "_manifests").exists():
                place.mkdir(parents=True, exist_ok=True)
                make(place, arguments.messages, bar)
            size = sum(path.stat().st_size for path in (place / "archive").rglob("*.parquet"))
            spark = mqcore.spark.session("local[2]", config={"spark.driver.memory": "4g", "spark.log.level": "ERROR"})
            task = bar.add_task("reconcile", total=None)

            def show(what: str, done: int, known: int) -> None:
                bar.update(task, description=f"reconcile: {what}", completed=done, total=known or None)

            began = time.perf_counter()
            outcome = pipelines.run("reconcile", spark, place, place / "reports", progress=show)
            took = time.perf_counter() - began
            peak = largest_mib(spark.sparkContext._gateway.proc.pid)
            spark.stop()
    finally:
        if arguments.keep is None:
            shutil.rmtree(place, ignore_errors=True)
    fates = fates_of(arguments.messages)
    found = {name: outcome.figures[name] for name in fates}
    print(outcome.summary)
    memory = f", JVM {peak:,} MiB at most" if peak else ""
    print(f"{arguments.messages:,} messages, {size / 1e6:,.0f} MB of Parquet: {took:.1f} s{memory}")
    if found != fates or not outcome.ok:
        print(f"made {fates}, found {found}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
