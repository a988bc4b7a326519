"""`mqcore errors`: shows recent request errors, including the numbers that MQKS clients receive."""

from __future__ import annotations

import click

from mqcore.cli import options, output

__all__ = ["errors"]

_COLUMNS = ("at", "id", "request", "client", "protocol", "why")


@click.command()
@click.argument("error_id", metavar="[ID]", required=False)
@options.admin_side(timeout="15s")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number of errors.")
@options.as_json
def errors(error_id: str | None, url: str, limit: int, timeout: float, token: str | None, as_json: bool) -> None:
    """List recent request errors, newest first, or show the error with the number ID.

    The broker records errors of protocols in which the client receives only a number, such as MQKS:
    'm1 error 20260115...'.
    """
    from mqcore import admin
    from mqcore import errors as kinds

    found = admin.errors(url, limit=1000 if error_id is not None else limit, token=token, timeout=timeout)
    if error_id is not None:
        found = tuple(failed for failed in found if failed.id == error_id)
        if not found:
            raise kinds.NotFound(
                f"error {error_id} not found; the broker keeps the last 1,000 errors since its start", 404
            )
    rows = [{"at": failed.at.isoformat(timespec="milliseconds"), **output.plain(failed)} for failed in found]
    output.rows("mqcore.errors/1", "errors", rows, _COLUMNS, as_json=as_json)
