"""A cluster of three nodes beside one broker: confirmed messages a second, latency, and failovers.

    maturin develop --release
    python benches/cluster.py
    python benches/cluster.py --seconds 3 --failovers 20

One broker without a cluster, a cluster of one node and one of three publish saved messages of 128 bytes in turn, five
times each. All processes share one machine and one disk, so that a cluster of three does three times the work of the
disk; the ratios are lower bounds. A failover kills the leader while a client publishes one message after another; its
time is that between the last confirmation of the old leader and the first one of the new leader.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import mqcore  # noqa: E402
from cluster_nodes import Cluster, running_cluster  # noqa: E402
from mqcore import errors  # noqa: E402

BODY = b"x" * 128
QUEUE = "bench/1"
WINDOW = 512
ROUNDS = 5


def rate(url: str, seconds: float) -> float:
    """Confirmed messages a second, `WINDOW` at a time."""
    bodies = [BODY] * WINDOW
    done = 0
    with mqcore.sync.connect(url, patience=20.0) as client:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            client.publish_many(QUEUE, bodies)
            done += WINDOW
        return done / (time.perf_counter() - began)


def latency(url: str, seconds: float) -> float:
    """Median microseconds of a confirmed message, one at a time."""
    times: list[float] = []
    with mqcore.sync.connect(url, patience=20.0) as client:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            client.publish(QUEUE, BODY)
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def failover(cluster: Cluster) -> float:
    """Seconds without confirmations after the leader is killed."""
    cluster.wait_until_all_follow()
    leader = cluster.leader()
    urls = [node.url for node in cluster.nodes if node is not leader]
    last = time.perf_counter()
    with mqcore.sync.connect(leader.url, request_timeout=0.5) as client:
        for _ in range(20):
            client.publish(QUEUE, BODY)
        leader.kill()
        last = time.perf_counter()
    while True:
        try:
            with mqcore.sync.connect(urls, patience=10.0, request_timeout=2.0) as client:
                client.publish(QUEUE, BODY)
                took = time.perf_counter() - last
                break
        except errors.MqcoreError:
            continue
    leader.start()
    return took


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=2.0, help="Duration of each turn.")
    parser.add_argument("--failovers", type=int, default=20, help="Number of failovers.")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="mqcore-bench-") as name,
        running_cluster(_made(name, "none"), nodes=1, is_cluster=False) as alone,
        running_cluster(_made(name, "one"), nodes=1) as one,
        running_cluster(_made(name, "three")) as three,
    ):
        brokers = {"one broker": alone.nodes[0], "cluster of 1": one.leader(), "cluster of 3": three.leader()}
        scenarios: dict[str, Callable[[str, float], float]] = {
            f"confirmed/s, window {WINDOW}": rate,
            "latency, us": latency,
        }
        for title, scenario in scenarios.items():
            found: dict[str, list[float]] = {broker: [] for broker in brokers}
            for _ in range(ROUNDS):
                for broker, node in brokers.items():
                    found[broker].append(scenario(node.url, arguments.seconds))
            base = statistics.median(found["one broker"])
            for broker, figures in found.items():
                median = statistics.median(figures)
                spread = f"{min(figures):,.0f} to {max(figures):,.0f}"
                print(f"{title:26} {broker:14} {median:>12,.0f}  {median / base:5.2f}  {spread}", flush=True)
    # Without the messages of before, which a new leader would read first.
    with (
        tempfile.TemporaryDirectory(prefix="mqcore-bench-") as name,
        running_cluster(Path(name)) as three,
    ):
        times = sorted(failover(three) for _ in range(arguments.failovers))
        if times:
            print(f"failovers, s: {len(times)}, median {statistics.median(times):.2f}, longest {times[-1]:.2f}")


def _made(root: str, name: str) -> Path:
    path = Path(root) / name
    path.mkdir()
    return path


if __name__ == "__main__":
    main()
