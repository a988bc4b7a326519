"""Guaranteed jobs while brokers and workers are killed: each is done, and its result is kept."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from job_kills import JOBS_A_ROUND, ROUNDS, Place, Sender
from job_processes import lines_of


@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_however_often_brokers_and_workers_are_killed_every_guaranteed_job_is_done_and_its_result_kept(
    tmp_path: Path,
) -> None:
    file = tmp_path / "done"
    with Place(tmp_path) as place:
        asyncio.run(place.declare_results())
        sender = Sender(place.frontend, file)
        wanted: list[str] = []
        for number in range(ROUNDS):
            wanted += [f"{number}-{each}" for each in range(JOBS_A_ROUND)]
            missing = [name for name in wanted if name not in sender.taken]
            with sender.sending(missing) as thread:
                place.moment()
                kept = asyncio.run(place.kept_results())
                # Sometimes everything was done by now, and the kill meets idle processes: fine too.
                place.kill()
                if thread.is_alive() and place.is_broker_up:
                    thread.join(20)
                place.repair()
            assert asyncio.run(place.kept_results()) >= kept, "results were lost with the broker"
        while missing := [name for name in wanted if name not in sender.taken]:
            with sender.sending(missing) as thread:
                thread.join()
        results: Counter[str] = Counter()
        deadline = time.monotonic() + 60 + ROUNDS
        while len(results) < len(wanted):
            assert time.monotonic() < deadline, f"{len(wanted) - len(results)} results are missing"
            for name, value in asyncio.run(place.take_results()):
                assert value == len(name)
                results[name] += 1
            time.sleep(0.05)
    done = Counter(lines_of(file))
    assert set(results) == set(done) == set(wanted), "nothing is missing, and nothing was invented"
    assert all(sender.returned[name] == len(name) for name in sender.returned)
    twice = sum(count - 1 for count in done.values())
    killed = f"{place.broker_kills} brokers and {place.worker_kills} workers were killed"
    print(f"{killed}; {len(wanted)} jobs, {twice} runs too many, {sum(results.values())} results")
    assert place.broker_kills + place.worker_kills >= ROUNDS
