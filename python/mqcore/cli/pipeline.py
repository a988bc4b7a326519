"""`mqcore pipeline`: analyzes the history of a broker with Spark."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode, exit_code
from mqcore.cli.group import CommandGroup
from mqcore.cli.pipeline_commands import COMMANDS
from mqcore.cli.pipeline_source import arguments, place_options, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mqcore.spark.pipelines import Outcome

__all__ = ["pipeline"]

_SLEEP_SECONDS_MAX: Final = 60.0

_F = TypeVar("_F", bound=Callable[..., Any])


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Analyze the history of a running or stopped broker. Requires the extra mqcore[spark] and Java."""


for _command in COMMANDS:
    pipeline.add_command(_command)


@pipeline.command(short_help="List the pipelines.")
@options.as_json
def ls(as_json: bool) -> None:
    """List the pipelines and the options that each takes with --set."""
    from mqcore.spark.pipelines.catalogue import DESCRIPTIONS, NAMES

    content = [{"name": name, "description": DESCRIPTIONS[name]} for name in NAMES]
    output.rows("mqcore.pipeline.ls/1", "pipelines", content, ("name", "description"), as_json=as_json)


def _analysis(command: _F) -> _F:
    """Add the arguments and options that say what to run, over which history, and where."""
    for add in (
        options.as_json,
        click.option("--set", "given", metavar="NAME=VALUE", multiple=True, help="Option of the pipeline. Repeatable."),
        place_options,
        click.argument("names", metavar="NAME...", nargs=-1, required=True),
    ):
        command = add(command)
    return command


@pipeline.command(short_help="Run pipelines once, or run one whenever the history grows.")
@_analysis
@click.option("--follow", is_flag=True, help="Run again whenever the history has grown, until Ctrl-C.")
@click.option(
    "--every", type=options.DURATION, default="10s", show_default=True, help="Minimum time between runs with --follow."
)
def run(
    names: tuple[str, ...],
    journal: Path,
    journal_admin: str | None,
    journal_option: tuple[str, ...],
    out: Path,
    master: str | None,
    driver_memory: str,
    given: tuple[str, ...],
    follow: bool,
    every: float,
    as_json: bool,
) -> int:
    """Run pipelines over the history of a broker. Each writes Parquet tables to DIR/NAME and a report to DIR/NAME.html.

    Several pipelines share one Spark session, which saves its start-up time. --set applies to each pipeline that has
    the option. DIR/index.html lists the reports.

    Exits with code 6 if a pipeline finds an error, such as a message that is unaccounted for.
    """
    from mqcore.spark.pipelines import catalogue

    for name in names:
        catalogue.known(name)
    if follow and len(names) > 1:
        raise click.UsageError(f"--follow takes one pipeline; {len(names)} were given")
    pairs = dict(_pair(text) for text in given)
    history = source(journal, journal_admin, journal_option)
    ok = True
    with _session(names, master, driver_memory) as spark:
        chosen = catalogue.parsed(names, pairs)
        for name in names:
            with _shown(name) as progress:
                if follow:
                    for outcome in catalogue.follow(
                        name, spark, history, out, every=every, progress=progress, **chosen[name]
                    ):
                        _print(outcome, as_json=as_json)
                outcome = catalogue.run(name, spark, history, out, progress=progress, **chosen[name])
            _print(outcome, as_json=as_json)
            ok &= outcome.ok
    return ExitCode.DONE if ok else ExitCode.DAMAGED


@pipeline.command(short_help="Run pipelines every night, or write a systemd timer for that.")
@_analysis
@click.option("--at", "at_text", metavar="HH:MM", default="02:30", show_default=True, help="Local time of the runs.")
@click.option(
    "--jitter",
    type=options.DURATION,
    default="10m",
    show_default=True,
    help="Maximum random delay of each run, so that several machines do not start at once.",
)
@click.option("--count", type=click.IntRange(min=1), help="Exit after this many runs. [default: never]")
@click.option(
    "--systemd",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write mqcore-pipelines.service and .timer to DIR, for example /etc/systemd/system, and exit.",
)
@click.option("--user", metavar="NAME", help="With --systemd: user of the service. [default: root]")
def schedule(
    names: tuple[str, ...],
    journal: Path,
    journal_admin: str | None,
    journal_option: tuple[str, ...],
    out: Path,
    master: str | None,
    driver_memory: str,
    given: tuple[str, ...],
    at_text: str,
    jitter: float,
    count: int | None,
    systemd: Path | None,
    user: str | None,
    as_json: bool,
) -> int:
    """Run pipelines every day at a local time, in the foreground until Ctrl-C or SIGTERM.

    A failed run is reported, and the next one follows a day later. Spark runs only during a run. With --systemd, a
    timer of systemd starts the runs instead, also after a missed one.
    """
    from mqcore.spark.pipelines import catalogue
    from mqcore.spark.pipelines.schedule import next_run, time_of_day, units, write_units

    for name in names:
        catalogue.known(name)
    pairs = dict(_pair(text) for text in given)
    catalogue.parsed(names, pairs)
    at = time_of_day(at_text)
    history = source(journal, journal_admin, journal_option)
    if systemd is not None:
        place = [
            *arguments(journal, journal_admin, journal_option),
            "--out",
            str(out.absolute()),
            "--driver-memory",
            driver_memory,
        ]
        place += ["--master", master] if master else []
        place += [part for text in given for part in ("--set", text)]
        command = [sys.executable, "-m", "mqcore", "pipeline", "run", *names, *place]
        paths = [str(path) for path in write_units(systemd, units(command, at, jitter, user))]
        todo = "systemctl daemon-reload && systemctl enable --now mqcore-pipelines.timer"
        output.done(
            "mqcore.pipeline.schedule/1",
            f"wrote {' and '.join(paths)}; start the timer with: {todo}",
            {"files": paths, "at": f"{at:%H:%M:%S}", "jitter": jitter},
            as_json=as_json,
        )
        return ExitCode.DONE
    code = ExitCode.DONE
    runs = 0
    while count is None or runs < count:
        moment = next_run(datetime.now().astimezone(), at, jitter)
        output.talk(f"next run: {moment:%Y-%m-%d %H:%M:%S %Z}")
        _sleep_until(moment)
        code = _nightly(names, history, out, master, driver_memory, pairs, as_json=as_json)
        runs += 1
    return code


