"""Jobs, schedules, limits and routers on the admin side. `mqcore.admin` has all of this under its own name."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors as _errors
from mqcore._http import DEFAULT_URL, REFUSALS, AdminClient, query, queue_path, reading
from mqcore.client.models import RouterStep, RouterTest
from mqcore.config import Duration, RouteMethod
from mqcore.config.queues import QUEUE_ID_MAX

if TYPE_CHECKING:
    from mqcore.tls import TLSConfig

__all__ = [
    "JobQueueState",
    "JobsState",
    "LimitPage",
    "LimitState",
    "RunningJob",
    "ScheduleInfo",
    "ScheduleList",
    "WorkerState",
    "dead_letter_queue",
    "jobs",
    "limits",
    "remove_limit",
    "route",
    "schedules",
    "set_limit",
    "unschedule",
]

_SCHEDULE_ID: Final = re.compile(r"[0-9a-fA-F]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueueState:
    """A queue of jobs. `running` and `finished` are counted from the broker's start."""

    name: str
    """The name by which workers know it."""
    queue: str
    """Its address: ``channel/id``."""
    waiting: int
    """Jobs that a worker could take now."""
    delayed: int
    """Jobs that wait for the time of their next attempt."""
    running: int
    """Jobs that workers have."""
    finished: int
    """Finished jobs."""
    workers: int
    """Connected workers that serve it."""
    latency_ms: int | None
    """Milliseconds that the last job took; ``None`` if none has finished."""
    latency_max_ms: int | None
    """The longest time in milliseconds; ``None`` if none has finished."""
    failed: int | None
    """Jobs that failed for good and wait in `failed_queue`; ``None`` if failed jobs are dropped."""
    failed_queue: str | None
    """The dead-letter queue. It may contain messages of other queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """A connected worker."""

    name: str
    """Its identity, or the number of its connection."""
    user: str | None
    """The user or token of its login."""
    queues: tuple[tuple[str, int], ...]
    """Names and weights of its queues."""
    free: int
    """Jobs that it can take now."""
    finished: int
    """Jobs that it has finished."""
    silent_seconds: float
    """Seconds since the broker heard it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker runs."""

    id: str
    """Its id."""
    queue: str
    """The address of its queue, ``channel/id``."""
    worker: str | None
    """The name of its worker; ``None`` while the connection of the worker ends."""
    seconds: float
    """Seconds since the worker got it."""
    progress: float | None
    """Its last report of progress, from 0 to 1; ``None`` without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsState:
    """Queues of jobs, and workers."""

    total: int
    """Number of all queues of jobs."""
    matched: int
    """Number of queues that the filter matches."""
    queues: tuple[JobQueueState, ...]
    """Queues that workers or clients have used since the broker's start, by name."""
    workers_total: int
    """Number of connected workers."""
    workers: tuple[WorkerState, ...]
    """Connected workers, by name."""
    running_total: int
    """Number of all running jobs that can be cancelled. Those of workers of the original EventMQ cannot."""
    running: tuple[RunningJob, ...]
    """Up to `limit` of them, those that run longest first."""


