"""A real browser for tests: Chromium without a window, spoken to over a pipe in its DevTools protocol.

Nothing is installed for it: without Chromium, the tests that need it are skipped with a reason.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = f"no browser is installed: none of {', '.join(PROGRAMS)} is on the path"
PATIENCE = 60.0

# The protocol is spoken on descriptors 3 and 4, and what a process passes on keeps its number, which may be one of
# these: so both are put out of the way first.
_EXEC = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """Return the path of a Chromium; ``None``: there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@dataclass
class Seen:
    """A page as the browser shows it."""

    title: str
    complaints: list[str] = field(default_factory=list)
    """Errors in the console, including uncaught exceptions."""
    requests: list[str] = field(default_factory=list)
    """Further resources that the page fetched."""


class Browser:
    """One page of a browser that runs."""

    def __init__(self, process: subprocess.Popen[bytes], reads: int, writes: int) -> None:
        self._process, self._reads, self._writes = process, reads, writes
        self._number, self._rest = 0, b""
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something, and return what it answers."""
        self._number += 1
        question: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            question["sessionId"] = self._session
        os.write(self._writes, json.dumps(question).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            reply = self._receive(end, method)
            if reply.get("id") == self._number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                answer: dict[str, Any] = reply["result"]
                return answer
            self._events.append(reply)

    def _receive(self, end: float, why: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reads], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._reads, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError(f"the browser says nothing to {why}; it ended with {self._process.poll()}")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        reply: dict[str, Any] = json.loads(message)
        return reply

    def _happens(self, method: str) -> None:
        end = time.monotonic() + PATIENCE
        while not any(event["method"] == method for event in self._events):
            self._events.append(self._receive(end, method))

    def show(self, page: Path, *, width: int = 960, height: int = 800, dark: bool = False) -> Seen:
        """Open a page, and return what is to be said of it."""
        self._events.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=page.absolute().as_uri())
        self._happens("Page.loadEventFired")
        seen = Seen(str(self.value("document.title")))
        for event in self._events:
            parameters = event.get("params", {})
            match event["method"]:
                case "Runtime.exceptionThrown":
                    seen.complaints.append(str(parameters["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if parameters["type"] in {"error", "assert", "warning"}:
                    seen.complaints.append(str(parameters["args"]))
                case "Log.entryAdded" if parameters["entry"]["level"] in {"error", "warning"}:
                    seen.complaints.append(parameters["entry"]["text"])
                case "Network.requestWillBeSent" if parameters["request"]["url"] != page.absolute().as_uri():
                    seen.requests.append(parameters["request"]["url"])
                case _:
                    pass
        return seen

    def requested(self) -> list[str]:
        """Return the addresses of everything that the page has fetched so far."""
        sent = (event for event in self._events if event["method"] == "Network.requestWillBeSent")
        return [str(event["params"]["request"]["url"]) for event in sent]

    def value(self, expression: str) -> Any:
        """Return what an expression is worth in the page, as plain values."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def picture(self, target: Path) -> None:
        """Save what is seen as PNG."""
        target.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """Run a browser whose files are in `profile`. Raises `LookupError` where none is installed."""
    program = find_browser()
    if program is None:
        raise LookupError(MISSING)
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    command = [
        *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe"),
        f"--user-data-dir={profile}",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", _EXEC, str(theirs_in), str(theirs_out), *command],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(process, ours_in, ours_out)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours_in)
        os.close(ours_out)
