"""`mqcore journal replay`: publishes a stopped broker's saved messages to a running broker."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.reading import reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqcore.progress import Advanced
    from mqcore.replay import Selection

__all__ = ["replay"]


class _Rate(click.ParamType[float]):
    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number, _, unit = str(value).partition("/")
        try:
            rate = float(number) / {"": 1, "s": 1, "m": 60, "h": 3600}[unit.strip()]
        except (ValueError, KeyError):
            rate = 0.0
        if not 0 < rate < float("inf"):
            self.fail(f"invalid rate {value!r}; use messages per second (500/s), minute (/m) or hour (/h)")
        return rate


class _Moment(click.ParamType[datetime | float]):
    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | float:
        try:
            return datetime.fromisoformat(str(value))
        except ValueError:
            try:
                return options.DURATION.convert(value, param, ctx)
            except click.BadParameter:
                self.fail(
                    f"invalid time {value!r}; use 2026-01-31T12:00 (UTC) or a time before now such as 2h", param, ctx
                )


@click.command(short_help="Publish saved messages to a queue of a running broker.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--to", "to", type=options.QUEUE, required=True, help="Destination queue.")
@click.option(
    "--from-queue", metavar="PATTERN", default="*", help="Replay only queues that match PATTERN; * matches any text."
)
@click.option(
    "--since",
    type=_Moment(),
    metavar="TIME",
    help="Replay messages received at or after TIME: ISO 8601 in UTC, or a time before now such as 2h.",
)
@click.option("--until", type=_Moment(), metavar="TIME", help="Replay messages received before TIME.")
@click.option("--limit", type=click.IntRange(min=0), help="Maximum number of messages. [default: unlimited]")
@click.option("--rate", type=_Rate(), metavar="N/s", help="Maximum messages per second. [default: unlimited]")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Skip this many messages first. [default: 0]")
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Save the position in FILE, and continue from it if FILE exists.",
)
@click.option("--no-confirm", is_flag=True, help="Do not wait for the broker's confirmations.")
@click.option("--dry-run", is_flag=True, help="List what would be published; publish nothing.")
@options.connection
@options.as_json
def replay(
    directory: Path,
    to: tuple[str, int],
    from_queue: str,
    since: datetime | float | None,
    until: datetime | float | None,
    limit: int | None,
    rate: float | None,
    skip: int,
    resume: Path | None,
    no_confirm: bool,
    dry_run: bool,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Publish the saved messages in DIR, of a stopped broker or a restored backup, to a queue of a running broker.

    Order, id, headers, body and priority stay the same. The headers Replay-Queue, Replay-Received and Replay-Id name
    the origin of each message. If DIR is damaged, the command publishes everything readable and exits with code 6.
    """
    from mqcore import journal

    name = f"{to[0]}/{to[1]}"
    selected: dict[str, Any] = {"from_queue": from_queue, "since": since, "until": until, "limit": limit}
    if dry_run:
        with reading("read", directory) as progress:
            found = journal.select(directory, progress=progress, **selected)
        return _print_selection(found, name, as_json=as_json)
    with options.connect(url, timeout, name="mqcore-replay") as client, _advancing(f"replay to {name}") as advanced:
        done = journal.replay(
            directory,
            name,
            client,
            rate=rate,
            skip=skip,
            resume=resume,
            confirm=not no_confirm,
            advanced=advanced,
            **selected,
        )
    message = (
        f"{done.published} messages published to {name}, {done.position} of {done.total} done, {done.seconds:.1f} s"
    )
    output.done("mqcore.journal.replay/1", message, output.plain(done), as_json=as_json)
    return _exit_code(damaged=done.damaged)


@contextmanager
def _advancing(what: str) -> Iterator[Advanced]:
    """Show the progress; after an error, print the position at which the user can resume."""
    # The total is known once the first messages are published.
    with output.growing(what) as show:
        position: tuple[int, int] | None = None

        def advanced(done: int, total: int) -> None:
            nonlocal position
            position = (done, total)
            show(done, total)

        try:
            yield advanced
        except BaseException:
            if position is not None:
                output.talk(
                    f"stopped at position {position[0]} of {position[1]}; continue there with --resume or --skip"
                )
            raise


def _print_selection(found: Selection, name: str, *, as_json: bool) -> int:
    rows = [{"queue": queue, "messages": count, "bytes": size} for queue, (count, size) in found.queues.items()]
    if as_json:
        output.document("mqcore.journal.selection/1", {"to": name, "messages": len(found), "queues": rows})
    else:
        output.rows("mqcore.journal.selection/1", "queues", rows, ("queue", "messages", "bytes"), as_json=False)
        output.talk(f"{len(found)} messages would be published to {name}")
    return _exit_code(damaged=found.is_damaged)


def _exit_code(*, damaged: bool) -> int:
    if not damaged:
        return ExitCode.DONE
    output.talk("the journal is damaged, so messages may be missing; list the damage with 'mqcore journal verify'")
    return ExitCode.DAMAGED
