"""`mqcore journal replay`: what a stopped broker saved, published to a running one."""

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

    from mqcore.replay import Advanced, Selection

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
            self.fail(f"{value!r} is no rate; write messages a second such as 500/s, a minute (/m) or an hour (/h)")
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
                    f"{value!r} is no time; write 2026-01-31T12:00 (UTC), or how long ago, such as 2h", param, ctx
                )


@click.command(short_help="Publish saved messages to a queue of a running broker.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--to", "to", type=options.QUEUE, required=True, help="To which queue.")
@click.option(
    "--from-queue", metavar="PATTERN", default="*", help="Only of queues whose channel/id fits; * stands for anything."
)
@click.option(
    "--since", type=_Moment(), metavar="TIME", help="Only what was received then or later: ISO 8601, or 2h ago."
)
@click.option("--until", type=_Moment(), metavar="TIME", help="Only what was received before.")
@click.option("--limit", type=click.IntRange(min=0), help="So many messages at most.")
@click.option("--rate", type=_Rate(), metavar="N/s", help="So many a second at most. [default: as fast as it goes]")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Begin behind so many messages.")
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the position here, and go on from it if it is there.",
)
@click.option("--no-confirm", is_flag=True, help="Do not wait until the queue says that it has them.")
@click.option("--dry-run", is_flag=True, help="Say what would be published, and publish nothing.")
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
    """Publish the saved messages in DIR, a stopped broker's or a restored backup, to a queue of a running broker.

    Order, id, headers, body and priority stay; the headers Replay-Queue, Replay-Received and Replay-Id tell where each
    comes from. With damage in DIR everything readable is published, and the code is 6.
    """
    from mqcore import journal

    name = f"{to[0]}/{to[1]}"
    selected: dict[str, Any] = {"from_queue": from_queue, "since": since, "until": until, "limit": limit}
    if dry_run:
        with reading("read", directory) as progress:
            found = journal.select(directory, progress=progress, **selected)
        return _say_found(found, name, as_json=as_json)
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
    said = f"{done.published} messages published to {name}, {done.position} of {done.total} done, {done.seconds:.1f} s"
    output.done("mqcore.journal.replay/1", said, output.plain(done), as_json=as_json)
    return _end(damaged=done.damaged)


@contextmanager
def _advancing(what: str) -> Iterator[Advanced]:
    """Show how far it is; when it ends early, say where, because there it can go on."""
    # The total is known when the first messages went.
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
                output.talk(f"stopped at position {position[0]} of {position[1]}; --resume or --skip goes on there")
            raise


def _say_found(found: Selection, name: str, *, as_json: bool) -> int:
    rows = [{"queue": queue, "messages": count, "octets": octets} for queue, (count, octets) in found.queues.items()]
    if as_json:
        output.document("mqcore.journal.selection/1", {"to": name, "messages": len(found), "queues": rows})
    else:
        output.rows("mqcore.journal.selection/1", "queues", rows, ("queue", "messages", "octets"), as_json=False)
        output.talk(f"{len(found)} messages would be published to {name}")
    return _end(damaged=found.is_damaged)


def _end(*, damaged: bool) -> int:
    if not damaged:
        return ExitCode.DONE
    output.talk("the journal is damaged, so messages may be missing; 'mqcore journal verify' says what is lost")
    return ExitCode.DAMAGED
