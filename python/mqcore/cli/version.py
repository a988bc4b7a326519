"""`mqcore version`."""

from __future__ import annotations

import click

from mqcore.cli import options, output

__all__ = ["version"]


@click.command()
@options.as_json
def version(as_json: bool) -> None:
    """Print the version; with --json also the versions of Python and of the platform."""
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
