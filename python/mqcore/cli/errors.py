"""`mqcore errors`: what the numbers stand for that clients were told."""

from __future__ import annotations

import click

from mqcore.cli import options, output

__all__ = ["errors"]

_COLUMNS = ("at", "id", "request", "client", "protocol", "why")


@click.command(short_help="The last requests that could not be done.")
@click.argument("error_id", metavar="[ID]", required=False)
@options.admin_side(timeout="15s")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many at most, the latest first."
)
@options.as_json
def errors(error_id: str | None, url: str, limit: int, timeout: float, token: str | None, as_json: bool) -> None:
    """List the last requests that a broker could not do, or the one whose client was told the number ID.

    They are those of protocols that tell their clients a number only, such as MQKS: 'm1 error 20260115...'.
    """
    from mqcore import admin
    from mqcore import errors as kinds

    found = admin.errors(url, limit=1000 if error_id is not None else limit, token=token, timeout=timeout)
    if error_id is not None:
        found = tuple(failed for failed in found if failed.id == error_id)
        if not found:
            raise kinds.NotFound(
                f"the broker knows no error {error_id}; it keeps the last 1,000 since it was started", 404
            )
    rows = [{"at": failed.at.isoformat(timespec="milliseconds"), **output.plain(failed)} for failed in found]
    output.rows("mqcore.errors/1", "errors", rows, _COLUMNS, as_json=as_json)
