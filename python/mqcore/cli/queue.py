"""`mqcore queue`: queues, looked at and changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mqcore.cli import options, output
from mqcore.cli.confirmation import confirm_loss
from mqcore.cli.program import CommandGroup

__all__ = ["queue"]

_COLUMNS = ("queue", "status", "messages", "priority_messages", "received_messages", "deliveries", "acks", "tag_name")
_STATUSES = ("broadcast", "push", "roundrobin", "pull", "cache", "paused", "stopped")

_F = TypeVar("_F", bound=Callable[..., Any])


class _Status(click.ParamType[str]):
    name = "status"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from mqcore.config import QueueStatus

        try:
            return QueueStatus(value).value
        except ValueError:
            self.fail(f"there is no status {value!r}; there are {', '.join(_STATUSES)}", param, ctx)


_STATUS = _Status()


def _queue_options(command: _F) -> _F:
    """Add the options of a queue. What is not given is inherited, or stays."""
    declared = (
        click.option("--status", type=_STATUS, help=f"How it hands out: {', '.join(_STATUSES)}."),
        click.option("--acknowledge/--no-acknowledge", "request_acknowledge", default=None, help="Must consumers?"),
        click.option("--acknowledge-timeout", type=options.DURATION, help="How long they may take."),
        click.option("--wait/--no-wait", "wait_for_acknowledge", default=None, help="One message at a time?"),
        click.option("--only-first/--to-all", "only_first_acquirer", default=None, help="Only the first consumer?"),
        click.option("--hide-names/--show-names", "hide_client_names", default=None, help="Who produced a message?"),
        click.option("--message-timeout", type=options.DURATION, help="How long a message may wait; 0: for ever."),
        click.option("--message-limit", type=click.IntRange(min=0), help="Messages at most; 0: no limit."),
        click.option("--message-size-limit", type=click.IntRange(min=0), help="Octets of a body at most; 0: no limit."),
        click.option("--publish-limit", metavar="RATE", help="How much may be published: 100/s, 6000/1m, none."),
        click.option("--put-back-limit", type=click.IntRange(0, 65535), help="How often a message may come back."),
        click.option("--dead-letter", metavar="QUEUE", help="Where messages go that came back too often."),
        click.option("--handler", "delivery_handler", metavar="KEY", help="A delivery handler or ready-made policy."),
        click.option("--tag", help="A word for people and for routers."),
        click.option(
            "--durability",
            type=click.Choice(["none", "os", "fsync"]),
            help="When a saved message counts as saved.",
        ),
    )
    for option in reversed(declared):
        command = option(command)
    return command


@click.group(cls=CommandGroup, short_help="Queues: ls, show, create, set, status, clear, rm.")
def queue() -> None:
    """Queues, addressed channel/id, such as orders/1001."""


@queue.command(short_help="List queues.")
@click.argument("channel", required=False)
@options.connection
@options.as_json
def ls(channel: str | None, url: str | None, timeout: float, as_json: bool) -> None:
    """List the queues of CHANNEL, which may be a pattern such as order*; without it, of all channels."""
    with options.connect(url, timeout) as client:
        names = [information.name for information in client.channels(channel)]
        found = [_row(information) for name in names for information in client.queues(name)]
    output.rows("mqcore.queue.ls/1", "queues", found, _COLUMNS, as_json=as_json)


@queue.command(short_help="Show one queue.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@options.connection
@options.as_json
def show(address: tuple[str, int], url: str | None, timeout: float, as_json: bool) -> None:
    """Show QUEUE: its options, what is in it, and what it has counted."""
    with options.connect(url, timeout) as client:
        information = _row(client.queue_information(_text(address)))
    output.record("mqcore.queue.show/1", information, as_json=as_json)


@queue.command(short_help="Create a queue, and its channel if that is missing.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@_queue_options
@options.connection
@options.as_json
def create(address: tuple[str, int], url: str | None, timeout: float, as_json: bool, **changes: Any) -> None:
    """Create QUEUE. What is not given is what its channel says."""
    from mqcore.config import QueueOptions

    wanted = QueueOptions(**changes)
    with options.connect(url, timeout) as client:
        client.create_queue(_text(address), wanted)
    name = _text(address)
    output.done("mqcore.queue.create/1", f"created {name}", {"queue": name}, as_json=as_json)


@queue.command("set", short_help="Change options of a queue.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@_queue_options
@click.option("--yes", is_flag=True, help="Do not ask when the status 'stopped' erases the queue.")
@options.connection
@options.as_json
def set_(address: tuple[str, int], yes: bool, url: str | None, timeout: float, as_json: bool, **changes: Any) -> None:
    """Change options of QUEUE. What is not given stays as it is."""
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        raise click.UsageError("say what to change, for example --message-limit 1000")
    _change(address, given, url, timeout, "mqcore.queue.set/1", yes=yes, as_json=as_json)


@queue.command(short_help="Change how a queue hands out.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.argument("status", type=_STATUS)
@click.option("--yes", is_flag=True, help="Do not ask when 'stopped' erases the queue.")
@options.connection
@options.as_json
def status(address: tuple[str, int], status: str, yes: bool, url: str | None, timeout: float, as_json: bool) -> None:
    """Change how QUEUE hands out: broadcast, push, roundrobin, pull, cache, paused or stopped.

    paused keeps the messages. stopped erases them, and asks for the queue's name first.
    """
    _change(address, {"status": status}, url, timeout, "mqcore.queue.status/1", yes=yes, as_json=as_json)


@queue.command(short_help="Remove the messages of a queue.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.connection
@options.as_json
def clear(address: tuple[str, int], yes: bool, url: str | None, timeout: float, as_json: bool) -> None:
    """Remove the stored messages of QUEUE. What is in flight stays so."""
    name = _text(address)
    with options.connect(url, timeout) as client:
        lost = _stored(client.queue_information(name))
        confirm_loss(f"clearing {name}", name, lost, yes=yes)
        client.clear_queue(name)
    output.done("mqcore.queue.clear/1", f"cleared {name}", {"queue": name, "messages_lost": lost}, as_json=as_json)


@queue.command(short_help="Remove a queue with its messages.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.connection
@options.as_json
def rm(address: tuple[str, int], yes: bool, url: str | None, timeout: float, as_json: bool) -> None:
    """Remove QUEUE with its messages."""
    name = _text(address)
    with options.connect(url, timeout) as client:
        lost = _stored(client.queue_information(name))
        confirm_loss(f"removing {name}", name, lost, yes=yes)
        client.remove_queue(name)
    output.done("mqcore.queue.rm/1", f"removed {name}", {"queue": name, "messages_lost": lost}, as_json=as_json)


def _change(
    address: tuple[str, int],
    changes: dict[str, Any],
    url: str | None,
    timeout: float,
    schema: str,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    from mqcore.config import QueueOptions

    name = _text(address)
    wanted = QueueOptions(**changes)
    lost = 0
    with options.connect(url, timeout) as client:
        if wanted.status == "stopped":
            lost = _stored(client.queue_information(name))
            confirm_loss(f"stopping {name} erases it and", name, lost, yes=yes)
        client.update_queue(name, wanted)
    said = ", ".join(f"{option} {value}" for option, value in changes.items())
    output.done(schema, f"{name}: {said}", {"queue": name, "changed": changes, "messages_lost": lost}, as_json=as_json)


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}/{address[1]}"


def _row(information: Any) -> dict[str, Any]:
    row = output.plain(information)
    return {"queue": f"{row.pop('channel')}/{row.pop('id')}", **row}


def _stored(information: Any) -> int:
    return int(information.messages + information.priority_messages)
