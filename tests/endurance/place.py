"""Two linked brokers and a worker, as processes that are killed and started again at the same addresses."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from endurance.account import Interruptions
from job_processes import WorkerProcess, working
from ports import free_ports
from served import ServedBroker, started

START_SECONDS = 60.0
"""Longest time until a process is ready, on a machine that does other things too."""
STOP_SECONDS = 60.0

_ALARMS = ("panicked", '"level": "error"', '"level": "critical"')
"""Parts of log lines that no workload explains."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a life of a broker."""

    at: float
    """Monotonic time."""
    is_orderly: bool
    """Whether it had time to finish."""


@dataclass
class ManagedBroker:
    """A broker over all its lives."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    interruptions: Interruptions = field(default_factory=Interruptions)
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    ends: list[End] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """Monotonic times from the end of a life until the next one was ready."""
    alarms: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Parts of alarms that faults of the run explain."""
    _running: ServedBroker | None = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._running is not None
        return self._running.process.pid

    @property
    def admin_url(self) -> str:
        """URL of its admin side."""
        assert self._running is not None
        return self._running.admin_url

    @property
    def lines(self) -> list[str]:
        """Log lines of this life."""
        assert self._running is not None
        return self._running.stderr_lines

    async def start(self, *extra: str) -> None:
        """Start it and wait until it is ready."""
        await asyncio.to_thread(self._start, extra, START_SECONDS)
        if self.ends:
            self.outages.append((self.ends[-1].at, time.monotonic()))
        self.is_up.set()

    async def start_and_kill(self, seconds: float) -> None:
        """Start it, and kill it after so many seconds, which may be before it is ready."""
        try:
            await asyncio.to_thread(self._start, (), seconds)
        except RuntimeError:
            # Its listeners may have been open for a moment.
            self._record_end(time.monotonic(), is_orderly=False)
        else:
            await self.kill()

    def _start(self, extra: tuple[str, ...], limit: float) -> None:
        command = [sys.executable, "-m", "mqcore", "serve", *self.arguments, *extra]
        try:
            process, ready, lines = self._stack.enter_context(started(command, self.environment, None, limit))
        except pytest.fail.Exception as failure:
            raise RuntimeError(failure.msg) from None
        self._running = ServedBroker(process, ready, lines)

    async def kill(self) -> None:
        """End it with SIGKILL."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """End it with SIGTERM, and return its exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> int:
        assert self._running is not None
        running, self._running = self._running, None
        self.is_up.clear()
        moment = time.monotonic()
        running.process.send_signal(how)
        code = await asyncio.to_thread(running.process.wait, STOP_SECONDS)
        self._record_end(moment, is_orderly=how is signal.SIGTERM)
        await asyncio.to_thread(self._stack.close)
        alarms = (line for line in running.stderr_lines if any(word in line for word in _ALARMS))
        self.alarms += [line for line in alarms if not any(part in line for part in self.expected)]
        return code

    def _record_end(self, moment: float, *, is_orderly: bool) -> None:
        """Count an end after it: a broker that stops accepts and delivers messages until then."""
        self.ends.append(End(moment, is_orderly))
        self.interruptions.count += 1

    def close(self) -> None:
        """End it if it runs."""
        self._stack.close()


@dataclass
class ManagedWorker:
    """A job worker over all its lives."""

    url: str
    kills: int = 0
    _running: WorkerProcess | None = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    async def start(self) -> None:
        """Start it and wait until it has joined its broker."""
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        arguments = ("--concurrency", "2", "--pool", "thread")
        try:
            self._running = self._stack.enter_context(working(self.url, *arguments))
        except pytest.fail.Exception as failure:
            raise RuntimeError(failure.msg) from None

    async def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._running is not None
        running, self._running = self._running, None
        self.kills += 1
        running.process.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(running.process.wait, STOP_SECONDS)
        await asyncio.to_thread(self._stack.close)

    def close(self) -> None:
        """End it if it runs."""
        self._stack.close()


class Place:
    """A main broker with listeners of all protocols, a broker downstream of it, and a worker of the main one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ports = iter(free_ports(12))
        self.main_urls = {scheme: f"{scheme}://127.0.0.1:{next(ports)}" for scheme in ("tmqp", "mqks", "mm2")}
        """URLs of the main broker's listeners for clients."""
        self.throttr_url = f"throttr://127.0.0.1:{next(ports)}?value=uint32"
        self.jobs_url = f"emqp://127.0.0.1:{next(ports)}?frontend={next(ports)}&admin={next(ports)}"
        self.frontend = f"tcp://127.0.0.1:{self.jobs_url.partition('frontend=')[2].partition('&')[0]}"
        """Address at which clients send jobs."""
        emqp = f"{self.jobs_url}&publish={next(ports)}&subscribe={next(ports)}"
        self.down_url = f"tmqp://127.0.0.1:{next(ports)}"
        listeners = (*self.main_urls.values(), f"{self.throttr_url}&persist=on", emqp)
        self.main = ManagedBroker(
            (
                *(word for url in listeners for word in ("--listen", url)),
                *("--data-dir", str(directory / "main"), "--node-name", "main", "--admin", "http://127.0.0.1:0"),
            ),
            {"MQCORE_SHARDS": "3"},
        )
        config = directory / "down.toml"
        config.write_text(
            f"""
            listen = ["{self.down_url}"]
            admin = "http://127.0.0.1:0"
            data_dir = "{directory / "down"}"
            shards = 2
            [node]
            name = "down"
            keep_messages = true
            reconnect_wait = "50ms"
            confirm_timeout = "10s"
            [[upstream]]
            url = "{self.main_urls["tmqp"]}"
            """
        )
        # --listen only keeps `serve` from its default address.
        self.down = ManagedBroker(("--config", str(config), "--listen", self.down_url), {})
        self.worker = ManagedWorker(self.jobs_url)

    @property
    def data_dirs(self) -> tuple[Path, Path]:
        """The data directories of both brokers."""
        return self.directory / "main", self.directory / "down"

    async def start(self) -> None:
        """Start everything."""
        await self.main.start()
        await asyncio.gather(self.down.start(), self.worker.start())

    def close(self) -> None:
        """End everything that runs."""
        for managed in (self.worker, self.down, self.main):
            managed.close()
