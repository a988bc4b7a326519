"""`mqcore backup` and `mqcore restore`: copy a broker's saved state, and create a data directory from the copy."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from mqcore.cli import options, output, target
from mqcore.cli.exit_code import ExitCode

__all__ = ["backup", "restore"]


@click.command()
@click.option(
    "--to",
    metavar="PLACE",
    required=True,
    help="Destination: new directory, FILE.tar, FILE.tar.zst, or a URL such as s3://BUCKET/backups/.",
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Delete older backups at a URL that ends with /, except this number.",
)
@click.option("--url", metavar="ADMIN", help="URL of the broker's admin API, for example http://127.0.0.1:2627.")
@click.option("--data-dir", metavar="DIR", type=click.Path(path_type=Path), help="Data directory of the broker.")
@click.option("--timeout", type=options.DURATION, default="60s", show_default=True, help="Time to wait for more data.")
@click.option(
    "--token",
    help="Access token with the right to administer the broker. [env: MQCORE_TOKEN]",
)
@options.as_json
def backup(
    to: str,
    keep: int | None,
    url: str | None,
    data_dir: Path | None,
    token: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Copy the saved state of a running broker into a new directory, FILE.tar or FILE.tar.zst.

    This state is messages, definitions, limits, schedules and job results. Users and tokens, the audit log, the archive
    and messages that wait for upstream brokers are not copied.

    PLACE may also be a URL of object storage: s3://BUCKET/NAME.tar.zst, or a URL that ends with / for a name by time.
    Credentials come from the environment variables of the vendors, such as AWS_ACCESS_KEY_ID.

    The backup contains every message confirmed as saved before it started. If no broker runs on DIR, the command
    reads DIR itself.
    """
    from mqcore.backup import backup as make

    if url is not None and data_dir is not None:
        raise click.UsageError("give either --url ADMIN or --data-dir DIR")
    found = None if data_dir is not None else target.admin_side(url)
    if found is None and data_dir is None:
        raise click.UsageError("give either --url ADMIN or --data-dir DIR")
    url = None if found is None else found.url
    token = token or (target.token() if found is None else found.token)
    with output.growing("backup", in_bytes=True) as show:
        made = make(to, url=url, data_dir=data_dir, token=token, timeout=timeout, keep=keep, progress=show)
    messages = "" if made.messages is None else f"{made.messages} messages, "
    message = (
        f"{made.path}: {messages}{made.bytes} bytes in {made.files} files, as of {made.created:%Y-%m-%d %H:%M:%S} UTC"
    )
    content = {**output.plain(made), "created": made.created.isoformat(timespec="milliseconds")}
    output.done("mqcore.backup.made/1", message, content, as_json=as_json)


@click.command()
@click.argument("source", metavar="FROM")
@click.option(
    "--as-of",
    metavar="TIME",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"]),
    help="With a URL that ends with /: the newest backup of this time or before. Local time without a time zone.",
)
@click.option("--data-dir", metavar="DIR", type=click.Path(path_type=Path), help="Data directory to create.")
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="With a URL that ends with /: list the moments that can be restored.",
)
@options.as_json
def restore(source: str, as_of: datetime | None, data_dir: Path | None, only_list: bool, as_json: bool) -> int:
    """Create the data directory DIR from the backup FROM, verify it, and print a summary.

    FROM may also be a URL of object storage. If it ends with /, the newest backup or restore point there is restored.

    If the broker's files were damaged when the backup was made, the command restores everything readable and exits
    with code 6.
    """
    from mqcore.backup import restore as restore_backup

    if only_list:
        if data_dir is not None or as_of is not None:
            raise click.UsageError("--list restores nothing: leave --data-dir and --as-of away")
        return _list(source, as_json=as_json)
    if data_dir is None:
        raise click.UsageError("--data-dir DIR is missing: the directory to create")
    with output.growing("restore", in_bytes=True) as show:
        done = restore_backup(source, data_dir, as_of=as_of, progress=show)
    content = {
        **output.plain(done),
        "created": done.created.isoformat(timespec="milliseconds"),
        "damaged": done.is_damaged,
    }
    message = (
        f"{done.data_dir}: {done.messages} messages and {done.definitions} definitions in {done.shards} shards, "
        f"{done.limits} limits, {done.schedules} schedules, "
        f"as of {done.created:%Y-%m-%d %H:%M:%S} UTC"
    )
    output.done("mqcore.restore/1", message, content, as_json=as_json)
    for finding in done.findings:
        if finding.is_damage:
            output.talk(f"{finding.journal}: {finding.text}")
    return ExitCode.DAMAGED if done.is_damaged else ExitCode.DONE


def _list(url: str, *, as_json: bool) -> int:
    """Print which moments can be restored."""
    from mqcore.backup import moments

    found = moments(url)
    lines = [f"backup of {time:%Y-%m-%d %H:%M:%S} UTC" for time in found.backups]
    if found.oldest is not None and found.newest is not None:
        lines.append(
            f"{found.restore_points} restore points from {found.oldest:%Y-%m-%d %H:%M:%S} "
            f"to {found.newest:%Y-%m-%d %H:%M:%S} UTC; the newest has {found.bytes} bytes"
        )
    content = {
        "backups": [time.isoformat(timespec="milliseconds") for time in found.backups],
        "restore_points": found.restore_points,
        "oldest": None if found.oldest is None else found.oldest.isoformat(timespec="milliseconds"),
        "newest": None if found.newest is None else found.newest.isoformat(timespec="milliseconds"),
        "bytes": found.bytes,
    }
    output.done("mqcore.restore.moments/1", "\n".join(lines) or f"no backups at {url}", content, as_json=as_json)
    return ExitCode.DONE if lines else ExitCode.NOT_FOUND
