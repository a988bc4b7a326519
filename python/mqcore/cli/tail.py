"""`mqcore tail`: prints events of a broker as they happen."""

from __future__ import annotations

import click

from mqcore.cli import options, output

__all__ = ["tail"]

_SERVER_EVENTS = (
    "ClientConnected",
    "ClientDisconnected",
    "ChannelCreated",
    "ChannelRemoved",
    "NodeConnected",
    "NodeDisconnected",
)
_CHANNEL_EVENTS = ("ClientJoined", "ClientLeft", "QueueCreated", "QueueUpdated", "QueueRemoved")


@click.command()
@click.option("--events", is_flag=True, required=True, help="Print changes of clients, channels and nodes.")
@click.option("--channel", "channels", multiple=True, help="Also print events of this channel. Repeatable.")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    type=options.QUEUE,
    help="Also print an event for each message published to this queue. Repeatable.",
)
@click.option("--count", type=click.IntRange(min=1), help="Exit after this many events. [default: never]")
@options.connection
@options.as_json
def tail(
    events: bool,
    channels: tuple[str, ...],
    queues: tuple[tuple[str, int], ...],
    count: int | None,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Print events of the broker as they happen, until Ctrl-C. Consumes no messages."""
    subscriptions: list[tuple[str, str | None, int | None]] = [(kind, None, None) for kind in _SERVER_EVENTS]
    subscriptions += [(kind, channel, None) for channel in channels for kind in _CHANNEL_EVENTS]
    subscriptions += [("MessageProduced", channel, number) for channel, number in queues]
    seen = 0
    with options.connect(url, timeout) as client, client.events(subscriptions) as stream:
        output.talk("watching")
        for event in stream:
            content = output.plain(event)
            if as_json:
                output.stream("mqcore.event/1", content)
            else:
                kind = content.pop("kind")
                click.echo(
                    "\t".join([kind, *(f"{key}={value}" for key, value in content.items() if value is not None)])
                )
            seen += 1
            if seen == count:
                break
