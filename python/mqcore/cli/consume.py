"""`mqcore consume` and `mqcore pull`: messages out of a queue."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode

if TYPE_CHECKING:
    from mqcore.client import Incoming, Order

__all__ = ["consume", "pull"]


@click.command(short_help="Print what a queue hands out.")
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), help="Leave after so many. [default: never]")
@click.option("--idle", type=options.DURATION, help="Leave when nothing came for this long. [default: never]")
@click.option("--prefetch", type=click.IntRange(min=1), default=100, show_default=True, help="Messages on their way.")
@click.option("--nack", metavar="REASON", help="Refuse the messages instead of acknowledging them.")
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="Write each body to a file in here.")
@click.option("--fail-empty", is_flag=True, help="Leave with 1 if there was no message.")
@click.option("--event", "events", multiple=True, help="MQKS: bind the queue to this and no other event; repeatable.")
@click.option("--add-event", "added", multiple=True, help="MQKS: bind the queue to this event as well; repeatable.")
@click.option("--filter", help="MicroMessage2: which messages of a topic are wanted: 'price>N10;region=Teu'.")
@click.option("--keep-events", is_flag=True, help="MQKS: leave the queue bound to what it is.")
@options.connection
@options.as_json
def consume(
    queue: str,
    count: int | None,
    idle: float | None,
    prefetch: int,
    nack: str | None,
    into: Path | None,
    fail_empty: bool,
    events: tuple[str, ...],
    added: tuple[str, ...],
    filter: str | None,  # noqa: A002 (the option's name)
    keep_events: bool,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Print each message that QUEUE hands out, and acknowledge it where the queue asks for that.

    Over MQKS, QUEUE is bound to the event of its own name as well, unless --event, --add-event or --keep-events say
    otherwise.
    """
    if keep_events and (events or added):
        raise click.UsageError("--keep-events binds nothing; give it, or events")
    terms: dict[str, Any] = {}
    if events or keep_events:
        terms["events"] = events
    if added:
        terms["add_events"] = added
    if filter is not None:
        terms["filter"] = filter
    address = options.address(queue, url)
    seen = 0
    # No more is taken than will be printed: what is merely prefetched is put back, but out of order.
    window = min(prefetch, count) if count is not None else prefetch
    with options.connect(url, timeout) as client, output.progress(f"consume {address}", count) as advance:
        for message in client.queue(address).consume(prefetch=window, idle_timeout=idle, **terms):
            show(message, address, into, as_json=as_json)
            if nack is not None:
                message.nack(nack)
            else:
                message.ack()
            seen += 1
            advance()
            if seen == count:
                break
    return ExitCode.REFUSED if fail_empty and not seen else ExitCode.DONE


@click.command(short_help="Ask a pull or cache queue for messages.")
@click.argument("queue", type=options.QUEUE)
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many at most.")
@click.option("--order", type=click.Choice(["fifo", "lifo"]), default="fifo", show_default=True, help="Which first.")
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="Write each body to a file in here.")
@click.option("--fail-empty", is_flag=True, help="Leave with 1 if there was no message.")
@options.connection
@options.as_json
def pull(
    queue: tuple[str, int],
    count: int,
    order: Order,
    into: Path | None,
    fail_empty: bool,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Ask QUEUE for messages, print them, and acknowledge them where the queue asks for that."""
    seen = 0
    with options.connect(url, timeout) as client:
        for message in client.queue(*queue).pull(count, order=order):
            show(message, f"{queue[0]}/{queue[1]}", into, as_json=as_json)
            message.ack()
            seen += 1
    return ExitCode.REFUSED if fail_empty and not seen else ExitCode.DONE


def show(message: Incoming[Any], queue: str, into: Path | None, *, as_json: bool) -> None:
    """Print one message, or write its body where it is wanted."""
    body = message.raw
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        # The id is a peer's word and no name for a file.
        name = hashlib.sha256(message.id.encode()).hexdigest()[:32]
        (into / name).write_bytes(body)
    if as_json:
        content = {
            "queue": queue,
            "id": message.id,
            "source": message.source,
            "headers": dict(message.headers.items()),
            **output.readable_body(body),
        }
        output.stream("mqcore.message/1", content)
    elif into is None:
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
