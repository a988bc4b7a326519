"""`mqcore version`."""

from __future__ import annotations

import click

from mqcore.cli import options, output

__all__ = ["version"]


@click.command(short_help="Say which version this is.")
@options.as_json
def version(as_json: bool) -> None:
    """Say which version this is; with --json also of what it runs on."""
    import mqcore

    if not as_json:
        click.echo(mqcore.__version__)
        return
    import platform

    output.document(
        "mqcore.version/1",
        {
            "version": mqcore.__version__,
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "platform": platform.platform(),
        },
    )
