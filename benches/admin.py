"""Measures the admin side of a broker with many queues and connections, and what its checks cost.

    python benches/admin.py [--queues 10000] [--connections 5000] [--runs 5] [--messages 1000000]

Starts a broker, creates the queues with a message in each tenth, and opens the connections. Prints the median and the
largest time of each page, and the processor time of the broker while it is idle: the cost of the checks that run once a
second. After that it starts a second broker without an admin side, and lets messages flow through both by turns: the
difference of their processor times per message is the cost on the hot path. It includes a request for `/metrics` every
five seconds.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
BATCH = 1_000
BODY = b"x" * 128
IDLE_SECONDS = 10
SCRAPE_SECONDS = 5


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages of each round of the hot path")
    arguments = parser.parse_args()
    with served("--admin", "http://127.0.0.1:0") as watched, served() as plain:
        print(f"empty broker: {idle_share(watched.process):.2f} % of a processor")
        with filled(watched, arguments.queues, arguments.connections):
            measure_pages(watched, arguments)
        # This process may not have enough descriptors for the connections of two brokers.
        with filled(plain, arguments.queues, connections=0):
            measure_hot_path(watched, plain, arguments)


@dataclass(frozen=True)
class Served:
    """A broker in a process of its own."""

    url: str
    admin: str | None
    process: int


@contextmanager
def served(*options: str) -> Iterator[Served]:
    """Run a broker while the block runs."""
    command = [sys.executable, "-m", "mqcore", "serve", "--listen", "tmqp://127.0.0.1:0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            admin = f"http://{ready['admin']}" if ready["admin"] else None
            yield Served(f"tmqp://{ready['listeners']['tmqp']}", admin, ready["pid"])
        finally:
            process.terminate()


@contextmanager
def filled(broker: Served, queues: int, connections: int) -> Iterator[None]:
    """Create the queues and open the connections while the block runs."""
    with sync.connect(broker.url) as mq:
        for number in range(queues):
            channel, queue = divmod(number, QUEUES_PER_CHANNEL)
            if queue == 0:
                mq.create_channel(f"c{channel}")
            mq.create_queue(f"c{channel}/{queue}", QueueOptions(status=QueueStatus.PULL))
            if number % 10 == 0:
                mq.publish(f"c{channel}/{queue}", b"waits")
    clients = [sync.connect(broker.url, name=f"client-{number}") for number in range(connections)]
    try:
        yield
    finally:
        for client in clients:
            client.close(0)


def measure_pages(broker: Served, arguments: argparse.Namespace) -> None:
    """Print the figures of the pages."""
    contents = f"{arguments.queues:,} queues and {arguments.connections:,} connections"
    print(f"{contents}: {idle_share(broker.process):.2f} % of a processor")
    print("page\tmedian ms\tlargest ms\tKiB")
    for page in PAGES:
        times, size = [], 0
        for _ in range(arguments.runs):
            began = time.perf_counter()
            with urllib.request.urlopen(f"{broker.admin}{page}", timeout=30) as answer:
                size = len(answer.read())
            times.append((time.perf_counter() - began) * 1000)
        print(f"{page}\t{statistics.median(times):.1f}\t{max(times):.1f}\t{size / 1024:.0f}")


def measure_hot_path(watched: Served, plain: Served, arguments: argparse.Namespace) -> None:
    """Print the processor time of a million messages with and without an admin side."""
    # The checks cost the same each second, however many messages flow, so they do not belong to the messages.
    idle = {broker: idle_share(broker.process) / 100 for broker in (watched, plain)}
    costs: dict[Served, list[float]] = {watched: [], plain: []}
    for _ in range(arguments.runs):
        for broker, found in costs.items():
            found.append(cost_of_messages(broker, arguments.messages, idle[broker]))
    with_admin, without = (statistics.median(found) for found in costs.values())
    print(f"checks of {arguments.queues:,} queues: {(idle[watched] - idle[plain]) * 100:.2f} % of a processor")
    print(f"a million messages: {with_admin:.3f} s of processor time with an admin side, {without:.3f} s without")
    print(f"cost on the hot path: {(with_admin / without - 1) * 100:+.1f} %")


def cost_of_messages(broker: Served, count: int, idle: float) -> float:
    """Processor seconds of the broker for a million messages that a client publishes and consumes in batches.

    `idle` is the share of a processor that it takes while nothing happens.
    """
    before = ticks(broker.process)
    began = asked = time.perf_counter()
    with sync.connect(broker.url) as producer, sync.connect(broker.url) as consumer:
        producer.declare("hot", 1, QueueOptions(status=QueueStatus.PUSH, request_acknowledge=True))
        with consumer.queue("hot", 1).consume(prefetch=4_096) as messages:
            for left in range(count, 0, -BATCH):
                size = min(BATCH, left)
                producer.publish_many("hot/1", [BODY] * size)
                for _, message in zip(range(size), messages, strict=False):
                    message.ack()
                if broker.admin and time.perf_counter() > asked + SCRAPE_SECONDS:
                    asked = time.perf_counter()
                    with urllib.request.urlopen(f"{broker.admin}/metrics", timeout=30) as answer:
                        answer.read()
    taken = (ticks(broker.process) - before) / os.sysconf("SC_CLK_TCK")
    return (taken - idle * (time.perf_counter() - began)) * 1e6 / count


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
