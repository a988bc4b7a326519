"""`mqcore worker`: runs jobs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import click

from mqcore.cli import application, log, options, output
from mqcore.cli.exit_code import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mqcore.jobs import Jobs, Worker

__all__ = ["split_queues", "worker"]

_SHOWN_MAX = 20
"""Jobs that are listed on a terminal at a time."""
_SUMMARY_EVERY = 10.0
"""Seconds between two lines that sum up, where there is no terminal."""


@click.command(short_help="Run jobs.")
@click.argument("app", metavar="[MODULE:ATTR]", required=False)
@click.option(
    "--broker",
    metavar="URL",
    help="Where workers connect. [default: what APP says, or MQCORE_JOBS_URL, or emqp://127.0.0.1:47290]",
)
@click.option(
    "--queues",
    default="default",
    show_default=True,
    metavar="NAME[:WEIGHT],...",
    help="What to serve. A queue's jobs go to workers with larger weights first.",
)
@click.option("--concurrency", type=click.IntRange(min=1), help="Jobs at a time. [default: one a processor]")
@click.option(
    "--pool",
    type=click.Choice(["process", "thread", "asyncio"]),
    default="process",
    show_default=True,
    help="Where they run.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many more may wait here; for many short jobs.",
)
@click.option(
    "--allow-import",
    multiple=True,
    metavar="PATTERN",
    help="Also run functions of this name that are no tasks, such as 'legacy.tasks.*'; repeatable.",
)
@click.option("--no-schedules", is_flag=True, help="Do not tell the broker what APP says is to run again and again.")
@click.option(
    "--drain-timeout",
    type=options.DURATION,
    default="30s",
    show_default=True,
    help="How long jobs may take to end after SIGTERM.",
)
@click.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    envvar="MQCORE_LOG_FORMAT",
    help="How log lines look. [default: console on a terminal, else json]",
)
def worker(
    app: str | None,
    broker: str | None,
    queues: str,
    concurrency: int | None,
    pool: str,
    prefetch: int,
    allow_import: tuple[str, ...],
    no_schedules: bool,
    drain_timeout: float,
    log_format: str | None,
) -> int:
    """Run the jobs of the tasks in MODULE:ATTR, a mqcore.jobs.Jobs, until SIGTERM or Ctrl-C; a second ends it at once.

    Without it only what --allow-import allows is run. When the broker has taken it, one JSON line on stdout says so.
    Logs and progress go to stderr.
    """
    from mqcore.jobs import Worker

    log.set_up(log_format)
    if app is None and not allow_import:
        raise click.UsageError("say what may be run: MODULE:ATTR, such as shop:jobs, or --allow-import 'shop.tasks.*'")
    jobs = _load_jobs(app or "mqcore.jobs.imports:NOTHING", broker)
    with _showing() as show:
        # Again, because a terminal's table must know of the lines that go between.
        log.set_up(log_format)
        runner = Worker(
            jobs,
            queues=split_queues(queues),
            concurrency=concurrency,
            pool=pool,
            prefetch=prefetch,
            drain_timeout=drain_timeout,
            allow_import=allow_import,
            schedules=not no_schedules,
            on_joined=_say_ready,
            on_turn=show,
        )
        with _stopping(runner):
            left = runner.run()
    jobs.close()
    tally = runner.tally
    output.talk(
        f"{tally.done} done, {tally.failed} failed, {tally.retried} tried again, {tally.refused} refused, {left} left"
    )
    return ExitCode.REFUSED if left else ExitCode.DONE


def _load_jobs(app: str, broker: str | None) -> Jobs:
    """The `Jobs` that MODULE:ATTR names, with another broker's URL if one is given."""
    from mqcore.jobs import Jobs

    def is_jobs(found: object) -> TypeGuard[Jobs]:
        return isinstance(found, Jobs)

    found = application.load(app, "", is_jobs, "a mqcore.jobs.Jobs")
    token = options.token()
    if broker is not None or token is not None:
        found.locate(broker or found.url, token=token)
    return found


def split_queues(text: str) -> list[str | tuple[str, int]]:
    """Read `email:40,reports:10,default`."""
    queues: list[str | tuple[str, int]] = []
    for part in text.split(","):
        name, colon, weight = part.strip().rpartition(":")
        if not colon:
            name, weight = part.strip(), "10"
        if not name or not weight.isascii() or not weight.isdigit() or int(weight) > 10**9:
            raise click.BadParameter(
                f"{part.strip()!r} is no queue; write NAME, or NAME:WEIGHT with a whole number", param_hint="--queues"
            )
        queues.append((name, int(weight)))
    return queues


def _say_ready(joined: Worker) -> None:
    ready = {
        "event": "ready",
        "worker": joined.identity,
        "broker": joined.jobs.addresses.backend,
        "queues": dict(joined.queues),
        "concurrency": joined.concurrency,
        "pool": str(joined.pool_kind),
        "pid": os.getpid(),
    }
    print(json.dumps(ready, separators=(",", ":")), flush=True)


@contextmanager
def _stopping(runner: Worker) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C stop a worker while the block runs."""
    import signal

    before = {number: signal.signal(number, lambda *_: runner.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _showing() -> Iterator[Callable[[Worker], None]]:
    """Show what a worker does: as a table on a terminal, else as a line now and then."""
    if not sys.stderr.isatty():
        yield _Summary().show
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield _Table(live).show


class _Summary:
    """A line whenever something was done, but not too often."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _SUMMARY_EVERY
        self._ended = 0

    def show(self, runner: Worker) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        tally = runner.tally
        ended = tally.done + tally.failed
        if ended != self._ended:
            import logging

            rate = (ended - self._ended) / (now - self._next + _SUMMARY_EVERY)
            logging.getLogger("mqcore.worker").info(
                "%d done, %d failed, %d running, %d waiting, %.1f/s",
                tally.done,
                tally.failed,
                len(runner.running),
                runner.waiting,
                rate,
            )
        self._next, self._ended = now + _SUMMARY_EVERY, ended


class _Table:
    """The jobs that run, with how far they are, redrawn a few times a second."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._next = 0.0
        self._before = (time.monotonic(), 0)
        self._rate = 0.0

    def show(self, runner: Worker) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.25
        since, ended_then = self._before
        ended = runner.tally.done + runner.tally.failed
        if now - since >= 1.0:
            self._rate = (ended - ended_then) / (now - since)
            self._before = (now, ended)
        self._live.update(self._drawn(runner, now), refresh=True)

    def _drawn(self, runner: Worker, now: float) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tally, running = runner.tally, runner.running
        state = "draining" if runner.is_draining else "working"
        head = Text(
            f"{state}  {tally.done:,} done  {tally.failed:,} failed  {tally.retried:,} tried again  "
            f"{runner.waiting:,} waiting  {self._rate:,.0f}/s"
        )
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("task", "queue", "attempt", "seconds", "progress", ""):
            table.add_column(column)
        for job in running[:_SHOWN_MAX]:
            bar = "" if job.progress is None else ProgressBar(total=1.0, completed=job.progress, width=20)
            table.add_row(job.name, job.queue, str(job.attempt), f"{now - job.since:.1f}", bar, Text(job.note))
        return Group(head, table) if running else head
