"""The state of a cluster for operators: status, metrics, findings and health checks."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import mqcore
from cluster_nodes import Cluster, ClusterNode, doctor_of_cluster, running_cluster
from mqcore.cluster import LogSyncs, NodeStatus
from mqcore.config import BrokerConfig
from served import ROOT, wait_until
from slow_sync import slow_sync

MANIFEST = ROOT / "contrib" / "kubernetes" / "mqcore-cluster.yaml"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as running:
        running.wait_until_all_follow()
        yield running
        # Shown if the test fails.
        running.show_logs()


def get(node: ClusterNode, path: str, method: str = "GET", timeout: float = 5.0) -> tuple[int, str]:
    """The status and the body of an answer of a node's admin side."""
    address = urllib.parse.urlsplit(node.admin)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(node: ClusterNode, name: str) -> dict[str, float]:
    """The samples of a metric, by the value of the label `node`."""
    found = {}
    for line in get(node, "/metrics")[1].splitlines():
        if match := re.fullmatch(rf'{name}(?:\{{node="(\d+)"\}})? (\S+)', line):
            found[match[1] or ""] = float(match[2])
    return found


def findings(node: ClusterNode) -> dict[str, mqcore.admin.Finding]:
    """Findings of the leader about the cluster, by kind."""
    found = mqcore.admin.attention(node.admin).findings
    return {finding.kind: finding for finding in found if finding.kind.startswith("cluster-")}


def publish(node: ClusterNode, count: int) -> None:
    with mqcore.sync.connect(node.url, patience=15.0) as client:
        for number in range(count):
            client.publish("orders/1001", str(number).encode())


def test_the_leader_shows_all_nodes_and_any_node_passes_that_on(cluster: Cluster) -> None:
    leader = cluster.leader()
    publish(leader, 50)

    def all_report_syncs() -> bool:
        seen = mqcore.admin.cluster(leader.admin)
        return seen is not None and all(node.log_syncs and node.log_syncs.count for node in seen.nodes)

    # Followers report with some delay.
    wait_until(all_report_syncs, limit=10, what="syncs of all nodes")
    found = mqcore.admin.cluster(cluster.followers()[0].admin)
    assert found is not None
    assert (found.cluster, found.leader, found.spare_nodes, found.changing) == ("tests", leader.number, 1, False)
    assert found.applied <= found.committed
    assert found.log_entries > 0
    assert found.log_bytes > 0
    assert [node.node for node in found.nodes] == [1, 2, 3]
    for node in found.nodes:
        assert node.role == ("leading" if node.node == leader.number else "following")
        assert (node.connected, node.votes, node.version) == (True, True, mqcore.__version__)
        assert node.log_syncs is not None
        assert 0 < node.log_syncs.mean_us <= node.log_syncs.longest_us
        assert node.clock_offset_ms is not None
        assert abs(node.clock_offset_ms) < 1_000
        assert node.connected_to == tuple(other for other in (1, 2, 3) if other != node.node)

    def all_have_everything() -> bool:
        state = mqcore.admin.cluster(leader.admin)
        return state is not None and all(node.lag == 0 for node in state.nodes)

    wait_until(all_have_everything, what="replicas without a lag")
    assert samples(leader, "mqcore_raft_term") == {"": found.term}
    assert samples(leader, "mqcore_raft_voters") == {"": 3}
    assert samples(leader, "mqcore_raft_spare_nodes") == {"": 1}
    assert samples(leader, "mqcore_raft_replica_connected") == {"1": 1, "2": 1, "3": 1}
    assert samples(leader, "mqcore_raft_replica_lag") == {"1": 0, "2": 0, "3": 0}
    assert all(count > 0 for count in samples(leader, "mqcore_raft_log_syncs_total").values())
    assert all(seconds > 0 for seconds in samples(leader, "mqcore_raft_log_sync_seconds_total").values())
    assert findings(leader) == {}
    assert json.loads(get(leader, "/access")[1])["cluster"] is True


