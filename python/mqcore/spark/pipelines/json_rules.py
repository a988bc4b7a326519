"""Rules for bodies: a JSON Schema file or a msgspec type for each queue, checked without Spark."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from mqcore import errors
from mqcore.spark.pipelines.destinations import queue_name
from mqcore.spark.pipelines.json_shape import member

__all__ = ["Checker", "Rule", "Violation", "parse"]

_ERRORS_MAX: Final = 20
"""Violations of one message that are counted."""
_TEXT_MAX: Final = 200
_INDEX: Final = re.compile(r"\[[0-9]+\]")


class Violation(NamedTuple):
    """A difference between a body and its rule."""

    rule: str
    """Keyword of JSON Schema, such as ``required``, or the error of msgspec without values."""
    path: str
    """Place in the body, such as ``$.lines[].price``."""
    text: str
    """Description with the value."""


Checker: TypeAlias = Callable[[bytes, Any], list[Violation]]
"""Checks a body, given as bytes and decoded."""


@dataclass(frozen=True)
class Rule:
    """A rule in a form that can be sent to executors."""

    name: str
    """The file, or ``MODULE:TYPE``."""
    schema: str | None
    """JSON Schema as text; `None` for a msgspec type."""
    folder: str
    """Folder from which the module of a type can be imported."""

    def checker(self) -> Checker:
        """Return the function that checks bodies. Raises `ConfigError` if a type cannot be imported."""
        return _type_checker(self) if self.schema is None else _schema_checker(json.loads(self.schema))


def parse(text: str) -> dict[str, Rule]:
    """Parse ``RULE``, or ``QUEUE=RULE`` pairs separated by commas; return rules by queue in lower case.

    A rule is a file with a JSON Schema, or ``MODULE:TYPE``, a type that msgspec decodes. The key ``""`` is for all
    other queues. Raises `ConfigError`.
    """
    found: dict[str, Rule] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        queue, equals, source = part.partition("=")
        name = queue_name("schema", queue).lower() if equals else ""
        if name in found:
            raise errors.ConfigError(f"schema has two rules for {name or 'all queues'}; give one")
        found[name] = _rule((source if equals else part).strip())
    return found


def _rule(source: str) -> Rule:
    path = Path(source)
    if not path.is_file() and re.fullmatch(r"[\w.]+:[\w.]+", source):
        rule = Rule(source, None, os.getcwd())
        rule.checker()
        return rule
    try:
        schema = json.loads(path.read_bytes())
    except OSError as error:
        raise errors.ConfigError(
            f"schema {source} cannot be read: {error.strerror}; give a JSON Schema file or MODULE:TYPE"
        ) from error
    except ValueError as error:
        raise errors.ConfigError(f"schema {source} is not valid JSON: {error}") from error
    _check_schema(source, schema)
    return Rule(source, json.dumps(schema), "")


def _check_schema(source: str, schema: Any) -> None:
    validators = _jsonschema()
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except Exception as error:
        reason = getattr(error, "message", str(error))
        raise errors.ConfigError(f"schema {source} is not a valid JSON Schema: {reason}") from error
    names = {part["$id"] for part in _objects(schema) if isinstance(part.get("$id"), str)}
    for part in _objects(schema):
        target = part.get("$ref")
        if isinstance(target, str) and not target.startswith("#") and target.partition("#")[0] not in names:
            raise errors.ConfigError(
                f"schema {source} refers to {target!r}, which is not in the file; put it into $defs"
            )


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner)


def _jsonschema() -> Any:
    try:
        import jsonschema
    except ImportError as error:
        raise errors.ConfigError("jsonschema is not installed; pip install 'mqcore[spark]'") from error
    return jsonschema.validators


def _schema_checker(schema: Any) -> Checker:
    import referencing

    validators = _jsonschema()
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    # With an empty registry of its own, a schema cannot make executors fetch other documents.
    validator = kind(schema, registry=referencing.Registry())

    def check(_body: bytes, content: Any) -> list[Violation]:
        found = []
        for error in validator.iter_errors(content):
            path = _INDEX.sub("[]", error.json_path)
            if error.validator == "required" and (missing := re.match(r"'(.*)' is a required property", error.message)):
                path = member(path, missing[1])
            found.append(Violation(str(error.validator), path, error.message[:_TEXT_MAX]))
            if len(found) == _ERRORS_MAX:
                break
        return found

    return check


def _type_checker(rule: Rule) -> Checker:
    """A checker that decodes like a consumer with this type would; it finds the first error of a body."""
    module, _, attribute = rule.name.partition(":")
    if rule.folder not in sys.path:
        sys.path.insert(0, rule.folder)
    try:
        wanted: Any = importlib.import_module(module)
        for part in attribute.split("."):
            wanted = getattr(wanted, part)
        decoder = msgspec.json.Decoder(wanted)
    except Exception as error:
        raise errors.ConfigError(
            f"schema {rule.name} is not a type that msgspec decodes: {type(error).__name__}: {error}"
        ) from error

    def check(body: bytes, _content: Any) -> list[Violation]:
        try:
            decoder.decode(body)
        except msgspec.ValidationError as error:
            text, _, place = str(error).partition(" - at `")
            path = _INDEX.sub("[]", place.removesuffix("`").replace("[...]", "[]")) or "$"
            return [Violation(re.sub(r"'[^']*'|-?[0-9]+(\.[0-9]+)?", "#", text)[:_TEXT_MAX], path, text[:_TEXT_MAX])]
        return []

    return check
