"""Processes take several short jobs at once: none is lost, doubled or stopped by another one, whatever happens."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from depth import SEED, by_depth
from job_processes import SAMPLES, broker_url, lines_of, until_lines, working
from mqcore.jobs import wire
from mqcore.jobs.execution import Assignment, Ending
from mqcore.jobs.pool import Died, Returned
from mqcore.jobs.pool.process import ProcessPool
from served import serving, wait_until

Tasks = Callable[[str], Any]
LIMIT = 20.0


@pytest.fixture
def url() -> Iterator[str]:
    with serving("--listen", "emqp://127.0.0.1:0") as served:
        yield broker_url(served)


# --- the pool alone --------------------------------------------------------------------------------------------------


class Gate:
    """A place where a job waits."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gate"
        self.trace = folder / "gate.trace"

    def wait_for_job(self) -> None:
        until_lines(self.trace, 1, LIMIT)

    def open(self) -> None:
        self.path.touch()


class Slot:
    """A pool of one process, and the jobs that it gets."""

    def __init__(self) -> None:
        self.pool = ProcessPool(1, ("sample_jobs", "jobs"))
        self.runs = 0
        self.events: list[Any] = []
        self.until(lambda: self.pool.free == 1)

    def job(self, task: str, *args: object) -> Assignment:
        self.runs += 1
        call = wire.encode_call(f"sample_jobs.{task}", msgspec.json.encode(args), b"{}", wire.Terms())
        return Assignment(self.runs, f"job-{self.runs}", "default", 1, call, 0.0)

    def hold(self, gate: Gate) -> Assignment:
        return self.job("hold", str(gate.trace), str(gate.path))

    def collect(self, pause: float = 0.02) -> None:
        ready = multiprocessing.connection.wait(list(self.pool.descriptors()), pause)
        self.events += self.pool.collect(ready)  # type: ignore[arg-type]

    def until(self, is_so: Callable[[], bool]) -> None:
        limit = time.monotonic() + LIMIT
        while not is_so():
            assert time.monotonic() < limit, self.events
            self.collect()

    def of(self, kind: type[Any]) -> list[int]:
        runs: list[int] = [event.run for event in self.events if isinstance(event, kind)]
        return runs


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slot]:
    monkeypatch.syspath_prepend(str(SAMPLES))
    created = Slot()
    try:
        yield created
    finally:
        created.pool.close()


def test_jobs_behind_a_long_one_are_taken_back_in_their_order(
    slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path)
    slot.pool.submit([slot.job("add", 0), slot.hold(gate), slot.job("add", 1), slot.job("add", 2)])
    slot.until(lambda: slot.of(Ending) == [1])
    gate.wait_for_job()
    with monkeypatch.context() as patient:
        patient.setattr("mqcore.jobs.pool.process._RECALL_SECONDS", 60.0)
        assert slot.pool.recall() > 0, "the second job has only begun"
    wait_until(lambda: slot.pool.recall() == 0.0, limit=5, what="that the others are taken back")
    slot.until(lambda: len(slot.of(Returned)) == 2)
    # A worker puts each before all others.
    assert slot.of(Returned) == [4, 3]
    assert slot.pool.recall() > 1
    gate.open()
    slot.until(lambda: slot.of(Ending) == [1, 2])
    assert slot.pool.free == 1


