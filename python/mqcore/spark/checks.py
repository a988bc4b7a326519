"""Checks of rows before any is published: what a message cannot hold, and which queues rows are for.

Arrow finds the few rows that may be invalid, and Python looks at those only. So a check costs little beside staging a
row, and nothing else has to know the rules.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mqcore.config.queues import QUEUE_ID_MAX
from mqcore.spark.ledger import Contents
from mqcore.spark.rows import NAME_HEADER, Row, queue_names, raw_rows

__all__ = [
    "FRAME_BYTES",
    "HEADERS_BYTES_MAX",
    "Findings",
    "Rejection",
    "Rules",
    "Survey",
    "inspect",
    "is_delayed",
    "queue_problem",
    "text_of",
]

NAME_BYTES_MAX: Final = 255
"""Of a message id and of a channel."""
HEADERS_BYTES_MAX: Final = 65_535
"""Of all headers of a message, as lines of ``key:value`` with a line end of two bytes."""
TOPIC: Final = "@topic:"

FRAME_BYTES: Final = 300 + 2 * NAME_BYTES_MAX
"""Upper bound of what a frame has beside headers and body: fixed bytes, lengths, id, channel, and the client's id."""
_LINE_BYTES: Final = 3
"""Colon and line end of a header."""
_ROW_DIGITS: Final = 20
_MILLISECONDS_MAX: Final = 100 * 365 * 24 * 3600 * 1000
_PRIORITY_MAX: Final = 255
_TERMS: Final = {
    "mqcore-delay": _MILLISECONDS_MAX,
    "mqcore-expires-in": _MILLISECONDS_MAX,
    "mqcore-priority": _PRIORITY_MAX,
}
"""Headers that the broker interprets, with their largest values. It refuses messages with other values."""
_DOUBTFUL_KEYS: Final = r"[:\r\n]|^$|^(?i:mqcore-(delay|expires-in|priority))$"
_LINE_BREAKS: Final = r"[\r\n]"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a row is not published as it is."""

    reason: str
    """One word for programs, such as ``key-too-long``."""
    detail: str
    """The defect, with the value and the limit."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters of the check of a batch."""

    queue: str | None
    """The queue of all rows, if an option names it."""
    prefix: str
    """Names of rows begin with it."""
    message_bytes: int
    """Largest message in bytes."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of a check of rows, by their indexes."""

    invalid: dict[int, Rejection]
    delayed: list[int]
    """Valid rows that a queue has to hold back."""


class Survey:
    """Sums up the rows of a task while it stages them, for the driver."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._invalid = 0
        self._largest: dict[str, int] = {}
        self._delayed: set[str] = set()

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same rows, and add them."""
        for rows in batches:
            self.add(rows)
            yield rows

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        found = inspect(rows, self._rules)
        queue = self._rules.queue
        if found.delayed:
            delayed = rows.take(pa.array(found.delayed))
            self._delayed.update([queue] if queue is not None else filter(None, queue_names(delayed)))
        if found.invalid:
            self._invalid += len(found.invalid)
            valid = [index for index in range(rows.num_rows) if index not in found.invalid]
            rows = rows.take(pa.array(valid, pa.int64()))
        if rows.num_rows:
            for name, size in _largest_bodies(rows, queue):
                self._largest[name] = max(size, self._largest.get(name, 0))

    def contents(self) -> Contents:
        """Return the sum."""
        return Contents(self._invalid, self._largest, frozenset(self._delayed))


def inspect(rows: pa.RecordBatch, rules: Rules) -> Findings:
    """Find invalid rows, and rows with a delay."""
    indexes = _doubtful(rows, rules)
    invalid: dict[int, Rejection] = {}
    delayed: list[int] = []
    if indexes:
        some = rows if len(indexes) == rows.num_rows else rows.take(pa.array(indexes))
        for index, row in zip(indexes, raw_rows(some, rules.queue), strict=True):
            if (rejection := _rejection(row, rules)) is not None:
                invalid[index] = rejection
            elif is_delayed(_pairs(row.headers)):
                delayed.append(index)
    return Findings(invalid, delayed)


def is_delayed(headers: Iterable[tuple[str, Any]]) -> bool:
    """Whether valid headers ask a queue to hold the message back."""
    values = (value for key, value in headers if key.lower() == "mqcore-delay")
    # Of several headers with one name, the first counts.
    return int(text_of(next(values, None)) or 0) > 0


