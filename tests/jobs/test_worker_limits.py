"""Limits of a worker: time of jobs, delay of retries, prefetch and drain timeout, each compared with its absence."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zmq

from job_processes import broker_url, lines_of, until_lines, working
from mqcore import errors
from mqcore.jobs import Jobs, Worker, wire
from served import serving, wait_until

Tasks = Callable[[str], Any]


@pytest.fixture
def url() -> Iterator[str]:
    with serving("--listen", "emqp://127.0.0.1:0") as served:
        yield broker_url(served)


def test_process_of_a_job_beyond_its_limit_is_killed(url: str, tasks: Tasks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with working(url, "--pool", "process", "--concurrency", "1") as worker:
        job = tasks(url).sleep_too_long.enqueue(str(trace), 120)
        child = int(until_lines(trace, 1)[0].split()[1])
        with pytest.raises(errors.JobTimeout):
            job.result(20)
        wait_until(lambda: not Path(f"/proc/{child}").exists(), what="the end of the process")
        assert tasks(url).who.enqueue().result(20) in worker.children()
    assert [line.split()[0] for line in lines_of(trace)] == ["begin"]


def test_retry_waits_for_its_backoff(url: str, tasks: Tasks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with working(url, "--pool", "thread", "--concurrency", "1"), pytest.raises(errors.JobFailed, match="again"):
        tasks(url).fail_and_tell_the_time.enqueue(str(trace)).result(20)
    times = [float(line) for line in lines_of(trace)]
    assert len(times) == 3
    assert all(0.79 <= later - earlier < 8 for earlier, later in pairwise(times))


def test_prefetch_is_the_number_of_jobs_beyond_the_slots(url: str, tasks: Tasks, tmp_path: Path) -> None:
    sample = tasks(url)
    end = tmp_path / "end"
    with working(url, "--pool", "thread", "--concurrency", "1", "--prefetch", "3") as worker:
        jobs = [sample.wait_for.enqueue(str(end)) for _ in range(7)]

        def taken() -> tuple[int, int]:
            status = sample.jobs.status()
            return (
                status["inflight_messages_by_queue"].get("default", 0),
                status["waiting_messages_by_queue"].get("default", 0),
            )

        wait_until(lambda: taken() == (4, 3), what="one running job and three prefetched ones")
        end.touch()
        for job in jobs:
            job.result(20)
        assert worker.terminate() == 0


@pytest.mark.parametrize(
    ("pool", "name"),
    [("thread", "sleep"), ("asyncio", "sleep"), ("asyncio", "sleep_in_thread"), ("asyncio", "block_the_loop")],
)
def test_drain_timeout_ends_the_worker_and_unguaranteed_jobs_are_lost(
    url: str, tasks: Tasks, tmp_path: Path, pool: str, name: str
) -> None:
    trace = tmp_path / "trace"
    with working(url, "--pool", pool, "--drain-timeout", "1s", "--concurrency", "1") as worker:
        job = getattr(tasks(url), name).using(guarantee=False).enqueue(str(trace), 60)
        until_lines(trace, 1)
        began = time.monotonic()
        # The thread of the job outlives the drain timeout, so this program ends without it.
        worker.process.terminate()
        with pytest.raises(errors.JobLost, match="the worker ended before"):
            job.result(8)
        assert time.monotonic() - began >= 1
        assert worker.process.wait(10) == 1


@pytest.mark.parametrize(
    ("pool", "name"), [("thread", "sleep"), ("asyncio", "sleep"), ("asyncio", "block_the_loop"), ("process", "sleep")]
)
def test_second_signal_ends_the_worker_at_once(url: str, tasks: Tasks, tmp_path: Path, pool: str, name: str) -> None:
    trace = tmp_path / "trace"
    with working(url, "--pool", pool, "--concurrency", "1") as worker:
        getattr(tasks(url), name).enqueue(str(trace), 60)
        until_lines(trace, 1)
        worker.process.terminate()
        wait_until(lambda: any("draining" in line for line in worker.lines), what="the beginning of the drain")
        worker.process.terminate()
        assert worker.process.wait(10) == 1


def test_unguaranteed_job_that_waits_for_its_time_runs_before_a_draining_worker_ends(
    url: str, tasks: Tasks, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    sample = tasks(url)
    with working(url, "--pool", "thread", "--concurrency", "1") as worker:
        later = sample.write.using(guarantee=False, run_after="2s").enqueue(str(trace), "later")
        # The worker takes jobs in order, so it holds the first one when it has run the second.
        sample.write.using(guarantee=False).enqueue(str(trace), "now").result(20)
        began = time.monotonic()
        worker.process.terminate()
        assert later.result(10) == len("later")
        assert worker.process.wait(10) == 0
        assert time.monotonic() - began < 10
    assert lines_of(trace) == ["now", "later"]


@contextlib.contextmanager
def joined() -> Iterator[tuple[Worker, zmq.Socket[bytes], bytes]]:
    """A worker that has joined, the socket that plays its broker and sends no heartbeats, and the worker's identity."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        router.setsockopt(zmq.RCVTIMEO, 20_000)
        router.setsockopt(zmq.LINGER, 0)
        jobs = Jobs(f"emqp://127.0.0.1:{port}")

        @jobs.task(name="shop.add")
        def add(left: int, right: int) -> int:
            return left + right

        worker = Worker(jobs, pool="thread", concurrency=1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            identity, _, _, _, join_id, *_ = router.recv_multipart()
            router.send_multipart([identity, b"", b"eMQP/1.0", b"ACK", b"1", join_id])
            assert router.recv_multipart()[3] == b"READY"
            yield worker, router, identity
        finally:
            worker.stop()
            worker.stop()
            thread.join(20)
    assert not thread.is_alive()


def run_add(router: zmq.Socket[bytes], identity: bytes, terms: wire.Terms) -> None:
    """Send the worker a job and wait for its result."""
    job = wire.encode_call("shop.add", b"[1,2]", b"{}", terms)
    headers = wire.Headers(reply_requested=True)
    router.send_multipart([identity, *wire.request("7", "default", headers, job)])
    while (received := router.recv_multipart())[3] == b"READY":
        pass
    assert received[3] == wire.REPLY
    assert received[5:7] == [b'{"value":3}', b"7"]


def test_delayed_job_starts_when_it_is_due() -> None:
    late = []
    with joined() as (_, router, identity):
        # Twice, because the machine can delay a process as well. The first heartbeat, after 3 s, is later.
        for _ in range(2):
            due = time.time() + 0.3
            run_add(router, identity, wire.Terms(not_before=due))
            late.append(time.time() - due)
    assert 0 <= min(late) < 0.5


def test_job_in_transit_to_a_worker_that_stops_is_run() -> None:
    with joined() as (worker, router, identity):
        worker.stop()
        assert router.recv_multipart()[3] == b"KBYE"
        # The broker sent the job before the goodbye arrived.
        run_add(router, identity, wire.Terms())


def test_worker_sends_its_first_heartbeat_after_three_seconds_however_often_it_hears_the_broker() -> None:
    version = b"eMQP/1.0"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        router.setsockopt(zmq.RCVTIMEO, 20_000)
        router.setsockopt(zmq.LINGER, 0)
        worker = Worker(Jobs(f"emqp://127.0.0.1:{port}"), pool="thread", concurrency=1, drain_timeout=0)
        began = time.monotonic()
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            identity, _, _, command, join_id, *_ = router.recv_multipart()
            assert command == b"INFORM"
            router.send_multipart([identity, b"", version, b"ACK", b"1", join_id])
            assert router.recv_multipart()[3] == b"READY"
            for _ in range(20):
                router.send_multipart([identity, b"", version, b"HEARTBEAT", b"2", b"0"])
            assert router.recv_multipart()[3] == b"HEARTBEAT"
            assert time.monotonic() - began >= 2.9
        finally:
            worker.stop()
            worker.stop()
            thread.join(20)
    assert not thread.is_alive()
