"""Output of the program: data on stdout, messages for people on stderr, JSON with a schema name for `--json`."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import click

__all__ = [
    "Advance",
    "document",
    "done",
    "growing",
    "plain",
    "progress",
    "readable_body",
    "record",
    "rows",
    "stream",
    "talk",
]

Json = Mapping[str, object]

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
# Names of the fields of each dataclass that was printed.
_NAMES: Final[dict[type[Any], tuple[str, ...]]] = {}


def talk(message: str) -> None:
    """Print a message for people on stderr."""
    click.echo(message, err=True)


def document(schema: str, content: Json) -> None:
    """Print one JSON document."""
    click.echo(json.dumps({"schema": schema, **content}, ensure_ascii=False))


def stream(schema: str, content: Json) -> None:
    """Print one JSON object of a stream and flush, so that a pipe receives it immediately."""
    document(schema, content)
    sys.stdout.flush()


def done(schema: str, message: str, content: Json, *, as_json: bool) -> None:
    """Report a completed action: `content` as JSON on stdout, or `message` on stderr."""
    if as_json:
        document(schema, content)
    else:
        talk(message)


def plain(value: Any) -> dict[str, Any]:
    """Return a dataclass as a JSON object."""
    # `asdict` copies each value deeply, which takes seconds for a list of 100,000 queues.
    return {name: _plain_value(getattr(value, name)) for name in _field_names(type(value))}


def _field_names(kind: type[Any]) -> tuple[str, ...]:
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return names


def _plain_value(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if dataclasses.is_dataclass(value):
        return plain(value)
    if isinstance(value, Mapping):
        return {name: _plain_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(each) for each in value]
    return value


def rows(schema: str, key: str, content: Sequence[Json], columns: Sequence[str], *, as_json: bool) -> None:
    """Print a list: as JSON, as a table on a terminal, or as tab-separated lines with a heading."""
    if as_json:
        document(schema, {key: content})
    elif sys.stdout.isatty():
        _table(content, columns)
    else:
        lines = ["\t".join(columns)]
        lines += ["\t".join(_cell(row.get(column)) for column in columns) for row in content]
        # At once, because each call flushes.
        click.echo("\n".join(lines))


def record(schema: str, content: Json, *, as_json: bool) -> None:
    """Print one record: as JSON, or as one line per field."""
    if as_json:
        document(schema, content)
        return
    width = max((len(name) for name in content), default=0) if sys.stdout.isatty() else 0
    for name, value in content.items():
        click.echo(f"{name.ljust(width)}\t{_cell(value)}")


def readable_body(body: bytes) -> Json:
    """Return a body as a member of a JSON object: `body` if it is UTF-8, else `body_base64`."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


class Advance(Protocol):
    """Advances a progress bar by `count`."""

    def __call__(self, count: int = 1) -> None:
        """Advance the bar."""


@contextmanager
def progress(what: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Advance]:
    """Show a progress bar on stderr while the block runs, if stderr is a terminal.

    It shows the rate per second and, if `total` is known, the remaining time. Amounts are messages, or bytes with
    `in_bytes`.
    """
    done = 0
    with growing(what, total, in_bytes=in_bytes) as show:

        def advance(count: int = 1) -> None:
            nonlocal done
            done += count
            show(done, total)

        yield advance


@contextmanager
def growing(
    what: str, total: int | None = None, *, in_bytes: bool = False
) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar like `progress`; each call sets the amount done and the total, if it is known by then."""
    if not sys.stderr.isatty():
        yield _unseen
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """Messages per second."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f}/s")

    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
    speed = TransferSpeedColumn() if in_bytes else Rate()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, speed, TimeElapsedColumn(), TimeRemainingColumn())
    # Rich would print on the terminal what the program writes to a stdout that is a pipe or a file.
    is_redirected = sys.stdout.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=is_redirected) as bar:
        task = bar.add_task(what, total=total)

        def show(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield show


def _unseen(_done: int, _total: int | None) -> None:
    return


def _table(content: Iterable[Json], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "))
    for row in content:
        # Not markup: names and tags of users may have brackets.
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))
    Console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)
