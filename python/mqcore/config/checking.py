"""All problems of a configuration file at once, where the reader stops at the first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mqcore.config import broker, convert
from mqcore.config.routing import Binding
from mqcore.config.toml_lines import Path
from mqcore.errors import ConfigError
from mqcore.tls import Listener, ListenerTLS

__all__ = ["Problem", "place", "problems"]


_OWN_CHECKS: Final = {Binding, Listener, ListenerTLS}
"""Classes that check their values when they are made, not by `convert.check`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a configuration file."""

    path: Path
    """Its place; empty: the whole file."""
    message: str


def problems(document: Mapping[str, Any]) -> list[Problem]:
    """Return what the reader would reject, in the order of the file."""
    found: list[Problem] = []
    known = broker.document_keys(document)
    written: dict[str, Any] = {}
    for key, value in document.items():
        try:
            # Two keys that mean the same, and `[queue]` where a list is needed.
            broker.check_names({**written, key: value})
        except ConfigError as error:
            found.append(Problem((key,), str(error)))
        else:
            written[key] = value
            found += _of_key(known, key, value, ())
    if not found:
        found += _of_whole(document)
    return found


def _of_whole(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems between settings, which show only when all are read together."""
    try:
        broker.BrokerConfig.from_document(document)
    except ConfigError as error:
        yield Problem((), str(error))


def _of_table(cls: type[Any], table: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    known = convert.keys(cls)
    sound: dict[str, Any] = {}
    for key, value in table.items():
        found = list(_of_key(known, key, value, path))
        if not found:
            sound[key] = value
        yield from found
    required = {key.name for key in known.values() if key.is_required}
    given = {known[key].name for key in table if key in known}
    for name in sorted(required - given):
        yield Problem(path, f"the setting {place((*path, name))!r} is missing")
    if required <= {known[key].name for key in sound}:
        try:
            convert.build(cls, sound, "")
        except ConfigError as error:
            # Checks of a whole table begin their messages with the setting.
            word = str(error).split(maxsplit=1)[0].rstrip(":")
            yield Problem((*path, word) if word in table else path, str(error))


def _of_key(known: Mapping[str, convert.Key], written: str, value: Any, path: Path) -> Iterator[Problem]:
    inside = (*path, written)
    if written not in known:
        yield Problem(inside, convert.unknown_key(place(inside), written, known))
        return
    key = known[written]
    inner = convert.parts(key.hint)
    if inner is not None and isinstance(value, Mapping) and not convert.is_list(key.hint):
        yield from _of_table(inner, value, inside)
    elif inner is not None and isinstance(value, list) and convert.is_list(key.hint):
        for position, entry in enumerate(value):
            yield from _of_entry(key, inner, entry, (*inside, position))
    else:
        yield from _of_value(key, value, inside)


def _of_entry(key: convert.Key, inner: type[Any], entry: Any, path: Path) -> Iterator[Problem]:
    if isinstance(entry, Mapping):
        yield from _of_table(inner, entry, path)
    else:
        yield from _of_value(key, [entry], path)


def _of_value(key: convert.Key, value: Any, path: Path) -> Iterator[Problem]:
    if key.owner in _OWN_CHECKS:
        return
    try:
        convert.converted(key.owner, key.name, value)
    except ConfigError as error:
        yield Problem(path, str(error))


def place(path: Path) -> str:
    """Return a path as text: ``queue[0].status``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
