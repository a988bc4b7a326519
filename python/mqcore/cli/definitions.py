"""`mqcore definitions`: exports, compares and imports channels, queues, routers and policies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqcore.cli import options, output, target
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mqcore.definitions import Change

__all__ = ["definitions"]

_F = TypeVar("_F", bound="Callable[..., object]")

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True)


def _admin(command: _F) -> _F:
    """Add `--admin`."""
    return click.option(
        "--admin",
        metavar="URL",
        help="URL of the broker's admin side, which has the policies. [default: mqcore --admin, that of --context, "
        "MQCORE_ADMIN, else that of the context]",
    )(command)


@click.group(cls=CommandGroup)
def definitions() -> None:
    """Export, compare and import channels, queues, routers and policies, without messages, users and tokens."""


@definitions.command(short_help="Print the definitions of a broker.")
@click.option("--to", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file instead.")
@_admin
@options.connection
def export(file: Path | None, admin: str | None, url: str | None, timeout: float) -> None:
    """Print the definitions of a broker as JSON (schema mqcore.definitions/1), without secrets.

    These are its channels, queues and routers, and its policies if the URL of the admin side is known.
    """
    from mqcore import definitions as api

    with options.connect(url, timeout) as client:
        found = api.export(client, **_side(url, admin))
    if "policies" not in found:
        output.talk("without policies; to include them, pass the URL of the admin side as --admin")
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if file is None:
        click.echo(text, nl=False)
        return
    file.write_text(text, encoding="utf-8")
    counts = ", ".join(f"{len(members)} {kind}" for kind, members in found.items() if kind != "schema")
    output.talk(f"wrote {counts} to {file}")


@definitions.command(short_help="Show what an import would change.")
@click.argument("file", type=_FILE)
@_admin
@options.connection
@options.as_json
def diff(file: Path, admin: str | None, url: str | None, timeout: float, as_json: bool) -> int:
    """Show what importing FILE (``-``: stdin) would change, and change nothing. Exit code 1 if anything would."""
    from mqcore import definitions as api

    with options.connect(url, timeout) as client:
        changes = api.plan(client, _read(file), **_side(url, admin))
    _show(changes, "mqcore.definitions.diff/1", as_json=as_json)
    return ExitCode.REFUSED if changes else ExitCode.DONE


@definitions.command("import", short_help="Create and change what differs.")
@click.argument("file", type=_FILE)
@_admin
@options.connection
@options.as_json
def import_(file: Path, admin: str | None, url: str | None, timeout: float, as_json: bool) -> None:
    """Make a broker have the definitions in FILE (``-``: stdin).

    Objects that have the wanted form stay unchanged, and no object is removed. After an error, importing again
    continues.
    """
    from mqcore import definitions as api

    with options.connect(url, timeout) as client:
        changes = api.apply(client, _read(file), **_side(url, admin))
    _show(changes, "mqcore.definitions.import/1", as_json=as_json)


def _side(url: str | None, admin: str | None) -> dict[str, str | None]:
    """The admin side of the broker, as the functions take it."""
    side = target.admin_beside(target.listener(url), admin)
    return {} if side is None else {"admin": side.url, "token": side.token}


def _read(file: Path) -> dict[str, Any]:
    name = "stdin" if str(file) == "-" else str(file)
    text = sys.stdin.read() if name == "stdin" else file.read_text(encoding="utf-8")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.UsageError(f"{name} is not an object, as 'mqcore definitions export' writes it")
    return found


def _show(changes: Iterable[Change], schema: str, *, as_json: bool) -> None:
    rows = [
        {
            "action": change.action,
            "subject": change.subject,
            "options": {name: {"now": now, "wanted": wanted} for name, (now, wanted) in change.options.items()},
        }
        for change in changes
    ]
    if as_json:
        output.document(schema, {"changes": rows})
        return
    if not rows:
        output.talk("no difference")
    for change in changes:
        click.echo(f"{change.action} {change.subject}")
        if change.action == "change":
            for name, (now, wanted) in change.options.items():
                click.echo(f"    {name}: {_text(now)} -> {_text(wanted)}")


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
