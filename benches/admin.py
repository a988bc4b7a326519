"""Measures the admin side of a broker with many queues and connections, and what its checks cost.

    python benches/admin.py [--queues 10000] [--connections 5000] [--runs 5] [--messages 1000000] [--instructions]

Starts a broker, creates the queues with a message in each tenth, and opens the connections. Prints the median and the
largest time of each page, and the processor time of the broker while it is idle: the cost of the checks that run once a
second. After that it starts a second broker without an admin side, and lets messages flow through both by turns: the
difference of their processor times per message is the cost on the hot path. It includes a request for `/metrics` every
five seconds.

Processor times differ by several percent from run to run. With ``--instructions``, the program measures nothing else
than the instructions of a broker with the queues and connections, which valgrind counts whatever else the machine does.
Each broker runs twice for the same time, without and with the messages; the difference is the cost of the messages.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile

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
COUNTER = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
SCRAPE_SECONDS = 5


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages of each round of the hot path")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each broker under valgrind")
    parser.add_argument("--instructions", action="store_true", help="count instructions of the hot path by valgrind")
    arguments = parser.parse_args()
    if arguments.instructions:
        count_instructions(arguments)
        return
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
def served(*options: str, under: Sequence[str] = ()) -> Iterator[Served]:
    """Run a broker, by the command `under` if there is one, while the block runs."""
    command = [*under, sys.executable, "-m", "mqcore", "serve", "--listen", "tmqp://127.0.0.1:0", *options]
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
    """Processor seconds of the broker for a million messages.

    `idle` is the share of a processor that it takes while nothing happens.
    """
    before = ticks(broker.process)
    began = time.perf_counter()
    send_messages(broker, count)
    taken = (ticks(broker.process) - before) / os.sysconf("SC_CLK_TCK")
    return (taken - idle * (time.perf_counter() - began)) * 1e6 / count


def send_messages(broker: Served, count: int) -> None:
    """Publish and consume messages in batches, and request `/metrics` every five seconds."""
    asked = time.perf_counter()
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


def count_instructions(arguments: argparse.Namespace) -> None:
    """Print the instructions of a message with and without an admin side."""
    found = {}
    for name, options in (("with", ("--admin", "http://127.0.0.1:0")), ("without", ())):
        costs = []
        for run in range(arguments.runs):
            none, all_of_them = (instructions(options, count, arguments) for count in (0, arguments.messages))
            costs.append((all_of_them - none) / arguments.messages)
            print(f"run {run + 1} {name} an admin side: {costs[-1]:,.0f} instructions for each message", flush=True)
        found[name] = statistics.median(costs)
    print(f"cost on the hot path: {(found['with'] / found['without'] - 1) * 100:+.2f} % of the instructions")


def instructions(options: Sequence[str], messages: int, arguments: argparse.Namespace) -> int:
    """Instructions of a broker from its start to its end, in a time that does not depend on the messages."""
    with NamedTemporaryFile("r") as log:
        with (
            served(*options, under=(*COUNTER, f"--log-file={log.name}")) as broker,
            filled(broker, arguments.queues, arguments.connections),
        ):
            began = time.perf_counter()
            # Under valgrind, seconds have few messages: requests for `/metrics` would seem to cost each one much.
            send_messages(replace(broker, admin=None), messages)
            if (left := began + arguments.seconds - time.perf_counter()) < 0:
                raise SystemExit(f"the messages took {-left:.0f} s longer than --seconds; pass more")
            time.sleep(left)
        total = re.search(r"I\s+refs:\s+([\d,]+)", log.read())
    if total is None:
        raise SystemExit("valgrind printed no number of instructions")
    return int(total[1].replace(",", ""))


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
