"""Cancelling jobs that wait, run, or have ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from job_processes import lines_of, until_lines, working
from mqcore import errors
from mqcore.jobs import Jobs, JobStatus
from served import wait_until


def waiting(samples: Any, queue: str) -> int:
    """How many jobs wait in a queue."""
    return int(samples.jobs.status()["waiting_messages_by_queue"].get(queue, 0))


def test_a_cancelled_job_that_waits_is_removed_and_never_runs(url: str, samples: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    write = samples.write.using(queue="removed")
    sent = [write.enqueue(str(file), name) for name in "abc"]
    wait_until(lambda: waiting(samples, "removed") == 3, what="three jobs")
    with Jobs(url) as other:
        assert other.cancel(sent[1].id, queue="removed")
        assert other.cancel(sent[1].id, queue="removed"), "it stays cancelled"
        with pytest.raises(errors.JobCancelled):
            other.result(sent[1].id)
    wait_until(lambda: waiting(samples, "removed") == 2, what="two jobs")
    with pytest.raises(errors.JobCancelled) as cancelled:
        sent[1].result("10s")
    assert cancelled.value.job_id == sent[1].id
    with working(url, "--queues", "removed"):
        assert [job.result("20s") for job in (sent[0], sent[2])] == [1, 1]
    assert sorted(lines_of(file)) == ["a", "c"]


def test_the_key_of_a_cancelled_unique_job_is_free_again(samples: Any, tmp_path: Path) -> None:
    write = samples.write.using(queue="keys", unique="one")
    first = write.enqueue(str(tmp_path / "file"), "a")
    wait_until(lambda: waiting(samples, "keys") == 1, what="a job that is saved")
    with pytest.raises(errors.JobDuplicate):
        write.enqueue(str(tmp_path / "file"), "b").result("10s")
    assert first.cancel()
    wait_until(lambda: waiting(samples, "keys") == 0, what="an empty queue")
    second = write.enqueue(str(tmp_path / "file"), "c")
    with pytest.raises(errors.RequestTimeout):
        second.result("300ms")


@pytest.mark.parametrize("pool", ["process", "thread", "asyncio"])
def test_a_running_job_is_asked_to_end_and_its_siblings_continue(
    url: str, samples: Any, tmp_path: Path, pool: str
) -> None:
    queue, gate = f"soft-{pool}", tmp_path / "gate"
    files = [tmp_path / name for name in "ab"]
    task = samples.hold_async if pool == "asyncio" else samples.hold_with_cleanup
    with working(url, "--queues", queue, "--concurrency", "2", "--pool", pool) as worker:
        cancelled, sibling = (task.using(queue=queue, retries=3).enqueue(str(file), str(gate)) for file in files)
        for file in files:
            until_lines(file, 1)
        children = worker.children()
        assert cancelled.cancel()
        with pytest.raises(errors.JobCancelled):
            cancelled.result("10s")
        assert until_lines(files[0], 2)[1] == "cleaned up"
        gate.touch()
        assert sibling.result("10s") == "released"
        assert worker.children() == children, "no process was killed"
        assert lines_of(files[0])[1:] == ["cleaned up"]
        assert samples.jobs.state(cancelled.id).status is JobStatus.CANCELLED


def test_a_blocking_call_is_interrupted(url: str, samples: Any, tmp_path: Path) -> None:
    with working(url, "--queues", "blocking"):
        job = samples.sleep.using(queue="blocking").enqueue(str(tmp_path / "file"), 30)
        until_lines(tmp_path / "file", 1)
        before = time.monotonic()
        assert job.cancel()
        with pytest.raises(errors.JobCancelled):
            job.result("10s")
        assert samples.who.using(queue="blocking").enqueue().result("10s"), "the slot is free"
        assert time.monotonic() - before < 10


def test_a_job_that_ignores_the_request_is_killed_and_its_siblings_continue(
    url: str, samples: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    files = [tmp_path / name for name in "ab"]
    with working(url, "--queues", "hard", "--concurrency", "2") as worker:
        stubborn = samples.hold_stubbornly.using(queue="hard", retries=2).enqueue(str(files[0]), str(gate))
        sibling = samples.hold.using(queue="hard").enqueue(str(files[1]), str(gate))
        for file in files:
            until_lines(file, 1)
        process = int(lines_of(files[0])[0].split()[1])
        assert stubborn.cancel()
        until_lines(files[0], 2)
        assert process in worker.children()
        with Jobs(url) as other:
            assert other.cancel(stubborn.id, hard=True), "its queue is known while it runs"
        wait_until(lambda: not Path(f"/proc/{process}").exists(), what="the end of the process")
        with pytest.raises(errors.JobCancelled):
            stubborn.result("10s")
        gate.touch()
        assert sibling.result("10s") == "released"
        assert len(lines_of(files[0])) == 2, "it ran once"


def test_a_cancelled_job_whose_worker_dies_does_not_run_again(url: str, samples: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with working(url, "--queues", "dying", "--concurrency", "1") as worker:
        job = samples.hold_stubbornly.using(queue="dying", retries=5).enqueue(str(file), str(tmp_path / "gate"))
        until_lines(file, 1)
        assert job.cancel()
        until_lines(file, 2)
        os.kill(worker.process.pid, signal.SIGKILL)
    with working(url, "--queues", "dying", "--concurrency", "1"):
        assert samples.who.using(queue="dying").enqueue().result("20s"), "jobs behind it run"
    assert [line.split()[0] for line in lines_of(file)] == ["begin", "asked"]
    with pytest.raises(errors.JobCancelled):
        job.result("10s")


def test_a_job_that_waits_for_its_retry_can_be_cancelled(url: str, samples: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with working(url, "--queues", "retried"):
        job = samples.fail_and_tell_the_time.using(queue="retried").enqueue(str(file))
        until_lines(file, 1)
        assert job.cancel()
        with pytest.raises(errors.JobCancelled):
            job.result("10s")
        time.sleep(2)
    assert len(lines_of(file)) == 1


def test_a_job_that_has_ended_is_not_cancelled(url: str, samples: Any) -> None:
    with working(url, "--queues", "ended"):
        done = samples.add.using(queue="ended").enqueue(1, 1)
        assert done.result("20s") == 2
        assert not done.cancel()
        assert not done.cancel(hard=True)
        assert not samples.jobs.cancel(done.id)
        assert samples.jobs.result(done.id) == 2
        failed = samples.fail.using(queue="ended").enqueue("value", "no")
        with pytest.raises(errors.JobFailed):
            failed.result("10s")
        assert not failed.cancel()


async def test_a_job_is_cancelled_in_an_event_loop(samples: Any, tmp_path: Path) -> None:
    job = await samples.write.using(queue="loop").aenqueue(str(tmp_path / "file"), "a")
    assert await job.acancel()
    with pytest.raises(errors.JobCancelled):
        await job.aresult("10s")


def test_the_queue_of_a_waiting_job_must_be_named(samples: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="name it, such as queue='default'"):
        samples.jobs.cancel("no-such-job")
