"""`mqcore backup` and `mqcore restore`: everything that is saved, copied and brought back."""

from __future__ import annotations

from pathlib import Path

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode

__all__ = ["backup", "restore"]


@click.command(short_help="Copy everything that a running broker has saved.")
@click.option("--to", type=click.Path(path_type=Path), required=True, help="A new directory, FILE.tar or FILE.tar.zst.")
@click.option("--url", metavar="ADMIN", help="The admin side of the broker, such as http://127.0.0.1:2627.")
@click.option("--data-dir", metavar="DIR", type=click.Path(path_type=Path), help="The directory that it runs on.")
@click.option(
    "--timeout", type=options.DURATION, default="60s", show_default=True, help="How long it may send nothing."
)
@click.option("--token", envvar="MQCORE_TOKEN", help="Of one who may administer it. [env: MQCORE_TOKEN]")
@options.as_json
def backup(to: Path, url: str | None, data_dir: Path | None, token: str | None, timeout: float, as_json: bool) -> None:
    """Copy everything that a broker has saved, while it works, into a new directory, FILE.tar or FILE.tar.zst.

    What was confirmed as saved before this began is in it. If no broker runs on DIR, DIR is copied as it is.
    """
    from mqcore.backup import backup as make

    if url is None and data_dir is None:
        url = options.root_admin_url()
    if (url is None) == (data_dir is None):
        raise click.UsageError("name the broker: --url ADMIN or --data-dir DIR, one of them")
    with output.growing("backup", octets=True) as show:
        made = make(to, url=url, data_dir=data_dir, token=token, timeout=timeout, progress=show)
    messages = "" if made.messages is None else f"{made.messages} messages, "
    said = (
        f"{made.path}: {messages}{made.bytes} bytes in {made.files} files, as of {made.created:%Y-%m-%d %H:%M:%S} UTC"
    )
    content = {**output.plain(made), "created": made.created.isoformat(timespec="milliseconds")}
    output.done("mqcore.backup.made/1", said, content, as_json=as_json)


@click.command(short_help="Make a data directory from a backup.")
@click.argument("source", metavar="FROM", type=click.Path(path_type=Path))
@click.option("--data-dir", metavar="DIR", type=click.Path(path_type=Path), required=True, help="A new directory.")
@options.as_json
def restore(source: Path, data_dir: Path, as_json: bool) -> int:
    """Make the data directory DIR from a backup, verified, and say what came back. Start a broker on it then.

    If the broker's files were damaged when the backup was made, everything readable comes back, and the code is 6.
    """
    from mqcore.backup import restore as bring_back

    with output.growing("restore", octets=True) as show:
        done = bring_back(source, data_dir, progress=show)
    content = {
        **output.plain(done),
        "created": done.created.isoformat(timespec="milliseconds"),
        "damaged": done.is_damaged,
    }
    said = (
        f"{done.data_dir}: {done.messages} messages and {done.definitions} definitions in {done.shards} shards, "
        f"{done.limits} limits, {done.schedules} schedules, "
        f"as of {done.created:%Y-%m-%d %H:%M:%S} UTC"
    )
    output.done("mqcore.restore/1", said, content, as_json=as_json)
    for finding in done.findings:
        if finding.is_damage:
            output.talk(f"{finding.journal}: {finding.text}")
    return ExitCode.DAMAGED if done.is_damaged else ExitCode.DONE
