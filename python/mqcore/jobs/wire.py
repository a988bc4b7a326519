"""eMQP/1.0 as workers and clients speak it: frames of messages, and the JSON of jobs and results. Pure functions."""

from __future__ import annotations

import itertools
import math
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from mqcore.errors import BodyError

__all__ = [
    "PROGRESS_TOPIC",
    "REPLY",
    "Call",
    "Fault",
    "Headers",
    "JobProgress",
    "Received",
    "Result",
    "Terms",
    "decode_call",
    "encode_call",
    "encode_fault",
    "encode_queues",
    "heartbeat",
    "message",
    "new_id",
    "parse",
    "parse_progress",
    "publish_progress",
    "request",
]

VERSION: Final = b"eMQP/1.0"

REPLY: Final = b"REPLY"

# Frames before those of the command itself: an empty one, the version, the command, the message's id.
_ENVELOPE: Final = 4

_ATTEMPTS_MAX: Final = 1_000_000

# Most jobs have the headers of the one before; those that are longer are read each time.
_REMEMBERED_BYTES_MAX: Final = 256


class _Ids:
    """Ids in the form of a UUID, which other programs want: what begins them is random, and of this process alone."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Begin anew."""
        first = uuid.uuid4()
        self._begin = str(first)[:24]
        # Counted from somewhere, so that what was said before the process started again is not said again.
        self._numbers = itertools.count(first.node >> 1)

    def __call__(self) -> str:
        return f"{self._begin}{next(self._numbers):012x}"


new_id: Final = _Ids()
"""Returns the id of a new message."""


def message(command: bytes, *frames: bytes) -> list[bytes]:
    """Return the frames of a message with an id of its own."""
    return [b"", VERSION, command, new_id().encode(), *frames]


def heartbeat() -> list[bytes]:
    """Return the frames that say: I am there."""
    return message(b"HEARTBEAT", str(time.time()).encode())


class Received(msgspec.Struct, frozen=True):
    """A message that came."""

    command: bytes
    """In capital letters."""
    id: bytes
    body: Sequence[bytes]
    """What follows the id."""


def parse(frames: Sequence[bytes]) -> Received | None:
    """Read a message; `None` for what is none, which is to be ignored."""
    if len(frames) < _ENVELOPE:
        return None
    return Received(frames[2].upper(), frames[3], frames[_ENVELOPE:])


class Headers(msgspec.Struct, frozen=True):
    """What the sender of a job wishes, as words between commas."""

    reply_requested: bool = False
    guarantee: bool = False
    retry_count: int = 0
    timeout: int = 0
    """Seconds that an attempt may take; 0: no end."""
    attempt: int = 0
    """Said by brokers that count attempts themselves; 0 where nobody does."""
    priority: int = 0
    nohaste: bool = False
    run_count: int = 0
    unique: str = ""
    """Of jobs of this key the broker has one at a time in a queue; no comma is in it."""
    interval_ms: int = 0
    """Said to mqcore's broker where an interval is no whole number of seconds."""
    timezone: str = ""
    catch_up: str = ""

    @classmethod
    def parse(cls, text: bytes) -> Headers:
        """Read them; what nobody knows is skipped, and a number that nobody can mean is not there."""
        return _read_headers(text) if len(text) <= _REMEMBERED_BYTES_MAX else _read_headers.__wrapped__(text)

    def encode(self) -> bytes:
        """Write them."""
        return _encode_headers(self)


@lru_cache(maxsize=256)
def _read_headers(text: bytes) -> Headers:
    found = dict(word.strip().partition(b":")[::2] for word in text.split(b",")) if text else {}
    return Headers(
        reply_requested=_said(found.get(b"reply-requested")),
        guarantee=_said(found.get(b"guarantee")),
        retry_count=_number(found.get(b"retry-count")),
        timeout=_number(found.get(b"timeout")),
        attempt=_number(found.get(b"attempt")),
    )


@lru_cache(maxsize=256)
def _encode_headers(headers: Headers) -> bytes:
    words = ["reply-requested"] * headers.reply_requested + ["guarantee"] * headers.guarantee
    words += ["nohaste"] * headers.nohaste
    texts = (("timezone", headers.timezone), ("catch-up", headers.catch_up))
    words += [f"{name}:{text}" for name, text in texts if text]
    numbers = (
        ("retry-count", headers.retry_count),
        ("timeout", headers.timeout),
        ("priority", headers.priority),
        ("run_count", headers.run_count),
        ("interval-ms", headers.interval_ms),
    )
    words += [f"{name}:{number}" for name, number in numbers if number]
    words += [f"unique:{headers.unique}"] * bool(headers.unique)
    return ",".join(words).encode()


