"""`mqcore consume` and `mqcore pull`: print the messages of a queue."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode

if TYPE_CHECKING:
    from mqcore.client import Incoming
    from mqcore.client.options import Clear, Order

__all__ = ["consume", "pull"]


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), help="Exit after this many messages. [default: never]")
@click.option("--idle", type=options.DURATION, help="Exit after this long without a message. [default: never]")
@click.option(
    "--prefetch", type=click.IntRange(min=1), default=100, show_default=True, help="Maximum messages in flight."
)
@click.option("--nack", metavar="REASON", help="Reject the messages with this reason instead of acknowledging them.")
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), help="Write each body to a file in this directory."
)
@click.option("--fail-if-empty", is_flag=True, help="Exit with code 1 if no message arrived.")
@click.option("--event", "events", multiple=True, help="MQKS: bind the queue to this event only. Repeatable.")
@click.option("--add-event", "added", multiple=True, help="MQKS: also bind the queue to this event. Repeatable.")
@click.option("--filter", help="MicroMessage2: filter for messages of a topic, for example 'price>N10;region=Teu'.")
@click.option("--keep-events", is_flag=True, help="MQKS: do not change the queue's event bindings.")
@options.connection
@options.as_json
def consume(
    queue: str,
    count: int | None,
    idle: float | None,
    prefetch: int,
    nack: str | None,
    into: Path | None,
    fail_if_empty: bool,
    events: tuple[str, ...],
    added: tuple[str, ...],
    filter: str | None,  # noqa: A002 (the option's name)
    keep_events: bool,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Consume messages from QUEUE, print them, and acknowledge them if the queue requests acknowledgements.

    QUEUE may be a topic, @topic:NAME, or a pattern of topics such as '@topic:orders.*'. The command prints what is
    published from now on.

    With MQKS, the queue is also bound to the event of its own name, unless --event, --add-event or --keep-events is
    given.
    """
    if keep_events and (events or added):
        raise click.UsageError("--keep-events excludes --event and --add-event; remove one of them")
    terms: dict[str, Any] = {}
    if events or keep_events:
        terms["events"] = events
    if added:
        terms["add_events"] = added
    if filter is not None:
        terms["filter"] = filter
    address = options.address(queue, url)
    seen = 0
    # Prefetch no more than will be printed: unprinted messages would be requeued out of order.
    window = min(prefetch, count) if count is not None else prefetch
    with options.connect(url, timeout) as client, output.progress(f"consume {address}", count) as advance:
        for message in client.queue(address).consume(prefetch=window, idle_timeout=idle, **terms):
            show(message, message.target if message.topic else address, into, as_json=as_json)
            if nack is not None:
                message.nack(nack)
            else:
                message.ack()
            seen += 1
            advance()
            if seen == count:
                break
    return ExitCode.REFUSED if fail_if_empty and not seen else ExitCode.DONE


@click.command()
@click.argument("queue", type=options.QUEUE)
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="Maximum number of messages.")
@click.option(
    "--order",
    type=click.Choice(["fifo", "lifo"]),
    default="fifo",
    show_default=True,
    help="Oldest (fifo) or newest (lifo) messages first.",
)
@click.option(
    "--clear",
    type=click.Choice(["all", "high-priority", "normal"]),
    help="Also remove the messages of this kind that are left in the queue. [default: none]",
)
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), help="Write each body to a file in this directory."
)
@click.option("--fail-if-empty", is_flag=True, help="Exit with code 1 if the queue was empty.")
@options.connection
@options.as_json
def pull(
    queue: tuple[str, int],
    count: int,
    order: Order,
    clear: Clear | None,
    into: Path | None,
    fail_if_empty: bool,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Pull messages from QUEUE, print each as it comes, and acknowledge them if the queue requests acknowledgements."""
    seen = 0
    with options.connect(url, timeout) as client:
        for message in client.queue(*queue).pull_stream(count, order=order, clear=clear):
            show(message, f"{queue[0]}/{queue[1]}", into, as_json=as_json)
            message.ack()
            seen += 1
    return ExitCode.REFUSED if fail_if_empty and not seen else ExitCode.DONE


def show(message: Incoming[Any], queue: str, into: Path | None, *, as_json: bool) -> None:
    """Print one message, or write its body to a file in `into`."""
    body = message.raw
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        # The peer chooses the id, so it must not become a file name: it could contain a path.
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
