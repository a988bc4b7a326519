"""`mqcore send` and `mqcore request`: messages from client to client."""

from __future__ import annotations

import sys

import click

from mqcore.cli import options, output

__all__ = ["request", "send"]


@click.command(short_help="Send a message to a client.")
@click.argument("target")
@click.argument("body", default="")
@click.option("--content-type", type=click.IntRange(0, 65535), default=0, show_default=True, help="What it is about.")
@click.option(
    "--header", multiple=True, metavar="KEY:VALUE", callback=options.split_header, help="A header; repeatable."
)
@click.option("--one", is_flag=True, help="Only the oldest client of that name or type.")
@click.option("--confirm", is_flag=True, help="Wait until the receiver acknowledges.")
@options.connection
@options.as_json
def send(
    target: str,
    body: str,
    content_type: int,
    header: dict[str, str],
    one: bool,
    confirm: bool,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Send BODY to TARGET: a client's id, @name:NAME or @type:KIND."""
    with options.connect(url, timeout) as client:
        client.send(target, body.encode(), content_type=content_type, headers=header, one=one, confirm=confirm)
    if as_json:
        output.document("mqcore.send/1", {"target": target, "confirmed": confirm})
    else:
        output.talk(f"sent to {target}{', acknowledged' if confirm else ''}")


@click.command(short_help="Ask a client and print its response.")
@click.argument("target")
@click.argument("body", default="")
@click.option("--content-type", type=click.IntRange(0, 65535), default=0, show_default=True, help="What it is about.")
@click.option(
    "--header", multiple=True, metavar="KEY:VALUE", callback=options.split_header, help="A header; repeatable."
)
@options.connection
@options.as_json
def request(
    target: str,
    body: str,
    content_type: int,
    header: dict[str, str],
    url: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Send BODY to TARGET (a client's id, @name:NAME or @type:KIND) and print the response."""
    with options.connect(url, timeout) as client:
        response = client.request(target, body.encode(), content_type=content_type, headers=header)
    if as_json:
        content = {"target": target, "source": response.source, **output.readable_body(response.raw)}
        output.document("mqcore.response/1", content)
    else:
        sys.stdout.buffer.write(response.raw + b"\n")
