"""`mqcore node`: the brokers that a broker passes on to, and those that pass on to it."""

from __future__ import annotations

import click

from mqcore.cli import options, output
from mqcore.cli.program import CommandGroup

__all__ = ["node"]

_COLUMNS = ("id", "name", "host", "slave", "connected", "lifetime")


@click.group(cls=CommandGroup, short_help="Other brokers: ls.")
def node() -> None:
    """Brokers that pass on to each other."""


@node.command(short_help="List nodes.")
@options.connection
@options.as_json
def ls(url: str | None, timeout: float, as_json: bool) -> None:
    """List masters, also those that are away, and the slaves that are connected."""
    with options.connect(url, timeout) as connection:
        found = connection.nodes()
    output.rows("mqcore.node.ls/1", "nodes", [output.plain(one) for one in found], _COLUMNS, as_json=as_json)
