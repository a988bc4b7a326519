"""The nodes of a cluster, seen from outside.

>>> import mqcore.cluster
>>> status = mqcore.cluster.status("db-1:47299", secret=b"...")  # doctest: +SKIP
>>> status.role, status.leader  # doctest: +SKIP
('following', 2)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from mqcore import _core, errors

__all__ = ["NodeStatus", "ReplicaStatus", "status"]

NodeRole: TypeAlias = Literal["joining", "copying", "following", "leading"]
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

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what a node has sent."""
        found: dict[str, Any] = json.loads(text)
        found["replicas"] = tuple(ReplicaStatus(**replica) for replica in found["replicas"])
        found["hears"] = tuple(found["hears"])
        return cls(**found)


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
