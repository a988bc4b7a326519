"""Clusters with damaged files, disks that are full, and disks that fail: one bad disk never harms the other nodes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import mqcore
from cluster_nodes import SECRET, Cluster, ClusterNode, running_cluster
from depth import FULL, choices, sample
from faults.shim import Faults
from link_proxy import LinkProxy
from mqcore import errors
from ports import free_ports
from served import clean_environment, wait_until
from small_disks import mounted_or_skipped, occupy

QUEUE = "orders/1001"
COUNT = 200
DISK_MIB = 400
ROLES = ("leader", "follower")


def body(number: int) -> bytes:
    return b"message %06d of this queue" % number


def publish(node: ClusterNode, numbers: range) -> None:
    with mqcore.sync.connect(node.url, patience=15.0) as client:
        for number in numbers:
            client.publish(QUEUE, body(number))


def take(node: ClusterNode, count: int) -> list[bytes]:
    found: list[bytes] = []
    with mqcore.sync.connect(node.url, patience=20.0) as client:
        for message in client.queue(QUEUE).consume(prefetch=100, idle_timeout=5.0):
            found.append(bytes(message.body))
            message.ack()
            if len(found) == count:
                break
    return found


def all_of(count: int) -> list[bytes]:
    return [body(number) for number in range(count)]


def flip_a_bit(node: ClusterNode, number: int, *, below: str = "shard-*") -> None:
    """Change a bit of a message on the disk of a node."""
    for path in sorted(node.data_dir.glob(f"{below}/*.segment")):
        with path.open("r+b") as file:
            place = file.read().find(body(number))
            if place >= 0:
                file.seek(place + 3)
                file.write(b"E")
                return
    raise AssertionError(f"message {number} is not on the disk of node {node.number}")


def has_logged(node: ClusterNode, text: str) -> bool:
    return text in node.log.read_text()


def has_new_replica(node: ClusterNode) -> bool:
    """Whether the node votes under another id than its first one."""
    status = node.status()
    return status is not None and any(
        replica.node == node.number and replica.replica != f"{node.number}.0" and replica.votes
        for replica in status.replicas
    )


def quarantined(cluster: Cluster) -> list[Path]:
    return [path for node in cluster.nodes for path in node.data_dir.rglob("*.quarantined")]


@pytest.fixture
def verified(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose nodes verify their files all the time."""
    with running_cluster(tmp_path, verify="300ms") as cluster:
        publish(cluster.leader(), range(COUNT))
        cluster.wait_until_all_follow()
        yield cluster
        # Shown if the test fails.
        cluster.show_logs()


