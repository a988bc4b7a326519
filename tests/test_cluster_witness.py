"""Clusters of two nodes with data and a witness: nothing confirmed is lost, and the witness leads only to hand over."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqcore
from cluster_nodes import (
    QUEUE,
    SECRET,
    WITNESS,
    Cluster,
    ClusterNode,
    doctor_of_cluster,
    publish,
    running_cluster,
    take,
)
from mqcore import errors
from mqcore.cluster import NodeStatus
from served import wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose third node is a witness."""
    with running_cluster(tmp_path, witnesses=[3]) as running:
        running.wait_until_all_follow()
        yield running
        # Shown if the test fails.
        running.show_logs()


def witness_of(cluster: Cluster) -> ClusterNode:
    return cluster.nodes[2]


def data_nodes(cluster: Cluster) -> tuple[ClusterNode, ClusterNode]:
    """The leader, and the other node with data."""
    leader = cluster.leader()
    (other,) = [node for node in cluster.nodes[:2] if node is not leader]
    return leader, other


def known(node: ClusterNode) -> NodeStatus:
    status = node.status()
    assert status is not None
    return status


def segments(node: ClusterNode) -> list[Path]:
    """The files of its broker's journals."""
    return [path for path in node.data_dir.rglob("*.segment") if "consensus" not in path.parts]


def test_a_witness_keeps_no_data_and_serves_clients(cluster: Cluster) -> None:
    witness = witness_of(cluster)
    assert witness is not cluster.leader(), "a node without data never leads"
    publish(witness, range(50))
    assert take(witness, 50) == list(range(50)), "it passes connections on"
    cluster.wait_until_all_follow()
    assert known(witness).role == "witnessing"
    assert segments(cluster.leader())
    assert segments(witness) == []
    assert not (witness.data_dir / "format").exists()
    (shown,) = [node for node in mqcore.admin.cluster(witness.admin).nodes if node.node == witness.number]
    assert (shown.role, shown.votes) == ("witnessing", True)
    assert {check["state"] for check in doctor_of_cluster(witness)} == {"ok"}


def test_the_other_node_with_data_continues_if_the_leader_is_lost(cluster: Cluster) -> None:
    leader, other = data_nodes(cluster)
    publish(witness_of(cluster), range(100))
    leader.kill()
    publish(other, range(100, 150))
    assert cluster.leader() is other
    assert take(witness_of(cluster), 150) == list(range(150))


def test_a_witness_hands_on_what_only_it_and_a_lost_leader_had(cluster: Cluster) -> None:
    leader, other = data_nodes(cluster)
    publish(leader, range(10))
    other.kill()
    # A majority is the leader and the witness.
    publish(leader, range(10, 200))
    leader.kill()
    shutil.rmtree(leader.data_dir)
    other.start()
    publish(other, range(200, 205))
    assert cluster.leader() is other
    assert take(witness_of(cluster), 205) == list(range(205))


def test_nothing_is_confirmed_by_a_witness_alone(cluster: Cluster) -> None:
    leader, other = data_nodes(cluster)
    publish(leader, range(3))
    leader.kill()
    other.kill()
    witness = witness_of(cluster)
    wait_until(lambda: known(witness).leader is None, limit=20, what="the end of the leader")
    with pytest.raises(errors.MqcoreError), mqcore.sync.connect(witness.url, patience=2.0) as client:
        client.publish(QUEUE, b"3")
    other.start()
    assert take(other, 3) == list(range(3))


def test_a_witness_that_lost_its_directory_joins_again(cluster: Cluster) -> None:
    witness = witness_of(cluster)
    publish(cluster.leader(), range(20))
    witness.kill()
    shutil.rmtree(witness.data_dir)
    publish(cluster.leader(), range(20, 40))
    witness.start()
    cluster.wait_until_all_follow()
    assert (known(witness).role, segments(witness)) == ("witnessing", [])
    leader, other = data_nodes(cluster)
    leader.kill()
    assert take(other, 40) == list(range(40))


