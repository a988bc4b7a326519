"""A task: a function that workers run, with how it is run, and its calls as jobs."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar
from urllib.parse import quote

from mqcore import _tracing as tracing
from mqcore.config import Duration, seconds
from mqcore.errors import ConfigError
from mqcore.jobs import wire
from mqcore.jobs.backoff import Backoff
from mqcore.jobs.signature import Signature, encode_arguments

if TYPE_CHECKING:
    from mqcore.jobs.app import Jobs
    from mqcore.jobs.flow import Flow
    from mqcore.jobs.job import Job

__all__ = ["BoundCall", "Follows", "Task", "TaskOptions"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
C = TypeVar("C")

# A queue's name goes into one frame of a message and into the name of a channel.
_NAME_BYTES_MAX = 255
_RESULT_TTL_MAX_SECONDS = 366 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of a task. `Task.using` overrides them for single calls. Raises `ConfigError` for an invalid value."""

    queue: str = "default"
    """Queue of its jobs."""
    retries: int = 0
    """Maximum number of retries after a failure, 0 to 1,000,000."""
    backoff: Backoff = field(default_factory=Backoff)
    """Delays between retries. The worker applies its own value; jobs do not carry it."""
    soft_timeout: Duration | None = None
    """Time after which `SoftTimeLimit` is raised inside the job. `None`: no limit."""
    timeout: Duration | None = None
    """Time after which the attempt is ended; with processes, by killing the process. `None`: no limit."""
    guarantee: bool = True
    """Keep the job in the broker until it is settled, so that it survives a crash of its worker. It may run twice."""
    result: bool = True
    """Return the result to the sender."""
    result_ttl: Duration | None = 3600.0
    """Time for which mqcore's broker keeps the result for `Jobs.fetch`, from 1 s to 366 days (default: an hour).
    `None`: not at all. Without `result`, there is none."""
    priority: int = 0
    """0 to 255. Jobs above 0 run before those with 0, if the broker supports priorities."""
    unique: bool | str = False
    """Reject a job while another one waits or runs in the queue: with `True`, one of the same task and arguments; with
    text, one with the same key. Requires a broker that supports it, such as mqcore."""
    concurrency_key: str | None = None
    """At most `concurrency` jobs of a queue with the same key run at a time, on all workers together. `None`: no limit.
    Requires a broker that supports it, such as mqcore."""
    concurrency: int = 1
    """See `concurrency_key`. From 1 to 1,000,000."""
    run_after: Duration | datetime | None = None
    """Earliest start, as a time with a time zone or as a delay."""
    raises: tuple[type[Exception], ...] = ()
    """Exceptions that `Job.result` raises as themselves. All others become `JobFailed`."""

    def __post_init__(self) -> None:
        if not self.queue or len(self.queue.encode()) > _NAME_BYTES_MAX:
            raise ConfigError(f"invalid queue name {self.queue!r}; it must have 1 to {_NAME_BYTES_MAX} bytes")
        if not 0 <= self.retries <= 1_000_000:
            raise ConfigError(f"retries must be from 0 to 1,000,000, not {self.retries}")
        if not 0 <= self.priority <= 255:
            raise ConfigError(f"priority must be from 0 to 255, not {self.priority}")
        if self.result_ttl is not None and not 1 <= seconds(self.result_ttl) <= _RESULT_TTL_MAX_SECONDS:
            raise ConfigError(f"result_ttl must be from 1 s to 366 days, or None, not {self.result_ttl!r}")
        if isinstance(self.unique, str) and not 0 < len(_quoted(self.unique)) <= _NAME_BYTES_MAX:
            raise ConfigError(
                f"invalid unique key {self.unique!r}; it must have 1 to {_NAME_BYTES_MAX} bytes when URL-quoted"
            )
        if self.concurrency_key is not None and not 0 < len(_quoted(self.concurrency_key)) <= _NAME_BYTES_MAX:
            raise ConfigError(
                f"invalid concurrency_key {self.concurrency_key!r}; "
                f"it must have 1 to {_NAME_BYTES_MAX} bytes when URL-quoted"
            )
        if not 1 <= self.concurrency <= 1_000_000:
            raise ConfigError(f"concurrency must be from 1 to 1,000,000, not {self.concurrency}")
        if not isinstance(self.raises, tuple):
            name = getattr(self.raises, "__name__", "OutOfStock")
            raise ConfigError(f"raises must be a tuple of exceptions, such as raises=({name},); not {self.raises!r}")
        if isinstance(self.run_after, datetime) and self.run_after.tzinfo is None:
            raise ConfigError("run_after must be a datetime with a time zone, such as datetime.now().astimezone()")
        for name, limit in (("soft_timeout", self.soft_timeout), ("timeout", self.timeout)):
            if limit is not None and seconds(limit) <= 0:
                raise ConfigError(f"{name} must be longer than 0 s, or None for no limit; not {limit!r}")
        if isinstance(self.run_after, (int, float, str, timedelta)):
            seconds(self.run_after)

    def headers(self, name: str = "", args: bytes = b"", kwargs: bytes = b"") -> wire.Headers:
        """Return the protocol headers of a call of the task `name` with these JSON arguments."""
        # A broker counts the time limit from the delivery on. A job with `run_after` waits at its worker after that,
        # so only the worker receives the limit (see `terms`).
        timeout = seconds(self.timeout) if self.timeout is not None and self.run_after is None else 0.0
        return wire.Headers(
            reply_requested=self.result,
            guarantee=self.guarantee,
            retry_count=self.retries,
            timeout=math.ceil(timeout),
            priority=self.priority,
            unique=self._unique_key(name, args, kwargs),
            create_queue=True,
            concurrency_key=_quoted(self.concurrency_key or ""),
            concurrency=0 if self.concurrency_key is None else self.concurrency,
            result_ttl=math.ceil(seconds(self.result_ttl)) if self.keeps_result and self.result_ttl is not None else 0,
        )

    @property
    def keeps_result(self) -> bool:
        """Whether the broker keeps the result."""
        return self.result and self.result_ttl is not None

    def _unique_key(self, name: str, args: bytes, kwargs: bytes) -> str:
        if isinstance(self.unique, str):
            return _quoted(self.unique)
        # Hashed, because keys are limited in length and calls are not.
        return hashlib.sha256(b"\0".join((name.encode(), args, kwargs))).hexdigest() if self.unique else ""

    def terms(self) -> wire.Terms:
        """Return the options that are part of the job's JSON."""
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
    """Quote a key for the headers, in which commas and unprintable characters are not allowed."""
    return quote(key, safe="!#$&'()*+-./:;<=>?@[]^_{|}~ ")