def test_a_job_that_has_not_begun_is_cancelled_without_its_process(slot: Slot, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    (pid,) = slot.pool.processes
    slot.pool.submit([slot.hold(gate), slot.job("add", 1), slot.job("add", 2), slot.job("add", 3)])
    gate.wait_for_job()
    slot.pool.interrupt(3)
    slot.until(lambda: slot.of(Ending) == [3])
    (ending,) = (event for event in slot.events if isinstance(event, Ending))
    assert ending.fault is not None
    assert ending.fault.type == "mqcore.errors.JobCancelled"
    assert slot.of(Returned) == [4, 2]
    assert slot.pool.free == 0, "the process is still busy"
    gate.open()
    slot.until(lambda: slot.of(Ending) == [3, 1])
    assert slot.pool.processes == [pid]


def test_abandoning_a_job_keeps_the_results_before_it_and_returns_those_behind_it(slot: Slot, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    (pid,) = slot.pool.processes
    slot.pool.submit([slot.job("add", 1), slot.hold(gate), slot.job("add", 2)])
    gate.wait_for_job()
    # The result of the first job has not been read.
    slot.pool.abandon(2)
    slot.until(lambda: slot.pool.free == 1)
    assert (slot.of(Ending), slot.of(Returned), slot.of(Died)) == ([1], [3], [])
    assert slot.pool.processes != [pid]
    slot.pool.submit([slot.job("add", 5)])
    slot.until(lambda: slot.of(Ending) == [1, 4])


def test_abandoning_a_job_whose_result_is_on_its_way_kills_nothing(slot: Slot, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    (pid,) = slot.pool.processes
    slot.pool.submit([slot.job("add", 1), slot.hold(gate)])
    gate.wait_for_job()
    slot.pool.abandon(1)
    gate.open()
    slot.until(lambda: slot.of(Ending) == [2])
    assert (slot.pool.processes, slot.of(Died), slot.of(Returned)) == ([pid], [], [])


def test_abandoning_a_job_that_has_not_begun_kills_nothing(slot: Slot, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    (pid,) = slot.pool.processes
    slot.pool.submit([slot.hold(gate), slot.job("add", 1), slot.job("add", 2)])
    gate.wait_for_job()
    slot.pool.abandon(2)
    gate.open()
    slot.until(lambda: slot.of(Ending) == [1])
    assert (slot.of(Returned), slot.pool.processes) == ([3], [pid])


def test_only_the_job_that_ran_dies_with_its_process(slot: Slot, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    (pid,) = slot.pool.processes
    slot.pool.submit([slot.job("add", 1), slot.hold(gate), slot.job("add", 2), slot.job("add", 3)])
    slot.until(lambda: slot.of(Ending) == [1])
    gate.wait_for_job()
    os.kill(pid, signal.SIGKILL)
    slot.until(lambda: slot.pool.free == 1)
    assert (slot.of(Ending), slot.of(Died), slot.of(Returned)) == ([1], [2], [4, 3])


def test_jobs_that_are_taken_back_at_any_moment_run_once(slot: Slot, tmp_path: Path) -> None:
    trace, chance = tmp_path / "trace", random.Random(SEED)
    rounds = by_depth(150, 3_000)
    waiting: list[Assignment] = []
    given: dict[int, Assignment] = {}
    for number in range(rounds):
        waiting += [slot.job("write", str(trace), f"{number}-{place}") for place in range(4)]
        slot.until(lambda: slot.pool.free == 1)
        batch, waiting = waiting[:6], waiting[6:]
        given |= {job.run: job for job in batch}
        slot.pool.submit(batch)
        limit = time.monotonic() + chance.uniform(0, 0.002)
        while time.monotonic() < limit:
            pass
        for holder in list(slot.pool._children.values()):
            slot.pool._take_back(holder)
        slot.events += slot.pool.collect(())
        returned, slot.events = slot.of(Returned), [each for each in slot.events if not isinstance(each, Returned)]
        for run in returned:
            waiting.insert(0, given[run])
    while waiting:
        slot.until(lambda: slot.pool.free == 1)
        slot.pool.submit(waiting[:16])
        del waiting[:16]
    slot.until(lambda: len(slot.of(Ending)) == slot.runs)
    counts = Counter(lines_of(trace))
    assert len(counts) == slot.runs, f"seed {SEED}"
    assert set(counts.values()) == {1}, f"seed {SEED}"


# --- a worker --------------------------------------------------------------------------------------------------------


def test_short_jobs_do_not_wait_for_a_long_one_that_came_before_them(url: str, tasks: Tasks, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with working(url, "--pool", "process", "--concurrency", "2", "--prefetch", "64"):
        sample = tasks(url)
        for job in [sample.add.enqueue(number) for number in range(400)]:
            job.result(LIMIT)
        before = [sample.add.enqueue(number) for number in range(30)]
        long = sample.wait_for.enqueue(str(gate))
        after = [sample.add.enqueue(number) for number in range(200)]
        results = [job.result(LIMIT) for job in before + after]
        assert results == [number + 1 for number in [*range(30), *range(200)]]
        gate.touch()
        long.result(LIMIT)


def test_kept_jobs_survive_the_deaths_of_processes_that_have_several(url: str, tasks: Tasks, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    count, chance, done = by_depth(1_500, 20_000), random.Random(SEED), threading.Event()
    with working(url, "--pool", "process", "--concurrency", "2", "--prefetch", "64"):
        sample = tasks(url)
        kills = 0

        def kill() -> None:
            nonlocal kills
            # Only processes that have run jobs: a worker gives up if several die in a row that have not started.
            while not done.wait(chance.uniform(0.0, 0.05)):
                lines = lines_of(trace)
                if len(lines) >= 60 * (kills + 1):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(lines[-1].split()[1]), signal.SIGKILL)
                    kills += 1

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            task = sample.write_process.using(guarantee=True, retries=100, backoff=0.05)
            jobs = [task.enqueue(str(trace), f"{number}") for number in range(count)]
            for job in jobs:
                job.result(50)
        finally:
            done.set()
            killer.join()
        until_lines(trace, count)
    counts = Counter(line.split()[0] for line in lines_of(trace))
    assert len(counts) == count, f"seed {SEED}"
    assert kills > 5, f"seed {SEED}"
    # Only the job that ran in a process may run again.
    assert sum(counts.values()) - count <= kills, f"seed {SEED}"


def test_the_depth_follows_the_duration_of_jobs(slot: Slot, tmp_path: Path) -> None:
    assert slot.pool.depth == 1, "nothing is known about the jobs yet"
    for duration, depth in [(0.000_01, 16), (0.000_5, 4), (0.001_1, 1)]:
        slot.pool._job_seconds = duration
        assert slot.pool.depth == depth
    slot.pool._job_seconds = 0.000_01
    gate = Gate(tmp_path)
    slot.pool.submit([slot.hold(gate), slot.job("add", 1)])
    gate.wait_for_job()
    wait_until(lambda: slot.pool.recall() == 0.0, limit=5, what="that the second job is taken back")
    assert slot.pool.depth == 1, "the first one takes long"
    gate.open()
    slot.until(lambda: slot.of(Ending) == [1])
