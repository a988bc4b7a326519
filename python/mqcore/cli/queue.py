"""`mqcore queue`: lists, shows, creates, changes, clears and removes queues, and moves their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mqcore._option_table import QUEUE_OPTIONS
from mqcore.cli import options, output, target
from mqcore.cli.confirmation import confirm_loss
from mqcore.cli.declared import STATUS, declared
from mqcore.cli.figures import age
from mqcore.cli.group import CommandGroup
from mqcore.cli.moving import move
from mqcore.cli.queue_states import every_queue

if TYPE_CHECKING:
    from mqcore import sync
    from mqcore.client import QueueInformation

__all__ = ["queue"]

_COLUMNS = (
    "queue",
    "status",
    "ready",
    "in_flight",
    "delayed",
    "dead_lettered",
    "oldest",
    "consumers",
    "received",
    "deliveries",
    "acks",
    "tag",
    "missing_handler",
)


@click.group(cls=CommandGroup)
def queue() -> None:
    """Manage queues, addressed as CHANNEL/ID, for example orders/1001."""


@queue.command(short_help="List queues.")
@click.argument("channel", required=False)
@click.option(
    "--admin",
    metavar="URL",
    help="URL of the broker's admin side, which knows the age of messages. [default: mqcore --admin, that of "
    "--context, MQCORE_ADMIN, else that of the context]",
)
@options.connection
@options.as_json
def ls(channel: str | None, admin: str | None, url: str | None, timeout: float, as_json: bool) -> None:
    """List the queues of all channels, or of those that match CHANNEL: NAME, PREFIX*, *SUFFIX or *PART*.

    'oldest' is the age of the oldest message that waits. It needs the URL of the admin side.
    """
    with options.connect(url, timeout) as client:
        names = [information.name for information in client.channels(channel)]
        found = [_row(information) for name in names for information in client.queues(name)]
    side = target.admin_beside(target.listener(url), admin)
    ages = {} if side is None else _ages(side, timeout)
    rows = [{**row, "ready": _ready(row), "oldest_seconds": ages.get(row["queue"])} for row in found]
    if as_json:
        output.document("mqcore.queue.ls/1", {"queues": rows})
    else:
        output.rows("mqcore.queue.ls/1", "queues", [_readable(row) for row in rows], _COLUMNS, as_json=False)


def _ages(side: target.Target, timeout: float) -> dict[str, float | None]:
    """The age of the oldest message of each queue; none, with a message, if the admin side does not answer."""
    from mqcore import errors

    try:
        found = every_queue(side.url, token=side.token, timeout=timeout)
        return {state.queue: state.oldest_seconds for state in found}
    except errors.MqcoreError as error:
        # The list itself does not depend on the admin side.
        output.talk(f"no ages of messages: {error}")
        return {}


def _ready(row: dict[str, Any]) -> int:
    """Stored messages that do not wait for a time."""
    return int(row["messages"] + row["priority_messages"] - row["delayed_messages"])


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of the table."""
    return {
        **row,
        "delayed": row["delayed_messages"],
        "dead_lettered": row["dead_lettered_messages"],
        "oldest": age(row["oldest_seconds"]),
        "received": row["received_messages"],
        "tag": row["tag_name"],
    }


