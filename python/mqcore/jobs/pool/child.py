"""Child process of a pool: runs the jobs that it receives from a pipe until the pipe is closed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection, parent_process
from typing import Any, Final

import msgspec

from mqcore.jobs.execution import Assignment, Registry, run
from mqcore.jobs.limits import Interruptions
from mqcore.jobs.task import Task

__all__ = ["BROKEN", "ENDED", "PROGRESS", "READY", "main"]

# First byte of a child's messages.
READY: Final = b"r"
BROKEN: Final = b"b"
ENDED: Final = b"e"
PROGRESS: Final = b"p"

_ASSIGNMENT: Final = msgspec.msgpack.Decoder(Assignment)


def main(
    pipe: connection.Connection, control: connection.Connection, home: tuple[str, str], allow_import: Sequence[str]
) -> None:
    """Run jobs from `pipe`, and interrupt attempts whose numbers arrive at `control`.

    `home` is the module and the attribute of the tasks.
    """
    # Signals to the process group are for the worker, which decides when its children stop.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    interruptions = Interruptions(by_signal=True)
    threading.Thread(target=_obey_parent, args=(control, interruptions), daemon=True).start()
    # The worker closes the pipe to stop this process.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            registry = Registry(_tasks(*home), allow_import)
        except BaseException as error:
            pipe.send_bytes(BROKEN + f"{type(error).__name__}: {error}".encode())
            return
        pipe.send_bytes(READY)
        with asyncio.Runner() as runner:
            _serve(pipe, registry, runner, interruptions)


def _serve(
    pipe: connection.Connection, registry: Registry, runner: asyncio.Runner, interruptions: Interruptions
) -> None:
    encoder = msgspec.msgpack.Encoder()
    lock = threading.Lock()
    while True:
        assignment = _ASSIGNMENT.decode(pipe.recv_bytes())

        def report(fraction: float, note: str, number: int = assignment.run) -> None:
            with lock:
                pipe.send_bytes(PROGRESS + encoder.encode((number, fraction, note)))

        ending = run(assignment, registry, report, runner, interruptions)
        with lock:
            pipe.send_bytes(ENDED + encoder.encode(ending))


def _tasks(module_name: str, attribute: str) -> Mapping[str, Task[..., Any, Any]]:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    jobs = getattr(importlib.import_module(module_name), attribute)
    return jobs.tasks  # type: ignore[no-any-return]


def _obey_parent(control: connection.Connection, interruptions: Interruptions) -> None:
    """Interrupt jobs. Exit when the worker dies: the broker redelivers the job, so it must not continue here."""
    parent = parent_process()
    if parent is None:
        return
    while parent.sentinel not in connection.wait([parent.sentinel, control]):
        try:
            interruptions.interrupt(int(control.recv_bytes()))
        except (EOFError, OSError):
            break
    connection.wait([parent.sentinel])
    os._exit(1)
