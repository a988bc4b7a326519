"""`mqcore router`: routers and their bindings, looked at, changed and tried out."""

from __future__ import annotations

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.program import CommandGroup

__all__ = ["router"]

_BINDING_COLUMNS = ("name", "target", "priority", "interaction", "content_type", "method")
_METHODS = click.Choice(["distribute", "round-robin", "only-first"])


@click.group(cls=CommandGroup, short_help="Routers: ls, show, create, rm, bind, unbind, test.")
def router() -> None:
    """Routers, whose bindings say which queues, clients and topics get a message."""


@router.command(short_help="List routers.")
@click.argument("pattern", required=False)
@options.connection
@options.as_json
def ls(pattern: str | None, url: str | None, timeout: float, as_json: bool) -> None:
    """List the routers whose name matches PATTERN: x equals, x* begins with, *x ends with, *x* contains."""
    with options.connect(url, timeout) as client:
        found = [output.plain(information) for information in client.routers(pattern)]
    output.rows("mqcore.router.ls/1", "routers", found, ("name", "method", "enabled"), as_json=as_json)


@router.command(short_help="List the bindings of a router.")
@click.argument("name")
@options.connection
@options.as_json
def show(name: str, url: str | None, timeout: float, as_json: bool) -> None:
    """List the bindings of the router NAME, the highest priority first."""
    with options.connect(url, timeout) as client:
        found = [output.plain(binding) for binding in client.bindings(name)]
    output.rows("mqcore.router.show/1", "bindings", found, _BINDING_COLUMNS, as_json=as_json)


@router.command(short_help="Create a router.")
@click.argument("name")
@click.option("--method", type=_METHODS, default="distribute", show_default=True, help="Which bindings get a message.")
@options.connection
@options.as_json
def create(name: str, method: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Create the router NAME; fine if there is one of this method."""
    with options.connect(url, timeout) as client:
        client.create_router(name, method)
    output.done("mqcore.router.create/1", f"created {name}", {"router": name, "method": method}, as_json=as_json)


@router.command(short_help="Remove a router.")
@click.argument("name")
@options.connection
@options.as_json
def rm(name: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Remove the router NAME with its bindings. No message is lost: a router holds none."""
    with options.connect(url, timeout) as client:
        client.remove_router(name)
    output.done("mqcore.router.rm/1", f"removed {name}", {"router": name}, as_json=as_json)


@router.command(short_help="Add a binding to a router.")
@click.argument("name")
@click.argument("target")
@click.option("--name", "binding", help="The binding's name. [default: TARGET]")
@click.option("--priority", type=int, default=0, show_default=True, help="Higher is sooner.")
@click.option(
    "--interaction",
    type=click.Choice(["none", "acknowledge", "response"]),
    default="none",
    show_default=True,
    help="What the receiver is asked for.",
)
@click.option("--content-type", type=click.IntRange(0, 65535), help="What the message's content type becomes.")
@click.option(
    "--among", type=_METHODS, default="distribute", show_default=True, help="Which clients of a name or type."
)
@options.connection
@options.as_json
def bind(
    name: str,
    target: str,
    binding: str | None,
    priority: int,
    interaction: str,
    content_type: int | None,
    among: str,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Bind the router NAME to TARGET: orders/1001, @topic:NAME, @client:ID, @name:NAME, @type:TYPE or @handler:KEY."""
    from mqcore.config import Binding, Interaction, RouteMethod

    added = Binding(
        target,
        binding,
        priority=priority,
        interaction=Interaction(interaction),
        content_type=content_type,
        method=RouteMethod(among),
    )
    with options.connect(url, timeout) as client:
        client.bind(name, added)
    content = {"router": name, "binding": binding or target}
    output.done("mqcore.router.bind/1", f"bound {name} to {target}", content, as_json=as_json)


@router.command(short_help="Remove a binding of a router.")
@click.argument("name")
@click.argument("binding")
@options.connection
@options.as_json
def unbind(name: str, binding: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Remove BINDING, by its name, from the router NAME."""
    with options.connect(url, timeout) as client:
        client.unbind(name, binding)
    content = {"router": name, "binding": binding}
    output.done("mqcore.router.unbind/1", f"removed {binding} from {name}", content, as_json=as_json)


@router.command(short_help="Say where a message would go, and why.")
@click.argument("name")
@click.option("--message", default="", help="The body.")
@click.option(
    "--header", "headers", multiple=True, callback=options.split_header, metavar="KEY:VALUE", help="A header."
)
@options.connection
@options.as_json
def test(name: str, message: str, headers: dict[str, str], url: str | None, timeout: float, as_json: bool) -> int:
    """Say where the router NAME would send a message, and why. Nothing is sent. Exit code 1: nobody would take it."""
    with options.connect(url, timeout) as client:
        told = client.test_router(name, message.encode(), headers=headers)
    if as_json:
        output.document("mqcore.router.test/1", {"router": name, **output.plain(told)})
    else:
        for step in told.steps:
            binding = f" by binding {step.binding}" if step.binding and step.binding != step.target else ""
            click.echo(f"{'takes it' if step.takes else 'does not'}\t{step.target}{binding}: {step.why}")
        for binding_name in told.skipped:
            click.echo(f"not tried\t{binding_name}: another binding takes it first")
        if told.refusal is not None:
            output.talk(f"nobody would take it: {told.refusal}")
    return ExitCode.DONE if told.taken else ExitCode.REFUSED
