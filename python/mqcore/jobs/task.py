"""A task: a function that workers run, with how it is run, and its calls as jobs."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar
from urllib.parse import quote

from mqcore.config import Duration, seconds
from mqcore.errors import ConfigError
from mqcore.jobs import wire
from mqcore.jobs.backoff import Backoff
from mqcore.jobs.signature import Signature, encode_arguments

if TYPE_CHECKING:
    from mqcore.jobs.app import Jobs
    from mqcore.jobs.job import Job

__all__ = ["BoundCall", "Task", "TaskOptions"]

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

# A queue's name goes into one frame of a message and into the name of a channel.
_NAME_BYTES_MAX = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a task is run, unless `Task.using` says otherwise for some calls."""

    queue: str = "default"
    """Where its jobs wait."""
    retries: int = 0
    """How often it is tried again after it has failed."""
    backoff: Backoff = field(default_factory=Backoff)
    """How long it waits before that. A worker's own; not part of a job."""
    soft_timeout: Duration | None = None
    """After this `SoftTimeLimit` is raised inside of the job. `None`: never."""
    timeout: Duration | None = None
    """After this the attempt is ended, by killing its process if need be. `None`: never."""
    guarantee: bool = True
    """The broker keeps the job until it is done, so that it survives its worker. It may run twice then."""
    result: bool = True
    """The broker sends the result back to whoever asked for the job."""
    priority: int = 0
    """Above 0: ahead of all that have 0, where the broker has priorities."""
    unique: bool | str = False
    """True: while a job of the task with these arguments waits or runs, another one is not taken. Text: while one of
    this key does, whatever its arguments. Of one queue, and by brokers that know of it, as mqcore does."""
    run_after: Duration | datetime | None = None
    """Not before this time, or after this long."""
    raises: tuple[type[Exception], ...] = ()
    """Exceptions that `Job.result` raises as themselves; all others are `JobFailed`."""

    def __post_init__(self) -> None:
        if not self.queue or len(self.queue.encode()) > _NAME_BYTES_MAX:
            raise ConfigError(f"{self.queue!r} cannot be a queue: names have 1 to {_NAME_BYTES_MAX} octets")
        if not 0 <= self.retries <= 1_000_000:
            raise ConfigError(f"retries cannot be {self.retries}: there are 0 to 1,000,000")
        if not 0 <= self.priority <= 255:
            raise ConfigError(f"the priority cannot be {self.priority}: there are 0 to 255")
        if isinstance(self.unique, str) and not 0 < len(_quoted(self.unique)) <= _NAME_BYTES_MAX:
            raise ConfigError(f"{self.unique!r} cannot be a key: keys have 1 to {_NAME_BYTES_MAX} octets")
        if isinstance(self.run_after, datetime) and self.run_after.tzinfo is None:
            raise ConfigError("run_after needs a datetime with a time zone; datetime.now().astimezone() has one")
        for name, limit in (("soft_timeout", self.soft_timeout), ("timeout", self.timeout)):
            if limit is not None and seconds(limit) <= 0:
                raise ConfigError(f"{name} cannot be {limit!r}: it is longer than nothing, or None for no limit")
        if isinstance(self.run_after, (int, float, str, timedelta)):
            seconds(self.run_after)

    def headers(self, name: str = "", args: bytes = b"", kwargs: bytes = b"") -> wire.Headers:
        """What of it stands in headers, for a call of the task `name` with these arguments."""
        # A broker that reads the limit counts from when it hands the job out, and a job may wait at its worker for its
        # time; so that worker alone is told of the limit then.
        timeout = seconds(self.timeout) if self.timeout is not None and self.run_after is None else 0.0
        return wire.Headers(
            reply_requested=self.result,
            guarantee=self.guarantee,
            retry_count=self.retries,
            timeout=math.ceil(timeout),
            priority=self.priority,
            unique=self._unique_key(name, args, kwargs),
        )

    def _unique_key(self, name: str, args: bytes, kwargs: bytes) -> str:
        if isinstance(self.unique, str):
            return _quoted(self.unique)
        # What a call is made of may be of any length, a key not.
        return hashlib.sha256(b"\0".join((name.encode(), args, kwargs))).hexdigest() if self.unique else ""

    def terms(self) -> wire.Terms:
        """What of it stands in the job itself."""
        return wire.Terms(
            soft=seconds(self.soft_timeout) if self.soft_timeout is not None else 0.0,
            hard=seconds(self.timeout) if self.timeout is not None else 0.0,
            not_before=self._not_before(),
        )

    def _not_before(self) -> float:
        if self.run_after is None:
            return 0.0
        if isinstance(self.run_after, datetime):
            return self.run_after.timestamp()
        return time.time() + seconds(self.run_after)


