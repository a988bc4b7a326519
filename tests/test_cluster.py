"""Three brokers with one data directory: what is confirmed survives the loss of any of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqcore
from cluster_nodes import QUEUE, SECRET, Cluster, ClusterNode, publish, running_cluster, take
from mqcore import errors
from mqcore._core import AuthorityStore
from mqcore.config import ClusterConfig
from mqcore.jobs import Jobs, Worker
from mqcore.throttr import SyncClient
from served import clean_environment, wait_until
from test_admin_changes import new_token


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as running:
        running.leader()
        yield running
        # Shown if the test fails.
        running.show_logs()


def waiting(node: ClusterNode, queue: str = QUEUE) -> int:
    """The number of messages that wait in a queue."""
    found = [state.ready for state in mqcore.admin.queues(node.admin).queues if state.queue == queue]
    return sum(found)


def test_what_was_confirmed_survives_the_loss_of_the_leader(cluster: Cluster) -> None:
    leader = cluster.leader()
    follower = cluster.followers()[0]
    publish(follower, range(300))
    assert take(follower, 100) == list(range(100))
    leader.kill()
    successor = cluster.leader(limit=10)
    assert successor is not leader
    # Any node that is left serves the clients, and no settled message returns.
    other = next(node for node in cluster.nodes if node not in (leader, successor))
    assert take(other, 200) == list(range(100, 300))
    leader.start()
    cluster.wait_until_all_follow()
    publish(leader, range(5), "after/1")
    assert take(successor, 5, "after/1") == list(range(5))


def test_each_node_reports_to_its_service_manager_that_it_is_ready(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    managers: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as sockets, contextlib.closing(cluster):
        for node in cluster.nodes:
            manager = sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            address = tmp_path / f"notify-{node.number}"
            manager.bind(os.fspath(address))
            manager.settimeout(20)
            managers[node.number] = manager
            node.environment["NOTIFY_SOCKET"] = str(address)

        def read(node: ClusterNode) -> dict[str, str]:
            return dict(line.split("=", 1) for line in managers[node.number].recv(4096).decode().splitlines())

        cluster.start()
        for node in cluster.nodes:
            assert node.process is not None
            told = read(node)
            assert (told["READY"], told["MAINPID"]) == ("1", str(node.process.pid))
            assert told["STATUS"] == f"node {node.number} of the cluster"
        leader, follower = cluster.leader(), cluster.followers()[0]
        assert read(leader)["STATUS"].startswith("listening on")
        # The process of the old leader is replaced, and reports again.
        cluster.wait_until_all_follow()
        mqcore.cluster.promote(follower.number, leader.address, secret=SECRET.encode(), name="tests")
        assert read(follower)["STATUS"].startswith("listening on")
        assert read(leader)["STATUS"] == f"node {leader.number} of the cluster"


def test_durability_os_waits_for_a_majority(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for node in cluster.nodes:
        node.environment["MQCORE_CHANNEL_DEFAULTS__QUEUE__DURABILITY"] = "os"
    try:
        cluster.start()
        cluster.wait_until_all_follow()
        leader, followers = cluster.leader(), cluster.followers()
        publish(leader, range(10))
        for node in followers:
            node.signal(signal.SIGSTOP)
        confirmed = list(range(10))
        with (
            contextlib.suppress(errors.MqcoreError),
            mqcore.sync.connect(leader.url, request_timeout=0.4) as client,
        ):
            client.publish(QUEUE, b"10")
            confirmed.append(10)
        leader.kill()
        for node in followers:
            node.signal(signal.SIGCONT)
        assert take(cluster.leader(), len(confirmed)) == confirmed
    except BaseException:
        cluster.show_logs()
        raise
    finally:
        cluster.close()


def test_nothing_is_confirmed_without_a_majority(cluster: Cluster) -> None:
    leader = cluster.leader()
    publish(leader, range(3))
    followers = cluster.followers()
    for node in followers:
        node.kill()
    with mqcore.sync.connect(leader.url, request_timeout=2.0) as client, pytest.raises(errors.MqcoreError):
        client.publish(QUEUE, b"3")
    # The old leader gives up, and its process follows: it does not serve on its own.
    wait_until(lambda: (status := leader.status()) is not None and status.role == "following", limit=20)
    followers[0].start()
    cluster.leader()
    found = take(leader, 3)
    assert found == [0, 1, 2]
    # The fourth one was not confirmed: it may exist, once.
    assert waiting(leader) <= 1


def test_a_leader_that_was_stopped_follows_when_it_continues(cluster: Cluster) -> None:
    leader = cluster.leader()
    publish(leader, range(10))
    leader.signal(signal.SIGSTOP)
    rest = [node for node in cluster.nodes if node is not leader]
    found: list[ClusterNode] = []

    def is_replaced() -> bool:
        found[:] = [node for node in rest if (status := node.status()) is not None and status.role == "leading"]
        return bool(found)

    wait_until(is_replaced, limit=20, what="another leader")
    publish(found[0], range(10, 20))
    leader.signal(signal.SIGCONT)
    cluster.wait_until_all_follow()
    assert leader.is_running(), "it has the same process id"
    assert take(leader, 20) == list(range(20))


@pytest.mark.full("15 s; test_a_node_that_lost_its_directory_gets_a_copy while the others run")
def test_a_node_that_lost_its_directory_joins_nodes_that_just_start(cluster: Cluster) -> None:
    publish(cluster.leader(), range(50))
    for attempt in range(3):
        lost = cluster.followers()[0]
        for node in cluster.nodes:
            node.kill()
        shutil.rmtree(lost.data_dir)
        # It meets the others before they have opened their logs.
        cluster.start()
        cluster.wait_until_all_follow()
        status = cluster.leader().status()
        assert status is not None
        replicas = {replica.node: replica.replica for replica in status.replicas}
        assert replicas[lost.number] != f"{lost.number}.0", f"attempt {attempt}: it may have voted under this id"
    assert take(cluster.leader(), 50) == list(range(50))


@pytest.mark.full("15 s; test_a_node_that_lost_its_directory_gets_a_copy replaces one")
def test_all_nodes_are_replaced_one_after_the_other_and_twice(cluster: Cluster) -> None:
    publish(cluster.leader(), range(50))
    for number in (0, 1, 2, 0):
        node = cluster.nodes[number]
        node.kill()
        shutil.rmtree(node.data_dir)
        cluster.leader()
        node.start()
        cluster.wait_until_all_follow()
    status = cluster.leader().status()
    assert status is not None
    # Their first ids may have voted.
    assert not [replica.replica for replica in status.replicas if replica.replica.endswith(".0")]
    assert take(cluster.leader(), 50) == list(range(50))


def test_a_node_that_lost_its_directory_gets_a_copy(cluster: Cluster) -> None:
    publish(cluster.leader(), range(500))
    lost = cluster.followers()[0]
    lost.kill()
    publish(cluster.leader(), range(500, 600))
    shutil.rmtree(lost.data_dir)
    lost.start()
    cluster.wait_until_all_follow()
    status = cluster.leader().status()
    assert status is not None
    replicas = {replica.node: replica.replica for replica in status.replicas}
    assert replicas[lost.number] != f"{lost.number}.0", "the old replica may have voted, and must not return"
    # Its copy is enough: the node without it is killed, and so is the leader, which returns with an empty directory.
    other = next(node for node in cluster.followers() if node is not lost)
    leader = cluster.leader()
    leader.kill()
    successor = cluster.leader()
    assert successor in (lost, other)
    if successor is not lost:
        successor.stop()
        wait_until(lambda: lost.is_running(), limit=1)
        successor.start()
        cluster.leader()
    assert take(lost, 600) == list(range(600))


def test_a_node_whose_log_is_damaged_joins_anew(cluster: Cluster) -> None:
    publish(cluster.leader(), range(300))
    damaged = cluster.followers()[0]
    damaged.kill()
    segments = sorted((damaged.data_dir / "consensus" / "log").glob("*.segment"))
    with segments[0].open("r+b") as file:
        file.seek(20_000)
        file.write(b"\xff" * 64)
    damaged.start()
    cluster.wait_until_all_follow()
    assert list((damaged.data_dir / "replaced").iterdir()), "its files are kept"
    leader = cluster.leader()
    leader.kill()
    assert take(damaged, 300) == list(range(300))


@pytest.mark.full("8 s; test_a_node_whose_log_is_damaged_joins_anew in the same way")
def test_a_node_whose_log_is_missing_joins_anew(cluster: Cluster) -> None:
    publish(cluster.leader(), range(50))
    lost = cluster.followers()[0]
    lost.kill()
    # It may have voted, and acknowledged entries. The rest of its directory is as it was.
    shutil.rmtree(lost.data_dir / "consensus" / "log")
    lost.start()
    cluster.wait_until_all_follow()
    status = cluster.leader().status()
    assert status is not None
    assert f"{lost.number}.0" not in {replica.replica for replica in status.replicas}
    cluster.leader().kill()
    assert take(lost, 50) == list(range(50))


def test_two_of_five_nodes_may_fail(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=5) as cluster:
        publish(cluster.leader(), range(100))
        for _ in range(2):
            cluster.leader().kill()
        assert take(cluster.leader(), 100) == list(range(100))


def test_a_broker_with_data_becomes_a_cluster(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    first = cluster.nodes[0]
    options = {
        "shards": 2,
        "auto_create_channels": True,
        "auto_create_queues": True,
        "delivery_handler": "at-least-once",
    }
    queue = mqcore.QueueOptions(status="round-robin", request_acknowledge=True)
    options["channel"] = mqcore.ChannelOptions(queue=queue)
    with (
        mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=str(first.data_dir), **options) as broker,
        mqcore.sync.connect(broker.listeners[0]) as client,
    ):
        for number in range(50):
            client.publish(QUEUE, str(number).encode())
    try:
        cluster.start()
        cluster.wait_until_all_follow()
        cluster.leader().kill()
        assert cluster.leader() is not first or first.is_running()
        rest = next(node for node in cluster.nodes if node.is_running())
        assert take(rest, 50) == list(range(50))
    finally:
        cluster.close()


def test_a_rolling_restart_under_load_loses_nothing(cluster: Cluster) -> None:
    confirmed: list[int] = []
    ends = threading.Event()
    urls = [node.url for node in cluster.nodes]

    def produce() -> None:
        number = 0
        while not ends.is_set():
            with (
                contextlib.suppress(errors.MqcoreError),
                mqcore.sync.connect(urls[number % 3], request_timeout=3.0) as client,
            ):
                while not ends.is_set():
                    client.publish(QUEUE, str(number).encode())
                    confirmed.append(number)
                    number += 1
            # The message on its way may have arrived: it is not sent again.
            number += 1

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for node in cluster.nodes:
            assert node.stop() == 0
            node.start()
            cluster.wait_until_all_follow()
            before = len(confirmed)
            wait_until(lambda before=before: len(confirmed) > before + 20, limit=20, what="new confirmations")
    finally:
        ends.set()
        producer.join()
    found: list[int] = []
    with mqcore.sync.connect(cluster.nodes[0].url, patience=15.0) as client:
        for message in client.queue(QUEUE).consume(prefetch=100, idle_timeout=2.0):
            found.append(int(message.body))
            message.ack()
    assert set(confirmed) <= set(found)
    assert found == sorted(found)


def test_a_leader_that_stops_hands_over_at_once(cluster: Cluster) -> None:
    publish(cluster.leader(), range(3))
    leader = cluster.leader()
    rest = cluster.followers()
    before = time.monotonic()
    assert leader.stop() == 0
    wait_until(lambda: any((s := node.status()) is not None and s.role == "leading" for node in rest), limit=5)
    assert time.monotonic() - before < 5
    assert take(rest[0], 3) == [0, 1, 2]


def test_a_node_stops_without_the_others(cluster: Cluster) -> None:
    leader = cluster.leader()
    publish(leader, range(3))
    for node in cluster.followers():
        node.kill()
    # At once, while it still leads.
    assert leader.stop() == 0
    leader.start()
    wait_until(lambda: (status := leader.status()) is not None and status.role == "following", limit=20)
    assert leader.stop() == 0, "it follows, and there is no leader"
    cluster.start()
    assert take(leader, 3) == [0, 1, 2]


def test_all_nodes_stop_one_after_the_other(cluster: Cluster) -> None:
    publish(cluster.leader(), range(3))
    # The last ones become leaders without a majority, some while their brokers start.
    for node in cluster.nodes:
        assert node.stop() == 0
    cluster.start()
    assert take(cluster.leader(), 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"node": 0}, "numbered from 1"),
        ({"peers": ("1=a:1", "3=b:1")}, "own peer"),
        ({"peers": ("2=a:1",)}, "3, 5 or 7 nodes"),
        ({"peers": ("2", "3=b:1")}, "NODE=HOST:PORT"),
        ({"secret": "short"}, "at least 16 bytes"),
        ({"listen": "256.0.0.1:1"}, "cannot listen"),
        ({"name": ""}, "1 to 255 bytes"),
    ],
)
def test_a_mistake_in_the_configuration_is_named(changes: dict[str, object], why: str, tmp_path: Path) -> None:
    options = {"node": 1, "listen": "127.0.0.1:0", "peers": ("2=127.0.0.1:1", "3=127.0.0.1:2"), "secret": "s" * 32}
    config = mqcore.config.BrokerConfig(
        listen=("tmqp://127.0.0.1:47291",), data_dir=str(tmp_path), cluster=ClusterConfig(**{**options, **changes})
    )
    with pytest.raises(errors.ConfigError, match=why):
        mqcore._core.ClusterMember(config, config.cluster.read_secret(), [], {})


def test_only_serve_runs_a_node() -> None:
    node = ClusterConfig(node=1, listen="127.0.0.1:0", secret="s" * 32)
    with pytest.raises(errors.ConfigError, match="mqcore serve"):
        mqcore.Broker(cluster=node).start()
    with pytest.raises(errors.ConfigError, match="either secret or secret_file"):
        ClusterConfig(node=1, listen="127.0.0.1:0")
    missing = ClusterConfig(node=1, listen="127.0.0.1:0", secret_file="/no/such/file")
    with pytest.raises(errors.ConfigError, match="cannot read the secret"):
        missing.read_secret()


def test_the_command_line_lists_the_nodes(cluster: Cluster) -> None:
    cluster.wait_until_all_follow()
    command = [sys.executable, "-m", "mqcore", "cluster", "ls", "--config", str(cluster.nodes[0].config)]
    listed = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.count("following") == 2
    assert listed.stdout.count("leading") == 1
    cluster.followers()[0].kill()
    listed = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
    assert listed.returncode == 5
    assert "unreachable" in listed.stdout


def test_a_stranger_without_the_secret_learns_nothing(cluster: Cluster) -> None:
    address = cluster.nodes[0].address
    with pytest.raises(errors.ConnectFailed, match="secret"):
        mqcore.cluster.status(address, secret=b"another secret than that one", name="tests")
    with pytest.raises(errors.ConnectFailed, match="name and the secret"):
        mqcore.cluster.status(address, secret=b"a secret of the cluster in tests", name="another")


def test_clients_of_all_protocols_continue_on_another_node(tmp_path: Path) -> None:
    protocols = ("tmqp", "emqp", "throttr?value=uint64&persist=on", "mqks", "mm2")
    with running_cluster(tmp_path, protocols=protocols) as cluster:
        first = cluster.leader()
        through = cluster.followers()[0]
        _, emqp, throttr, mqks, mm2 = through.listeners
        throttr = throttr.removesuffix("&persist=on")
        jobs = Jobs(emqp)

        @jobs.task(queue="sums", guarantee=True, result_ttl=600)
        def add(one: int, other: int) -> int:
            return one + other

        publish(through, range(20))
        with jobs:
            job = add.enqueue(20, 22)
        with SyncClient(throttr) as limits:
            assert limits.insert("user:7", quota=100, ttl=600)
            assert limits.decrease("user:7", 30)
        with mqcore.sync.connect(mqks) as client:
            # Binds the queue to the event of its name.
            assert list(client.queue("lines").consume(idle_timeout=0.3)) == []
            client.publish("lines", b"by MQKS")
        with mqcore.sync.connect(mm2) as client:
            client.publish("rows", b"by MicroMessage2")
        # Limits are saved after a moment, as on one broker.
        time.sleep(0.5)
        first.kill()
        assert cluster.leader() is not first
        assert take(through, 20) == list(range(20))
        with SyncClient(throttr) as limits:
            assert limits.query("user:7").quota == 70
        for url, queue, body in ((mqks, "lines", b"by MQKS"), (mm2, "rows", b"by MicroMessage2")):
            with mqcore.sync.connect(url, patience=15.0) as client:
                for message in client.queue(queue).consume(idle_timeout=5.0):
                    assert message.body == body
                    message.ack()
                    break
                else:
                    pytest.fail(f"{queue} is empty")
        worker = Worker(jobs, queues=["sums"], pool="thread", concurrency=1)
        runs = threading.Thread(target=worker.run)
        runs.start()
        try:
            with jobs:
                assert jobs.result(job.id, timeout=20) == 42
        finally:
            worker.stop()
            runs.join()


def test_an_operator_chooses_the_leader(cluster: Cluster) -> None:
    cluster.wait_until_all_follow()
    publish(cluster.leader(), range(20))
    chosen = cluster.followers()[1]

    def run(node: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqcore", "cluster", "promote", str(node), "--config", str(chosen.config)]
        return subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)

    done = run(chosen.number)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"node {chosen.number} leads\n"
    assert cluster.leader() is chosen
    assert take(chosen, 20) == list(range(20))
    refused = run(9)
    assert refused.returncode != 0
    assert "node 9 is not connected" in refused.stderr
    follower = cluster.followers()[0]
    with pytest.raises(errors.Unacceptable, match="does not lead"):
        mqcore.cluster.promote(chosen.number, follower.address, secret=SECRET.encode(), name="tests")


def test_a_directory_of_a_node_is_not_changed_without_the_others(cluster: Cluster) -> None:
    publish(cluster.leader(), range(3))
    node = cluster.followers()[0]
    assert node.stop() == 0
    with (
        pytest.raises(errors.DataDirUnreadable, match="belongs to a node of a cluster"),
        mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=str(node.data_dir)),
    ):
        pass
    for command in (["journal", "compact", str(node.data_dir)], ["user", "add", "x", "--data-dir", str(node.data_dir)]):
        done = subprocess.run(
            [sys.executable, "-m", "mqcore", *command],
            capture_output=True,
            text=True,
            env=clean_environment(),
            input="a long password\na long password\n",
            check=False,
        )
        assert done.returncode != 0
        assert "belongs to a node of a cluster" in done.stderr, (command, done.stderr)
    node.start()
    cluster.wait_until_all_follow()


def test_users_made_before_the_first_start_are_on_all_nodes(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    first = cluster.nodes[0]
    made = subprocess.run(
        [sys.executable, "-m", "mqcore", "token", "create", "admin", "--allow=*", "--data-dir", str(first.data_dir)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    assert made.returncode == 0, made.stderr
    try:
        cluster.start()
        files = [node.data_dir / "authority.json" for node in cluster.nodes]
        wait_until(
            lambda: all(file.exists() and file.read_bytes() == files[0].read_bytes() for file in files), limit=30
        )
        assert b'"admin"' in files[0].read_bytes()
    finally:
        cluster.close()


def test_users_and_tokens_change_while_the_cluster_runs(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    first = cluster.nodes[0]
    root = new_token(first.data_dir, "root", "*")
    try:
        cluster.start()
        leader = cluster.leader()
        # Only the node with data began the cluster, and the others get copies.
        cluster.wait_until_all_follow()
        follower = cluster.followers()[0]
        made = mqcore.admin.create_token(follower.admin, "deploy", allow=["push"], token=root)
        revoked = mqcore.admin.create_token(follower.admin, "revoked", allow=["push"], token=root)
        mqcore.admin.revoke_token(leader.admin, revoked.id, token=root)
        mqcore.admin.add_user(follower.admin, "ann", password="correct horse", allow=["push"], token=root)
        leader.kill()
        successor = cluster.leader(limit=10)
        for node in (follower, successor):
            mqcore.sync.connect(node.url, token=made.token).close()
            mqcore.sync.connect(node.url, user="ann", password="correct horse").close()
            with pytest.raises(errors.AuthFailed):
                mqcore.sync.connect(node.url, token=revoked.token)
        leader.start()
        cluster.wait_until_all_follow()
        texts = {(node.data_dir / "authority.json").read_bytes() for node in cluster.nodes}
        assert len(texts) == 1
    finally:
        cluster.close()


def test_a_file_of_users_that_the_cluster_does_not_copy_is_not_changed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    store = tmp_path / "users.json"
    _, root = AuthorityStore(str(store)).add_token(json.dumps({"name": "root", "allow": ["*"]}))
    before = store.read_bytes()
    for node in cluster.nodes:
        node.environment = {"MQCORE_AUTHORITY__STORE": str(store)}
    try:
        cluster.start()
        leader = cluster.leader()
        with pytest.raises(errors.Unacceptable, match="change it on all of them"):
            mqcore.admin.create_token(leader.admin, "deploy", allow=["push"], token=root)
        assert store.read_bytes() == before
    finally:
        cluster.close()
