"""Jobs and schedules for queues that no worker has served yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eventmq_peer import EventmqPeer
from job_processes import broker_url, until_lines, working
from mqcore.jobs import Jobs
from served import ServedBroker, serving, wait_until


@pytest.fixture
def served() -> Iterator[ServedBroker]:
    with serving("--listen", "emqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0") as broker:
        yield broker


def waiting(sender: Jobs) -> dict[str, int]:
    """Number of waiting jobs in each queue."""
    return dict(sender.status()["waiting_messages_by_queue"])


def test_job_sent_before_any_worker_reaches_the_worker_of_its_queue(served: ServedBroker, tmp_path: Path) -> None:
    url = broker_url(served)
    trace = tmp_path / "trace"
    with Jobs(url) as sender:
        jobs = [sender.send("sample_jobs.write", [str(trace), f"line {number}"], queue="email") for number in range(20)]
        with working(url, "--queues", "default", "--pool", "thread") as other, Jobs(url) as second:
            # A worker of the queue `default` gets none of them.
            assert second.send("sample_jobs.add", [1]).result(20) == 2
            assert waiting(sender) == {"default": 0, "email": 20}
            assert other.terminate() == 0
        assert not any(job.is_done for job in jobs)
        with working(url, "--queues", "email", "--pool", "thread"):
            assert [job.result(20) for job in jobs] == [len(f"line {number}") for number in range(20)]
    assert sorted(until_lines(trace, 20)) == sorted(f"line {number}" for number in range(20))


def test_job_of_a_sender_that_leaves_at_once_waits_in_its_queue(served: ServedBroker, tmp_path: Path) -> None:
    url = broker_url(served)
    with Jobs(url) as sender:
        sender.send("sample_jobs.write", [str(tmp_path / "trace"), "sent"], queue="email", result=False)
    with working(url, "--queues", "email", "--pool", "thread"):
        assert until_lines(tmp_path / "trace", 1) == ["sent"]


def test_run_of_a_schedule_waits_for_the_worker_of_its_queue(served: ServedBroker, tmp_path: Path) -> None:
    url = broker_url(served)
    with Jobs(url) as sender:
        sender.task(name="sample_jobs.write", queue="reports")(_write)
        sender.every("1h", sender.tasks["sample_jobs.write"].bind(str(tmp_path / "trace"), "run"), runs=1)
        assert sender.send_schedules() == 1
        with working(url, "--queues", "default", "--pool", "thread") as other:
            assert sender.send("sample_jobs.add", [1]).result(20) == 2
            assert other.terminate() == 0
        with working(url, "--queues", "reports", "--pool", "thread", "--no-schedules"):
            assert until_lines(tmp_path / "trace", 1) == ["run"]


def _write(path: str, text: str) -> None:
    """Stands for the task of the same name, which workers run."""


def test_job_of_an_original_client_for_an_unserved_queue_goes_to_default(served: ServedBroker) -> None:
    listeners = served.ready["listeners"]
    with (
        EventmqPeer(f"emqp://{listeners['emqp-frontend']}", identity=b"client") as client,
        EventmqPeer(f"emqp://{listeners['emqp']}") as worker,
    ):
        client.say("REQUEST", "j", "email", "guarantee", "{}")
        worker.inform('[[1, "default"]]', 1)
        found: list[list[bytes]] = worker.kept
        wait_until(lambda: bool(found) or bool(found.extend(worker.until_now())), what="the job")
        assert found[0][3:5] == [b"j", b"email"]
