"""Arguments and results of tasks: encoded to JSON, and decoded to the types of the function's annotations."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from mqcore import bodies
from mqcore.errors import BodyError, InvalidArgument

__all__ = ["Signature"]

_EMPTY: Final = inspect.Parameter.empty


class Signature:
    """Parameters and return type of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        self._hints: dict[str, Any] | None = None
        self._positional = _positional(self._signature)

    def check(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Raise `TypeError` if the function cannot be called with these arguments."""
        if kwargs or len(args) not in self._positional:
            self._signature.bind(*args, **kwargs)

    def decode(self, args: bytes, kwargs: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Decode JSON arguments to the annotated types. Raises `BodyError` if they do not match the function."""
        positional = bodies.decode(args, list)
        named = bodies.decode(kwargs, dict)
        if not positional and not named and 0 in self._positional:
            return [], {}
        try:
            bound = self._signature.bind(*positional, **named)
        except TypeError as error:
            raise BodyError(f"the arguments do not match the task: {error}", args, self._function) from None
        hints = self._types()
        for name, value in bound.arguments.items():
            hint = hints.get(name)
            if hint is None:
                continue
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(_convert(item, hint, f"the argument {name!r}") for item in value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {
                    key: _convert(item, hint, f"the argument {key!r}") for key, item in value.items()
                }
            else:
                bound.arguments[name] = _convert(value, hint, f"the argument {name!r}")
        return list(bound.args), bound.kwargs

    def decode_result(self, value: bytes) -> Any:
        """Decode a JSON result to the annotated return type. Raises `BodyError` if it has another type."""
        hint = self._types().get("return")
        plain = msgspec.json.decode(value)
        return plain if hint is None else _convert(plain, hint, "the result")

    def _types(self) -> dict[str, Any]:
        """Annotations that JSON values can be converted to. Values with other annotations stay as decoded."""
        if self._hints is None:
            try:
                found = typing.get_type_hints(self._function)
            except Exception:
                # Annotations may use names that are imported only for type checkers.
                found = {}
            self._hints = {name: hint for name, hint in found.items() if _is_readable(hint)}
        return self._hints


def _positional(signature: inspect.Signature) -> range:
    """Numbers of positional arguments with which the function can be called without keywords; may be empty."""
    least = most = 0
    for parameter in signature.parameters.values():
        if parameter.kind in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
            most += 1
            least += parameter.default is _EMPTY
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is _EMPTY:
            return range(0)
    return range(least, most + 1)


def _is_readable(hint: Any) -> bool:
    if hint is Any:
        return False
    if _is_model(hint):
        return True
    try:
        msgspec.json.Decoder(hint)
    except TypeError:
        return False
    # msgspec would need a decoding hook for custom types, and there is none.
    info = msgspec.inspect.type_info(hint)
    return not isinstance(info, msgspec.inspect.CustomType)


def _is_model(hint: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(hint, type) and issubclass(hint, pydantic.BaseModel)


def _convert(value: Any, hint: Any, name: str) -> Any:
    if _is_model(hint):
        try:
            return hint.model_validate(value)
        except ValueError as error:
            raise BodyError(f"{name} has the wrong type: {error}", wanted=hint) from error
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise BodyError(f"{name} has the wrong type: {error}", wanted=hint) from error


def encode_arguments(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[bytes, bytes]:
    """Encode arguments as JSON. Raises `InvalidArgument` for a value without a JSON form."""
    try:
        return msgspec.json.encode(args, enc_hook=_encode), msgspec.json.encode(kwargs, enc_hook=_encode)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise InvalidArgument(f"cannot encode the job's arguments as JSON: {error}") from error


def encode_value(value: object) -> bytes:
    """Encode a result as JSON. Raises `BodyError` for a value without a JSON form."""
    try:
        return msgspec.json.encode(value, enc_hook=_encode)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        kind = type(value).__qualname__
        raise BodyError(
            f"cannot encode the job's result of type {kind} as JSON: {error}", wanted=type(value)
        ) from error


def _encode(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(f"type {type(value).__qualname__} has no JSON form")
