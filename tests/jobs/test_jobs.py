"""Jobs from end to end: our clients, our broker in a process of its own, our workers in others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from depth import FULL, choices
from job_processes import broker_url, lines_of, until_lines, working
from mqcore import errors
from mqcore.jobs import Jobs
from served import serving, wait_until

Tasks = Callable[[str], Any]

POOLS = ["process", "thread", "asyncio"]


@contextlib.contextmanager
def broker(*arguments: str) -> Iterator[str]:
    with serving("--listen", "emqp://127.0.0.1:0", *arguments) as served:
        yield broker_url(served)


@pytest.fixture
def url() -> Iterator[str]:
    """A broker that speaks EventMQ; where its workers connect."""
    with broker() as found:
        yield found


@pytest.fixture(params=POOLS if FULL else [choices(__name__).choice(POOLS)])
def sample(request: pytest.FixtureRequest, url: str, tasks: Tasks) -> Iterator[Any]:
    """The tasks, with a worker that runs them, in every kind of pool; in a random one at reduced depth."""
    with working(url, "--pool", request.param, "--concurrency", "2"):
        yield tasks(url)


@pytest.fixture(params=POOLS)
def sample_in_every_pool(request: pytest.FixtureRequest, url: str, tasks: Tasks) -> Iterator[Any]:
    with working(url, "--pool", request.param, "--concurrency", "2"):
        yield tasks(url)


def test_result_returns_to_the_sender_as_the_tasks_return_type(sample_in_every_pool: Any) -> None:
    sample = sample_in_every_pool
    assert sample.add.enqueue(1, right=2).result(20) == 3
    delayed = sample.add.delay(4)
    assert delayed.result(20) == 5
    assert repr(delayed) == f"<job {delayed.id}, sample_jobs.add, ended>"
    assert sample.add_async.enqueue(1, 3).result(20) == 4
    total = sample.total.enqueue([sample.Order("a", 2), sample.Order("b", 3)]).result(20)
    assert total == sample.Order("all", 5)


async def test_results_are_awaited_in_an_event_loop(sample: Any) -> None:
    jobs = [await sample.add.aenqueue(number) for number in range(50)]
    assert await asyncio.gather(*jobs) == [number + 1 for number in range(50)]
    assert await jobs[0].aresult("1s") == 1


def test_an_exception_that_is_declared_is_raised_as_itself_and_others_as_failures(sample: Any) -> None:
    with pytest.raises(sample.OutOfStock, match="no A-100") as declared:
        sample.fail.enqueue("declared", "no A-100").result(20)
    assert isinstance(declared.value.__cause__, errors.JobFailed)
    with pytest.raises(errors.JobFailed, match="ValueError: so be it") as failed:
        sample.fail.enqueue("value", "so be it").result(20)
    assert failed.value.remote_type == "ValueError"
    assert "in fail" in failed.value.remote_traceback


def test_arguments_that_do_not_fit_fail_the_job_and_say_which(sample: Any) -> None:
    sender = sample.jobs
    with pytest.raises(errors.JobFailed, match="right") as failed:
        sender.send("sample_jobs.add", [1], {"right": "two"}).result(20)
    assert failed.value.remote_type == "mqcore.errors.BodyError"
    with pytest.raises(errors.JobFailed, match="do not match the task"):
        sender.send("sample_jobs.add", [1, 2, 3]).result(20)
    # The first of four retries would come after a second, the last after 15.
    with pytest.raises(errors.JobFailed, match="right"):
        sender.send("sample_jobs.add", [1], {"right": "two"}, retries=4).result(10)
    with pytest.raises(TypeError, match=r"sample_jobs\.add"):
        sample.add.enqueue(1, 2, 3)
    with pytest.raises(errors.InvalidArgument, match="JSON"):
        sample.add.enqueue(object())


def test_a_soft_limit_lets_a_job_end_in_order(sample_in_every_pool: Any, tmp_path: Path) -> None:
    sample, trace = sample_in_every_pool, tmp_path / "trace"
    # In a thread, a call that waits is not interrupted; it hears of its limit when it comes back.
    assert sample.sleep_softly.enqueue(str(trace), 1).result(20) == "ended in order"
    with pytest.raises(errors.JobTimeout, match="soft time limit"):
        sample.sleep_softly_async.enqueue(str(trace), 30).result(20)
    assert lines_of(trace) == ["asked to end", "cleaned up"]


def test_a_job_beyond_its_limit_is_ended_and_its_slot_is_free(sample: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    late = [sample.sleep_too_long.enqueue(str(trace), 2), sample.sleep_too_long_async.enqueue(str(trace), 30)]
    for job in late:
        with pytest.raises(errors.JobTimeout, match=r"exceeded its time limit of 0\.3 s"):
            job.result(20)
    jobs = [sample.add.enqueue(number) for number in range(4)]
    assert [job.result(20) for job in jobs] == [1, 2, 3, 4]


def test_a_job_that_fails_is_tried_again_after_its_backoff(sample: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    assert sample.fail_twice.enqueue(str(trace)).result(20) == 3
    assert lines_of(trace) == ["attempt 1", "attempt 2", "attempt 3"]
    with pytest.raises(errors.JobFailed, match="attempt 1"):
        sample.fail_twice.using(retries=0).enqueue(str(trace)).result(20)


def test_a_job_waits_for_its_time(sample: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    much_later = sample.write.using(run_after="1h").enqueue(str(trace), "much later")
    began = time.monotonic()
    later = sample.write.using(run_after="700ms").enqueue(str(trace), "later")
    sample.write.enqueue(str(trace), "now").result(20)
    later.result(20)
    assert time.monotonic() - began >= 0.7
    assert sorted(lines_of(trace)) == ["later", "now"]
    assert not much_later.is_done


def test_job_without_task_is_rejected_before_any_import(sample: Any, tmp_path: Path) -> None:
    for name in ("os.mkdir", "legacy_tasks.write", "sample_jobs.note"):
        with pytest.raises(errors.JobRefused, match="permit it with"):
            sample.jobs.send(name, [str(tmp_path / "made")]).result(20)
    assert not (tmp_path / "made").exists()


def test_patterns_open_what_they_name_and_nothing_else(url: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with working(url, "--allow-import", "legacy_tasks.*", app=None), Jobs(url) as sender:
        sender.send("legacy_tasks.write", [str(trace), "allowed"]).result(20)
        for name in ("legacy_tasks._hidden", "sample_jobs.write"):
            with pytest.raises(errors.JobRefused):
                sender.send(name, [str(trace), "refused"]).result(20)
    assert lines_of(trace) == ["allowed"]


def test_a_process_that_dies_with_a_job_is_replaced_and_the_job_run_again_but_not_for_ever(
    url: str, tasks: Tasks, tmp_path: Path
) -> None:
    with working(url, "--concurrency", "1") as worker:
        sample = tasks(url)
        assert sample.die_once.enqueue(str(tmp_path / "once")).result(20) == "lived"
        with pytest.raises(errors.JobLost, match="ended by SIGKILL"):
            sample.die.enqueue(str(tmp_path / "always")).result(20)
        assert lines_of(tmp_path / "always") == ["died", "died"]
        assert sample.who.enqueue().result(20) in worker.children()
        assert worker.terminate() == 0


def test_an_attempt_whose_process_died_counts(url: str, tasks: Tasks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with working(url, "--concurrency", "1"):
        assert tasks(url).die_then_fail.enqueue(str(trace)).result(20) == 3
    assert lines_of(trace) == ["attempt 1", "attempt 2", "attempt 3"]


def test_unique_job_waits_or_runs_once_across_senders(url: str, tasks: Tasks, tmp_path: Path) -> None:
    sample = tasks(url)
    with working(url, "--concurrency", "2") as worker, Jobs(url) as other:
        gate = tmp_path / "gate"
        once = sample.hold.using(unique=True)
        running = once.enqueue(str(tmp_path / "a"), str(gate))
        until_lines(tmp_path / "a", 1)
        with pytest.raises(errors.JobDuplicate, match="has a message with the unique key"):
            once.enqueue(str(tmp_path / "a"), str(gate)).result(20)
        other_arguments = once.enqueue(str(tmp_path / "b"), str(tmp_path))
        assert other_arguments.result(20) == "released", "other arguments are another job"
        by_key = {"queue": "default", "unique": "report, of Monday"}
        report = other.send("sample_jobs.hold", [str(tmp_path / "c"), str(gate)], **by_key)
        until_lines(tmp_path / "c", 1)
        with pytest.raises(errors.JobDuplicate, match="Monday"):
            sample.add.using(unique="report, of Monday").enqueue(1).result(20)
        gate.touch()
        assert [running.result(20), report.result(20)] == ["released", "released"]
        assert sample.add.using(unique="report, of Monday").enqueue(1).result(20) == 2
        assert worker.terminate() == 0


def test_a_unique_job_that_waits_is_the_only_one_also_after_the_brokers_death(tasks: Tasks, tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    saving = {"MQCORE_DELIVERY_HANDLER": "at-least-once"}
    with serving("--listen", "emqp://127.0.0.1:0", *data, environment=saving) as served:
        first = tasks(broker_url(served)).add.using(unique="sum").enqueue(1)
        wait_until(lambda: first.is_dispatched, what="the broker's word that it has it")
        served.process.kill()
        served.process.wait()
    with (
        serving("--listen", "emqp://127.0.0.1:0", *data, environment=saving) as again,
        Jobs(broker_url(again)) as sender,
    ):
        sum_of = {"queue": "default", "unique": "sum"}
        with pytest.raises(errors.JobDuplicate):
            sender.send("sample_jobs.add", [2], **sum_of).result(20)
        with working(broker_url(again), "--concurrency", "1"):

            def is_taken() -> bool:
                with contextlib.suppress(errors.JobDuplicate):
                    return bool(sender.send("sample_jobs.add", [3], **sum_of).result(20) == 4)
                return False

            wait_until(is_taken, what="the end of the one that waited")


def test_jobs_of_a_worker_that_is_killed_are_run_by_another(url: str, tasks: Tasks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    sample = tasks(url)
    with working(url, "--concurrency", "1") as first:
        slow = sample.sleep.enqueue(str(trace), 1)
        parked = sample.write.using(run_after="1s").enqueue(str(trace), "parked")
        until_lines(trace, 1)
        children = first.children()
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), what="the orphans' end")
    with working(url, "--concurrency", "2"):
        assert slow.result(20) == "slept"
        parked.result(20)
    assert sorted(line.split()[0] for line in lines_of(trace)) == ["begin", "begin", "end", "parked"]


def test_draining_finishes_what_runs_and_gives_back_what_waits(url: str, tasks: Tasks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    sample = tasks(url)
    with working(url, "--concurrency", "2", "--prefetch", "4") as first:
        jobs = [sample.write.enqueue(str(trace), f"line {number}") for number in range(40)]
        jobs += [sample.write.using(run_after="2s").enqueue(str(trace), f"line {number}") for number in range(40, 44)]
        slow = sample.sleep.enqueue(str(tmp_path / "slow"), 1)
        until_lines(trace, 5)
        assert first.terminate() == 0
    with working(url, "--concurrency", "2"):
        for job in jobs:
            job.result(20)
        slow.result(20)
    assert sorted(lines_of(trace)) == sorted(f"line {number}" for number in range(44))


def test_a_worker_that_drains_too_long_leaves_its_job_to_others(url: str, tasks: Tasks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    job = tasks(url).sleep.enqueue(str(trace), 4)
    with working(url, "--drain-timeout", "300ms", "--concurrency", "1") as first:
        until_lines(trace, 1)
        assert first.terminate() == 1
    with working(url, "--concurrency", "1"):
        assert job.result(30) == "slept"
    assert [line.split()[0] for line in lines_of(trace)] == ["begin", "begin", "end"]


def test_a_worker_with_a_larger_weight_gets_a_queues_jobs_first(url: str, tasks: Tasks) -> None:
    sample = tasks(url)
    with (
        working(url, "--queues", "default:1", "--concurrency", "1") as light,
        working(url, "--queues", "default:50", "--concurrency", "1") as heavy,
    ):
        for _ in range(5):
            # A result comes before the slot that is free again.
            wait_until(lambda: _slots(sample.jobs) == [1, 1], what="a free slot of each worker")
            assert sample.who.enqueue().result(20) in heavy.children()
        assert heavy.terminate() == 0
        assert sample.who.enqueue().result(20) in light.children()


def _slots(jobs: Jobs) -> list[int]:
    return [worker["available_slots"] for worker in jobs.workers()["connected_workers"].values()]


def test_a_result_is_not_waited_for_when_the_broker_is_gone(tasks: Tasks, tmp_path: Path) -> None:
    with serving("--listen", "emqp://127.0.0.1:0") as served:
        sample = tasks(broker_url(served))
        job = sample.add.enqueue(1)
        served.process.kill()
        with pytest.raises(errors.ConnectionLost, match="unknown"):
            job.result(20)
    sender = Jobs(sample.jobs.url, timeout="200ms")
    with pytest.raises(errors.ConnectFailed, match="no job broker answered"):
        sender.send("sample_jobs.add", [1])
    sender.close()


def test_jobs_of_a_broker_that_keeps_them_survive_its_death(tasks: Tasks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    data = ("--data-dir", str(tmp_path / "data"))
    saving = {"MQCORE_DELIVERY_HANDLER": "at-least-once"}
    with serving("--listen", "emqp://127.0.0.1:0", *data, environment=saving) as served:
        url = broker_url(served)
        with working(url, "--concurrency", "1") as worker:
            assert worker.terminate() == 0
        sample = tasks(url)
        jobs = [sample.write.enqueue(str(trace), f"line {number}") for number in range(20)]
        # Without workers, its confirmation means that the jobs are on its disk.
        wait_until(lambda: all(job.is_dispatched for job in jobs), what="the broker's word for all of them")
        served.process.kill()
        served.process.wait()
    with (
        serving("--listen", "emqp://127.0.0.1:0", *data, environment=saving) as again,
        working(broker_url(again), "--concurrency", "2"),
    ):
        assert sorted(until_lines(trace, 20)) == sorted(f"line {number}" for number in range(20))


def test_a_worker_works_also_where_its_schedules_cannot_be_sent(url: str, tmp_path: Path) -> None:
    backend = url.partition("?")[0]
    with working(f"{backend}?frontend=1", "--pool", "thread", app="scheduled_jobs:jobs") as worker, Jobs(url) as sender:
        assert sender.send("scheduled_jobs.tick").result(20) == 1
        wait_until(lambda: any("cannot send schedules" in line for line in worker.lines), what="the error")
        assert worker.terminate() == 0
