"""Clusters of real brokers on this machine: one process for each node."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import mqcore
from mqcore import cluster as mq_cluster
from mqcore import errors
from ports import free_ports
from served import clean_environment, wait_until

QUEUE = "orders/1001"
SECRET = "a secret of the cluster in tests"
HEADER = """
listen = {listen}
admin = "http://127.0.0.1:{admin}"
data_dir = "{data_dir}"
shards = {shards}
auto_create_channels = true
auto_create_queues = true
delivery_handler = "{handler}"

[channel_defaults.queue]
status = "round-robin"
request_acknowledge = true

[cluster]
name = "tests"
node = {node}
listen = "127.0.0.1:{member}"
peers = {peers}
secret = "{secret}"
election_timeout = "{election}"
verify_interval = "{verify}"
{tls}
"""


WITNESS = {"MQCORE_CLUSTER__WITNESS": "true"}
"""The setting of a node that keeps no data, as an environment variable."""

NodeCertificate: TypeAlias = tuple[str, str, str]
"""The files of a certificate, its key, and the authorities."""


class ClusterNode:
    """One node: its configuration, and its process while it runs."""

    def __init__(self, directory: Path, number: int, member_port: int, listeners: list[str], admin_port: int) -> None:
        self.number = number
        self.directory = directory
        self.address = f"127.0.0.1:{member_port}"
        self.listeners = listeners
        self.admin = f"http://127.0.0.1:{admin_port}"
        self.config = directory / f"node-{number}.toml"
        self.data_dir = directory / f"data-{number}"
        self.log = directory / f"node-{number}.log"
        self.certificate: NodeCertificate | None = None
        self.environment: dict[str, str] = {}
        self.python = sys.executable
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its TMQP listener."""
        return self.listeners[0]

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start its process, with further environment variables."""
        command = [self.python, "-m", "mqcore", "serve", "--config", str(self.config)]
        variables = {**clean_environment(), **self.environment, **(environment or {})}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=variables)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """Stop it in order. Returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(timeout=60)
        self.process = None
        return code

    def status(self) -> mq_cluster.NodeStatus | None:
        try:
            return mq_cluster.status(self.address, secret=SECRET.encode(), name="tests", tls=self.certificate)
        except errors.ConnectFailed:
            return None

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Cluster:
    """Nodes that keep the same data."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        shards: int = 2,
        protocols: tuple[str, ...] = ("tmqp",),
        handler: str = "at-least-once",
        election: str = "500ms",
        verify: str = "1d",
        certificates: dict[int, NodeCertificate] | None = None,
        is_cluster: bool = True,
        member_ports: dict[int, int] | None = None,
        peer_addresses: dict[tuple[int, int], str] | None = None,
        witnesses: Iterable[int] = (),
    ) -> None:
        width = 12
        ports = free_ports(nodes * (width + 2))
        self.all_nodes = []
        self._members = member_ports or {number: ports[(number - 1) * (width + 2)] for number in range(1, nodes + 1)}
        self._addresses = peer_addresses or {}
        self._certificates = certificates or {}
        # Without a cluster, the configuration is that of one broker.
        self._header = HEADER if is_cluster else HEADER.partition("[cluster]")[0]
        self._options = {
            "shards": shards,
            "handler": handler,
            "election": election,
            "verify": verify,
            "secret": SECRET,
        }
        for number in range(1, nodes + 1):
            first = (number - 1) * (width + 2)
            own = iter(ports[first + 2 : first + 2 + width])
            listeners = []
            for protocol in protocols:
                protocol, mark, query = protocol.partition("?")
                url = f"{protocol}://127.0.0.1:{next(own)}{mark}{query}"
                if protocol == "emqp":
                    roles = ("frontend", "admin", "publish", "subscribe")
                    url += "?" + "&".join(f"{role}={next(own)}" for role in roles)
                listeners.append(url)
            node = ClusterNode(directory, number, self._members[number], listeners, ports[first + 1])
            node.certificate = self._certificates.get(number)
            if number in witnesses:
                node.environment = dict(WITNESS)
            self.all_nodes.append(node)
        self.consist_of(range(1, nodes + 1))

    def consist_of(self, numbers: Iterable[int]) -> None:
        """Write the configurations of a cluster of these nodes. Nodes that run read them when they start again."""
        chosen = set(numbers)
        self.nodes = [node for node in self.all_nodes if node.number in chosen]
        for node in self.nodes:
            peers = [
                f"{peer}={self._addresses.get((node.number, peer), f'127.0.0.1:{port}')}"
                for peer, port in self._members.items()
                if peer in chosen and peer != node.number
            ]
            node.config.write_text(
                self._header.format(
                    listen=node.listeners,
                    admin=node.admin.rpartition(":")[2],
                    data_dir=node.data_dir,
                    node=node.number,
                    member=self._members[node.number],
                    peers=peers,
                    tls=_tls(node.certificate),
                    **self._options,
                )
            )

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def leader(self, limit: float = 30.0) -> ClusterNode:
        """Wait until a node leads; its broker is ready then."""
        found: list[ClusterNode] = []

        def leads() -> bool:
            found[:] = [node for node in self.nodes if node.is_running() and _leads(node)]
            return bool(found)

        try:
            wait_until(leads, limit=limit, what="a leader")
        except BaseException:
            self.show_logs()
            raise
        return found[0]

    def followers(self) -> list[ClusterNode]:
        leader = self.leader()
        return [node for node in self.nodes if node is not leader]

    def wait_until_all_follow(self, limit: float = 40.0) -> None:
        """Wait until each node has all that the leader has, and all vote."""

        def follow() -> bool:
            statuses = [node.status() for node in self.nodes]
            if not all(statuses):
                return False
            leading = [status for status in statuses if status is not None and status.role == "leading"]
            # Asked again: what the leader commits after its answer does not count, or a busy cluster never follows.
            known = [status for node in self.nodes if (status := node.status()) is not None]
            return (
                len(leading) == 1
                and len(known) == len(self.nodes)
                and not any(status.changing for status in known)
                and all(status.applied >= leading[0].committed for status in known)
                and sum(replica.votes for replica in leading[0].replicas) == len(self.nodes)
                and len(leading[0].replicas) == len(self.nodes)
            )

        try:
            wait_until(follow, limit=limit, what="all nodes to follow")
        except BaseException:
            self.show_logs()
            raise

    def show_logs(self) -> None:
        for node in self.nodes:
            if node.log.exists():
                print(f"--- node {node.number}: {node.status()}\n{node.log.read_text()[-6000:]}")

    def close(self) -> None:
        for node in self.all_nodes:
            if node.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    node.process.send_signal(signal.SIGCONT)
            node.kill()


def _tls(certificate: NodeCertificate | None) -> str:
    names = ("cert", "key", "ca")
    return "".join(f'{name} = "{path}"\n' for name, path in zip(names, certificate or (), strict=False))


def publish(node: ClusterNode, bodies: range, queue: str = QUEUE) -> None:
    """Publish numbers, each confirmed before the next one."""
    with mqcore.sync.connect(node.url, patience=15.0) as client:
        for number in bodies:
            client.publish(queue, str(number).encode())


def take(node: ClusterNode, count: int, queue: str = QUEUE) -> list[int]:
    """Consume and acknowledge messages."""
    found: list[int] = []
    with mqcore.sync.connect(node.url, patience=15.0) as client:
        for message in client.queue(queue).consume(prefetch=10, idle_timeout=3.0):
            found.append(int(message.body))
            message.ack()
            if len(found) == count:
                # The acknowledgements arrive before the connection ends.
                client.publish("done/1", b"")
                break
    return found


def doctor_of_cluster(node: ClusterNode) -> list[dict[str, Any]]:
    """The checks of `mqcore doctor` on the cluster, with the configuration of a node."""
    command = [sys.executable, "-m", "mqcore", "doctor", "--json", "--config", str(node.config), "--url", node.admin]
    ended = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)
    return [check for check in json.loads(ended.stdout)["checks"] if check["name"] == "cluster"]


def _leads(node: ClusterNode) -> bool:
    status = node.status()
    return status is not None and status.role == "leading" and _is_ready(node)


def _is_ready(node: ClusterNode) -> bool:
    try:
        with urllib.request.urlopen(f"{node.admin}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def running_cluster(directory: Path, **options: Any) -> Iterator[Cluster]:
    """Run a cluster until the end of the block."""
    cluster = Cluster(directory, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
