"""SIGTERM in the middle of the work: confirmed messages, messages in flight and running jobs survive it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from awaited import until
from depth import choices, rounds
from drain_load import CONSUMERS, PREFETCH, JobLoad, Ledger, Place, Traffic, declare, remaining, terminate
from job_processes import WorkerProcess
from mqcore import journal
from mqcore.client import Delivered
from served import ServedBroker

ROUNDS = rounds("DRAIN", quick=3, full=50)
"""How often a broker is stopped under load."""

LONG_DRAIN = 8.0
"""Seconds that are enough for every running job."""
SHORT_DRAIN = 0.7
"""Seconds that are enough for some of them."""
MARGIN = 4.0
"""Seconds that a process may need after its drain timeout, on a machine that does other things too."""
JOBS_LIMIT = 60.0
"""Seconds for all jobs that are left."""


def check_messages(ledger: Ledger, left: list[Delivered[str]]) -> None:
    """Compare the messages after the restart with what clients observed before."""
    names = [message.body for message in left]
    assert len(set(names)) == len(names), "a message is in its queue twice"
    assert not ledger.confirmed - ledger.acked - set(names), "confirmed messages are lost"
    assert not ledger.settled & set(names), "settled messages are redelivered"
    assert set(ledger.in_process.values()) <= set(names), "messages in process at the stop are lost"
    attempts = Counter(message.attempt for message in left)
    assert set(attempts) <= {1, 2}
    # A consumer had at most its prefetch; an attempt of all other messages has not begun.
    assert attempts[2] <= CONSUMERS * PREFETCH


def check_jobs(load: JobLoad, ended_before: set[str], *, all_could_finish: bool) -> None:
    """Compare the runs of all jobs with what the broker promised."""
    begun, ended = Counter(load.begun()), Counter(load.ended())
    assert load.accepted() <= set(ended), "a saved job did not run"
    again = {name for name, count in begun.items() if count > 1}
    assert not again & ended_before, "jobs that had ended before the stop ran again"
    if all_could_finish:
        assert not again, "jobs that ended within the drain timeout ran again"
    assert max(begun.values()) <= 2, "one stop repeats a job once at most"


async def stop_workers(workers: list[WorkerProcess], chance: random.Random) -> Callable[[], list[int]]:
    """Send SIGTERM to all workers and wait for a random time. Returns a function that waits for their exit codes."""
    for worker in workers:
        worker.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(chance.uniform(0.0, 2.5))
    return lambda: [worker.process.wait(LONG_DRAIN) for worker in workers]


async def stop_under_load(
    place: Place, broker: ServedBroker, load: JobLoad, chance: random.Random, workers: list[WorkerProcess] | None
) -> tuple[Ledger, set[str]]:
    """Stop the broker at a random moment, or the workers and then the broker. Returns observations of clients."""
    traffic = Traffic(broker.url, chance)
    await traffic.start()
    await until(lambda: load.is_busy and traffic.is_busy, "load", limit=30.0)
    await asyncio.sleep(chance.uniform(0.0, 1.0))
    exit_codes = await stop_workers(workers, chance) if workers else None
    ended_before = set(load.ended())
    seconds = await asyncio.to_thread(terminate, broker, place.drain_seconds + MARGIN)
    await traffic.stop()
    load.stop()
    if exit_codes is not None:
        codes = await asyncio.to_thread(exit_codes)
        assert place.drain_seconds < LONG_DRAIN or codes == [0] * len(codes), "a worker could not finish its jobs"
    running = len(set(load.begun()) - ended_before)
    print(
        f"stopped in {seconds:.2f} of {place.drain_seconds} s: {running} jobs ran, workers first: {workers is not None}"
    )
    return traffic.ledger, ended_before


async def finish(place: Place, broker: ServedBroker, load: JobLoad) -> list[Delivered[str]]:
    """Let the next broker finish all that is left. Returns the messages that were in the queue."""
    left = await remaining(broker.url)
    await until(lambda: load.accepted() <= set(load.ended()), "all saved jobs", limit=JOBS_LIMIT)
    await asyncio.to_thread(terminate, broker, place.drain_seconds + MARGIN)
    assert not journal.verify(place.data).is_damaged
    return left


async def play(directory: Path, chance: random.Random, *, drain_seconds: float, is_rolling: bool) -> None:
    """One round: load, stop, restart, comparison."""
    place = Place(directory, drain_seconds)
    load = JobLoad(place.jobs_url, directory / "trace", chance)
    with contextlib.ExitStack() as processes, load:
        with place.broker() as broker:
            workers = processes.enter_context(place.workers())
            await declare(broker.url)
            ledger, ended_before = await stop_under_load(place, broker, load, chance, workers if is_rolling else None)
        with place.broker() as broker:
            if is_rolling:
                processes.enter_context(place.workers())
            left = await finish(place, broker, load)
    check_messages(ledger, left)
    check_jobs(load, ended_before, all_could_finish=drain_seconds == LONG_DRAIN)


@pytest.mark.timeout(60 + 60 * ROUNDS)
async def test_sigterm_under_load_loses_no_message_and_no_job_and_repeats_no_finished_job(tmp_path: Path) -> None:
    chance = choices(__name__)
    for number in range(ROUNDS):
        directory = tmp_path / str(number)
        directory.mkdir()
        drain_seconds = LONG_DRAIN if number % 4 < 2 else chance.choice([LONG_DRAIN, SHORT_DRAIN])
        began = time.monotonic()
        await play(directory, chance, drain_seconds=drain_seconds, is_rolling=number % 2 == 1)
        print(f"round {number}: {time.monotonic() - began:.1f} s")
