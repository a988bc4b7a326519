"""The cluster of a broker, from its admin side: a part of `mqcore.admin`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqcore import errors as _errors
from mqcore._http import DEFAULT_URL, AdminClient, reading
from mqcore.cluster import LogSyncs, NodeRole
from mqcore.config import Duration

if TYPE_CHECKING:
    from mqcore.tls import TLSConfig

__all__ = ["ClusterNode", "ClusterState", "cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A node of a cluster, as the leader sees it."""

    node: int
    """Its number."""
    address: str
    """Its address, to which other nodes connect."""
    role: NodeRole | None
    """Its role; ``None``: it is not connected."""
    connected: bool
    """Whether the leader has its reports of the last seconds."""
    silent_ms: int | None
    """Milliseconds since its last report; ``None``: there was none since the leader's process started."""
    replica: str | None
    """The id of its replica; ``None``: it has none in the cluster."""
    votes: bool
    """Whether its replica counts for a majority."""
    lag: int | None
    """Changes in the log of the leader that the replica has not confirmed; ``None``: it has no replica."""
    applied: int | None
    """Number of the last change that its files have; ``None``: it is not connected."""
    version: str | None
    """Its version of mqcore; ``None``: it was never connected."""
    clock_offset_ms: int | None
    """Its clock minus the clock of the leader, in milliseconds; ``None``: it is not connected."""
    stalled_ms: int
    """For how long it has done nothing, in milliseconds: its disk hangs."""
    connected_to: tuple[int, ...]
    """The nodes whose reports it has received in the last seconds."""
    log_syncs: LogSyncs | None
    """Syncs of its log; ``None``: it is not connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster, as its leader sees it."""

    cluster: str
    """Its name."""
    leader: int
    """The node that leads."""
    term: int
    """Grows with each election."""
    committed: int
    """Number of the last change that a majority has saved."""
    applied: int
    """Number of the last change that the files of the leader have."""
    changing: bool
    """Whether a change of the replicas is not complete."""
    spare_nodes: int
    """Connected voters that may fail before no majority is left."""
    leader_changes: int
    """Changes of the leader that this node has noticed since its process started."""
    log_entries: int
    """Changes that the log of the leader keeps."""
    log_bytes: int
    """Bytes of the files of its log."""
    nodes: tuple[ClusterNode, ...]
    """All nodes, in the order of their numbers."""


def cluster(
    url: str = DEFAULT_URL,
    *,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> ClusterState | None:
    """Return the cluster to which the broker belongs, as its leader sees it; ``None``: it belongs to none.

    Any node passes the request on to the leader. `mqcore.cluster.status` asks a single node, also without a leader.
    The arguments and exceptions are those of `errors`.
    """
    client = AdminClient(url, token=token, timeout=timeout, tls=tls)
    try:
        content = client.ask("GET", "/cluster", rejections={"no-cluster": lambda text: _errors.NotFound(text, 404)})
    except _errors.NotFound:
        return None
    with reading("its cluster", url):
        return ClusterState(**{**content, "nodes": tuple(_node(node) for node in content["nodes"])})


def _node(content: dict[str, Any]) -> ClusterNode:
    syncs = content["log_syncs"]
    return ClusterNode(
        **{
            **content,
            "connected_to": tuple(content["connected_to"]),
            "log_syncs": None if syncs is None else LogSyncs(**syncs),
        }
    )
