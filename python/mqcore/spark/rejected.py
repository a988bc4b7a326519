"""Rows that cannot be published as they are, as messages for the queue of rejected rows."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Any, Final

from mqcore.spark.checks import HEADERS_BYTES_MAX, Rejection, text_of
from mqcore.spark.rows import NAME_HEADER, NOT_COPIED, Outgoing, Row

__all__ = ["Rejecter"]

REASON: Final = "Rejected-Reason"
ERROR: Final = "Rejected-Error"
QUEUE: Final = "Rejected-Queue"
KEY: Final = "Rejected-Key"
KEY_BASE64: Final = "Rejected-Key-Base64"
BODY_BYTES: Final = "Rejected-Body-Bytes"
"""Size of a body that is truncated."""
HEADERS_OMITTED: Final = "Rejected-Headers-Omitted"
"""Number of the row's headers that the message does not have."""

_TRUNCATED_BYTES: Final = 1 << 20
"""Size to which a body that is too large is cut."""
_OWN_BYTES: Final = 8192
"""Upper bound of the size of the headers above."""
_CUT_BYTES: Final = 1024
_NOT_KEPT: Final = re.compile(rf"(?i){'|'.join(sorted(NOT_COPIED))}|mqcore-.*|rejected-.*")
"""Headers that a queue acts on, or that an earlier rejection has set."""


class Rejecter:
    """Makes messages for one queue."""

    def __init__(self, queue: str, body_bytes: int) -> None:
        """`body_bytes`: the largest body that the queue takes."""
        self.queue = queue
        self._body_bytes = body_bytes

    def of_row(self, rejection: Rejection, name: str, number: int, row: Row) -> Outgoing:
        """Return the message of an invalid row."""
        value = b"" if row.value is None else row.value.encode() if isinstance(row.value, str) else row.value
        body, headers = self._body(value), [(REASON, rejection.reason), (ERROR, _line(rejection.detail))]
        if row.queue is not None:
            headers.append((QUEUE, _line(row.queue)))
        if row.key is not None:
            headers.append(_key(row.key))
        if len(body) < len(value):
            headers.append((BODY_BYTES, str(len(value))))
        kept, omitted = _kept(row.headers)
        if omitted:
            headers.append((HEADERS_OMITTED, str(omitted)))
        return Outgoing(name, number, self.queue, name, body, kept + headers, bool(row.high_priority), True)

    def of_message(self, rejection: Rejection, message: Outgoing) -> Outgoing:
        """Return the message of a row that its own queue does not take."""
        headers = [pair for pair in message.headers if pair != (NAME_HEADER, message.name)]
        key = None if message.id == message.name else message.id
        row = Row(message.body, key, message.queue, headers, message.high_priority)
        return self.of_row(rejection, message.name, message.number, row)

    def _body(self, value: bytes) -> bytes:
        return value if len(value) <= self._body_bytes else value[: min(self._body_bytes, _TRUNCATED_BYTES)]


def _line(text: str) -> str:
    """Text as a header can hold it: one line, and not too long."""
    return _cut(re.sub(r"[\r\n]+", " ", text).encode()).decode("utf-8", "ignore")


def _cut(value: bytes) -> bytes:
    return value[:_CUT_BYTES]


def _key(key: Any) -> tuple[str, str]:
    text = text_of(key)
    if text is None or not text.isprintable():
        return KEY_BASE64, base64.b64encode(_cut(key if isinstance(key, bytes) else str(key).encode())).decode()
    return KEY, _line(text)


def _kept(headers: Any) -> tuple[list[tuple[str, str]], int]:
    """Headers that the message may have, and the number of others."""
    kept: list[tuple[str, str]] = []
    omitted, size = 0, 0
    for key, value in _all(headers):
        if key is not None and key.lower() == NAME_HEADER.lower():
            continue
        text = "" if value is None else text_of(value)
        if (
            not key
            or re.search(r"[:\r\n]", key)
            or text is None
            or re.search(r"[\r\n]", text)
            or _NOT_KEPT.fullmatch(key)
        ):
            omitted += 1
            continue
        size += len(key.encode()) + len(text.encode()) + 3
        if size > HEADERS_BYTES_MAX - _OWN_BYTES:
            # A later one could fit, but the first ones are easier to explain.
            omitted += 1
            continue
        kept.append((key, text))
    return kept, omitted


def _all(headers: Any) -> Iterable[tuple[Any, Any]]:
    for part in headers or ():
        yield (None, None) if part is None else (part["key"], part["value"]) if isinstance(part, dict) else part
