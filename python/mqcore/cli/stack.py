"""`mqcore stack`: shows what a delivery handler executes."""

from __future__ import annotations

import click

from mqcore.cli import options, output

__all__ = ["stack"]


@click.command()
@click.argument("handler", metavar="HANDLER")
@options.admin_side(timeout="15s")
@options.as_json
def stack(handler: str, url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """Show what the delivery handler with the key HANDLER executes at this moment, the innermost call last."""
    from mqcore import admin

    found = admin.handler_stack(url, handler, token=token, timeout=timeout)
    if as_json:
        output.document("mqcore.stack/1", output.plain(found))
        return
    for thread in found.threads:
        for frame in thread.frames:
            click.echo(f"{thread.thread}: {frame.file}:{frame.line}, in {frame.function}")
            if frame.code:
                click.echo(f"    {frame.code}")
    output.talk(f"{handler}: {_STATES.get(found.state, found.state)}")


_STATES = {
    "idle": "idle; it runs no Python code",
    "running": "running",
    "gil-held": "unknown, because other code has held the GIL for a second",
}
