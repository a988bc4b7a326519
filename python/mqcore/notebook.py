"""Tables of queues, messages and other results for notebooks, in colors of the notebook's theme.

A notebook shows a `QueueInformation`, a received message, a `StoredMessage` and other results of a client as a table.
For several of them::

    mqcore.notebook.table(await client.queues("orders"))
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

__all__ = ["Table", "Tabular", "table"]

_CELL_CHARACTERS_MAX: Final = 200
_ROWS_MAX: Final = 200
_BODY_BYTES_MAX: Final = 4096
# Colors come from the notebook, so that tables are readable in dark and light themes.
_CELL: Final = 'style="text-align:left;padding:1px 8px"'


class Tabular:
    """A dataclass that notebooks show as a table of its fields, without those that have their default."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _html(type(self).__name__, ("", ""), list(_fields(self).items()), 0)


class Table:
    """Several results as one table, made by `table`."""

    def __init__(self, items: Iterable[object]) -> None:
        self.rows = [_cells(item) for item in items]
        """A mapping of column to value for each result."""

    def _repr_html_(self) -> str:
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        shown = [[row.get(name, "") for name in columns] for row in self.rows[:_ROWS_MAX]]
        return _html("", columns, shown, len(self.rows) - len(shown))

    def __repr__(self) -> str:
        return f"<Table of {len(self.rows)} rows>"


def table(items: Iterable[object]) -> Table:
    """Return a table for a notebook: one row for each result of a client, such as queues or messages.

    It has a column for each field that differs from its default in any of them, and at most 200 rows.

    >>> len(mqcore.notebook.table(broker.stats().queues).rows)
    0
    """
    return Table(items)


def message_html(kind: str, fields: Mapping[str, object], headers: Iterable[tuple[str, str]], body: bytes) -> str:
    """Return a message as a table."""
    rows: list[tuple[str, object]] = [(name, value) for name, value in fields.items() if value not in (None, False)]
    rows += [(f"header {name}", value) for name, value in headers]
    return _html(kind, ("", ""), [*rows, ("body", body)], 0)


def _cells(item: object) -> Mapping[str, object]:
    row: Callable[[], Mapping[str, object]] | None = getattr(item, "_notebook_row", None)
    if row is not None:
        return row()
    if dataclasses.is_dataclass(item):
        return _fields(item)
    return {str(name): value for name, value in item.items()} if isinstance(item, Mapping) else {"": item}


def _fields(item: Any) -> dict[str, object]:
    cells: dict[str, object] = {}
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        if value != default or value is True:
            cells[field.name] = value
    return cells


def _html(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], omitted: int) -> str:
    names = list(columns)
    caption = f"<caption {_CELL}><b>{html.escape(title)}</b></caption>" if title else ""
    heads = "".join(f"<th {_CELL}>{html.escape(name)}</th>" for name in names)
    head = f"<thead><tr>{heads}</tr></thead>" if any(names) else ""
    body = "".join(f"<tr>{''.join(f'<td {_CELL}>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    rest = f"<p>{omitted} more</p>" if omitted else ""
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>{rest}"


def _text(value: object) -> str:
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        # Of an overview, such as `BrokerStats`; `table` shows them.
        return str(len(value))
    if isinstance(value, bytes):
        value = _body(value)
    text = ", ".join(f"{name}: {each}" for name, each in value.items()) if isinstance(value, Mapping) else str(value)
    if len(text) > _CELL_CHARACTERS_MAX:
        text = f"{text[:_CELL_CHARACTERS_MAX]}…"
    return html.escape(text)


def _body(body: bytes) -> str:
    try:
        # More than is shown, so that the cut does not make the end of a long body undecodable.
        return body.decode() if len(body) <= _BODY_BYTES_MAX else body[:_BODY_BYTES_MAX].decode(errors="replace")
    except UnicodeDecodeError:
        return f"{len(body)} bytes: {body[:32].hex(' ')}"
