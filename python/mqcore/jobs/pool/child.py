"""Child process of a pool: runs the jobs that it receives from a pipe until the pipe is closed.

Jobs come in batches. Child and worker agree in shared memory on which jobs of a batch the child begins, so that the
worker can take the others back at any time, whatever the child does.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection, parent_process
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mqcore._raised import text_of
from mqcore.jobs.execution import Assignment, Registry, run
from mqcore.jobs.limits import Interruptions
from mqcore.jobs.task import Task

if TYPE_CHECKING:
    from ctypes import Array
    from multiprocessing.synchronize import Lock

__all__ = ["BATCH", "BEGUN", "BROKEN", "ENDED", "HEAD", "LIMIT", "PROGRESS", "READY", "SharedBatch", "main"]

# First byte of a child's messages.
READY: Final = b"r"
BROKEN: Final = b"b"
ENDED: Final = b"e"
PROGRESS: Final = b"p"

# Before each message of a child: its size.
HEAD: Final = struct.Struct("!I")
# Places in the counts of a `SharedBatch`: number of the batch, jobs that the child has begun, jobs that it may begin.
BATCH, BEGUN, LIMIT = 0, 1, 2

_BATCH: Final = msgspec.msgpack.Decoder(tuple[int, list[Assignment]])


class SharedBatch(NamedTuple):
    """The state of a batch of jobs that a child and its worker share."""

    counts: Array[Any]
    lock: Lock

    def begins(self, batch: int, index: int) -> bool:
        """Begin a job of a batch. Return false if the worker has taken it back, and perhaps sent the next batch."""
        with self.lock:
            if batch != self.counts[BATCH] or index >= self.counts[LIMIT]:
                return False
            self.counts[BEGUN] = index + 1
            return True


def main(
    pipe: connection.Connection,
    control: connection.Connection,
    shared: SharedBatch,
    home: tuple[str, str],
    allow_import: Sequence[str],
) -> None:
    """Run batches of jobs from `pipe`, and interrupt attempts whose numbers arrive at `control`.

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
            _send(pipe, BROKEN + f"{type(error).__name__}: {text_of(error)}".encode())
            return
        _send(pipe, READY)
        with asyncio.Runner() as runner:
            _serve(pipe, shared, registry, runner, interruptions)


def _serve(
    pipe: connection.Connection,
    shared: SharedBatch,
    registry: Registry,
    runner: asyncio.Runner,
    interruptions: Interruptions,
) -> None:
    encoder = msgspec.msgpack.Encoder()
    lock = threading.Lock()
    while True:
        batch, assignments = _BATCH.decode(pipe.recv_bytes())
        for index, assignment in enumerate(assignments):
            if not shared.begins(batch, index):
                break

            def report(fraction: float, note: str, number: int = assignment.run) -> None:
                with lock:
                    _send(pipe, PROGRESS + encoder.encode((number, fraction, note)))

            ending = run(assignment, registry, report, runner, interruptions)
            with lock:
                _send(pipe, ENDED + encoder.encode(ending))


def _send(pipe: connection.Connection, message: bytes) -> None:
    """Send a message that the worker reads together with others."""
    left = memoryview(HEAD.pack(len(message)) + message)
    while left:
        left = left[os.write(pipe.fileno(), left) :]


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
