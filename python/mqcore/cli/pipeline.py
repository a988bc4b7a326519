"""`mqcore pipeline`: what was said through a broker, analysed by Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.program import CommandGroup

if TYPE_CHECKING:
    from mqcore.spark.pipelines import Outcome

__all__ = ["pipeline"]


@click.group(cls=CommandGroup, short_help="Analyses of the history by Spark: ls, run.")
def pipeline() -> None:
    """Analyses of the history of a broker that runs or does not. Needs the extra mqcore[spark], and a Java."""


@pipeline.command(short_help="List the pipelines.")
@options.as_json
def ls(as_json: bool) -> None:
    """List the pipelines and what each may be told with --set."""
    from mqcore.spark.pipelines.catalogue import NAMES, TELLS

    content = [{"name": name, "tells": TELLS[name]} for name in NAMES]
    output.rows("mqcore.pipeline.ls/1", "pipelines", content, ("name", "tells"), as_json=as_json)


@pipeline.command(short_help="Run one, or follow the history with it.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--journal",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="The broker's data directory, with its journals and its archive. Nothing in it is changed.",
)
@click.option("--out", metavar="DIR", required=True, type=click.Path(path_type=Path), help="Where results go.")
@click.option("--master", metavar="URL", help="Spark's: local[2], spark://HOST:7077.  [default: local[*]]")
@click.option("--driver-memory", default="2g", show_default=True, help="Memory of Spark's driver.")
@click.option("--set", "given", metavar="NAME=VALUE", multiple=True, help="An option of the pipeline. Repeatable.")
@click.option("--follow", is_flag=True, help="Run again whenever the history has grown, until Ctrl-C.")
@click.option(
    "--every", type=options.DURATION, default="10s", show_default=True, help="With --follow: how often at most."
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
    """Run pipelines over a data directory: Parquet tables in DIR/NAME, and the report DIR/NAME.html.

    Several share one Spark, whose start takes longer than many a pipeline; --set tells each that has the option.

    Leaves with 6 if the pipeline found something that should not be, such as a message that nobody can account for.
    """
    from mqcore.spark.pipelines import catalogue
    from mqcore.spark.session import session

    for name in names:
        catalogue.known(name)
    if follow and len(names) > 1:
        raise click.UsageError("--follow goes with one pipeline")
    pairs = dict(_pair(text) for text in given)
    config = {
        "spark.driver.memory": driver_memory,
        "spark.log.level": "ERROR",
        # Quicker without TCP, but some helpers then print a traceback when Spark ends, which is nothing for a terminal.
        "spark.python.unix.domain.socket.enabled": "false",
    }
    spark = session(master, name=f"mqcore {names[0]}", config=config)
    fine = True
    try:
        chosen = catalogue.parsed(names, pairs)
        for name in names:
            with _shown(name) as progress:
                if follow:
                    for outcome in catalogue.follow(
                        name, spark, journal, out, every=every, progress=progress, **chosen[name]
                    ):
                        _tell(outcome, as_json=as_json)
                outcome = catalogue.run(name, spark, journal, out, progress=progress, **chosen[name])
            _tell(outcome, as_json=as_json)
            fine &= outcome.fine
    finally:
        spark.stop()
    return ExitCode.DONE if fine else ExitCode.DAMAGED


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
    return key, value


def _tell(outcome: Outcome, *, as_json: bool) -> None:
    content = {
        "name": outcome.name,
        "fine": outcome.fine,
        "said": outcome.said,
        "report": str(outcome.report),
        "tables": {name: str(path) for name, path in outcome.tables.items()},
        "figures": dict(outcome.figures),
    }
    if as_json:
        output.stream("mqcore.pipeline.run/1", content)
    else:
        output.talk(f"{outcome.name}: {outcome.said}")
    output.talk(f"report: {outcome.report}")


@contextmanager
def _shown(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the present step: as a bar with Spark's tasks on a terminal, elsewhere as a line a step."""
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
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def show(what: str, done: int, known: int) -> None:
            bar.update(task, description=f"{name}: {what}", completed=done, total=known or None)

        yield show
