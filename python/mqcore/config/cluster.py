"""A broker on several nodes: the same data directory on each of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mqcore.config.convert import check
from mqcore.config.duration import Duration
from mqcore.errors import ConfigError

__all__ = ["ClusterConfig"]

_SECRET_BYTES_MIN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """A node of a cluster: three, five or seven nodes with copies of one data directory.

    One node leads and runs the broker. A message counts as saved when it is on the disks of a majority. The
    listeners of the other nodes pass connections on to the leader. If the leader fails, another node continues.

    All nodes have the same `name`, secret and listeners (on ports of their own, if they share a machine). Only
    `mqcore serve` runs a cluster: a node that stops leading restarts its process.

    >>> node = ClusterConfig(node=1, listen="0.0.0.0:47299", peers=["2=db-2:47299", "3=db-3:47299"], secret="0" * 32)
    """

    node: int
    """The number of this node, from 1 on. It belongs to the data directory."""
    listen: str
    """Where the other nodes connect, as ``HOST:PORT``. Without certificates, nothing is encrypted there."""
    peers: tuple[str, ...] = ()
    """The other nodes, as ``NODE=HOST:PORT``: 2, 4 or 6. Default none, a cluster of one node for tests."""
    name: str = "mqcore"
    """The name of the cluster. Default ``mqcore``."""
    secret: str | None = field(default=None, repr=False)
    """The secret of the cluster, at least 16 characters. Default none: `secret_file` has it."""
    secret_file: str | None = None
    """File with the secret, whose white space at both ends is ignored. Default none."""
    cert: str | None = None
    """File with the certificate of this node, in PEM format, followed by intermediate certificates. It names the host
    under which the other nodes reach this one. Default none: nothing is encrypted between nodes."""
    key: str | None = None
    """File with the private key of `cert`."""
    ca: str | None = None
    """File with the authorities of all nodes' certificates."""
    election_timeout: Duration = 0.5
    """Time without a leader after which nodes elect another; up to twice this time, plus the election. The nodes'
    clocks need not agree, but a disk or network that pauses longer causes elections. Default 500 ms."""
    witness: bool = False
    """Keep no data: the node votes, and keeps changes only until all nodes with data have them. It needs little disk
    space and never leads. More than half of the nodes must keep data. Default ``False``."""
    verify_interval: Duration = 86400.0
    """Time between two verifications of the checksums of all files, with at most 64 MiB/s. A node with a damaged file
    gets a copy from the others. 0: only files that are needed are verified. Default one day."""

    def __post_init__(self) -> None:
        check(self)
        if (self.secret is None) == (self.secret_file is None):
            raise ConfigError("a cluster needs either secret or secret_file; `openssl rand -hex 32` makes a secret")
        if len({file is None for file in (self.cert, self.key, self.ca)}) > 1:
            raise ConfigError("a cluster with TLS needs all of cert, key and ca")

    @property
    def tls(self) -> tuple[str, str, str] | None:
        """The files `cert`, `key` and `ca`; `None`: nothing is encrypted."""
        if self.cert is None or self.key is None or self.ca is None:
            return None
        return self.cert, self.key, self.ca

    def read_secret(self) -> bytes:
        """Return the secret. Raises `ConfigError` if its file cannot be read, or it is too short."""
        secret = (self.secret or "").encode()
        if self.secret_file is not None:
            try:
                secret = Path(os.path.expanduser(self.secret_file)).read_bytes().strip()
            except OSError as error:
                raise ConfigError(f"cannot read the secret of the cluster in {self.secret_file}: {error}") from error
        if len(secret) < _SECRET_BYTES_MIN:
            raise ConfigError(
                f"the secret of a cluster has at least {_SECRET_BYTES_MIN} bytes; `openssl rand -hex 32` makes one"
            )
        return secret
