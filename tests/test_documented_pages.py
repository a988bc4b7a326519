"""Pages that a reader follows: their programs and commands, in a clean directory and with real brokers.

Commands run as shells run them, with the `mqcore` of this environment. Ports are replaced by free ones, because tests
run at the same time.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
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
    tmqp, admin = free_ports(2)
    environment = clean_environment()
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}",
        "MQCORE_LISTEN": f"tmqp://127.0.0.1:{tmqp}",
        "MQCORE_URL": f"tmqp://127.0.0.1:{tmqp}",
        "PYTHONUNBUFFERED": "1",
    }
    found = Reader(
        tmp_path, environment, {"127.0.0.1:2622": f"127.0.0.1:{tmqp}", "127.0.0.1:2627": f"127.0.0.1:{admin}"}
    )
    yield found
    found.close()


def test_first_message_is_sent_as_the_start_page_says(reader: Reader) -> None:
    reader.follow("index.md")
    assert reader.seconds["index.md"] < 120


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
def test_type_checker_accepts_every_program_on_a_page() -> None:
    folders = sorted({path.parent for path in SNIPPETS.rglob("*.py")})
    for folder in folders:
        command = [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            *map(str, sorted(folder.glob("*.py"))),
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
