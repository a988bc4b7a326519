"""The broker of a run: embedded or in a process of its own, on ports that stay the same when it starts again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mqcore
from ports import free_ports
from promises import handlers
from promises.plan import BrokerPlan, Plan
from served import ROOT, started

EMQP_SOCKETS = ("frontend", "admin", "publish", "subscribe")
START_SECONDS = 40.0
"""Longest time until a broker is ready, on a machine that does other things too."""
STOP_SECONDS = 2.0
"""Time that a broker gets to finish."""


def protocols_of(plan: Plan) -> set[str]:
    """The listeners that a plan needs."""
    return {"tmqp"} | {actor.protocol.removeprefix("raw-") for actor in plan.actors}


class RunningBroker:
    """One broker over all its starts."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan: BrokerPlan = plan.broker
        self._directory = directory
        self._schemes = sorted(protocols_of(plan))
        ports = iter(free_ports(len(self._schemes) + len(EMQP_SOCKETS)))
        self.urls = {scheme: f"{scheme}://127.0.0.1:{next(ports)}" for scheme in self._schemes}
        """URL of each listener by its scheme."""
        self._emqp = {name: next(ports) for name in EMQP_SOCKETS}
        if "emqp" in self.urls:
            sockets = "&".join(f"{name}={port}" for name, port in self._emqp.items())
            self.urls["emqp"] += f"?{sockets}"
        self.embedded: mqcore.Broker | None = None
        self._process: subprocess.Popen[str] | None = None
        self._stack = contextlib.ExitStack()
        self.log: list[str] = []

    @property
    def emqp_sockets(self) -> list[str]:
        """URLs of the sockets of EventMQ's listener, each with its role."""
        backend = self.urls["emqp"].partition("?")[0]
        return [f"{backend}?role=backend"] + [
            f"emqp://127.0.0.1:{port}?role={name}" for name, port in self._emqp.items()
        ]

    async def start(self, *, handled: bool = True) -> None:
        """Start it; without its Python handlers if `handled` is false."""
        if self._plan.served:
            await asyncio.to_thread(self._start_process, handled)
            return
        config: dict[str, Any] = {"listen": tuple(self.urls.values()), "shards": self._plan.shards}
        if self._plan.storage:
            config["data_dir"] = str(self._directory)
        if self._plan.watermark is not None:
            config["memory_watermark"] = self._plan.watermark
        broker = mqcore.Broker(**config)
        if handled:
            for key, handler in handlers.registered().items():
                broker.delivery_handlers[key] = handler
        await broker.__aenter__()
        self.embedded = broker

    def _start_process(self, handled: bool) -> None:
        command = [sys.executable, "-m", "mqcore", "serve"]
        for url in self.urls.values():
            command += ["--listen", url]
        if self._plan.storage:
            command += ["--data-dir", str(self._directory)]
        if self._plan.watermark is not None:
            command += ["--memory-watermark", str(self._plan.watermark)]
        if handled:
            command += ["--app", "promises.handlers:HANDLERS"]
        path = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
        environment = {"MQCORE_SHARDS": str(self._plan.shards), "PYTHONPATH": path}
        try:
            running = self._stack.enter_context(started(command, environment, None, START_SECONDS))
        except pytest.fail.Exception as failure:
            raise RuntimeError(failure.msg) from None
        self._process, _, self.log = running

    async def kill(self) -> None:
        """End it without any time to finish; an embedded one is stopped."""
        if self._process is None:
            await self.stop()
            return
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        await self._close()

    async def stop(self) -> None:
        """End it, with some time to finish."""
        if self.embedded is not None:
            broker, self.embedded = self.embedded, None
            await broker.aclose(STOP_SECONDS)
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 5 * STOP_SECONDS)
            await self._close()

    async def _close(self) -> None:
        self._process = None
        stack, self._stack = self._stack, contextlib.ExitStack()
        await asyncio.to_thread(stack.close)
