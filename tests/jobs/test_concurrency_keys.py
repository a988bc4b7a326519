"""Limits on the jobs of a key that run at a time, on all workers together."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from job_processes import lines_of, until_lines, working
from mqcore import errors


def most_at_once(lines: list[str]) -> int:
    """The largest number of jobs that ran at a time."""
    running = most = 0
    for line in lines:
        running += 1 if line.startswith("begin") else -1
        most = max(most, running)
    return most


@pytest.mark.parametrize("most", [1, 3])
def test_at_most_as_many_jobs_of_a_key_run_on_all_workers(url: str, samples: Any, tmp_path: Path, most: int) -> None:
    queue = f"limited-{most}"
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(working(url, "--queues", queue, "--concurrency", "4", "--pool", "thread"))
        task = samples.work.using(queue=queue, concurrency_key="api", concurrency=most)
        sent = [task.enqueue(str(tmp_path / "api"), str(number), 0.1) for number in range(12)]
        free = samples.work.using(queue=queue)
        others = [free.enqueue(str(tmp_path / "free"), str(number), 0.3) for number in range(4)]
        other_key = samples.work.using(queue=queue, concurrency_key="other")
        others.append(other_key.enqueue(str(tmp_path / "other"), "0", 0.1))
        for job in [*others, *sent]:
            job.result("60s")
    assert most_at_once(lines_of(tmp_path / "api")) == most
    assert len(lines_of(tmp_path / "api")) == 24, "each ran once"
    assert most_at_once(lines_of(tmp_path / "free")) > 1, "jobs without a key pass them"


def test_a_retry_and_a_lost_worker_make_room(url: str, samples: Any, tmp_path: Path) -> None:
    options = {"queue": "lost", "concurrency_key": "one"}
    file, gate = tmp_path / "file", tmp_path / "gate"
    with working(url, "--queues", "lost", "--concurrency", "2") as worker:
        held = samples.hold.using(**options).enqueue(str(file), str(gate))
        until_lines(file, 1)
        failing = samples.fail_twice.using(**options).enqueue(str(tmp_path / "attempts"))
        with pytest.raises(errors.RequestTimeout):
            failing.result("500ms")
        assert not lines_of(tmp_path / "attempts")
        os.kill(worker.process.pid, signal.SIGKILL)
    gate.touch()
    with working(url, "--queues", "lost", "--concurrency", "2"):
        assert failing.result("30s") == 3, "waiting for room is not an attempt"
        assert held.result("30s") == "released"
    assert lines_of(tmp_path / "attempts") == ["attempt 1", "attempt 2", "attempt 3"]


def test_a_job_that_waits_for_room_can_be_cancelled(url: str, samples: Any, tmp_path: Path) -> None:
    options = {"queue": "cancelled", "concurrency_key": "one"}
    file, gate = tmp_path / "file", tmp_path / "gate"
    with working(url, "--queues", "cancelled", "--concurrency", "2"):
        held = samples.hold.using(**options).enqueue(str(file), str(gate))
        until_lines(file, 1)
        waits = samples.write.using(**options).enqueue(str(tmp_path / "never"), "text")
        assert waits.cancel()
        with pytest.raises(errors.JobCancelled):
            waits.result("10s")
        gate.touch()
        assert held.result("20s") == "released"
        assert samples.add.using(**options).enqueue(1, 1).result("20s") == 2
    assert not lines_of(tmp_path / "never")


def test_invalid_limits_are_errors(samples: Any) -> None:
    for options in (
        {"concurrency": 0},
        {"concurrency": 1_000_001},
        {"concurrency_key": ""},
        {"concurrency_key": "k" * 256},
    ):
        with pytest.raises(errors.ConfigError, match="concurrency"):
            samples.add.using(**options)
