"""`mqcore cluster`: the nodes of a cluster."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import click

from mqcore.cli import options, output
from mqcore.cli.broker_options import broker_environment
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from mqcore.cluster import NodeStatus
    from mqcore.config import BrokerConfig, ClusterConfig

__all__ = ["cluster"]

_config_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    envvar="MQCORE_CONFIG",
    type=click.Path(dir_okay=False),
    help="The configuration of a node: its table [cluster] has the addresses and the secret.",
)
_PROMOTION_SECONDS = 15
_COLUMNS = ("node", "address", "role", "leader", "term", "committed", "applied", "hears", "version", "problem")


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Inspect and repair a cluster."""


@cluster.command(short_help="List nodes.")
@_config_option
@options.as_json
def ls(config_file: str | None, as_json: bool) -> int:
    """List the nodes of the cluster, each as it sees itself. Exits with 5 if one does not answer, or none leads."""
    from mqcore.cli.cluster_nodes import ask_nodes

    asked = ask_nodes(_cluster_of(_loaded(config_file)))
    for each in asked:
        if each.error is not None:
            click.echo(each.error, err=True)
    rows = [_row(each.node, each.address, each.status) for each in asked]
    output.rows("mqcore.cluster.ls/1", "nodes", rows, _COLUMNS, as_json=as_json)
    statuses = [each.status for each in asked]
    is_well = all(statuses) and any(status.role == "leading" for status in statuses if status is not None)
    return ExitCode.DONE if is_well else ExitCode.UNREACHABLE


@cluster.command(short_help="Make a node the leader.")
@click.argument("node", type=click.IntRange(min=1))
@_config_option
def promote(node: int, config_file: str | None) -> int:
    """Make NODE the leader, for example before maintenance of the leader's machine. Waits until it leads.

    Clients connect again, as after a failure of the leader.
    """
    from mqcore import cluster as mq_cluster
    from mqcore import errors
    from mqcore.cli.cluster_nodes import ask_nodes

    settings = _cluster_of(_loaded(config_file))
    leaders = [each for each in ask_nodes(settings) if each.status is not None and each.status.role == "leading"]
    if not leaders:
        raise errors.ConnectFailed("no node leads the cluster; `mqcore cluster ls` shows which nodes answer")
    address, secret = leaders[0].address, settings.read_secret()
    mq_cluster.promote(node, address, secret=secret, name=settings.name, tls=settings.tls)
    if not _becomes_leader(settings, node):
        raise errors.ConnectFailed(f"node {node} does not lead after {_PROMOTION_SECONDS} s; see `mqcore cluster ls`")
    click.echo(f"node {node} leads")
    return ExitCode.DONE


def _becomes_leader(settings: ClusterConfig, node: int) -> bool:
    import time

    from mqcore.cli.cluster_nodes import ask_nodes

    end = time.monotonic() + _PROMOTION_SECONDS
    while time.monotonic() < end:
        if any(
            each.node == node and each.status is not None and each.status.role == "leading"
            for each in ask_nodes(settings)
        ):
            return True
        time.sleep(0.1)
    return False


@cluster.command("force-new", short_help="Begin a new cluster with the files of a node.")
@_config_option
@click.option("--dry-run", is_flag=True, help="Print the last term and index of the node's log; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def force_new(config_file: str | None, dry_run: bool, yes: bool) -> int:
    """Begin a new cluster with the files of a stopped node, after most nodes were lost for good.

    Changes that only lost nodes had are lost. Compare the nodes that are left with --dry-run, and choose the one whose
    log has the greatest term, and of these the greatest index. Then start it, and the others with empty data
    directories.
    """
    from mqcore import _core
    from mqcore.cli import confirmation

    config = _loaded(config_file)
    settings = _cluster_of(config)
    if config.data_dir is None:
        raise click.UsageError("the configuration has no data_dir")
    data_dir = os.path.expanduser(config.data_dir)
    state = _core.cluster_force_new(data_dir, settings.name, settings.node, False)
    _print_state(settings.node, state)
    if not dry_run:
        warning = f"node {settings.node} forgets its cluster, and changes that it does not have are lost"
        confirmation.confirm(warning, settings.name, yes=yes)
        _core.cluster_force_new(data_dir, settings.name, settings.node, True)
        click.echo(f"node {settings.node} begins a new cluster at its start; empty the data directories of the others")
    return ExitCode.DONE


def _print_state(node: int, state: tuple[int, int, int, bool]) -> None:
    term, index, entries, has_log = state
    if has_log:
        click.echo(f"node {node}: the log ends with entry {index} of term {term}; {entries} entries since its start")
    else:
        click.echo(f"node {node}: the log is damaged; what was not in the files yet is lost")


def _loaded(config_file: str | None) -> BrokerConfig:
    from mqcore.config import BrokerConfig

    return BrokerConfig.load(config_file, environ=broker_environment())


def _cluster_of(config: BrokerConfig) -> ClusterConfig:
    if config.cluster is None:
        raise click.UsageError("there is no table [cluster]; name the configuration of a node with --config")
    return config.cluster


def _row(node: int, address: str, status: NodeStatus | None) -> dict[str, Any]:
    if status is None:
        return {**dict.fromkeys(_COLUMNS), "node": node, "address": address, "role": "unreachable"}
    return {**dataclasses.asdict(status), "address": address}
