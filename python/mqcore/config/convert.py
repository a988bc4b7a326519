"""From tables and loose values to typed options, with errors that name the setting."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar, Union

from mqcore.config.duration import seconds
from mqcore.errors import ConfigError

__all__ = [
    "Key",
    "build",
    "check",
    "choices",
    "converted",
    "count",
    "declared",
    "is_function",
    "is_list",
    "keys",
    "parts",
    "same_word",
    "text",
    "unknown_key",
]

_Word = TypeVar("_Word", bound=StrEnum)


def same_word(cls: type[_Word], value: object) -> _Word | None:
    """Return the member that a text spells, without regard to case and separators."""
    if not isinstance(value, str):
        return None
    word = re.sub("[-_ ]", "", value).lower()
    return next((member for member in cls if member.replace("-", "") == word), None)


# Each table of a list is one of its things.
_TABLES: Final = {"router": "routers", "binding": "bindings"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table in a file."""

    name: str
    """The field that it sets."""
    owner: type[Any]
    """The class of this field."""
    hint: Any
    """The type of the field."""
    is_required: bool


_KEYS: Final[dict[type[Any], dict[str, Key]]] = {}


def keys(cls: type[Any]) -> Mapping[str, Key]:
    """Return the keys that a table of options may have, as they are written.

    The reader, `mqcore config check` and the JSON Schema use them, so that all three know the same keys.
    """
    known = _KEYS.get(cls)
    if known is None:
        known = _KEYS[cls] = _keys(cls)
    return known


def _keys(cls: type[Any]) -> dict[str, Key]:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    found = {entry.name: Key(entry.name, cls, hints[entry.name], _is_required(entry)) for entry in fields}
    if hasattr(cls, "from_table"):
        # A declaration has the name beside the options.
        del found["options"]
        found |= _keys(hints["options"])
    return found | {written: found[name] for written, name in _TABLES.items() if name in found}


def parts(hint: Any) -> type[Any] | None:
    """Return the class of the options in a table, or in each table of a list; `None` for other types."""
    kinds = typing.get_args(hint) or (hint,)
    return next((kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)), None)


def is_list(hint: Any) -> bool:
    """Return whether a field has several values."""
    return any(typing.get_origin(kind) is tuple for kind in choices(hint))


def is_function(hint: Any) -> bool:
    """Return whether a field has a function, which only programs can give."""
    return any(typing.get_origin(kind) is collections.abc.Callable for kind in choices(hint))


