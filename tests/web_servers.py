"""Web servers in processes of their own, and requests to them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import programs
from ports import free_ports
from served import ROOT, clean_environment

START_LIMIT = 40.0
"""Seconds that a web server may take to start; far more than it needs."""


def jobs_url() -> str:
    """A URL of free ports for a listener for jobs, and for its clients."""
    first, *others = free_ports(5)
    names = ("frontend", "admin", "publish", "subscribe")
    return f"emqp://127.0.0.1:{first}?" + "&".join(f"{name}={port}" for name, port in zip(names, others, strict=True))


@dataclass
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def ask(
    url: str, body: object = None, *, method: str | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send a request, with a JSON body unless that is None. Redirects are not followed."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=20) as answer:
            return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, {name.lower(): value for name, value in error.headers.items()}, error.read())


@dataclass
class WebServer:
    """A web server that runs."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def output(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")

    def stop(self, limit: float = 20.0) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        return self.process.wait(limit)


def environment_of(cwd: Path, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program in `cwd`."""
    path = os.pathsep.join(filter(None, (str(cwd), str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
    return clean_environment() | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | dict(more)


@contextlib.contextmanager
def web_server(
    command: list[str], port: int, log: Path, *, cwd: Path = ROOT / "examples", **environment: str
) -> Iterator[WebServer]:
    """Run ``python -m ...`` from when the port accepts connections until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environment_of(cwd, environment),
        )
    server = WebServer(process, f"http://127.0.0.1:{port}", log)
    try:
        deadline = time.monotonic() + START_LIMIT
        while not _accepts(port):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the server did not start:\n{server.output}")
            time.sleep(0.05)
        yield server
    except BaseException:
        sys.stderr.write(server.output)
        raise
    finally:
        programs.end(process)


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False