class Task(Generic[P, R, C]):
    """A function that workers run. `enqueue` sends a job; calling the task runs the function locally.

    `P` are the function's parameters, `R` is the type of a job's result, and `C` the type that a call returns, which
    is a coroutine for ``async def``.
    """

    def __init__(self, jobs: Jobs, function: Callable[P, C], name: str, options: TaskOptions) -> None:
        self._jobs = jobs
        self.function = function
        """The decorated function."""
        self.name = name
        """Name of the task in jobs."""
        self.options = options
        """Options of its jobs."""
        self.signature = Signature(function)
        """Parameters and return type."""
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.__module__ = function.__module__
        self.__wrapped__ = function

    @property
    def app(self) -> Jobs:
        """The `Jobs` that the task belongs to."""
        return self._jobs

    def __repr__(self) -> str:
        return f"<task {self.name}, queue {self.options.queue}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run the function locally, without a job."""
        return self.function(*args, **kwargs)

    def using(self, **changes: Any) -> Self:
        """Return a copy of the task with changed options of `TaskOptions`.

        Raises `ConfigError` for an unknown option or an invalid value.
        """
        try:
            options = dataclasses.replace(self.options, **changes)
        except TypeError:
            known = ", ".join(field.name for field in dataclasses.fields(TaskOptions))
            unknown = ", ".join(sorted(changes.keys() - {field.name for field in dataclasses.fields(TaskOptions)}))
            raise ConfigError(f"unknown task option {unknown}; use {known}") from None
        return type(self)(self._jobs, self.function, self.name, options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Send a job to the broker and return a `Job`, without waiting for the result.

        Raises `TypeError` for arguments that the function does not accept, `InvalidArgument` for arguments without a
        JSON form, `AuthFailed` for rejected credentials, and `ConnectFailed` or `Busy` if the broker is unreachable or
        accepts no job within the timeout of the `Jobs`. The protocol has no confirmations: a job in transit is lost
        if the connection is lost.
        """
        with tracing.enqueuing(self.options.queue) as trace:
            job, frames = self._make(args, kwargs, trace)
            self._jobs.client.send(frames, job)
        return job

    delay = enqueue
    """Alias of `enqueue`, as in Celery."""

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Like `enqueue`, without blocking the event loop."""
        with tracing.enqueuing(self.options.queue) as trace:
            job, frames = self._make(args, kwargs, trace)
            await self._jobs.client.asend(frames, job)
        return job

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]:
        """Return a call with these arguments for a schedule or a flow. Raises `TypeError` and `InvalidArgument`."""
        self.signature.check(args, kwargs)
        return BoundCall(self.name, self.options, *encode_arguments(args, kwargs), self)

    def job(self, job_id: str, *, is_remote: bool = False) -> Job[R]:
        """Return the object of a sent job of this task; with `is_remote`, of one that another connection has sent."""
        from mqcore.jobs.job import Job

        options = self.options
        return Job(
            job_id,
            self.name,
            self.signature.decode_result,
            options.raises,
            options.result,
            jobs=self._jobs,
            queue=options.queue,
            is_kept=options.keeps_result,
            is_remote=is_remote,
        )

    def _make(
        self, args: tuple[object, ...], kwargs: dict[str, object], trace: Iterable[tuple[str, str]]
    ) -> tuple[Job[R], list[bytes]]:
        options = self.options
        try:
            self.signature.check(args, kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        arguments = encode_arguments(args, kwargs)
        call = wire.encode_call(self.name, *arguments, options.terms())
        job = self.job(wire.new_id())
        headers = options.headers(self.name, *arguments)
        return job, wire.request(job.id, options.queue, headers, call, trace)


class Follows(Protocol[P, S]):
    """A task whose jobs follow other jobs. Every `Task` is one."""

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[S]:
        """See `Task.enqueue`."""


@dataclass(frozen=True, slots=True)
class BoundCall(Generic[R]):
    """A task with arguments, for a schedule or a flow."""

    name: str
    options: TaskOptions
    args: bytes
    kwargs: bytes
    task: Task[..., R, Any] = field(compare=False, repr=False)

    def then(self, task: Follows[Concatenate[R, Q], S], *args: Q.args, **kwargs: Q.kwargs) -> Flow[S]:
        """Return a flow in which a job of `task` follows this call, with its result as the first argument.

        `args` and `kwargs` are its further arguments. Raises like `Flow.then`.
        """
        from mqcore.jobs.flow import Flow

        return Flow.of(self).then(task, *args, **kwargs)

    def headers(self) -> wire.Headers:
        """Return the headers of its jobs."""
        return self.options.headers(self.name, self.args, self.kwargs)

    def encode(self) -> bytes:
        """Return the JSON of its jobs."""
        terms = dataclasses.replace(self.options, run_after=None).terms()
        return wire.encode_call(self.name, self.args, self.kwargs, terms)
