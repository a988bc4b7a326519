"""`mqcore cluster`: the nodes of a cluster."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from mqcore.cli import options, output
from mqcore.cli.broker_options import broker_environment
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from mqcore.cluster import NodeStatus
    from mqcore.config import ClusterConfig

__all__ = ["cluster"]

_COLUMNS = ("node", "address", "role", "leader", "term", "committed", "applied", "hears", "version")


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Inspect the nodes of a cluster."""


@cluster.command(short_help="List nodes.")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    envvar="MQCORE_CONFIG",
    type=click.Path(dir_okay=False),
    help="The configuration of any node: its table [cluster] has the addresses and the secret.",
)
@options.as_json
def ls(config_file: str | None, as_json: bool) -> int:
    """List the nodes of the cluster, each as it sees itself. Exits with 5 if one does not answer, or none leads."""
    found = _ask(_configured(config_file))
    rows = [_row(node, address, status) for node, address, status in found]
    output.rows("mqcore.cluster.ls/1", "nodes", rows, _COLUMNS, as_json=as_json)
    statuses = [status for _, _, status in found]
    is_well = all(statuses) and any(status.role == "leading" for status in statuses if status is not None)
    return ExitCode.DONE if is_well else ExitCode.UNREACHABLE


def _configured(config_file: str | None) -> ClusterConfig:
    from mqcore.config import BrokerConfig

    config = BrokerConfig.load(config_file, environ=broker_environment())
    if config.cluster is None:
        raise click.UsageError("there is no table [cluster]; name the configuration of a node with --config")
    return config.cluster


def _ask(config: ClusterConfig) -> list[tuple[int, str, NodeStatus | None]]:
    from mqcore import errors
    from mqcore.cluster import status

    secret = config.read_secret()
    found: list[tuple[int, str, NodeStatus | None]] = []
    addresses = dict(peer.split("=", 1) for peer in config.peers)
    addresses[str(config.node)] = _reachable(config.listen)
    for node, address in sorted((int(node), address) for node, address in addresses.items()):
        try:
            found.append((node, address, status(address, secret=secret, name=config.name)))
        except errors.ConnectFailed as error:
            click.echo(str(error), err=True)
            found.append((node, address, None))
    return found


def _reachable(listen: str) -> str:
    """Return where this node is reached that listens on all addresses."""
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]") else listen  # noqa: S104 - compared, not bound


def _row(node: int, address: str, status: NodeStatus | None) -> dict[str, Any]:
    if status is None:
        return {**dict.fromkeys(_COLUMNS), "node": node, "address": address, "role": "unreachable"}
    return {**dataclasses.asdict(status), "address": address}
