"""`mqcore pipeline`: analyzes the history of a broker with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.group import CommandGroup
from mqcore.cli.pipeline_commands import COMMANDS

if TYPE_CHECKING:
    from mqcore.spark.pipelines import Outcome

__all__ = ["pipeline"]


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


@pipeline.command(short_help="Run pipelines once, or run one whenever the history grows.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--journal",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Data directory of the broker, with its journals and its archive. Opened read-only.",
)
@click.option("--out", metavar="DIR", required=True, type=click.Path(path_type=Path), help="Directory for the results.")
@click.option("--master", metavar="URL", help="Spark master, for example spark://HOST:7077. [default: local[*]]")
@click.option("--driver-memory", default="2g", show_default=True, help="Memory of the Spark driver.")
@click.option("--set", "given", metavar="NAME=VALUE", multiple=True, help="Option of the pipeline. Repeatable.")
@click.option("--follow", is_flag=True, help="Run again whenever the history has grown, until Ctrl-C.")
@click.option(
    "--every", type=options.DURATION, default="10s", show_default=True, help="Minimum time between runs with --follow."
)
@options.as_json
def run(
    names: tuple[str, ...],
    journal: Path,
    out: Path,
    master: str | None,
    driver_memory: str,
    given: tuple[str, ...],
    follow: bool,
    every: float,
    as_json: bool,
) -> int:
    """Run pipelines over a data directory. Each writes Parquet tables to DIR/NAME and a report to DIR/NAME.html.

    Several pipelines share one Spark session, which saves its start-up time. --set applies to each pipeline that has
    the option.

    Exits with code 6 if a pipeline finds an error, such as a message that is unaccounted for.
    """
    from mqcore.spark.pipelines import catalogue
    from mqcore.spark.session import session

    for name in names:
        catalogue.known(name)
    if follow and len(names) > 1:
        raise click.UsageError(f"--follow takes one pipeline; {len(names)} were given")
    pairs = dict(_pair(text) for text in given)
    config = {
        "spark.driver.memory": driver_memory,
        "spark.log.level": "ERROR",
        # Unix sockets are faster, but with them some helper processes print a traceback when Spark ends.
        "spark.python.unix.domain.socket.enabled": "false",
    }
    spark = session(master, name=f"mqcore {names[0]}", config=config)
    ok = True
    try:
        chosen = catalogue.parsed(names, pairs)
        for name in names:
            with _shown(name) as progress:
                if follow:
                    for outcome in catalogue.follow(
                        name, spark, journal, out, every=every, progress=progress, **chosen[name]
                    ):
                        _print(outcome, as_json=as_json)
                outcome = catalogue.run(name, spark, journal, out, progress=progress, **chosen[name])
            _print(outcome, as_json=as_json)
            ok &= outcome.ok
    finally:
        spark.stop()
    return ExitCode.DONE if ok else ExitCode.DAMAGED


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
    import sys

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
