"""All problems of a configuration file: what its reader rejects, or else what a broker rejects before it starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mqcore import errors
from mqcore.config import BrokerConfig, broker, checking
from mqcore.config.checking import Problem, place
from mqcore.config.effective import redacted
from mqcore.config.toml_lines import key_lines, line_of

__all__ = ["LocatedProblem", "problems_of"]

_JSON_PLACE: Final = re.compile(r" at line \d+ column \d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedProblem:
    """A problem and the place where it is."""

    file: Path
    line: int | None
    """``None``: the whole file."""
    setting: str | None
    """For example ``queue[0].status``."""
    message: str
    """The problem, without secrets."""

    @property
    def place(self) -> str:
        """The file and the line: ``mqcore.toml:3:``."""
        return f"{self.file}:" if self.line is None else f"{self.file}:{self.line}:"


def problems_of(file: Path) -> list[LocatedProblem]:
    """Return the problems in the order of the file. Raises `ConfigError` if it cannot be read or is not TOML."""
    document = broker.read_document(file)
    lines = key_lines(file.read_text(encoding="utf-8"))
    found = checking.problems(document) or _broker_problems(document)
    return [
        LocatedProblem(
            file=file,
            line=line_of(problem.path, lines),
            setting=place(problem.path) or None,
            # The broker reads users and tokens from JSON, whose places mean nothing in the file.
            message=_JSON_PLACE.sub("", redacted(problem.message)),
        )
        for problem in found
    ]


def _broker_problems(document: dict[str, Any]) -> Iterator[Problem]:
    """Find what a broker rejects before it starts: URLs, rates, rules, names.

    Each setting is tried alone, so that an error belongs to it.
    """
    whole = _rejection(document)
    if whole is None:
        return
    found = [problem for key, value in document.items() for problem in _of_setting(key, value)]
    yield from found or [Problem((), whole)]


def _of_setting(key: str, value: Any) -> Iterator[Problem]:
    if isinstance(value, list):
        yield from _of_entries(key, value, 0)
    elif (message := _rejection({key: value})) is not None:
        yield Problem((key,), message)


def _of_entries(key: str, entries: list[Any], first: int) -> Iterator[Problem]:
    """Find the entries of a list that are rejected, by halves, because a file may declare thousands of queues."""
    message = _rejection({key: entries})
    if message is None:
        return
    middle = len(entries) // 2
    found: list[Problem] = []
    if middle > 0:
        found += _of_entries(key, entries[:middle], first)
        found += _of_entries(key, entries[middle:], first + middle)
    # Entries may be rejected only together.
    yield from found or [Problem((key, first), message)]


def _rejection(document: dict[str, Any]) -> str | None:
    from mqcore import _core

    try:
        _core.Broker(BrokerConfig.from_document(document))
    except errors.MqcoreError as error:
        return str(error)
    return None
