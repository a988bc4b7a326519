"""eMQP/1.0 for workers and clients: frames of messages, and the JSON of jobs and results. Pure functions."""

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

from mqcore.bodies import JSON_ERRORS
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
    "with_trace",
]

VERSION: Final = b"eMQP/1.0"

REPLY: Final = b"REPLY"

# Frames before those of the command itself: an empty one, the version, the command, the message id.
_ENVELOPE: Final = 4

_ATTEMPTS_MAX: Final = 1_000_000

# Longer headers are not cached. Most jobs have the same short headers as the previous job.
_CACHED_BYTES_MAX: Final = 256


class _Ids:
    """Ids in the form of UUIDs, which other programs require: a random prefix per process, and a counter."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Choose a new prefix."""
        first = uuid.uuid4()
        self._begin = str(first)[:24]
        # A random start, so that a restarted process with the same prefix would not repeat ids.
        self._numbers = itertools.count(first.node >> 1)

    def __call__(self) -> str:
        return f"{self._begin}{next(self._numbers):012x}"


new_id: Final = _Ids()
"""Returns the id of a new message."""


def message(command: bytes, *frames: bytes) -> list[bytes]:
    """Return the frames of a message with a new id."""
    return [b"", VERSION, command, new_id().encode(), *frames]


def heartbeat() -> list[bytes]:
    """Return the frames of a heartbeat."""
    return message(b"HEARTBEAT", str(time.time()).encode())


class Received(msgspec.Struct, frozen=True):
    """A received message."""

    command: bytes
    """Command, in upper case."""
    id: bytes
    body: Sequence[bytes]
    """Frames after the id."""


def parse(frames: Sequence[bytes]) -> Received | None:
    """Parse a message; `None` if frames are missing. Receivers ignore such messages."""
    if len(frames) < _ENVELOPE:
        return None
    return Received(frames[2].upper(), frames[3], frames[_ENVELOPE:])


class Headers(msgspec.Struct, frozen=True):
    """Headers of a job: a comma-separated list of options."""

    reply_requested: bool = False
    guarantee: bool = False
    retry_count: int = 0
    timeout: int = 0
    """Time limit of an attempt in seconds; 0: none."""
    attempt: int = 0
    """Number of the attempt from 1, if the broker counts attempts; else 0."""
    priority: int = 0
    nohaste: bool = False
    run_count: int = 0
    unique: str = ""
    """Key of which a queue contains one job at a time; without commas. Empty: none."""
    interval_ms: int = 0
    """Interval in milliseconds, if it is not a whole number of seconds. For mqcore's broker."""
    timezone: str = ""
    catch_up: str = ""
    create_queue: bool = False
    """Create the queue if it does not exist, instead of sending the job to ``default``. For mqcore's broker."""
    concurrency_key: str = ""
    """Key of which at most `concurrency` jobs of a queue run at a time; without commas. For mqcore's broker."""
    concurrency: int = 0
    result_ttl: int = 0
    """Seconds for which the broker keeps the result; 0: not at all. For mqcore's broker."""
    unless_ended: bool = False
    """Do not start the schedule again if it has ended. For mqcore's broker."""

    @classmethod
    def parse(cls, text: bytes) -> Headers:
        """Parse headers. Unknown options and invalid numbers are ignored."""
        return _read_headers(text) if len(text) <= _CACHED_BYTES_MAX else _read_headers.__wrapped__(text)

    def encode(self) -> bytes:
        """Encode the headers."""
        return _encode_headers(self)


@lru_cache(maxsize=256)
def _read_headers(text: bytes) -> Headers:
    found = dict(word.strip().partition(b":")[::2] for word in text.split(b",")) if text else {}
    return Headers(
        reply_requested=_is_set(found.get(b"reply-requested")),
        guarantee=_is_set(found.get(b"guarantee")),
        retry_count=_number(found.get(b"retry-count")),
        timeout=_number(found.get(b"timeout")),
        attempt=_number(found.get(b"attempt")),
    )


@lru_cache(maxsize=256)
def _encode_headers(headers: Headers) -> bytes:
    words = ["reply-requested"] * headers.reply_requested + ["guarantee"] * headers.guarantee
    words += ["nohaste"] * headers.nohaste + ["create-queue"] * headers.create_queue
    words += ["unless-ended:1"] * headers.unless_ended
    texts = (
        ("timezone", headers.timezone),
        ("catch-up", headers.catch_up),
        ("concurrency", headers.concurrency_key),
    )
    words += [f"{name}:{text}" for name, text in texts if text]
    numbers = (
        ("retry-count", headers.retry_count),
        ("timeout", headers.timeout),
        ("priority", headers.priority),
        ("run_count", headers.run_count),
        ("interval-ms", headers.interval_ms),
        ("result-ttl", headers.result_ttl),
        ("concurrency-max", headers.concurrency),
    )
    words += [f"{name}:{number}" for name, number in numbers if number]
    words += [f"unique:{headers.unique}"] * bool(headers.unique)
    return ",".join(words).encode()


def _is_set(value: bytes | None) -> bool:
    return value is not None and value.strip().lower() not in {b"0", b"false"}


