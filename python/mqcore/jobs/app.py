"""The tasks of a program, and the broker that their jobs go to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, ParamSpec, Self, TypeVar, overload

from mqcore import credentials
from mqcore.config import Duration, seconds
from mqcore.errors import BodyError, ConfigError, InvalidArgument
from mqcore.jobs import address, wire
from mqcore.jobs.backoff import Backoff
from mqcore.jobs.client import JobClient, ask
from mqcore.jobs.dealer import Subscriber
from mqcore.jobs.job import Job
from mqcore.jobs.naming import full_name
from mqcore.jobs.signature import encode_arguments
from mqcore.jobs.task import BoundCall, Task, TaskOptions

__all__ = ["CatchUp", "Jobs", "Schedule", "TaskDecorator"]

P = ParamSpec("P")
R = TypeVar("R")

_CRON_FIELDS: Final = range(5, 7)
# A broker reads 512 octets of a handshake, and the rest of it takes some.
_CREDENTIALS_MAX: Final = 256


class CatchUp(StrEnum):
    """What becomes of runs that were missed because the broker was away; text of the same value will do."""

    NONE = "none"
    """They are left out, and so is the last one if it is more than a minute late."""
    LATEST = "latest"
    """The last one is made."""
    ALL = "all"
    """All are made that are not older than a week."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A call that is made again and again; by the broker, or by a scheduler of the original."""

    call: BoundCall
    interval: float | None
    """Seconds between two runs."""
    cron: str
    """When, if there is no interval."""
    nohaste: bool
    runs: int
    timezone: str = ""
    """The zone of the cron expression; empty: UTC."""
    catch_up: str = ""
    """What becomes of runs that were missed; empty: the broker's default."""

    def frames(self, command: bytes) -> list[bytes]:
        """The message that begins it, or with another command ends it."""
        headers = self.call.headers()
        wishes = wire.Headers(
            guarantee=headers.guarantee,
            retry_count=headers.retry_count,
            timeout=headers.timeout,
            priority=headers.priority,
            nohaste=self.nohaste,
            run_count=self.runs,
            unique=headers.unique,
            interval_ms=_odd_milliseconds(self.interval),
            timezone=self.timezone,
            catch_up=self.catch_up,
        )
        interval = "-1" if self.interval is None else f"{self.interval:g}"
        queue = self.call.options.queue.encode()
        return wire.message(command, queue, wishes.encode(), interval.encode(), self.call.encode(), self.cron.encode())


class TaskDecorator:
    """What `Jobs.task` with options returns."""

    def __init__(self, jobs: Jobs, name: str | None, options: TaskOptions) -> None:
        self._jobs = jobs
        self._name = name
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any, Any]:
        """Make a task of `function`. Raises `ConfigError` if there is one of that name already."""
        return self._jobs.add(function, self._name, self._options)


