"""Clusters of three nodes of other brokers on loopback, each node with a directory of its own.

Every message is on the disks of a majority before it is confirmed, and the queue or stream has a copy on each node.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from peers.machine import Processors
from peers.place import ROOT, Missing, Place, Program, clean_environment
from peers.servers import await_listener, free_port, port_mapper, rabbitmq_environment, running

__all__ = ["CLUSTERS", "ClusterKind", "ServedCluster", "prepared"]

NODES = 3
_PREPARE_SECONDS_MAX = 60.0
_JOIN_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class ServedCluster:
    """A running cluster."""

    protocol: str
    """The protocol of the load generator."""
    leader: str
    """HOST:PORT of the node that leads the queue or the stream."""
    processes: tuple[int, ...]
    """Process numbers of its nodes."""


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """A broker of which a cluster can be started."""

    install: Callable[[Place], Program]
    start: Callable[[Program, Place, Path, Processors], contextlib.AbstractContextManager[ServedCluster]]
    settings: str
    """Settings for the report."""


def prepared(python: Path, client: str, work: str, address: str) -> Mapping[str, float]:
    """Run a work of `peers.clients` that prepares a cluster, and return its values. Raises `Missing` if it fails."""
    command: list[str | Path] = [python, "-m", f"peers.clients.{client}", work, address]
    environment = {**clean_environment(), "PYTHONPATH": str(ROOT / "benches")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_PREPARE_SECONDS_MAX, check=False, env=environment
    )
    if done.returncode:
        raise Missing(f"{client} {work} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    values: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return values


# --- NATS ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _start_nats(program: Program, place: Place, directory: Path, processors: Processors) -> Iterator[ServedCluster]:
    ports, members = [free_port() for _ in range(NODES)], [free_port() for _ in range(NODES)]
    routes = ", ".join(f'"nats://127.0.0.1:{member}"' for member in members)
    with contextlib.ExitStack() as stack:
        processes = []
        for number, (port, member) in enumerate(zip(ports, members, strict=True), 1):
            home = directory / f"node-{number}"
            home.mkdir()
            (home / "nats.conf").write_text(
                f"server_name: node-{number}\nlisten: 127.0.0.1:{port}\n"
                f'jetstream {{ sync_interval: always, store_dir: "{home / "jetstream"}" }}\n'
                f"cluster {{ name: bench, listen: 127.0.0.1:{member}, routes: [{routes}] }}\n"
            )
            command: list[str | Path] = [program.path, "--config", home / "nats.conf"]
            processes.append(stack.enter_context(running(command, processors, home, program.environment)))
        for number, (process, port) in enumerate(zip(processes, ports, strict=True), 1):
            await_listener(process, port, directory / f"node-{number}")
        leader = int(_replicated_stream(place, f"127.0.0.1:{ports[0]}"))
        numbers = tuple(process.pid for process in processes)
        yield ServedCluster("nats", f"127.0.0.1:{ports[leader - 1]}", numbers)


def _replicated_stream(place: Place, address: str) -> float:
    """Create the stream once the nodes have elected a leader of their cluster, and return its leader."""
    deadline = time.monotonic() + _PREPARE_SECONDS_MAX
    while True:
        try:
            return prepared(place.python("peers"), "nats_client", "prepare-replicated", address)["leader"]
        except Missing:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


# --- RabbitMQ --------------------------------------------------------------------------------------------------


def _install_rabbitmq(place: Place) -> Program:
    from peers.servers import SERVERS

    return SERVERS["rabbitmq"].install(place)


@contextlib.contextmanager
def _start_rabbitmq(program: Program, place: Place, directory: Path, processors: Processors) -> Iterator[ServedCluster]:
    mapper, ports = free_port(), [free_port() for _ in range(NODES)]
    names = [f"bench{number}" for number in range(1, NODES + 1)]
    formation = "".join(
        f"cluster_formation.classic_config.nodes.{number} = {name}@localhost\n" for number, name in enumerate(names, 1)
    )
    with contextlib.ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        environments: list[dict[str, str]] = []
        for name, port in zip(names, ports, strict=True):
            home = directory / name
            home.mkdir()
            # The nodes trust each other if they know the same secret.
            cookie = home / ".erlang.cookie"
            cookie.write_text("BENCH")
            cookie.chmod(0o400)
            (home / "enabled_plugins").write_text("[].\n")
            (home / "rabbitmq.conf").write_text(
                f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.console = true\n"
                f"cluster_formation.peer_discovery_backend = classic_config\n{formation}"
            )
            environment = rabbitmq_environment(program, home, name, mapper, free_port())
            if not environments:
                stack.enter_context(port_mapper(environment, mapper, processors, directory))
            environments.append(environment)
            processes.append(stack.enter_context(running([program.path], processors, home, environment)))
        for name, process, port in zip(names, processes, ports, strict=True):
            await_listener(process, port, directory / name)
        _await_members(program, environments[0])
        # The node to which its client is connected leads a new queue.
        address = f"127.0.0.1:{ports[0]}"
        prepared(place.python("peers"), "rabbitmq_client", "prepare-fsync", address)
        yield ServedCluster("amqp", address, tuple(process.pid for process in processes))


def _await_members(program: Program, environment: Mapping[str, str]) -> None:
    """Wait until all nodes have joined."""
    command: list[str | Path] = [program.path.with_name("rabbitmqctl"), "await_online_nodes", str(NODES)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_JOIN_SECONDS_MAX,
            check=False,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"the nodes of RabbitMQ have not joined after {_JOIN_SECONDS_MAX:.0f} s") from None
    if done.returncode:
        raise Missing(f"rabbitmqctl failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")


CLUSTERS: Mapping[str, ClusterKind] = {
    "nats": ClusterKind(
        Place.nats_server, _start_nats, "JetStream in files, `num_replicas: 3`, `sync_interval: always`"
    ),
    "rabbitmq": ClusterKind(_install_rabbitmq, _start_rabbitmq, "quorum queue on 3 nodes, confirms"),
}
"""Clusters of other brokers by name."""
