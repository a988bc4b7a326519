"""Running one job where it is to run: find the function, read the arguments, call it, write down what came of it."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from mqcore import bodies
from mqcore.errors import BodyError, JobRefused
from mqcore.jobs import wire
from mqcore.jobs.context import CURRENT, JobContext
from mqcore.jobs.limits import SoftTimeLimit, soft_limit
from mqcore.jobs.naming import full_name
from mqcore.jobs.signature import encode_value
from mqcore.jobs.task import Task

__all__ = ["Assignment", "Ending", "Registry", "fault_of", "run", "run_async"]

# Text that exceptions bring along; results of failed jobs must not be larger than those of others.
_TEXT_MAX: Final = 16_000


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """A job as it is handed to whoever runs it."""

    run: int
    """Tells this attempt from all others of the worker's."""
    id: str
    queue: str
    attempt: int
    job: bytes
    """Its JSON."""
    soft: float
    """Seconds until it is asked to end; 0: never."""


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """What came of an attempt."""

    run: int
    value: bytes
    """JSON; of one that did not fail."""
    fault: wire.Fault | None = None


class Registry:
    """What may be run: tasks, and what patterns allow to import."""

    def __init__(self, tasks: Mapping[str, Task[..., Any, Any]], allow_import: Iterable[str] = ()) -> None:
        self._tasks = tasks
        self._patterns = tuple(allow_import)

    def task(self, name: str) -> Task[..., Any, Any] | None:
        """The task of this name."""
        return self._tasks.get(name)

    def may_run(self, call: wire.Call) -> bool:
        """Whether it is a task, or may be imported. Nothing is imported to find out."""
        if call.name in self._tasks:
            return True
        # What begins with an underline was never meant for others.
        return not call.callable.startswith("_") and any(fnmatchcase(call.name, pattern) for pattern in self._patterns)

    def find(self, call: wire.Call) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        """What to call, with what. Raises `JobRefused`, `BodyError`, and whatever an import raises."""
        task = self._tasks.get(call.name)
        if task is not None:
            args, kwargs = task.signature.decode(bytes(call.args), bytes(call.kwargs))
            return task.function, args, kwargs
        if not self.may_run(call):
            raise JobRefused(
                f"there is no task {call.name} here, and nothing allows to import it; "
                "`--allow-import` and Jobs(allow_import=...) do"
            )
        return _import(call), bodies.decode(bytes(call.args), list), bodies.decode(bytes(call.kwargs), dict)


def _import(call: wire.Call) -> Callable[..., Any]:
    module_name, _, class_name = call.path.partition(":")
    found = importlib.import_module(module_name)
    if class_name:
        kind = getattr(found, class_name)
        args, kwargs = bodies.decode(bytes(call.class_args), list), bodies.decode(bytes(call.class_kwargs), dict)
        found = kind(*args, **kwargs)
    function = getattr(found, call.callable)
    if not callable(function):
        raise JobRefused(f"{call.name} cannot be called")
    return function  # type: ignore[no-any-return]


def run(
    assignment: Assignment,
    registry: Registry,
    tell: Callable[[float, str], None],
    runner: asyncio.Runner,
) -> Ending:
    """Run a job in this thread; `runner` is for ``async`` functions."""
    try:
        call = wire.decode_call(assignment.job)
        token = CURRENT.set(_context(assignment, call, tell))
        try:
            function, args, kwargs = registry.find(call)
            if inspect.iscoroutinefunction(function):
                coroutine = _limited(function(*args, **kwargs), assignment.soft)
                value = runner.run(coroutine, context=contextvars.copy_context())
            else:
                with soft_limit(assignment.soft):
                    value = function(*args, **kwargs)
        finally:
            CURRENT.reset(token)
        return Ending(assignment.run, encode_value(value))
    except (Exception, asyncio.CancelledError) as error:
        return Ending(assignment.run, b"null", fault_of(error))
    except SystemExit as error:
        # A job does not end its worker.
        return Ending(assignment.run, b"null", fault_of(error))


async def run_async(assignment: Assignment, registry: Registry, tell: Callable[[float, str], None]) -> Ending:
    """Run a job in this event loop; a plain function in a thread of it."""
    try:
        call = wire.decode_call(assignment.job)
        CURRENT.set(_context(assignment, call, tell))
        function, args, kwargs = registry.find(call)
        if inspect.iscoroutinefunction(function):
            value = await _limited(function(*args, **kwargs), assignment.soft)
        else:
            value = await asyncio.to_thread(_call_limited, function, args, kwargs, assignment.soft)
        return Ending(assignment.run, encode_value(value))
    except (Exception, SystemExit) as error:
        return Ending(assignment.run, b"null", fault_of(error))


def _call_limited(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], soft: float) -> Any:
    with soft_limit(soft):
        return function(*args, **kwargs)


async def _limited(coroutine: Any, soft: float) -> Any:
    """A coroutine is asked to end by cancelling it, as everywhere in asyncio."""
    if soft <= 0:
        return await coroutine
    limit = asyncio.timeout(soft)
    try:
        async with limit:
            return await coroutine
    except TimeoutError as error:
        if limit.expired():
            raise SoftTimeLimit(f"the job took longer than its soft limit of {soft:g} s") from error
        raise


def _context(assignment: Assignment, call: wire.Call, tell: Callable[[float, str], None]) -> JobContext:
    return JobContext(assignment.id, call.name, assignment.queue, assignment.attempt, tell)


def fault_of(error: BaseException, *, final: bool | None = None) -> wire.Fault:
    """An exception, written down."""
    text = str(error)[:_TEXT_MAX]
    try:
        args: list[Any] = msgspec.json.decode(msgspec.json.encode(error.args))
    except Exception:
        args = [text]
    if len(str(args)) > _TEXT_MAX:
        args = [text]
    # The same arguments do not fit next time either.
    is_final = isinstance(error, BodyError | JobRefused) if final is None else final
    trace = "".join(traceback.format_exception(error)) if error.__traceback__ is not None else ""
    return wire.Fault(full_name(type(error)), text, args, trace[-_TEXT_MAX:], is_final)
