"""Schedules that have ended stay ended when workers of the same program start, also after a restart of the broker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import mqcore
from mqcore.jobs import Jobs, Worker
from served import wait_until


def started(directory: Path) -> mqcore.Broker:
    return mqcore.Broker(listen="emqp://127.0.0.1:0", data_dir=str(directory))


def url_of(broker: mqcore.Broker) -> str:
    """The URL of its sockets, each of which has a port of its own."""
    ports = {}
    for url in broker.listeners:
        address, _, role = url.partition("?role=")
        ports[role or "backend"] = address.rpartition(":")[2]
    return f"emqp://127.0.0.1:{ports['backend']}?frontend={ports['frontend']}&admin={ports['admin']}"


def program(broker: mqcore.Broker, ticks: list[int], *, runs: int) -> Jobs:
    """A program with a schedule of so many runs, and a second one without an end."""
    jobs = Jobs(url_of(broker))

    @jobs.task(name="shop.tick")
    def tick() -> None:
        ticks.append(1)

    @jobs.task(name="shop.continues")
    def continues(number: int) -> None:
        raise AssertionError(f"it is due in an hour, {number}")

    jobs.every("50ms", tick, runs=runs)
    return jobs


@contextlib.contextmanager
def working(broker: mqcore.Broker, jobs: Jobs) -> Iterator[None]:
    """Run a worker; continue when the broker has handled all schedules that it sent when it joined."""
    marker = len(jobs.schedules) + broker.schedules().total
    jobs.every("1h", jobs.tasks["shop.continues"].bind(marker), nohaste=True)
    worker = Worker(jobs, pool="thread", concurrency=1, drain_timeout=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        # The broker handles schedules in the order in which they come.
        wait_until(
            lambda: any(f"[{marker}]" in each.job for each in broker.schedules().schedules), what="the schedules"
        )
        yield
    finally:
        worker.stop()
        thread.join(20)
        jobs.close()
    assert not thread.is_alive()


def is_scheduled(broker: mqcore.Broker) -> bool:
    return any('"tick"' in each.job for each in broker.schedules().schedules)


def test_schedule_that_made_all_its_runs_does_not_start_again_with_a_worker(tmp_path: Path) -> None:
    ticks: list[int] = []
    with started(tmp_path) as broker, working(broker, program(broker, ticks, runs=2)):
        wait_until(lambda: len(ticks) == 2, what="two runs")
        wait_until(lambda: not is_scheduled(broker), what="the end of the schedule")
    with started(tmp_path) as broker:
        for _ in range(2):
            with working(broker, program(broker, ticks, runs=2)):
                assert not is_scheduled(broker)
        assert len(ticks) == 2
        with working(broker, program(broker, ticks, runs=3)):
            wait_until(lambda: len(ticks) == 5, what="three runs of the changed schedule")
        jobs = program(broker, ticks, runs=3)
        with working(broker, jobs):
            assert len(ticks) == 5
            jobs.send_schedules()
            wait_until(lambda: len(ticks) == 8, what="three runs of the schedule that was sent on purpose")


def test_unscheduled_schedule_does_not_start_again_with_a_worker(tmp_path: Path) -> None:
    ticks: list[int] = []
    with started(tmp_path) as broker, working(broker, program(broker, ticks, runs=0)):
        wait_until(lambda: len(ticks) > 1, what="some runs")
        (found,) = (each for each in broker.schedules().schedules if '"tick"' in each.job)
        broker.unschedule(found.id)
    with started(tmp_path) as broker:
        with working(broker, program(broker, ticks, runs=0)):
            assert not is_scheduled(broker)
        jobs = program(broker, ticks, runs=0)
        jobs.send_schedules()
        wait_until(lambda: is_scheduled(broker), what="the schedule that was sent on purpose")
        jobs.unschedule(jobs.schedules[0])
        wait_until(lambda: not is_scheduled(broker), what="its end")
        with working(broker, jobs):
            assert not is_scheduled(broker)


def test_a_broker_lists_the_next_100_schedules_unless_asked_for_another_number(tmp_path: Path) -> None:
    with started(tmp_path) as broker:
        jobs = program(broker, [], runs=1)
        for number in range(103):
            jobs.every(f"{number + 1}h", jobs.tasks["shop.continues"].bind(-number), nohaste=True)
        with working(broker, jobs):
            wait_until(lambda: not is_scheduled(broker), what="the end of the schedule with one run")
            found = broker.schedules()
            assert (found.total > 103, len(found.schedules)) == (True, 100)
            assert broker.schedules(3).schedules == found.schedules[:3]
            assert len(broker.schedules(1000).schedules) == found.total
