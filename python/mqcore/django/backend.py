"""The backend of ``django.tasks``: sends tasks as jobs, and reads their results from the broker."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

try:
    from django.core import checks
    from django.utils.module_loading import import_string
except ImportError as error:
    raise ImportError(f"Django is not installed ({error}); run: pip install 'mqcore[django]'") from error

from mqcore.django.execution import TASK_NAME, Outcome, TaskCall, TaskFailed, result_of, run_task
from mqcore.django.tasks_api import (
    BaseTaskBackend,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from mqcore.errors import ConfigError, JobError, MqcoreError, RequestTimeout
from mqcore.jobs import Jobs
from mqcore.jobs.state import JobStatus
from mqcore.jobs.task import Task, TaskOptions

__all__ = ["TaskBackend"]

_CONNECTION_OPTIONS: Final = frozenset({"url", "token", "user", "password", "connect_timeout"})
_JOB_OPTIONS: Final = frozenset({"retries", "backoff", "soft_timeout", "timeout", "guarantee", "result_ttl"})
_UNFINISHED_MAX: Final = 10_000
"""Sent tasks that a process remembers to show them before they end."""
_ENDED: Final = {JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED}


class _Shared:
    """The part of a backend that all threads of a process share."""

    def __init__(self, alias: str, options: dict[str, Any]) -> None:
        unknown = sorted(options.keys() - _CONNECTION_OPTIONS - _JOB_OPTIONS)
        if unknown:
            known = ", ".join(sorted(_CONNECTION_OPTIONS | _JOB_OPTIONS))
            raise ConfigError(f"unknown option {', '.join(unknown)} in TASKS[{alias!r}]['OPTIONS']; use {known}")
        connection = {name: value for name, value in options.items() if name in _CONNECTION_OPTIONS}
        if "connect_timeout" in connection:
            connection["timeout"] = connection.pop("connect_timeout")
        chosen = {name: value for name, value in options.items() if name in _JOB_OPTIONS}
        self.options = options
        self.jobs = Jobs(**connection)
        self.task = self.jobs.add(run_task, TASK_NAME, TaskOptions(raises=(TaskFailed,), **chosen))
        self._unfinished: OrderedDict[str, Any] = OrderedDict()

    def remember(self, result: Any) -> None:
        """Keep the result of a task that has not ended."""
        with _LOCK:
            self._unfinished[result.id] = result
            if len(self._unfinished) > _UNFINISHED_MAX:
                self._unfinished.popitem(last=False)

    def known(self, result_id: str) -> Any:
        """Return the kept result of a task, or ``None``."""
        return self._unfinished.get(result_id)

    def forget(self, result_id: str) -> None:
        """Drop the kept result of a task that has ended."""
        with _LOCK:
            self._unfinished.pop(result_id, None)


_LOCK = threading.RLock()
_SHARED: Final[dict[str, _Shared]] = {}


def _renew_lock() -> None:
    global _LOCK
    # Another thread may have held it at the fork.
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class TaskBackend(BaseTaskBackend):
    """Sends tasks of Django to a broker. `manage.py mqcore_worker` runs them.

    ``OPTIONS`` of the setting ``TASKS`` are ``url``, ``token``, ``user``, ``password`` and ``connect_timeout`` of the
    `Jobs` (there ``timeout``), and ``retries``, ``backoff``, ``soft_timeout``, ``timeout``, ``guarantee`` and
    ``result_ttl`` of `Jobs.task`, for all tasks of the backend.

    `enqueue` raises ``InvalidTask`` for a queue that is not in ``QUEUES``, `TypeError` or `ValueError` for arguments
    without a JSON form, and `ConnectFailed` without a broker.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def jobs(self) -> Jobs:
        """The connection to the broker, which all threads share. Raises `ConfigError` for a wrong option."""
        return self._shared.jobs

    @property
    def _shared(self) -> _Shared:
        # Django makes a backend for each thread; a web server that starts a thread for each request would leave a
        # connection behind for each.
        with _LOCK:
            known = _SHARED.get(self.alias)
            if known is None or known.options != self.options:
                known = _SHARED[self.alias] = _Shared(self.alias, dict(self.options))
            return known

    def check(self, **kwargs: Any) -> Iterable[Any]:
        """Return the mistakes in ``OPTIONS``, for ``manage.py check``."""
        try:
            _ = self.jobs
        except (MqcoreError, TypeError) as error:
            return [checks.Error(str(error), obj=f"TASKS[{self.alias!r}]", id="mqcore.E001")]
        return []

    def enqueue(self, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
        """Send a task to the broker, and return its result, which is not finished."""
        call = self._call(task, args, kwargs)
        return self._sent(task, call, self._task_for(task).enqueue(call).id)

    async def aenqueue(self, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
        """Like `enqueue`, without blocking the event loop."""
        call = self._call(task, args, kwargs)
        return self._sent(task, call, (await self._task_for(task).aenqueue(call)).id)

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task. Other processes than the one that enqueued it see results of ended tasks only.

        Raises ``TaskResultDoesNotExist`` for an unknown or expired id, and `ConnectFailed` or `RequestTimeout` without
        a broker.
        """
        state = self.jobs.state(result_id)
        if state.status in _ENDED:
            return self._ended(result_id)
        known = self._shared.known(result_id)
        if known is None:
            raise TaskResultDoesNotExist(
                f"the broker has no result of task {result_id}: the task has not ended, or its result has expired"
            )
        running = state.status is JobStatus.RUNNING
        return dataclasses.replace(known, status=TaskResultStatus.RUNNING if running else TaskResultStatus.READY)

    def _call(self, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> TaskCall:
        self.validate_task(task)
        return TaskCall(
            path=task.module_path,
            args=normalize_json(list(args)),
            kwargs=normalize_json(dict(kwargs)),
            backend=self.alias,
            queue_name=task.queue_name,
            enqueued_at=datetime.now(UTC),
            priority=task.priority,
            run_after=task.run_after,
        )

    def _task_for(self, task: Any) -> Task[[TaskCall], Outcome, Outcome]:
        run_after = task.run_after
        if run_after is not None and run_after.tzinfo is None:
            # With USE_TZ=False, times of Django are local ones.
            run_after = run_after.astimezone()
        return self._shared.task.using(
            queue=task.queue_name,
            # Jobs of one queue have two levels.
            priority=max(0, task.priority),
            run_after=run_after,
        )

    def _sent(self, task: Any, call: TaskCall, job_id: str) -> Any:
        result = TaskResult(
            task=task,
            id=job_id,
            status=TaskResultStatus.READY,
            enqueued_at=call.enqueued_at,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=call.args,
            kwargs=call.kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        self._shared.remember(result)
        task_enqueued.send(type(self), task_result=result)
        return result

    def _ended(self, result_id: str) -> Any:
        try:
            outcome = self.jobs.fetch(result_id, self._shared.task).result(timeout=5.0)
        except TaskFailed as failed:
            outcome = msgspec.convert(failed.args[1], Outcome)
        except RequestTimeout:
            raise TaskResultDoesNotExist(f"the result of task {result_id} has expired") from None
        except JobError as error:
            return self._without_outcome(result_id, error)
        self._shared.forget(result_id)
        call = outcome.call
        task = import_string(call.path).using(
            queue_name=call.queue_name, priority=call.priority, run_after=call.run_after, backend=call.backend
        )
        status = TaskResultStatus.SUCCESSFUL if outcome.failure is None else TaskResultStatus.FAILED
        return result_of(task, result_id, status, outcome)

    def _without_outcome(self, result_id: str, error: JobError) -> Any:
        """Return the result of a task that could not describe its end: its worker died, or it was cancelled."""
        known = self._shared.known(result_id)
        if known is None:
            raise TaskResultDoesNotExist(
                f"task {result_id} ended without a result: {error}; only the process that enqueued it knows more"
            ) from error
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        failure = TaskError(exception_class_path=path, traceback=str(error))
        return dataclasses.replace(
            known, status=TaskResultStatus.FAILED, errors=[failure], finished_at=datetime.now(UTC)
        )
