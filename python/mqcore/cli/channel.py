"""`mqcore channel`: list, show, create, change and remove channels."""

from __future__ import annotations

from typing import Any

import click

from mqcore._option_table import CHANNEL_OPTIONS, QUEUE_OPTIONS
from mqcore.cli import options, output
from mqcore.cli.confirmation import confirm_loss
from mqcore.cli.declared import declared
from mqcore.cli.group import CommandGroup

__all__ = ["channel"]

_QUEUE = "queue"
_COLUMNS = ("name", "queues", "active_clients", "client_limit", "queue_limit", "destroy_when_empty")


@click.group(cls=CommandGroup)
def channel() -> None:
    """Manage channels. A channel contains queues, and clients join it to consume."""


@channel.command(short_help="List channels.")
@click.argument("pattern", required=False)
@options.connection
@options.as_json
def ls(pattern: str | None, url: str | None, timeout: float, as_json: bool) -> None:
    """List channels, optionally those whose names match PATTERN: NAME, PREFIX*, *SUFFIX or *PART*."""
    with options.connect(url, timeout) as client:
        found = [output.plain(information) for information in client.channels(pattern)]
    output.rows("mqcore.channel.ls/1", "channels", found, _COLUMNS, as_json=as_json)


@channel.command(short_help="Show one channel.")
@click.argument("name")
@options.connection
@options.as_json
def show(name: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Show the channel NAME and the default options of its queues."""
    with options.connect(url, timeout) as client:
        information = output.plain(client.channel_information(name))
    output.record("mqcore.channel.show/1", information, as_json=as_json)


@channel.command(short_help="Create a channel.")
@click.argument("name")
@declared(CHANNEL_OPTIONS)
@declared(QUEUE_OPTIONS, prefix=_QUEUE)
@options.connection
@options.as_json
def create(name: str, url: str | None, timeout: float, as_json: bool, **given: Any) -> None:
    """Create the channel NAME. Options that are not given are inherited from the broker.

    Options that begin with --queue- and name an option of 'mqcore queue create' are the defaults of its queues.
    """
    from mqcore.config import ChannelOptions, QueueOptions

    own = {option.name for option in CHANNEL_OPTIONS}
    queue = {key.removeprefix(f"{_QUEUE}_"): value for key, value in given.items() if key not in own}
    wanted = ChannelOptions(queue=QueueOptions(**queue), **{key: given[key] for key in own})
    with options.connect(url, timeout) as client:
        client.create_channel(name, wanted)
    output.done("mqcore.channel.create/1", f"created {name}", {"channel": name}, as_json=as_json)


@channel.command("set", short_help="Change options of a channel.")
@click.argument("name")
@declared(CHANNEL_OPTIONS)
@options.connection
@options.as_json
def set_(name: str, url: str | None, timeout: float, as_json: bool, **given: Any) -> None:
    """Change options of the channel NAME. Options that are not given, and those of its queues, stay unchanged."""
    from mqcore.config import ChannelOptions

    changes = {option: value for option, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("no option to change; add one, for example --client-limit 100")
    with options.connect(url, timeout) as client:
        client.update_channel(name, ChannelOptions(**changes))
    message = ", ".join(f"{option} {value}" for option, value in changes.items())
    output.done("mqcore.channel.set/1", f"{name}: {message}", {"channel": name, "changed": changes}, as_json=as_json)


@channel.command(short_help="Remove a channel and its queues.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.connection
@options.as_json
def rm(name: str, yes: bool, url: str | None, timeout: float, as_json: bool) -> None:
    """Remove the channel NAME, its queues and their messages."""
    from mqcore import errors

    with options.connect(url, timeout) as client:
        try:
            lost = sum(queue.messages + queue.priority_messages for queue in client.queues(name))
        except errors.NotFound as error:
            raise errors.NotFound(
                f"cannot remove channel {name}: it does not exist; list channels with 'mqcore channel ls'",
                error.code,
                name,
            ) from None
        confirm_loss(f"removing channel {name}", name, lost, yes=yes)
        client.remove_channel(name)
    output.done("mqcore.channel.rm/1", f"removed {name}", {"channel": name, "messages_lost": lost}, as_json=as_json)