def test_a_node_that_is_away_is_reported_and_returns(cluster: Cluster) -> None:
    leader, lost = cluster.leader(), cluster.followers()[0]
    lost.kill()
    wait_until(lambda: "cluster-node-down" in findings(leader), limit=20, what="a finding")
    finding = findings(leader)["cluster-node-down"]
    assert finding.subject == f"cluster node {lost.number}"
    assert "if another node fails, nothing is confirmed" in finding.cause
    assert lost.address in finding.remedy
    assert samples(leader, "mqcore_raft_replica_connected")[str(lost.number)] == 0
    assert samples(leader, "mqcore_raft_spare_nodes") == {"": 0}
    state = mqcore.admin.cluster(leader.admin)
    assert state is not None
    away = state.nodes[lost.number - 1]
    assert (away.connected, away.role, away.log_syncs, away.votes) == (False, None, None, True)
    assert away.silent_ms is not None
    assert away.silent_ms > 3_000
    lost.start()
    wait_until(lambda: findings(leader) == {}, limit=20, what="no finding")


def test_a_node_counts_changes_of_the_leader_and_the_time_without_one(cluster: Cluster) -> None:
    first, (second, third) = cluster.leader(), cluster.followers()
    before = second.status()
    assert before is not None
    assert (before.leaderless_ms, before.address) == (0, second.address)
    assert abs(before.clock_ms / 1000 - time.time()) < 5
    assert {peer.node for peer in before.peers if peer.connected} == {first.number, third.number}
    first.kill()
    cluster.leader()
    after = second.status()
    assert after is not None
    assert after.leader_changes == before.leader_changes + 1
    third.kill()

    def knows_no_leader() -> bool:
        status = second.status()
        return status is not None and status.leader is None and status.leaderless_ms > 500

    wait_until(knows_no_leader, limit=20, what="a node without a leader")


def test_a_node_answers_for_itself_without_a_leader(cluster: Cluster) -> None:
    leader, (follower, other) = cluster.leader(), cluster.followers()
    for node in cluster.nodes:
        assert get(node, "/livez") == (200, '{"status":"live"}')
        assert get(node, "/readyz")[0] == 200
    # Everything else is the answer of the leader.
    pid = json.loads(get(leader, "/overview")[1])["pid"]
    assert json.loads(get(follower, "/overview")[1])["pid"] == pid
    assert get(follower, "/livez", method="POST")[0] == 401
    assert get(follower, "/livez", method="HEAD") == (200, "")
    leader.kill()
    other.kill()
    wait_until(lambda: (status := follower.status()) is not None and status.leader is None, limit=20)
    assert get(follower, "/livez") == (200, '{"status":"live"}')
    begun = time.monotonic()
    status, text = get(follower, "/readyz")
    assert time.monotonic() - begun < 2
    assert status == 503
    assert json.loads(text)["error"] == {"code": "no-leader", "message": "no node leads the cluster"}


