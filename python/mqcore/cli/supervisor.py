"""The processes of `mqcore run --workers N`: starts them, restarts those that crash, and stops them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any, Final

from mqcore.cli.exit_code import ExitCode

__all__ = ["Supervisor"]

_LOG: Final = logging.getLogger("mqcore.run")
_POLL_SECONDS: Final = 0.05
_BACKOFF_FIRST_SECONDS: Final = 0.5
_BACKOFF_MAX_SECONDS: Final = 30.0
_STEADY_SECONDS: Final = 10.0
"""A process that ran for this long is started again without a delay."""
_KILL_SECONDS: Final = 5.0
"""Time between the end of the drain timeout and SIGKILL."""
_DRAIN_SECONDS: Final = 30.0
_WATCH_DEBOUNCE_MS: Final = 300
_WATCH_STEP_MS: Final = 50
_PERMANENT: Final = {ExitCode.USAGE, ExitCode.NOT_FOUND, ExitCode.NOT_ALLOWED, ExitCode.DEFECT}
"""Exit codes that another start would not change."""
_READY: Final = '{"event":"ready"'


class _Worker:
    """One place, and the process that fills it."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.ready: dict[str, Any] = {}
        """The ready line of its first process that was ready."""
        self.process: subprocess.Popen[str] | None = None
        self.started = 0.0
        self.is_ready = False
        self.failures = 0
        """Ends with an error since it last ran steadily."""
        self.next_start: float | None = 0.0
        """The monotonic time of its next start; `None`: none is planned."""

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None


