"""`mqcore peek`: shows the next messages of a queue without consuming them."""

from __future__ import annotations

import time

import click

from mqcore.cli import options, output
from mqcore.cli.figures import age

__all__ = ["peek"]


@click.command(short_help="Show the next messages of a queue without consuming them.")
@click.argument("address", metavar="QUEUE", type=options.QUEUE)
@options.admin_side(timeout="15s")
@click.option("--count", type=click.IntRange(1, 500), default=10, show_default=True, help="Maximum messages.")
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True, help="Messages to skip.")
@click.option(
    "--body-bytes", type=click.IntRange(0, 1 << 20), default=4096, show_default=True, help="Maximum bytes of each body."
)
@options.as_json
def peek(
    address: tuple[str, int],
    url: str,
    count: int,
    offset: int,
    body_bytes: int,
    timeout: float,
    token: str | None,
    as_json: bool,
) -> None:
    """Show the next messages of QUEUE in the order of their delivery. They stay in the queue, unchanged."""
    from mqcore import admin

    queue = options.text_of(address)
    found = admin.peek(url, queue, offset=offset, limit=count, body_bytes=body_bytes, token=token, timeout=timeout)
    if as_json:
        messages = [
            {
                **{name: value for name, value in output.plain(message).items() if name != "body"},
                **output.readable_body(message.body or b""),
            }
            for message in found
        ]
        output.document("mqcore.peek/1", {"queue": queue, "messages": messages})
        return
    if not found:
        output.talk(f"no message waits in {queue}")
    now = time.time()
    for message in found:
        waited = age(now - message.received_ms / 1000) if message.received_ms else "-"
        saved = "saved" if message.saved else "in memory"
        click.echo(
            f"{message.id or '-'}  {waited} old  {message.body_bytes} bytes  {message.attempts} deliveries  {saved}"
        )
        for name, value in message.headers:
            click.echo(f"    {name}: {value}")
        shown = (
            "(the body cannot be read)" if message.body is None else message.body.decode("utf-8", "backslashreplace")
        )
        click.echo(f"    {shown}")
