"""`mqcore definitions`: exports, compares and imports channels, queues and routers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqcore.definitions import Change

__all__ = ["definitions"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True)


@click.group(cls=CommandGroup)
def definitions() -> None:
    """Export, compare and import channels, queues and routers. Messages, users and tokens are not part of them."""


@definitions.command(short_help="Print the definitions of a broker.")
@click.option("--to", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file instead.")
@options.connection
def export(target: Path | None, url: str | None, timeout: float) -> None:
    """Print the channels, queues and routers of a broker as JSON (schema mqcore.definitions/1), without secrets."""
    from mqcore import definitions as api

    with options.connect(url, timeout) as client:
        found = api.export(client)
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if target is None:
        click.echo(text, nl=False)
        return
    target.write_text(text, encoding="utf-8")
    counts = ", ".join(f"{len(found[kind])} {kind}" for kind in ("channels", "queues", "routers"))
    output.talk(f"wrote {counts} to {target}")


@definitions.command(short_help="Show what an import would change.")
@click.argument("file", type=_FILE)
@options.connection
@options.as_json
def diff(file: Path, url: str | None, timeout: float, as_json: bool) -> int:
    """Show what importing FILE (``-``: stdin) would change, and change nothing. Exit code 1 if anything would."""
    from mqcore import definitions as api

    with options.connect(url, timeout) as client:
        changes = api.plan(client, _read(file))
    _show(changes, "mqcore.definitions.diff/1", as_json=as_json)
    return ExitCode.REFUSED if changes else ExitCode.DONE


@definitions.command("import", short_help="Create and change what differs.")
@click.argument("file", type=_FILE)
@options.connection
@options.as_json
def import_(file: Path, url: str | None, timeout: float, as_json: bool) -> None:
    """Make a broker have the definitions in FILE (``-``: stdin).

    Objects that have the wanted form stay unchanged, and no object is removed. After an error, importing again
    continues.
    """
    from mqcore import definitions as api

    with options.connect(url, timeout) as client:
        changes = api.apply(client, _read(file))
    _show(changes, "mqcore.definitions.import/1", as_json=as_json)


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
