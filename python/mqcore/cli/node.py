"""`mqcore node`: lists the upstream and downstream brokers of a broker."""

from __future__ import annotations

import click

from mqcore.cli import options, output
from mqcore.cli.group import CommandGroup

__all__ = ["node"]

_COLUMNS = ("id", "name", "host", "downstream", "connected", "lifetime")


@click.group(cls=CommandGroup)
def node() -> None:
    """Inspect upstream and downstream brokers."""


@node.command(short_help="List nodes.")
@options.connection
@options.as_json
def ls(url: str | None, timeout: float, as_json: bool) -> None:
    """List the configured upstream brokers and the connected downstream brokers."""
    with options.connect(url, timeout) as connection:
        found = connection.nodes()
    output.rows("mqcore.node.ls/1", "nodes", [output.plain(one) for one in found], _COLUMNS, as_json=as_json)
