"""A broker in a process of its own, for tests: ``mqcore serve`` on free ports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final, Self

from mqcore.config import Duration, seconds
from mqcore.errors import NotRunning

__all__ = ["ServerProcess"]

_START_TIMEOUT: Final = 20.0
_STOP_TIMEOUT: Final = 15.0


class ServerProcess:
    """A broker in a process of its own: ``with ServerProcess() as server: mqcore.connect(server.url)``.

    - `arguments`: further arguments of ``mqcore serve``, such as ``"--auto-create"``. Without ``--listen`` it listens
      for TMQP on a free port of the loopback interface; its admin side has a free port, too.
    - `data_dir`: its data directory. Default: none; the broker keeps everything in memory.
    - `start_timeout`: time to wait until it is ready (20 s).

    Settings of the environment (``MQCORE_*``) do not apply. Starting raises `NotRunning` with its log if it ends, or is
    not ready in time.
    """

    def __init__(
        self,
        *arguments: str,
        data_dir: str | os.PathLike[str] | None = None,
        start_timeout: Duration = _START_TIMEOUT,
    ) -> None:
        self._arguments = list(arguments)
        if data_dir is not None:
            self._arguments += ["--data-dir", os.fspath(data_dir)]
        self._start_timeout = seconds(start_timeout)
        self._ready: dict[str, Any] = {}
        self._process: subprocess.Popen[str] | None = None
        self._log = Path()

    def start(self) -> None:
        """Start it and wait until it is ready. After `kill` or `stop`, it uses the same ports again."""
        if self._process is not None and self._process.poll() is None:
            return
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MQCORE_")}
        self._close_pipe()
        log, name = tempfile.mkstemp(prefix="mqcore-server-", suffix=".log")
        self._remove_log()
        self._log = Path(name)
        with os.fdopen(log, "w") as errors:
            self._process = subprocess.Popen(  # noqa: S603 (the command is ours)
                [sys.executable, "-m", "mqcore", "serve", *self._addresses(), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=kept,
            )
        guard = threading.Timer(self._start_timeout, self._process.kill)
        guard.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        guard.cancel()
        if not line:
            self._process.wait()
            raise NotRunning(f"the broker process did not become ready: {self.log or 'it logged nothing'}")
        self._ready = json.loads(line)

    def _addresses(self) -> list[str]:
        chosen: dict[str, str] = self._ready.get("listeners", {})
        listen = [f"{protocol}://{address}" for protocol, address in chosen.items()]
        if not listen and "--listen" not in self._arguments:
            listen = ["tmqp://127.0.0.1:0"]
        found = [part for url in listen for part in ("--listen", url)] if "--listen" not in self._arguments else []
        if "--admin" not in self._arguments:
            found += ["--admin", f"http://{self._ready.get('admin') or '127.0.0.1:0'}"]
        return found

    @property
    def url(self) -> str:
        """URL of its TMQP listener. Raises `KeyError` if it has none."""
        return f"tmqp://{self._ready['listeners']['tmqp']}"

    @property
    def listeners(self) -> dict[str, str]:
        """Host and port of its listeners by protocol."""
        return dict(self._ready["listeners"])

    @property
    def admin_url(self) -> str:
        """URL of its admin side."""
        return f"http://{self._ready['admin']}"

    @property
    def pid(self) -> int:
        """Its process id. Raises `NotRunning`."""
        if self._process is None:
            raise NotRunning("the broker process was not started; use 'with ServerProcess() as server'")
        return self._process.pid

    @property
    def log(self) -> str:
        """The log since its last start."""
        try:
            return self._log.read_text(errors="replace")
        except OSError:
            return ""

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it with SIGTERM, so that it drains; with SIGKILL after 15 s."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """Kill it, and start it on the same ports and data directory."""
        self.kill()
        self.start()

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _remove_log(self) -> None:
        if self._log != Path():
            with contextlib.suppress(OSError):
                self._log.unlink()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        self._close_pipe()
        self._remove_log()
