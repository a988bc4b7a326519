"""`mqcore docs`: describes an app for people and programs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mqcore.cli import output
from mqcore.cli.group import CommandGroup

__all__ = ["docs"]


@click.group(cls=CommandGroup)
def docs() -> None:
    """Describe the messages of an app."""


@docs.command(short_help="Print the AsyncAPI document of an app.")
@click.argument("app", metavar="MODULE:ATTR")
@click.option("--title", metavar="TEXT", help="Title of the document. [default: the name of the app]")
@click.option("--app-version", metavar="TEXT", default="1.0.0", show_default=True, help="Version of the app.")
@click.option(
    "--output", "path", type=click.Path(dir_okay=False, path_type=Path), help="File to write. [default: stdout]"
)
def asyncapi(app: str, title: str | None, app_version: str, path: Path | None) -> None:
    """Print the AsyncAPI 3.0 document of MODULE:ATTR, an mqcore.App, as JSON. It needs no broker."""
    from mqcore.cli.run import load

    text = json.dumps(load(app).asyncapi(title=title, version=app_version), indent=2, ensure_ascii=False)
    if path is None:
        click.echo(text)
    else:
        path.write_text(text + "\n", encoding="utf-8")
        output.talk(f"wrote {path}")
