"""The JSON Schema of configuration files, made of the tables of options that their reader uses."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from mqcore._option_table import CHANNEL_OPTIONS, QUEUE_OPTIONS
from mqcore.config import broker, convert
from mqcore.config.documented import meanings
from mqcore.config.duration import PATTERN
from mqcore.config.routing import Binding

__all__ = ["json_schema"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_MAXIMUMS: Final = {
    "ChannelOptions": {option.name: option.maximum for option in CHANNEL_OPTIONS if option.kind == "count"},
    "QueueOptions": {option.name: option.maximum for option in QUEUE_OPTIONS if option.kind == "count"},
}
"""Largest values of the options that the broker stores in fewer than 64 bits."""

_TEXTS: Final = {"type": "array", "items": {"type": "string"}}


def json_schema() -> dict[str, Any]:
    """Return the schema, of the dialect 2020-12. It describes each value in the form that files use.

    The reader also accepts texts where environment variables need them, for example ``"yes"`` for ``true``.
    """
    definitions: dict[str, Any] = {}
    known = broker.document_keys({})
    content = _properties(known, definitions)
    # A table has the defaults of new channels, a list declares channels.
    content["channel"] = {"anyOf": [content["channel"], content["channels"]]}
    return {
        "$schema": _DIALECT,
        "title": "Configuration of an mqcore broker",
        "type": "object",
        "properties": content,
        "additionalProperties": False,
        "$defs": definitions,
    }


def _properties(known: Mapping[str, convert.Key], definitions: dict[str, Any]) -> dict[str, Any]:
    described = {written: _property(key, definitions) for written, key in known.items()}
    return {written: each for written, each in described.items() if each is not None}


def _property(key: convert.Key, definitions: dict[str, Any]) -> dict[str, Any] | None:
    """Describe a key, or return `None` if only programs can set it."""
    described = _type(key, definitions)
    if described is None:
        return None
    about = meanings(key.owner).get(key.name)
    default = _default(key)
    return {
        **({} if about is None else {"description": about}),
        **described,
        **({} if default is None else {"default": default}),
    }


def _type(key: convert.Key, definitions: dict[str, Any]) -> dict[str, Any] | None:
    kinds = [kind for kind in convert.choices(key.hint) if kind is not types.NoneType]
    inner = convert.parts(key.hint)
    if inner is not None:
        table = _table(inner, definitions)
        if not convert.is_list(key.hint):
            return table
        return {"type": "array", "items": _or_text(inner, table)}
    if timedelta in kinds:
        return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{PATTERN}$"}]}
    return None if convert.is_function(key.hint) else _plain_type(key, kinds[0])


def _plain_type(key: convert.Key, kind: Any) -> dict[str, Any]:
    if kind is bool:
        return {"type": "boolean"}
    if kind is int:
        limit = _MAXIMUMS.get(key.owner.__name__, {}).get(key.name)
        is_signed = (key.owner, key.name) == (Binding, "priority")
        return {
            "type": "integer",
            **({} if is_signed else {"minimum": 0}),
            **({} if limit is None or limit >= 2**53 else {"maximum": limit}),
        }
    if kind == tuple[int, ...]:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}}
    if kind == tuple[str, ...]:
        return {"anyOf": [_TEXTS, {"type": "string"}]}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": [member.value for member in kind]}
    return {"type": "string"}


def _table(cls: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    name = cls.__name__
    if name not in definitions:
        # Before its properties, which may refer to it.
        definitions[name] = {}
        known = convert.keys(cls)
        required = sorted({key.name for key in known.values() if key.is_required})
        definitions[name] = {
            "type": "object",
            "properties": _properties(known, definitions),
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}


def _or_text(cls: type[Any], table: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [table, {"type": "string"}]} if hasattr(cls, "from_text") else table


def _default(key: convert.Key) -> Any:
    """Return the default of a key as a file would write it; `None`: it has none, or inherits one."""
    (entry,) = (entry for entry in dataclasses.fields(key.owner) if entry.name == key.name)
    value = entry.default
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if isinstance(value, bool | int | float | str) else None
