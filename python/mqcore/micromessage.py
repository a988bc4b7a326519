"""Features of MicroMessage2: negotiated extensions, and messages with typed properties.

::

    offer = [*mqcore.micromessage.DEFAULTS, Extension("json", required=True)]
    async with mqcore.connect("mm2://localhost:2623", extensions=offer) as mq:
        async with mq.queue("topic/orders").consume(filter="price>N10;region=Teu") as messages:
            await mq.publish("topic/orders", order, headers=headers({"price": 12, "region": "eu"}))
            async for message in messages:
                print(properties(message.headers)["price"])
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, unquote

from mqcore.errors import InvalidArgument

if TYPE_CHECKING:
    from mqcore._core import Headers

__all__ = ["DEFAULTS", "PROPERTIES", "TYPE", "Extension", "Value", "headers", "properties"]

PROPERTIES: Final = "Mm2-Properties"
"""The header of a message that holds its properties as they are written on the wire."""

TYPE: Final = "Mm2-Type"
"""The header of a message that holds the name of its type, if ``dotnet`` was agreed."""

Value: TypeAlias = int | float | datetime | str
"""The value of a property: a number, an instant, or text."""


@dataclass(frozen=True, slots=True)
class Extension:
    """An extension that a client offers."""

    name: str
    """``ack``, ``batch-ack``, ``json``, ``xml``, ``protobuf``, ``dotnet``, ``pub-sub``, ``x-nack``, ``x-mqcore``, or a
    vendor's own, which begins with ``x-``."""
    required: bool = False
    """Whether connecting fails without it."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Its properties: ``{"max-count": "100"}`` allows 100 unacknowledged messages with ``batch-ack``."""


DEFAULTS: Final = (
    Extension("batch-ack", properties={"max-count": "1000"}),
    Extension("pub-sub"),
    Extension("x-nack"),
    Extension("x-mqcore"),
)
"""The default offer of a client."""


def headers(
    properties: Mapping[str, Value],
    *,
    type: str | None = None,  # noqa: A002 (as in the protocol)
) -> dict[str, str]:
    """Return the headers of a message with these properties, and of this type, for `publish`.

    Keys are made of letters, digits and hyphens. Raises `InvalidArgument` for a value that no property can have, such
    as an instant without a time zone.
    """
    found = {PROPERTIES: "".join(f"{key}:{_written(key, value)};" for key, value in properties.items())}
    if type is not None:
        found[TYPE] = type
    return found


def properties(headers: Headers | Mapping[str, str]) -> dict[str, Value]:
    """Return the properties of a received message. One that is not of a known type is text."""
    found: dict[str, Value] = {}
    for item in (headers.get(PROPERTIES) or "").split(";"):
        key, colon, value = item.partition(":")
        if colon:
            found[key] = _read(value)
    return found


def _written(key: str, value: Value) -> str:
    if isinstance(value, str):
        return "T" + quote(value, safe="")
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument(f"the property {key} is an instant without a time zone")
        return f"D{value.timestamp():.6f}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidArgument(f"the property {key} cannot be {value!r}; it is a number, an instant or text")
    # Without an exponent, which the protocol does not have.
    return "N" + (str(value) if isinstance(value, int) else format(Decimal(repr(value)), "f"))


def _read(value: str) -> Value:
    kind, rest = value[:1], value[1:]
    try:
        if kind == "N":
            return float(rest) if "." in rest else int(rest)
        if kind == "D":
            return datetime.fromtimestamp(float(rest), UTC)
    except (ValueError, OverflowError, OSError):
        return unquote(value)
    return unquote(rest if kind == "T" else value)
