"""`mqcore worker` and `mqcore jobs`, as real programs."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import programs
from job_processes import SAMPLES, broker_url, lines_of, until_lines, working
from mqcore.cli.program import root
from mqcore.jobs import Jobs
from served import clean_environment, serving, wait_until


@pytest.fixture
def url() -> Iterator[str]:
    with serving("--listen", "emqp://127.0.0.1:0") as served:
        yield broker_url(served)


def mqcore(*arguments: str, url: str | None = None, cwd: Path = SAMPLES) -> subprocess.CompletedProcess[str]:
    where = ["--broker", url] if url is not None else []
    return programs.run(
        [sys.executable, "-m", "mqcore", *arguments, *where],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=clean_environment(),
        cwd=cwd,
    )


def one(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def test_a_job_is_sent_by_name_and_its_result_is_printed(url: str, tmp_path: Path) -> None:
    with working(url, "--pool", "thread", "--queues", "mail:3,default"):
        said = mqcore("jobs", "enqueue", "sample_jobs.add", "40", "--keyword", "right=2", "--wait", url=url)
        assert (said.returncode, said.stdout) == (0, "42\n"), said.stderr
        output = one(mqcore("jobs", "enqueue", "sample_jobs.add", "1", "--queue", "mail", "--wait", "--json", url=url))
        assert (output["schema"], output["result"], output["queue"]) == ("mqcore.jobs.result/1", 2, "mail")
        sent = one(mqcore("jobs", "enqueue", "sample_jobs.write", str(tmp_path / "trace"), "text", "--json", url=url))
        assert sent["schema"] == "mqcore.jobs.enqueue/1"
        assert until_lines(tmp_path / "trace", 1) == ["text"]


def test_a_job_that_does_not_end_well_ends_the_program_with_its_code(url: str) -> None:
    with working(url, "--pool", "thread"):
        for code, said, arguments in (
            (1, "ValueError: so be it", ("sample_jobs.fail", "value", "so be it")),
            (4, "permit it with", ("os.mkdir", "made")),
        ):
            result = mqcore("jobs", "enqueue", *arguments, "--wait", url=url)
            assert (result.returncode, result.stdout) == (code, "")
            assert said in result.stderr
            assert len(result.stderr.splitlines()) == 1
    late = mqcore("jobs", "enqueue", "sample_jobs.add", "1", "--wait", "--timeout", "300ms", url=url)
    assert late.returncode == 5
    assert "no worker has started it" in late.stderr


def test_status_and_workers_list_jobs_and_workers(url: str) -> None:
    with working(url, "--pool", "thread", "--queues", "mail:30,default", "--concurrency", "3") as worker:
        listed = one(mqcore("jobs", "workers", "--json", url=url))
        assert listed["workers"] == [
            {"worker": worker.ready["worker"], "queues": ["mail:30", "default:10"], "free": 3},
        ]
        assert mqcore("jobs", "enqueue", "sample_jobs.add", "1", "--wait", url=url).returncode == 0
        output = one(mqcore("jobs", "status", "--json", url=url))
        of = {row["queue"]: (row["waiting"], row["running"], row["done"]) for row in output["queues"]}
        assert of == {"default": (0, 0, 1), "mail": (0, 0, 0)}


def test_a_worker_that_cannot_work_says_why_in_one_line(url: str, tmp_path: Path) -> None:
    for said, arguments in (
        ("use MODULE:ATTR", ("sample_jobs",)),
        ("install the module", ("no_such_module:jobs",)),
        ("expected an mqcore.jobs.Jobs", ("sample_jobs:add",)),
        ("no tasks to run", ()),
        ("invalid queue", ("sample_jobs:jobs", "--queues", "mail:heavy")),
        ("invalid URL of a job broker", ("sample_jobs:jobs", "--broker", "http://127.0.0.1:1")),
    ):
        result = mqcore("worker", *arguments)
        assert result.returncode == 2
        assert said in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["status", "workers", "watch"])
def test_without_a_broker_a_command_reports_the_refused_connection_at_once(command: str) -> None:
    began = time.monotonic()
    result = mqcore("jobs", command, "--broker", "emqp://127.0.0.1:1")
    assert result.returncode == 5
    assert "cannot connect to the job broker at tcp://127.0.0.1:" in result.stderr
    assert "refused" in result.stderr
    assert time.monotonic() - began < 10, "half of the time that a slow broker has to answer"


def test_jobs_that_cannot_load_end_the_worker_instead_of_being_tried_for_ever(url: str, tmp_path: Path) -> None:
    # It loads in the worker, and in none of its processes.
    (tmp_path / "once.py").write_text(
        "import multiprocessing\nfrom mqcore.jobs import Jobs\njobs = Jobs()\n"
        "if multiprocessing.parent_process() is not None:\n    raise RuntimeError('not here')\n"
    )
    result = mqcore("worker", "once:jobs", url=url, cwd=tmp_path)
    assert result.returncode == 2
    assert "could not load once:jobs: RuntimeError: not here" in result.stderr.splitlines()[-1]


def test_processes_that_die_while_they_start_end_the_worker_after_the_third(url: str, tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(
        "import multiprocessing, os\nfrom mqcore.jobs import Jobs\njobs = Jobs()\n"
        "if multiprocessing.parent_process() is not None:\n    os._exit(3)\n"
    )
    result = mqcore("worker", "once:jobs", "--concurrency", "1", url=url, cwd=tmp_path)
    assert result.returncode == 2
    why = "3 worker processes in a row died while starting; the last one ended with code 3"
    assert why in result.stderr.splitlines()[-1]


def test_failed_starts_before_a_successful_one_do_not_count(url: str, tmp_path: Path) -> None:
    # Two of three processes die while they start; each process that works is ended by its first job.
    (tmp_path / "unsteady.py").write_text(
        "import multiprocessing, os\nfrom pathlib import Path\nfrom mqcore.jobs import Jobs, current\njobs = Jobs()\n"
        "starts = Path(__file__).with_name('starts')\n"
        "if multiprocessing.parent_process() is not None:\n"
        "    with starts.open('a') as file:\n        file.write('.')\n"
        "    if len(starts.read_text()) % 3:\n        os._exit(3)\n"
        "@jobs.task(name='unsteady.work')\ndef work() -> int:\n"
        "    if current().attempt == 1:\n        os._exit(4)\n    return len(starts.read_text())\n"
    )
    where = os.pathsep.join((str(tmp_path), str(SAMPLES)))
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.closing(Jobs(url)) as jobs,
    ):
        patch.setenv("PYTHONPATH", where)
        with working(url, "--pool", "process", "--concurrency", "1", app="unsteady:jobs") as worker:
            assert jobs.send("unsteady.work", result=True).result(40) == 6
            assert worker.process.poll() is None


def test_how_far_jobs_are_is_seen_by_python_and_on_the_command_line(url: str, tmp_path: Path) -> None:
    end = tmp_path / "end"
    with working(url, "--pool", "process", "--concurrency", "1"), Jobs(url) as sender:
        command = [sys.executable, "-m", "mqcore", "jobs", "watch", "--broker", url, "--json"]
        watching = programs.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment())
        try:
            job = sender.send("sample_jobs.tell_progress_again", [str(end)])
            # A watcher sees reports from its start on.
            output = next(sender.watch(job, "20s"))
            assert (output.id, output.task, output.attempt) == (job.id, "sample_jobs.tell_progress_again", 1)
            assert 0 < output.fraction < 1
            assert output.note.startswith("step ")
            assert watching.stdout is not None
            line = json.loads(watching.stdout.readline())
            assert (line["schema"], line["id"]) == ("mqcore.jobs.progress/1", job.id)
            end.touch()
            assert job.result(20) is None
            assert list(sender.watch("no such job", "200ms")) == []
            assert list(sender.watch(job)) == [], "it is done"
        finally:
            watching.kill()
            watching.communicate()


@contextlib.contextmanager
def shown_on_terminal(url: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[Any], Callable[[], bytes]]]:
    """A worker whose stderr is a terminal, and a function that returns what the terminal has received so far."""
    terminal, theirs = pty.openpty()
    worker = programs.Popen(
        [sys.executable, "-m", "mqcore", "worker", "sample_jobs:jobs", "--broker", url, "--pool", "thread", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=clean_environment() | {"COLUMNS": "120", "LINES": "50", "TERM": "xterm"},
        cwd=SAMPLES,
    )
    os.close(theirs)
    os.set_blocking(terminal, False)
    shown = bytearray()

    def received() -> bytes:
        # The other end of the terminal closes with the worker.
        with contextlib.suppress(OSError):
            shown.extend(os.read(terminal, 65536))
        return bytes(shown)

    try:
        yield worker, received
    finally:
        worker.kill()
        worker.wait()
        os.close(terminal)


def test_a_terminal_shows_what_runs_and_how_far_it_is(url: str, tmp_path: Path) -> None:
    end = tmp_path / "end"
    with shown_on_terminal(url) as (worker, received):

        def shows(text: bytes) -> bool:
            return text in received()

        sent = mqcore("jobs", "enqueue", "sample_jobs.tell_progress", str(end), url=url)
        assert sent.returncode == 0, sent.stderr
        wait_until(lambda: shows(b"half of it") and shows(b"sample_jobs.tell_progress"), limit=30, what="progress")
        end.touch()
        wait_until(lambda: shows(b"1 succeeded"), limit=30, what="the end of the job")
        worker.terminate()
        wait_until(lambda: shows(b"0 unfinished") or worker.poll() is not None, limit=20, what="the end")
    assert lines_of(end) == []


def test_terminal_lists_at_most_twenty_running_jobs(url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with shown_on_terminal(url, "--concurrency", "21") as (_, received), Jobs(url) as sender:
        for _ in range(21):
            sender.send("sample_jobs.hold", [str(tmp_path / "trace"), str(gate)])
        until_lines(tmp_path / "trace", 21)
        begin = len(received())

        def tables() -> list[bytes]:
            """The complete tables that the terminal has received since all jobs run."""
            return received()[begin:].split(b"working")[1:-1]

        wait_until(lambda: len(tables()) >= 2, limit=30, what="two tables")
        assert [table.count(b"sample_jobs.hold") for table in tables()[:2]] == [20, 20]
        gate.touch()


def test_signals_of_a_program_are_its_own_again_after_a_worker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def own(number: int, frame: object) -> None:
        raise AssertionError(f"signal {number}")

    monkeypatch.syspath_prepend(str(SAMPLES))
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, own) for number in numbers]

    def stop() -> None:
        wait_until(lambda: signal.getsignal(signal.SIGTERM) is not own, what="the worker's handler")
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        stopping = threading.Thread(target=stop)
        stopping.start()
        command = ["worker", "sample_jobs:jobs", "--broker", url, "--pool", "thread"]
        assert CliRunner().invoke(root(), command).exit_code == 0
        stopping.join()
        assert [signal.getsignal(number) for number in numbers] == [own, own]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_results_and_states_of_jobs_are_read_by_id(url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with working(url, "--pool", "thread", "--concurrency", "2"):
        job = one(mqcore("jobs", "enqueue", "sample_jobs.add", "40", "2", "--json", url=url))["id"]
        said = mqcore("jobs", "result", job, url=url)
        assert (said.returncode, said.stdout) == (0, "42\n"), said.stderr
        output = one(mqcore("jobs", "result", job, "--json", url=url))
        assert (output["schema"], output["id"], output["result"]) == ("mqcore.jobs.result/1", job, 42)
        state = one(mqcore("jobs", "state", job, "--json", url=url))
        assert (state["schema"], state["status"], state["queue"]) == ("mqcore.jobs.state/1", "done", "default")
        running = one(mqcore("jobs", "enqueue", "sample_jobs.tell_progress", str(gate), "--json", url=url))["id"]
        wait_until(lambda: "50%" in mqcore("jobs", "state", running, url=url).stdout, what="progress")
        shown = mqcore("jobs", "state", running, url=url).stdout.splitlines()
        assert shown == ["status\trunning", "queue\tdefault", "progress\t50% half of it"]
        gate.touch()
        failed = one(mqcore("jobs", "enqueue", "sample_jobs.fail", "value", "so be it", "--json", url=url))["id"]
        said = mqcore("jobs", "result", failed, url=url)
        assert (said.returncode, said.stdout) == (1, "")
        assert "ValueError: so be it" in said.stderr
        said = mqcore("jobs", "result", "no-such-job", "--timeout", "300ms", url=url)
        assert said.returncode == 5
        assert "there is no such job" in said.stderr
        assert mqcore("jobs", "state", "no-such-job", url=url).stdout == "status\tunknown\n"


def test_jobs_are_cancelled_by_id(url: str, tmp_path: Path) -> None:
    file, gate = tmp_path / "file", tmp_path / "gate"
    with working(url, "--concurrency", "2"):
        held = [
            one(mqcore("jobs", "enqueue", "sample_jobs.hold_stubbornly", str(file), str(gate), "--json", url=url))["id"]
            for _ in range(2)
        ]
        until_lines(file, 2)
        said = mqcore("jobs", "cancel", *held, url=url)
        assert (said.returncode, said.stderr.splitlines()) == (0, [f"cancelled {job}" for job in held])
        until_lines(file, 4)
        output = one(mqcore("jobs", "cancel", held[0], "--hard", "--json", url=url))
        assert (output["schema"], output["cancelled"]) == ("mqcore.jobs.cancel/1", True)
        assert "the job was cancelled" in mqcore("jobs", "result", held[0], url=url).stderr
        gate.touch()
        done = one(mqcore("jobs", "enqueue", "sample_jobs.add", "1", "--wait", "--json", url=url))["id"]
        said = mqcore("jobs", "cancel", done, url=url)
        assert (said.returncode, said.stderr) == (1, f"{done} has ended already\n")
    waits = one(mqcore("jobs", "enqueue", "sample_jobs.add", "1", "--queue", "later", "--json", url=url))["id"]
    said = mqcore("jobs", "cancel", waits, url=url)
    assert said.returncode == 2
    assert "name it with --queue" in said.stderr
    assert mqcore("jobs", "cancel", waits, "--queue", "later", url=url).returncode == 0
