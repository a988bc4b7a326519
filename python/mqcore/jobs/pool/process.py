"""A pool of processes, each of which runs one job at a time and is replaced when it dies.

A process takes several short jobs at once, because a wake-up of a process for each costs more than the job. The pool
can take the jobs back at any time that the process has not begun.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from mqcore.errors import ConfigError
from mqcore.jobs.execution import Assignment, Ending, fault_of
from mqcore.jobs.limits import cancelled
from mqcore.jobs.pool import Died, Progress, Returned, child

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

__all__ = ["ProcessPool"]

_ENDING: Final = msgspec.msgpack.Decoder(Ending)
_PROGRESS: Final = msgspec.msgpack.Decoder(tuple[int, float, str])

# Consecutive processes that may die before they are ready. No job can be the cause, so further ones would die as well.
_FAILED_STARTS_MAX: Final = 3
# Time for an idle process to exit before it is killed.
_EXIT_MAX_SECONDS: Final = 2.0
# Maximum jobs that a process takes at once, and for how long they may keep it busy.
_DEPTH_MAX: Final = 16
_BATCH_SECONDS: Final = 0.002
# The others of a batch are taken back from a process whose job takes longer than this.
_RECALL_SECONDS: Final = 0.02
# Time for a process to say which jobs it has begun: it may have been stopped in that moment, or killed.
_LOCK_MAX_SECONDS: Final = 0.5
_READ_BYTES: Final = 256 * 1024

_Event: TypeAlias = Ending | Progress | Died | Returned


class _Child:
    """A child process and its jobs."""

    def __init__(self, home: tuple[str, str], allow_import: Sequence[str]) -> None:
        # Spawn, because a fork would copy held locks and the connection to the broker.
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        orders, self.control = spawn.Pipe(duplex=False)
        self.shared = child.SharedBatch(spawn.RawArray("q", 3), spawn.Lock())
        self.process: SpawnProcess = spawn.Process(
            target=child.main, args=(theirs, orders, self.shared, home, allow_import), name="mqcore-job", daemon=True
        )
        self.process.start()
        # Only the child keeps its end open, so that its death closes the pipe.
        theirs.close()
        orders.close()
        self.is_ready = False
        self.unread = b""
        self.batches = 0
        """Batches so far."""
        self.given = 0
        """Jobs of the latest batch."""
        self.left: deque[Assignment] = deque()
        """Its jobs that have not ended, in their order. The process runs the first one, or is about to begin it."""
        self.since = 0.0
        """When it began the first one of them, in seconds of `time.monotonic`."""

    def give(self, batch: Sequence[Assignment]) -> int:
        """Allow the process to begin the jobs of a batch, which it gets next. Return the number of the batch."""
        self.batches += 1
        self.given, self.left, self.since = len(batch), deque(batch), time.monotonic()
        # It may still look whether it may continue with the previous batch.
        is_locked = self.shared.lock.acquire(timeout=_LOCK_MAX_SECONDS)
        self.shared.counts[:] = [self.batches, 0, len(batch)]
        if is_locked:
            self.shared.lock.release()
        return self.batches

    def recall(self) -> list[Assignment]:
        """Take the jobs back that the process has not begun."""
        if not self.shared.lock.acquire(timeout=_LOCK_MAX_SECONDS):
            return []
        try:
            begun = self.shared.counts[child.BEGUN]
            self.shared.counts[child.LIMIT] = begun
        finally:
            self.shared.lock.release()
        kept = begun - (self.given - len(self.left))
        recalled = list(self.left)[kept:]
        for _ in recalled:
            self.left.pop()
        self.given -= len(recalled)
        return recalled

    def read(self) -> list[bytes] | None:
        """Return the messages that have arrived; `None`: the process has ended."""
        try:
            data = os.read(self.pipe.fileno(), _READ_BYTES)
        except ConnectionResetError:
            return None
        if not data:
            return None
        data, messages, begin = self.unread + data, [], 0
        while len(data) - begin >= child.HEAD.size:
            end = begin + child.HEAD.size + child.HEAD.unpack_from(data, begin)[0]
            if end > len(data):
                break
            messages.append(data[begin + child.HEAD.size : end])
            begin = end
        self.unread = data[begin:]
        return messages

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
        self._events: list[_Event] = []
        self._failed_starts = 0
        self._job_seconds = 1.0
        self._encoder = msgspec.msgpack.Encoder()
        for _ in range(size):
            self._start()

    @property
    def slots(self) -> int:
        """Number of processes that are ready or run a job."""
        return sum(each.is_ready for each in self._children.values())

    @property
    def free(self) -> int:
        """Number of processes that are ready."""
        return len(self._idle)

    @property
    def depth(self) -> int:
        """Maximum number of jobs that a process takes at once: those of 2 ms, if each takes as long as the latest."""
        return max(1, min(_DEPTH_MAX, int(_BATCH_SECONDS / self._job_seconds)))

    @property
    def processes(self) -> list[int]:
        """Process ids."""
        return [each.process.pid for each in self._children.values() if each.process.pid is not None]

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Send jobs to a process that is ready."""
        chosen = self._idle.popleft()
        batch = chosen.give(assignments)
        for assignment in assignments:
            self._busy[assignment.run] = chosen
        # The process may have died. `collect` notices that at its pipe.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            chosen.pipe.send_bytes(self._encoder.encode((batch, assignments)))

    def descriptors(self) -> Collection[int]:
        """Return the descriptors of the pipes."""
        return self._children.keys()

    def recall(self) -> float:
        """Take jobs back that wait behind one which takes long. Return in how many seconds to do so again; 0: `collect`
        has events.
        """
        now = time.monotonic()
        waiting = [each for each in self._children.values() if len(each.left) > 1]
        for each in waiting:
            if now - each.since > _RECALL_SECONDS:
                self._job_seconds = max(self._job_seconds, now - each.since)
                self._take_back(each)
        if self._events:
            return 0.0
        return _RECALL_SECONDS if waiting else math.inf

    def collect(self, ready: Collection[int]) -> list[_Event]:
        """Return the events since the last call. Raises `ConfigError` if the processes cannot start."""
        for descriptor in ready:
            if (sender := self._children.get(descriptor)) is not None:
                messages = sender.read()
                if messages is None:
                    self._died(descriptor, sender)
                else:
                    self._handle_all(sender, messages)
        events, self._events = self._events, []
        return events

    def interrupt(self, run: int) -> None:
        """Raise `JobCancelled` in the process that runs this attempt; on Unix also in system calls."""
        if (chosen := self._busy.get(run)) is None:
            return
        if self._take_back(chosen, but=run):
            self._events.append(Ending(run, b"null", fault_of(cancelled())))
            return
        with contextlib.suppress(OSError):
            chosen.control.send_bytes(b"%d" % run)

    def abandon(self, run: int) -> None:
        """Kill the process that runs this attempt, and start another."""
        if (chosen := self._busy.get(run)) is None or self._take_back(chosen, but=run):
            return
        # It may have ended, and the process may have begun another one.
        self._read_all(chosen, but=run)
        if run not in self._busy:
            return
        chosen.process.kill()
        chosen.process.join(_EXIT_MAX_SECONDS)
        self._read_all(chosen, but=run)
        del self._children[chosen.pipe.fileno()]
        if chosen in self._idle:
            self._idle.remove(chosen)
        for assignment in chosen.left:
            del self._busy[assignment.run]
            if assignment.run != run:
                self._events.append(Died(assignment.run, "was killed to stop the job before"))
        chosen.ended()
        self._start()

    def close(self) -> None:
        """Stop all processes; kill those that run a job."""
        for each in set(self._busy.values()):
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

    def _take_back(self, holder: _Child, *, but: int | None = None) -> bool:
        """Take the jobs back that a process has not begun. `collect` returns them, except for `but`. Return whether
        that was one of them.
        """
        recalled = holder.recall()
        for assignment in recalled:
            del self._busy[assignment.run]
        # The last one first, because each is put before all others.
        runs = [assignment.run for assignment in reversed(recalled)]
        self._events += [Returned(run) for run in runs if run != but]
        if recalled and not holder.left:
            self._idle.append(holder)
        return but in runs

    def _read_all(self, sender: _Child, *, but: int) -> None:
        """Handle the messages that have arrived. There may be no end after a death: a job may have forked."""
        while sender.pipe.poll() and (messages := sender.read()) is not None:
            self._handle_all(sender, messages, but=but)

    def _handle_all(self, sender: _Child, messages: Sequence[bytes], *, but: int | None = None) -> None:
        for message in messages:
            self._handle(sender, message, but)

    def _handle(self, sender: _Child, message: bytes, but: int | None) -> None:
        kind, content = message[:1], memoryview(message)[1:]
        if kind == child.ENDED:
            ending = _ENDING.decode(content)
            self._busy.pop(ending.run, None)
            sender.left.popleft()
            now = time.monotonic()
            self._job_seconds += (now - sender.since - self._job_seconds) / 8
            sender.since = now
            if not sender.left:
                self._idle.append(sender)
            if ending.run != but:
                self._events.append(ending)
        elif kind == child.PROGRESS:
            self._events.append(Progress(*_PROGRESS.decode(content)))
        elif kind == child.READY:
            self._failed_starts = 0
            sender.is_ready = True
            self._idle.append(sender)
        else:
            raise ConfigError(f"a worker process could not load {':'.join(self._home)}: {bytes(content).decode()}")

    def _died(self, descriptor: int, dead: _Child) -> None:
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
        for assignment in dead.left:
            del self._busy[assignment.run]
        # The last one first, because each is put before all others.
        runs = [assignment.run for assignment in reversed(dead.left)]
        self._events += [Died(run, how) for run in runs[-1:]]
        self._events += [Returned(run) for run in runs[:-1]]
