"""Cost of the continuous backup for clients, and what a lost machine costs: age of the restored state, time to restore.

    maturin develop --release
    python benches/continuous_backup.py --rounds 5 --megabytes 1024

The object store is a directory, or with `--s3` moto, an S3 server in Python. Rounds without and with a backup
alternate. Each publishes messages of 1 KiB, 512 at a time, confirmed after their sync. Then the broker is killed under
this load, its data directory is removed, and the newest restore point is restored and started.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import mqcore  # noqa: E402
from mqcore.backup import moments, restore  # noqa: E402
from object_stores import BUCKET, moto_server  # noqa: E402
from served import ServedBroker, serving, wait_until  # noqa: E402

BODY = random.Random(1).randbytes(1024)
WINDOW = 512
SETTINGS = {
    "MQCORE_AUTO_CREATE_CHANNELS": "yes",
    "MQCORE_AUTO_CREATE_QUEUES": "yes",
    "MQCORE_DELIVERY_HANDLER": "at-least-once",
}


async def load(url: str, seconds: float) -> tuple[float, float, float]:
    """Publish and consume. Return messages a second, and p50 and p99 of the time to a confirmation in ms."""
    latencies: list[float] = []
    end = time.monotonic() + seconds
    async with mqcore.connect(url) as client, mqcore.connect(url) as consumer:
        await client.publish("load/1", BODY)

        async def produce() -> None:
            while (start := time.monotonic()) < end:
                await client.publish("load/1", BODY)
                latencies.append(time.monotonic() - start)

        async def consume() -> None:
            async with consumer.queue("load/1").consume(bytes, prefetch=WINDOW, idle_timeout=1.0) as messages:
                async for message in messages:
                    await message.ack()

        consuming = asyncio.create_task(consume())
        await asyncio.gather(*(produce() for _ in range(WINDOW)))
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    latencies.sort()
    count = len(latencies)
    return count / seconds, 1000 * latencies[count // 2], 1000 * latencies[count * 99 // 100]


@contextlib.contextmanager
def broker(data_dir: Path, environment: dict[str, str]) -> Iterator[ServedBroker]:
    """A broker that saves."""
    place = ("--data-dir", str(data_dir), "--admin", "http://127.0.0.1:0")
    with serving(*place, environment=SETTINGS | environment) as running:
        yield running


def compare(directory: Path, backed_up: dict[str, str], rounds: int, seconds: float) -> None:
    """Print the figures of clients without and with a backup."""
    found: dict[str, list[tuple[float, float, float]]] = {"without": [], "with": []}
    for turn in range(rounds):
        for name, environment in (("without", {}), ("with", backed_up)):
            with broker(directory / f"{name}-{turn}", environment) as running:
                found[name].append(asyncio.run(load(running.url, seconds)))
            shutil.rmtree(directory / f"{name}-{turn}")
    medians = {
        name: [statistics.median(figures) for figures in zip(*rows, strict=True)] for name, rows in found.items()
    }
    for name, (rate, p50, p99) in medians.items():
        print(f"{name:8} a backup: {rate:9,.0f} messages/s, confirmed after {p50:.1f} ms (p50), {p99:.1f} ms (p99)")
    print(f"ratio of the rates: {medians['with'][0] / medians['without'][0]:.3f}")


def lose(directory: Path, url: str, backed_up: dict[str, str], megabytes: int, interval: float) -> None:
    """Kill a broker with much data under load, and print what that costs."""
    data_dir = directory / "lost"
    with broker(data_dir, backed_up) as running:
        with mqcore.sync.connect(running.url, request_timeout=60.0) as client:
            for _ in range(megabytes // 16):
                client.publish_many("backlog/1", [BODY * 64] * 256)
        begun = time.perf_counter()
        marked = time.time()
        wait_until(lambda: newest(url) >= marked, limit=900, what="the first restore point")
        print(f"{megabytes} MiB: in a restore point {time.perf_counter() - begun:.1f} s after the last message")
        for _ in range(3):
            asyncio.run(load(running.url, interval * 1.3))
        running.process.kill()
        killed = time.time()
    shutil.rmtree(data_dir)
    begun = time.perf_counter()
    restored = restore(url, data_dir)
    verified = time.perf_counter()
    with broker(data_dir, {}) as running, mqcore.sync.connect(running.url) as client:
        client.publish("load/1", b"again")
        ready = time.perf_counter()
    age = killed - restored.created.timestamp()
    print(f"age of the restored moment: {age:.1f} s, with an interval of {interval:g} s")
    print(f"restored and verified after {verified - begun:.1f} s, confirms again after {ready - begun:.1f} s")
    print(f"restore points: {moments(url).restore_points}")


def newest(url: str) -> float:
    """Time of the newest restore point."""
    found = moments(url).newest
    return found.timestamp() if found else 0.0


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5, help="Rounds without and with a backup.")
    parser.add_argument("--seconds", type=float, default=8.0, help="Duration of a round.")
    parser.add_argument("--interval", type=float, default=2.0, help="Time between restore points in seconds.")
    parser.add_argument("--megabytes", type=int, default=1024, help="Messages that wait when the machine is lost.")
    parser.add_argument("--s3", action="store_true", help="Use an S3 server.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mqcore-bench-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        (directory / "store").mkdir()
        place, environment = f"file://{directory}/store", {}
        if given.s3:
            store = stack.enter_context(moto_server())
            place, environment = f"s3://{BUCKET}", store.environment
            os.environ.update(environment)
        settings = environment | {"MQCORE_BACKUP_INTERVAL": f"{given.interval}s"}
        compare(directory, settings | {"MQCORE_BACKUP_URL": f"{place}/load/"}, given.rounds, given.seconds)
        lose(
            directory,
            f"{place}/lost/",
            settings | {"MQCORE_BACKUP_URL": f"{place}/lost/"},
            given.megabytes,
            given.interval,
        )


if __name__ == "__main__":
    main()
