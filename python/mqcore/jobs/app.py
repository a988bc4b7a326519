"""`Jobs`: the tasks and schedules of a program, and the broker that receives their jobs."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, overload

from mqcore import _tracing as tracing
from mqcore import credentials
from mqcore.config import Duration, seconds
from mqcore.errors import BodyError, ConfigError, ConnectionLost, InvalidArgument
from mqcore.jobs import address, wire
from mqcore.jobs.backoff import Backoff
from mqcore.jobs.client import JobClient, ask, unreachable
from mqcore.jobs.dealer import Subscriber
from mqcore.jobs.job import Job
from mqcore.jobs.naming import full_name
from mqcore.jobs.recurrence import check_cron, check_interval
from mqcore.jobs.signature import encode_arguments
from mqcore.jobs.state import JobState, JobStatus, answer_of
from mqcore.jobs.task import BoundCall, Task, TaskOptions

if TYPE_CHECKING:
    from mqcore.jobs.flow import Flow, Group

__all__ = ["CatchUp", "Jobs", "Schedule", "TaskDecorator", "patterns"]

P = ParamSpec("P")
R = TypeVar("R")

# A broker reads at most 512 bytes of a handshake, which also contains the socket type and the identity.
_CREDENTIALS_BYTES_MAX: Final = 256
_JOB_ID_BYTES_MAX: Final = 255


# Time between two checks whether a watched job is done.
_WATCH_POLL_SECONDS: Final = 0.1


class CatchUp(StrEnum):
    """Policy for scheduled runs that were missed while the broker was stopped. Strings of the same value also work."""

    NONE = "none"
    """Skip missed runs, and also the current one if it is more than a minute late."""
    LATEST = "latest"
    """Make up for the latest missed run only."""
    ALL = "all"
    """Make up for all missed runs of the past week."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A recurring call. The broker, or a scheduler of the original EventMQ, sends its jobs."""

    call: BoundCall[Any]
    interval: float | None
    """Seconds between two runs; `None` for a cron schedule."""
    cron: str
    """Cron expression; empty for an interval."""
    nohaste: bool
    """Whether the first run happens after one interval instead of immediately."""
    runs: int
    """Number of runs; 0: unlimited."""
    timezone: str = ""
    """Time zone of the cron expression; empty: UTC."""
    catch_up: str = ""
    """Policy for missed runs; empty: the broker's default."""

    def frames(self, command: bytes, *, unless_ended: bool = False) -> list[bytes]:
        """Return the frames of the message that registers the schedule (SCHEDULE) or removes it (UNSCHEDULE).

        With `unless_ended`, mqcore's broker does not start the schedule again if it has ended.
        """
        headers = self.call.headers()
        wishes = wire.Headers(
            guarantee=headers.guarantee,
            retry_count=headers.retry_count,
            timeout=headers.timeout,
            priority=headers.priority,
            nohaste=self.nohaste,
            run_count=self.runs,
            unique=headers.unique,
            concurrency_key=headers.concurrency_key,
            concurrency=headers.concurrency,
            interval_ms=_odd_milliseconds(self.interval),
            timezone=self.timezone,
            catch_up=self.catch_up,
            create_queue=True,
            unless_ended=unless_ended,
        )
        # Without an exponent, which brokers do not read.
        interval = "-1" if self.interval is None else f"{self.interval:.3f}".rstrip("0").rstrip(".")
        queue = self.call.options.queue.encode()
        return wire.message(command, queue, wishes.encode(), interval.encode(), self.call.encode(), self.cron.encode())


class TaskDecorator:
    """Decorator that `Jobs.task` with options returns."""

    def __init__(self, jobs: Jobs, name: str | None, options: TaskOptions) -> None:
        self._jobs = jobs
        self._name = name
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any, Any]:
        """Make a task of `function`. Raises `ConfigError` if a task of that name exists."""
        return self._jobs.add(function, self._name, self._options)


