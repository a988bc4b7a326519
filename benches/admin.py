"""Measures the admin side of a broker with many queues and connections, and what its checks cost.

    python benches/admin.py [--queues 10000] [--connections 5000] [--runs 5]

Starts a broker, creates the queues with a message in each tenth, and opens the connections. Prints the median and the
largest time of each page, and the processor time of the broker while it is idle: the cost of the checks that run once a
second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from mqcore import QueueOptions, QueueStatus, sync

PAGES = (
    "/overview?limit=0",
    "/overview",
    "/attention",
    "/metrics",
    "/metrics?queues=1",
    "/queues?limit=50",
    "/queues?sort=ready&limit=50",
    "/queues?filter=7/77&limit=50",
    "/connections?limit=50",
)
QUEUES_PER_CHANNEL = 1_000
IDLE_SECONDS = 10


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "mqcore",
        "serve",
        "--listen",
        "tmqp://127.0.0.1:0",
        "--admin",
        "http://127.0.0.1:0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            measure(ready, arguments)
        finally:
            process.terminate()


def measure(ready: dict[str, object], arguments: argparse.Namespace) -> None:
    """Fill the broker and print the figures."""
    url, admin = f"tmqp://{ready['listeners']['tmqp']}", f"http://{ready['admin']}"  # type: ignore[index]
    process = int(str(ready["pid"]))
    print(f"empty broker: {idle_share(process):.2f} % of a processor")
    with sync.connect(url) as mq:
        for number in range(arguments.queues):
            channel, queue = divmod(number, QUEUES_PER_CHANNEL)
            if queue == 0:
                mq.create_channel(f"c{channel}")
            mq.create_queue(f"c{channel}/{queue}", QueueOptions(status=QueueStatus.PULL))
            if number % 10 == 0:
                mq.publish(f"c{channel}/{queue}", b"waits")
    clients = [sync.connect(url, name=f"client-{number}") for number in range(arguments.connections)]
    filled = f"{arguments.queues:,} queues and {arguments.connections:,} connections"
    print(f"{filled}: {idle_share(process):.2f} % of a processor")
    print("page\tmedian ms\tlargest ms\tKiB")
    for page in PAGES:
        times, size = [], 0
        for _ in range(arguments.runs):
            began = time.perf_counter()
            with urllib.request.urlopen(admin + page, timeout=30) as answer:
                size = len(answer.read())
            times.append((time.perf_counter() - began) * 1000)
        print(f"{page}\t{statistics.median(times):.1f}\t{max(times):.1f}\t{size / 1024:.0f}")
    for client in clients:
        client.close(0)


def idle_share(process: int) -> float:
    """Processor time of a process while nothing happens, in percent of one processor."""
    before = ticks(process)
    time.sleep(IDLE_SECONDS)
    return (ticks(process) - before) / os.sysconf("SC_CLK_TCK") / IDLE_SECONDS * 100


def ticks(process: int) -> int:
    """Processor time of a process in clock ticks."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


if __name__ == "__main__":
    main()
