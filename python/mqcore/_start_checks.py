"""Mistakes of a configuration that a start would notice late, or not at all."""

from __future__ import annotations

import os

from mqcore import errors
from mqcore.config import BrokerConfig

__all__ = ["check_start"]


def check_start(config: BrokerConfig, *, leads: bool) -> None:
    """Check the data directory and the cluster. `leads`: the broker writes into the files of a cluster.

    Raises `DataDirError` if the data directory is a file, before users and tokens are read from inside it, and
    `ConfigError` for an embedded broker in a cluster.
    """
    data_dir = config.data_dir
    if data_dir is not None and os.path.exists(data_dir) and not os.path.isdir(data_dir):
        raise errors.DataDirError(
            f"data_dir {data_dir!r} is a file; name a directory, which is created if it is missing"
        )
    if config.cluster is not None and not leads:
        raise errors.ConfigError(
            "an embedded broker cannot be a node of a cluster, because the process of a node restarts when it stops "
            "leading; run `mqcore serve` with this configuration"
        )
