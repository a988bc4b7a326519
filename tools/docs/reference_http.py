"""Generates the reference of the admin API from docs/openapi.json, which a test compares with the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tables import cell, code, table

HEAD = """# HTTP reference

The admin side of a broker, at the address of `--admin`. [Operations](../operations.md) explains it, and
[security](../security.md#the-admin-side) describes logins and rights. The same in OpenAPI 3.1:
[openapi.json](../openapi.json).
"""
# Answers that every path has.
COMMON = {"400", "401", "403", "405", "429", "503"}


def page(openapi: Path) -> str:
    """The page with all paths and schemas."""
    described = json.loads(openapi.read_text(encoding="utf-8"))
    parts = [HEAD]
    answers: dict[str, str] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts.append(f"## {method.upper()} {path}\n")
            parts.extend(operation_text(operation))
            answers |= {key: value["description"] for key, value in operation["responses"].items() if key in COMMON}
    parts.append("## Errors of every path\n")
    parts.append(table(("status", "meaning"), sorted((key, cell(value)) for key, value in answers.items())))
    parts.append("## Schemas\n")
    for name, schema in sorted(described["components"]["schemas"].items()):
        parts.append(f"### {name}\n")
        parts.append(schema_text(schema))
    return "\n".join(parts)


def operation_text(operation: dict[str, Any]) -> list[str]:
    """Summary, parameters, body and answers of an operation."""
    parts = [text + "\n" for text in (operation.get("summary"), operation.get("description")) if text]
    rows = [
        (code(entry["name"]), entry["in"], typed(entry["schema"]), cell(entry.get("description", "")))
        for entry in operation.get("parameters", [])
    ]
    if rows:
        parts.append(table(("parameter", "in", "type", "meaning"), rows))
    if "requestBody" in operation:
        kinds = [typed(entry.get("schema", {})) for entry in operation["requestBody"]["content"].values()]
        parts.append(f"Body: {', '.join(kinds)}\n")
    rows = [
        (status, cell(answer["description"]), ", ".join(content_types(answer)))
        for status, answer in operation["responses"].items()
        if status not in COMMON
    ]
    parts.append(table(("status", "meaning", "content"), [(a, b, c) for a, b, c in rows]))
    return parts


def content_types(answer: dict[str, Any]) -> list[str]:
    """The types of the content of an answer."""
    return [
        typed(content["schema"]) if "schema" in content and kind == "application/json" else code(kind)
        for kind, content in answer.get("content", {}).items()
    ]


def typed(schema: dict[str, Any] | bool) -> str:
    """The type of a value, with a link to a schema of its own."""
    if isinstance(schema, bool):
        return "any"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("oneOf", "anyOf", "allOf"):
        if several in schema:
            return " or ".join(typed(entry) for entry in schema[several])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {typed(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {typed(schema['additionalProperties'])}"
    if "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema["enum"])
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def schema_text(schema: dict[str, Any]) -> str:
    """The members of a schema."""
    text = schema.get("description", "")
    required = set(schema.get("required", []))
    rows = [
        (code(name), typed(entry), "always" if name in required else "", cell(entry.get("description", "")))
        for name, entry in schema.get("properties", {}).items()
    ]
    if not rows:
        return f"{text}\n\nType: {typed(schema)}\n"
    return f"{text}\n\n" + table(("member", "type", "present", "meaning"), rows)
