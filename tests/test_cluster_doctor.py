"""`mqcore doctor` on clusters: it asks all nodes and compares their answers."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from cluster_nodes import Cluster, doctor_of_cluster, running_cluster
from link_proxy import LinkProxy
from mqcore.cli.checks import Check
from mqcore.cli.cluster_checks import cluster_checks
from mqcore.cli.cluster_nodes import AskedNode
from mqcore.cluster import LogSyncs, NodeStatus, ReplicaStatus
from ports import free_ports
from served import wait_until


@pytest.mark.timeout(180)
def test_doctor_asks_all_nodes(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster.wait_until_all_follow()
        compare_answers(cluster)


def compare_answers(cluster: Cluster) -> None:
    leader, (follower, other) = cluster.leader(), cluster.followers()
    (check,) = doctor_of_cluster(follower)
    assert (check["state"], check["remedy"]) == ("ok", None)
    assert re.fullmatch(rf"all 3 nodes answer and vote; node {leader.number} leads in term \d+", check["text"])
    other.kill()
    (check,) = doctor_of_cluster(follower)
    assert check["state"] == "fail"
    assert check["text"].startswith(f"node {other.number}: ")
    assert check["remedy"].startswith("start the node")
    leader.kill()
    wait_until(lambda: (status := follower.status()) is not None and status.leader is None, limit=20)
    texts = {check["text"]: check["remedy"] for check in doctor_of_cluster(follower)}
    assert texts["no node leads; 1 of 3 answer"] == "start at least 2 of the 3 nodes"


def test_doctor_names_the_direction_in_which_nothing_passes(tmp_path: Path) -> None:
    members = dict(zip((1, 2, 3), free_ports(3), strict=True))
    links = {
        (caller, answerer): LinkProxy(("127.0.0.1", members[answerer]))
        for caller in members
        for answerer in members
        if caller != answerer
    }
    addresses = {link: f"127.0.0.1:{proxy.port}" for link, proxy in links.items()}
    try:
        with running_cluster(tmp_path, member_ports=members, peer_addresses=addresses) as cluster:
            cluster.wait_until_all_follow()
            leader, (sender, receiver) = cluster.leader(), cluster.followers()
            links[sender.number, receiver.number].cut()
            wait_until(
                lambda: (status := receiver.status()) is not None and sender.number not in status.hears, limit=20
            )
            (check,) = doctor_of_cluster(leader)
            assert check["state"] == "fail"
            assert f"node {sender.number} cannot send to node {receiver.number}" in check["text"]
            assert f"let node {sender.number} connect to" in check["remedy"]
    finally:
        for proxy in links.values():
            proxy.close()


def node_status(node: int, **changes: Any) -> NodeStatus:
    """The status of a node of a healthy cluster, which node 1 leads."""
    replicas = tuple(ReplicaStatus(each, str(each), votes=True) for each in (1, 2, 3))
    healthy = NodeStatus(
        cluster="tests",
        node=node,
        role="leading" if node == 1 else "following",
        leader=1,
        term=4,
        committed=9,
        applied=9,
        replicas=replicas,
        changing=False,
        hears=tuple(other for other in (1, 2, 3) if other != node),
        version="1.0.0",
        failure=None,
        clock_ms=1_000_000,
    )
    return dataclasses.replace(healthy, **changes)


def checks_of(*statuses: NodeStatus) -> list[Check]:
    return list(cluster_checks([AskedNode(each.node, f"db-{each.node}:1", each, None, 1_000.0) for each in statuses]))


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        ({}, "ok", "all 3 nodes answer and vote; node 1 leads in term 4"),
        ({2: {"role": "leading"}}, "fail", "nodes 1, 2 all lead in term 4, which must never happen"),
        ({2: {"version": "1.1.0"}}, "warn", "nodes run different versions: 1.0.0 on 1, 3; 1.1.0 on 2"),
        ({3: {"clock_ms": 998_500}}, "warn", "the clock of node 1 is 1.5 s ahead of the clock of node 3"),
        ({3: {"failure": "no disk"}}, "fail", "node 3 has failed: no disk"),
        ({1: {"hears": (2,)}, 3: {"hears": (2,)}}, "fail", "nodes 1 and 3 are not connected"),
        ({2: {"hears": (3,)}}, "fail", "node 2 sends to node 1, but node 1 cannot send to node 2"),
        (
            {1: {"replicas": (ReplicaStatus(1, "1", True), ReplicaStatus(2, "2", True))}},
            "warn",
            "node 3 does not count for a majority",
        ),
        (
            {1: {"replicas": (ReplicaStatus(1, "1", True), ReplicaStatus(3, "3", True))}, 2: {"role": "copying"}},
            "warn",
            "node 2 is still copying the files of the leader",
        ),
        (
            {2: {"log_syncs": LogSyncs(3, 600_000, 200_000, 300_000)}},
            "warn",
            "syncs of the log of node 2 take 200 ms on average and 300 ms at most",
        ),
    ],
)
def test_doctor_compares_answers(changes: dict[int, dict[str, Any]], state: str, text: str) -> None:
    (check,) = checks_of(*(node_status(node, **changes.get(node, {})) for node in (1, 2, 3)))
    assert (check.state, check.text) == (state, text)
    assert (check.remedy is None) == (state == "ok")


def test_an_old_leader_may_not_have_noticed_its_successor() -> None:
    statuses = [node_status(1), node_status(2, role="leading", term=5), node_status(3, term=5)]
    (check,) = checks_of(*statuses)
    assert check.text == "all 3 nodes answer and vote; node 2 leads in term 5"
