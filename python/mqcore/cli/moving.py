"""Moves of waiting messages: `mqcore queue move`, and what `mqcore dead replay` has in common with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode

if TYPE_CHECKING:
    from mqcore.admin import MoveResult

__all__ = ["chosen_messages", "move", "move_messages"]

_F = TypeVar("_F", bound=Callable[..., Any])


def chosen_messages(command: _F) -> _F:
    """Add the options that choose messages (`ids`, `limit`), and those of the admin side and of the output."""
    for option in (
        options.as_json,
        options.admin_side(timeout="60s"),
        click.option("--count", "limit", type=click.IntRange(min=1), help="Maximum messages. [default: all]"),
        click.option("--id", "ids", multiple=True, metavar="ID", help="Only the message with this id; repeatable."),
    ):
        command = option(command)
    return command


@click.command(short_help="Move waiting messages to another queue.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@click.argument("target", metavar="TARGET", type=options.QUEUE)
@chosen_messages
def move(address: tuple[str, int], target: tuple[str, int], **given: Any) -> int:
    """Move waiting messages of QUEUE to TARGET, in their order, while the broker runs.

    A crash neither loses nor duplicates a message. If it interrupts the command, run it again. Needs a token. Exit code
    1 if messages stay that should move.
    """
    return move_messages("mqcore.queue.move/1", options.text_of(address), options.text_of(target), **given)


def move_messages(
    schema: str,
    queue: str,
    to: str | None,
    *,
    url: str,
    ids: tuple[str, ...],
    limit: int | None,
    timeout: float,
    token: str | None,
    as_json: bool,
) -> int:
    """Move messages to the queue `to`, or each to the queue that it comes from. Return the exit code."""
    from mqcore import admin

    with output.growing(f"moving messages of {queue}") as progress:
        result = admin.move(url, queue, to, ids=ids, limit=limit, progress=progress, token=token, timeout=timeout)
    where = "the queues that they come from" if to is None else to
    message = f"moved {result.moved:,} messages of {queue} to {where}; {result.left:,} are left"
    output.done(schema, message, {"queue": queue, "to": to, **output.plain(result)}, as_json=as_json)
    return _explain(result, ids)


def _explain(result: MoveResult, ids: tuple[str, ...]) -> int:
    """Print what stays and why. Return the exit code."""
    if result.rejection is not None:
        output.talk(f"the others stay: {result.rejection}")
    elif result.without_origin:
        output.talk(f"{result.without_origin:,} messages do not name the queue that they come from; use --to QUEUE")
    elif result.moved < len(ids):
        output.talk(f"{len(ids) - result.moved:,} ids are not among the first 1,000 messages")
    else:
        return ExitCode.DONE
    return ExitCode.REFUSED