class Supervisor:
    """Runs an app in several processes, started with a new interpreter each."""

    def __init__(self, settings: Mapping[str, Any], workers: int, *, reload: bool) -> None:
        self._settings = json.dumps(dict(settings)).encode() + b"\n"
        self._app = settings["app"]
        drain = settings["drain_timeout"]
        self._drain = _DRAIN_SECONDS if drain is None else drain
        self._workers = [_Worker(place) for place in range(workers)]
        self._reload = reload
        self._signals = 0
        self._changed = threading.Event()
        self._is_announced = False
        self._code = ExitCode.DONE

    def run(self) -> int:
        """Run until a signal, or until no process is left. Return the exit code."""
        before = {number: signal.signal(number, self._signal) for number in (signal.SIGINT, signal.SIGTERM)}
        ended = threading.Event()
        if self._reload:
            threading.Thread(target=self._watch, args=(ended,), daemon=True).start()
        try:
            while self._step():
                time.sleep(_POLL_SECONDS)
            self._stop_all()
        finally:
            ended.set()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._code

    def _signal(self, _number: int, _frame: Any) -> None:
        self._signals += 1

    def _step(self) -> bool:
        """Start and restart what is due. Return false if the run is to end."""
        if self._signals:
            return False
        if self._changed.is_set():
            self._changed.clear()
            _LOG.info("a file has changed; restarting %s", self._app)
            self._end_processes()
            for worker in self._workers:
                worker.next_start, worker.failures = 0.0, 0
        now = time.monotonic()
        for worker in self._workers:
            if worker.process is not None and (code := worker.process.poll()) is not None:
                self._ended(worker, code, now)
            if worker.process is None and worker.next_start is not None and worker.next_start <= now:
                self._start(worker)
        if not self._is_announced and all(worker.ready for worker in self._workers):
            self._announce()
        waits = any(worker.is_running or worker.next_start is not None for worker in self._workers)
        return self._code is ExitCode.DONE and (waits or self._reload)

    def _start(self, worker: _Worker) -> None:
        # A session of its own: a terminal's Ctrl-C reaches only this process, which passes it on.
        worker.process = subprocess.Popen(
            [sys.executable, "-m", "mqcore.cli.run_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        worker.started, worker.next_start, worker.is_ready = time.monotonic(), None, False
        assert worker.process.stdin is not None
        assert worker.process.stdout is not None
        # Not as an argument: every user of the machine could read the token. `poll` notices a process that has ended.
        with contextlib.suppress(BrokenPipeError):
            os.write(worker.process.stdin.fileno(), self._settings)
        reader = threading.Thread(target=self._forward, args=(worker, worker.process.stdout), daemon=True)
        reader.start()

    def _forward(self, worker: _Worker, stream: IO[str]) -> None:
        """Read the ready line of a process, and pass on everything else that its program prints."""
        for line in stream:
            if line.startswith(_READY) and not worker.is_ready:
                worker.is_ready = True
                worker.ready = worker.ready or json.loads(line)
            else:
                sys.stdout.write(line)
                sys.stdout.flush()

    def _announce(self) -> None:
        self._is_announced = True
        pids = [worker.process.pid for worker in self._workers if worker.process is not None]
        ready = self._workers[0].ready | {"pid": os.getpid(), "pids": pids}
        print(json.dumps(ready, separators=(",", ":")), flush=True)

    def _ended(self, worker: _Worker, code: int, now: float) -> None:
        """Plan what follows the end of a process."""
        lived = now - worker.started
        _close(worker)
        if code == 0:
            _LOG.info("worker %d has ended", worker.place)
            return
        if self._reload:
            _LOG.error("worker %d ended with %s; it is started again after the next change", worker.place, _shown(code))
            return
        if not worker.ready and code in _PERMANENT:
            self._code = ExitCode(code)
            return
        worker.failures = 1 if lived >= _STEADY_SECONDS else worker.failures + 1
        delay = 0.0 if lived >= _STEADY_SECONDS else _backoff(worker.failures)
        worker.next_start = now + delay
        _LOG.error("worker %d ended with %s; starting it again in %.1f s", worker.place, _shown(code), delay)

    def _stop_all(self) -> None:
        """Stop all processes: SIGTERM, again for each further signal, and SIGKILL when their time is over."""
        code = self._end_processes()
        if self._code is ExitCode.DONE and code:
            self._code = ExitCode.REFUSED

    def _end_processes(self) -> int:
        """Stop all processes, and return the first exit code that is not 0."""
        running = [worker for worker in self._workers if worker.is_running]
        for worker in running:
            _send(worker, signal.SIGTERM)
        deadline = time.monotonic() + self._drain + _KILL_SECONDS
        seen, first = self._signals, 0
        while running := [worker for worker in running if worker.process is not None and worker.process.poll() is None]:
            if self._signals > max(seen, 1):
                seen = self._signals
                deadline = min(deadline, time.monotonic() + _KILL_SECONDS)
                for worker in running:
                    _send(worker, signal.SIGTERM)
            if time.monotonic() > deadline:
                for worker in running:
                    _LOG.error("worker %d did not stop; it is killed", worker.place)
                    if worker.process is not None:
                        worker.process.kill()
                deadline = time.monotonic() + _KILL_SECONDS
            time.sleep(_POLL_SECONDS)
        for worker in self._workers:
            if worker.process is not None:
                first = first or worker.process.wait()
                _close(worker)
        return first

    def _watch(self, ended: threading.Event) -> None:
        """Notice changes of Python files below the working directory."""
        from watchfiles import PythonFilter, watch

        changes = watch(
            os.getcwd(),
            watch_filter=PythonFilter(),
            debounce=_WATCH_DEBOUNCE_MS,
            step=_WATCH_STEP_MS,
            stop_event=ended,
            raise_interrupt=False,
        )
        for _ in changes:
            self._changed.set()


def _backoff(failures: int) -> float:
    return min(_BACKOFF_FIRST_SECONDS * 2.0 ** min(failures - 1, 16), _BACKOFF_MAX_SECONDS)


def _send(worker: _Worker, number: int) -> None:
    if worker.process is not None and worker.process.poll() is None:
        worker.process.send_signal(number)


def _close(worker: _Worker) -> None:
    process, worker.process = worker.process, None
    if process is not None and process.stdin is not None:
        process.stdin.close()


def _shown(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