def text_of(value: Any) -> str | None:
    """Return a value as text; ``None`` for bytes that are not UTF-8, and for null."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return None if value is None else str(value)


# --- Arrow: rows that may be invalid ---------------------------------------------------------------------------------


def _doubtful(rows: pa.RecordBatch, rules: Rules) -> list[int]:
    """Indexes of rows that may be invalid or delayed, in order. Every such row is among them."""
    names = rows.schema.names
    masks: list[Any] = []
    value = rows.column("value")
    # The rest of the frame has an upper bound.
    headers = HEADERS_BYTES_MAX if "headers" in names else 0
    room = rules.message_bytes - headers - _name_line_bytes(rules) - FRAME_BYTES
    masks += _if_any(pc.is_null(value)) if value.null_count else []
    masks += _if_any(pc.greater(pc.binary_length(value), room))
    if "key" in names:
        masks += _doubtful_keys(rows.column("key"))
    if rules.queue is None:
        masks += _doubtful_queues(rows)
    indexes: set[int] = set()
    for mask in masks:
        indexes.update(pc.indices_nonzero(mask).to_pylist())
    if "headers" in names:
        indexes.update(_doubtful_headers(rows.column("headers"), rules))
    return sorted(indexes)


def _if_any(mask: Any) -> list[Any]:
    return [mask] if pc.any(mask).as_py() else []


def _doubtful_keys(keys: Any) -> list[Any]:
    if pa.types.is_integer(keys.type):
        return []
    masks = _if_any(pc.greater(pc.binary_length(keys), NAME_BYTES_MAX))
    return masks if _is_text(keys) else [*masks, pc.is_valid(keys)]


def _doubtful_queues(rows: pa.RecordBatch) -> list[Any]:
    names, masks, absent = rows.schema.names, [], None
    for name, problem in (("queue", queue_problem), ("channel", _channel_problem)):
        if name not in names:
            continue
        column = rows.column(name)
        different = pc.unique(column).to_pylist()
        wrong = [value for value in different if value is not None and problem(value) is not None]
        if wrong:
            masks.append(pc.is_in(column, pa.array(wrong, column.type)))
        absent = pc.is_null(column) if absent is None else pc.and_(absent, pc.is_null(column))
    if "queue_id" in names:
        ids = rows.column("queue_id")
        masks += _if_any(pc.or_(pc.less(ids, 0), pc.greater(ids, QUEUE_ID_MAX)))
    return masks if absent is None else masks + _if_any(absent)


def _doubtful_headers(headers: Any, rules: Rules) -> set[int]:
    keys, values, offsets = _flat(headers)
    if not len(keys):
        return set()
    if not _is_text(values):
        return set(range(len(headers)))
    places: set[int] = set()
    for mask in (
        pc.is_null(keys),
        pc.match_substring_regex(keys, _DOUBTFUL_KEYS),
        pc.match_substring_regex(values, _LINE_BREAKS),
    ):
        if pc.any(mask).as_py():
            places.update(pc.indices_nonzero(mask).to_pylist())
    starts = offsets.to_pylist() if places else []
    rows = {bisect_right(starts, place) - 1 for place in places}
    return {row for row in rows if 0 <= row < len(headers)} | _large(keys, values, offsets, rules)


def _flat(headers: Any) -> tuple[Any, Any, Any]:
    """Keys and values of all rows, and where those of each row begin in them."""
    if pa.types.is_map(headers.type):
        return headers.keys, headers.items, headers.offsets
    pairs = headers.values
    # A pair that is null has a null key, too.
    return pc.struct_field(pairs, "key"), pc.struct_field(pairs, "value"), headers.offsets


def _large(keys: Any, values: Any, offsets: Any, rules: Rules) -> set[int]:
    """Indexes of rows whose headers may be too large, and some others."""
    room = HEADERS_BYTES_MAX - _name_line_bytes(rules)
    lengths = [pc.cast(pc.fill_null(pc.binary_length(part), 0), pa.int64()) for part in (keys, values)]
    sizes = pc.add(pc.add(*lengths), _LINE_BYTES)
    begins, ends = offsets.slice(0, len(offsets) - 1), offsets.slice(1)
    most = pc.max(pc.subtract(ends, begins)).as_py() or 0
    if most * (pc.max(sizes).as_py() or 0) <= room:
        return set()
    sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)])
    totals = pc.subtract(pc.take(sums, ends), pc.take(sums, begins))
    return set(pc.indices_nonzero(pc.greater(totals, room)).to_pylist())


def _is_text(values: Any) -> bool:
    """Whether all values are valid UTF-8."""
    if not pa.types.is_binary(values.type) and not pa.types.is_large_binary(values.type):
        return True
    try:
        pc.cast(values, pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _largest_bodies(rows: pa.RecordBatch, queue: str | None) -> Iterator[tuple[str, int]]:
    """Yield each queue of valid rows with the size of its largest body. A queue may repeat."""
    sizes = pc.binary_length(rows.column("value"))
    if queue is not None:
        yield queue, pc.max(sizes).as_py()
        return
    columns = [name for name in ("queue", "channel", "queue_id") if name in rows.schema.names]
    table = pa.Table.from_batches([rows]).select(columns).append_column("value", sizes)
    kinds = table.group_by(columns).aggregate([("value", "max")])
    for place, size in zip(queue_names(kinds), kinds.column("value_max").to_pylist(), strict=True):
        assert place is not None
        yield place, size


# --- Python: rows one by one -----------------------------------------------------------------------------------------


def _rejection(row: Row, rules: Rules) -> Rejection | None:
    """Why a row is invalid, if it is. Of several reasons, the first in this order."""
    for check in (_check_value, _check_queue, _check_key, _check_headers, _check_size):
        if (rejection := check(row, rules)) is not None:
            return rejection
    return None


def _check_value(row: Row, _rules: Rules) -> Rejection | None:
    if row.value is None:
        return Rejection("value-null", "the column value is null; filter such rows, or use coalesce(value, '')")
    return None


def _check_queue(row: Row, rules: Rules) -> Rejection | None:
    if rules.queue is not None:
        return None
    if row.queue is None:
        return Rejection("queue-null", "the columns queue and channel are null; fill one of them")
    problem = queue_problem(row.queue)
    return None if problem is None else Rejection("queue-invalid", f"{row.queue[:80]!r} is not a queue: {problem}")


def _check_key(row: Row, _rules: Rules) -> Rejection | None:
    text = text_of(row.key)
    if text is None:
        if row.key is None:
            return None
        return Rejection("key-not-text", "the key is not valid UTF-8; use base64(key) or hex(key)")
    size = len(text.encode())
    if size > NAME_BYTES_MAX:
        detail = f"the key has {size:,} bytes, the limit is {NAME_BYTES_MAX}; shorten it, or use sha2(key, 256)"
        return Rejection("key-too-long", detail)
    return None


def _check_headers(row: Row, rules: Rules) -> Rejection | None:
    terms: dict[str, int] = {}
    size = _name_line_bytes(rules) if row.key is not None else 0
    for part in row.headers or ():
        key, value = (None, None) if part is None else _pair(part)
        problem = _header_problem(key, value, terms)
        if problem is not None:
            return Rejection("header-invalid", problem)
        assert key is not None
        size += len(key.encode()) + len((text_of(value) or "").encode()) + _LINE_BYTES
    if terms.get("mqcore-expires-in", _MILLISECONDS_MAX + 1) <= terms.get("mqcore-delay", -1):
        return Rejection("header-invalid", "the message expires before its delay ends; see Mqcore-Expires-In")
    if size > HEADERS_BYTES_MAX:
        detail = f"the headers have {size:,} bytes, the limit is {HEADERS_BYTES_MAX:,}; send fewer or shorter ones"
        return Rejection("headers-too-large", detail)
    return None


def _check_size(row: Row, rules: Rules) -> Rejection | None:
    body = len(row.value.encode()) if isinstance(row.value, str) else len(row.value)
    headers = sum(
        len(key.encode()) + len((text_of(value) or "").encode()) + _LINE_BYTES for key, value in _pairs(row.headers)
    )
    size = body + headers + _name_line_bytes(rules) + FRAME_BYTES
    if size > rules.message_bytes:
        detail = (
            f"with a body of {body:,} bytes, the message has up to {size:,} bytes; the limit is "
            f"{rules.message_bytes:,} (option maxMessageBytes, which the listener's frame_bytes_max must allow)"
        )
        return Rejection("value-too-large", detail)
    return None


def _header_problem(key: Any, value: Any, terms: dict[str, int]) -> str | None:
    """The defect of one header. Adds a value that the broker interprets to `terms`, unless there is one."""
    if not key:
        return "a header has no key"
    if re.search(r"[:\r\n]", key):
        return f"the header {key[:80]!r} must have a key without colons and line breaks"
    text = "" if value is None else text_of(value)
    if text is None:
        return f"the value of the header {key[:80]!r} is not valid UTF-8; use base64"
    if "\r" in text or "\n" in text:
        return f"the value of the header {key[:80]!r} must have no line breaks"
    most = _TERMS.get(key.lower())
    if most is not None and key.lower() not in terms:
        digits = text.strip(" \t\f")
        if not re.fullmatch(r"[0-9]{1,20}", digits) or int(digits) > most:
            return f"the header {key} is {text[:80]!r}; it must be a whole number from 0 to {most}"
        terms[key.lower()] = int(digits)
    return None


def _pair(part: Any) -> tuple[Any, Any]:
    return (part["key"], part["value"]) if isinstance(part, dict) else part


def _pairs(headers: Any) -> list[tuple[Any, Any]]:
    return [_pair(part) for part in headers or () if part is not None]


def _name_line_bytes(rules: Rules) -> int:
    """Upper bound of the size of the header with a row's name."""
    return len(NAME_HEADER) + len(rules.prefix) + _ROW_DIGITS + _LINE_BYTES


def queue_problem(text: str) -> str | None:
    """The defect of an address: ``channel/id``, ``channel``, or ``@topic:NAME``."""
    if text.startswith(TOPIC):
        size = len(text.encode())
        return None if len(TOPIC) < size <= NAME_BYTES_MAX else "the name of a topic must have 1 to 248 bytes"
    channel, slash, number = text.rpartition("/")
    if not slash or re.fullmatch(r"-?[0-9]+", number) is None:
        return _channel_problem(text)
    # Without a limit, Python refuses to convert so many digits.
    if len(number) > NAME_BYTES_MAX or not 0 <= int(number) <= QUEUE_ID_MAX:
        return f"the number of a queue must be from 0 to {QUEUE_ID_MAX:,}"
    return _channel_problem(channel)


def _channel_problem(name: str) -> str | None:
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        return "a channel must have 1 to 255 bytes"
    for character in name:
        if character in "@ ;*" or unicodedata.category(character) == "Cc":
            return f"a channel must not contain {character!r}"
    return None
