"""A pool of processes, each of which runs one job at a time and is replaced when it dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mqcore.errors import ConfigError
from mqcore.jobs.execution import Assignment, Ending
from mqcore.jobs.pool import Died, Progress, child

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

__all__ = ["ProcessPool"]

_ENDING: Final = msgspec.msgpack.Decoder(Ending)
_PROGRESS: Final = msgspec.msgpack.Decoder(tuple[int, float, str])

# Consecutive processes that may die before they are ready. No job can be the cause, so further ones would die as well.
_FAILED_STARTS_MAX: Final = 3
# Time for an idle process to exit before it is killed.
_EXIT_MAX_SECONDS: Final = 2.0


class _Child:
    """A child process and its job."""

    def __init__(self, home: tuple[str, str], allow_import: Sequence[str]) -> None:
        # Spawn, because a fork would copy held locks and the connection to the broker.
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        orders, self.control = spawn.Pipe(duplex=False)
        self.process: SpawnProcess = spawn.Process(
            target=child.main, args=(theirs, orders, home, allow_import), name="mqcore-job", daemon=True
        )
        self.process.start()
        # Only the child keeps its end open, so that its death closes the pipe.
        theirs.close()
        orders.close()
        self.is_ready = False
        self.run: int | None = None

    def ended(self) -> str:
        """Wait for the process to exit, kill it after 2 s, and return how it ended."""
        self.process.join(_EXIT_MAX_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        code = self.process.exitcode or 0
        self.pipe.close()
        self.control.close()
        self.process.close()
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
        return f"ended with code {code}"


class ProcessPool:
    """Runs jobs in `size` processes. `home` names the module and the attribute from which they import the tasks."""

    def __init__(self, size: int, home: tuple[str, str], allow_import: Sequence[str] = ()) -> None:
        self._size = size
        self._home = home
        self._allow_import = tuple(allow_import)
        self._children: dict[int, _Child] = {}
        self._idle: deque[_Child] = deque()
        self._busy: dict[int, _Child] = {}
        self._failed_starts = 0
        self._encoder = msgspec.msgpack.Encoder()
        for _ in range(size):
            self._start()

    @property
    def slots(self) -> int:
        """Number of processes that are ready or run a job."""
        return len(self._idle) + len(self._busy)

    @property
    def free(self) -> int:
        """Number of processes that are ready."""
        return len(self._idle)

    @property
    def processes(self) -> list[int]:
        """Process ids."""
        return [each.process.pid for each in self._children.values() if each.process.pid is not None]

    def submit(self, assignment: Assignment) -> None:
        """Send a job to a process that is ready."""
        chosen = self._idle.popleft()
        chosen.run = assignment.run
        self._busy[assignment.run] = chosen
        # The process may have died. `collect` notices that at its pipe.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            chosen.pipe.send_bytes(self._encoder.encode(assignment))

    def descriptors(self) -> Collection[int]:
        """Return the descriptors of the pipes."""
        return self._children.keys()

    def collect(self, ready: Collection[int]) -> list[Ending | Progress | Died]:
        """Return the events since the last call. Raises `ConfigError` if the processes cannot start."""
        events: list[Ending | Progress | Died] = []
        for descriptor in ready:
            sender = self._children.get(descriptor)
            if sender is None:
                continue
            try:
                message = sender.pipe.recv_bytes()
            except (EOFError, ConnectionResetError):
                events += self._died(descriptor, sender)
                continue
            events += self._handle(sender, message)
        return events

    def interrupt(self, run: int) -> None:
        """Raise `JobCancelled` in the process that runs this attempt; on Unix also in system calls."""
        if (chosen := self._busy.get(run)) is not None:
            with contextlib.suppress(OSError):
                chosen.control.send_bytes(b"%d" % run)

    def abandon(self, run: int) -> None:
        """Kill the process that runs this attempt, and start another."""
        if (chosen := self._busy.pop(run, None)) is not None:
            del self._children[chosen.pipe.fileno()]
            chosen.process.kill()
            chosen.ended()
            self._start()

    def close(self) -> None:
        """Stop all processes; kill those that run a job."""
        for each in self._busy.values():
            each.process.kill()
        for each in self._children.values():
            each.pipe.close()
            each.control.close()
        limit = time.monotonic() + _EXIT_MAX_SECONDS
        for each in self._children.values():
            each.process.join(max(0.0, limit - time.monotonic()))
            if each.process.exitcode is None:
                each.process.kill()
                each.process.join()
            each.process.close()
        self._children.clear()
        self._idle.clear()
        self._busy.clear()

    def _start(self) -> None:
        started = _Child(self._home, self._allow_import)
        self._children[started.pipe.fileno()] = started

    def _handle(self, sender: _Child, message: bytes) -> list[Any]:
        kind, content = message[:1], memoryview(message)[1:]
        if kind == child.ENDED:
            ending = _ENDING.decode(content)
            del self._busy[ending.run]
            sender.run = None
            self._idle.append(sender)
            return [ending]
        if kind == child.PROGRESS:
            return [Progress(*_PROGRESS.decode(content))]
        if kind == child.READY:
            self._failed_starts = 0
            sender.is_ready = True
            self._idle.append(sender)
            return []
        raise ConfigError(f"a worker process could not load {':'.join(self._home)}: {bytes(content).decode()}")

    def _died(self, descriptor: int, dead: _Child) -> list[Died]:
        del self._children[descriptor]
        if dead in self._idle:
            self._idle.remove(dead)
        how = dead.ended()
        if not dead.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS_MAX:
                raise ConfigError(
                    f"{_FAILED_STARTS_MAX} worker processes in a row died while starting; the last one {how}"
                )
        self._start()
        if dead.run is None:
            return []
        self._busy.pop(dead.run, None)
        return [Died(dead.run, how)]
