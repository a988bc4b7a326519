"""`mqcore publish`: publishes messages to a queue or topic."""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode

__all__ = ["publish"]

_BATCH = 256
"""Messages per call of the client: enough to keep the broker busy, few enough to show progress."""


@click.command()
@click.argument("queue")
@click.argument("body", required=False)
@click.option("--file", "files", multiple=True, metavar="FILE", help="File to publish as one message. Repeatable.")
@click.option("--stdin", "from_stdin", is_flag=True, help="Publish each line of stdin as a message.")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="Publish BODY this many times.")
@click.option(
    "--header", multiple=True, metavar="KEY:VALUE", callback=options.split_header, help="Message header. Repeatable."
)
@click.option("--high-priority", is_flag=True, help="Deliver before messages of normal priority.")
@click.option("--priority", type=click.IntRange(0, 255), help="Priority; higher goes first. [default: 0]")
@click.option("--delay", type=options.DURATION, help="Deliver the messages after this time. [default: at once]")
@click.option("--expires-in", type=options.DURATION, help="Drop messages that wait longer than this. [default: never]")
@click.option("--cc", multiple=True, metavar="QUEUE", help="Queue that also gets each message. Repeatable.")
@click.option("--id", "message_id", metavar="ID", help="Id of the message. [default: a new one]")
@click.option("--no-confirm", is_flag=True, help="Do not wait for the broker's confirmation.")
@options.connection
@options.as_json
def publish(
    queue: str,
    body: str | None,
    files: tuple[str, ...],
    from_stdin: bool,
    count: int,
    header: dict[str, str],
    high_priority: bool,
    priority: int | None,
    delay: float | None,
    expires_in: float | None,
    cc: tuple[str, ...],
    message_id: str | None,
    no_confirm: bool,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Publish BODY, files, or lines of stdin to QUEUE, for example orders/1001.

    QUEUE may be a topic, @topic:NAME; the command fails if the topic has neither subscribers nor queues. With MQKS,
    QUEUE is an event. If a queue of --cc does not confirm its copy, the command reports it and exits with code 1.
    """
    bodies, total = _bodies(body, files, from_stdin, count)
    if message_id is not None and total != 1:
        raise click.UsageError("--id names one message; publish one BODY or one --file without --count")
    address = options.address(queue, url)
    copies = [options.address(copy, url) for copy in cc]
    terms: dict[str, Any] = {"priority": priority, "delay": delay, "expires_in": expires_in}
    published = 0
    size = 0
    failed: Counter[tuple[str, str]] = Counter()
    confirmed_by: set[str] = set()
    began = time.perf_counter()
    with options.connect(url, timeout) as client, output.progress(f"publish to {address}", total) as advance:
        for batch in _batches(bodies):
            if message_id is not None:
                receipts = [
                    client.publish(
                        address,
                        batch[0],
                        id=message_id,
                        headers=header,
                        high_priority=high_priority,
                        confirm=not no_confirm,
                        cc=copies,
                        **terms,
                    )
                ]
            else:
                receipts = client.publish_many(
                    address,
                    batch,
                    headers=header,
                    high_priority=high_priority,
                    confirm=not no_confirm,
                    cc=copies,
                    **terms,
                )
            confirmed_by |= {receipt.by for receipt in receipts if receipt.by}
            failed.update(
                (copy.queue, f"{copy.status}: {copy.reason}")
                for receipt in receipts
                for copy in receipt.copies
                if copy.status != "confirmed"
            )
            published += len(batch)
            size += sum(map(len, batch))
            advance(len(batch))
    seconds = time.perf_counter() - began
    by = "/".join(sorted(confirmed_by)) or None
    if as_json:
        result = {
            "queue": address,
            "published": published,
            "bytes": size,
            "confirmed_by": by,
            "seconds": seconds,
            "failed_copies": [{"queue": copy, "why": why, "count": number} for (copy, why), number in failed.items()],
        }
        output.document("mqcore.publish/1", result)
    else:
        plural = "" if published == 1 else "s"
        confirmed = f", confirmed by {by}" if by else ", not confirmed"
        output.talk(f"{published} message{plural} to {address}{confirmed}, {seconds * 1e3:.1f} ms")
        for (copy, why), number in failed.items():
            output.talk(f"{number} of {published} copies to {copy} {why}")
    return ExitCode.REFUSED if failed else ExitCode.DONE


def _bodies(
    body: str | None, files: tuple[str, ...], from_stdin: bool, count: int
) -> tuple[Iterable[bytes], int | None]:
    """The bodies to publish, and their number if it is known in advance."""
    sources = (body is not None) + bool(files) + from_stdin
    if sources != 1:
        raise click.UsageError("give exactly one of BODY, --file and --stdin")
    if count != 1 and body is None:
        raise click.UsageError("--count repeats BODY; it cannot be used with --file or --stdin")
    if body is not None:
        return itertools.repeat(body.encode(), count), count
    if files:
        return (Path(name).read_bytes() for name in files), len(files)
    return (line.rstrip(b"\r\n") for line in sys.stdin.buffer), None


def _batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    remaining = iter(bodies)
    while batch := list(itertools.islice(remaining, _BATCH)):
        yield batch
