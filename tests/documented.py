"""Follows a page of the documentation as a reader does: writes its programs, runs its commands, compares output.

The blocks of a page are read in order:

- ```` ```python title="NAME" ````: a file; it is written into the reader's directory. So are `toml` and others.
- ```` ```sh ````: commands, which run until they end. ```` ```sh title="terminal 1" ````: a command that keeps running.
  A later block of the same terminal interrupts it first, as Ctrl-C does.
- ```` ```sh title="install" ````: commands that install mqcore; `Reader.installs` says whether they run.
- ```` ```text title="terminal 1" ```` with `^C`: Ctrl-C in this terminal.
- `<http://127.0.0.1:2627>`: a page that the reader opens; it is the dashboard.
- ```` ```text ```` after commands: what they print. `...` stands for any text. After the command of a terminal, and
  with ```` ```text title="terminal 1" ````, the reader waits until the terminal has printed it.

Everything else on the page is for humans.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from served import ROOT

BLOCK = re.compile(r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE)
LINK = re.compile(r"<(http://127[^>]+)>")
LIMIT = 40.0


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    title: str | None
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(found["kind"], found["title"], found["text"], text.count("\n", 0, found.start()) + 1)
        for found in BLOCK.finditer(text)
    ]
    outside = BLOCK.sub(lambda block: "\n" * block.group().count("\n"), text)
    links = [Block("link", None, link[1], outside.count("\n", 0, link.start()) + 1) for link in LINK.finditer(outside)]
    return sorted(found + links, key=lambda block: block.line)


def is_file(block: Block) -> bool:
    """Whether a block is a file that the reader writes."""
    return block.kind in {"python", "toml"} and block.title is not None


def matches(expected: str, printed: str, *, anywhere: bool = False) -> bool:
    """Whether a program printed what the page shows."""
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    search = re.search if anywhere else re.fullmatch
    return search(pattern, printed.strip(), re.DOTALL) is not None


class Terminal:
    """A terminal in which a command keeps running."""

    def __init__(self, command: str, directory: Path, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "-euc", command],
            cwd=directory,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._printed: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._printed.append(line)

    @property
    def printed(self) -> str:
        """Everything that the command has printed."""
        return "".join(self._printed)

    def expect(self, text: str) -> None:
        """Wait until the command has printed `text`."""
        end = time.monotonic() + LIMIT
        while not matches(text, self.printed, anywhere=True):
            if time.monotonic() > end or (self.process.poll() is not None and not self._reader.is_alive()):
                raise AssertionError(f"expected:\n{text}\nprinted:\n{self.printed}")
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait until the command has ended."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the command at once, whatever it does."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass
class Reader:
    """A reader of pages, with a directory and terminals."""

    directory: Path
    environment: dict[str, str]
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Texts of the page that this reader writes differently, such as ports."""
    installs: bool = False
    """Whether the reader installs mqcore as the page says."""
    terminals: dict[str, Terminal] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each page took."""

    def follow(self, name: str) -> None:
        """Follow one page, named by its path in docs/."""
        started = time.monotonic()
        last: str | Terminal = ""
        for block in blocks(ROOT / "docs" / name):
            text = self._written(block.text)
            try:
                if is_file(block):
                    target = self.directory / str(block.title)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(text, encoding="utf-8")
                elif block.kind == "sh":
                    last = self._run(block, text)
                elif block.kind == "link":
                    with urllib.request.urlopen(text, timeout=LIMIT) as shown:
                        assert b"<title>mqcore" in shown.read(), f"{text} is not the dashboard"
                elif block.kind == "text" and block.title is not None and text.strip() == "^C":
                    self.terminals[block.title].interrupt()
                elif block.kind == "text" and block.title is not None:
                    self.terminals[block.title].expect(text)
                elif block.kind == "text" and isinstance(last, Terminal):
                    last.expect(text)
                elif block.kind == "text":
                    assert matches(text, last), f"expected:\n{text}\nprinted:\n{last}"
            except AssertionError as error:
                shown = "".join(f"\n{key}:\n{terminal.printed}" for key, terminal in self.terminals.items())
                raise AssertionError(f"docs/{name}:{block.line}: {error}{shown}") from None
        self.seconds[name] = time.monotonic() - started

    def _written(self, text: str) -> str:
        for shown, written in self.replaced.items():
            text = text.replace(shown, written)
        return text

    def _run(self, block: Block, text: str) -> str | Terminal:
        if block.title == "install":
            if not self.installs:
                return ""
        elif block.title is not None:
            if block.title in self.terminals:
                self.terminals.pop(block.title).interrupt()
            terminal = Terminal(text.strip(), self.directory, self.environment)
            self.terminals[block.title] = terminal
            if text.startswith("mqcore serve"):
                # Readers look at the terminal before they use the other one.
                terminal.expect('"event":"ready"')
            return terminal
        with tempfile.NamedTemporaryFile() as state:
            # Later commands continue in the directory and with the path that these leave.
            done = self._shell(f'{text}\nprintf \'%s\\0%s\' "$PWD" "$PATH" > {state.name}\n')
            assert done.returncode == 0, f"exit code {done.returncode}:\n{text}\n{done.stdout}"
            place, _, path = state.read().decode().partition("\0")
        self.directory, self.environment["PATH"] = Path(place), path
        return done.stdout

    def _shell(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=5 * LIMIT,
            check=False,
        )

    def close(self) -> None:
        """End what still runs."""
        for terminal in self.terminals.values():
            terminal.kill()
        self.terminals.clear()
