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

# Processes in a row that die before they can take a job: no job is to blame, and the next would die too.
_STILLBORN_MAX: Final = 3
# What a process may take to end once nothing is left to do; then it is killed.
_END_LIMIT: Final = 2.0


class _Child:
    """One process, and the job that it has."""

    def __init__(self, home: tuple[str, str], allow_import: Sequence[str]) -> None:
        # A fork would copy this process's threads' locks, and the broker's connection.
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process: SpawnProcess = spawn.Process(
            target=child.main, args=(theirs, home, allow_import), name="mqcore-job", daemon=True
        )
        self.process.start()
        # Its end alone keeps the pipe open, so that its death is the end of the pipe.
        theirs.close()
        self.is_ready = False
        self.run: int | None = None

    def ended(self) -> str:
        """Wait for its end, and say how it came."""
        self.process.join(_END_LIMIT)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        code = self.process.exitcode or 0
        self.pipe.close()
        self.process.close()
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
        return f"ended with code {code}"


class ProcessPool:
    """So many processes. `home` is where they find the tasks: a module, and the name of its `Jobs`."""

    def __init__(self, size: int, home: tuple[str, str], allow_import: Sequence[str] = ()) -> None:
        self._size = size
        self._home = home
        self._allow_import = tuple(allow_import)
        self._children: dict[int, _Child] = {}
        self._idle: deque[_Child] = deque()
        self._busy: dict[int, _Child] = {}
        self._stillborn = 0
        self._encoder = msgspec.msgpack.Encoder()
        for _ in range(size):
            self._start()

    @property
    def slots(self) -> int:
        """Processes that have started."""
        return len(self._idle) + len(self._busy)

    @property
    def free(self) -> int:
        """Those of them without a job."""
        return len(self._idle)

    @property
    def processes(self) -> list[int]:
        """Their ids."""
        return [each.process.pid for each in self._children.values() if each.process.pid is not None]

    def submit(self, assignment: Assignment) -> None:
        """Give a job to a process that has none."""
        chosen = self._idle.popleft()
        chosen.run = assignment.run
        self._busy[assignment.run] = chosen
        # It may be dead already, which its pipe tells like any other death.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            chosen.pipe.send_bytes(self._encoder.encode(assignment))

    def descriptors(self) -> Collection[int]:
        """The pipes."""
        return self._children.keys()

    def collect(self, ready: Collection[int]) -> list[Ending | Progress | Died]:
        """What the processes have said, and which have died. Raises `ConfigError` if none of them comes to life."""
        happened: list[Ending | Progress | Died] = []
        for descriptor in ready:
            speaker = self._children.get(descriptor)
            if speaker is None:
                continue
            try:
                said = speaker.pipe.recv_bytes()
            except (EOFError, ConnectionResetError):
                happened += self._died(descriptor, speaker)
                continue
            happened += self._said(speaker, said)
        return happened

    def abandon(self, run: int) -> None:
        """Kill the process that runs this job, and start another."""
        if (chosen := self._busy.pop(run, None)) is not None:
            del self._children[chosen.pipe.fileno()]
            chosen.process.kill()
            chosen.ended()
            self._start()

    def close(self) -> None:
        """End all processes; those that run a job are killed."""
        for each in self._busy.values():
            each.process.kill()
        for each in self._children.values():
            each.pipe.close()
        limit = time.monotonic() + _END_LIMIT
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

    def _said(self, speaker: _Child, said: bytes) -> list[Any]:
        kind, content = said[:1], memoryview(said)[1:]
        if kind == child.ENDED:
            ending = _ENDING.decode(content)
            del self._busy[ending.run]
            speaker.run = None
            self._idle.append(speaker)
            return [ending]
        if kind == child.PROGRESS:
            return [Progress(*_PROGRESS.decode(content))]
        if kind == child.READY:
            self._stillborn = 0
            speaker.is_ready = True
            self._idle.append(speaker)
            return []
        raise ConfigError(f"a process of the worker could not load {':'.join(self._home)}: {bytes(content).decode()}")

    def _died(self, descriptor: int, dead: _Child) -> list[Died]:
        del self._children[descriptor]
        if dead in self._idle:
            self._idle.remove(dead)
        how = dead.ended()
        if not dead.is_ready:
            self._stillborn += 1
            if self._stillborn >= _STILLBORN_MAX:
                raise ConfigError(f"processes of the worker end before they can take a job; the last one {how}")
        self._start()
        if dead.run is None:
            return []
        self._busy.pop(dead.run, None)
        return [Died(dead.run, how)]
