"""A broker, the Celery project of the examples, and its workers as processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from ports import free_port
from served import ROOT, ServedBroker, clean_environment, serving, wait_until

PROJECT = ROOT / "examples" / "celery_project"

START_LIMIT = 60.0
"""Seconds until a worker answers; a new interpreter with Celery takes two on a free machine."""


class Place:
    """Addresses of a broker that may start again on the same ports."""

    def __init__(self, *arguments: str) -> None:
        self.tmqp, self.throttr = free_port(), free_port()
        self._arguments = arguments

    @property
    def urls(self) -> tuple[str, str]:
        """The settings ``broker_url`` and ``result_backend``."""
        return f"mqcore://127.0.0.1:{self.tmqp}", f"mqcore://127.0.0.1:{self.throttr}"

    def serve(self) -> contextlib.AbstractContextManager[ServedBroker]:
        """Run the broker."""
        listeners = (f"tmqp://127.0.0.1:{self.tmqp}", f"throttr://127.0.0.1:{self.throttr}?value=uint64&persist=on")
        if "--data-dir" not in self._arguments:
            listeners = (listeners[0], listeners[1].removesuffix("&persist=on"))
        return serving("--listen", listeners[0], "--listen", listeners[1], *self._arguments)

    def app(self) -> Celery:
        """The project as its callers see it."""
        app = Celery("caller", broker=self.urls[0], backend=self.urls[1], set_as_current=False)
        app.conf.update(task_publish_retry_policy={"max_retries": 20, "interval_step": 0.1, "interval_max": 0.5})
        return app


class Worker:
    """A worker process."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        """Its log."""
        return self._log.read_text(errors="replace")

    def children(self) -> list[int]:
        """Ids of its pool processes."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def kill(self) -> None:
        """Kill it and its pool at once, as a machine that loses power does."""
        children = self.children()
        self.process.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def working(
    place: Place, directory: Path, *arguments: str, name: str = "w1", sign: str = " ready."
) -> Iterator[Worker]:
    """Run ``celery worker`` for the project, from when it has printed a sign that it is ready until the block ends."""
    log = directory / f"{name}.log"
    environment = clean_environment() | {"BROKER_URL": place.urls[0], "RESULT_BACKEND": place.urls[1]}
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-n", f"{name}@test", "--loglevel", "INFO"]
    command += ["--schedule", str(directory / f"{name}.schedule")]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *arguments], stdout=output, stderr=subprocess.STDOUT, text=True, env=environment, cwd=PROJECT
        )
    worker = Worker(process, log)
    try:
        deadline = time.monotonic() + START_LIMIT
        while sign not in worker.output:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the worker is not ready:\n{worker.output}")
            time.sleep(0.05)
        yield worker
    except BaseException:
        sys.stderr.write(worker.output)
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                worker.kill()


def call(app: Celery, task: str, *arguments: Any, **options: Any) -> Any:
    """Send a task of the project."""
    module = "more_tasks" if task in {"broken", "flaky", "once_more", "report", "tick"} else "tasks"
    return app.signature(f"{module}.{task}", args=arguments).apply_async(**options)


__all__ = ["PROJECT", "Place", "Worker", "call", "wait_until", "working"]