def test_a_node_with_a_damaged_journal_does_not_lead(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        publish(cluster.leader(), range(COUNT))
        cluster.wait_until_all_follow()
        damaged = cluster.followers()[0]
        flip_a_bit(damaged, 50)
        # Its broker is the first that reads the file.
        mqcore.cluster.promote(damaged.number, cluster.leader().address, secret=SECRET.encode(), name="tests")
        wait_until(lambda: has_logged(damaged, "it gets a copy of all files"), limit=20)
        cluster.wait_until_all_follow()
        assert cluster.leader() is not damaged
        assert not quarantined(cluster)
        assert take(cluster.leader(), COUNT) == all_of(COUNT)


@pytest.mark.parametrize("role", sample("repaired damage", ROLES))
def test_damage_that_verification_finds_is_repaired_by_a_copy(role: str, verified: Cluster) -> None:
    damaged = verified.leader() if role == "leader" else verified.followers()[0]
    flip_a_bit(damaged, 50)
    wait_until(lambda: has_logged(damaged, "it gets a copy of all files"), limit=20)
    verified.wait_until_all_follow()
    wait_until(lambda: has_logged(damaged, "the copy of the cluster's files is complete"), limit=20)
    # Its copy is used: it is the only one that was there before and after.
    status = verified.leader().status()
    assert status is not None
    assert [replica.replica for replica in status.replicas if replica.node == damaged.number] == [f"{damaged.number}.0"]
    assert not quarantined(verified)
    publish(verified.leader(), range(COUNT, COUNT + 10))
    assert take(damaged, COUNT + 10) == all_of(COUNT + 10)


@pytest.mark.parametrize("role", sample("damaged log", ROLES))
def test_a_damaged_log_is_replaced_while_the_node_runs(role: str, verified: Cluster) -> None:
    damaged = verified.leader() if role == "leader" else verified.followers()[0]
    flip_a_bit(damaged, 50, below="consensus/log")
    wait_until(lambda: has_new_replica(damaged), limit=30, what="a new replica")
    verified.wait_until_all_follow()
    assert take(damaged, COUNT) == all_of(COUNT)


def test_a_leader_that_cannot_read_its_log_for_another_node_is_replaced(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster.wait_until_all_follow()
        damaged, away = cluster.leader(), cluster.followers()[0]
        away.kill()
        publish(damaged, range(COUNT))
        flip_a_bit(damaged, 50, below="consensus/log")
        # It needs the entry with the damage.
        away.start()
        wait_until(lambda: has_new_replica(damaged), limit=30, what="a new replica")
        cluster.wait_until_all_follow()
        assert take(damaged, COUNT) == all_of(COUNT)


def test_the_small_files_of_a_node_are_checked(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        publish(cluster.leader(), range(COUNT))
        cluster.wait_until_all_follow()
        node = cluster.followers()[0]
        node.kill()
        # A node with a copy knows from which place on it repeats entries.
        shutil.rmtree(node.data_dir)
        node.start()
        cluster.wait_until_all_follow()
        assert node.stop() == 0
        place = node.data_dir / "consensus" / "applied"
        content = place.read_bytes()
        place.write_bytes(b"9" + content[1:])
        node.start()
        wait_until(lambda: has_logged(node, "the saved place of this node is damaged"), limit=20)
        cluster.wait_until_all_follow()
        assert node.stop() == 0
        identity = node.data_dir / "consensus" / "identity.json"
        identity.write_text(identity.read_text().replace('"generation": ', '"generation": 1'))
        node.start()
        assert node.process is not None
        assert node.process.wait(timeout=30) == 2
        assert has_logged(node, "move the data directory away")
        # As the message says.
        shutil.rmtree(node.data_dir)
        node.start()
        cluster.wait_until_all_follow()
        assert take(node, COUNT) == all_of(COUNT)


def test_damage_on_all_nodes_is_reported_and_nothing_else_is_lost(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        publish(cluster.leader(), range(COUNT))
        cluster.wait_until_all_follow()
        # A node that starts would write the bytes again: they are still in its log.
        for node in cluster.nodes:
            flip_a_bit(node, 50)
        cluster.leader().kill()
        left = [node for node in cluster.nodes if node.is_running()]

        def reports_loss() -> bool:
            # Any node answers for the leader, whose broker is not ready while a journal refuses messages.
            with contextlib.suppress(errors.MqcoreError):
                findings = mqcore.admin.attention(left[0].admin, timeout=2.0).findings
                return any("journal shard" in finding.subject for finding in findings)
            return False

        wait_until(reports_loss, limit=20, what="the loss among the findings")
        assert take(left[0], COUNT - 1) == [text for text in all_of(COUNT) if text != body(50)]
        assert not any(has_logged(node, "it gets a copy of all files") for node in left)


def test_nodes_with_damaged_logs_keep_their_files_while_nothing_leads(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        publish(cluster.leader(), range(COUNT))
        cluster.wait_until_all_follow()
        for node in cluster.nodes:
            node.kill()
        intact, *damaged = cluster.nodes
        for node in damaged:
            flip_a_bit(node, 50, below="consensus/log")
        cluster.start()

        def wait_for_help() -> bool:
            statuses = [node.status() for node in damaged]
            return all(status is not None and status.problem is not None for status in statuses)

        wait_until(wait_for_help, limit=20, what="the problem in the status")
        assert all(list(node.data_dir.glob("shard-*/*.segment")) for node in damaged)
        assert not any((node.data_dir / "replaced").exists() for node in damaged)
        # An operator chooses the node to continue with.
        for node in cluster.nodes:
            node.kill()
        command = [sys.executable, "-m", "mqcore", "cluster", "force-new", "--config", str(intact.config)]

        def run(*options: str) -> str:
            environment = clean_environment()
            done = subprocess.run([*command, *options], capture_output=True, text=True, env=environment, check=True)
            return done.stdout

        assert "the log ends with entry" in run("--dry-run")
        assert (intact.data_dir / "consensus" / "log").is_dir(), "nothing has changed"
        assert "begins a new cluster" in run("--yes")
        for node in damaged:
            shutil.rmtree(node.data_dir)
        cluster.start()
        cluster.wait_until_all_follow()
        assert take(damaged[0], COUNT) == all_of(COUNT)


def test_the_files_of_a_running_node_cannot_begin_a_new_cluster(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster.leader()
        command = [sys.executable, "-m", "mqcore", "cluster", "force-new", "--yes", "--config"]
        command.append(str(cluster.nodes[0].config))
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
        assert done.returncode != 0
        assert "stop the node first" in done.stderr


@pytest.fixture
def last_complete(tmp_path: Path) -> Iterator[tuple[Cluster, LinkProxy]]:
    """A cluster with a witness whose node 2 has lost its files, and cannot copy those of node 1."""
    members = dict(zip((1, 2, 3), free_ports(3), strict=True))
    proxy = LinkProxy(("127.0.0.1", members[1]))
    addresses = {(2, 1): f"127.0.0.1:{proxy.port}"}
    cluster = Cluster(tmp_path, member_ports=members, peer_addresses=addresses, witnesses=[3])
    first, second, _ = cluster.nodes
    try:
        cluster.start()
        cluster.wait_until_all_follow()
        publish(cluster.leader(), range(COUNT))
        second.kill()
        shutil.rmtree(second.data_dir)
        cluster.leader()
        proxy.hold_copies()
        second.start()
        wait_until(lambda: is_copying(second), limit=20, what="a copy")
        first.kill()
        # Its log has begun anew for the other node, and would not write the bytes again.
        flip_a_bit(first, 50)
        yield cluster, proxy
    except BaseException:
        cluster.show_logs()
        raise
    finally:
        cluster.close()
        proxy.close()


def is_copying(node: ClusterNode) -> bool:
    status = node.status()
    return status is not None and status.role == "copying"


def test_damage_of_the_only_node_with_all_files_is_a_loss(last_complete: tuple[Cluster, LinkProxy]) -> None:
    cluster, proxy = last_complete
    first = cluster.nodes[0]
    first.start()

    def reports_loss() -> bool:
        with contextlib.suppress(errors.MqcoreError):
            findings = mqcore.admin.attention(first.admin, timeout=2.0).findings
            return any("journal shard" in finding.subject for finding in findings)
        return False

    wait_until(reports_loss, limit=20, what="the loss among the findings")
    proxy.release_copies()
    cluster.wait_until_all_follow()
    assert take(first, COUNT - 1) == [text for text in all_of(COUNT) if text != body(50)]


def test_a_node_that_waits_to_compare_a_damaged_file_can_be_stopped(last_complete: tuple[Cluster, LinkProxy]) -> None:
    cluster, _ = last_complete
    first, second, _ = cluster.nodes
    second.kill()
    first.start()
    wait_until(lambda: has_logged(first, "waiting for one, to compare it"), limit=20)
    first.signal(signal.SIGTERM)
    assert first.process is not None
    assert first.process.wait(timeout=15) == 0


# ---- Disks that are full ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cluster_on_small_disks(tmp_path: Path) -> Iterator[Cluster]:
    with contextlib.ExitStack() as disks:
        cluster = Cluster(tmp_path)
        for node in cluster.nodes:
            disks.enter_context(mounted_or_skipped(node.data_dir, DISK_MIB))
        try:
            cluster.start()
            cluster.wait_until_all_follow()
            yield cluster
        except BaseException:
            cluster.show_logs()
            raise
        finally:
            cluster.close()


def fill(node: ClusterNode) -> Path:
    filler = node.data_dir / "filler"
    occupy(filler, leave=0)
    return filler


def publish_what_is_possible(cluster: Cluster, first: int, count: int, *, reach: float = 5.0) -> list[int]:
    """Return the numbers of confirmed messages. `reach` is the longest time in which a node must answer."""
    confirmed: list[int] = []
    urls = [node.url for node in cluster.nodes]
    for number in range(first, first + count):
        with (
            contextlib.suppress(errors.MqcoreError),
            mqcore.sync.connect(urls[number % 3], connect_timeout=reach, request_timeout=2.0) as client,
        ):
            # Large enough to need new segments soon.
            client.publish(QUEUE, body(number) + b"x" * 900_000)
            confirmed.append(number)
    return confirmed


def publish_all(cluster: Cluster, first: int, count: int) -> list[int]:
    """Publish until each message is confirmed, as soon as the brokers notice that there is space again."""
    confirmed: list[int] = []
    for number in range(first, first + count):
        wait_until(lambda number=number: bool(publish_what_is_possible(cluster, number, 1)), limit=20)
        confirmed.append(number)
    return confirmed


def check(cluster: Cluster, confirmed: list[int]) -> None:
    with mqcore.sync.connect(cluster.leader().url, patience=20.0) as client:
        found = []
        for message in client.queue(QUEUE).consume(prefetch=10, idle_timeout=2.0):
            found.append(int(bytes(message.body[8:14])))
            message.ack()
    assert set(confirmed) <= set(found)
    assert found == sorted(found)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("role", sample("full disk", ROLES))
def test_one_full_disk_stops_nothing_and_needs_no_operator_afterwards(role: str, tmp_path: Path) -> None:
    with cluster_on_small_disks(tmp_path) as cluster:
        full = cluster.leader() if role == "leader" else cluster.followers()[0]
        filler = fill(full)
        confirmed = publish_what_is_possible(cluster, 0, 40)
        if role == "follower":
            assert confirmed == list(range(40)), "two nodes are a majority"
        # A leader without space hands over to a node that has some.
        confirmed += publish_all(cluster, 40, 3)

        def reports_full_disk() -> bool:
            with contextlib.suppress(errors.MqcoreError):
                findings = mqcore.admin.attention(full.admin, timeout=2.0).findings
                return any(finding.kind == "cluster-node-failing" for finding in findings)
            return False

        wait_until(reports_full_disk, limit=20, what="a finding")
        filler.unlink()
        cluster.wait_until_all_follow()
        confirmed += publish_all(cluster, 43, 3)
        check(cluster, confirmed)


@pytest.mark.timeout(120)
def test_full_disks_everywhere_refuse_messages_and_recover(tmp_path: Path) -> None:
    with cluster_on_small_disks(tmp_path) as cluster:
        fillers = [fill(node) for node in cluster.nodes]
        # Soon nothing leads, and no node lets a client in.
        confirmed = publish_what_is_possible(cluster, 0, 20, reach=0.5)
        for filler in fillers:
            filler.unlink()
        cluster.wait_until_all_follow()
        confirmed += publish_all(cluster, 20, 3)
        check(cluster, confirmed)


# ---- Disks that fail -------------------------------------------------------------------------------------------------


FAILURES = list(product(ROLES, ("consensus/log", "shard-"), ("pwrite", "fdatasync")))
"""Disks, files and calls that fail."""


def opposites() -> list[tuple[str, str, str]]:
    """A random case and the one that differs in everything: together they have each disk, file and call."""
    chosen = choices("failing disks").choice(FAILURES)
    return [case for case in FAILURES if case == chosen or not set(case) & set(chosen)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("role", "part", "call"), FAILURES if FULL else opposites())
def test_a_disk_that_fails_for_a_while_loses_nothing(role: str, part: str, call: str, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    faults = {}
    for node in cluster.nodes:
        faults[node.number] = Faults(tmp_path / f"faults-{node.number}", node.data_dir)
        node.environment = faults[node.number].environment
    try:
        cluster.start()
        cluster.wait_until_all_follow()
        confirmed = publish_what_is_possible(cluster, 0, 5)
        failing = cluster.leader() if role == "leader" else cluster.followers()[0]
        faults[failing.number].arm(call, "EIO", part=part)
        confirmed += publish_what_is_possible(cluster, 5, 40)
        faults[failing.number].disarm()
        cluster.wait_until_all_follow()
        confirmed += publish_all(cluster, 45, 3)
        check(cluster, confirmed)
    except BaseException:
        cluster.show_logs()
        raise
    finally:
        cluster.close()
