"""`mqcore journal`: the data directory of a stopped broker, looked at, checked, and given out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqcore.cli import options, output
from mqcore.cli.compaction import compact
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.export import export
from mqcore.cli.program import CommandGroup
from mqcore.cli.reading import reading
from mqcore.cli.replay import replay

if TYPE_CHECKING:
    from mqcore.journal import Listing

__all__ = ["journal"]

_COLUMNS = ("journal", "number", "records", "live", "bytes", "state")
_TOTALS = ("shards", "records", "live", "bytes", "definitions", "limits", "schedules", "runs")
_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))


@click.group(cls=CommandGroup, short_help="A stopped broker's files: ls, verify, export, replay, compact.")
def journal() -> None:
    """The data directory DIR of a stopped broker. Only compact changes it. While a broker runs on it: code 7."""


journal.add_command(export)
journal.add_command(replay)
journal.add_command(compact)


@journal.command(short_help="List the segments.")
@_DIRECTORY
@options.as_json
def ls(directory: Path, as_json: bool) -> None:
    """List the segments of DIR: records, those that are live, bytes, and whether they are sealed, open or damaged.

    Those of limits and of schedules stand behind those of the shards.
    """
    from mqcore.journal import segments

    with reading("read", directory) as progress:
        listing = segments(directory, progress=progress)
    if as_json:
        output.document("mqcore.journal.ls/1", {"segments": _rows(listing), **_totals(listing)})
    else:
        output.rows("mqcore.journal.ls/1", "segments", _rows(listing), _COLUMNS, as_json=False)
        output.talk(_in_words(listing))


@journal.command(short_help="Read everything and say what is wrong.")
@_DIRECTORY
@options.as_json
def verify(directory: Path, as_json: bool) -> int:
    """Read everything in DIR with its checksums, and say what each finding means. Leaves with 6 if there is damage.

    An end that a crash left torn is no damage: nothing in it was ever confirmed.
    """
    from mqcore.journal import verify as read_all

    with reading("verify", directory) as progress:
        seen = read_all(directory, progress=progress)
    damaged = seen.is_damaged
    if as_json:
        findings = [{**output.plain(finding), "damage": finding.is_damage} for finding in seen.findings]
        content = {"damaged": damaged, "findings": findings, "segments": _rows(seen.listing), **_totals(seen.listing)}
        output.document("mqcore.journal.verify/1", content)
    else:
        for finding in seen.findings:
            click.echo(f"{finding.journal}: {finding.text}\n    {finding.meaning}")
        verdict = "DAMAGED: what was confirmed as saved may be lost" if damaged else "whole: nothing saved is lost"
        click.echo(f"{_in_words(seen.listing)}; {verdict}")
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
    beside = (("limits", listing.limits), ("schedules", listing.schedules), ("runs on their way", listing.runs))
    return ", ".join([words, *(f"{count} {name}" for name, count in beside if count)])