def choices(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the only one."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def build(cls: type[Any], settings: Mapping[str, Any], path: str) -> Any:
    """Make options of a table. `path` is the place of the table, for errors. Raises `ConfigError`."""
    if (from_table := getattr(cls, "from_table", None)) is not None:
        return from_table(settings, path)
    known = keys(cls)
    arguments: dict[str, Any] = {}
    for written, value in settings.items():
        if written not in known:
            raise ConfigError(unknown_key(path + written, written, (*known, *getattr(cls, "file_names", ()))))
        key = known[written]
        if key.name in arguments:
            raise ConfigError(f"{path + written!r} and {path + key.name!r} mean the same; write one of them")
        arguments[key.name] = _nested(key.hint, value, f"{path}{key.name}.")
    missing = [name for name, key in known.items() if key.is_required and key.name not in arguments]
    if missing:
        raise ConfigError(f"the setting {path + missing[0]!r} is missing")
    return cls(**arguments)


def unknown_key(place: str, written: str, known: collections.abc.Collection[str]) -> str:
    """Return the message about a key that does not exist."""
    return f"there is no setting {place!r}; {_suggestion(written, known)}"


def _suggestion(written: str, known: collections.abc.Collection[str]) -> str:
    near = difflib.get_close_matches(written, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}there are: {', '.join(sorted(known))}"


def declared(cls: type[Any], options: type[Any], table: Mapping[str, Any], path: str) -> Any:
    """Make a declaration of a table, in which the name is beside the options. Raises `ConfigError`."""
    if "name" not in table:
        raise ConfigError(f"the setting {path + 'name'!r} is missing")
    rest = {key: value for key, value in table.items() if key != "name"}
    return cls(table["name"], build(options, rest, path))


def _is_required(entry: dataclasses.Field[Any]) -> bool:
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING


def _nested(hint: Any, value: Any, path: str) -> Any:
    """Make options of a table, as the type of its field requires; return other values unchanged."""
    inner = parts(hint)
    if inner is None:
        return value
    if isinstance(value, Mapping):
        return build(inner, value, path)
    if isinstance(value, list):
        return [_nested(inner, entry, path) for entry in value]
    return value


def check(options: Any) -> None:
    """Make every field of a frozen dataclass what its type says, or raise `ConfigError`."""
    for name in _converters(type(options)):
        object.__setattr__(options, name, converted(type(options), name, getattr(options, name)))


def converted(cls: type[Any], name: str, value: Any) -> Any:
    """Return a value as the type of a field requires. Raises `ConfigError`."""
    convert = _converters(cls)[name]
    if value is None and convert.optional:
        return None
    try:
        return convert.function(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except (TypeError, ValueError):
        is_secret = any(entry.name == name and not entry.repr for entry in dataclasses.fields(cls))
        raise ConfigError(f"{name} cannot be {'***' if is_secret else repr(value)}; it is {convert.wanted}") from None


@dataclass(frozen=True, slots=True)
class _Converter:
    function: Callable[[Any], Any]
    wanted: str
    optional: bool


_CONVERTERS: Final[dict[type[Any], dict[str, _Converter]]] = {}


def _converters(cls: type[Any]) -> dict[str, _Converter]:
    known = _CONVERTERS.get(cls)
    if known is None:
        hints = typing.get_type_hints(cls)
        known = {entry.name: _converter(hints[entry.name]) for entry in dataclasses.fields(cls)}
        _CONVERTERS[cls] = known
    return known


def _converter(hint: Any) -> _Converter:
    optional = types.NoneType in choices(hint)
    kinds = [kind for kind in choices(hint) if kind is not types.NoneType]
    if timedelta in kinds:
        return _Converter(seconds, "seconds, a timedelta, or text such as '30s'", optional)
    (kind,) = kinds
    if kind is bool:
        return _Converter(_flag, "true or false", optional)
    if kind is int:
        return _Converter(count, "a whole number, not negative", optional)
    if kind is str:
        return _Converter(text, "text", optional)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _Converter(kind, "one of " + ", ".join(kind), optional)
    if kind == tuple[str, ...]:
        return _Converter(lambda value: tuple(map(text, _several(value))), "a list of texts", optional)
    if kind == tuple[int, ...]:
        return _Converter(lambda value: tuple(map(count, _several(value))), "a list of numbers", optional)
    if is_function(kind):
        return _Converter(_function, "a function, which only a program can give", optional)
    if typing.get_origin(kind) is tuple:
        part = typing.get_args(kind)[0]
        return _Converter(lambda value: _all_built(value, part), f"a list of {part.__name__}s", optional)
    return _Converter(lambda value: _model(value, kind), f"a {kind.__name__}", optional)


def _all_built(values: Any, kind: type[Any]) -> tuple[Any, ...]:
    """Take instances as they are, and make those of tables that a file has in their place."""
    if isinstance(values, str):
        raise TypeError
    return tuple(_model(value, kind) for value in values)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.lower()
        if word in {"true", "yes", "on", "1"}:
            return True
        if word in {"false", "no", "off", "0"}:
            return False
    raise ValueError


def count(value: object) -> int:
    """Return a number that is not negative. Raises `TypeError` or `ValueError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError
    number = int(value.replace("_", "")) if isinstance(value, str) else value
    if number < 0:
        raise ValueError
    return number


def _function(value: object) -> object:
    if not callable(value):
        raise TypeError
    return value


def text(value: object) -> str:
    """Return text or a path as text. Raises `TypeError` for anything else."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if not isinstance(value, str):
        raise TypeError
    return value


def _several(value: Any) -> list[Any]:
    """Split text at commas, as in an environment variable; a list stays a list."""
    if isinstance(value, str):
        return [part for part in (part.strip() for part in value.split(",")) if part]
    return list(value)


def _model(value: object, kind: type[Any]) -> object:
    if isinstance(value, Mapping):
        return build(kind, value, "")
    if isinstance(value, str) and (from_text := getattr(kind, "from_text", None)) is not None:
        return from_text(value)
    if not isinstance(value, kind):
        raise TypeError
    return value
