"""Pages that a reader follows: their programs and commands, in a clean directory and with real brokers.

Commands run as shells run them, with the `mqcore` of this environment. Ports are replaced by free ones, because tests
run at the same time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import new_user
from documented import BLOCK, Reader, Terminal, blocks, is_file, matches
from mqcore.cli.program import root
from ports import free_ports
from served import ROOT, clean_environment

PAGES = sorted((ROOT / "docs").rglob("*.md"))
SNIPPETS = ROOT / "docs" / "snippets"
OTHER_BROKERS = re.compile(r"^(?:import|from) (?:aio_pika|celery|faststream|redis)\b", re.MULTILINE)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader in a clean directory, with ports of its own."""
    if os.name == "nt":
        pytest.skip("the commands of the pages are for POSIX shells")
    tmqp, admin, throttr = free_ports(3)
    ports = {2622: tmqp, 2627: admin, 9000: throttr, 47290: _eventmq_port({tmqp, admin, throttr})}
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


def _eventmq_port(taken: set[int]) -> int:
    """A port whose neighbors, which an EventMQ listener takes too, are free."""
    for _ in range(1000):
        port = free_ports(1)[0]
        try:
            with contextlib.ExitStack() as stack:
                if not taken.isdisjoint(port + above for above in (0, 1, 3, 8, 9)):
                    continue
                for above in (1, 3, 8, 9):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + above))
        except OSError:
            continue
        return port
    raise RuntimeError("no free ports for EventMQ")


def test_first_message_is_sent_as_the_start_page_says(reader: Reader) -> None:
    reader.follow("index.md")
    assert reader.seconds["index.md"] < 120


@pytest.mark.timeout(300)
def test_tutorial_works_from_its_first_page_to_its_last(reader: Reader) -> None:
    for chapter in new_user.CHAPTERS:
        reader.follow(f"tutorial/{chapter}.md")
    assert sum(reader.seconds.values()) < 30 * 60


@pytest.mark.full("installs packages; the tests above follow the same pages in this environment")
@pytest.mark.timeout(600)
def test_new_user_sends_a_message_within_two_minutes_and_ends_the_tutorial_within_thirty(tmp_path: Path) -> None:
    if os.name == "nt" or not new_user.reachable():
        pytest.skip("pip cannot download packages")
    seconds = new_user.follow(new_user.pack(tmp_path), tmp_path)
    assert seconds.pop("index.md") < new_user.FIRST_MESSAGE_SECONDS_MAX
    assert sum(seconds.values()) < new_user.TUTORIAL_SECONDS_MAX


@pytest.mark.timeout(200)
@pytest.mark.parametrize("guide", ["rabbitmq", "redis", "celery", "faststream", "eventmq", "twino", "throttr"])
def test_migration_guide_works_as_its_page_shows(guide: str, reader: Reader) -> None:
    reader.follow(f"migrate/{guide}.md")


@pytest.mark.parametrize("guide", ["delay", "fan-out", "request"])
def test_how_to_guide_works_as_its_page_shows(guide: str, reader: Reader) -> None:
    reader.follow(f"howto/{guide}.md")


def test_every_how_to_guide_with_a_program_is_followed() -> None:
    guides = {path.stem for path in (ROOT / "docs" / "howto").glob("*.md")} - {"index"}
    (followed,) = test_how_to_guide_works_as_its_page_shows.pytestmark
    assert guides == set(followed.args[1])


def test_every_migration_guide_is_followed() -> None:
    guides = {path.stem for path in (ROOT / "docs" / "migrate").glob("*.md")} - {"index"}
    marks = test_migration_guide_works_as_its_page_shows.pytestmark
    (followed,) = [mark for mark in marks if mark.name == "parametrize"]
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


@pytest.mark.full("takes a second for each page; the tests above run the programs")
@pytest.mark.timeout(300)
def test_type_checker_accepts_every_program_on_a_page(tmp_path: Path) -> None:
    # Chapters of the tutorial continue the programs of earlier ones, in one directory.
    tutorial = [SNIPPETS / "tutorial" / chapter for chapter in new_user.CHAPTERS]
    others = {path.parent for path in SNIPPETS.rglob("*.py")} - set(tutorial)
    for folder in [*(chapter for chapter in tutorial if chapter.exists()), *sorted(others)]:
        target = tmp_path / ("tutorial" if folder in tutorial else folder.name)
        shutil.copytree(folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        # Programs for other brokers need packages that are not installed here.
        programs = [path.name for path in sorted(target.glob("*.py")) if OTHER_BROKERS.search(path.read_text()) is None]
        command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={tmp_path}", *programs]
        done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, f"{folder}\n{done.stdout}{done.stderr}"


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


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    """Place and arguments of each command `mqcore` in code of the documentation."""
    for page in [*PAGES, ROOT / "README.md"]:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(r"^```(sh|console)[^\n]*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            code = block[2].replace("\\\n", " ")
            for number, line in enumerate(code.splitlines(), text.count("\n", 0, block.start()) + 2):
                for part in re.split(r"\s*(?:\|\||&&|[|;])\s*", line.removeprefix("$ ")):
                    found = re.match(r"(?:[A-Z_]+=\S+ )*mqcore (.*)$", part)
                    if found and "..." not in part:
                        arguments = shlex.split(found[1].partition(" > ")[0].rstrip(" &"), comments=True)
                        yield f"{page.relative_to(ROOT)}:{number}: {part}", arguments


def complaint(arguments: list[str]) -> str | None:
    """The names and the number of arguments that a command does not have. Values are not looked at."""
    command: click.Command = root()
    context = click.Context(command, info_name="mqcore")
    while True:
        try:
            values, rest, _ = command.make_parser(context).parse_args(list(arguments))
        except click.UsageError as error:
            return error.format_message()
        if not isinstance(command, click.Group):
            break
        if not rest:
            return None
        inner = command.get_command(context, rest[0])
        if inner is None:
            return f"{context.command_path} has no command {rest[0]}"
        command, context, arguments = inner, click.Context(inner, parent=context, info_name=rest[0]), rest[1:]
    if {"help", "version"} & values.keys():
        return None
    missing = [
        parameter.human_readable_name
        for parameter in command.params
        if isinstance(parameter, click.Argument) and parameter.required and not values.get(parameter.name or "")
    ]
    return f"unexpected: {rest}, missing: {missing}" if rest or missing else None


def test_every_shown_command_has_arguments_that_the_program_knows() -> None:
    commands = list(shown_commands())
    assert len(commands) > 100
    wrong = [f"{place}: {text}" for place, arguments in commands if (text := complaint(arguments)) is not None]
    assert not wrong, "\n".join(wrong)


def test_unknown_arguments_of_shown_commands_are_noticed() -> None:
    assert complaint(["pull", "orders/1", "3"]) is not None
    assert complaint(["queue", "create", "orders/1", "--statsu", "push"]) is not None
    assert complaint(["nosuch"]) is not None
    assert complaint(["pull", "orders/1", "--count", "3"]) is None
