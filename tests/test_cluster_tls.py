"""TLS between the nodes of a cluster: both sides show certificates, and nothing is readable on the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mqcore
from authority import Authority
from cluster_nodes import SECRET, Cluster, ClusterNode, NodeCertificate
from link_proxy import LinkProxy
from mqcore import cluster as mq_cluster
from mqcore import errors
from mqcore.config import ClusterConfig
from ports import free_ports
from served import clean_environment, wait_until

QUEUE = "orders/1001"


def issue(authority: Authority, file: str, host: str = "127.0.0.1") -> NodeCertificate:
    """Write a certificate with its key."""
    path = str(authority.issue(file, host))
    return path, path, str(authority.ca)


def publish_and_take(publisher: ClusterNode, consumer: ClusterNode, text: bytes) -> None:
    with (
        mqcore.sync.connect(publisher.url, patience=15.0) as sender,
        mqcore.sync.connect(consumer.url, patience=15.0) as receiver,
    ):
        sender.publish(QUEUE, text)
        for message in receiver.queue(QUEUE).consume(idle_timeout=5.0):
            assert message.body == text
            message.ack()
            break


def test_nodes_with_certificates_replicate_and_show_nothing_on_the_way(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificates = {number: issue(authority, f"node-{number}.pem") for number in (1, 2, 3)}
    members = dict(zip((1, 2, 3), free_ports(3), strict=True))
    links = {
        (caller, answerer): LinkProxy(("127.0.0.1", members[answerer]), keeps=True)
        for caller in members
        for answerer in members
        if caller != answerer
    }
    addresses = {link: f"127.0.0.1:{proxy.port}" for link, proxy in links.items()}
    cluster = Cluster(tmp_path, member_ports=members, peer_addresses=addresses, certificates=certificates)
    try:
        cluster.start()
        cluster.wait_until_all_follow()
        publish_and_take(cluster.followers()[0], cluster.followers()[1], b"a private message")
        # A node that gets a copy of all files, too.
        follower = cluster.followers()[0]
        follower.kill()
        for path in sorted(follower.data_dir.glob("consensus/log/*.segment")):
            path.unlink()
        follower.start()
        cluster.wait_until_all_follow()
        passed = b"".join(proxy.passed() for proxy in links.values())
        assert len(passed) > 1_000_000
        assert b"a private message" not in passed
        assert b"incarnation" not in passed
        # The same command lists them, with the certificate of the configuration.
        command = [sys.executable, "-m", "mqcore", "cluster", "ls", "--config", str(cluster.nodes[0].config)]
        listed = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
        assert listed.stdout.count("following") == 2, listed.stderr
    finally:
        cluster.close()
        for proxy in links.values():
            proxy.close()


def test_a_node_without_a_trusted_certificate_takes_no_part(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificates = {number: issue(authority, f"node-{number}.pem") for number in (1, 2)}
    cert, key, _ = issue(other, "node-3.pem")
    # It trusts the others, and they do not trust it.
    certificates[3] = (cert, key, certificates[1][2])
    cluster = Cluster(tmp_path, certificates=certificates)
    try:
        cluster.start()
        stranger = cluster.nodes[2]
        wait_until(lambda: "rejected a connection" in cluster.nodes[0].log.read_text(), limit=20)
        with pytest.raises(errors.ConnectFailed):
            mq_cluster.status(cluster.nodes[0].address, secret=SECRET.encode(), name="tests", tls=certificates[3])
        # The secret alone is not enough either.
        with pytest.raises(errors.ConnectFailed):
            mq_cluster.status(cluster.nodes[0].address, secret=SECRET.encode(), name="tests")
        # With a certificate of the authority it takes part, without a restart.
        issue(authority, "node-3.pem")
        stranger.certificate = certificates[3]
        cluster.wait_until_all_follow()
        publish_and_take(stranger, cluster.nodes[0], b"all three")
    finally:
        cluster.close()


def test_the_certificate_must_name_the_host(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificates = {number: issue(authority, f"node-{number}.pem", "elsewhere.example") for number in (1, 2, 3)}
    cluster = Cluster(tmp_path, certificates=certificates)
    try:
        cluster.start()
        wait_until(lambda: "not valid for name" in cluster.nodes[0].log.read_text(), limit=20)
    finally:
        cluster.close()


def test_mistakes_with_certificates_are_named(tmp_path: Path) -> None:
    options = {"node": 1, "listen": "127.0.0.1:0", "secret": "s" * 32}
    with pytest.raises(errors.ConfigError, match="all of cert, key and ca"):
        ClusterConfig(**options, cert="a.pem")  # type: ignore[arg-type]
    cluster = Cluster(tmp_path, nodes=1, certificates={1: ("missing.pem", "missing.pem", "missing.pem")})
    node = cluster.nodes[0]
    node.start()
    assert node.process is not None
    assert node.process.wait(timeout=30) == 2
    assert "missing.pem" in node.log.read_text()
