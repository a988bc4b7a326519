"""Every command as users run it, against a real broker: exit code, data on stdout, JSON, suggestions, CPU time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import programs
from command_cases import CASES, ELSEWHERE, Case
from depth import sample
from job_processes import broker_url, working
from mqcore import QueueOptions, QueueStatus, admin, sync
from mqcore._core import AuthorityStore
from mqcore.cli import program
from mqcore.jobs import Jobs
from served import ROOT, clean_environment, serving, wait_until
from test_cli_messages import next_line, rest, running

LISTENERS = ("--listen", "tmqp://127.0.0.1:0", "--listen", "emqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
SAVING = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once", request_acknowledge=True)
SICK = QueueOptions(
    status=QueueStatus.ROUND_ROBIN, delivery_handler="at-least-once", request_acknowledge=True, put_back_limit=0
)


class World:
    """Brokers with some contents, the variables that name them, and the words that arguments contain."""

    def __init__(self, environment: dict[str, str], words: dict[str, str]) -> None:
        self.environment = environment
        self.words = words

    def text(self, template: str, number: int) -> str:
        """Fill in the words and the number of the run."""
        return template.replace("{n}", str(number)).format_map(self.words)

    def popen(self, command: str, **streams: Any) -> subprocess.Popen[bytes]:
        """Start `mqcore` with the arguments in `command`."""
        line = [sys.executable, "-m", "mqcore", *shlex.split(command)]
        return programs.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment() | self.environment,
            **streams,
        )

    def run(self, command: str, stdin: str = "") -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command."""
        with _ended(self.popen(command)) as process:
            stdout, stderr = process.communicate(stdin.encode())
            return process.returncode, stdout.decode(), stderr.decode()


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill a process at the end of the block, or after 30 s."""
    guard = threading.Timer(30, process.kill)
    guard.start()
    with process:
        try:
            yield process
        finally:
            guard.cancel()
            if process.poll() is None:
                process.kill()


def token_of(data_dir: Path) -> str:
    """A new token of a data directory, with all rights."""
    data_dir.mkdir(mode=0o700)
    _, token = AuthorityStore.of_data_dir(data_dir).add_token(json.dumps({"name": "all", "allow": ["*"]}))
    return token


def filled(url: str, token: str | None) -> None:
    """Make queues with messages, a traced message, and dead letters."""
    with sync.connect(url, token=token) as mq:
        mq.declare("shop", 1, QueueOptions(status=QueueStatus.PULL))
        mq.publish("shop/1", b"hello", id="traced")
        mq.publish_many("shop/1", [b"hello"] * 20)
        mq.declare("sick", 1, SICK)
        mq.publish_many("sick/1", [b"broken"] * 6)
        with mq.queue("sick", 1).consume() as messages:
            for message in (next(messages) for _ in range(6)):
                message.nack("broken")


def schedules(url: str, admin_url: str, token: str) -> list[str]:
    """Ids of two new schedules."""
    with Jobs(url, token=token) as jobs:

        @jobs.task(name="shop.count")
        def count() -> None:
            """Count the stock."""

        @jobs.task(name="shop.report")
        def report() -> None:
            """Write the report."""

        jobs.every("90s", count)
        jobs.every("80s", report)
        jobs.send_schedules()
        wait_until(lambda: admin.schedules(admin_url, token=token).total == 2, what="both schedules")
        return [schedule.id for schedule in admin.schedules(admin_url, token=token).schedules]


def stopped(data_dir: Path) -> None:
    """Leave the data directory of a broker that has stopped."""
    with serving("--data-dir", str(data_dir)) as broker:
        with sync.connect(broker.url) as mq:
            mq.declare("shop", 1, SAVING)
            mq.publish("shop/1", b"saved")
        assert broker.terminate() == 0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A broker with users, one with limits, a stopped one, and a store of users."""
    files = tmp_path_factory.mktemp("files")
    token = token_of(files / "data")
    store = AuthorityStore(str(files / "store"))
    words = {f"token_id_{n}": store.add_token(f'{{"name": "t{n}", "allow": ["*"]}}')[0] for n in (1, 2)}
    stopped(files / "stopped")
    (files / "handlers.py").write_text("import mqcore\napp = {'idle': mqcore.DeliveryHandler()}\n")
    app = ("--app", "handlers:app")
    arguments = (*LISTENERS, *app, "--auto-create", "--history", "--data-dir", str(files / "data"))
    with (
        serving(*arguments, environment={"PYTHONPATH": str(files)}) as broker,
        serving("--listen", "throttr://127.0.0.1:0") as limits,
    ):
        filled(broker.url, token)
        found = schedules(broker_url(broker), broker.admin_url, token)
        words |= {f"schedule_id_{n}": each for n, each in enumerate(found, 1)}
        words |= {"files": str(files), "store": str(files / "store"), "stopped": str(files / "stopped")}
        environment = {
            "MQCORE_URL": broker.url,
            "MQCORE_ADMIN": broker.admin_url,
            "MQCORE_TOKEN": token,
            "MQCORE_JOBS_URL": broker_url(broker),
            "MQCORE_LIMIT_URL": f"throttr://{limits.ready['listeners']['throttr']}",
            "XDG_CONFIG_HOME": str(files / "config"),
        }
        yield World(environment, words | {"output": str(files / "output")})


