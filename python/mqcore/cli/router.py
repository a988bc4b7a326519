"""`mqcore router`: lists, shows, creates, removes and tests routers and their bindings."""

from __future__ import annotations

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.group import CommandGroup

__all__ = ["router"]

_BINDING_COLUMNS = ("name", "target", "priority", "interaction", "content_type", "method")
_METHODS = click.Choice(["distribute", "round-robin", "only-first"])


@click.group(cls=CommandGroup)
def router() -> None:
    """Manage routers, whose bindings select the queues, clients and topics that receive a message."""


@router.command(short_help="List routers.")
@click.argument("pattern", required=False)
@options.connection
@options.as_json
def ls(pattern: str | None, url: str | None, timeout: float, as_json: bool) -> None:
    """List routers, optionally those whose names match PATTERN: NAME, PREFIX*, *SUFFIX or *PART*."""
    with options.connect(url, timeout) as client:
        found = [output.plain(information) for information in client.routers(pattern)]
    output.rows("mqcore.router.ls/1", "routers", found, ("name", "method", "enabled"), as_json=as_json)


@router.command(short_help="List the bindings of a router.")
@click.argument("name")
@options.connection
@options.as_json
def show(name: str, url: str | None, timeout: float, as_json: bool) -> None:
    """List the bindings of the router NAME, highest priority first."""
    with options.connect(url, timeout) as client:
        found = [output.plain(binding) for binding in client.bindings(name)]
    output.rows("mqcore.router.show/1", "bindings", found, _BINDING_COLUMNS, as_json=as_json)


@router.command(short_help="Create a router.")
@click.argument("name")
@click.option(
    "--method",
    type=_METHODS,
    default="distribute",
    show_default=True,
    help="Bindings that receive a message: all (distribute), one in turn (round-robin), or the first that accepts it.",
)
@options.connection
@options.as_json
def create(name: str, method: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Create the router NAME. Succeeds if it already exists with the same method."""
    with options.connect(url, timeout) as client:
        client.create_router(name, method)
    output.done("mqcore.router.create/1", f"created {name}", {"router": name, "method": method}, as_json=as_json)


@router.command(short_help="Remove a router.")
@click.argument("name")
@options.connection
@options.as_json
def rm(name: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Remove the router NAME and its bindings. Routers store no messages, so none is lost."""
    from mqcore import errors

    with options.connect(url, timeout) as client:
        try:
            client.bindings(name)
        except errors.NotFound as error:
            raise errors.NotFound(
                f"cannot remove router {name}: it does not exist; list routers with 'mqcore router ls'",
                error.code,
                name,
            ) from None
        client.remove_router(name)
    output.done("mqcore.router.rm/1", f"removed {name}", {"router": name}, as_json=as_json)


@router.command(short_help="Let a router take messages again.")
@click.argument("name")
@options.connection
@options.as_json
def enable(name: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Let the router NAME take messages again."""
    with options.connect(url, timeout) as client:
        client.enable_router(name)
    output.done("mqcore.router.enable/1", f"enabled {name}", {"router": name, "enabled": True}, as_json=as_json)


@router.command(short_help="Let a router take no messages.")
@click.argument("name")
@options.connection
@options.as_json
def disable(name: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Let the router NAME take no messages. Publishing to it fails until it is enabled."""
    with options.connect(url, timeout) as client:
        client.disable_router(name)
    output.done("mqcore.router.disable/1", f"disabled {name}", {"router": name, "enabled": False}, as_json=as_json)


@router.command(short_help="Add a binding to a router.")
@click.argument("name")
@click.argument("target")
@click.option("--name", "binding", help="Name of the binding. [default: TARGET]")
@click.option("--priority", type=int, default=0, show_default=True, help="Priority; higher ones are tried first.")
@click.option(
    "--interaction",
    type=click.Choice(["none", "acknowledge", "response"]),
    default="none",
    show_default=True,
    help="Answer required from the receiver.",
)
@click.option(
    "--content-type", type=click.IntRange(0, 65535), help="New content type of the message. [default: unchanged]"
)
@click.option(
    "--among",
    type=_METHODS,
    default="distribute",
    show_default=True,
    help="Clients of a @name or @type target that receive a message.",
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
    """Bind the router NAME to TARGET: CHANNEL/ID, @topic:NAME, @client:ID, @name:NAME, @type:TYPE or @handler:KEY."""
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


@router.command(short_help="Remove a binding from a router.")
@click.argument("name")
@click.argument("binding")
@options.connection
@options.as_json
def unbind(name: str, binding: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Remove the binding named BINDING from the router NAME."""
    with options.connect(url, timeout) as client:
        client.unbind(name, binding)
    content = {"router": name, "binding": binding}
    output.done("mqcore.router.unbind/1", f"removed {binding} from {name}", content, as_json=as_json)


@router.command(short_help="Show where a message would go, and why.")
@click.argument("name")
@click.option("--message", default="", help="Body of the message.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=options.split_header,
    metavar="KEY:VALUE",
    help="Message header. Repeatable.",
)
@options.connection
@options.as_json
def test(name: str, message: str, headers: dict[str, str], url: str | None, timeout: float, as_json: bool) -> int:
    """Show where the router NAME would send a message, and why. Sends nothing.

    Exits with code 1 if no target would accept the message.
    """
    with options.connect(url, timeout) as client:
        result = client.test_router(name, message.encode(), headers=headers)
    if as_json:
        output.document("mqcore.router.test/1", {"router": name, **output.plain(result)})
    else:
        for step in result.steps:
            binding = f" by binding {step.binding}" if step.binding and step.binding != step.target else ""
            click.echo(f"{'accepts' if step.takes else 'rejects'}\t{step.target}{binding}: {step.why}")
        for binding_name in result.skipped:
            click.echo(f"skipped\t{binding_name}: another binding accepts the message first")
        if result.refusal is not None:
            output.talk(f"no target accepts the message: {result.refusal}")
    return ExitCode.DONE if result.taken else ExitCode.REFUSED
