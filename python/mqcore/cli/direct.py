"""`mqcore send` and `mqcore request`: direct messages to clients."""

from __future__ import annotations

import sys

import click

from mqcore.cli import options, output

__all__ = ["request", "send"]


@click.command(short_help="Send a message to a client.")
@click.argument("target")
@click.argument("body", default="")
@click.option(
    "--content-type", type=click.IntRange(0, 65535), default=0, show_default=True, help="Content type number."
)
@click.option(
    "--header", multiple=True, metavar="KEY:VALUE", callback=options.split_header, help="Message header. Repeatable."
)
@click.option("--one", is_flag=True, help="Send only to the oldest client of that name or type.")
@click.option("--confirm", is_flag=True, help="Wait for the receiver's acknowledgement.")
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
    """Send BODY to TARGET: a client id, @name:NAME or @type:TYPE."""
    with options.connect(url, timeout) as client:
        client.send(target, body.encode(), content_type=content_type, headers=header, one=one, confirm=confirm)
    if as_json:
        output.document("mqcore.send/1", {"target": target, "confirmed": confirm})
    else:
        output.talk(f"sent to {target}{', acknowledged' if confirm else ''}")


@click.command(short_help="Send a request to a client and print its response.")
@click.argument("target")
@click.argument("body", default="")
@click.option(
    "--content-type", type=click.IntRange(0, 65535), default=0, show_default=True, help="Content type number."
)
@click.option(
    "--header", multiple=True, metavar="KEY:VALUE", callback=options.split_header, help="Message header. Repeatable."
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
    """Send BODY as a request to TARGET (a client id, @name:NAME or @type:TYPE) and print the response."""
    with options.connect(url, timeout) as client:
        response = client.request(target, body.encode(), content_type=content_type, headers=header)
    if as_json:
        content = {"target": target, "source": response.source, **output.readable_body(response.raw)}
        output.document("mqcore.response/1", content)
    else:
        sys.stdout.buffer.write(response.raw + b"\n")
