"""What a broker's admin side tells a program by HTTP.

::

    for failed in errors("http://127.0.0.1:2627"):
        print(failed.at, failed.request, failed.why)
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors as _errors
from mqcore._http import AdminClient
from mqcore.config import Duration

if TYPE_CHECKING:
    from mqcore.tls import TLSConfig

__all__ = [
    "DEFAULT_URL",
    "FailedRequest",
    "ScheduleInfo",
    "ScheduleList",
    "Sighting",
    "Trace",
    "TraceStep",
    "TracedClient",
    "errors",
    "schedules",
    "trace",
    "unschedule",
]

DEFAULT_URL: Final = "http://127.0.0.1:2627"
"""Where an admin side is served if nothing else is said."""

_SCHEDULE_ID: Final = re.compile(r"[0-9a-fA-F]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """A request that could not be done, and of which its client was told a number."""

    id: str
    """The number: 20 digits of the time in UTC, and four characters."""
    request: str
    """The request's id as the client wrote it; octets that are no printable ASCII are escaped."""
    why: str
    """What was wrong and what to do."""
    at_ms: int
    """When: Unix milliseconds."""
    client: str
    """The client's id."""
    connection: int
    """The number of its connection."""
    protocol: str
    """What it speaks: ``mqks``."""

    @property
    def at(self) -> datetime:
        """When, in UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule that a broker keeps, and how far it is."""

    id: str
    """A hash of the call that it makes, which tells schedules apart."""
    queue: str
    """The queue that it names."""
    headers: str
    """The headers of each run, as the protocol writes them."""
    job: str
    """The JSON of the job; of a long one the beginning."""
    interval_ms: int | None
    """Milliseconds between two runs; ``None``: it has a cron expression."""
    cron: str | None
    """Its cron expression."""
    timezone: str | None
    """The zone of that."""
    catch_up: str
    """What becomes of runs that were missed: ``none``, ``latest`` or ``all``."""
    due_ms: int
    """When it is due next: Unix milliseconds."""
    runs: int
    """How often it ran."""
    left: int | None
    """How often it still runs; ``None``: without end."""

    @property
    def due(self) -> datetime:
        """When it is due next, in UTC."""
        return datetime.fromtimestamp(self.due_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class ScheduleList:
    """Schedules of a broker."""

    total: int
    """How many there are in all."""
    schedules: tuple[ScheduleInfo, ...]
    """As many as were asked for, those that are due next first."""


def schedules(
    url: str = DEFAULT_URL,
    *,
    limit: int = 100,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> ScheduleList:
    """Return the schedules that the broker with this admin side keeps, those that are due next first.

    `limit` is how many at most, up to 10,000; `token` and `timeout` are as for `errors`, and so is what is raised.
    """
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask("GET", f"/schedules?limit={limit:d}")
    try:
        found = tuple(ScheduleInfo(**schedule) for schedule in content["schedules"])
        return ScheduleList(int(content["total"]), found)
    except (KeyError, TypeError, ValueError) as error:
        raise _errors.BadAnswer(f"{url} tells its schedules in another form: {error}") from error


def unschedule(
    url: str,
    schedule_id: str,
    *,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> None:
    """End the schedule of this id, which `schedules` tells, of the broker with this admin side.

    When this returns, that is on disk and survives any crash. A run that is due already is still made. A worker whose
    program has the schedule sends it again when it starts. As everything that changes something by the admin side it
    needs a `token`, of one with the rule ``administer:/schedules/*``.

    Raises `NotFound` if the broker keeps no such schedule, `InvalidArgument` for what can be no id, `Unauthorized`,
    `Busy` while the broker cannot write schedules down, `Nacked` if its disk failed in that moment, `ConfigError` for
    a URL of something else, `ConnectFailed` if nobody answers, `ConnectionLost` while the broker stops, and `BadAnswer`
    if what answers is no broker of this version.
    """
    if not _SCHEDULE_ID.fullmatch(schedule_id):
        raise _errors.InvalidArgument(f"{schedule_id!r}: the id of a schedule has 40 hexadecimal digits")
    AdminClient(url, token=token, timeout=timeout, tls=tls).ask("DELETE", f"/schedules/{schedule_id}")


def errors(
    url: str = DEFAULT_URL,
    *,
    limit: int = 100,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> tuple[FailedRequest, ...]:
    """Return the last requests that the broker with this admin side could not do, the latest first.

    `limit` is how many at most; a broker keeps the last 1,000. `token` is that of one who may administer it, where that
    is asked for. `timeout` is how long it may say nothing.

    Raises `ConfigError` for a URL of something else, `ConnectFailed` if nobody answers, `Unauthorized`, `Busy` if it
    has too much to do, `ConnectionLost` while it stops, and `BadAnswer` if what answers is no broker of this version.
    """
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask("GET", f"/errors?limit={limit:d}")
    try:
        return tuple(FailedRequest(**failed) for failed in content["errors"])
    except (KeyError, TypeError) as error:
        raise _errors.BadAnswer(f"{url} tells its errors in another form: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedClient:
    """A client that had to do with a message."""

    id: str
    """Its client id."""
    name: str | None
    """What it calls itself; of EventMQ its identity."""
    type: str | None
    """Of EventMQ ``eventmq-backend`` for workers, ``eventmq-frontend`` for clients."""
    protocol: str
    """What it speaks: ``emqp``, ``tmqp``, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """Something that has happened to a message, as the history has it."""

    at_ms: int
    """When: Unix milliseconds."""
    kind: str
    """``produced``, ``saved``, ``delivered``, ``acked``, ``nacked``, ``put-back``, ``dropped``, ..."""
    queue: str
    """Where."""
    attempt: int | None
    """How often it had been handed out."""
    last: bool
    """Whether it left its queue for good with this."""
    reason: str | None
    """Why, if somebody said so."""
    target: str | None
    """The queue that it moved to."""
    producer: TracedClient | None
    """Who brought it, where that is told."""
    consumer: TracedClient | None
    """Who had it, where that is told."""
    shard: int
    """With `number`: which message it is. A dead letter is another one than what it was before, of the same id."""
    number: int
    """See `shard`."""

    @property
    def at(self) -> datetime:
        """When, in UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A message that is in a queue now."""

    queue: str
    """Which queue."""
    state: str
    """``waiting``, ``delayed`` until a time, ``delivered`` and not settled, or ``undecided`` by its handler."""
    until_ms: int | None
    """Until when it is delayed: Unix milliseconds."""
    consumers: tuple[TracedClient, ...]
    """Who has it."""
    attempts: int
    """How often it was handed out."""
    put_backs: int
    """How often it was put back."""
    saved: bool
    """Whether it is durable."""
    producer: TracedClient | None
    """Who brought it; unknown after a restart."""
    shard: int
    """See `TraceStep`."""
    number: int
    """See `TraceStep`; 0 without a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What is known of a message."""

    id: str
    """Its id. Producers choose it, so several messages may have the same."""
    history: bool
    """Whether the broker keeps a history; without one `steps` is empty."""
    steps: tuple[TraceStep, ...]
    """What has happened, in order."""
    now: tuple[Sighting, ...]
    """Where it is."""
    truncated: bool
    """There are more steps than were told, which are 10,000."""
    not_all_looked_at: bool
    """So many messages wait in queues that not all of them were looked at; it may be among the others."""

    @property
    def outcome(self) -> str:
        """How it stands in a word: a `Sighting.state`, or how it ended: ``done``, ``dead-lettered``, ``dropped``, ...

        ``unknown`` if it is nowhere and its end was not written down: it was in memory only when the broker was killed.
        """
        if self.now:
            return self.now[-1].state
        ends = [step.kind for step in self.steps if step.last]
        if not ends:
            return "unknown"
        return "done" if ends[-1] in {"acked", "delivered"} else ends[-1]


def trace(
    url: str,
    message_id: str,
    *,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> Trace:
    """Return what the broker with this admin side knows of the message, or the job, of this id.

    What has happened to it is read from the history, all of it, if the broker keeps one; that may take its time,
    `timeout` at most. What it is doing now is known without one, unless it waits and its body is not in memory, as
    after a restart. `token` is that of one who may administer the broker, where that is asked for.

    Raises `NotFound` if there is no such message, `ConfigError` for a URL of something else, `ConnectFailed` if nobody
    answers, `Unauthorized`, and `BadAnswer` if what answers is no broker of this version.
    """
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask(
        "GET", f"/trace/{urllib.parse.quote(message_id, safe='')}"
    )
    try:
        return Trace(
            **{
                **content,
                "steps": tuple(TraceStep(**_clients(step)) for step in content["steps"]),
                "now": tuple(Sighting(**_clients(found)) for found in content["now"]),
            }
        )
    except (KeyError, TypeError) as error:
        raise _errors.BadAnswer(f"{url} tells traces in another form: {error}") from error


def _clients(told: dict[str, Any]) -> dict[str, Any]:
    """The same with clients in place of what stands for them."""
    for name in ("producer", "consumer"):
        if told.get(name) is not None:
            told[name] = TracedClient(**told[name])
    if "consumers" in told:
        told["consumers"] = tuple(TracedClient(**consumer) for consumer in told["consumers"])
    return told
