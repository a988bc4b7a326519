"""Failovers and restarts of a cluster with much data: gigabytes of waiting messages, and ten thousand queues.

    maturin develop --release
    python benches/cluster_scale.py --gigabytes 2 --queues 10000

Three nodes on one machine; with `--witness`, one of them keeps no data. First, messages of 64 KiB wait in one queue;
then, 10,000 queues are idle, and then they have one message each. With messages, the leader is killed each time. The
failover ends with the next confirmation, the restart when the killed node has all data again. The memory is that of
the leader's process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import mqcore  # noqa: E402
from cluster_nodes import Cluster, ClusterNode, running_cluster  # noqa: E402
from mqcore import errors  # noqa: E402

BODY = b"x" * 65_536
BATCH = 256


def fill(url: str, gigabytes: float) -> None:
    """Publish large messages to one queue."""
    with mqcore.sync.connect(url, patience=20.0, request_timeout=60.0) as client:
        for _ in range(int(gigabytes * 2**30 / len(BODY) / BATCH)):
            client.publish_many("backlog/1", [BODY] * BATCH)


def create_queues(url: str, count: int) -> None:
    """Publish one message to each of many queues."""
    with mqcore.sync.connect(url, patience=20.0, request_timeout=60.0) as client:
        for number in range(count):
            client.publish(f"channel-{number % 100}/{number}", b"one", confirm=False)
        client.publish("backlog/1", b"last")


def create_idle_queues(url: str, count: int) -> None:
    """Create queues that never have a message."""
    with mqcore.sync.connect(url, patience=20.0, request_timeout=60.0) as client:
        for number in range(count):
            client.create_queue(f"channel-{number % 100}/{number}")


def memory(node: ClusterNode) -> float:
    """Resident memory of a node's process in MiB."""
    assert node.process is not None
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def lose_leader(cluster: Cluster, title: str) -> None:
    """Kill the leader, and print how long clients and the node wait."""
    cluster.wait_until_all_follow(limit=300)
    leader = cluster.leader()
    resident = memory(leader)
    urls = [node.url for node in cluster.nodes if node is not leader]
    leader.kill()
    killed = time.perf_counter()
    while True:
        try:
            with mqcore.sync.connect(urls, patience=60.0, request_timeout=60.0) as client:
                client.publish("probe/1", b"")
                break
        except errors.MqcoreError:
            continue
    confirmed = time.perf_counter()
    leader.start()
    cluster.wait_until_all_follow(limit=300)
    print(
        f"{title:28} next confirmation {confirmed - killed:6.2f} s, restarted node complete "
        f"{time.perf_counter() - confirmed:6.2f} s, memory of the leader {resident:,.0f} MiB",
        flush=True,
    )


@contextmanager
def scaled_cluster(*, witness: bool) -> Iterator[Cluster]:
    """Run a cluster with files that exist until the end of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="mqcore-bench-") as name,
        running_cluster(Path(name), witnesses=[3] if witness else []) as cluster,
    ):
        yield cluster


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="Waiting messages.")
    parser.add_argument("--queues", type=int, default=10_000, help="Queues with one message.")
    parser.add_argument("--rounds", type=int, default=3, help="Failovers of each kind.")
    parser.add_argument("--witness", action="store_true", help="The third node is a witness.")
    arguments = parser.parse_args()
    with scaled_cluster(witness=arguments.witness) as cluster:
        fill(cluster.leader().url, arguments.gigabytes)
        for _ in range(arguments.rounds):
            lose_leader(cluster, f"{arguments.gigabytes:g} GiB wait")
    with scaled_cluster(witness=arguments.witness) as cluster:
        leader = cluster.leader()
        before = memory(leader)
        create_idle_queues(leader.url, arguments.queues)
        each = (memory(leader) - before) * 1024 / arguments.queues
        print(f"{arguments.queues} idle queues: {each:.1f} KiB each", flush=True)
    with scaled_cluster(witness=arguments.witness) as cluster:
        leader = cluster.leader()
        before = memory(leader)
        create_queues(leader.url, arguments.queues)
        print(
            f"{arguments.queues} queues: {(memory(leader) - before) * 1024 / arguments.queues:.1f} KiB each", flush=True
        )
        for _ in range(arguments.rounds):
            lose_leader(cluster, f"{arguments.queues} queues")


if __name__ == "__main__":
    main()
