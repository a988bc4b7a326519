"""`mqcore send`, `mqcore request` and `mqcore receive`: direct messages to and from clients."""

from __future__ import annotations

import sys

import click

from mqcore.cli import options, output

__all__ = ["receive", "request", "send"]


@click.command()
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
    """Send BODY to TARGET: a client id, @name:NAME, @type:TYPE, @router:NAME or @topic:NAME.

    Without --confirm the command does not know whether a client received the message. Sending to a topic fails if it
    has neither subscribers nor queues.
    """
    with options.connect(url, timeout) as client:
        client.send(target, body.encode(), content_type=content_type, headers=header, one=one, confirm=confirm)
    if as_json:
        output.document("mqcore.send/1", {"target": target, "confirmed": confirm})
    else:
        output.talk(f"sent to {target}{', acknowledged' if confirm else ''}")


@click.command()
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


@click.command()
@click.option("--name", default="mqcore-cli", show_default=True, help="Name of this client, for @name:NAME.")
@click.option("--type", "kind", default="mqcore-cli", show_default=True, help="Type of this client, for @type:TYPE.")
@click.option("--id", "client_id", metavar="ID", help="Id of this client. [default: chosen by the broker]")
@click.option("--count", type=click.IntRange(min=1), help="Exit after this many messages. [default: never]")
@click.option("--idle", type=options.DURATION, help="Exit after this long without a message. [default: never]")
@click.option("--reply", metavar="BODY", default="", help="Response to each request. [default: empty]")
@click.option("--status", type=click.IntRange(0, 65535), default=0, show_default=True, help="Status of the responses.")
@click.option("--nack", metavar="REASON", help="Reject messages with this reason instead of acknowledging them.")
@options.connection
@options.as_json
def receive(
    name: str,
    kind: str,
    client_id: str | None,
    count: int | None,
    idle: float | None,
    reply: str,
    status: int,
    nack: str | None,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Print each direct message to this client. Respond to requests with --reply, and acknowledge messages whose sender
    waits for that.
    """
    seen = 0
    with (
        options.connect(url, timeout, name=name, kind=kind, client_id=client_id) as client,
        client.requests(idle_timeout=idle) as requests,
    ):
        output.talk(f"receiving as {client.id}")
        for message in requests:
            if as_json:
                content = {
                    "id": message.id,
                    "source": message.source,
                    "content_type": message.content_type,
                    "headers": dict(message.headers.items()),
                    "wants_response": message.wants_response,
                    **output.readable_body(message.raw),
                }
                output.stream("mqcore.direct/1", content)
            else:
                sys.stdout.buffer.write(message.raw + b"\n")
                sys.stdout.buffer.flush()
            if message.wants_response:
                message.respond(reply.encode(), status=status)
            elif message.wants_acknowledge and nack is not None:
                message.nack(nack)
            elif message.wants_acknowledge:
                message.ack()
            seen += 1
            if seen == count:
                break
