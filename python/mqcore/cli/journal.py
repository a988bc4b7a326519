"""`mqcore journal`: lists, verifies, exports, replays, compacts and repairs the data directory of a stopped broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqcore.cli import options, output
from mqcore.cli.acceptance import accept_loss
from mqcore.cli.compaction import compact
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.export import export
from mqcore.cli.group import CommandGroup
from mqcore.cli.reading import reading
from mqcore.cli.replay import replay

if TYPE_CHECKING:
    from mqcore.journal import Listing

__all__ = ["journal"]

_COLUMNS = ("journal", "number", "records", "live", "bytes", "state")
_TOTALS = ("shards", "records", "live", "bytes", "definitions", "limits", "schedules", "runs", "forwards")
_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))


@click.group(cls=CommandGroup)
def journal() -> None:
    """Work with the data directory DIR of a stopped broker. Only 'compact' and 'accept-loss' change it.

    The commands exit with code 7 while a broker runs on DIR.
    """


journal.add_command(export)
journal.add_command(replay)
journal.add_command(compact)
journal.add_command(accept_loss)


@journal.command(short_help="List the segments.")
@_DIRECTORY
@options.as_json
def ls(directory: Path, as_json: bool) -> None:
    """List the segments of DIR with their records, live records, bytes and state: sealed, open or damaged.

    The segments of limits, of messages for upstream brokers and of schedules follow those of the shards.
    """
    from mqcore.journal import segments

    with reading("read", directory) as progress:
        listing = segments(directory, progress=progress)
    if as_json:
        output.document("mqcore.journal.ls/1", {"segments": _rows(listing), **_totals(listing)})
    else:
        output.rows("mqcore.journal.ls/1", "segments", _rows(listing), _COLUMNS, as_json=False)
        output.talk(_in_words(listing))


@journal.command(short_help="Verify all checksums and report damage.")
@_DIRECTORY
@options.as_json
def verify(directory: Path, as_json: bool) -> int:
    """Verify all checksums in DIR and explain each finding. Exits with code 6 if DIR is damaged.

    An incomplete record at the end of a journal is not damage: a crash leaves it, and the broker never confirmed it.
    """
    from mqcore.journal import verify as verify_directory

    with reading("verify", directory) as progress:
        verified = verify_directory(directory, progress=progress)
    damaged = verified.is_damaged
    if as_json:
        findings = [{**output.plain(finding), "damage": finding.is_damage} for finding in verified.findings]
        listing = verified.listing
        content = {
            "damaged": damaged,
            "losses": verified.losses,
            "findings": findings,
            "segments": _rows(listing),
            **_totals(listing),
        }
        output.document("mqcore.journal.verify/1", content)
    else:
        for finding in verified.findings:
            click.echo(f"{finding.journal}: {finding.text}\n    {finding.meaning}")
        verdict = "DAMAGED: confirmed messages may be lost" if damaged else "intact: no saved message is lost"
        click.echo(f"{_in_words(verified.listing)}; {verdict}")
        if verified.losses:
            click.echo(
                f"{verified.losses} losses: their shards take no durable messages until you run: "
                f"mqcore journal accept-loss --data-dir {directory}"
            )
    return ExitCode.DAMAGED if damaged else ExitCode.DONE


def _rows(listing: Listing) -> list[dict[str, Any]]:
    return [output.plain(segment) for segment in listing.segments]


def _totals(listing: Listing) -> dict[str, int]:
    return {name: getattr(listing, name) for name in _TOTALS}


def _in_words(listing: Listing) -> str:
    words = (
        f"{len(listing.segments)} segments of {listing.shards} shards, {listing.records} records, "
        f"{listing.live} live, {listing.bytes} bytes, {listing.definitions} definitions"
    )
    beside = (
        ("limits", listing.limits),
        ("schedules", listing.schedules),
        ("pending runs", listing.runs),
        ("messages for upstream brokers", listing.forwards),
    )
    return ", ".join([words, *(f"{count} {name}" for name, count in beside if count)])
