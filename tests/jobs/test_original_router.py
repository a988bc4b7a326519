"""Our workers and clients on the original's router, unmodified: jobs run there as they do with its own workers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from job_processes import START_LIMIT, answers, lines_of, until_lines, working
from mqcore import errors
from mqcore.jobs import Jobs
from mqcore.jobs.client import ask
from ports import free_ports
from served import clean_environment, wait_until

pytestmark = pytest.mark.full("runs the original programs; their recorded dialogues are in test_eventmq_vectors.py")

Tasks = Callable[[str], Any]


@pytest.mark.parametrize("pool", ["process", "thread", "asyncio"])
def test_jobs_run_in_every_kind_of_pool(original: str, tasks: Tasks, tmp_path: Path, pool: str) -> None:
    trace = tmp_path / "trace"
    sample = tasks(original)
    with working(original, "--pool", pool, "--concurrency", "2") as worker:
        for number in range(20):
            sample.write.enqueue(str(trace), f"line {number}")
        assert sorted(until_lines(trace, 20)) == sorted(f"line {number}" for number in range(20))
        assert worker.terminate() == 0
    assert len(lines_of(trace)) == 20


def test_job_of_the_original_client_runs_if_a_pattern_allows_it(
    original: str, original_programs: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    frontend = original.split("frontend=")[1].split("&")[0]
    script = f"""
import sys
from eventmq.sender import Sender
from eventmq.client.messages import defer_job
sender = Sender()
sender.connect("tcp://127.0.0.1:{frontend}")
for call in (
    dict(func="legacy_tasks.write", args=({str(trace)!r}, "function")),
    dict(func="legacy_tasks._hidden", args=({str(trace)!r},)),
    dict(func="os.mkdir", args=({str(tmp_path / "made")!r},)),
    dict(func="legacy_tasks:Letter.write", class_args=("Hello",), args=({str(trace)!r}, "Ada")),
    dict(func="sample_jobs.write", args=({str(trace)!r}, "task")),
):
    assert defer_job(sender, **call)
# A socket that is closed takes with it what it has not sent.
sys.stdin.read()
"""
    with working(original, "--allow-import", "legacy_tasks*", "--concurrency", "1") as worker:
        client = subprocess.Popen(
            [str(original_programs / "python"), "-c", script],
            stdin=subprocess.PIPE,
            env=clean_environment() | {"EVENTMQ_WAL": str(tmp_path / "client-wal.log")},
            cwd=tmp_path,
        )
        assert until_lines(trace, 3) == ["function", "Hello, Ada", "task"]
        client.communicate(timeout=20)
        assert client.returncode == 0
        assert worker.terminate() == 0
    assert not (tmp_path / "made").exists()
    refused = [line for line in worker.lines if "rejected job" in line]
    assert ["_hidden" in refused[0], "os.mkdir" in refused[1]] == [True, True]


def test_a_job_that_fails_is_tried_again_by_the_worker(original: str, tasks: Tasks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with working(original, "--concurrency", "1"):
        tasks(original).fail_twice.enqueue(str(trace))
        assert until_lines(trace, 3) == ["attempt 1", "attempt 2", "attempt 3"]


def test_a_job_whose_process_is_killed_is_run_again(original: str, tasks: Tasks, tmp_path: Path) -> None:
    trace, mark = tmp_path / "trace", tmp_path / "mark"
    with working(original, "--concurrency", "1") as worker:
        sample = tasks(original)
        sample.die_once.enqueue(str(mark))
        sample.write.enqueue(str(trace), "after it")
        assert until_lines(trace, 1) == ["after it"]
        sample.sleep.enqueue(str(trace), 3)
        began = until_lines(trace, 2)[1]
        os.kill(int(began.split()[1]), signal.SIGKILL)
        assert until_lines(trace, 4)[2].startswith("begin")
        wait_until(lambda: any("ended by SIGKILL" in line for line in worker.lines))


def test_draining_loses_no_job(original: str, tasks: Tasks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    sample = tasks(original)
    sent = 60
    with working(original, "--concurrency", "2", "--prefetch", "8") as first:
        for number in range(sent):
            sample.write.enqueue(str(trace), f"line {number}")
        until_lines(trace, 10)
        assert first.terminate() == 0
    with working(original, "--concurrency", "2"):
        assert sorted(until_lines(trace, sent)) == sorted(f"line {number}" for number in range(sent))


def test_a_worker_joins_again_after_the_router_was_away(original_programs: Path, tasks: Tasks, tmp_path: Path) -> None:

    backend, frontend, admin = free_ports(3)
    environment = clean_environment() | {
        "EVENTMQ_BACKEND_ADDR": f"tcp://127.0.0.1:{backend}",
        "EVENTMQ_FRONTEND_ADDR": f"tcp://127.0.0.1:{frontend}",
        "EVENTMQ_ADMINISTRATIVE_ADDR": f"tcp://127.0.0.1:{admin}",
        "EVENTMQ_WAL": str(tmp_path / "wal.log"),
    }
    url = f"emqp://127.0.0.1:{backend}?frontend={frontend}"
    trace = tmp_path / "trace"

    def router() -> subprocess.Popen[bytes]:
        started = subprocess.Popen(
            [str(original_programs / "emq-router")],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
        )
        wait_until(lambda: answers(frontend) and answers(backend), limit=START_LIMIT, what="the router")
        return started

    first = router()
    try:
        with working(url, "--concurrency", "1") as worker:
            sample = tasks(url)
            sample.write.enqueue(str(trace), "one")
            until_lines(trace, 1)
            first.kill()
            first.wait()
            wait_until(lambda: any("retrying" in line for line in worker.lines))
            first = router()
            sample.write.enqueue(str(trace), "two")
            assert until_lines(trace, 2) == ["one", "two"]
            assert worker.terminate() == 0
    finally:
        first.kill()
        first.wait()


def test_a_result_that_the_original_keeps_to_itself_is_waited_for_only_so_long(original: str, tasks: Tasks) -> None:
    with working(original, "--concurrency", "1"):
        job = tasks(original).add.enqueue(1, right=2)
        with pytest.raises(errors.RequestTimeout, match="no result of job"):
            job.result(timeout=1)


def test_a_schedule_runs_until_it_is_ended(
    original: str, original_programs: Path, tasks: Tasks, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    frontend = original.split("frontend=")[1].split("&")[0]
    scheduler = subprocess.Popen(
        [str(original_programs / "emq-scheduler")],
        env=clean_environment()
        | {
            "EVENTMQ_SCHEDULER_ADDR": f"tcp://127.0.0.1:{frontend}",
            # It needs Redis unless this variable is set.
            "EVENTMQ_REDIS_STARTUP_ERROR_HARD_KILL": "false",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    try:
        with working(original, "--pool", "thread"), Jobs(original) as jobs:
            there = jobs.addresses.admin
            wait_until(
                lambda: b"hb" in ask(there, b"ROUTER_SHOW_SCHEDULERS", 5.0), limit=START_LIMIT, what="the scheduler"
            )
            schedule = jobs.every("1s", tasks(original).write.bind(str(trace), "tick"))
            assert jobs.send_schedules() == 1
            until_lines(trace, 3)
            jobs.unschedule(schedule)
            assert jobs.schedules == ()
            # It says nothing to that; what is sent after it arrives after it.
            before = -1
            while before != len(lines_of(trace)):
                before = len(lines_of(trace))
                time.sleep(2.5)
    finally:
        scheduler.kill()
        scheduler.wait()