def test_a_health_check_may_arrive_in_pieces_and_others_may_stay_silent(cluster: Cluster) -> None:
    address = urllib.parse.urlsplit(cluster.followers()[0].admin)
    place = (address.hostname or "", address.port or 0)
    with socket.create_connection(place, timeout=10) as slow, socket.create_connection(place, timeout=10) as silent:
        for piece in (b"GET /li", b"vez HTTP/1.1\r\nhost:", b" a\r\n", b"\r\n"):
            slow.sendall(piece)
            time.sleep(0.05)
        answer = b"".join(iter(lambda: slow.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b'{"status":"live"}')
        # As on the admin side of the leader, a connection without a request does not stay.
        assert silent.recv(1) == b""


def test_a_node_that_lost_its_files_is_ready_when_it_has_them(cluster: Cluster) -> None:
    lost = cluster.followers()[0]
    publish(cluster.leader(), 200)
    lost.kill()
    shutil.rmtree(lost.data_dir)
    lost.start()

    def is_ready() -> bool:
        try:
            return get(lost, "/readyz")[0] == 200
        except OSError:
            return False

    wait_until(is_ready, limit=40, what="a node that is ready")
    status = lost.status()
    assert status is not None
    assert status.role == "following"
    assert len(list(lost.data_dir.glob("shard-*"))) == 2


@pytest.mark.timeout(180)
def test_clocks_and_slow_disks_are_reported(tmp_path: Path) -> None:
    shim, offset = tmp_path / "clock.so", tmp_path / "offset"
    source = ROOT / "tests" / "system_clock.c"
    slow = slow_sync(tmp_path, milliseconds=150, part="/consensus/")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True)
    offset.write_text("5")
    cluster = Cluster(tmp_path)
    try:
        cluster.nodes[0].start()
        cluster.nodes[1].start({"LD_PRELOAD": str(shim), "CLOCK_OFFSET_FILE": str(offset)})
        cluster.nodes[2].start(slow)
        cluster.wait_until_all_follow()
        leader = cluster.leader()
        publish(leader, 20)
        wait_until(lambda: findings(leader).keys() == {"cluster-clock", "cluster-slow-sync"}, limit=30)
        found = findings(leader)
        assert found["cluster-slow-sync"].subject == "cluster node 3"
        assert re.search(r"1[5-9]\d ms on average", found["cluster-slow-sync"].cause)
        assert re.search(r"(5\.\d s ahead of|[45]\.\d s behind) the clock of the leader", found["cluster-clock"].cause)
        texts = [check["text"] for check in doctor_of_cluster(leader)]
        assert any(re.search(r"the clock of node 2 is [45]\.\d s ahead of", text) for text in texts), texts
        assert any(text.startswith("syncs of the log of node 3 take 1") for text in texts), texts
    finally:
        cluster.show_logs()
        cluster.close()


def test_a_status_of_another_version_can_be_read() -> None:
    earlier = {
        "cluster": "tests",
        "node": 2,
        "role": "following",
        "leader": 1,
        "term": 3,
        "committed": 7,
        "applied": 7,
        "replicas": [{"node": 1, "replica": "1", "votes": True}],
        "changing": False,
        "hears": [1],
        "version": "0.1.0",
        "failure": None,
    }
    status = NodeStatus.from_json(json.dumps(earlier))
    assert (status.log_syncs, status.peers, status.replicas[0].lag) == (LogSyncs(), (), None)
    later = {**earlier, "weather": "fine", "log_syncs": {"count": 4, "fastest_us": 1}}
    assert NodeStatus.from_json(json.dumps(later)).log_syncs == LogSyncs(count=4)


def test_one_broker_has_no_cluster() -> None:
    with mqcore.Broker(admin="http://127.0.0.1:0") as broker:
        assert broker.admin_url is not None
        assert mqcore.admin.cluster(broker.admin_url) is None
        with urllib.request.urlopen(f"{broker.admin_url}/metrics") as page:
            assert b"mqcore_raft" not in page.read()


def test_the_manifest_for_kubernetes_has_three_nodes_that_fit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", str(MANIFEST)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    documents = {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}
    pods = documents["StatefulSet"]["spec"]
    assert pods["podManagementPolicy"] == "Parallel", "nodes must meet before the first one is ready"
    assert pods["ordinals"]["start"] == 1
    (container,) = pods["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    files = documents["ConfigMap"]["data"]
    assert set(files) == {f"node-{number}.toml" for number in (1, 2, 3)}
    for number in (1, 2, 3):
        file = tmp_path / f"node-{number}.toml"
        file.write_text(files[file.name])
        config = BrokerConfig.load(file, environ={})
        assert config.cluster is not None
        assert config.cluster.node == number
        expected = [f"{node}=mqcore-cluster-{node}.{pods['serviceName']}:47299" for node in (1, 2, 3) if node != number]
        assert list(config.cluster.peers) == expected
