"""`mqcore journal`: the data directory of a stopped broker, looked at, checked, and given out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from mqcore.cli import options, output
from mqcore.cli.compaction import compact
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.program import CommandGroup
from mqcore.cli.reading import reading
from mqcore.cli.replay import replay

if TYPE_CHECKING:
    from mqcore.journal import Listing, StoredMessage

__all__ = ["journal"]

_COLUMNS = ("shard", "number", "records", "live", "bytes", "state")
_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))


@click.group(cls=CommandGroup, short_help="A stopped broker's files: ls, verify, export, replay, compact.")
def journal() -> None:
    """The data directory DIR of a stopped broker. Only compact changes it. While a broker runs on it: code 7."""


journal.add_command(replay)
journal.add_command(compact)


@journal.command(short_help="List the segments.")
@_DIRECTORY
@options.as_json
def ls(directory: Path, as_json: bool) -> None:
    """List the segments of DIR: records, those that are live, bytes, and whether they are sealed, open or damaged."""
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
            click.echo(f"shard {finding.shard}: {finding.text}\n    {finding.meaning}")
        verdict = "DAMAGED: what was confirmed as saved may be lost" if damaged else "whole: nothing saved is lost"
        click.echo(f"{_in_words(seen.listing)}; {verdict}")
    return ExitCode.DAMAGED if damaged else ExitCode.DONE


@journal.command(short_help="Print the saved messages of a queue.")
@_DIRECTORY
@click.option("--queue", type=options.QUEUE, required=True, help="Of which queue.")
@click.option("--format", type=click.Choice(["jsonl"]), default="jsonl", show_default=True, help="How.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Where to. [default: stdout]")
def export(directory: Path, queue: tuple[str, int], format: str, out: Path | None) -> int:  # noqa: A002
    """Print what is saved in a queue of DIR and not settled, in the queue's order, one JSON object a line.

    A FILE appears when it is complete. With damage anywhere in DIR, everything readable is printed, and the code is 6.
    """
    from mqcore.journal import messages

    name = f"{queue[0]}/{queue[1]}"
    with reading("read", directory) as progress:
        saved = messages(directory, name, progress=progress)
    with _destination(out, directory) as file, output.progress(f"export {name}", len(saved)) as advance:
        for message in saved:
            file.write(_line(message) + "\n")
            advance()
    if saved.is_damaged:
        output.talk(
            "the journal is damaged, so messages may be missing here; 'mqcore journal verify' says what is lost"
        )
        return ExitCode.DAMAGED
    return ExitCode.DONE


def _line(message: StoredMessage) -> str:
    content = {
        "schema": "mqcore.journal.message/1",
        "queue": message.queue,
        "id": message.id,
        "source": message.source,
        # A list, because a key may repeat.
        "headers": [list(pair) for pair in message.headers],
        **output.readable_body(message.body),
        "attempts": message.attempts,
        "high_priority": message.high_priority,
        "received": message.received.isoformat(timespec="milliseconds"),
    }
    return json.dumps(content, ensure_ascii=False)


@contextmanager
def _destination(out: Path | None, directory: Path) -> Iterator[IO[str]]:
    """Stdout, or a file that is there when it is complete, and not at all before."""
    if out is None:
        yield sys.stdout
        return
    if out.resolve().is_relative_to(directory.resolve()):
        raise click.UsageError(f"--out {out} is inside of the data directory, which is only read")
    unfinished = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            yield file
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


def _rows(listing: Listing) -> list[dict[str, Any]]:
    return [output.plain(segment) for segment in listing.segments]


def _totals(listing: Listing) -> dict[str, int]:
    return {name: getattr(listing, name) for name in ("shards", "records", "live", "bytes", "definitions")}


def _in_words(listing: Listing) -> str:
    return (
        f"{len(listing.segments)} segments of {listing.shards} shards, {listing.records} records, "
        f"{listing.live} live, {listing.bytes} bytes, {listing.definitions} definitions"
    )
