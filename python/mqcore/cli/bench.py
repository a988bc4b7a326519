"""`mqcore bench`: measures a running broker, and compares two results."""

from __future__ import annotations

import datetime
import platform
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from mqcore.cli import options, output, target
from mqcore.cli.group import CommandGroup

__all__ = ["bench"]

_NAMES = ("publish", "confirmed", "consume", "latency", "request", "durable")
_COLUMNS = ("scenario", "what", "value")
_COMPARED = ("scenario", "what", "before", "after", "ratio", "better_by")


@click.group(cls=CommandGroup, invoke_without_command=True, short_help="Measure a broker, or compare two results.")
@click.option(
    "--scenario", "names", multiple=True, type=click.Choice(_NAMES), help="Scenario. Repeatable. [default: all]"
)
@click.option("--seconds", type=options.DURATION, default="3s", show_default=True, help="Duration of each scenario.")
@click.option(
    "--body", "body_bytes", type=click.IntRange(0, 1 << 20), default=128, show_default=True, help="Bytes of each body."
)
@click.option(
    "--rate",
    type=click.IntRange(1, 1_000_000),
    default=2000,
    show_default=True,
    help="Messages per second of the scenario latency.",
)
@click.option(
    "--messages",
    type=click.IntRange(1, 10_000_000),
    default=50_000,
    show_default=True,
    help="Messages of the scenario consume.",
)
@options.connection
@options.as_json
@click.pass_context
def bench(
    context: click.Context,
    names: tuple[str, ...],
    seconds: float,
    body_bytes: int,
    rate: int,
    messages: int,
    url: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Measure how fast a Python program publishes to and consumes from the running broker.

    Creates a channel mqcore-bench-... for the run and removes it at the end. The load can slow down other clients of
    the broker. A broker without a data directory skips the scenario durable.
    """
    if context.invoked_subcommand is not None:
        return
    from mqcore import __version__
    from mqcore.cli.bench_results import SCHEMA
    from mqcore.cli.bench_scenarios import Plan, measure

    found = target.listener(url)
    chosen = found.url
    if not chosen.startswith(("tmqp://", "tmqps://", "tmqp+unix://")):
        raise click.UsageError(f"cannot measure {chosen.partition('://')[0]}://; use a tmqp:// URL of the broker")
    if seconds <= 0:
        raise click.UsageError("--seconds 0: too short; use a positive duration such as 3s")
    # In the order in which they run, whatever the order of the options.
    wanted = [name for name in _NAMES if not names or name in names]
    channel = f"mqcore-bench-{secrets.token_hex(4)}"
    plan = Plan(chosen, found.token, timeout, channel, seconds, body_bytes, rate, messages)
    figures, skipped = measure(plan, wanted, lambda name: output.talk(f"measuring {name} ..."))
    for name, reason in skipped.items():
        output.talk(f"skipped {name}: {reason}")
    rows = [output.plain(figure) for figure in figures]
    if as_json:
        about: Mapping[str, object] = {
            "version": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seconds": seconds,
            "body_bytes": body_bytes,
            "rate": rate,
            "messages": messages,
            "skipped": skipped,
        }
        output.document(SCHEMA, {**about, "figures": rows})
    else:
        output.rows(SCHEMA, "figures", _for_people(rows, ("value",)), _COLUMNS, as_json=False)


@bench.command(short_help="Compare two results.")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@options.as_json
def compare(before: Path, after: Path, as_json: bool) -> None:
    """Compare the results BEFORE and AFTER, two files that `mqcore bench --json` wrote.

    ratio is AFTER / BEFORE. Above 1 in better_by, AFTER is better.
    """
    from mqcore.cli.bench_results import compare as compared
    from mqcore.cli.bench_results import read

    rows = compared(read(before), read(after))
    if not rows:
        raise click.UsageError(f"{before} and {after} have no scenario in common; measure the same --scenario")
    shown = rows if as_json else _for_people(rows, _COMPARED[2:])
    output.rows("mqcore.bench.compare/1", "figures", shown, _COMPARED, as_json=as_json)


def _for_people(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> list[dict[str, object]]:
    """Rows whose numbers have no more digits than a measurement."""
    return [{**row, **{column: _number(row[column]) for column in columns}} for row in rows]


def _number(value: object) -> str:
    if not isinstance(value, int | float):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
