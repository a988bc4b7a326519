"""The AsyncAPI 3.0 document of an app: its channels, operations, messages and the JSON Schemas of their bodies."""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from mqcore import credentials
from mqcore.app.compiled import CompiledRequest, CompiledSubscriber, Declarations, Target
from mqcore.app.dependencies import function_of, name_of

__all__ = ["document"]

_VERSION: Final = "3.0.0"
_JSON: Final = "application/json"
_REFERENCES: Final = "#/components/schemas/{name}"
_EMPTY: Final = inspect.Parameter.empty


def document(
    name: str, declarations: Declarations, *, title: str, version: str, description: str | None, urls: Sequence[str]
) -> dict[str, Any]:
    """Return the document as JSON values."""
    made = _Document(name)
    for subscriber in declarations.subscribers:
        made.add_subscriber(subscriber)
    for request in declarations.requests:
        made.add_request(request)
    for target in declarations.targets:
        made.add_target(target)
    info: dict[str, Any] = {"title": title, "version": version}
    if description:
        info["description"] = description
    return {
        "asyncapi": _VERSION,
        "info": info,
        "defaultContentType": _JSON,
        "servers": {f"broker{number or ''}": _server(url) for number, url in enumerate(urls)},
        "channels": made.channels,
        "operations": made.operations,
        "components": {"messages": made.messages, "schemas": made.schemas},
    }


class _Document:
    """The parts of a document that declarations add to."""

    def __init__(self, name: str) -> None:
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.messages: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {}
        self._name = name

    def add_subscriber(self, subscriber: CompiledSubscriber) -> None:
        """Add the queue of a subscriber, and that the app receives its messages."""
        declaration, handler = subscriber.declaration, subscriber.handler
        channel = self._channel(declaration.queue)
        function = handler.function
        operation: dict[str, Any] = {
            "action": "receive",
            "channel": _to("channels", channel),
            "title": declaration.title or _title(function),
            "messages": [self._message(channel, handler.wanted)],
            "x-mqcore": {
                "prefetch": declaration.prefetch,
                "concurrency": declaration.concurrency,
                "ackPolicy": str(declaration.ack_policy),
                "onBadBody": str(declaration.on_bad_body),
            },
        }
        if declaration.retry is not None:
            operation["x-mqcore"]["retries"] = declaration.retry.retries
            if declaration.retry.dead_letter is not None:
                operation["x-mqcore"]["deadLetter"] = declaration.retry.dead_letter
        if declaration.batch is not None:
            operation["x-mqcore"]["batch"] = declaration.batch.max
        _describe(operation, declaration.description or _doc(function))
        self._operation(f"receive-{declaration.queue}", operation)

    def add_request(self, request: CompiledRequest) -> None:
        """Add the direct messages that a handler answers, and its answers."""
        declaration, function = request.declaration, request.handler.function
        number = declaration.content_type
        kind = "all" if number is None else str(number)
        channel = self._channel(f"@name:{self._name}", key=f"requests-{kind}")
        replies = self._channel(None, key=f"replies-{kind}")
        result = _result(function)
        operation: dict[str, Any] = {
            "action": "receive",
            "channel": _to("channels", channel),
            "title": _title(function),
            "messages": [self._message(channel, request.handler.wanted)],
            "reply": {
                "channel": _to("channels", replies),
                "messages": [self._message(replies, bytes if result is _EMPTY else result)],
            },
        }
        if number is not None:
            operation["x-mqcore"] = {"contentType": number}
        _describe(operation, declaration.description or _doc(function))
        self._operation(f"answer-{kind}", operation)

    def add_target(self, target: Target) -> None:
        """Add the target of a publisher, and that the app sends messages there."""
        channel = self._channel(target.queue)
        functions = target.publisher.decorated
        bodies = [target.publisher.body] if target.publisher.body is not None else [_result(each) for each in functions]
        operation: dict[str, Any] = {
            "action": "send",
            "channel": _to("channels", channel),
            "messages": [self._message(channel, body) for body in bodies if body is not _EMPTY],
        }
        if functions:
            operation["title"] = ", ".join(map(_title, functions))
        if not operation["messages"]:
            del operation["messages"]
        self._operation(f"send-{target.queue}", operation)

    def _channel(self, address: str | None, key: str | None = None) -> str:
        key = _key(address if key is None else key)
        self.channels.setdefault(key, {"address": address, "messages": {}})
        return key

    def _operation(self, name: str, operation: dict[str, Any]) -> None:
        key = _key(name)
        number = 2
        while key in self.operations:
            key, number = _key(f"{name}-{number}"), number + 1
        self.operations[key] = operation

    def _message(self, channel: str, body: Any) -> dict[str, str]:
        """Add the message of a type to a channel, and return a reference to it."""
        name = _key(_type_name(body))
        if name not in self.messages:
            self.messages[name] = self._described(name, body)
        self.channels[channel]["messages"][name] = _to("components/messages", name)
        return _to(f"channels/{channel}/messages", name)

    def _described(self, name: str, body: Any) -> dict[str, Any]:
        if body is bytes or body is _EMPTY or body is Any:
            return {"name": name, "contentType": "application/octet-stream"}
        if body is str:
            return {"name": name, "contentType": "text/plain", "payload": {"type": "string"}}
        return {"name": name, "contentType": _JSON, "payload": self._schema(body)}

    def _schema(self, body: Any) -> dict[str, Any]:
        if _is_model(body):
            schema = body.model_json_schema(ref_template=_REFERENCES.replace("{name}", "{model}"))
            self.schemas.update(schema.pop("$defs", {}))
            self.schemas[body.__name__] = schema
            return _to("components/schemas", body.__name__)
        (schema,), components = msgspec.json.schema_components([body], ref_template=_REFERENCES)
        self.schemas.update(components)
        return dict(schema)


def _to(place: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/{place}/{name}"}


def _key(name: str | None) -> str:
    """Return a name as the specification allows it for keys."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name or "").strip("-") or "-"


def _title(function: Callable[..., Any]) -> str:
    return name_of(function).rpartition(".")[2]


def _doc(function: Callable[..., Any]) -> str | None:
    return inspect.getdoc(function_of(function))


def _describe(operation: dict[str, Any], description: str | None) -> None:
    if description:
        operation["description"] = description


def _type_name(body: Any) -> str:
    if body is _EMPTY or body is Any:
        return "bytes"
    if typing.get_origin(body) is None:
        return str(getattr(body, "__name__", body))
    return re.sub(r"\b(?:\w+\.)+", "", str(body))


def _result(function: Callable[..., Any]) -> Any:
    """Return the annotated result of a handler without ``None``; empty: there is none, or JSON has no form of it."""
    target = function_of(function)
    try:
        hint = typing.get_type_hints(target).get("return", _EMPTY)
    except Exception:
        # Annotations may use names that are imported only for type checkers.
        return _EMPTY
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        rest = [each for each in typing.get_args(hint) if each is not types.NoneType]
        hint = rest[0] if len(rest) == 1 else typing.Union[tuple(rest)]  # noqa: UP007 (made at run time)
    return _EMPTY if hint is types.NoneType or not _has_schema([hint]) else hint


def _has_schema(kinds: Iterable[Any]) -> bool:
    for kind in kinds:
        if not _is_model(kind):
            try:
                msgspec.json.schema_components([kind])
            except TypeError:
                return False
    return True


def _is_model(kind: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _server(url: str) -> dict[str, Any]:
    """Return a server without credentials and options."""
    protocol, _, rest = credentials.split(url)[0].partition("://")
    return {"host": rest.partition("?")[0], "protocol": protocol}
