"""Runs tasks of Django inside a worker: the function of all jobs, its argument and its result."""

from __future__ import annotations

import os
import socket
import traceback
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from mqcore._raised import text_of
from mqcore.jobs.context import current
from mqcore.jobs.naming import full_name

__all__ = ["TASK_NAME", "Failure", "Outcome", "TaskCall", "TaskFailed", "run_task"]

TASK_NAME: Final = "mqcore.django.run_task"
"""The name of the one task of `mqcore.jobs` that runs all tasks of Django."""

# An exception of a job may have 16,000 characters; the rest of the outcome needs its share.
_TRACEBACK_CHARACTERS_MAX: Final = 8_000
_ARGUMENTS_CHARACTERS_MAX: Final = 4_000


class TaskCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task of Django with its arguments, and what a result says about it."""

    path: str
    """Module and name of the task's function."""
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue_name: str
    enqueued_at: datetime
    priority: int = 0
    run_after: datetime | None = None


class Failure(msgspec.Struct, frozen=True):
    """The exception of a failed task."""

    path: str
    """Module and name of its class."""
    traceback: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a task ended. The broker keeps it, so that any process can show the result."""

    call: TaskCall
    started_at: datetime
    finished_at: datetime
    worker: str
    """Host and process."""
    attempt: int = 1
    value: Any = None
    failure: Failure | None = None


class TaskFailed(Exception):
    """A task of Django raised an exception. `args` are its text and the outcome."""

    def __str__(self) -> str:
        return str(self.args[0])


def run_task(call: TaskCall) -> Outcome:
    """Run a task of Django. Raises `TaskFailed` if it raises, so that the broker counts and retries a failed job."""
    from django.db import close_old_connections
    from django.utils.module_loading import import_string

    from mqcore.django.tasks_api import TaskContext, TaskResultStatus, normalize_json, task_finished, task_started

    context = current()
    started = datetime.now(UTC)
    outcome = Outcome(call=call, started_at=started, finished_at=started, worker=_worker_id(), attempt=context.attempt)
    # As around a request: a connection that the database closed meanwhile must not fail the task.
    close_old_connections()
    try:
        # Imports the module of the task, which may need the database.
        task = import_string(call.path).using(
            queue_name=call.queue_name, priority=call.priority, run_after=call.run_after, backend=call.backend
        )
        result = result_of(task, context.id, TaskResultStatus.RUNNING, outcome)
        task_started.send(type(task.get_backend()), task_result=result)
        first = [TaskContext(task_result=result)] if task.takes_context else []
        try:
            value = normalize_json(task.call(*first, *call.args, **call.kwargs))
        except Exception as error:
            failed = _with_failure(outcome, error)
            _finish(result, failed, TaskResultStatus.FAILED)
            task_finished.send(type(task.get_backend()), task_result=result)
            raise _failed(failed, error) from error
        outcome = msgspec.structs.replace(outcome, value=value, finished_at=datetime.now(UTC))
        _finish(result, outcome, TaskResultStatus.SUCCESSFUL)
        task_finished.send(type(task.get_backend()), task_result=result)
        return outcome
    except TaskFailed:
        raise
    except Exception as error:
        # The task cannot be imported, or the backend of this worker refuses it.
        raise _failed(_with_failure(outcome, error), error) from error
    finally:
        close_old_connections()


def result_of(task: Any, result_id: str, status: Any, outcome: Outcome) -> Any:
    """Return Django's result for an outcome."""
    from mqcore.django.tasks_api import TaskResult

    result = TaskResult(
        task=task,
        id=result_id,
        status=status,
        enqueued_at=outcome.call.enqueued_at,
        started_at=outcome.started_at,
        last_attempted_at=outcome.started_at,
        finished_at=None,
        args=outcome.call.args,
        kwargs=outcome.call.kwargs,
        backend=outcome.call.backend,
        errors=[],
        # Django counts attempts by workers. Only the worker of the last attempt is known.
        worker_ids=["unknown"] * (outcome.attempt - 1) + [outcome.worker],
    )
    _finish(result, outcome, status)
    return result


def _finish(result: Any, outcome: Outcome, status: Any) -> None:
    from mqcore.django.tasks_api import TaskError, TaskResultStatus

    # Django's results are frozen for programs; backends complete them like this.
    object.__setattr__(result, "status", status)
    if status == TaskResultStatus.RUNNING:
        return
    object.__setattr__(result, "finished_at", outcome.finished_at)
    if outcome.failure is None:
        object.__setattr__(result, "_return_value", outcome.value)
    else:
        result.errors.append(TaskError(exception_class_path=outcome.failure.path, traceback=outcome.failure.traceback))


def _with_failure(outcome: Outcome, error: Exception) -> Outcome:
    kind = type(error)
    trace = "".join(traceback.format_exception(error))[-_TRACEBACK_CHARACTERS_MAX:]
    # `builtins.ValueError`, as Django imports the class by this path.
    failure = Failure(f"{kind.__module__}.{kind.__qualname__}", trace)
    return msgspec.structs.replace(outcome, failure=failure, finished_at=datetime.now(UTC))


def _failed(outcome: Outcome, error: Exception) -> TaskFailed:
    call = outcome.call
    if len(str(call.args)) + len(str(call.kwargs)) > _ARGUMENTS_CHARACTERS_MAX:
        outcome = msgspec.structs.replace(outcome, call=msgspec.structs.replace(call, args=[], kwargs={}))
    text = f"{full_name(type(error))}: {text_of(error)}"[:_ARGUMENTS_CHARACTERS_MAX]
    return TaskFailed(text, msgspec.to_builtins(outcome))


def _worker_id() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
