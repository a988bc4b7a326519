"""The number of nodes of a cluster changes with its configuration, while clients publish."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from cluster_nodes import Cluster, publish, take


def change(cluster: Cluster, numbers: Iterable[int]) -> None:
    """Give all nodes a new configuration, and restart one after the other. New ones start first."""
    before = {node.number for node in cluster.nodes}
    cluster.consist_of(numbers)
    chosen = {node.number for node in cluster.nodes}
    for node in cluster.nodes:
        if node.number not in before:
            node.start()
    for node in cluster.nodes:
        if node.number in before:
            assert node.stop() == 0
            node.start()
            cluster.leader()
    cluster.wait_until_all_follow()
    for node in cluster.all_nodes:
        if node.number in before - chosen:
            node.kill()


@pytest.mark.timeout(180)
def test_a_cluster_grows_and_shrinks_without_a_loss(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, nodes=5)
    cluster.consist_of([1])
    try:
        cluster.start()
        publish(cluster.leader(), range(100))
        change(cluster, [1, 2, 3])
        publish(cluster.nodes[1], range(100, 200))
        change(cluster, [1, 2, 3, 4, 5])
        publish(cluster.nodes[4], range(200, 300))
        # Five nodes survive the loss of two.
        lost = [cluster.leader(), cluster.followers()[0]]
        for node in lost:
            node.kill()
        publish(cluster.leader(), range(300, 350))
        for node in lost:
            node.start()
        cluster.wait_until_all_follow()
        # The nodes that leave may lead before.
        change(cluster, [3, 4, 5])
        publish(cluster.nodes[0], range(350, 400))
        # Three nodes survive the loss of one: those that left are not needed any more.
        cluster.leader().kill()
        assert take(cluster.leader(), 400) == list(range(400))
    except BaseException:
        cluster.show_logs()
        raise
    finally:
        cluster.close()
