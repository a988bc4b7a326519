"""`mqcore status`: one screen about a broker, and `mqcore report`: lists of what needs attention."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from mqcore.cli import options, output
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.figures import SEVERITY_STYLES, age
from mqcore.cli.group import CommandGroup
from mqcore.cli.queue_states import dead_letter_rows, every_queue, row

if TYPE_CHECKING:
    from mqcore.admin import Attention, Finding

__all__ = ["report", "status"]

_LISTED_MAX: Final = 10_000

_CONTENTS: Final = ("channels", "queues", "topics", "routers", "clients", "ready", "in_flight", "delayed")
_COUNTERS: Final = ("received", "deliveries", "acks", "negative_acks", "dead_lettered", "rejected")


@click.command(short_help="Show a broker's health, contents and problems on one screen.")
@options.admin_side(timeout="15s")
@click.option("--limit", type=click.IntRange(1, _LISTED_MAX), default=20, show_default=True, help="Maximum findings.")
@click.option("--watch", type=options.DURATION, help="Print it again after this time, until Ctrl-C.")
@options.as_json
def status(url: str, limit: int, watch: float | None, timeout: float, token: str | None, as_json: bool) -> int:
    """Show whether the broker is healthy, what it holds, and what needs attention, with causes and remedies.

    Exit code 1 while there is a critical finding.
    """
    while True:
        code = _show(url, limit, timeout, token, as_json=as_json)
        if watch is None:
            return code
        time.sleep(watch)


def _show(url: str, limit: int, timeout: float, token: str | None, *, as_json: bool) -> int:
    from mqcore import admin
    from mqcore._http import AdminClient

    found = admin.attention(url, limit=limit, token=token, timeout=timeout)
    overview = AdminClient(url, token=token, timeout=timeout).ask("GET", "/overview?limit=0")
    if as_json:
        totals = {name: value for name, value in overview["totals"].items() if not isinstance(value, dict)}
        about = {name: overview[name] for name in ("version", "pid", "uptime_seconds", "shards")}
        output.stream("mqcore.status/1", {**about, "totals": totals, **output.plain(found)})
    else:
        _print_overview(found, overview, url)
        print_findings(found.findings, found.total)
    return ExitCode.REFUSED if found.status == "critical" else ExitCode.DONE


def _print_overview(found: Attention, overview: dict[str, Any], url: str) -> None:
    up, totals = age(overview["uptime_seconds"]), overview["totals"]
    state = click.style(found.status, fg={"critical": "red", "warning": "yellow"}.get(found.status, "green"), bold=True)
    click.echo(f"{state}  mqcore {overview['version']} at {url}, process {overview['pid']}, up {up}")
    for values, names in ((totals, _CONTENTS), (totals["messages"], _COUNTERS)):
        click.echo("  ".join(f"{name.replace('_', ' ')} {values[name]:,}" for name in names))
    for listener in overview["listeners"]:
        click.echo(f"listens on {listener['url']}")


def print_findings(findings: tuple[Finding, ...], total: int) -> None:
    """Print findings with their remedies, or that there are none."""
    if not findings:
        click.echo("nothing needs attention")
    now = time.time()
    for finding in findings:
        style = SEVERITY_STYLES.get(finding.severity, "")
        severity = click.style(finding.severity, fg=style.rpartition(" ")[2] or None, bold=style.startswith("bold"))
        click.echo(f"{severity}  {finding.subject}  [{finding.kind}, for {age(now - finding.since_ms / 1000)}]")
        click.echo(f"    {finding.cause}")
        click.echo(f"    to do: {finding.remedy}")
    if total > len(findings):
        click.echo(f"{total - len(findings):,} more; show them with --limit")


@click.group(cls=CommandGroup)
def report() -> None:
    """List what is stuck, slow or dead."""


_STUCK_COLUMNS: Final = ("queue", "ready", "oldest", "in_flight", "consumers", "block")
_SLOW_COLUMNS: Final = ("subject", "cause", "remedy")
_DEAD_COLUMNS: Final = ("queue", "ready", "oldest", "consumers")


@report.command(short_help="List queues whose next message cannot be delivered.")
@options.admin_side(timeout="15s")
@options.as_json
def stuck(url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """List queues with messages that cannot be delivered now, and why, those that wait longest first."""
    found = every_queue(url, token=token, timeout=timeout, sort="oldest")
    rows = [row(queue) for queue in found if queue.ready > 0 and queue.block is not None]
    output.rows("mqcore.report.stuck/1", "queues", rows, _STUCK_COLUMNS, as_json=as_json)


@report.command(short_help="List dead-letter queues with messages.")
@options.admin_side(timeout="15s")
@options.as_json
def dead(url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """List dead-letter queues that have messages."""
    rows = dead_letter_rows(url, token=token, timeout=timeout)
    output.rows("mqcore.report.dead/1", "queues", rows, _DEAD_COLUMNS, as_json=as_json)


@report.command("slow-consumers", short_help="List queues whose consumers are too slow.")
@options.admin_side(timeout="15s")
@options.as_json
def slow_consumers(url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """List queues whose consumers hold all messages they may have, or do not read, while more messages wait."""
    from mqcore import admin

    found = admin.attention(url, limit=_LISTED_MAX, token=token, timeout=timeout).findings
    rows = [output.plain(finding) for finding in found if finding.kind == "slow-consumer"]
    output.rows("mqcore.report.slow-consumers/1", "findings", rows, _SLOW_COLUMNS, as_json=as_json)
