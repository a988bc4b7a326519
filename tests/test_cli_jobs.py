"""`mqcore worker` and `mqcore jobs`: unique jobs, progress, summaries, schedules, and the table on a terminal."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import programs
from job_processes import SAMPLES, WorkerProcess, broker_url, lines_of, until_lines, working
from mqcore import admin, errors
from mqcore.jobs import Jobs
from served import ServedBroker, clean_environment, serving, wait_until
from test_cli_terminal import ERASE_LINE, Terminal


@pytest.fixture
def served() -> Iterator[ServedBroker]:
    """A broker for jobs in a process of its own."""
    with serving("--listen", "emqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0") as broker:
        yield broker


@pytest.fixture
def url(served: ServedBroker) -> str:
    return broker_url(served)


def run(*arguments: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
    return programs.run(
        [sys.executable, "-m", "mqcore", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        env=clean_environment() | ({"MQCORE_JOBS_URL": url} if url else {}),
        cwd=SAMPLES,
    )


def enqueue(url: str, *arguments: str) -> None:
    """Send a job without waiting for its result."""
    sent = run("jobs", "enqueue", *arguments, url=url)
    assert (sent.returncode, sent.stdout) == (0, ""), sent.stderr
    assert re.fullmatch(r"sent \S+ to default\n", sent.stderr)


def last_line(worker: WorkerProcess) -> str:
    """The summary that a worker prints at its end."""
    wait_until(lambda: bool(worker.lines) and worker.lines[-1].endswith(" unfinished\n"), what="the summary")
    return worker.lines[-1]


# --- jobs -----------------------------------------------------------------------------------------------------


def test_result_is_printed_as_utf8_json(url: str) -> None:
    with working(url, "--pool", "thread", "--concurrency", "1", "--allow-import", "textwrap.*", app=None):
        done = run("jobs", "enqueue", "textwrap.dedent", "  café", "--wait", url=url)
        assert (done.returncode, done.stdout, done.stderr) == (0, '"café"\n', "")


def test_unique_key_rejects_a_second_job_and_equal_jobs_without_a_key_run(url: str, tmp_path: Path) -> None:
    gate, first, equal = (str(tmp_path / name) for name in ("gate", "first", "equal"))
    with working(url, "--pool", "thread", "--concurrency", "4"):
        enqueue(url, "sample_jobs.hold", first, gate, "--unique", "Monday")
        until_lines(Path(first), 1)
        rejected = run("jobs", "enqueue", "sample_jobs.add", "1", "--unique", "Monday", "--wait", url=url)
        assert (rejected.returncode, rejected.stdout) == (1, "")
        assert "Monday" in rejected.stderr
        for _ in range(2):
            enqueue(url, "sample_jobs.hold", equal, gate)
        assert [line.partition(" ")[0] for line in until_lines(Path(equal), 2)] == ["begin", "begin"]
        Path(gate).touch()
        until_lines(Path(equal), 4)


def test_progress_of_one_job_is_printed_as_lines(url: str, tmp_path: Path) -> None:
    end = tmp_path / "end"
    with working(url, "--pool", "thread", "--concurrency", "2"), Jobs(url) as sender:
        watched, other = (sender.send("sample_jobs.tell_progress_again", [str(end)]) for _ in range(2))
        watching = programs.Popen(
            [sys.executable, "-m", "mqcore", "jobs", "watch", watched.id, "--broker", url],
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        with watching:
            guard = threading.Timer(30, watching.kill)
            guard.start()
            try:
                assert watching.stdout is not None
                for _ in range(6):
                    line = watching.stdout.readline()
                    assert re.fullmatch(
                        rf"{re.escape(watched.id)}\tsample_jobs\.tell_progress_again\t[ \d]*\d%\tstep \d+\n", line
                    ), line
            finally:
                guard.cancel()
                watching.kill()
        end.touch()
        assert [watched.result(20), other.result(20)] == [None, None]


# --- workers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "wrong"),
    [
        ("mail:1000000000,bad:heavy", "bad:heavy"),
        ("mail:1000000001", "mail:1000000001"),
        ("mail:-1", "mail:-1"),
        ("mail,:5", ":5"),
    ],
)
def test_invalid_queue_of_a_worker_is_named(queues: str, wrong: str) -> None:
    result = run("worker", "sample_jobs:jobs", "--queues", queues)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"mqcore: Invalid value for --queues: invalid queue {wrong!r}; "
        "use NAME or NAME:WEIGHT with an integer weight (see: mqcore worker --help)\n"
    )


def test_worker_summarizes_its_jobs_every_ten_seconds_and_at_its_end(url: str) -> None:
    def summaries() -> list[str]:
        records = [json.loads(line) for line in worker.lines if line.startswith("{")]
        return [record["message"] for record in records if record["message"].endswith("/s")]

    with working(url, "--pool", "thread", "--concurrency", "2") as worker, Jobs(url) as sender:
        assert sender.send("sample_jobs.add", [1]).result(20) == 2
        with pytest.raises(errors.JobFailed, match="so be it"):
            sender.send("sample_jobs.fail", ["value", "so be it"]).result(20)
        wait_until(lambda: bool(summaries()), limit=30, what="the summary")
        # Two jobs in ten seconds, or a little more.
        assert summaries() == ["1 succeeded, 1 failed, 0 running, 0 waiting, 0.2/s"]
        assert sender.send("sample_jobs.add", [2]).result(20) == 3
        assert worker.terminate() == 0
        assert last_line(worker) == "2 succeeded, 1 failed, 0 retried, 0 rejected, 0 unfinished\n"
        assert len(summaries()) == 1


def test_worker_that_leaves_a_job_unfinished_ends_with_1(url: str, tmp_path: Path) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    with working(url, "--pool", "thread", "--concurrency", "1", "--drain-timeout", "200ms") as worker:
        enqueue(url, "sample_jobs.hold", str(trace), str(gate))
        until_lines(trace, 1)
        assert worker.terminate() == 1
        assert last_line(worker) == "0 succeeded, 0 failed, 0 retried, 0 rejected, 1 unfinished\n"
    assert len(lines_of(trace)) == 1


def test_worker_registers_its_schedules_unless_that_is_not_wanted(served: ServedBroker, url: str) -> None:
    options = ("--pool", "thread", "--concurrency", "1")
    with working(url, "--no-schedules", *options, app="scheduled_jobs:jobs") as worker:
        assert worker.terminate() == 0
    assert admin.schedules(served.admin_url).total == 0
    with working(url, *options, app="scheduled_jobs:jobs"):
        wait_until(lambda: admin.schedules(served.admin_url).total == 1, what="the schedule")


# --- a worker on a terminal -----------------------------------------------------------------------------------


def test_terminal_shows_running_jobs_in_a_table_that_is_erased(url: str, tmp_path: Path) -> None:
    end, trace, gate = (tmp_path / name for name in ("end", "trace", "gate"))
    arguments = ("worker", "sample_jobs:jobs", "--broker", url, "--pool", "thread", "--concurrency", "2")
    with Terminal(*arguments, cwd=SAMPLES) as terminal:
        terminal.wait_for("working  0 succeeded  0 failed  0 retried  0 waiting  0/s")
        assert json.loads(terminal.line())["event"] == "ready"
        enqueue(url, "sample_jobs.tell_progress", str(end))
        terminal.wait_for(r"\ntask +queue +attempt +seconds +progress")
        row = terminal.wait_for(r"\nsample_jobs\.tell_progress +default +1 +([1-9]\d*\.\d) +\S*━\S* +half of it")
        assert float(row[1]) < 60, "it has run for a second"
        end.touch()
        terminal.wait_for("working  1 succeeded  0 failed")
        enqueue(url, "sample_jobs.hold", str(trace), str(gate))
        until_lines(trace, 1)
        terminal.wait_for(r"\nsample_jobs\.hold +default +1 +\d+\.\d")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.wait_for("draining  1 succeeded  0 failed")
        gate.touch()
        assert terminal.end() == (0, "")
        assert terminal.text().endswith("2 succeeded, 0 failed, 0 retried, 0 rejected, 0 unfinished\n")
        assert ERASE_LINE in terminal.shown.rpartition(b"draining")[2]
        assert not re.search(r"  -\d+/s", terminal.text())


def test_terminal_shows_the_rate_of_the_last_second(url: str) -> None:
    arguments = ("worker", "sample_jobs:jobs", "--broker", url, "--pool", "thread", "--concurrency", "2")
    with Terminal(*arguments, cwd=SAMPLES) as terminal, Jobs(url) as sender:
        first = terminal.wait_for(r"working  0 succeeded  0 failed  0 retried  0 waiting  (\S+)/s")
        assert first[1] == "0"
        for number in range(20):
            sender.send("sample_jobs.add", [number])
            sender.send("sample_jobs.fail", ["value", "so be it"])
        ended = "working  20 succeeded  20 failed  0 retried  0 waiting  "
        terminal.wait_for(rf"(?s){ended}[1-9]\d*/s.*{ended}0/s")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end()[0] == 0
