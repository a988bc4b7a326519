"""The number of nodes of a cluster changes with its configuration, while clients publish."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from cluster_nodes import Cluster, publish, take
from link_proxy import LinkProxy
from ports import free_ports
from served import wait_until


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


@pytest.mark.timeout(120)
def test_a_new_node_has_no_vote_before_it_has_the_files(tmp_path: Path) -> None:
    members = dict(zip((1, 2, 3), free_ports(3), strict=True))
    proxy = LinkProxy(("127.0.0.1", members[1]))
    addresses = dict.fromkeys(((2, 1), (3, 1)), f"127.0.0.1:{proxy.port}")
    cluster = Cluster(tmp_path, member_ports=members, peer_addresses=addresses)
    cluster.consist_of([1])
    try:
        cluster.start()
        publish(cluster.leader(), range(50))
        assert cluster.nodes[0].stop() == 0
        proxy.hold_copies()
        cluster.consist_of([1, 2, 3])
        cluster.start()
        old, *new = cluster.nodes

        def copies() -> bool:
            statuses = [node.status() for node in new]
            return any(status is not None and status.role == "copying" for status in statuses)

        wait_until(copies, limit=20, what="a new node that copies files")
        status = cluster.leader().status()
        assert status is not None
        assert [replica.node for replica in status.replicas if replica.votes] == [1]
        for node in new:
            node.kill()
        publish(old, range(50, 60))
        proxy.release_copies()
        for node in new:
            node.start()
        cluster.wait_until_all_follow()
        assert take(new[0], 60) == list(range(60))
    except BaseException:
        cluster.show_logs()
        raise
    finally:
        cluster.close()
        proxy.close()