@queue.command(short_help="Show one queue.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@options.connection
@options.as_json
def show(address: tuple[str, int], url: str | None, timeout: float, as_json: bool) -> None:
    """Show the options, contents and counters of QUEUE."""
    with options.connect(url, timeout) as client:
        information = _row(client.queue_information(options.text_of(address)))
    output.record("mqcore.queue.show/1", information, as_json=as_json)


@queue.command(short_help="Create a queue, and its channel if that is missing.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@declared(QUEUE_OPTIONS)
@options.connection
@options.as_json
def create(address: tuple[str, int], url: str | None, timeout: float, as_json: bool, **changes: Any) -> None:
    """Create QUEUE. Options that are not given are inherited from its channel."""
    from mqcore.config import QueueOptions

    wanted = QueueOptions(**changes)
    with options.connect(url, timeout) as client:
        client.create_queue(options.text_of(address), wanted)
    name = options.text_of(address)
    output.done("mqcore.queue.create/1", f"created {name}", {"queue": name}, as_json=as_json)


@queue.command("set", short_help="Change options of a queue.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@declared(QUEUE_OPTIONS)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation when status 'stopped' deletes the messages.")
@options.connection
@options.as_json
def set_(address: tuple[str, int], yes: bool, url: str | None, timeout: float, as_json: bool, **changes: Any) -> None:
    """Change options of QUEUE. Options that are not given stay unchanged."""
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        raise click.UsageError("no option to change; add one, for example --message-limit 1000")
    _change(address, given, url, timeout, "mqcore.queue.set/1", yes=yes, as_json=as_json)


@queue.command(short_help="Change the delivery mode of a queue.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.argument("status", type=STATUS)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation when 'stopped' deletes the messages.")
@options.connection
@options.as_json
def status(address: tuple[str, int], status: str, yes: bool, url: str | None, timeout: float, as_json: bool) -> None:
    """Set the delivery mode of QUEUE: broadcast, push, roundrobin, pull, cache, paused or stopped.

    'paused' keeps the messages. 'stopped' deletes them, after you confirm it by typing the queue's name.
    """
    _change(address, {"status": status}, url, timeout, "mqcore.queue.status/1", yes=yes, as_json=as_json)


@queue.command(short_help="Remove the messages of a queue.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.connection
@options.as_json
def clear(address: tuple[str, int], yes: bool, url: str | None, timeout: float, as_json: bool) -> None:
    """Remove the stored messages of QUEUE. Messages in flight are not affected."""
    name = options.text_of(address)
    with options.connect(url, timeout) as client:
        lost = _stored(_existing(client, name, "clear"))
        confirm_loss(f"clearing {name}", name, lost, yes=yes)
        client.clear_queue(name)
    output.done("mqcore.queue.clear/1", f"cleared {name}", {"queue": name, "messages_lost": lost}, as_json=as_json)


@queue.command(short_help="Remove a queue and its messages.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.connection
@options.as_json
def rm(address: tuple[str, int], yes: bool, url: str | None, timeout: float, as_json: bool) -> None:
    """Remove QUEUE and its messages."""
    name = options.text_of(address)
    with options.connect(url, timeout) as client:
        lost = _stored(_existing(client, name, "remove"))
        confirm_loss(f"removing {name}", name, lost, yes=yes)
        client.remove_queue(name)
    output.done("mqcore.queue.rm/1", f"removed {name}", {"queue": name, "messages_lost": lost}, as_json=as_json)


queue.add_command(move)


def _existing(client: sync.Client, name: str, action: str) -> QueueInformation:
    """The queue's information. Raises `NotFound` that states which action is impossible."""
    from mqcore import errors

    try:
        return client.queue_information(name)
    except errors.NotFound as error:
        raise errors.NotFound(
            f"cannot {action} queue {name}: it does not exist; list queues with 'mqcore queue ls'", error.code, name
        ) from None


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

    name = options.text_of(address)
    wanted = QueueOptions(**changes)
    lost = 0
    with options.connect(url, timeout) as client:
        if wanted.status == "stopped":
            lost = _stored(client.queue_information(name))
            confirm_loss(f"stopping {name} erases it and", name, lost, yes=yes)
        client.update_queue(name, wanted)
    message = ", ".join(f"{option} {value}" for option, value in changes.items())
    output.done(
        schema, f"{name}: {message}", {"queue": name, "changed": changes, "messages_lost": lost}, as_json=as_json
    )


def _row(information: Any) -> dict[str, Any]:
    row = output.plain(information)
    return {"queue": f"{row.pop('channel')}/{row.pop('id')}", **row}


def _stored(information: Any) -> int:
    return int(information.messages + information.priority_messages)
