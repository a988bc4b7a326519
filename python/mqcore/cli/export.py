"""`mqcore journal export`: exports a stopped broker's saved messages or history as JSON lines, Parquet or Arrow."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.reading import reading

if TYPE_CHECKING:
    from mqcore.export import History, TableFormat
    from mqcore.journal import SavedMessages, StoredMessage

__all__ = ["export"]


@click.command(short_help="Export the saved messages of a queue, or the history.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--queue", type=options.QUEUE, help="Queue to export. Optional with --history.")
@click.option("--history", is_flag=True, help="Export lifecycle events instead of saved messages.")
@click.option(
    "--format",
    type=click.Choice(["jsonl", "parquet", "arrow"]),
    help="Output format. [default: jsonl; with --history: parquet]",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Output file. [default for jsonl: stdout]")
def export(
    directory: Path,
    queue: tuple[str, int] | None,
    history: bool,
    format: str | None,  # noqa: A002
    out: Path | None,
) -> int:
    """Export the unsettled saved messages of a queue in the data directory DIR, in queue order. The broker must be
    stopped. With --history: export the lifecycle events that the journal still contains.

    The output file appears once it is complete. If DIR is damaged, the command exports everything readable and exits
    with code 6.
    """
    if out is not None and out.resolve().is_relative_to(directory.resolve()):
        raise click.UsageError(f"--out {out} is inside the data directory; choose a file outside of it")
    name = None if queue is None else f"{queue[0]}/{queue[1]}"
    source = _history(directory, name, format, out) if history else _messages(directory, name, format, out)
    if not source.is_damaged:
        return ExitCode.DONE
    what = "events" if history else "messages"
    output.talk(f"the journal is damaged, so {what} may be missing; list the damage with 'mqcore journal verify'")
    return ExitCode.DAMAGED


def _messages(directory: Path, queue: str | None, format: str | None, out: Path | None) -> SavedMessages:  # noqa: A002
    from mqcore.journal import messages

    if queue is None:
        raise click.UsageError("nothing to export; add --queue CHANNEL/ID or --history")
    table = _table(format or "jsonl")
    target = None if table is None else _file(out, table)
    with reading("read", directory) as progress:
        saved = messages(directory, queue, progress=progress)
    with output.growing(f"export {queue}", len(saved)) as show:
        total = len(saved)
        if table is not None and target is not None:
            saved.write(target, table, progress=lambda done: show(done, total))
            return saved
        with _destination(out) as file:
            for done, message in enumerate(saved, 1):
                file.write(_line(message) + "\n")
                show(done, total)
    return saved


def _history(directory: Path, queue: str | None, format: str | None, out: Path | None) -> History:  # noqa: A002
    from mqcore.journal import history

    table = _table(format or "parquet")
    if table is None:
        raise click.UsageError("--history cannot be exported as jsonl; use --format parquet or arrow")
    target = _file(out, table)
    with reading("read", directory) as progress:
        steps = history(directory, queue, progress=progress)
    with output.growing("export history", steps.blocks) as show:
        rows = steps.write(target, table, progress=lambda done: show(done, steps.blocks))
    output.talk(f"{rows} events")
    return steps


def _table(format: str) -> TableFormat | None:  # noqa: A002
    if format == "parquet":
        return "parquet"
    return "arrow" if format == "arrow" else None


def _file(out: Path | None, format: str) -> Path:  # noqa: A002
    if out is None:
        raise click.UsageError(f"{format} cannot be written to stdout; add --out FILE")
    return out


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
def _destination(out: Path | None) -> Iterator[IO[str]]:
    """Open stdout, or a file that appears under its name only once it is complete."""
    from mqcore.export import unfinished

    if out is None:
        yield sys.stdout
        return
    with unfinished(out) as part, part.open("w", encoding="utf-8") as file:
        yield file
