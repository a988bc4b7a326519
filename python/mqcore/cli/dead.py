"""`mqcore dead`: lists, shows, replays and discards dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from mqcore.cli import options, output
from mqcore.cli.confirmation import confirm_loss
from mqcore.cli.figures import age
from mqcore.cli.group import CommandGroup
from mqcore.cli.moving import chosen_messages, move_messages
from mqcore.cli.queue_states import dead_letter_rows, every_queue

if TYPE_CHECKING:
    from mqcore.admin import PeekedMessage

__all__ = ["dead"]

_COLUMNS: Final = ("queue", "ready", "oldest", "consumers")
_LETTER_COLUMNS: Final = ("id", "origin", "reason", "error", "attempts", "waiting", "bytes")


@click.group(cls=CommandGroup)
def dead() -> None:
    """List, show, replay and discard dead letters: messages that failed for good."""


@dead.command(short_help="List dead-letter queues with messages.")
@options.admin_side(timeout="15s")
@options.as_json
def ls(url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """List dead-letter queues that have messages, the oldest message first.

    These are the dead-letter queues of channels (CHANNEL/65535) and those that the option dead_letter of a queue names.
    """
    rows = dead_letter_rows(url, token=token, timeout=timeout)
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

    queue, now = options.text_of(address), time.time()
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
        "error": headers.get("Dead-Letter-Error"),
        "attempts": headers.get("Dead-Letter-Attempts"),
        "waiting": age(now - message.received_ms / 1000) if message.received_ms else None,
        "bytes": message.body_bytes,
    }


@dead.command(short_help="Return dead letters to the queues that they come from.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.option("--to", "target", metavar="QUEUE", type=options.QUEUE, help="Move all to this queue instead.")
@chosen_messages
def replay(address: tuple[str, int], target: tuple[str, int] | None, **given: Any) -> int:
    """Return the dead letters of QUEUE to the queues that they come from, while the broker runs.

    A crash neither loses nor duplicates a message. If it interrupts the command, run it again. Needs a token. Exit code
    1 if messages stay that should move.
    """
    to = None if target is None else options.text_of(target)
    return move_messages("mqcore.dead.replay/1", options.text_of(address), to, **given)


@dead.command(short_help="Remove dead letters.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@chosen_messages
def discard(
    address: tuple[str, int],
    yes: bool,
    ids: tuple[str, ...],
    limit: int | None,
    url: str,
    timeout: float,
    token: str | None,
    as_json: bool,
) -> None:
    """Remove the dead letters of QUEUE, or only some of them. Needs a token."""
    from mqcore import admin

    queue = options.text_of(address)
    waiting = len(ids) or _waiting(url, queue, timeout, token)
    confirm_loss(f"discarding messages of {queue}", queue, min(waiting, limit or waiting), yes=yes)
    with output.growing(f"discarding messages of {queue}") as progress:
        result = admin.discard(url, queue, ids=ids, limit=limit, progress=progress, token=token, timeout=timeout)
    fields = {"queue": queue, "discarded": result.moved, "left": result.left}
    message = f"discarded {result.moved:,} messages of {queue}; {result.left:,} are left"
    output.done("mqcore.dead.discard/1", message, fields, as_json=as_json)


def _waiting(url: str, queue: str, timeout: float, token: str | None) -> int:
    found = every_queue(url, token=token, timeout=timeout, matching=queue)
    return next((state.ready for state in found if state.queue == queue), 0)