def _quoted(key: str) -> str:
    """A key as it can stand among headers: commas and what does not print are written otherwise."""
    return quote(key, safe="!#$&'()*+-./:;<=>?@[]^_{|}~ ")


class Task(Generic[P, R, C]):
    """A function that workers run. Calling it runs it here and now; `enqueue` lets a worker run it.

    `P` are the function's parameters, `R` is what a job of it results in, and `C` what a call of it returns, which for
    ``async def`` is a coroutine.
    """

    def __init__(self, jobs: Jobs, function: Callable[P, C], name: str, options: TaskOptions) -> None:
        self._jobs = jobs
        self.function = function
        """The function itself."""
        self.name = name
        """By which workers know it."""
        self.options = options
        """How it is run."""
        self.signature = Signature(function)
        """What it takes and returns."""
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<task {self.name}, queue {self.options.queue}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run the function here and now, as if it were no task."""
        return self.function(*args, **kwargs)

    def using(self, **changes: Any) -> Self:
        """Return the same task with other options, those of `TaskOptions`, for the calls that are made with it.

        Raises `ConfigError` for an option that there is not, or that cannot have this value.
        """
        try:
            options = dataclasses.replace(self.options, **changes)
        except TypeError:
            known = ", ".join(field.name for field in dataclasses.fields(TaskOptions))
            unknown = ", ".join(sorted(changes.keys() - {field.name for field in dataclasses.fields(TaskOptions)}))
            raise ConfigError(f"tasks have no option {unknown}; there are {known}") from None
        return type(self)(self._jobs, self.function, self.name, options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Send a job to the broker, and return at once with what to wait for its result by.

        Raises `InvalidArgument` for arguments without a JSON form, `ConnectFailed` or `Busy` if the broker cannot be
        reached or takes nothing within the timeout of the `Jobs`. The protocol has no receipt: a job that was on its
        way when the connection broke may be lost.
        """
        job, frames = self._make(args, kwargs)
        self._jobs.client.send(frames, job)
        return job

    delay = enqueue
    """The same, as other systems call it."""

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do as `enqueue`, without holding up the event loop."""
        job, frames = self._make(args, kwargs)
        await self._jobs.client.asend(frames, job)
        return job

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall:
        """Return the call with these arguments, for schedules."""
        self.signature.check(args, kwargs)
        return BoundCall(self.name, self.options, *encode_arguments(args, kwargs))

    def _make(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[Job[R], list[bytes]]:
        from mqcore.jobs.job import Job

        options = self.options
        try:
            self.signature.check(args, kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        arguments = encode_arguments(args, kwargs)
        call = wire.encode_call(self.name, *arguments, options.terms())
        job: Job[R] = Job(wire.new_id(), self.name, self.signature.decode_result, options.raises, options.result)
        return job, wire.request(job.id, options.queue, options.headers(self.name, *arguments), call)


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A task with arguments: what a schedule runs."""

    name: str
    options: TaskOptions
    args: bytes
    kwargs: bytes

    def headers(self) -> wire.Headers:
        """The headers of its jobs."""
        return self.options.headers(self.name, self.args, self.kwargs)

    def encode(self) -> bytes:
        """The JSON of its jobs."""
        terms = dataclasses.replace(self.options, run_after=None).terms()
        return wire.encode_call(self.name, self.args, self.kwargs, terms)
