"""The first dialog of the MQKS document, typed manually: through a real `nc`."""

from __future__ import annotations

import contextlib
import select
import shutil
import subprocess
from collections.abc import Iterator

import pytest

import mqcore


class Nc:
    """A user at a terminal in which `nc` runs."""

    def __init__(self, program: str, host: str, port: str) -> None:
        self._process = subprocess.Popen(
            [program, host, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def types(self, line: str) -> None:
        """Type a line and press Enter."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def sees(self) -> str:
        """The next line on the screen."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().removesuffix("\n")

    def fileno(self) -> int:
        """Where the next line comes from; nothing of it was read before."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def close(self) -> None:
        """Close the terminal."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def terminals() -> Iterator[dict[str, Nc]]:
    """Alice, Bob, Charlie and Dave, each with a terminal."""
    program = shutil.which("nc") or shutil.which("ncat")
    if program is None:
        pytest.skip("there is no nc here")
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(mqcore.Broker(listen="mqks://127.0.0.1:0"))
        host, _, port = broker.listeners[0].removeprefix("mqks://").rpartition(":")
        opened = {name: Nc(program, host, port) for name in ("Alice", "Bob", "Charlie", "Dave")}
        for terminal in opened.values():
            stack.callback(terminal.close)
        yield opened


def first_to_see(*terminals: Nc) -> Nc:
    """Which of these has something new on the screen; waits for it."""
    readable, _, _ = select.select(terminals, [], [], 20.0)
    assert readable, "nobody sees anything"
    return readable[0]


def test_dialog_of_the_document_works_with_netcat(terminals: dict[str, Nc]) -> None:
    alice, bob, charlie, dave = terminals.values()
    alice.types("Alice consume greetings hi hello")
    bob.types("Bob consume greetings hi hello")
    charlie.types("Charlie consume greetings-and-byes hi hello bye good-bye")
    for terminal in (alice, bob, charlie):
        terminal.types("ready ping yes")
        assert terminal.sees() == "ready ok yes"
    dave.types("Dave publish hello world")
    assert charlie.sees() == "Charlie ok Dave event=hello world"
    greeted = first_to_see(alice, bob)
    assert greeted.sees() == f"{'Alice' if greeted is alice else 'Bob'} ok Dave event=hello world"
    for terminal in (alice, bob):
        terminal.types("and ping nothing else")
        assert terminal.sees() == "and ok nothing else"