def jobs(
    url: str = DEFAULT_URL,
    *,
    matching: str = "",
    offset: int = 0,
    limit: int = 100,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> JobsState:
    """Return the job queues, workers and running jobs of the broker with this admin side.

    `matching` is text that the names of queues contain, in upper or lower case. `limit` is at most 10,000. The other
    arguments and the exceptions are those of `errors`.

    ::

        for queue in jobs("http://127.0.0.1:2627").queues:
            print(queue.name, queue.waiting, queue.running, queue.failed)
    """
    path = "/jobs?" + query({"filter": matching, "offset": offset, "limit": limit})
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask("GET", path, rejections=REFUSALS)
    with reading("its jobs", url):
        return JobsState(
            total=int(content["total"]),
            matched=int(content["matched"]),
            queues=tuple(JobQueueState(**queue) for queue in content["queues"]),
            workers_total=int(content["workers_total"]),
            workers=tuple(_worker(worker) for worker in content["workers"]),
            running_total=int(content["running_total"]),
            running=tuple(RunningJob(**job) for job in content["running"]),
        )


def _worker(content: dict[str, Any]) -> WorkerState:
    queues = tuple((str(queue["name"]), int(queue["weight"])) for queue in content["queues"])
    return WorkerState(**{**content, "queues": queues})


def dead_letter_queue(
    url: str, queue: str, *, token: str | None = None, timeout: Duration = 15.0, tls: TLSConfig | None = None
) -> str | None:
    """Return the queue that gets the messages of `queue` that fail for good; ``None`` if they are dropped.

    `queue` is ``channel/id``, and so is the result. The broker creates the queue 65535 of a channel for its first dead
    letter. Raises `NotFound` if `queue` does not exist. The other arguments and the exceptions are those of `errors`.
    """
    client = AdminClient(url, token=token, timeout=timeout, tls=tls)
    content = client.ask("GET", queue_path(queue), rejections=REFUSALS)
    with reading("a queue", url):
        named = content["options"]["dead_letter"]
        channel = queue.rpartition("/")[0]
        return None if named == "drop" else str(named or f"{channel}/{QUEUE_ID_MAX}")


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule of a broker, and its progress."""

    id: str
    """A hash of its call, unique among schedules."""
    queue: str
    """The queue of its runs."""
    headers: str
    """The headers of each run, as the protocol writes them."""
    job: str
    """The JSON of the job; a long one is cut."""
    interval_ms: int | None
    """Milliseconds between two runs; ``None`` if it has a cron expression."""
    cron: str | None
    """Its cron expression."""
    timezone: str | None
    """The time zone of `cron`."""
    catch_up: str
    """The missed runs that are made later: ``none``, ``latest`` or ``all``."""
    due_ms: int
    """Time of the next run in Unix milliseconds."""
    runs: int
    """Runs so far."""
    left: int | None
    """Remaining runs; ``None``: unlimited."""

    @property
    def due(self) -> datetime:
        """Time of the next run in UTC."""
        return datetime.fromtimestamp(self.due_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class ScheduleList:
    """Schedules of a broker."""

    total: int
    """Number of all schedules."""
    schedules: tuple[ScheduleInfo, ...]
    """Up to `limit` of them, those due next first."""


def schedules(
    url: str = DEFAULT_URL,
    *,
    limit: int = 100,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> ScheduleList:
    """Return the schedules of the broker with this admin side, those due next first.

    `limit` is at most 10,000. The other arguments and the exceptions are those of `errors`.
    """
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask("GET", f"/schedules?limit={limit:d}")
    with reading("its schedules", url):
        found = tuple(ScheduleInfo(**schedule) for schedule in content["schedules"])
        return ScheduleList(int(content["total"]), found)


def unschedule(
    url: str,
    schedule_id: str,
    *,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> None:
    """Remove the schedule with this id, as `schedules` returns it, from the broker with this admin side.

    When the call returns, the removal is on disk. Runs that are already due are still made. Workers whose program
    declares the schedule do not start it again, but `mqcore.jobs.Jobs.send_schedules` does. Like every change through
    the admin side it needs a `token` with the rule ``administer:/schedules/*``.

    Raises `NotFound` if there is no such schedule, `InvalidArgument` for a malformed id, `Unauthorized`, `Busy` while
    the broker cannot save schedules, `Nacked` if its disk failed during the call, `ConfigError` for another URL,
    `ConnectFailed` if the broker does not answer, `ConnectionLost` while it stops, and `BadAnswer` if the answer is not
    that of a broker of this version.
    """
    if not _SCHEDULE_ID.fullmatch(schedule_id):
        raise _errors.InvalidArgument(f"{schedule_id!r}: the id of a schedule has 40 hexadecimal digits")
    AdminClient(url, token=token, timeout=timeout, tls=tls).ask("DELETE", f"/schedules/{schedule_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """A counter or buffer of a broker's limiter."""

    key: bytes
    """Its key."""
    kind: str
    """``counter`` or ``buffer``."""
    left: int
    """Remaining quota; 0 for a buffer."""
    buffer_bytes: int | None
    """Bytes of a buffer; ``None`` for a counter."""
    expires_in_seconds: float | None
    """Seconds until it expires; ``None``: never."""
    reads_per_minute: int
    """Reads in the last full minute."""
    writes_per_minute: int
    """Writes in the last full minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPage:
    """A part of the counters and buffers of a broker."""

    total: int
    """Number of all entries, with those that have expired and are not yet removed."""
    matched: int
    """Number of found entries that the filter matches."""
    complete: bool
    """Whether the broker searched all entries. It ends a search after 0.5 s or 2,000,000 entries."""
    limits: tuple[LimitState, ...]
    """The entries."""


def limits(
    url: str = DEFAULT_URL,
    *,
    matching: str = "",
    sort: str = "key",
    reverse: bool = False,
    offset: int = 0,
    limit: int = 100,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> LimitPage:
    """Return counters and buffers of the broker with this admin side. This does not count as a read of them.

    `matching` is text that their keys contain, in upper or lower case. `sort` is ``key``, or one of these, the largest
    first: ``left``, ``expires``, ``reads``, ``writes``. `reverse` turns the order around. `offset` is at most 10,000
    and `limit` at most 1,000. The other arguments and the exceptions are those of `errors`; an unknown `sort` raises
    `BadRequest`.
    """
    path = "/limits?" + query(
        {"filter": matching, "sort": sort, "reverse": int(reverse), "offset": offset, "limit": limit}
    )
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask("GET", path, rejections=REFUSALS)
    with reading("its limits", url):
        return LimitPage(
            total=int(content["total"]),
            matched=int(content["matched"]),
            complete=bool(content["complete"]),
            limits=tuple(_limit(entry) for entry in content["limits"]),
        )


def _limit(content: dict[str, Any]) -> LimitState:
    encoded = str(content["key_base64"])
    key = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    fields = {name: value for name, value in content.items() if name not in {"key", "key_base64"}}
    return LimitState(key=key, **fields)


def set_limit(
    url: str,
    key: str | bytes,
    left: int,
    *,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> int:
    """Change the quota that a counter has left, and return it. Its time to live stays.

    A counter of fewer bits keeps the lower bits of `left`.

    Raises `NotFound` if there is no such counter, `Unacceptable` if it is a buffer, a sliding window or a bucket,
    `Unauthorized` without a `token` that may administer limits, and what `errors` raises.
    """
    body = json.dumps({"left": left}).encode()
    client = AdminClient(url, token=token, timeout=timeout, tls=tls)
    content = client.ask("POST", _limit_path(key), body=body, rejections=REFUSALS)
    with reading("a changed limit", url):
        return int(content["left"])


def remove_limit(
    url: str, key: str | bytes, *, token: str | None = None, timeout: Duration = 60.0, tls: TLSConfig | None = None
) -> None:
    """Remove a counter or buffer, which makes its full limit available again.

    Raises `NotFound` if there is none, and what `set_limit` raises.
    """
    AdminClient(url, token=token, timeout=timeout, tls=tls).ask("DELETE", _limit_path(key), rejections=REFUSALS)


def _limit_path(key: str | bytes) -> str:
    named = key.encode() if isinstance(key, str) else key
    encoded = base64.urlsafe_b64encode(named).decode().rstrip("=")
    return f"/limits/{encoded}?base64=1"


def route(
    url: str,
    router: str,
    body: str = "",
    *,
    headers: Mapping[str, str] | None = None,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> RouterTest:
    """Return where a router would send a message, and why. Nothing is sent. Routers in Python run for this.

    Raises `NotFound` if there is no such router, `BadRequest` for a name or value of a header with a line break,
    `Unauthorized` without a `token` that may administer routers, and what `errors` raises.

    ::

        test = route("http://127.0.0.1:2627", "by-country", headers={"Country": "fr"}, token=token)
        print([step.target for step in test.steps if step.takes])
    """
    content = {"headers": [list(pair) for pair in (headers or {}).items()], "body": body}
    path = f"/routers/{urllib.parse.quote(router, safe='')}/test"
    client = AdminClient(url, token=token, timeout=timeout, tls=tls)
    answer = client.ask("POST", path, body=json.dumps(content).encode(), rejections=REFUSALS)
    with reading("a route", url):
        return RouterTest(
            method=RouteMethod(answer["method"]),
            taken=bool(answer["taken"]),
            refusal=answer["refusal"],
            steps=tuple(RouterStep(**step) for step in answer["steps"]),
            skipped=tuple(answer["skipped"]),
        )
