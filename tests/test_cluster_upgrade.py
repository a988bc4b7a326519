"""Clusters whose nodes run two versions side by side, as during an upgrade: `make test-upgrade OLD=COMMIT`."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_nodes import Cluster, ClusterNode, publish, take
from served import wait_until
from test_cluster_faults import Load

OLD = os.environ.get("MQCORE_OLD_PYTHON", "")

pytestmark = pytest.mark.skipif(not OLD, reason="MQCORE_OLD_PYTHON names no Python with another version of mqcore")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes of the old version."""
    made = Cluster(tmp_path)
    for node in made.nodes:
        node.python = OLD
    try:
        made.start()
        made.wait_until_all_follow()
        yield made
        # Shown if the test fails.
        made.show_logs()
    finally:
        made.close()


def upgrade(node: ClusterNode) -> None:
    """Stop it in order, and start it with this version."""
    assert node.stop() == 0
    node.python = sys.executable
    node.start()


def test_nodes_are_upgraded_one_after_the_other_under_load(cluster: Cluster) -> None:
    load = Load(cluster)
    load.start()
    try:
        for node in cluster.nodes:
            upgrade(node)
            cluster.wait_until_all_follow()
            before = load.confirmations()
            wait_until(lambda before=before: load.confirmations() > before + 20, limit=20, what="new confirmations")
    finally:
        load.stop()
    load.drain(cluster.leader().url, idle=1.0)
    load.check(in_order=True)


def test_each_version_continues_what_the_other_one_led(cluster: Cluster) -> None:
    upgrade(cluster.followers()[0])
    cluster.wait_until_all_follow()
    expected = 0
    for _ in range(4):
        leader = cluster.leader()
        publish(leader, range(expected, expected + 50))
        expected += 50
        leader.kill()
        time.sleep(1.0)
        leader.start()
        cluster.wait_until_all_follow()
    assert take(cluster.leader(), expected) == list(range(expected))


def test_a_new_node_gets_a_copy_from_the_old_version(cluster: Cluster) -> None:
    node = cluster.followers()[0]
    publish(cluster.leader(), range(100))
    node.kill()
    shutil.rmtree(node.data_dir)
    node.python = sys.executable
    node.start()
    cluster.wait_until_all_follow()
    for other in cluster.nodes:
        if other is not node:
            other.kill()
            other.python = sys.executable
            other.start()
            cluster.wait_until_all_follow()
    assert take(node, 100) == list(range(100))
