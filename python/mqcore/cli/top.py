"""`mqcore top`: a live table of queues, with what is wrong with each."""

from __future__ import annotations

import contextlib
import select
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from mqcore.cli import options, output
from mqcore.cli.figures import SEVERITY_STYLES, age, bar, notes_by_queue, rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Group

    from mqcore.admin import Attention, QueuePage, QueueState

__all__ = ["top"]

_SORTS: Final = ("ready", "received", "delivered", "oldest", "in_flight", "growth", "consumers", "delayed", "name")
_COLUMNS: Final = ("queue", "status", "ready", "in_flight", "delayed", "in_rate", "out_rate", "ack_rate")
_COLUMNS_END: Final = ("oldest", "consumers", "note")
_TREND_LENGTH: Final = 20
_FINDINGS_SHOWN: Final = 5


@dataclass(slots=True)
class _Screen:
    """The result of one round, and the way it is shown."""

    url: str
    sort: str
    matching: str
    limit: int
    token: str | None
    timeout: float
    reverse: bool = False
    is_frozen: bool = False
    attention: Attention | None = None
    page: QueuePage | None = None
    trends: dict[str, deque[float]] = field(default_factory=dict)

    def refresh(self) -> None:
        """Ask the broker."""
        from mqcore import admin

        self.attention = admin.attention(self.url, limit=10_000, token=self.token, timeout=self.timeout)
        self.page = admin.queues(
            self.url,
            matching=self.matching,
            sort=self.sort,
            reverse=self.reverse,
            limit=self.limit,
            token=self.token,
            timeout=self.timeout,
        )
        shown = {queue.queue for queue in self.page.queues}
        self.trends = {name: trend for name, trend in self.trends.items() if name in shown}
        for queue in self.page.queues:
            trend = self.trends.setdefault(queue.queue, deque(maxlen=_TREND_LENGTH))
            trend.append(queue.ready + queue.in_flight)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each queue of the page."""
        if self.attention is None or self.page is None:
            return []
        notes = notes_by_queue(self.attention.findings)
        return [_row(queue, notes.get(queue.queue, [])) for queue in self.page.queues]


def _row(queue: QueueState, notes: list[str]) -> dict[str, Any]:
    return {
        "queue": queue.queue,
        "status": queue.status,
        "ready": queue.ready,
        "in_flight": queue.in_flight,
        "delayed": queue.delayed,
        "in_rate": queue.rates.received,
        "out_rate": queue.rates.delivered,
        "ack_rate": queue.rates.settled,
        "oldest": queue.oldest_seconds,
        "consumers": queue.consumers,
        "note": ", ".join(notes),
    }


@click.command(short_help="Show a live table of queues.")
@options.admin_side(timeout="15s")
@click.option("--sort", type=click.Choice(_SORTS), default="ready", show_default=True, help="Order of the queues.")
@click.option("--filter", "matching", default="", metavar="TEXT", help="Only queues whose address contains TEXT.")
@click.option("--limit", type=click.IntRange(1, 10_000), help="Maximum queues. [default: the height of the terminal]")
@click.option("--interval", type=options.DURATION, default="1s", show_default=True, help="Time between two updates.")
@click.option("--once", is_flag=True, help="Print one table and exit.")
@options.as_json
def top(
    url: str,
    sort: str,
    matching: str,
    limit: int | None,
    interval: float,
    once: bool,
    timeout: float,
    token: str | None,
    as_json: bool,
) -> None:
    """Show the busiest queues with their rates, the age of their oldest message and what is wrong, until Ctrl-C.

    \b
    s      sort by the next column       r  reverse the order
    space  freeze the screen             q  quit

    If stdout is not a terminal, one table is printed.
    """
    is_live = sys.stdout.isatty() and not once and not as_json
    rows = limit or (max(5, shutil.get_terminal_size().lines - 10 - _FINDINGS_SHOWN) if is_live else 100)
    screen = _Screen(url=url, sort=sort, matching=matching, limit=rows, token=token, timeout=timeout)
    screen.refresh()
    if is_live:
        _run(screen, interval)
    else:
        _print(screen, as_json=as_json)


def _print(screen: _Screen, *, as_json: bool) -> None:
    attention, page = screen.attention, screen.page
    if attention is None or page is None:
        return
    rows = screen.rows()
    if as_json:
        content = {"status": attention.status, "summary": attention.summary, "total": page.total, "queues": rows}
        findings = [output.plain(finding) for finding in attention.findings]
        output.document("mqcore.top/1", {**content, "findings": findings})
        return
    output.rows("mqcore.top/1", "queues", [_readable(row) for row in rows], _COLUMNS + _COLUMNS_END, as_json=False)
    for finding in attention.findings:
        output.talk(f"{finding.severity}: {finding.subject}: {finding.cause}")


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    rates = {name: rate(row[name]) for name in ("in_rate", "out_rate", "ack_rate")}
    return {**row, **rates, "oldest": age(row["oldest"])}


def _run(screen: _Screen, interval: float) -> None:
    """Update the screen until the key `q` is pressed."""
    from rich.live import Live

    from mqcore import errors

    trouble = ""
    with _keys() as read_key, Live(_render(screen, trouble), screen=True, auto_refresh=False) as live:
        due = time.monotonic() + interval
        while True:
            key = read_key(max(0.0, due - time.monotonic()))
            if key in {"q", "\x03", "\x04"}:
                return
            if key == "s":
                screen.sort = _SORTS[(_SORTS.index(screen.sort) + 1) % len(_SORTS)]
            elif key == "r":
                screen.reverse = not screen.reverse
            elif key == " ":
                screen.is_frozen = not screen.is_frozen
            if time.monotonic() >= due or key in {"s", "r"}:
                due = time.monotonic() + interval
                if not screen.is_frozen:
                    try:
                        screen.refresh()
                        trouble = ""
                    except errors.MqcoreError as error:
                        # A broker that restarts is back in a moment; until then the last figures stay.
                        trouble = str(error)
            live.update(_render(screen, trouble), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Read single keys without echo while the block runs. The function waits up to a time; no key is ``""``."""
    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    import os
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode("latin-1") if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _render(screen: _Screen, trouble: str) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    attention, page = screen.attention, screen.page
    if attention is None or page is None:
        return Group(Text("no answer yet"))
    head = Text.assemble(
        ("mqcore top", "bold"),
        f"  {screen.url}  ",
        (attention.status, SEVERITY_STYLES.get(attention.status, "")),
        f"  {page.matched:,} of {page.total:,} queues, by {screen.sort}{' reversed' if screen.reverse else ''}",
        ("  frozen" if screen.is_frozen else "", "bold"),
    )
    table = Table(box=None, header_style="bold", pad_edge=False, expand=True)
    for column in (*_COLUMNS, "trend", *_COLUMNS_END):
        is_text = column in {"queue", "status", "trend", "note"}
        table.add_column(column.replace("_", " ").upper(), justify="left" if is_text else "right", no_wrap=True)
    for row in screen.rows():
        cells = {**_readable(row), "trend": bar(list(screen.trends.get(row["queue"], ())))}
        style = "yellow" if row["note"] else ""
        # Not markup: names may have brackets.
        table.add_row(*(Text(str(cells[name])) for name in (*_COLUMNS, "trend", *_COLUMNS_END)), style=style)
    keys = Text("s sort  r reverse  space freeze  q quit", style="dim")
    return Group(head, Text(trouble, style="bold red"), table, Text(""), *_finding_lines(attention), keys)


def _finding_lines(attention: Attention) -> Sequence[Any]:
    from rich.text import Text

    lines = [
        Text.assemble(
            (finding.severity, SEVERITY_STYLES.get(finding.severity, "")), f"  {finding.subject}: {finding.cause}"
        )
        for finding in attention.findings[:_FINDINGS_SHOWN]
    ]
    if attention.total > _FINDINGS_SHOWN:
        lines.append(Text(f"{attention.total - _FINDINGS_SHOWN:,} more: mqcore status", style="dim"))
    return lines