def _said(value: bytes | None) -> bool:
    return value is not None and value.strip().lower() not in {b"0", b"false"}


def _number(value: bytes | None) -> int:
    if value is None or not value.strip().isdigit():
        return 0
    return min(int(value.strip()[:12]), _ATTEMPTS_MAX)


PROGRESS_TOPIC: Final = "mqcore.jobs.progress/"
"""What the topics begin with to which workers publish how far jobs are; the job's id follows."""


class JobProgress(msgspec.Struct, frozen=True):
    """How far a job says that it is."""

    id: str
    """The job's."""
    task: str
    """Its name."""
    fraction: float
    """0 to 1."""
    note: str
    """What the job says about it."""
    attempt: int
    """1 at first."""
    worker: str
    """Whose it is, as the broker knows it."""


_JOB_PROGRESS: Final = msgspec.json.Decoder(JobProgress)


def publish_progress(progress: JobProgress) -> list[bytes]:
    """Return the frames of a PUBLISH that tells it."""
    return message(b"PUBLISH", (PROGRESS_TOPIC + progress.id).encode(), msgspec.json.encode(progress))


def parse_progress(frames: Sequence[bytes]) -> JobProgress | None:
    """Read what a subscriber got; `None` for what anybody else published there."""
    try:
        return _JOB_PROGRESS.decode(frames[-1])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job's sender wishes beyond what headers can say; a member of its JSON that only mqcore's workers read."""

    soft: float = 0.0
    """Seconds after which the job is asked to end; 0: never."""
    hard: float = 0.0
    """Seconds after which it is ended; 0: never."""
    not_before: float = 0.0
    """Seconds since 1970."""


class Call(msgspec.Struct, frozen=True):
    """What a job calls, with what. Arguments are still JSON: who runs it knows their types."""

    callable: str
    path: str
    args: msgspec.Raw = msgspec.Raw(b"[]")
    kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    class_args: msgspec.Raw = msgspec.Raw(b"[]")
    class_kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    mqcore: Terms = Terms()

    @property
    def name(self) -> str:
        """The task's name."""
        return f"{self.path}.{self.callable}" if self.path else self.callable


_CALL: Final = msgspec.json.Decoder(tuple[Any, Call])


def decode_call(job: bytes) -> Call:
    """Read the JSON of a job. Raises `BodyError`."""
    try:
        call = _CALL.decode(job)[1]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"this is no job: {error}", job, Call) from error
    if not all(math.isfinite(number) and number >= 0 for number in (call.mqcore.soft, call.mqcore.hard)):
        raise BodyError("this is no job: a time limit is a number of seconds, not negative", job, Call)
    return call


def encode_call(name: str, args: bytes, kwargs: bytes, terms: Terms) -> bytes:
    """Write the JSON of a job, with all members that the original's schedulers want."""
    path, _, function = name.rpartition(".")
    content: dict[str, Any] = {
        "callable": function,
        "path": path,
        "args": msgspec.Raw(args),
        "kwargs": msgspec.Raw(kwargs),
        "class_args": (),
        "class_kwargs": {},
    }
    if terms != Terms():
        content["mqcore"] = terms
    return msgspec.json.encode(("run", content))


def request(job_id: str, queue: str, headers: Headers, job: bytes) -> list[bytes]:
    """Return the frames of a REQUEST."""
    return [b"", VERSION, b"REQUEST", job_id.encode(), queue.encode(), headers.encode(), job]


def encode_queues(queues: Iterable[tuple[str, int]]) -> bytes:
    """Write names and weights of queues, as workers announce them."""
    return msgspec.json.encode([[weight, name] for name, weight in queues])


class Fault(msgspec.Struct, frozen=True):
    """Why a job did not end with a value."""

    type: str
    message: str
    args: Sequence[Any] = ()
    """What the exception was made with, if that can be written as JSON."""
    traceback: str = ""
    final: bool = False
    """Trying again leads to the same."""


class Result(msgspec.Struct, frozen=True):
    """What came of a job. One that failed has its text as value too, for those who know nothing of `error`."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: Fault | None = None


def encode_fault(fault: Fault, retry_after: float | None = None) -> bytes:
    """Write the result of a job that failed. `retry_after`: the broker is to hand it out again after so many seconds.

    Who knows nothing of errors takes the text for the value, as the original's clients do.
    """
    result: dict[str, Any] = {"value": f"{fault.type}: {fault.message}", "error": fault}
    if retry_after is not None:
        result["retry_after"] = retry_after
    return msgspec.json.encode(result)
