"""`mqcore tail`: prints events of a broker as they happen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="TEXT",
    help="Print only events whose kind, queue or field, such as client_name=kiosk, contains TEXT; case is ignored. "
    "Repeatable; all must match.",
)
@click.option("--count", type=click.IntRange(min=1), help="Exit after printing this many events. [default: never]")
@options.connection
@options.as_json
def tail(
    events: bool,
    channels: tuple[str, ...],
    queues: tuple[tuple[str, int], ...],
    filters: tuple[str, ...],
    count: int | None,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Print events of the broker as they happen, until Ctrl-C. Consumes no messages."""
    subscriptions: list[tuple[str, str | None, int | None]] = [(kind, None, None) for kind in _SERVER_EVENTS]
    subscriptions += [(kind, channel, None) for channel in channels for kind in _CHANNEL_EVENTS]
    subscriptions += [("MessageProduced", channel, number) for channel, number in queues]
    wanted = [text.lower() for text in filters]
    seen = 0
    with options.connect(url, timeout) as client, client.events(subscriptions) as stream:
        output.talk("watching")
        for event in stream:
            content = output.plain(event)
            if not _matches(content, wanted):
                continue
            if as_json:
                output.stream("mqcore.event/1", content)
            else:
                click.echo("\t".join([event.kind, *_fields(content)]))
            seen += 1
            if seen == count:
                break


def _fields(content: dict[str, Any]) -> Iterator[str]:
    """Write the fields of an event as they are printed."""
    return (f"{key}={value}" for key, value in content.items() if key != "kind" and value is not None)


def _matches(content: dict[str, Any], wanted: list[str]) -> bool:
    """Whether the event contains each text, in lower case, in its kind, its queue or one of its fields."""
    texts = [content["kind"], *_fields(content)]
    if content["queue"] is not None:
        texts.append(f"{content['channel']}/{content['queue']}")
    return all(any(text in each.lower() for each in texts) for text in wanted)
