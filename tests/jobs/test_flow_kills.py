"""Chains and groups while brokers and workers are killed: each job of each begins once, and each ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet
import pytest
import sample_jobs as samples

from job_kills import ROUNDS, Place
from mqcore import errors
from mqcore.jobs import FlowJob, Jobs
from mqcore.journal import history

FLOWS_A_ROUND = 300
MEMBERS = 6


class FlowSender:
    """A client that sends chains and groups until its broker ends, and notes which ones the broker has."""

    def __init__(self) -> None:
        self.accepted: dict[str, int] = {}
        """By the last job of each flow: its result."""
        self.following: list[str] = []
        """Jobs that the broker has to begin when others have ended."""

    def _note(self, job: FlowJob[int], result: int, first: int) -> None:
        self.accepted[job.id] = result
        self.following += [step.id for step in job.steps[first:]]

    def _chain(self, number: int) -> None:
        chain = samples.add.bind(number, 10).then(samples.add, 1000).then(samples.add, 1)
        self._note(chain.enqueue(), number + 1011, 1)

    def _group(self, number: int) -> None:
        group = samples.jobs.group(samples.add.bind(number, member) for member in range(MEMBERS))
        expected = MEMBERS * number + sum(range(MEMBERS)) + 7
        self._note(group.then(samples.add_up, start=7).enqueue(), expected, MEMBERS)

    def send(self, is_over: threading.Event) -> None:
        """Send flows until `is_over` or the broker ends."""
        with contextlib.suppress(errors.ConnectionLost, errors.ConnectFailed, errors.RequestTimeout):
            for number in range(FLOWS_A_ROUND):
                if is_over.is_set():
                    return
                if number % 3:
                    self._chain(number)
                else:
                    self._group(number)


def starts(data: Path, out: Path) -> dict[str, int]:
    """How often each job entered a queue, from the history of a stopped broker."""
    history(data).write(out, "parquet")
    rows = pyarrow.parquet.read_table(out, columns=["message_id", "shard", "number"]).to_pylist()
    numbers: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for row in rows:
        if row["message_id"] is not None:
            numbers[row["message_id"]].add((row["shard"], row["number"]))
    return {job: len(found) for job, found in numbers.items()}


@pytest.mark.timeout(180 + 25 * ROUNDS)
def test_however_often_brokers_and_workers_are_killed_every_flow_ends_once(tmp_path: Path) -> None:
    with Place(tmp_path, arguments=("--history",)) as place:
        samples.jobs.locate(place.url)
        sender = FlowSender()
        for _ in range(ROUNDS):
            is_over = threading.Event()
            sending = threading.Thread(target=sender.send, args=(is_over,))
            sending.start()
            place.moment()
            # In the middle of flows: the client sends them faster than workers run them.
            place.kill()
            is_over.set()
            sending.join(60)
            assert not sending.is_alive()
            place.repair()
        deadline = time.monotonic() + 90 + ROUNDS
        with Jobs(place.url) as jobs:
            for job, expected in sender.accepted.items():
                left = max(1.0, deadline - time.monotonic())
                assert jobs.result(job, left) == expected, job
        samples.jobs.close()
    begun = starts(tmp_path / "data", tmp_path / "history.parquet")
    # A kill loses the last events of the history, so it does not have all jobs. Each of them has a result.
    followed = [begun[job] for job in sender.following if job in begun]
    killed = f"{place.broker_kills} brokers and {place.worker_kills} workers were killed"
    flows = f"{len(sender.accepted)} flows, {len(sender.following)} jobs that followed"
    print(f"{killed}; {flows}; the history has {len(followed)} of these, begun {sum(followed)} times")
    assert set(followed) == {1}, "no job began twice"
    assert place.broker_kills + place.worker_kills >= ROUNDS
    assert len(sender.accepted) >= ROUNDS
