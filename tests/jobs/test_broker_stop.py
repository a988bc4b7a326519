"""Jobs that run while the broker stops."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from eventmq_peer import EventmqPeer
from job_processes import broker_url, until_lines, working
from mqcore import errors
from mqcore.jobs import Jobs
from served import ServedBroker, serving

JOB_SECONDS = 1.5
"""Longer than a broker without running jobs needs to stop."""


def stop(served: ServedBroker, how: str) -> None:
    if how == "SIGTERM":
        served.process.send_signal(signal.SIGTERM)
        return
    with EventmqPeer(f"emqp://{served.ready['listeners']['emqp-admin']}") as boss:
        boss.say("DISCONNECT", "d")
        assert boss.receive()[2:5:2] == [b"ACK", b"d"]


@pytest.mark.parametrize("guarantee", [True, False])
@pytest.mark.parametrize("how", ["SIGTERM", "DISCONNECT"])
def test_running_job_finishes_and_its_client_gets_the_result(how: str, guarantee: bool, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with serving("--listen", "emqp://127.0.0.1:0") as served:
        url = broker_url(served)
        with working(url, "--pool", "thread", "--concurrency", "1"), Jobs(url) as sender:
            running = sender.send("sample_jobs.sleep", [str(trace), JOB_SECONDS], guarantee=guarantee)
            until_lines(trace, 1)
            sender.send("sample_jobs.sleep", [str(trace), 0.0], result=False)
            began = time.monotonic()
            stop(served, how)
            assert running.result(10) == "slept"
            assert served.process.wait(10) == 0
            assert time.monotonic() - began < 4.5, "no timeout had to end the drain"
    assert [line.split()[0] for line in trace.read_text().splitlines()] == ["begin", "end"]


def test_job_longer_than_the_drain_timeout_does_not_keep_the_broker(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with serving("--listen", "emqp://127.0.0.1:0", "--drain-timeout", "500ms") as served:
        url = broker_url(served)
        with working(url, "--pool", "thread", "--concurrency", "1"), Jobs(url) as sender:
            running = sender.send("sample_jobs.sleep", [str(trace), 8.0])
            until_lines(trace, 1)
            assert served.terminate(5) == 0
            with pytest.raises(errors.ConnectionLost):
                running.result(5)


def test_worker_of_the_original_gets_kbye_and_its_result_is_passed_on() -> None:
    with serving("--listen", "emqp://127.0.0.1:0") as served:
        listeners = served.ready["listeners"]
        with (
            EventmqPeer(f"emqp://{listeners['emqp']}") as worker,
            EventmqPeer(f"emqp://{listeners['emqp-frontend']}", identity=b"client") as client,
        ):
            worker.inform('[[1, "default"]]', 2)
            client.say("REQUEST", "j", "default", "reply-requested", "{}")
            assert worker.receive()[2:4] == [b"REQUEST", b"j"]
            assert client.receive()[4:] == [b"j"]
            served.process.send_signal(signal.SIGTERM)
            assert worker.receive()[2] == b"KBYE"
            worker.say("READY", "r")
            worker.say("REPLY", "x", '{"value": 1}', "j")
            assert client.receive()[4:] == [b'{"value": 1}', b"j"]
            assert served.process.wait(5) == 0


def test_worker_joins_the_next_broker_on_the_same_ports(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with serving("--listen", "emqp://127.0.0.1:0") as first:
        url = broker_url(first)
        ports = [address.rpartition(":")[2] for address in first.ready["listeners"].values()]
        backend, frontend, admin, publish, subscribe = ports
        with working(url, "--pool", "thread", "--concurrency", "1"):
            with Jobs(url) as sender:
                sender.send("sample_jobs.sleep", [str(trace), 0.5], result=False)
                until_lines(trace, 1)
            assert first.terminate(5) == 0
            listen = (
                f"emqp://127.0.0.1:{backend}?frontend={frontend}&admin={admin}&publish={publish}&subscribe={subscribe}"
            )
            with serving("--listen", listen), Jobs(url) as sender:
                assert sender.send("sample_jobs.add", [1]).result(15) == 2


def test_unguaranteed_job_of_a_killed_worker_ends_as_lost(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with (
        serving("--listen", "emqp://127.0.0.1:0") as served,
        Jobs(broker_url(served)) as sender,
        working(sender.url, "--pool", "thread", "--concurrency", "1") as worker,
    ):
        job = sender.send("sample_jobs.sleep", [str(trace), 20.0], guarantee=False)
        until_lines(trace, 1)
        worker.process.kill()
        with pytest.raises(errors.JobLost, match="connection to the worker was lost"):
            job.result(5)


def test_job_whose_last_attempt_is_lost_with_its_worker_ends_as_lost(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with serving("--listen", "emqp://127.0.0.1:0") as served, Jobs(broker_url(served)) as sender:
        job = sender.send("sample_jobs.sleep", [str(trace), 20.0], guarantee=False, retries=1)
        for attempt in (1, 2):
            with working(sender.url, "--pool", "thread", "--concurrency", "1") as worker:
                until_lines(trace, attempt)
                assert not job.is_done
                worker.process.kill()
        with (
            working(sender.url, "--pool", "thread", "--concurrency", "1"),
            pytest.raises(errors.JobLost, match="connection to the worker was lost"),
        ):
            job.result(10)
