"""`mqcore dead`: lists, shows, replays and discards dead letters. `mqcore drain`: stops a broker gracefully."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from mqcore.cli import options, output
from mqcore.cli.confirmation import confirm_loss
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.figures import age
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from mqcore.admin import MoveResult, PeekedMessage

__all__ = ["dead", "drain", "move"]

_COLUMNS: Final = ("queue", "ready", "oldest", "consumers")
_LETTER_COLUMNS: Final = ("id", "origin", "reason", "attempts", "waiting", "bytes")
_DEAD_LETTERS_ID: Final = "/65535"
_LISTED_MAX: Final = 10_000

_ids = click.option("--id", "ids", multiple=True, metavar="ID", help="Only the message with this id; repeatable.")
_limit = click.option("--count", type=click.IntRange(min=1), help="Maximum messages. [default: all]")


@click.group(cls=CommandGroup)
def dead() -> None:
    """List, show, replay and discard dead letters: messages that failed for good."""


@dead.command(short_help="List dead-letter queues with messages.")
@options.admin_side(timeout="15s")
@options.as_json
def ls(url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """List the dead-letter queues of channels (CHANNEL/65535) that have messages, the oldest message first."""
    from mqcore import admin

    page = admin.queues(url, matching=_DEAD_LETTERS_ID, sort="oldest", limit=_LISTED_MAX, token=token, timeout=timeout)
    found = [queue for queue in page.queues if queue.queue.endswith(_DEAD_LETTERS_ID) and queue.ready]
    rows = [{**output.plain(queue), "oldest": age(queue.oldest_seconds)} for queue in found]
    output.rows("mqcore.dead.ls/1", "queues", rows, _COLUMNS, as_json=as_json)


@dead.command(short_help="Show dead letters with their origins and reasons.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@options.admin_side(timeout="15s")
@click.option("--count", type=click.IntRange(1, 500), default=20, show_default=True, help="Maximum messages.")
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True, help="Messages to skip.")
@options.as_json
def show(
    address: tuple[str, int], url: str, count: int, offset: int, timeout: float, token: str | None, as_json: bool
) -> None:
    """Show the next dead letters of QUEUE: where each comes from, why it failed, and its deliveries there.

    'mqcore peek QUEUE' also shows their bodies.
    """
    import time

    from mqcore import admin

    queue, now = _text(address), time.time()
    found = admin.peek(url, queue, offset=offset, limit=count, body_bytes=0, token=token, timeout=timeout)
    rows = [_letter(message, now) for message in found]
    output.rows("mqcore.dead.show/1", "messages", rows, _LETTER_COLUMNS, as_json=as_json)


def _letter(message: PeekedMessage, now: float) -> dict[str, Any]:
    # A letter that failed twice has two of each; the last ones are about the last time.
    headers = dict(message.headers)
    return {
        "id": message.id,
        "origin": headers.get("Dead-Letter-Queue"),
        "reason": headers.get("Dead-Letter-Reason"),
        "attempts": headers.get("Dead-Letter-Attempts"),
        "waiting": age(now - message.received_ms / 1000) if message.received_ms else None,
        "bytes": message.body_bytes,
    }


@dead.command(short_help="Return dead letters to the queues that they come from.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.option("--to", "target", metavar="QUEUE", type=options.QUEUE, help="Move all to this queue instead.")
@_ids
@_limit
@options.admin_side(timeout="60s")
@options.as_json
def replay(
    address: tuple[str, int],
    target: tuple[str, int] | None,
    ids: tuple[str, ...],
    count: int | None,
    url: str,
    timeout: float,
    token: str | None,
    as_json: bool,
) -> int:
    """Return the dead letters of QUEUE to the queues that they come from, while the broker runs.

    A crash neither loses nor duplicates a message. If it interrupts the command, run it again. Needs a token. Exit code
    1 if messages stay that should move.
    """
    return _move(_text(address), target, ids, count, url, timeout, token, "mqcore.dead.replay/1", as_json=as_json)


@dead.command(short_help="Remove dead letters.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@_ids
@_limit
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.admin_side(timeout="60s")
@options.as_json
def discard(
    address: tuple[str, int],
    ids: tuple[str, ...],
    count: int | None,
    yes: bool,
    url: str,
    timeout: float,
    token: str | None,
    as_json: bool,
) -> None:
    """Remove the dead letters of QUEUE, or only some of them. Needs a token."""
    from mqcore import admin

    queue = _text(address)
    waiting = len(ids) or _waiting(url, queue, timeout, token)
    confirm_loss(f"discarding messages of {queue}", queue, min(waiting, count or waiting), yes=yes)
    with output.growing(f"discarding messages of {queue}") as progress:
        result = admin.discard(url, queue, ids=ids, limit=count, progress=progress, token=token, timeout=timeout)
    fields = {"queue": queue, "discarded": result.moved, "left": result.left}
    message = f"discarded {result.moved:,} messages of {queue}; {result.left:,} are left"
    output.done("mqcore.dead.discard/1", message, fields, as_json=as_json)


@click.command(short_help="Move waiting messages to another queue.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.argument("target", metavar="TARGET", type=options.QUEUE)
@_ids
@_limit
@options.admin_side(timeout="60s")
@options.as_json
def move(
    address: tuple[str, int],
    target: tuple[str, int],
    ids: tuple[str, ...],
    count: int | None,
    url: str,
    timeout: float,
    token: str | None,
    as_json: bool,
) -> int:
    """Move waiting messages of QUEUE to TARGET, in their order, while the broker runs.

    A crash neither loses nor duplicates a message. If it interrupts the command, run it again. Needs a token. Exit code
    1 if messages stay that should move.
    """
    return _move(_text(address), target, ids, count, url, timeout, token, "mqcore.queue.move/1", as_json=as_json)


@click.command(short_help="Stop a broker gracefully.")
@click.option("--within", type=options.DURATION, default="30s", show_default=True, help="Maximum time to finish.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.admin_side(timeout="15s")
@options.as_json
def drain(within: float, yes: bool, url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """Stop the broker as SIGTERM does: it accepts nothing new, finishes, saves, and ends. Needs a token."""
    from mqcore import admin
    from mqcore.cli.confirmation import confirm

    confirm(f"this stops the broker at {url}", "drain", yes=yes)
    admin.drain(url, within, token=token, timeout=timeout)
    output.done("mqcore.drain/1", f"{url} drains for up to {within:g} s", {"within": within}, as_json=as_json)


def _move(
    queue: str,
    target: tuple[str, int] | None,
    ids: tuple[str, ...],
    count: int | None,
    url: str,
    timeout: float,
    token: str | None,
    schema: str,
    *,
    as_json: bool,
) -> int:
    from mqcore import admin

    to = None if target is None else _text(target)
    with output.growing(f"moving messages of {queue}") as progress:
        result = admin.move(url, queue, to, ids=ids, limit=count, progress=progress, token=token, timeout=timeout)
    where = "the queues that they come from" if to is None else to
    message = f"moved {result.moved:,} messages of {queue} to {where}; {result.left:,} are left"
    fields = {"queue": queue, "to": to, **output.plain(result)}
    output.done(schema, message, fields, as_json=as_json)
    return _talk_about(result, ids, to)


def _talk_about(result: MoveResult, ids: tuple[str, ...], to: str | None) -> int:
    """Say what stays and why. Return the exit code."""
    if result.rejection is not None:
        output.talk(f"the others stay: {result.rejection}")
    elif result.without_origin:
        output.talk(f"{result.without_origin:,} messages do not name the queue that they come from; use --to QUEUE")
    elif result.moved < len(ids):
        output.talk(f"{len(ids) - result.moved:,} ids are not among the first 1,000 messages")
    else:
        return ExitCode.DONE
    return ExitCode.REFUSED


def _waiting(url: str, queue: str, timeout: float, token: str | None) -> int:
    from mqcore import admin

    page = admin.queues(url, matching=queue, limit=_LISTED_MAX, token=token, timeout=timeout)
    return next((found.ready for found in page.queues if found.queue == queue), 0)


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}/{address[1]}"