class Jobs:
    """A program's tasks by name, and the broker that receives their jobs.

    - `url`: the broker's listener for workers, ``emqp://HOST:PORT``. Default: the environment variable
      MQCORE_JOBS_URL, else ``emqp://127.0.0.1:47290``.
    - `token`, or `user` and `password`: credentials. They can also be part of the URL: ``emqp://token@host`` or
      ``emqp://user:password@host``. Default: the environment variable MQCORE_TOKEN.
    - `timeout`: time to wait for the broker when sending a job (5 s).
    - `allow_import`: patterns of function names, such as ``"legacy.tasks.*"``. Workers also run matching functions that
      are not tasks. ``*`` matches any text, including dots.

    The first job opens the connection. After a fork, the child opens a connection of its own. Raises `ConfigError` for
    an invalid URL, and for credentials that are given twice.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout: Duration = 5.0,
        allow_import: str | Iterable[str] = (),
    ) -> None:
        chosen = url or os.environ.get("MQCORE_JOBS_URL") or address.DEFAULT_URL
        self.url, found = _split_credentials(chosen, credentials.of(token, user, password))
        """URL of the broker, without credentials."""
        self.addresses = address.parse(self.url)
        """Sockets of the broker."""
        self.credentials = found or os.environ.get("MQCORE_TOKEN") or None
        """Token, or user and password separated by a colon; `None`: no credentials."""
        self.allow_import = patterns(allow_import)
        """Name patterns of functions that workers may run although they are not tasks."""
        self._timeout = seconds(timeout)
        self._tasks: dict[str, Task[..., Any, Any]] = {}
        self._schedules: list[Schedule] = []
        self._client: JobClient | None = None
        self._lock = threading.Lock()

    def locate(
        self, url: str, *, token: str | None = None, user: str | None = None, password: str | None = None
    ) -> None:
        """Use another broker for jobs sent, and for workers created, from now on.

        Without new credentials, the previous ones stay in use. Raises `ConfigError` like `Jobs`.
        """
        plain, found = _split_credentials(url, credentials.of(token, user, password))
        self.addresses = address.parse(plain)
        self.url = plain
        self.credentials = found or self.credentials
        self.close()

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]:
        """All tasks by name."""
        return self._tasks

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Schedules declared with `every` and `cron`."""
        return tuple(self._schedules)

    @property
    def client(self) -> JobClient:
        """The connection for jobs, created on first use."""
        client = self._client
        if client is None or not client.is_of_this_process:
            with self._lock:
                client = self._client
                if client is None or not client.is_of_this_process:
                    client = self._client = JobClient(self.addresses.frontend, self._timeout, self.credentials)
        return client

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        retries: int = 0,
        backoff: Backoff = ...,
        soft_timeout: Duration | None = None,
        timeout: Duration | None = None,
        guarantee: bool = True,
        result: bool = True,
        result_ttl: Duration | None = 3600.0,
        priority: int = 0,
        unique: bool | str = False,
        concurrency_key: str | None = None,
        concurrency: int = 1,
        run_after: Duration | datetime | None = None,
        raises: tuple[type[Exception], ...] = (),
    ) -> TaskDecorator: ...
    def task(self, *function: Callable[..., Any], name: str | None = None, **options: Any) -> Any:
        """Make a task of the decorated function, plain or ``async``, with the options of `TaskOptions`.

        `name` is the task's name in jobs; default: the names of its module and of the function. Raises `ConfigError`
        for an invalid option, and if a task of that name exists.

        Example::

            @jobs.task(queue="email", retries=3)
            def send_email(to: str) -> int: ...
        """
        decorate = TaskDecorator(self, name, TaskOptions(**options))
        return decorate(*function) if function else decorate

    def add(self, function: Callable[..., Any], name: str | None, options: TaskOptions) -> Task[..., Any, Any]:
        """Make a task of a function. Raises `ConfigError` if a task of that name exists."""
        chosen = name or full_name(function)
        if chosen in self._tasks:
            raise ConfigError(f"task {chosen} already exists; give one of the two another name=")
        task: Task[..., Any, Any] = Task(self, function, chosen, options)
        self._tasks[chosen] = task
        return task

    def send(
        self,
        name: str,
        args: Iterable[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Any,
    ) -> Job[Any]:
        """Send a job of the task called `name`, which need not be defined here, with options of `TaskOptions`.

        Raises like `Task.enqueue`, and `InvalidArgument` for an invalid name, or for a string as `args`.
        """
        if isinstance(args, (str, bytes)):
            raise InvalidArgument(f"args must be a list of arguments, not {args!r}; use [{args!r}]")
        chosen = TaskOptions(**options)
        if not name or name.startswith(".") or name.endswith("."):
            raise InvalidArgument(f"invalid task name {name!r}; it must not be empty, nor start or end with a dot")
        arguments = encode_arguments(tuple(args), kwargs or {})
        call = wire.encode_call(name, *arguments, chosen.terms())
        job: Job[Any] = Job(
            wire.new_id(),
            name,
            _any,
            chosen.raises,
            chosen.result,
            jobs=self,
            queue=chosen.queue,
            is_kept=chosen.keeps_result,
        )
        headers = chosen.headers(name, *arguments)
        with tracing.enqueuing(chosen.queue) as trace:
            self.client.send(wire.request(job.id, chosen.queue, headers, call, trace), job)
        return job

    def group(self, calls: Iterable[BoundCall[R] | Flow[R]]) -> Group[R]:
        """Return a group: jobs that run side by side.

        ``enqueue`` sends it; ``then`` lets a job follow that gets the list of their results when all have ended.

        Example::

            job = jobs.group(count.bind(page) for page in pages).then(add_up).enqueue()
        """
        from mqcore.jobs.flow import Flow, Group

        return Group(Flow.of(call) if isinstance(call, BoundCall) else call for call in calls)

    @overload
    def fetch(self, job_id: str, task: Task[..., R, Any]) -> Job[R]: ...
    @overload
    def fetch(self, job_id: str, task: None = None) -> Job[Any]: ...
    def fetch(self, job_id: str, task: Task[..., Any, Any] | None = None) -> Job[Any]:
        """Return the job with this id, which any program may have sent.

        With `task`, its result has the return type of the task, and exceptions of `TaskOptions.raises` are raised as
        themselves. Nothing is asked before ``result``, which waits if the job has not ended. The broker keeps results
        for `TaskOptions.result_ttl`; ``result`` of an unknown or expired id ends with `RequestTimeout`.
        """
        if not job_id or len(job_id.encode()) > _JOB_ID_BYTES_MAX:
            raise InvalidArgument(f"invalid job id {job_id!r}; it has 1 to {_JOB_ID_BYTES_MAX} bytes")
        if task is None:
            return Job(job_id, "job", _any, jobs=self, is_remote=True)
        return task.using(result=True).job(job_id, is_remote=True)

    def result(self, job_id: str, timeout: Duration | None = 5.0) -> Any:
        """Wait up to `timeout` for the result of the job with this id, and return it. Raises like `Job.result`."""
        return self.fetch(job_id).result(timeout)

    def state(self, job_id: str, timeout: Duration = 5.0) -> JobState:
        """Return what the broker knows about the job with this id: whether it runs, its last progress report, its end.

        Raises `JobRefused` without the right to publish to its queue and while the broker cannot save anything,
        `RequestTimeout` if the broker does not answer, as the original's does not, and like `Task.enqueue` without a
        connection.
        """
        answer = self.client.ask(b"LOOKUP", job_id.encode(), timeout=seconds(timeout))
        return answer_of(answer, job_id)[0]

    def expect(self, job: Job[Any], *, wait: bool) -> None:
        """Ask the broker for the result of a job. For `Job`."""
        self.client.expect(job, wait=wait)

    def cancel(self, job_id: str, *, queue: str | None = None, hard: bool = False, timeout: Duration = 5.0) -> bool:
        """Cancel the job with this id, as `Job.cancel` does; false if it has ended already.

        `queue` is its queue. It may be omitted if the job runs or is part of a flow. Raises like `Job.cancel`, and
        `InvalidArgument` if the broker does not know the queue.
        """
        if queue is None:
            known = self.state(job_id, timeout)
            if known.queue is None:
                raise InvalidArgument(
                    f"no worker runs job {job_id}, so its queue is unknown; name it, such as queue='default'"
                )
            if known.status in {JobStatus.DONE, JobStatus.FAILED}:
                return False
            queue = known.queue
        frames = (job_id.encode(), queue.encode(), b"hard" if hard else b"soft")
        return answer_of(self.client.ask(b"CANCEL", *frames, timeout=seconds(timeout)), job_id)[1]

    def every(
        self,
        interval: Duration,
        call: BoundCall[Any] | Task[[], Any, Any],
        *,
        nohaste: bool = False,
        runs: int = 0,
        catch_up: CatchUp | str | None = None,
    ) -> Schedule:
        """Declare a schedule that runs `call` every `interval`.

        - `nohaste`: the first run happens after one interval instead of immediately.
        - `runs`: number of runs; 0 (default): unlimited.
        - `catch_up`: policy for runs missed while the broker was stopped; see `CatchUp` (default of mqcore's broker:
          ``latest``).

        Workers register schedules with the broker when they join; `send_schedules` registers them immediately. A new
        schedule for the same call replaces the previous one; an unchanged one continues. One that has ended, by `runs`
        or by `unschedule`, starts again when it changes or `send_schedules` is called, not when a worker joins.

        `catch_up`, intervals with fractions of a second, and staying ended require mqcore's broker. Raises
        `ConfigError` for an invalid value, such as an interval under 10 ms.
        """
        period = seconds(interval)
        check_interval(period, interval)
        return self._plan(Schedule(_bound(call), period, "", nohaste, _runs(runs), "", _catch_up(catch_up)))

    def cron(
        self,
        expression: str,
        call: BoundCall[Any] | Task[[], Any, Any],
        *,
        timezone: str | None = None,
        runs: int = 0,
        catch_up: CatchUp | str | None = None,
    ) -> Schedule:
        """Declare a schedule that runs `call` at the times of a cron expression, such as ``"0 3 * * *"``.

        - `expression`: five fields, or six with seconds first, or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly`` or
          ``@yearly``.
        - `timezone`: a name such as ``"Europe/Berlin"`` (default: UTC).
        - `runs` and `catch_up`: as for `every`.

        Six fields, words such as ``@daily``, `timezone` and `catch_up` require mqcore's broker. Raises `ConfigError`
        for an invalid or never matching expression, an unknown time zone, or another invalid value.
        """
        fields = " ".join(expression.split())
        check_cron(fields, timezone)
        return self._plan(Schedule(_bound(call), None, fields, True, _runs(runs), timezone or "", _catch_up(catch_up)))

    def _plan(self, schedule: Schedule) -> Schedule:
        self._schedules.append(schedule)
        return schedule

    def send_schedules(self) -> int:
        """Register all declared schedules with the broker, and return their number. Raises like `Task.enqueue`.

        Schedules that have ended start again.
        """
        return self._send_schedules(unless_ended=False)

    def _send_schedules(self, *, unless_ended: bool, wait: bool = True) -> int:
        for schedule in self._schedules:
            self.client.send(schedule.frames(b"SCHEDULE", unless_ended=unless_ended), wait=wait)
        return len(self._schedules)

    def unschedule(self, schedule: Schedule) -> None:
        """Remove a schedule from the broker. The call identifies it, so this also works after a restart."""
        if schedule in self._schedules:
            self._schedules.remove(schedule)
        self.client.send(schedule.frames(b"UNSCHEDULE"))

    def status(self, timeout: Duration = 5.0) -> dict[str, Any]:
        """Return the broker's numbers of waiting, running and finished jobs, by queue and by worker.

        Raises `ConnectFailed` if no answer arrives within `timeout`, and `AuthFailed` for rejected credentials.
        """
        return self._ask(b"STATUS", timeout)

    def workers(self, timeout: Duration = 5.0) -> dict[str, Any]:
        """Return the workers that are connected to the broker. Raises like `status`."""
        return self._ask(b"ROUTER_SHOW_WORKERS", timeout)

    def watch(self, job: Job[Any] | str = "", timeout: Duration | None = None) -> Iterator[wire.JobProgress]:
        """Yield progress reports of `job`, or of all jobs, as they arrive.

        Jobs report progress with `JobContext.progress`. Reports from before this call are not repeated. The iteration
        ends when the result of a `Job` has arrived, and after `timeout` without a report (default: never). It requires
        a broker with topics, such as mqcore's. Raises `AuthFailed` for rejected credentials, `ConnectFailed` if nothing
        accepts the connection, and `ConnectionLost` if it is lost for longer than the timeout of the `Jobs`.
        """
        watched = None if isinstance(job, str) else job
        topic = wire.PROGRESS_TOPIC + (job if isinstance(job, str) else job.id)
        pause = math.inf if timeout is None else seconds(timeout)
        subscriber = Subscriber(self.addresses.subscribe, topic, token=self.credentials)
        try:
            until = time.monotonic() + pause
            lost_at: float | None = None
            while True:
                # Checked before reports are read, so that the last ones are not missed.
                is_over = time.monotonic() >= until or (watched is not None and watched.is_done)
                left = max(0.0, until - time.monotonic())
                subscriber.poll(0.0 if is_over else min(_WATCH_POLL_SECONDS, left))
                if (refusal := subscriber.take_refusal()) is not None:
                    raise refusal
                for frames in subscriber.receive(1000):
                    progress = wire.parse_progress(frames)
                    if progress is not None:
                        until = time.monotonic() + pause
                        yield progress
                if is_over:
                    return
                lost_at = self._check_watching(subscriber, lost_at)
        finally:
            subscriber.close()

    def _check_watching(self, subscriber: Subscriber, lost_at: float | None) -> float | None:
        """When the connection was lost, `None` before the first one. Raises if there is none, or not any more."""
        now = time.monotonic()
        if subscriber.is_connected:
            return now
        if lost_at is None and subscriber.unreachable is not None:
            raise unreachable(subscriber.endpoint, subscriber.unreachable)
        if lost_at is not None and now - lost_at > self._timeout:
            raise ConnectionLost(
                f"{subscriber.endpoint}: no connection to the job broker for {self._timeout:g} s: "
                f"{subscriber.unreachable or 'no answer'}"
            )
        return lost_at

    def _ask(self, command: bytes, timeout: Duration) -> dict[str, Any]:
        import msgspec

        answer = ask(self.addresses.admin, command, seconds(timeout), self.credentials)
        try:
            return msgspec.json.decode(answer, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BodyError(f"invalid answer from the broker: {error}", answer, dict) from error

    def close(self, timeout: Duration = 5.0) -> None:
        """Send waiting jobs for up to `timeout`, then close the connection. The next job opens a new one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close(seconds(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.close()


def _split_credentials(url: str, given: str | None) -> tuple[str, str | None]:
    """The URL without credentials, and the credentials of the URL or of the arguments."""
    plain, from_url = credentials.split(url)
    if from_url is not None and given is not None:
        raise ConfigError("credentials are given twice; put them either in the URL or in token, user and password")
    found = from_url or given
    if found is not None and (len(found.encode()) > _CREDENTIALS_BYTES_MAX or not found.isprintable()):
        raise ConfigError(f"credentials must be printable and at most {_CREDENTIALS_BYTES_MAX} bytes long")
    return plain, found


def patterns(allow_import: str | Iterable[str]) -> tuple[str, ...]:
    """The patterns of `allow_import`, which may be a single one."""
    return (allow_import,) if isinstance(allow_import, str) else tuple(allow_import)


def _bound(call: BoundCall[Any] | Task[[], Any, Any]) -> BoundCall[Any]:
    return call if isinstance(call, BoundCall) else call.bind()


def _odd_milliseconds(interval: float | None) -> int:
    return 0 if interval is None or interval.is_integer() else max(1, round(interval * 1000))


def _catch_up(catch_up: str | None) -> str:
    if catch_up is None:
        return ""
    try:
        return CatchUp(catch_up).value
    except ValueError:
        raise ConfigError(f"unknown catch_up policy {catch_up!r}; use one of {', '.join(CatchUp)}") from None


def _runs(runs: int) -> int:
    if runs < 0:
        raise ConfigError(f"runs must be at least 0, not {runs}; 0 means unlimited")
    return runs


def _any(value: bytes) -> Any:
    import msgspec

    return msgspec.json.decode(value)
