"""Pages that a reader follows: their programs and commands, in a clean directory and with real brokers.

Commands run as shells run them, with the `mqcore` of this environment. Ports are replaced by free ones, because tests
run at the same time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from documented import BLOCK, Reader, Terminal, blocks, is_file, matches
from ports import free_ports
from served import ROOT, clean_environment

PAGES = sorted((ROOT / "docs").rglob("*.md"))
SNIPPETS = ROOT / "docs" / "snippets"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader in a clean directory, with ports of its own."""
    tmqp, admin, throttr = free_ports(3)
    ports = {2622: tmqp, 2627: admin, 9000: throttr, 47290: _eventmq_port()}
    environment = clean_environment()
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}",
        "MQCORE_LISTEN": f"tmqp://127.0.0.1:{tmqp}",
        "MQCORE_URL": f"tmqp://127.0.0.1:{tmqp}",
        "MQCORE_ADMIN": f"http://127.0.0.1:{admin}",
        "PYTHONUNBUFFERED": "1",
    }
    found = Reader(tmp_path, environment, {f"127.0.0.1:{old}": f"127.0.0.1:{new}" for old, new in ports.items()})
    yield found
    found.close()


def _eventmq_port() -> int:
    """A port whose neighbors, which an EventMQ listener takes too, are free."""
    for _ in range(1000):
        port = free_ports(1)[0]
        try:
            with contextlib.ExitStack() as stack:
                for above in (1, 3, 8, 9):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + above))
        except OSError:
            continue
        return port
    raise RuntimeError("no free ports for EventMQ")


def test_first_message_is_sent_as_the_start_page_says(reader: Reader) -> None:
    reader.follow("index.md")
    assert reader.seconds["index.md"] < 120


@pytest.mark.parametrize("guide", ["rabbitmq", "redis", "celery", "eventmq", "twino", "throttr"])
def test_migration_guide_works_as_its_page_shows(guide: str, reader: Reader) -> None:
    reader.follow(f"migrate/{guide}.md")


def test_every_migration_guide_is_followed() -> None:
    guides = {path.stem for path in (ROOT / "docs" / "migrate").glob("*.md")} - {"index"}
    (followed,) = test_migration_guide_works_as_its_page_shows.pytestmark
    assert guides == set(followed.args[1])


def test_programs_on_pages_are_the_files_that_are_checked_and_run() -> None:
    specification = importlib.util.spec_from_file_location("snippets", ROOT / "tools" / "docs" / "snippets.py")
    assert specification is not None
    assert specification.loader is not None
    snippets = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(snippets)
    assert snippets.stale() == [], "run make generate"
    used = {snippets.file_of(page, str(block.title)) for page in PAGES for block in blocks(page) if is_file(block)}
    files = {path for path in SNIPPETS.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert used == files, "every file of docs/snippets is shown on its page"
    assert used


@pytest.mark.full("takes a second for each folder of snippets; the tests above run them")
def test_type_checker_accepts_every_program_on_a_page(tmp_path: Path) -> None:
    # Programs for other brokers need packages that are not installed here.
    programs = [
        path for path in SNIPPETS.rglob("*.py") if "mqcore" in path.read_text() or path.parent.name == "eventmq"
    ]
    folders = sorted({path.parent for path in programs})
    for folder in folders:
        command = [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            f"--cache-dir={tmp_path}",
            *(str(path) for path in programs if path.parent == folder),
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_page_that_is_wrong_is_noticed(reader: Reader, tmp_path: Path) -> None:
    assert matches("a ... c", "a b c\n")
    assert not matches("a ... c", "a b\n")
    terminal = Terminal("echo ready; sleep 60", tmp_path, reader.environment)
    terminal.expect("ready")
    terminal.interrupt()
    with pytest.raises(AssertionError, match="expected:\nnever"):
        terminal.expect("never")
    terminal.kill()
    assert BLOCK.search("```sh\nmqcore\n```\n")
    assert shutil.which("bash")