def test_a_witness_that_was_away_for_long_continues(cluster: Cluster) -> None:
    """The leader's log has forgotten the changes that it lacks."""
    witness, leader = witness_of(cluster), cluster.leader()
    witness.signal(signal.SIGSTOP)
    body = b"x" * 2_000_000
    with mqcore.sync.connect(leader.url, patience=15.0) as client:
        # The log keeps 256 MiB for nodes that were away.
        for _ in range(160):
            client.publish("large/1", body)
    witness.signal(signal.SIGCONT)
    cluster.wait_until_all_follow()
    assert (known(witness).role, segments(witness)) == ("witnessing", [])
    publish(leader, range(5))
    # The load may have changed the leader.
    leader, other = data_nodes(cluster)
    leader.kill()
    assert take(other, 5) == list(range(5))


def test_a_witness_forgets_what_all_nodes_with_data_have(cluster: Cluster) -> None:
    witness, leader = witness_of(cluster), cluster.leader()
    body = b"x" * 2_000_000
    with mqcore.sync.connect(leader.url, patience=15.0) as client:
        for _ in range(60):
            client.publish("large/1", body)
    cluster.wait_until_all_follow()
    # It forgets in steps of 32 MiB, and its segments have 16 MiB and more.
    wait_until(lambda: known(witness).log_bytes < 96_000_000, limit=20, what="a short log")
    other = data_nodes(cluster)[1]
    other.kill()
    with mqcore.sync.connect(leader.url, patience=15.0) as client:
        for _ in range(60):
            client.publish("large/1", body)
    assert known(witness).log_bytes > 120_000_000, "the lost node lacks them"


def test_an_operator_cannot_make_a_witness_lead(cluster: Cluster) -> None:
    leader, witness = cluster.leader(), witness_of(cluster)
    with pytest.raises(errors.Unacceptable, match="is a witness, which has no data"):
        mqcore.cluster.promote(witness.number, leader.address, secret=SECRET.encode(), name="tests")


def test_a_leader_that_stops_hands_over_to_the_node_with_data(cluster: Cluster) -> None:
    leader, other = data_nodes(cluster)
    publish(leader, range(5))
    terms = known(leader).term
    assert leader.stop() == 0
    assert cluster.leader() is other
    assert known(other).term == terms + 1, "the witness was not asked to lead"


@pytest.mark.parametrize("is_witness", [True, False])
def test_a_node_does_not_change_its_kind_with_its_directory(cluster: Cluster, is_witness: bool) -> None:
    node = data_nodes(cluster)[1] if is_witness else witness_of(cluster)
    node.kill()
    node.environment = WITNESS if is_witness else {}
    node.start()
    assert node.process is not None
    assert node.process.wait(timeout=20) != 0
    node.process = None
    assert "move the directory away" in node.log.read_text()
    shutil.rmtree(node.data_dir)
    if not is_witness:
        node.start()
        cluster.wait_until_all_follow()
        assert known(node).role == "following"


def test_a_cluster_of_mostly_witnesses_does_not_begin(tmp_path: Path) -> None:
    with running_cluster(tmp_path, witnesses=[2, 3]) as cluster:
        # The first node that hears all others stops, so that the others do not hear it any more.
        logs = [node.log for node in cluster.nodes]
        wait_until(lambda: any("are witnesses" in log.read_text() for log in logs), limit=20, what="the error")
        assert any("more than half of the nodes" in log.read_text() for log in logs)


def test_the_data_of_a_broker_is_not_that_of_a_witness(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, witnesses=[3])
    witness = cluster.nodes[2]
    with mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=str(witness.data_dir)):
        pass
    try:
        cluster.start()
        wait_until(lambda: "which a witness would not use" in witness.log.read_text(), limit=20, what="the error")
        assert (witness.data_dir / "format").exists()
    finally:
        cluster.close()


def test_five_nodes_with_two_witnesses_survive_two_losses(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=5, witnesses=[4, 5]) as cluster:
        cluster.wait_until_all_follow()
        publish(cluster.nodes[4], range(50))
        cluster.leader().kill()
        publish(cluster.nodes[4], range(50, 60))
        cluster.leader().kill()
        (last,) = [node for node in cluster.nodes[:3] if node.is_running()]
        assert take(cluster.nodes[3], 60) == list(range(60))
        assert cluster.leader() is last
        assert [known(node).role for node in cluster.nodes[3:]] == ["witnessing"] * 2
