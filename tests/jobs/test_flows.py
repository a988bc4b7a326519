"""Chains and groups of jobs, which the broker starts one after the other."""

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

pytestmark = pytest.mark.usefixtures("worker")


def test_each_job_of_a_chain_gets_the_result_of_the_one_before(samples: Any) -> None:
    flow = samples.add.bind(1, 2).then(samples.add, 10).then(samples.add, right=100)
    job = flow.enqueue()
    assert job.result("20s") == 113
    assert [step.result("5s") for step in job.steps] == [3, 13, 113]
    assert [samples.jobs.state(step.id).status for step in job.steps] == [JobStatus.DONE] * 3
    assert flow.enqueue().result("20s") == 113, "a flow can be sent again"


def test_results_keep_their_types_from_job_to_job(samples: Any) -> None:
    orders = [samples.Order("a", 1), samples.Order("b", 2)]
    group = samples.jobs.group([samples.total.bind(orders), samples.total.bind([])])
    assert group.then(samples.total).enqueue().result("20s") == samples.Order("all", 3)


@pytest.mark.parametrize("size", [0, 1, 50])
def test_a_group_gives_all_results_in_its_order(samples: Any, size: int) -> None:
    group = samples.jobs.group(samples.add.bind(number, 0) for number in range(size))
    assert len(group) == size
    assert group.enqueue().result("30s") == list(range(size))
    assert group.then(samples.add_up, start=5).enqueue().result("30s") == sum(range(size)) + 5


async def test_flows_work_in_an_event_loop(samples: Any) -> None:
    job = await samples.add_async.bind(1).then(samples.add_async, 2).aenqueue()
    assert await job == 4
    group = await samples.jobs.group(samples.add.bind(number) for number in range(3)).aenqueue()
    assert await group.aresult("10s") == [1, 2, 3]
    assert group.result("10s") == [1, 2, 3]


def test_chains_can_be_members_of_groups_and_follow_them(samples: Any) -> None:
    members = [samples.add.bind(1).then(samples.add, 10), samples.add.bind(2)]
    flow = samples.jobs.group(members).then(samples.add_up).then(samples.add, 1000)
    assert flow.enqueue().result("20s") == (1 + 1 + 10) + 3 + 1000
    with pytest.raises(errors.InvalidArgument, match="cannot contain a group"):
        samples.jobs.group([samples.jobs.group(members)])


def test_another_program_can_wait_for_a_flow(url: str, samples: Any) -> None:
    job = samples.add.bind(1).then(samples.add).enqueue()
    with Jobs(url) as other:
        assert other.result(job.id, "20s") == 3
        assert [other.result(step.id) for step in job.steps] == [2, 3]


def test_jobs_after_a_failed_one_do_not_run_and_end_with_its_error(samples: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    failing = samples.fail.bind("declared", "none left")
    job = failing.then(samples.write_result, str(file)).then(samples.write_result, str(file)).enqueue()
    with pytest.raises(errors.JobFailed, match="none left") as failed:
        job.result("20s")
    assert failed.value.remote_type == "sample_jobs.OutOfStock"
    assert failed.value.job_id == job.id
    with pytest.raises(samples.OutOfStock):
        job.steps[0].result("5s")
    group = samples.jobs.group([samples.add.bind(1), samples.fail.bind("value", "no")])
    with pytest.raises(errors.JobFailed, match="no"):
        group.then(samples.write_result, str(file)).enqueue().result("20s")
    time.sleep(0.2)
    assert not lines_of(file)


def test_a_job_that_fails_and_is_retried_does_not_end_its_chain(samples: Any, tmp_path: Path) -> None:
    job = samples.fail_twice.bind(str(tmp_path / "file")).then(samples.add, 10).enqueue()
    assert job.result("20s") == 13


def test_a_chain_begins_as_soon_as_its_queue_has_a_worker(url: str, samples: Any) -> None:
    add = samples.add.using(queue="later")
    job = add.bind(1).then(add).enqueue()
    assert [samples.jobs.state(step.id).status for step in job.steps] == [JobStatus.WAITING] * 2
    assert samples.jobs.state(job.id).queue == "later"
    with pytest.raises(errors.RequestTimeout):
        job.result("300ms")
    with working(url, "--queues", "later"):
        assert job.result("20s") == 3


def test_cancelling_a_flow_cancels_what_has_not_ended(samples: Any, tmp_path: Path) -> None:
    file, gate = tmp_path / "file", tmp_path / "gate"
    held = samples.hold_with_cleanup.bind(str(file), str(gate))
    job = held.then(samples.write_result, str(file)).enqueue()
    until_lines(file, 1)
    assert job.cancel()
    for step in job.steps:
        with pytest.raises(errors.JobCancelled):
            step.result("10s")
    assert until_lines(file, 2)[1] == "cleaned up"
    time.sleep(0.2)
    assert len(lines_of(file)) == 2


def test_cancelling_a_job_of_a_flow_cancels_those_that_follow(samples: Any, tmp_path: Path) -> None:
    file, gate = tmp_path / "file", tmp_path / "gate"
    held = samples.hold_with_cleanup.bind(str(file), str(gate))
    job = held.then(samples.write_result, str(file)).enqueue()
    until_lines(file, 1)
    assert samples.jobs.cancel(job.steps[0].id)
    with pytest.raises(errors.JobCancelled):
        job.result("10s")


def test_a_flow_survives_a_kill_of_its_worker(url: str, samples: Any, tmp_path: Path) -> None:
    file, gate = tmp_path / "file", tmp_path / "gate"
    held = samples.hold.using(queue="killed").bind(str(file), str(gate))
    with working(url, "--queues", "killed") as worker:
        job = held.then(samples.write_result, str(tmp_path / "after")).enqueue()
        until_lines(file, 1)
        os.kill(worker.process.pid, signal.SIGKILL)
    gate.touch()
    with working(url, "--queues", "killed"):
        assert job.result("20s") == "released"
    assert lines_of(tmp_path / "after") == ["released"]


def test_flows_that_could_not_continue_are_errors_at_once(samples: Any) -> None:
    with pytest.raises(errors.ConfigError, match="is unique"):
        samples.add.bind(1).then(samples.add.using(unique=True))
    with pytest.raises(errors.ConfigError, match="has no result"):
        samples.jobs.group([samples.add.using(result=False).bind(1)])
    with pytest.raises(errors.ConfigError, match="has no result"):
        samples.add.bind(1).then(samples.add.using(result_ttl=None))
    with pytest.raises(TypeError, match=r"sample_jobs\.nothing"):
        samples.add.bind(1).then(samples.nothing)
    with pytest.raises(errors.InvalidArgument, match="not a task"):
        samples.add.bind(1).then(print)
    with pytest.raises(errors.InvalidArgument, match="at most 10,000 jobs"):
        samples.jobs.group(samples.add.bind(1) for _ in range(10_001)).enqueue()


def test_a_large_group_ends(samples: Any) -> None:
    group = samples.jobs.group(samples.add.bind(1, 0) for _ in range(1_000))
    job = group.then(samples.add_up).enqueue()
    assert job.result("120s") == 1_000
    wait_until(lambda: samples.jobs.state(job.id).status is JobStatus.DONE, what="the end")