class Jobs:
    """Tasks by their names, and the broker that their jobs go to.

    `url` is where the broker's workers connect, ``emqp://127.0.0.1:47290``; default is the environment's
    MQCORE_JOBS_URL, or that. `timeout` (5 s) is how long sending a job may wait for the broker. `allow_import` are
    patterns of names, such as ``"legacy.tasks.*"``: workers also run functions whose names fit although they are no
    tasks here. ``*`` stands for anything, dots included.

    Where the broker asks who this is, `token` is what shows it, or `user` and `password`, or ``emqp://token@host``,
    ``emqp://user:password@host``; default is the environment's MQCORE_TOKEN. Raises `ConfigError` if it is said twice.

    Nothing is connected before the first job is sent. A fork gets a connection of its own.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout: Duration = 5.0,
        allow_import: Iterable[str] = (),
    ) -> None:
        chosen = url or os.environ.get("MQCORE_JOBS_URL") or address.DEFAULT_URL
        self.url, said = _who(chosen, credentials.of(token, user, password))
        """The broker, without credentials."""
        self.addresses = address.parse(self.url)
        """Its sockets."""
        self.credentials = said or os.environ.get("MQCORE_TOKEN") or None
        """What shows the broker who this is."""
        self.allow_import = tuple(allow_import)
        """Patterns of what may be run that is no task."""
        self._timeout = seconds(timeout)
        self._tasks: dict[str, Task[..., Any, Any]] = {}
        self._schedules: list[Schedule] = []
        self._client: JobClient | None = None
        self._lock = threading.Lock()

    def locate(
        self, url: str, *, token: str | None = None, user: str | None = None, password: str | None = None
    ) -> None:
        """Let the broker be another one; of jobs that are sent from now on, and of workers that are made.

        Credentials are those that are given here, as for `Jobs`, else those that it had. Raises `ConfigError`.
        """
        plain, said = _who(url, credentials.of(token, user, password))
        self.addresses = address.parse(plain)
        self.url = plain
        self.credentials = said or self.credentials
        self.close()

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]:
        """All tasks by their names."""
        return self._tasks

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """What `every` and `cron` have said."""
        return tuple(self._schedules)

    @property
    def client(self) -> JobClient:
        """The connection, made if there is none yet."""
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
        priority: int = 0,
        unique: bool | str = False,
        run_after: Duration | datetime | None = None,
        raises: tuple[type[Exception], ...] = (),
    ) -> TaskDecorator: ...
    def task(self, *function: Callable[..., Any], name: str | None = None, **options: Any) -> Any:
        """Decorate a function that workers run, plain or ``async``, with the options of `TaskOptions`.

        `name` is by which workers know it; default its module's name and its own. Raises `ConfigError` for an option
        that cannot have this value, and for a name that there is already.
        """
        decorate = TaskDecorator(self, name, TaskOptions(**options))
        return decorate(*function) if function else decorate

    def add(self, function: Callable[..., Any], name: str | None, options: TaskOptions) -> Task[..., Any, Any]:
        """Make a task of a function, as `task` does."""
        chosen = name or full_name(function)
        if chosen in self._tasks:
            raise ConfigError(f"there is a task {chosen} already; give one of them a name=")
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
        """Send a job by its task's name, known here or not; options are those of `TaskOptions`."""
        chosen = TaskOptions(**options)
        if not name or name.startswith(".") or name.endswith("."):
            raise InvalidArgument(f"{name!r} cannot be the name of a task")
        arguments = encode_arguments(tuple(args), kwargs or {})
        call = wire.encode_call(name, *arguments, chosen.terms())
        job: Job[Any] = Job(wire.new_id(), name, _any, chosen.raises, chosen.result)
        self.client.send(wire.request(job.id, chosen.queue, chosen.headers(name, *arguments), call), job)
        return job

    def every(
        self,
        interval: Duration,
        call: BoundCall | Task[[], Any, Any],
        *,
        nohaste: bool = False,
        runs: int = 0,
        catch_up: CatchUp | str | None = None,
    ) -> Schedule:
        """Let a call be made every `interval`, beginning now, or with `nohaste` after it; `runs` times, or for ever.

        Workers that start tell the broker; `send_schedules` does it at once. The same call again takes the first one's
        place, and goes on as it was if nothing is different. `catch_up` says what becomes of runs that nobody could
        make because the broker was away: ``none``, ``latest`` (its default: the last of them is made) or ``all``. That,
        and intervals with fractions of seconds, are for mqcore's broker. Raises `ConfigError`.
        """
        period = seconds(interval)
        if period <= 0:
            raise ConfigError("the interval of a schedule is longer than nothing")
        return self._plan(Schedule(_bound(call), period, "", nohaste, _runs(runs), "", _catch_up(catch_up)))

    def cron(
        self,
        expression: str,
        call: BoundCall | Task[[], Any, Any],
        *,
        timezone: str | None = None,
        runs: int = 0,
        catch_up: CatchUp | str | None = None,
    ) -> Schedule:
        """Let a call be made when a cron expression says, such as ``"0 3 * * *"``; `runs` times, or for ever.

        Six fields have seconds in front. `timezone` is a name such as ``"Europe/Berlin"``; default is UTC. Zones, six
        fields and `catch_up` (see `every`) are for mqcore's broker. It reads the expression, and says in its log if it
        cannot. Raises `ConfigError`.
        """
        if len(expression.split()) not in _CRON_FIELDS:
            raise ConfigError(f"{expression!r} is no cron expression: it has five fields, or six")
        if timezone is not None and (not timezone or set(timezone) & set(", :")):
            raise ConfigError(f"{timezone!r} is no time zone; write one such as Europe/Berlin")
        fields = " ".join(expression.split())
        return self._plan(Schedule(_bound(call), None, fields, True, _runs(runs), timezone or "", _catch_up(catch_up)))

    def _plan(self, schedule: Schedule) -> Schedule:
        self._schedules.append(schedule)
        return schedule

    def send_schedules(self) -> int:
        """Tell the broker all that `every` and `cron` have said; returns how many that are."""
        for schedule in self._schedules:
            self.client.send(schedule.frames(b"SCHEDULE"))
        return len(self._schedules)

    def unschedule(self, schedule: Schedule) -> None:
        """End a schedule, also one of an earlier run of the program: the call is what tells schedules apart."""
        if schedule in self._schedules:
            self._schedules.remove(schedule)
        self.client.send(schedule.frames(b"UNSCHEDULE"))

    def status(self, timeout: Duration = 5.0) -> dict[str, Any]:
        """Ask the broker what waits, runs and was done, by queue and by worker.

        Raises `ConnectFailed` and `AuthFailed`.
        """
        return self._ask(b"STATUS", timeout)

    def workers(self, timeout: Duration = 5.0) -> dict[str, Any]:
        """Ask the broker which workers there are. Raises `ConnectFailed`, `AuthFailed`."""
        return self._ask(b"ROUTER_SHOW_WORKERS", timeout)

    def watch(self, job: Job[Any] | str = "", timeout: Duration | None = None) -> Iterator[wire.JobProgress]:
        """Yield what jobs tell about how far they are, as it comes; of one `job`, or of all.

        A job tells by `JobContext.progress`. What was told before this looks is not repeated. Ends when nothing has
        come for `timeout`; `None`, the default: never. Of brokers with topics, as mqcore is one. Raises `AuthFailed`.
        """
        topic = wire.PROGRESS_TOPIC + (job if isinstance(job, str) else job.id)
        pause = None if timeout is None else seconds(timeout)
        subscriber = Subscriber(self.addresses.subscribe, topic, token=self.credentials)
        try:
            until = None if pause is None else time.monotonic() + pause
            while until is None or time.monotonic() < until:
                subscriber.poll(0.5 if until is None else min(0.5, max(0.0, until - time.monotonic())))
                if (refusal := subscriber.take_refusal()) is not None:
                    raise refusal
                for frames in subscriber.receive(1000):
                    progress = wire.parse_progress(frames)
                    if progress is not None:
                        until = None if pause is None else time.monotonic() + pause
                        yield progress
        finally:
            subscriber.close()

    def _ask(self, command: bytes, timeout: Duration) -> dict[str, Any]:
        import msgspec

        answer = ask(self.addresses.admin, command, seconds(timeout), self.credentials)
        try:
            return msgspec.json.decode(answer, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BodyError(f"the broker's answer cannot be read: {error}", answer, dict) from error

    def close(self, timeout: Duration = 5.0) -> None:
        """Send what waits to be sent, for up to `timeout`, and close the connection. The next job opens a new one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close(seconds(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.close()


def _who(url: str, given: str | None) -> tuple[str, str | None]:
    """The URL without credentials, and these, wherever they are said."""
    plain, said = credentials.split(url)
    if said is not None and given is not None:
        raise ConfigError("say once who the client is: in the URL, or as token, user and password")
    found = said or given
    if found is not None and (len(found.encode()) > _CREDENTIALS_MAX or not found.isprintable()):
        raise ConfigError(f"credentials are one line of {_CREDENTIALS_MAX} octets at most")
    return plain, found


def _bound(call: BoundCall | Task[[], Any, Any]) -> BoundCall:
    return call if isinstance(call, BoundCall) else call.bind()


def _odd_milliseconds(interval: float | None) -> int:
    return 0 if interval is None or interval.is_integer() else max(1, round(interval * 1000))


def _catch_up(catch_up: str | None) -> str:
    if catch_up is None:
        return ""
    try:
        return CatchUp(catch_up).value
    except ValueError:
        raise ConfigError(f"{catch_up!r} is no way to catch up; there are {', '.join(CatchUp)}") from None


def _runs(runs: int) -> int:
    if runs < 0:
        raise ConfigError(f"a schedule cannot run {runs} times; 0 is for ever")
    return runs


def _any(value: bytes) -> Any:
    import msgspec

    return msgspec.json.decode(value)
