"""kombu's messages as messages of mqcore.

The body travels as it is. Headers, properties and the rest are JSON in the header ``Kombu``, so that other clients read
bodies without knowing kombu.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from kombu.utils import json as kombu_json

from mqcore.errors import TooLarge

__all__ = ["HEADER", "decode_header", "encode_headers"]

HEADER: Final = "Kombu"
"""The header with the JSON."""

_HEADER_BYTES_MAX: Final = 65_000
_PRIORITY_MAX: Final = 255

_encode: Final = json.JSONEncoder(default=kombu_json.JSONEncoder().default, separators=(",", ":")).encode


def encode_headers(message: Mapping[str, Any], exchange: str, routing_key: str, *, delay_eta: bool) -> bytes:
    """Return the header text of a message that `Channel.prepare_message` made.

    With `delay_eta`, the queue holds a task back until its ETA. Raises `TooLarge`.
    """
    headers, properties = message["headers"], message["properties"]
    fields = [headers, properties, message["content-type"], message["content-encoding"], exchange, routing_key]
    text = f"{HEADER}:{_encode(fields)}\r\n"
    if len(text) > _HEADER_BYTES_MAX:
        raise TooLarge(
            f"headers and properties of the message need {len(text)} bytes as JSON; the limit is "
            f"{_HEADER_BYTES_MAX}; send large values in the body",
            _HEADER_BYTES_MAX,
        )
    if priority := properties.get("priority"):
        text += f"Mqcore-Priority:{min(max(int(priority), 0), _PRIORITY_MAX)}\r\n"
    expires = _milliseconds(properties.get("expiration"))
    if expires is not None:
        text += f"Mqcore-Expires-In:{max(expires, 1)}\r\n"
    if delay_eta and (delay := _eta_delay(headers)) and (expires is None or delay < expires):
        text += f"Mqcore-Delay:{delay}\r\n"
    return text.encode()


def decode_header(text: str | None) -> list[Any]:
    """Return headers, properties, content type, content encoding, exchange and routing key.

    A message of another client has none of them; its body is taken as JSON.
    """
    if text is None:
        return [{}, {}, "application/json", "utf-8", "", ""]
    fields: list[Any] = kombu_json.loads(text) if '"__type__"' in text else json.loads(text)
    return fields


def _milliseconds(expiration: object) -> int | None:
    """kombu gives an expiration as text in milliseconds."""
    return None if expiration is None else round(float(str(expiration)))


def _eta_delay(headers: Mapping[str, Any]) -> int | None:
    """Milliseconds until the ETA of a Celery task; `None` if it has none, or it is over.

    An ETA without a time zone is the worker's to interpret.
    """
    eta = headers.get("eta")
    if not isinstance(eta, str):
        return None
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return None
    if due.tzinfo is None:
        return None
    delay = math.ceil((due - datetime.now(UTC)).total_seconds() * 1000)
    return delay if delay > 0 else None
