"""`mqcore drain`: stops a broker gracefully."""

from __future__ import annotations

import click

from mqcore.cli import options, output
from mqcore.cli.confirmation import confirm

__all__ = ["drain"]


@click.command(short_help="Stop a broker gracefully.")
@click.option("--within", type=options.DURATION, default="30s", show_default=True, help="Maximum time to finish.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.admin_side(timeout="15s")
@options.as_json
def drain(within: float, yes: bool, url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """Stop the broker as SIGTERM does: it accepts nothing new, finishes, saves, and ends. Needs a token."""
    from mqcore import admin

    confirm(f"this stops the broker at {url}", "drain", yes=yes)
    admin.drain(url, within, token=token, timeout=timeout)
    output.done("mqcore.drain/1", f"{url} drains for up to {within:g} s", {"within": within}, as_json=as_json)
