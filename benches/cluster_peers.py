"""A replicated queue of mqcore beside NATS JetStream and RabbitMQ: three nodes each, on this machine.

    maturin develop --release
    cargo build --release -p mqcore-bench --bin load
    python benches/cluster_peers.py
    python benches/cluster_peers.py --turns 1 --seconds 1 --peers nats --json cluster.json

The brokers are measured in turn, five times. A turn starts three nodes of one broker in empty directories, measures,
and stops them, so that no other broker runs meanwhile. All messages have 128 bytes and are confirmed when a majority of
the nodes has synced them. Three figures of each turn:

- confirmed messages a second of one producer with 512 unconfirmed messages;
- the median time until a message is confirmed, one at a time;
- the 99th percentile of that time at half of the rate of the first figure, in an open loop: the time of a message
  counts from the moment at which it was due.

The client of all brokers is the same load generator in Rust, which writes prepared bytes to a socket, and decodes the
confirmations; it is connected to the node that leads the queue or the stream. RabbitMQ syncs each batch of its log, as
the others do. Nodes and generator share all processors, and the nodes share one disk, so that only the ratios count.

The brokers are installed like those of `make bench-peers`: NATS with `go install`, RabbitMQ from Debian's package. The
program skips a broker that cannot be installed or does not start, and prints the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from peers import machine  # noqa: E402
from peers.clusters import CLUSTERS, ClusterKind, ServedCluster, prepared  # noqa: E402
from peers.machine import Processors  # noqa: E402
from peers.place import Missing, Place, Program  # noqa: E402

from cluster_nodes import running_cluster  # noqa: E402

SCHEMA = "mqcore.bench-cluster-peers/1"
WINDOW = 512
FIGURES = {
    "rate": f"confirmed messages/s, window {WINDOW}",
    "alone": "one at a time, median us",
    "paced": "p99 at half of the own rate, us",
}
SECONDS_MAX = 120.0
QUIET_SECONDS = 1.0
"""Time between two measurements."""


@contextlib.contextmanager
def started(_: Program, place: Place, directory: Path, processors: Processors) -> Iterator[ServedCluster]:
    """Start a cluster of mqcore."""
    # The nodes inherit the processors.
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors.server)
    with running_cluster(directory) as cluster:
        os.sched_setaffinity(0, before)
        cluster.wait_until_all_follow()
        leader = cluster.leader().url.partition("//")[2]
        prepared(place.python("mqcore"), "mqcore_client", "prepare-fsync", leader)
        yield ServedCluster("tmqp", leader, tuple(node.process.pid for node in cluster.nodes if node.process))


KINDS: Mapping[str, ClusterKind] = {
    "mqcore": ClusterKind(
        lambda _: Program(Path(sys.executable)), started, "`[cluster]` of 3, delivery handler `at-least-once`"
    ),
    **CLUSTERS,
}


def main() -> None:
    """Measure, and print the ratios."""
    arguments = _arguments()
    place = Place(arguments.scratch, arguments.load, mqcore=Path(sys.executable))
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    names = ["mqcore", *(name for name in arguments.peers.split(",") if name)]
    installed, skipped = _installed(names, place)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in installed}
    for turn in range(arguments.turns):
        for name, program in installed.items():
            if name in skipped:
                continue
            try:
                figures = _turn(name, program, place, arguments.seconds)
            except Missing as error:
                if name == "mqcore":
                    raise SystemExit(f"mqcore: {error}") from None
                skipped[name] = str(error)
                print(f"{name} skipped: {error}", flush=True)
                continue
            found[name].append(figures)
            shown = "  ".join(f"{key} {value:,.2f}" for key, value in figures.items())
            print(f"turn {turn + 1}: {name}  {shown}", flush=True)
    _print_table(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(_result(found, skipped, arguments), indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", default="nats,rabbitmq", help="other brokers [nats,rabbitmq]")
    parser.add_argument("--turns", type=int, default=5, help="turns, of which the median counts [5]")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement [3]")
    scratch = ROOT / "target" / "bench-peers"
    parser.add_argument("--scratch", type=Path, default=scratch, help="where brokers go [target/bench-peers]")
    load = ROOT / "target" / "release" / "load"
    parser.add_argument("--load", type=Path, default=load, help="the load generator [target/release/load]")
    parser.add_argument("--json", type=Path, help="also write the figures into this file")
    return parser.parse_args()


def _installed(names: list[str], place: Place) -> tuple[dict[str, Program], dict[str, str]]:
    installed, skipped = {}, {}
    for name in names:
        try:
            installed[name] = KINDS[name].install(place)
        except Missing as error:
            skipped[name] = str(error)
            print(f"{name} skipped: {error}", flush=True)
    return installed, skipped


def _turn(name: str, program: Program, place: Place, seconds: float) -> dict[str, float]:
    """Return the figures of one turn of one broker, and how many processors other programs kept busy."""
    every = machine.usable().all
    processors = Processors(every, every)
    with (
        tempfile.TemporaryDirectory(dir=place.directory, prefix="cluster-", ignore_cleanup_errors=True) as directory,
        KINDS[name].start(program, place, Path(directory), processors) as cluster,
    ):
        busy, start = _busy_seconds(cluster), time.perf_counter()
        rate = _driven(place, cluster, seconds, "confirmed", "producers=1", f"window={WINDOW}")["rate"]
        alone = _driven(place, cluster, seconds, "alone")["p50"]
        paced = _driven(place, cluster, seconds, "paced", f"rate={max(1, round(rate / 2))}")["p99"]
        disturbance = max(0.0, (_busy_seconds(cluster) - busy) / (time.perf_counter() - start))
        return {"rate": rate, "alone": alone, "paced": paced, "disturbance": disturbance}


def _busy_seconds(cluster: ServedCluster) -> float:
    return machine.busy_seconds(None) - sum(machine.cpu_seconds(process) for process in cluster.processes)


def _driven(place: Place, cluster: ServedCluster, seconds: float, *work: str) -> Mapping[str, float]:
    """Run the load generator. Raises `Missing` if it fails."""
    # The broker rejects a second client with the same id until it has seen the end of the first one.
    time.sleep(QUIET_SECONDS)
    milliseconds = f"milliseconds={max(1, round(seconds * 1000))}"
    command = [place.load, "drive", cluster.protocol, cluster.leader, *work, milliseconds, "warm-up=500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    if done.returncode:
        raise Missing(f"{' '.join(work)} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    values: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return values


def _median(turns: list[dict[str, float]], figure: str) -> float:
    return statistics.median(turn[figure] for turn in turns)


def _print_table(found: Mapping[str, list[dict[str, float]]]) -> None:
    for figure, title in FIGURES.items():
        for name, turns in found.items():
            if not turns:
                continue
            median, values = _median(turns, figure), [turn[figure] for turn in turns]
            ratio = median / _median(found["mqcore"], figure)
            spread = f"{min(values):,.0f} to {max(values):,.0f}"
            print(f"{title:36} {name:10} {median:>10,.0f}  {ratio:6.2f} of mqcore  {spread}", flush=True)


def _result(
    found: Mapping[str, list[dict[str, float]]], skipped: Mapping[str, str], arguments: argparse.Namespace
) -> dict[str, Any]:
    brokers = {
        name: {
            "settings": KINDS[name].settings,
            "medians": {figure: _median(turns, figure) for figure in (*FIGURES, "disturbance")},
            "turns": turns,
        }
        for name, turns in found.items()
        if turns
    }
    return {
        "schema": SCHEMA,
        "machine": machine.description(),
        "seconds": arguments.seconds,
        "turns": arguments.turns,
        "figures": FIGURES,
        "brokers": brokers,
        "skipped": dict(skipped),
    }


if __name__ == "__main__":
    main()
