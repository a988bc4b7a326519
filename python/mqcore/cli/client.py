"""`mqcore client`: list, show and disconnect clients."""

from __future__ import annotations

import click

from mqcore.cli import options, output
from mqcore.cli.group import CommandGroup

__all__ = ["client"]

_COLUMNS = ("id", "name", "kind", "online")


@click.group(cls=CommandGroup)
def client() -> None:
    """Inspect and disconnect clients."""


@client.command(short_help="List connected clients.")
@click.argument("kind", required=False)
@click.option("--channel", help="List only clients that joined this channel.")
@options.connection
@options.as_json
def ls(kind: str | None, channel: str | None, url: str | None, timeout: float, as_json: bool) -> None:
    """List connected clients, optionally those whose types match KIND: TYPE, PREFIX*, *SUFFIX or *PART*."""
    if kind is not None and channel is not None:
        raise click.UsageError("KIND and --channel exclude each other; give one of them")
    with options.connect(url, timeout) as connection:
        found = connection.channel_consumers(channel) if channel is not None else connection.clients(kind)
    output.rows("mqcore.client.ls/1", "clients", [output.plain(one) for one in found], _COLUMNS, as_json=as_json)


@client.command(short_help="Show one client.")
@click.argument("client_id", metavar="ID")
@options.connection
@options.as_json
def show(client_id: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Show the connected client ID."""
    from mqcore import errors

    with options.connect(url, timeout) as connection:
        found = [one for one in connection.clients() if one.id == client_id]
    if not found:
        raise errors.NotFound(
            f"client {client_id} is not connected; list clients with 'mqcore client ls'", code=404, target=client_id
        )
    output.record("mqcore.client.show/1", output.plain(found[0]), as_json=as_json)


@client.command(short_help="Close connections of clients.")
@click.argument("to", metavar="CLIENT")
@options.connection
@options.as_json
def disconnect(to: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Close the connections of CLIENT: an id, @name:NAME or @type:TYPE. Clients may connect again."""
    with options.connect(url, timeout) as connection:
        connection.disconnect(to)
    output.done("mqcore.client.disconnect/1", f"disconnected {to}", {"client": to}, as_json=as_json)
