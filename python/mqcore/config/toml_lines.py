"""Lines of the keys in a TOML file, which the parser of the standard library does not report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, TypeAlias

__all__ = ["Path", "key_lines", "line_of"]

Path: TypeAlias = tuple[str | int, ...]
"""Keys and, in lists of tables, positions from 0 on: ``("queue", 0, "status")``."""

_KEY: Final = re.compile(r"""\s*(?:"((?:\\.|[^"\\])*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*""")

# Strings and comments, which may contain the other characters, brackets, and ends of lines.
_TOKEN: Final = re.compile(
    r""""{3}(?:\\.|[^\\])*?"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|[\[\]{}\n]""", re.DOTALL
)


def key_lines(text: str) -> dict[Path, int]:
    """Return the line of each table and key of a valid TOML file. Keys in inline tables have none of their own."""
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    for number, statement in _statements(text):
        if statement.startswith("[["):
            parent = _resolved(_keys(statement[2:]), counts, with_last=False)
            counts[parent] = counts.get(parent, 0) + 1
            lines.setdefault(parent, number)
            table = (*parent, counts[parent] - 1)
        elif statement.startswith("["):
            table = _resolved(_keys(statement[1:]), counts, with_last=True)
        else:
            lines[(*table, *_keys(statement))] = number
            continue
        lines.setdefault(table, number)
    return lines


def line_of(path: Path, lines: dict[Path, int]) -> int | None:
    """Return the line of a key, else that of the innermost table or list around it that has one."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Split the text into headings and assignments, each with its first line, even if it has several."""
    start, line, depth = 0, 1, 0
    first = line
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        elif mark == "\n" and depth == 0:
            yield from _statement(first, text[start : token.start()])
            start, first = token.end(), line + 1
        line += mark.count("\n")
    yield from _statement(first, text[start:])


def _statement(line: int, text: str) -> Iterator[tuple[int, str]]:
    written = text.strip()
    if written and not written.startswith("#"):
        yield line, written


def _keys(text: str) -> list[str]:
    """Read a dotted key from the beginning of the text."""
    found: list[str] = []
    position = 0
    while (match := _KEY.match(text, position)) is not None:
        found.append(next(part for part in match.groups() if part is not None))
        position = match.end()
        if text[position : position + 1] != ".":
            break
        position += 1
    return found


def _resolved(written: list[str], counts: dict[Path, int], *, with_last: bool) -> Path:
    """Insert the positions of the tables that lists have got last, `with_last` also behind the last key."""
    path: Path = ()
    for number, key in enumerate(written):
        path = (*path, key)
        if path in counts and (with_last or number < len(written) - 1):
            path = (*path, counts[path] - 1)
    return path
