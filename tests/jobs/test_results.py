"""Results of jobs by id: from any program, later, and after a restart of the broker."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from job_processes import until_lines, working
from mqcore import errors
from mqcore.jobs import Jobs, JobStatus
from ports import free_ports
from served import serving, wait_until

pytestmark = pytest.mark.usefixtures("worker")


def test_another_program_gets_the_result_of_a_job_by_its_id(url: str, samples: Any) -> None:
    job = samples.add.enqueue(2, 3)
    assert job.result("10s") == 5
    with Jobs(url) as other:
        assert other.result(job.id) == 5
        fetched = other.fetch(job.id, samples.add)
        assert (fetched.result("5s"), fetched.name, fetched.queue) == (5, samples.add.name, "default")
        state = other.state(job.id)
    assert (state.status, state.queue) == (JobStatus.DONE, "default")
    assert state.expires is not None
    assert 3500 < state.expires.timestamp() - time.time() < 3601


def test_a_fetched_result_has_the_type_of_its_task(url: str, samples: Any) -> None:
    job = samples.total.enqueue([samples.Order("a", 1), samples.Order("b", 2)])
    job.result("10s")
    with Jobs(url) as other:
        assert other.result(job.id) == {"sku": "all", "count": 3}
        assert other.fetch(job.id, samples.total).result("5s") == samples.Order("all", 3)


def test_a_fetched_job_that_failed_raises_like_the_job_itself(url: str, samples: Any) -> None:
    for kind, raised in (("declared", samples.OutOfStock), ("value", errors.JobFailed)):
        job = samples.fail.enqueue(kind, "none left")
        with pytest.raises(raised, match="none left"):
            job.result("10s")
        with Jobs(url) as other:
            with pytest.raises(errors.JobFailed) as failed:
                other.result(job.id)
            assert "none left" in str(failed.value)
            assert "in fail" in failed.value.remote_traceback
            with pytest.raises(raised, match="none left"):
                other.fetch(job.id, samples.fail).result("5s")
            assert other.state(job.id).status is JobStatus.FAILED


def test_a_result_is_waited_for(url: str, samples: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = samples.hold.enqueue(str(tmp_path / "file"), str(gate))
    until_lines(tmp_path / "file", 1)
    with Jobs(url) as other:
        assert other.state(job.id).status is JobStatus.RUNNING
        fetched = other.fetch(job.id)
        with pytest.raises(errors.RequestTimeout, match="has not ended"):
            fetched.result("200ms")
        gate.touch()
        assert fetched.result("10s") == "released"


async def test_a_result_is_waited_for_in_an_event_loop(url: str, samples: Any) -> None:
    job = await samples.add.aenqueue(1, 1)
    with Jobs(url) as other:
        assert await other.fetch(job.id).aresult("10s") == 2


def test_an_unknown_job_has_no_result(samples: Any) -> None:
    with pytest.raises(errors.RequestTimeout, match="there is no such job"):
        samples.jobs.result("no-such-job", timeout="100ms")
    assert samples.jobs.state("no-such-job").status is JobStatus.UNKNOWN
    with pytest.raises(errors.InvalidArgument, match="1 to 255 bytes"):
        samples.jobs.result("")


def test_a_result_expires(samples: Any) -> None:
    job = samples.add.using(result_ttl="1s").enqueue(1, 1)
    assert job.result("10s") == 2
    assert samples.jobs.result(job.id) == 2
    wait_until(lambda: samples.jobs.state(job.id).status is JobStatus.UNKNOWN, what="the end of a result")
    with pytest.raises(errors.RequestTimeout, match="expired"):
        samples.jobs.result(job.id, timeout="100ms")
    assert job.result("1s") == 2, "this object has it"


def test_a_result_is_kept_only_if_it_is_wanted(samples: Any, tmp_path: Path) -> None:
    kept_not = samples.add.using(result_ttl=None).enqueue(1, 1)
    assert kept_not.result("10s") == 2
    assert samples.jobs.state(kept_not.id).status is JobStatus.UNKNOWN
    for ttl in ("900ms", "367d", -1):
        with pytest.raises(errors.ConfigError):
            samples.add.using(result_ttl=ttl)


def test_a_job_that_its_broker_does_not_keep_has_a_result_by_id(samples: Any) -> None:
    job = samples.fail.using(guarantee=False).enqueue("value", "no")
    with pytest.raises(errors.JobFailed):
        job.result("10s")
    assert samples.jobs.state(job.id).status is JobStatus.FAILED


def test_progress_can_be_read_by_id(samples: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = samples.tell_progress.enqueue(str(gate))
    wait_until(lambda: job.state().progress is not None, what="progress")
    progress = samples.jobs.state(job.id).progress
    assert (progress.fraction, progress.note, progress.id) == (0.5, "half of it", job.id)
    gate.touch()
    job.result("10s")
    assert job.state().progress is None


def test_results_survive_a_kill_of_the_broker(tmp_path: Path, tasks: Callable[[str], Any]) -> None:
    backend, frontend, admin = free_ports(3)
    url = f"emqp://127.0.0.1:{backend}?frontend={frontend}&admin={admin}"
    arguments = ("--listen", url + "&publish=0&subscribe=0", "--data-dir", str(tmp_path / "data"))
    with serving(*arguments) as served, working(url) as worker:
        samples = tasks(url)
        sent = [samples.add.enqueue(number, 1) for number in range(20)]
        assert [job.result("10s") for job in sent] == list(range(1, 21))
        cancelled = samples.add.using(queue="unserved").enqueue(1, 1)
        assert cancelled.cancel()
        served.process.send_signal(signal.SIGKILL)
        worker.process.send_signal(signal.SIGKILL)
    samples.jobs.close()
    with serving(*arguments):
        assert [samples.jobs.fetch(job.id, samples.add).result("10s") for job in sent] == list(range(1, 21))
        with pytest.raises(errors.JobCancelled):
            samples.jobs.result(cancelled.id)


def test_a_waiting_client_hears_the_result_after_a_restart_of_its_broker(
    tmp_path: Path, tasks: Callable[[str], Any]
) -> None:
    backend, frontend, admin = free_ports(3)
    url = f"emqp://127.0.0.1:{backend}?frontend={frontend}&admin={admin}"
    arguments = ("--listen", url + "&publish=0&subscribe=0", "--data-dir", str(tmp_path / "data"))
    gate = tmp_path / "gate"
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(*arguments))
        stack.enter_context(working(url))
        samples = tasks(url)
        job = samples.hold.enqueue(str(tmp_path / "file"), str(gate))
        until_lines(tmp_path / "file", 1)
        served.process.send_signal(signal.SIGKILL)
        with pytest.raises(errors.ConnectionLost):
            job.result("20s")
        stack.enter_context(serving(*arguments))
        gate.touch()
        assert job.result("30s") == "released"
