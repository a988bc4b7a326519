"""The nodes of a cluster, seen from outside.

>>> import mqcore.cluster
>>> status = mqcore.cluster.status("db-1:47299", secret=b"...")  # doctest: +SKIP
>>> status.role, status.leader  # doctest: +SKIP
('following', 2)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, TypeAlias, TypeVar

from mqcore import _core, errors

__all__ = ["LogSyncs", "NodeStatus", "PeerStatus", "ReplicaStatus", "promote", "status"]

_T = TypeVar("_T")

NodeRole: TypeAlias = Literal["joining", "copying", "following", "witnessing", "leading"]
"""The role of a node: it waits for the others, copies the files of the leader, follows a leader, or runs the broker."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica that belongs to the cluster."""

    node: int
    """Its node."""
    replica: str
    """Its id: the node, and a generation that grows when the node loses its data directory."""
    votes: bool
    """Whether it counts for a majority. A new replica does as soon as it has all data."""
    matched: int | None = None
    """Number of the last change that the leader knows it to have saved; `None`: only the leader knows."""
    lag: int | None = None
    """Changes in the log of the leader after that one; `None`: only the leader knows."""


@dataclass(frozen=True, slots=True)
class LogSyncs:
    """Syncs of the log of a node."""

    count: int = 0
    """Syncs since its process started."""
    total_us: int = 0
    """Their time in microseconds."""
    mean_us: int = 0
    """Mean time of those in the last 10 to 20 seconds, in microseconds; 0: there was none."""
    longest_us: int = 0
    """The longest of them, in microseconds."""


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another node, as a node knows it from the connections between them."""

    node: int
    """Its number."""
    address: str
    """Its address, to which other nodes connect."""
    connected: bool
    """Whether it has sent a report in the last seconds."""
    silent_ms: int | None = None
    """Milliseconds since its last report; `None`: there was none since the process started."""
    version: str | None = None
    """Its version of mqcore."""
    clock_offset_ms: int | None = None
    """Its clock minus the clock of the asked node, in milliseconds."""
    stalled_ms: int = 0
    """For how long it had done nothing when it sent its last report, in milliseconds."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of a node."""

    cluster: str
    """The name of the cluster."""
    node: int
    """The number of the node."""
    role: NodeRole
    """Its role."""
    leader: int | None
    """The node that leads; `None`: the node knows none."""
    term: int
    """Grows with each election."""
    committed: int
    """Number of the last change that a majority has saved, as far as the node knows."""
    applied: int
    """Number of the last change that the files of the node have."""
    replicas: tuple[ReplicaStatus, ...]
    """The replicas of the cluster, as far as the node knows."""
    changing: bool
    """A change of the replicas is not complete: until then, a majority of those before it is needed, too."""
    hears: tuple[int, ...]
    """The nodes that it has heard in the last seconds."""
    version: str
    """Its version of mqcore."""
    failure: str | None
    """Why the node has failed; `None`: it has not."""
    problem: str | None = None
    """Why the node cannot take part at the moment; it tries again by itself. `None`: it takes part."""
    address: str = ""
    """The address to which other nodes connect. Nodes of earlier versions send nothing from here on."""
    clock_ms: int = 0
    """Its clock in Unix milliseconds."""
    log_syncs: LogSyncs = LogSyncs()
    """Syncs of its log."""
    log_entries: int = 0
    """Changes that its log keeps."""
    log_bytes: int = 0
    """Bytes of the files of its log."""
    leader_changes: int = 0
    """How often another leader was elected, as far as the node has noticed since its process started."""
    leaderless_ms: int = 0
    """For how long the node has known no leader, in milliseconds; 0: it knows one."""
    peers: tuple[PeerStatus, ...] = ()
    """The other nodes."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what a node has sent. A node of another version may send more or less."""
        found: dict[str, Any] = json.loads(text)
        found["replicas"] = tuple(_known(ReplicaStatus, replica) for replica in found["replicas"])
        found["hears"] = tuple(found["hears"])
        found["log_syncs"] = _known(LogSyncs, found.get("log_syncs", {}))
        found["peers"] = tuple(_known(PeerStatus, peer) for peer in found.get("peers", ()))
        return _known(cls, found)


def _known(kind: type[_T], found: dict[str, Any]) -> _T:
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in found.items() if name in names})


def status(address: str, *, secret: bytes, name: str = "mqcore", tls: tuple[str, str, str] | None = None) -> NodeStatus:
    """Ask a node for its status.

    `address` is where other nodes connect to it, as ``HOST:PORT``. If the cluster has certificates, `tls` has the names
    of the files of a certificate, its key, and the authorities. Waits up to a few seconds. Raises
    `mqcore.errors.ConnectFailed` if the node cannot be reached, or has another name or secret.
    """
    try:
        return NodeStatus.from_json(_core.cluster_status(address, name, secret, tls))
    except OSError as error:
        raise errors.ConnectFailed(f"the node at {address} does not answer: {error}") from error


def promote(
    node: int, address: str, *, secret: bytes, name: str = "mqcore", tls: tuple[str, str, str] | None = None
) -> None:
    """Make another node the leader, for example before maintenance of the leader's machine.

    `address` is that of the leader. The other arguments are those of `status`. The leader's process restarts as soon as
    `node` leads, so that clients connect again. Raises `mqcore.errors.ConnectFailed` if the leader cannot be reached,
    and `mqcore.errors.Unacceptable` if it does not lead, or if `node` is not connected, does not vote, or does not have
    all data.
    """
    try:
        refusal = _core.cluster_promote(address, name, secret, tls, node)
    except OSError as error:
        raise errors.ConnectFailed(f"the node at {address} does not answer: {error}") from error
    if refusal is not None:
        raise errors.Unacceptable(refusal, 406)