def _number(value: bytes | None) -> int:
    if value is None or not value.strip().isdigit():
        return 0
    return min(int(value.strip()[:12]), _ATTEMPTS_MAX)


TRACE_HEADER: Final = "traceparent"
"""The header with the context of a trace, as W3C Trace Context defines it."""

PROGRESS_TOPIC: Final = "mqcore.jobs.progress/"
"""Prefix of the topics to which workers publish the progress of jobs; the job's id follows."""


class JobProgress(msgspec.Struct, frozen=True):
    """A progress report of a job."""

    id: str
    """Id of the job."""
    task: str
    """Name of the task."""
    fraction: float
    """Completed fraction, 0 to 1."""
    note: str
    """Note of the job; may be empty."""
    attempt: int
    """Number of the attempt, from 1."""
    worker: str
    """Name of the worker at the broker."""


_JOB_PROGRESS: Final = msgspec.json.Decoder(JobProgress)


def publish_progress(progress: JobProgress) -> list[bytes]:
    """Return the frames of a PUBLISH with the report."""
    return message(b"PUBLISH", (PROGRESS_TOPIC + progress.id).encode(), msgspec.json.encode(progress))


def parse_progress(frames: Sequence[bytes]) -> JobProgress | None:
    """Parse a subscriber's message; `None` if it is not a progress report."""
    try:
        return _JOB_PROGRESS.decode(frames[-1])
    except JSON_ERRORS:
        return None


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of a job that headers cannot express. A member of its JSON that only mqcore's workers read."""

    soft: float = 0.0
    """Soft time limit in seconds; 0: none."""
    hard: float = 0.0
    """Time limit in seconds; 0: none."""
    not_before: float = 0.0
    """Earliest start in seconds since 1970; 0: immediately."""


class Call(msgspec.Struct, frozen=True):
    """Function and arguments of a job. The arguments stay JSON because only the worker knows their types."""

    callable: str
    path: str
    args: msgspec.Raw = msgspec.Raw(b"[]")
    kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    class_args: msgspec.Raw = msgspec.Raw(b"[]")
    class_kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    mqcore: Terms = Terms()

    @property
    def name(self) -> str:
        """Name of the task."""
        return f"{self.path}.{self.callable}" if self.path else self.callable


_CALL: Final = msgspec.json.Decoder(tuple[Any, Call])


def decode_call(job: bytes) -> Call:
    """Parse the JSON of a job. Raises `BodyError`."""
    try:
        call = _CALL.decode(job)[1]
    except JSON_ERRORS as error:
        raise BodyError(f"invalid job: {error}", job, Call) from error
    if not all(math.isfinite(number) and number >= 0 for number in (call.mqcore.soft, call.mqcore.hard)):
        raise BodyError("invalid job: time limits must be finite and at least 0 s", job, Call)
    return call


def encode_call(name: str, args: bytes, kwargs: bytes, terms: Terms) -> bytes:
    """Encode the JSON of a job, with all members that schedulers of the original EventMQ require."""
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


def request(
    job_id: str, queue: str, headers: Headers, job: bytes, trace: Iterable[tuple[str, str]] = ()
) -> list[bytes]:
    """Return the frames of a REQUEST. `trace`: headers with the context of a trace."""
    encoded = with_trace(headers.encode(), trace)
    return [b"", VERSION, b"REQUEST", job_id.encode(), queue.encode(), encoded, job]


def with_trace(headers: bytes, trace: Iterable[tuple[str, str]]) -> bytes:
    """Append the context of a trace to the headers of a job."""
    for name, value in trace:
        # A trace state may contain commas, which separate the headers of a job.
        if name == TRACE_HEADER:
            headers += (b"," if headers else b"") + f"{name}:{value}".encode()
    return headers


def trace_of(headers: bytes) -> str | None:
    """Return the context of the trace in the headers of a job."""
    words = (word.strip().partition(b":") for word in headers.split(b","))
    return next((value.decode("ascii", "replace") for name, _, value in words if name == TRACE_HEADER.encode()), None)


def encode_queues(queues: Iterable[tuple[str, int]]) -> bytes:
    """Encode names and weights of queues for a worker's INFORM."""
    return msgspec.json.encode([[weight, name] for name, weight in queues])


class Fault(msgspec.Struct, frozen=True):
    """Error of a failed job."""

    type: str
    message: str
    args: Sequence[Any] = ()
    """Arguments of the exception if they have a JSON form, else its message."""
    traceback: str = ""
    final: bool = False
    """Whether a retry would fail in the same way."""


class Result(msgspec.Struct, frozen=True):
    """Result of a job. A failed job also has the error's text as value, for clients that do not know `error`."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: Fault | None = None


def encode_fault(fault: Fault, retry_after: float | None = None) -> bytes:
    """Encode the result of a failed job. With `retry_after`, the broker redelivers the job after that many seconds.

    Clients that do not know `error`, such as those of the original EventMQ, see the text as the value.
    """
    result: dict[str, Any] = {"value": f"{fault.type}: {fault.message}", "error": fault}
    if retry_after is not None:
        result["retry_after"] = retry_after
    return msgspec.json.encode(result)
