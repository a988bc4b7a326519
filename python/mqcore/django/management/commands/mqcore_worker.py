"""``manage.py mqcore_worker``: runs the tasks of a backend."""

from __future__ import annotations

import os
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mqcore.django.backend import TaskBackend
from mqcore.django.tasks_api import task_backends
from mqcore.errors import MqcoreError
from mqcore.jobs import Worker

__all__ = ["Command"]


class Command(BaseCommand):
    """Run the tasks of a backend until SIGTERM or Ctrl-C. A second signal stops the worker immediately."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="Backend in the setting TASKS. [default: default]")
        parser.add_argument(
            "--queues", help="Queues to serve, separated by commas. [default: all QUEUES of the backend]"
        )
        parser.add_argument("--concurrency", type=int, help="Maximum tasks at a time. [default: number of processors]")
        parser.add_argument(
            "--pool",
            choices=["process", "thread"],
            default="process",
            help="Run tasks in processes or threads. [default: process]",
        )
        parser.add_argument(
            "--drain-timeout", default="30s", help="Time for running tasks to finish after SIGTERM. [default: 30s]"
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Run the worker."""
        backend = self._backend(options["backend"])
        try:
            worker = Worker(
                backend.jobs,
                queues=self._queues(backend, options["queues"]),
                concurrency=options["concurrency"],
                pool=options["pool"],
                drain_timeout=options["drain_timeout"],
                home=("mqcore.django.worker_process", "JOBS"),
                on_joined=self._print_ready,
            )
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: worker.stop())
            left = worker.run()
        except MqcoreError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{worker.counts.succeeded} succeeded, {worker.counts.failed} failed, {left} unfinished")
        if left:
            raise CommandError(f"{left} tasks were left to the broker after {options['drain_timeout']}")

    def _backend(self, alias: str) -> TaskBackend:
        try:
            found = task_backends[alias]
        except Exception as error:
            raise CommandError(f"no backend {alias!r} in the setting TASKS: {error}") from error
        if not isinstance(found, TaskBackend):
            raise CommandError(
                f"TASKS[{alias!r}] is {type(found).__name__}; set its BACKEND to mqcore.django.TaskBackend"
            )
        return found

    def _queues(self, backend: TaskBackend, named: str | None) -> list[str]:
        known = sorted(backend.queues)
        if named is None:
            return known or ["default"]
        chosen = [name.strip() for name in named.split(",")]
        unknown = [name for name in chosen if known and name not in known]
        if unknown:
            raise CommandError(f"unknown queue {', '.join(unknown)}; QUEUES of this backend are {', '.join(known)}")
        return chosen

    def _print_ready(self, worker: Worker) -> None:
        queues = ", ".join(name for name, _ in worker.queues)
        self.stdout.write(f"ready: {worker.concurrency} tasks at a time, queues {queues}, process {os.getpid()}")
        self.stdout.flush()
