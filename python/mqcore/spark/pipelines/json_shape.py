"""Kinds of message bodies, and the values of JSON bodies by path. Does not need Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

__all__ = ["KINDS", "Value", "decoded", "json_type", "member", "values"]

KINDS: Final = ("object", "json", "text", "binary", "not-recorded")
"""Kinds of bodies: a JSON object, other JSON, other text, bytes that are not UTF-8, or not in the history."""

_TEXT_MAX: Final = 128
"""Characters of a text that are compared. Texts that begin alike this far count as equal."""
_DEPTH_MAX: Final = 32
"""Levels of nesting whose values are profiled."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Value(NamedTuple):
    """One value of a body."""

    path: str
    """Such as ``$.lines[].price``."""
    type: str
    """Type in JSON Schema."""
    number: float | None
    """The number, or the length of a text or a list."""
    text: str | None
    """The value as text, to count different ones; `None` for objects and lists."""


def decoded(body: bytes | None) -> tuple[str, Any]:
    """Return the kind of a body, and its content if it is JSON."""
    if body is None:
        return "not-recorded", None
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ("text" if _is_text(body) else "binary"), None
    return ("object" if isinstance(content, dict) else "json"), content


def _is_text(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def json_type(value: Any) -> str:
    """Return the type of a decoded value in JSON Schema; ``integer`` only for numbers without a fraction part."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def member(path: str, name: str) -> str:
    """Return the path of an object's member."""
    return f"{path}.{name}" if _NAME.fullmatch(name) else f"{path}[{json.dumps(name, ensure_ascii=False)}]"


def values(content: Any) -> Iterator[Value]:
    """Yield the content and all values within it. Elements of a list share one path."""
    yield from _values("$", content, 0)


def _values(path: str, value: Any, depth: int) -> Iterator[Value]:
    kind = json_type(value)
    match kind:
        case "object":
            yield Value(path, kind, None, None)
            if depth < _DEPTH_MAX:
                for name, inner in value.items():
                    yield from _values(member(path, name), inner, depth + 1)
        case "array":
            yield Value(path, kind, float(len(value)), None)
            if depth < _DEPTH_MAX:
                for inner in value:
                    yield from _values(f"{path}[]", inner, depth + 1)
        case "string":
            yield Value(path, kind, float(len(value)), value[:_TEXT_MAX])
        case "integer" | "number":
            yield Value(path, kind, _finite(value), repr(value)[:_TEXT_MAX])
        case "boolean":
            yield Value(path, kind, None, "true" if value else "false")
        case _:
            yield Value(path, kind, None, None)


def _finite(value: float) -> float | None:
    """A number as a float; `None` for an integer that is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return None
