"""Execution of one job: finds the function, decodes the arguments, calls it, and encodes the result."""

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
from mqcore._raised import call_in_thread, encodable, ends_task, text_of
from mqcore.errors import BodyError, JobCancelled, JobRefused
from mqcore.jobs import wire
from mqcore.jobs.context import CURRENT, JobContext
from mqcore.jobs.limits import Interruptions, SoftTimeLimit, cancelled, soft_limit
from mqcore.jobs.naming import full_name
from mqcore.jobs.signature import encode_value
from mqcore.jobs.task import Task

__all__ = ["Assignment", "Ending", "Registry", "fault_of", "run", "run_async"]

# Maximum characters of an exception's message, arguments and traceback in the result of a failed job.
_TEXT_CHARACTERS_MAX: Final = 16_000


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """A job for a slot of a pool."""

    run: int
    """Number of the attempt, unique in this worker."""
    id: str
    queue: str
    attempt: int
    job: bytes
    """JSON of the job."""
    soft: float
    """Soft time limit in seconds; 0: none."""


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """The result of an attempt."""

    run: int
    value: bytes
    """JSON of the value, if the attempt succeeded."""
    fault: wire.Fault | None = None


class Registry:
    """The functions that a worker may run: tasks, and functions whose names match the patterns of `allow_import`."""

    def __init__(self, tasks: Mapping[str, Task[..., Any, Any]], allow_import: Iterable[str] = ()) -> None:
        self._tasks = tasks
        self._patterns = tuple(allow_import)

    def task(self, name: str) -> Task[..., Any, Any] | None:
        """Return the task with this name, or `None`."""
        return self._tasks.get(name)

    def may_run(self, call: wire.Call) -> bool:
        """Whether the call names a task or a function that may be imported. Imports nothing."""
        if call.name in self._tasks:
            return True
        # Names with a leading underscore are private to their modules.
        return not call.callable.startswith("_") and any(fnmatchcase(call.name, pattern) for pattern in self._patterns)

    def find(self, call: wire.Call) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        """Return the function, its positional and its keyword arguments.

        Raises `JobRefused` for an unknown task, `BodyError` for arguments of the wrong types, and any exception of an
        import.
        """
        task = self._tasks.get(call.name)
        if task is not None:
            args, kwargs = task.signature.decode(bytes(call.args), bytes(call.kwargs))
            return task.function, args, kwargs
        if not self.may_run(call):
            raise JobRefused(
                f"unknown task {call.name}; define it, or permit it with --allow-import or Jobs(allow_import=...)"
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
        raise JobRefused(f"{call.name} is not callable")
    return function  # type: ignore[no-any-return]


def run(
    assignment: Assignment,
    registry: Registry,
    report: Callable[[float, str], None],
    runner: asyncio.Runner,
    interruptions: Interruptions,
) -> Ending:
    """Run a job in this thread, ``async`` functions in `runner`. Exceptions of the job become the result's fault."""
    try:
        call = wire.decode_call(assignment.job)
        token = CURRENT.set(_context(assignment, call, report))
        try:
            function, args, kwargs = registry.find(call)
            if inspect.iscoroutinefunction(function):
                coroutine = _limited(function(*args, **kwargs), assignment.soft)
                coroutine = _interruptible(coroutine, interruptions, assignment.run)
                value = runner.run(coroutine, context=contextvars.copy_context())
            else:
                with interruptions.raised_in(assignment.run), soft_limit(assignment.soft):
                    value = function(*args, **kwargs)
        finally:
            CURRENT.reset(token)
        return Ending(assignment.run, encode_value(value))
    except BaseException as error:
        # sys.exit() in a job fails the job; no exception of a job stops the worker.
        return Ending(assignment.run, b"null", fault_of(error))
    finally:
        interruptions.forget(assignment.run)


async def run_async(assignment: Assignment, registry: Registry, report: Callable[[float, str], None]) -> Ending:
    """Run a job in this event loop, or in a thread if its function is not ``async``."""
    this_task = asyncio.current_task()
    try:
        call = wire.decode_call(assignment.job)
        CURRENT.set(_context(assignment, call, report))
        function, args, kwargs = registry.find(call)
        if inspect.iscoroutinefunction(function):
            value = await _limited(function(*args, **kwargs), assignment.soft)
        else:
            value = await asyncio.to_thread(_call_limited, function, args, kwargs, assignment.soft)
        return Ending(assignment.run, encode_value(value))
    except BaseException as error:
        if ends_task(this_task, error):
            raise
        return Ending(assignment.run, b"null", fault_of(error))


def _call_limited(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], soft: float) -> Any:
    with soft_limit(soft):
        return call_in_thread(lambda: function(*args, **kwargs))


async def _interruptible(coroutine: Any, interruptions: Interruptions, run: int) -> Any:
    """Await the coroutine; cancel it if the attempt is interrupted, which raises `JobCancelled` here."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    try:
        with interruptions.by(run, lambda: _call_soon(loop, task.cancel)):
            return await coroutine
    except asyncio.CancelledError as error:
        if interruptions.was_interrupted(run):
            raise cancelled() from error
        raise


def _call_soon(loop: asyncio.AbstractEventLoop, action: Callable[[], object]) -> None:
    loop.call_soon_threadsafe(action)


async def _limited(coroutine: Any, soft: float) -> Any:
    """Await the coroutine; cancel it after `soft` seconds, which raises `SoftTimeLimit` here."""
    if soft <= 0:
        return await coroutine
    limit = asyncio.timeout(soft)
    try:
        async with limit:
            return await coroutine
    except TimeoutError as error:
        if limit.expired():
            raise SoftTimeLimit(f"the job exceeded its soft time limit of {soft:g} s") from error
        raise


def _context(assignment: Assignment, call: wire.Call, report: Callable[[float, str], None]) -> JobContext:
    return JobContext(assignment.id, call.name, assignment.queue, assignment.attempt, report)


def fault_of(error: BaseException, *, final: bool | None = None) -> wire.Fault:
    """Convert an exception to a fault. `final` overrides whether a retry would fail in the same way."""
    text = text_of(error)[:_TEXT_CHARACTERS_MAX]
    try:
        args: list[Any] = msgspec.json.decode(msgspec.json.encode(error.args))
    except BaseException:
        args = [text]
    if len(str(args)) > _TEXT_CHARACTERS_MAX:
        args = [text]
    # These errors depend only on the job, so a retry would fail in the same way.
    is_final = isinstance(error, BodyError | JobRefused | JobCancelled) if final is None else final
    trace = encodable("".join(traceback.format_exception(error))) if error.__traceback__ is not None else ""
    return wire.Fault(full_name(type(error)), text, args, trace[-_TEXT_CHARACTERS_MAX:], is_final)
