"""`mqcore worker`: runs jobs of EventMQ queues."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import click

from mqcore.cli import application, log, options, output, target
from mqcore.cli.exit_code import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mqcore.jobs import Jobs, Worker

__all__ = ["split_queues", "worker"]

_SHOWN_JOBS_MAX = 20
"""Jobs listed on a terminal at a time."""
_SUMMARY_SECONDS = 10.0
"""Time between two summary lines if stderr is not a terminal."""


@click.command()
@click.argument("app", metavar="[MODULE:ATTR]", required=False)
@click.option(
    "--broker",
    metavar="URL",
    help="URL of the broker's listener for workers. "
    "[default: the URL of APP, else MQCORE_JOBS_URL, else emqp://127.0.0.1:47290]",
)
@click.option(
    "--queues",
    default="default",
    show_default=True,
    metavar="NAME[:WEIGHT],...",
    help="Queues to serve. The broker prefers workers with a larger weight for a queue.",
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), help="Maximum jobs at a time. [default: number of processors]"
)
@click.option(
    "--pool",
    type=click.Choice(["process", "thread", "asyncio"]),
    default="process",
    show_default=True,
    help="Run jobs in processes, threads or asyncio tasks.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Extra jobs to fetch in advance. Increase it for many short jobs.",
)
@click.option(
    "--allow-import",
    multiple=True,
    metavar="PATTERN",
    help="Also run functions that match PATTERN but are not tasks, for example 'legacy.tasks.*'. Repeatable.",
)
@click.option("--no-schedules", is_flag=True, help="Do not register the schedules of APP with the broker.")
@click.option(
    "--drain-timeout",
    type=options.DURATION,
    default="30s",
    show_default=True,
    help="Time for running jobs to finish after SIGTERM.",
)
@options.log_format
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
    """Run jobs of the tasks in MODULE:ATTR, an mqcore.jobs.Jobs, until SIGTERM or Ctrl-C. A second signal stops the
    worker immediately.

    Without MODULE:ATTR, the worker runs only functions that --allow-import permits. Once the broker has accepted the
    worker, it prints one JSON line to stdout. Logs and progress go to stderr.
    """
    from mqcore.jobs import Worker

    if target.named_context() is not None:
        raise click.UsageError("mqcore worker does not use contexts; remove --context and pass --broker")
    log.set_up(log_format)
    if app is None and not allow_import:
        raise click.UsageError("no tasks to run; add MODULE:ATTR, such as shop:jobs, or --allow-import 'shop.tasks.*'")
    jobs = _load_jobs(app or "mqcore.jobs.imports:NOTHING", broker)
    with _showing() as show:
        # Again, because rich replaced stderr so that log lines appear above the table.
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
            on_joined=_print_ready,
            on_turn=show,
        )
        with _stopping(runner):
            left = runner.run()
    jobs.close()
    counts = runner.counts
    output.talk(
        f"{counts.succeeded} succeeded, {counts.failed} failed, {counts.retried} retried, {counts.rejected} rejected, "
        f"{left} unfinished"
    )
    return ExitCode.REFUSED if left else ExitCode.DONE


def _load_jobs(app: str, broker: str | None) -> Jobs:
    """The `Jobs` that MODULE:ATTR names, with the broker's URL and token of the command line if given."""
    from mqcore.jobs import Jobs

    def is_jobs(found: object) -> TypeGuard[Jobs]:
        return isinstance(found, Jobs)

    found = application.load(app, "", is_jobs, "an mqcore.jobs.Jobs")
    token = target.token()
    if broker is not None or token is not None:
        found.locate(broker or found.url, token=token)
    return found


def split_queues(text: str) -> list[str | tuple[str, int]]:
    """Parse `email:40,reports:10,default` into names and weights. The default weight is 10.

    Raises `click.BadParameter` for an empty name or a weight that is not an integer from 0 to 10**9.
    """
    queues: list[str | tuple[str, int]] = []
    for part in text.split(","):
        name, colon, weight = part.strip().rpartition(":")
        if not colon:
            name, weight = part.strip(), "10"
        if not name or not weight.isascii() or not weight.isdigit() or int(weight) > 10**9:
            raise click.BadParameter(
                f"invalid queue {part.strip()!r}; use NAME or NAME:WEIGHT with an integer weight", param_hint="--queues"
            )
        queues.append((name, int(weight)))
    return queues


def _print_ready(joined: Worker) -> None:
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
    """Stop the worker on SIGTERM and Ctrl-C while the block runs."""
    import signal

    before = {number: signal.signal(number, lambda *_: runner.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _showing() -> Iterator[Callable[[Worker], None]]:
    """Show the worker's jobs: as a table on a terminal, else as a summary line every 10 s."""
    if not sys.stderr.isatty():
        yield _Summary().show
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    # Rich would print the ready line on the terminal, even if stdout is a pipe or a file.
    is_redirected = sys.stdout.isatty()
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=is_redirected) as live:
        yield _Table(live).show


class _Summary:
    """Logs a summary line at most every 10 s, if a job has ended since the previous one."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _SUMMARY_SECONDS
        self._ended = 0

    def show(self, runner: Worker) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        counts = runner.counts
        ended = counts.succeeded + counts.failed
        if ended != self._ended:
            import logging

            rate = (ended - self._ended) / (now - self._next + _SUMMARY_SECONDS)
            logging.getLogger("mqcore.worker").info(
                "%d succeeded, %d failed, %d running, %d waiting, %.1f/s",
                counts.succeeded,
                counts.failed,
                len(runner.running),
                runner.waiting,
                rate,
            )
        self._next, self._ended = now + _SUMMARY_SECONDS, ended


class _Table:
    """Table of the running jobs and their progress, redrawn four times a second."""

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
        ended = runner.counts.succeeded + runner.counts.failed
        if now - since >= 1.0:
            self._rate = (ended - ended_then) / (now - since)
            self._before = (now, ended)
        self._live.update(self._drawn(runner, now), refresh=True)

    def _drawn(self, runner: Worker, now: float) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        counts, running = runner.counts, runner.running
        state = "draining" if runner.is_draining else "working"
        head = Text(
            f"{state}  {counts.succeeded:,} succeeded  {counts.failed:,} failed  {counts.retried:,} retried  "
            f"{runner.waiting:,} waiting  {self._rate:,.0f}/s"
        )
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("task", "queue", "attempt", "seconds", "progress", ""):
            table.add_column(column)
        for job in running[:_SHOWN_JOBS_MAX]:
            bar = "" if job.progress is None else ProgressBar(total=1.0, completed=job.progress, width=20)
            table.add_row(job.name, job.queue, str(job.attempt), f"{now - job.since:.1f}", bar, Text(job.note))
        return Group(head, table) if running else head
