"""Runs the parts of the demonstration and prints their results."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mqcore.demo import analysed, cluster, durable, jobs, limits, micromessage, mqks, nodes, tmqp
from mqcore.demo.library import Page, read_library
from mqcore.demo.outcome import Outcome, table

__all__ = ["main"]

PARTS: tuple[tuple[str, Callable[[Sequence[Page], Progress], Awaitable[list[Outcome]]]], ...] = (
    ("TMQP/2.0", tmqp.run),
    ("MQKS: one line per file, and a dialog typed into nc", mqks.run),
    ("MicroMessage2: batched acknowledgements, and filters", micromessage.run),
    ("Jobs: hashes by four workers, of which one is killed in the middle", jobs.run),
    ("Durable: the broker is killed in the middle", durable.run),
    ("Nodes: one of three is killed in the middle", nodes.run),
    ("Cluster: three nodes, of which the leader is killed in the middle", cluster.run),
    ("Limits: an ASGI application under load of 50 clients", limits.run),
)
"""Parts of the demonstration: title and coroutine."""


def main() -> int:
    """Run the demonstration; return 0 if all checks passed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m mqcore.demo", description=__doc__)
    parser.add_argument(
        "--files", type=int, metavar="N", help="Send only the first N files of the standard library. [default: all]"
    )
    parser.add_argument("--no-pipelines", dest="pipelines", action="store_false", help="Skip the analysis with Spark.")
    arguments = parser.parse_args()
    pages = read_library(arguments.files)
    talk = Console(stderr=True)
    size = sum(len(page.body) for page in pages)
    talk.print(f"{len(pages)} files of the standard library of Python {sys.version.split()[0]}, {size / 1e6:.1f} MB")
    began = time.perf_counter()
    kept = True
    left: list[Path] = []
    for title, run in PARTS:
        columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=talk) as progress:
            outcomes = asyncio.run(_part(run, pages, progress))
        data = Console() if sys.stdout.isatty() else Console(width=160)
        data.print(table(title, outcomes))
        kept &= all(outcome.kept for outcome in outcomes)
        for outcome in outcomes:
            for line in outcome.transcript:
                data.print(f"  {line}", highlight=False, markup=False)
        for outcome in outcomes:
            for broken in outcome.broken:
                talk.print(f"[red]failed[/red] {escape(f'{outcome.queue}: {broken}')}", highlight=False)
        left += [outcome.data_dir for outcome in outcomes if outcome.data_dir is not None]
    try:
        for data_dir in left if arguments.pipelines else ():
            kept &= analysed.run(data_dir, talk)
    finally:
        for data_dir in left:
            shutil.rmtree(data_dir.parent, ignore_errors=True)
    verdict = "every file arrived as often as promised" if kept else "a check failed"
    print(f"{verdict}, {time.perf_counter() - began:.1f} s")
    return 0 if kept else 1


async def _part(
    run: Callable[[Sequence[Page], Progress], Awaitable[list[Outcome]]], pages: Sequence[Page], progress: Progress
) -> list[Outcome]:
    return await run(pages, progress)


if __name__ == "__main__":
    sys.exit(main())
