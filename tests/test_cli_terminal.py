"""Prompts, progress bars and tables of `mqcore` on a terminal."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import mqcore
import programs
from mqcore import QueueOptions, QueueStatus, sync
from served import ServedBroker, clean_environment
from test_cli import mqcore as run
from test_cli import one
from test_cli_answers import said

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudoterminal")

SAVING = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
SCREEN = {"COLUMNS": "200", "TERM": "xterm"}
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ERASE_LINE = b"\x1b[2K"


class Terminal:
    """A program that reads stdin from a terminal and writes stderr to it. Its stdout is a pipe."""

    def __init__(
        self,
        *arguments: str,
        url: str | None = None,
        cwd: Path | None = None,
        has_own_session: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._descriptor, terminal = os.openpty()
        # A program that reads a password asks the terminal of its session. A new session has none, so it asks stdin.
        session: dict[str, Any] = {"start_new_session": True} if has_own_session else {}
        self.process = programs.Popen(
            [sys.executable, "-m", "mqcore", *arguments],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            env=clean_environment() | SCREEN | ({"MQCORE_URL": url} if url else {}) | (environment or {}),
            cwd=cwd,
            **session,
        )
        os.close(terminal)
        self.shown = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.close(self._descriptor)

    def text(self) -> str:
        """The text that the terminal has received, without control sequences."""
        return CONTROL.sub("", self.shown.decode("utf-8", "replace")).replace("\r\n", "\n")

    def wait_for(self, pattern: str, limit: float = 20.0) -> re.Match[str]:
        """Wait until the terminal has received text that matches."""
        deadline = time.monotonic() + limit
        while (found := re.search(pattern, self.text())) is None:
            is_open = self._read(0.1)
            if not is_open or time.monotonic() > deadline:
                pytest.fail(f"the terminal does not show {pattern!r}, but {self.text()!r}")
        return found

    def type(self, text: str) -> None:
        """Type text."""
        os.write(self._descriptor, text.encode())

    def line(self, limit: float = 20.0) -> str:
        """The next line on stdout."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], limit)[0], "nothing on stdout"
        return bytes(self.process.stdout.readline()).decode()

    def end(self, limit: float = 20.0) -> tuple[int, str]:
        """Exit code and the rest of stdout, at the end of the program."""
        deadline = time.monotonic() + limit
        while self._read(0.1):
            assert time.monotonic() < deadline, self.text()
        assert self.process.stdout is not None
        stdout = bytes(self.process.stdout.read()).decode()
        return self.process.wait(10), stdout

    def _read(self, seconds: float) -> bool:
        """Read what the program writes. False if no program has the terminal open any more."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return True
        try:
            part = os.read(self._descriptor, 1 << 16)
        except OSError:
            # Linux reports the end as an error.
            part = b""
        self.shown += part
        return bool(part)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped broker with three messages."""
    directory = tmp_path_factory.mktemp("saved") / "data"
    with mqcore.Broker(data_dir=str(directory), shards=2) as broker, sync.connect(broker) as client:
        client.create_queue("orders/1", SAVING)
        client.publish_many("orders/1", ["a", "b", "c"])
    return directory


# --- prompts --------------------------------------------------------------------------------------------------


def test_clearing_a_queue_asks_for_its_name(served: ServedBroker) -> None:
    run("publish", "orders/1", "x", "--count", "2", url=served.url)
    question = "clearing orders/1 loses 2 messages; type orders/1 to confirm: "
    with Terminal("queue", "clear", "orders/1", url=served.url) as terminal:
        terminal.wait_for(rf"{re.escape(question)}\Z")
        terminal.type("orders/2\n")
        assert terminal.end() == (130, "")
        assert terminal.text() == f"{question}orders/2\nmqcore: interrupted\n"
    assert one(run("queue", "show", "orders/1", "--json", url=served.url))["messages"] == 2
    with Terminal("queue", "clear", "orders/1", url=served.url) as terminal:
        terminal.wait_for(rf"{re.escape(question)}\Z")
        terminal.type("orders/1\n")
        assert terminal.end() == (0, "")
        assert terminal.text() == f"{question}orders/1\ncleared orders/1\n"
    assert one(run("queue", "show", "orders/1", "--json", url=served.url))["messages"] == 0


def test_password_is_typed_twice_and_not_shown() -> None:
    password, again = "Password: ", "Repeat for confirmation: "
    with Terminal("user", "hash", has_own_session=True) as terminal:
        terminal.wait_for(rf"{password}\Z")
        terminal.type("correct horse\n")
        terminal.wait_for(rf"{again}\Z")
        terminal.type("another horse\n")
        terminal.wait_for(rf"do not match\.\n{password}\Z")
        terminal.type("correct horse\n")
        terminal.wait_for(rf"do not match\.\n{password}\n{again}\Z")
        terminal.type("correct horse\n")
        code, hashed = terminal.end()
        attempt = f"{password}\n{again}\n"
        assert terminal.text() == f"{attempt}Error: The two entered values do not match.\n{attempt}"
    assert (code, len(hashed.splitlines()), hashed.startswith("$")) == (0, 1, True)


