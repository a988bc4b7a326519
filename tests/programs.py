"""Programs `python -m mqcore ...`: in the full depth each in a new interpreter, in the quick depth forked.

A new interpreter needs a fifth of a second of CPU time for its imports, and the tests start more than a thousand. In
the quick depth a process of each test worker imports mqcore once, and forks for each program. A forked program is a
process like any other: it has its own arguments, environment, directory and pipes, takes signals and finalizes its
interpreter. `Popen` and `run` take what those of `subprocess` take, and start a new interpreter for any other command,
for an environment that an interpreter reads when it starts (LD_PRELOAD), and on systems other than Linux.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depth import FULL

_PROGRAM = [sys.executable, "-m", "mqcore"]
_READ_LATER = ("MQCORE_", "COLUMNS", "TERM", "NO_COLOR", "XDG_CONFIG_HOME")
"""Beginnings of variables that programs read after their start; a fork can obey only these and PYTHONPATH."""


def Popen(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:  # noqa: N802 (as in subprocess)
    """Start a program; arguments are those of `subprocess.Popen`."""
    return _kind(command, options)(command, **options)


def run(
    command: Sequence[str],
    *,
    input: Any = None,  # noqa: A002 (as in subprocess)
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program until it ends; arguments are those of `subprocess.run`."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            said = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, *said)
    if check:
        done.check_returncode()
    return done


def end(process: subprocess.Popen[Any], limit: float = 20.0) -> None:
    """Terminate a program if it runs; kill it if it does not end within `limit` seconds."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def _kind(command: Sequence[str], options: dict[str, Any]) -> type[subprocess.Popen[Any]]:
    """Choose the way in which to start this command."""
    known = {"stdin", "stdout", "stderr", "text", "env", "cwd", "bufsize"}
    if FULL or sys.platform != "linux" or list(command[:3]) != _PROGRAM or not options.keys() <= known:
        return subprocess.Popen
    environment = os.environ if options.get("env") is None else options["env"]
    changed = {name for name, _ in environment.items() ^ os.environ.items()} - {"PYTHONPATH"}
    return _Forked if all(name.startswith(_READ_LATER) for name in changed) else subprocess.Popen


class _Forked(subprocess.Popen[Any]):
    """A program whose parent is the process that forks. It overrides how `subprocess` starts and awaits processes."""

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        _executable, _preexec, _close, _pass, cwd, env, _startup, _flags, _shell, *pipes = rest[:15]
        stdin, _, _, stdout, _, stderr = pipes
        streams = [given if given != -1 else inherited for inherited, given in enumerate((stdin, stdout, stderr))]
        request = {
            "arguments": [os.fspath(argument) for argument in args[3:]],
            "environment": dict(os.environ if env is None else env),
            "directory": os.fspath(cwd) if cwd is not None else str(Path.cwd()),
        }
        self._status, status = os.pipe()
        try:
            self.pid = _forking().start(request, [*streams, status])
        finally:
            os.close(status)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        waiting = select.poll()
        waiting.register(self._status, select.POLLIN)
        if not waiting.poll(0 if wait_flags & os.WNOHANG else None):
            return 0, 0
        status = os.read(self._status, 4)
        os.close(self._status)
        assert status, f"the process that forks ended before program {self.pid}"
        return self.pid, int.from_bytes(status, "big")

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


class _Forking:
    """The process that forks, as seen from the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair()
        with other:
            command = [sys.executable, str(Path(__file__).with_name("forking.py")), str(other.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self.close)

    def start(self, request: dict[str, Any], streams: list[int]) -> int:
        """Fork a program and return its process id."""
        text = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._socket, [len(text).to_bytes(4, "big")], streams)
            self._socket.sendall(text)
            answer = self._socket.recv(4, socket.MSG_WAITALL)
        assert len(answer) == 4, "the process that forks has ended"
        return int.from_bytes(answer, "big")

    def close(self) -> None:
        """End the process. Programs that still run continue."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


@functools.cache
def _forking() -> _Forking:
    return _Forking()