@pipeline.command(short_help="Write a page that lists and searches reports.")
@click.option(
    "--out", metavar="DIR", required=True, type=click.Path(path_type=Path), help="Directory with the reports."
)
@options.as_json
def site(out: Path, as_json: bool) -> None:
    """Write DIR/index.html again: links to all reports in DIR, and a search over reports and queues.

    Each run does so by itself. This command helps after reports were added or deleted. To publish the site, copy DIR
    to any web server, or open the page as a file.
    """
    from mqcore.spark.pipelines.site import write_site

    index = write_site(out)
    output.done("mqcore.pipeline.site/1", f"site: {index}", {"index": str(index)}, as_json=as_json)


@contextmanager
def _session(names: Sequence[str], master: str | None, driver_memory: str) -> Iterator[SparkSession]:
    """A Spark session as long as the block runs."""
    from mqcore.spark.pipelines.failures import reason_first
    from mqcore.spark.session import session

    config = {
        "spark.driver.memory": driver_memory,
        # Errors are raised, and their reason is printed. Spark would log the traceback of each failed task before.
        "spark.log.level": "ERROR" if os.environ.get("MQCORE_DEBUG") else "OFF",
        # Unix sockets are faster, but with them some helper processes print a traceback when Spark ends.
        "spark.python.unix.domain.socket.enabled": "false",
    }
    with reason_first("Spark"):
        spark = session(master, name=f"mqcore {names[0]}", config=config)
    try:
        yield spark
    finally:
        spark.stop()


def _nightly(
    names: Sequence[str],
    history: os.PathLike[str],
    out: Path,
    master: str | None,
    driver_memory: str,
    pairs: Mapping[str, str],
    *,
    as_json: bool,
) -> ExitCode:
    """Run each pipeline, also after another one failed. Return the code of the first failure."""
    from mqcore import errors
    from mqcore.spark.pipelines import catalogue

    code = ExitCode.DONE
    try:
        with _session(names, master, driver_memory) as spark:
            chosen = catalogue.parsed(names, pairs)
            for name in names:
                try:
                    with _shown(name) as progress:
                        outcome = catalogue.run(name, spark, history, out, progress=progress, **chosen[name])
                except errors.MqcoreError as error:
                    output.talk(f"mqcore: {name}: {error}")
                    code = code or exit_code(error)
                    continue
                _print(outcome, as_json=as_json)
                code = code or (ExitCode.DONE if outcome.ok else ExitCode.DAMAGED)
    except errors.MqcoreError as error:
        output.talk(f"mqcore: {error}")
        code = code or exit_code(error)
    return code


def _sleep_until(moment: datetime) -> None:
    """Sleep in parts, because the clock may be set and the machine may be suspended meanwhile."""
    while (left := moment.timestamp() - time.time()) > 0:
        time.sleep(min(left, _SLEEP_SECONDS_MAX))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"invalid option {text!r}; use NAME=VALUE", param_hint="--set")
    return key, value


def _print(outcome: Outcome, *, as_json: bool) -> None:
    content = {
        "name": outcome.name,
        "ok": outcome.ok,
        "summary": outcome.summary,
        "report": str(outcome.report),
        "tables": {name: str(path) for name, path in outcome.tables.items()},
        "figures": dict(outcome.figures),
        **({"details": dict(outcome.details)} if outcome.details else {}),
    }
    if as_json:
        output.stream("mqcore.pipeline.run/1", content)
    else:
        output.talk(f"{outcome.name}: {outcome.summary}")
    output.talk(f"report: {outcome.report}")


@contextmanager
def _shown(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the current step: on a terminal as a progress bar of Spark's tasks, elsewhere as one line per step."""
    if not sys.stderr.isatty():
        last = ""

        def line(what: str, _done: int, _known: int) -> None:
            nonlocal last
            if what != last:
                output.talk(f"{name}: {what}")
                last = what

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    # The pipeline's own output belongs on stdout, also if that is a pipe or a file.
    redirect = sys.stdout.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=redirect) as bar:
        task = bar.add_task(name, total=None)

        def show(what: str, done: int, known: int) -> None:
            bar.update(task, description=f"{name}: {what}", completed=done, total=known or None)

        yield show