# --- progress bars --------------------------------------------------------------------------------------------


def test_bar_counts_consumed_messages_and_is_erased(served: ServedBroker) -> None:
    run("queue", "create", "orders/1", "--status", "roundrobin", "--acknowledge", url=served.url)
    run("publish", "orders/1", "--stdin", url=served.url, stdin="a\nb\nc\n")
    with Terminal("consume", "orders/1", "--count", "3", url=served.url) as terminal:
        assert terminal.end() == (0, "a\nb\nc\n")
        assert re.search(r"consume orders/1 \S+ 3/3 [\d,]+/s ", terminal.text()), terminal.text()
        assert ERASE_LINE in terminal.shown.rpartition(b"3/3")[2]


def test_bar_counts_published_messages(served: ServedBroker) -> None:
    with Terminal("publish", "orders/1", "x", "--count", "3", url=served.url) as terminal:
        assert terminal.end() == (0, "")
        assert re.search(r"publish to orders/1 \S+ 3/3 (?!bytes)", terminal.text()), terminal.text()
        assert "3 messages to orders/1, confirmed by server, " in terminal.text()


def test_bar_counts_replayed_messages(data_dir: Path, served: ServedBroker) -> None:
    with Terminal("journal", "replay", str(data_dir), "--to", "again/1", url=served.url) as terminal:
        assert terminal.end() == (0, "")
        assert re.search(r"replay to again/1 \S+ 3/3 (?!bytes)", terminal.text()), terminal.text()
        assert "3 messages published to again/1, 3 of 3 done, " in terminal.text()


def test_exported_lines_are_on_stdout_and_their_bar_on_the_terminal(data_dir: Path) -> None:
    with Terminal("journal", "export", str(data_dir), "--queue", "orders/1") as terminal:
        code, stdout = terminal.end()
        assert (code, [json.loads(line)["body"] for line in stdout.splitlines()]) == (0, ["a", "b", "c"])
        assert re.search(r"export orders/1 \S+ 3/3 (?!bytes)", terminal.text()), terminal.text()
        assert '"body"' not in terminal.text()


def in_bytes(size: int) -> str:
    """A number of bytes as a bar shows it, with its unit behind."""
    unit, name = next((pair for pair in ((10**6, "MB"), (10**3, "kB")) if size >= pair[0]), (1, "bytes"))
    return f"{size / unit:,.{int(unit > 1)}f} {name}"


def test_bar_counts_verified_bytes(data_dir: Path) -> None:
    number, unit = in_bytes(sum(path.stat().st_size for path in data_dir.rglob("*.segment"))).split()
    with Terminal("journal", "verify", str(data_dir)) as terminal:
        code, stdout = terminal.end()
        assert (code, "no saved message is lost" in stdout) == (0, True)
        *_, last = re.findall(r"verify \S+ (\S+ [a-zA-Z]+) ", terminal.text())
        assert last == f"{number}/{number} {unit}"


def test_bars_of_copies_and_of_compaction_count_bytes(data_dir: Path, tmp_path: Path) -> None:
    copy, new = str(tmp_path / "copy"), str(tmp_path / "new")
    for name, arguments in (
        ("backup", ("backup", "--data-dir", str(data_dir), "--to", copy)),
        ("restore", ("restore", copy, "--data-dir", new)),
        ("compact", ("journal", "compact", new)),
    ):
        with Terminal(*arguments) as terminal:
            assert terminal.end() == (0, "")
            assert re.search(rf"{name} \S+ 0/\? bytes ", terminal.text()), terminal.text()


# --- tables ---------------------------------------------------------------------------------------------------


def test_list_is_a_table_with_aligned_columns(served: ServedBroker) -> None:
    said("queue", "create", "orders/1", "--status", "pull", "--tag", "[bold]", url=served.url)
    said("publish", "orders/1", "x", "--count", "2", url=served.url)
    ours, theirs = os.openpty()
    listed = programs.run(
        [sys.executable, "-m", "mqcore", "queue", "ls"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        timeout=30,
        env=clean_environment() | SCREEN | {"MQCORE_URL": served.url},
    )
    os.close(theirs)
    text = CONTROL.sub("", os.read(ours, 1 << 16).decode())
    os.close(ours)
    assert listed.returncode == 0
    heading, row = (line.rstrip() for line in text.splitlines())
    assert re.split(" {2,}", heading) == [
        *("queue", "status", "ready", "in flight", "delayed", "dead lettered", "oldest", "consumers", "received"),
        *("deliveries", "acks", "tag", "missing handler"),
    ]
    assert re.split(" {2,}", row) == ["orders/1", "pull", "2", *"000-0200", "[bold]", "-"]
    assert heading.index("status") == row.index("pull")
