"""Conversion between Python values and message bodies.

Bytes and text are unchanged. Everything else is JSON: dataclasses, `msgspec.Struct`, `TypedDict`, dicts, lists and
plain values by msgspec, pydantic models by pydantic, if the program has imported it.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from mqcore._raised import text_of
from mqcore.errors import BodyError

__all__ = ["JSON_ERRORS", "decode", "encode"]

JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for invalid bytes. The last two are raised for text that is not UTF-8 and for deep nesting."""

_T = TypeVar("_T")

# The path at the end of an error text of msgspec.
_PATH: Final = re.compile(r" - at `(.*)`$")


def encode(body: object) -> bytes:
    """Return the bytes of `body`. Raises `BodyError` if it has no JSON form."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    if _is_pydantic(type(body)):
        return bytes(body.model_dump_json().encode())  # type: ignore[attr-defined]
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError) as error:
        kind = type(body).__qualname__
        raise BodyError(f"a {kind} cannot be a message body: {error}", wanted=type(body)) from error


def decode(raw: bytes, wanted: type[_T]) -> _T:
    """Decode `raw` as `wanted`: bytes, text, or a type that JSON can be decoded to.

    Raises `BodyError`, which has the bytes and the path of the invalid member.
    """
    value: Any
    if wanted is bytes:
        value = raw
    elif wanted is str:
        value = _text(raw)
    elif _is_pydantic(wanted):
        value = _pydantic(raw, wanted)
    else:
        value = _json(raw, wanted)
    return value  # type: ignore[no-any-return]


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"the body is not text: {error}", raw, str) from error


def _json(raw: bytes, wanted: Any) -> Any:
    decoder = _decoder(wanted)
    try:
        return decoder.decode(raw)
    except JSON_ERRORS as error:
        path = _PATH.search(str(error))
        raise BodyError(f"the body is no {_name(wanted)}: {error}", raw, wanted, path[1] if path else "") from error
    except Exception as error:
        raise _failed_check(error, raw, wanted) from error


@lru_cache(maxsize=1024)
def _decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(wanted)


def _is_pydantic(kind: Any) -> bool:
    """Whether `kind` is a pydantic model. Without an import of pydantic there are none."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _pydantic(raw: bytes, wanted: Any) -> Any:
    try:
        return wanted.model_validate_json(raw)
    except ValueError as error:
        details: list[dict[str, Any]] = getattr(error, "errors", list)()
        place = details[0].get("loc", ()) if details else ()
        path = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in place)
        raise BodyError(f"the body is no {_name(wanted)}: {error}", raw, wanted, f"${path}") from error
    except Exception as error:
        raise _failed_check(error, raw, wanted) from error


def _failed_check(error: Exception, raw: bytes, wanted: Any) -> BodyError:
    """Return the error for what a type raised when it checked its values: the sender chose these values."""
    return BodyError(f"the body is no {_name(wanted)}: {type(error).__name__}: {text_of(error)}", raw, wanted)


def _name(wanted: Any) -> str:
    return str(getattr(wanted, "__qualname__", wanted))