def commands() -> dict[str, click.Command]:
    """All commands by their path, such as `queue ls`."""

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None, name
                yield from walk(child, (*path, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield " ".join(path), command

    return dict(walk(program.root(), ()))


ALL = commands()


def outcome(world: World, command: str, case: Case, number: int, *options: str) -> tuple[int, str, str]:
    """Run a command with what it needs: exit code, stdout and stderr."""
    for before in case.before:
        code, stdout, stderr = world.run(world.text(before, number))
        # A second run finds what the first one made.
        assert code == 0 or re.search("exists|already", stderr), (before, stderr)
        Path(world.words["output"]).write_text(stdout)
    line = shlex.join([*shlex.split(f"{command} {world.text(case.arguments, number)}"), *options])
    with contextlib.ExitStack() as stack:
        if case.beside is not None:
            beside = stack.enter_context(_ended(world.popen(world.text(case.beside, number))))
            assert beside.stderr is not None
            assert beside.stderr.readline().startswith(b"receiving")
        if case.meanwhile is None:
            return world.run(line, case.stdin)
        process = stack.enter_context(_ended(world.popen(line)))
        assert process.stderr is not None
        first = process.stderr.readline()
        assert world.run(world.text(case.meanwhile, number))[0] == 0
        stdout_bytes, stderr_bytes = process.communicate()
        return process.returncode, stdout_bytes.decode(), (first + stderr_bytes).decode()


def check_text(stdout: str, stderr: str) -> None:
    """Check what holds for the output of every command that is not on a terminal."""
    assert "Traceback" not in stderr
    assert "internal error" not in stderr
    assert "\x1b" not in stdout + stderr, "no colors, because it is not a terminal"
    assert (stdout + stderr).strip(), "a command reports something"


def schemas(stdout: str) -> set[str]:
    """Schemas of a document, or of the lines of a stream."""
    try:
        return {json.loads(stdout)["schema"]}
    except ValueError:
        return {json.loads(line)["schema"] for line in stdout.splitlines()}


def schema_of(command: str) -> str | None:
    """Schema of the JSON of a command."""
    case = CASES[command]
    return f"mqcore.{command.replace(' ', '.')}/1" if case.schema == "" else case.schema or case.plain_schema


def test_every_command_has_a_case_or_a_reason() -> None:
    assert ALL.keys() == CASES.keys() | ELSEWHERE.keys()
    assert not CASES.keys() & ELSEWHERE.keys()
    with_json = {name for name, command in ALL.items() if any("--json" in each.opts for each in command.params)}
    assert with_json - ELSEWHERE.keys() == {name for name, case in CASES.items() if case.schema is not None}


@pytest.mark.parametrize("command", sample("commands", CASES, kind=lambda command: command.split()[0]))
def test_command_prints_data_on_stdout_and_messages_on_stderr(world: World, command: str) -> None:
    case = CASES[command]
    code, stdout, stderr = outcome(world, command, case, 1)
    assert code in case.codes, stderr
    check_text(stdout, stderr)
    if case.schema is None:
        assert case.plain_schema is None or schemas(stdout) == {case.plain_schema}
        return
    code, stdout, stderr = outcome(world, command, case, 2, "--json")
    assert code in case.codes, stderr
    check_text(stdout, stderr)
    assert schemas(stdout) == {schema_of(command)}


def test_schemas_are_unique_and_documented() -> None:
    found = {command: schema for command in CASES if (schema := schema_of(command)) is not None}
    shared = {schema for schema, count in Counter(found.values()).items() if count > 1}
    assert shared == {"mqcore.message/1"}, "consume and pull print the same messages"
    text = (ROOT / "docs" / "cli.md").read_text()
    listed = dict(re.findall(r"^\| `mqcore ([a-z -]+?)(?: --json)?`.*\| `(mqcore\.[a-z.-]+/\d+)` \|$", text, re.M))
    for command, schema in found.items():
        assert listed.get(command, f"mqcore.{command.replace(' ', '.')}/1") == schema, command


def test_exit_codes_are_documented() -> None:
    table = (ROOT / "docs" / "cli.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    documented = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for code in row.split(",")}
    assert {code for case in CASES.values() for code in case.codes} <= documented


def test_serve_prints_its_ready_line_only() -> None:
    with serving() as broker:
        assert broker.ready["event"] == "ready"
        assert broker.terminate() == 0
        assert broker.process.stdout is not None
        assert broker.process.stdout.read() == ""
        check_text("", "".join(broker.stderr_lines))


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_drain_reports_what_it_started(tmp_path: Path, options: tuple[str, ...]) -> None:
    token = token_of(tmp_path / "data")
    with serving("--admin", "http://127.0.0.1:0", "--data-dir", str(tmp_path / "data")) as broker:
        world = World({"MQCORE_ADMIN": broker.admin_url, "MQCORE_TOKEN": token}, {})
        code, stdout, stderr = world.run(shlex.join(["drain", "--yes", *options]))
        assert code == 0, stderr
        check_text(stdout, stderr)
        assert stdout == "" if not options else schemas(stdout) == {"mqcore.drain/1"}
        assert broker.process.wait(20) == 0


def test_worker_and_watch_print_data_until_a_signal(tmp_path: Path) -> None:
    with serving("--listen", "emqp://127.0.0.1:0") as served:
        url = broker_url(served)
        with working(url, "--pool", "thread") as worker, Jobs(url) as sender:
            assert worker.ready["event"] == "ready"
            for options in ((), ("--json",)):
                end = tmp_path / f"end{len(options)}"
                job = sender.send("sample_jobs.tell_progress_again", [str(end)])
                with running("jobs", "watch", job.id, "--broker", url, *options, url=url) as watching:
                    line = next_line(watching, "stdout")
                    watching.send_signal(signal.SIGINT)
                    code, _, stderr = rest(watching)
                end.touch()
                assert job.result(20) is None
                assert (code, stderr.strip()) == (130, "mqcore: interrupted")
                check_text(line, stderr)
                assert line.startswith(job.id) if not options else schemas(line) == {"mqcore.jobs.progress/1"}
            assert worker.terminate() == 0
            assert worker.process.stdout is not None
            assert worker.process.stdout.read() == ""
            wait_until(lambda: any("2 succeeded" in line for line in worker.lines), what="the summary")


# --- suggestions ----------------------------------------------------------------------------------------------


def doubled(word: str) -> str:
    """A word with its last letter twice, a common mistake."""
    return word + word[-1]


@pytest.mark.parametrize("command", ALL)
def test_mistyped_command_is_answered_with_the_right_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    *path, name = command.split()
    assert program.run([*path, doubled(name)]) == 2
    meant = " ".join(["mqcore", *path, name])
    assert f"unknown command '{doubled(meant)}'; did you mean '{meant}'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ALL)
def test_mistyped_option_is_answered_with_the_right_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [each.opts[0] for each in ALL[command].params if isinstance(each, click.Option)]
    for option in [*options, "--help"]:
        assert program.run([*command.split(), doubled(option)]) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"mqcore: No such option '{doubled(option)}'"), line
        assert f"'{option}'" in line.partition("Did you mean")[2], line


# --- speed ----------------------------------------------------------------------------------------------------

HELP_CPU_SECONDS = 0.1
EMPTY_CPU_SECONDS = 0.0125
"""CPU time of an interpreter that does nothing, on a machine on which the limit applies as it is."""
HELP_MODULES_MAX = 125


def cpu_seconds(*arguments: str) -> float:
    """User and system time of a Python program."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=clean_environment())
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs wait4")
def test_help_needs_at_most_100_ms_of_cpu_time() -> None:
    # In turns, so that both see the same load. A machine that starts an empty interpreter more slowly may take longer
    # for the help, too.
    pairs = [(cpu_seconds("-c", "pass"), cpu_seconds("-m", "mqcore", "--help")) for _ in range(5)]
    empty, help_text = (statistics.median(times) for times in zip(*pairs, strict=True))
    assert help_text <= HELP_CPU_SECONDS * max(1.0, empty / EMPTY_CPU_SECONDS), (empty, help_text)


def test_help_imports_few_modules() -> None:
    script = "import sys; from mqcore.cli.program import run; run(['--help']); print(len(sys.modules), file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(result.stderr) <= HELP_MODULES_MAX
