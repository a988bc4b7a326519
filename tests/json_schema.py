"""Validation of a value against a JSON Schema, for the words that the schema of the configuration uses."""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "number": int | float}
_KNOWN = {
    *("$schema", "$defs", "$ref", "title", "description", "default", "type", "properties", "required", "items"),
    *("additionalProperties", "anyOf", "enum", "pattern", "minimum", "maximum"),
}


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any], place: str = "") -> list[str]:
    """The rules that a value breaks. A schema with an unknown word is an error."""
    assert schema.keys() <= _KNOWN, schema.keys() - _KNOWN
    if "$ref" in schema:
        rest = {word: content for word, content in schema.items() if word != "$ref"}
        name = schema["$ref"].removeprefix("#/$defs/")
        return violations(value, root["$defs"][name], root, place) + violations(value, rest, root, place)
    if "anyOf" in schema:
        results = [violations(value, each, root, place) for each in schema["anyOf"]]
        if not any(not result for result in results):
            return [f"{place}: {value!r} has none of the forms: {results}"]
    found = _of_value(value, schema, place)
    if found:
        return found
    if isinstance(value, dict):
        return _of_table(value, schema, root, place)
    if isinstance(value, list) and "items" in schema:
        parts = (violations(each, schema["items"], root, f"{place}[{n}]") for n, each in enumerate(value))
        return [each for part in parts for each in part]
    return []


def _of_value(value: Any, schema: dict[str, Any], place: str) -> list[str]:
    if "type" in schema and not _has_type(value, schema["type"]):
        return [f"{place}: {value!r} is not of the type {schema['type']}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{place}: {value!r} is none of {schema['enum']}"]
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return [f"{place}: {value!r} does not match {schema['pattern']}"]
    if value < schema["minimum"] if "minimum" in schema else False:
        return [f"{place}: {value!r} is below {schema['minimum']}"]
    if value > schema["maximum"] if "maximum" in schema else False:
        return [f"{place}: {value!r} is above {schema['maximum']}"]
    return []


def _has_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, int) if name == "integer" else isinstance(value, _TYPES[name])


def _of_table(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], place: str) -> list[str]:
    known = schema.get("properties", {})
    found = [f"{place}: {name} is missing" for name in schema.get("required", ()) if name not in value]
    for name, each in value.items():
        if name in known:
            found += violations(each, known[name], root, f"{place}.{name}")
        elif schema.get("additionalProperties") is False:
            found.append(f"{place}: {name} is unknown")
    return found
