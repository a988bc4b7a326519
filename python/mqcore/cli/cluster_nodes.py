"""The nodes of a cluster, asked one by one: each may see the others in another way."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqcore.cluster import NodeStatus
    from mqcore.config import ClusterConfig

__all__ = ["AskedNode", "ask_nodes"]


@dataclass(frozen=True, slots=True)
class AskedNode:
    """A node, and its answer."""

    node: int
    address: str
    status: NodeStatus | None
    """Its answer; ``None``: it has not answered."""
    error: str | None
    """Why not."""
    asked_at: float
    """The clock of this machine in the middle of the request, in Unix seconds."""


def ask_nodes(config: ClusterConfig) -> list[AskedNode]:
    """Ask all nodes at the same time. Raises `ConfigError` if the secret cannot be read."""
    from concurrent.futures import ThreadPoolExecutor

    secret = config.read_secret()
    addresses = {int(node): address for node, address in (peer.split("=", 1) for peer in config.peers)}
    addresses[config.node] = _reachable(config.listen)
    with ThreadPoolExecutor(len(addresses)) as threads:
        asked = [threads.submit(_ask, *place, secret, config) for place in sorted(addresses.items())]
        return [each.result() for each in asked]


def _ask(node: int, address: str, secret: bytes, config: ClusterConfig) -> AskedNode:
    from mqcore import errors
    from mqcore.cluster import status

    before = time.time()
    found, error = None, None
    try:
        found = status(address, secret=secret, name=config.name, tls=config.tls)
    except errors.ConnectFailed as failed:
        error = str(failed)
    return AskedNode(node, address, found, error, (before + time.time()) / 2)


def _reachable(listen: str) -> str:
    """Return where this node is reached that listens on all addresses."""
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]") else listen  # noqa: S104 - compared, not bound
