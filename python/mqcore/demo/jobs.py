"""The part for jobs: every file is hashed by one of four workers, of which one is killed in the middle of its work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mqcore
from mqcore import errors
from mqcore.demo import hashing
from mqcore.demo.library import Page, digest
from mqcore.demo.outcome import Outcome
from mqcore.demo.processes import ended, kill

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["run"]

_WORKERS = 4
_PREFETCH = 8
"""Jobs prefetched by each worker, so that the killed one holds some."""
_LIMIT = 60.0
"""Seconds to wait for any condition before it counts as failed."""


@dataclass(slots=True)
class Hashes(Outcome):
    """Result of a job queue."""

    jobs: int = 0
    results: int = 0
    equal: int = 0
    again: int = 0

    def numbers(self) -> dict[str, int]:
        """Numbers of sent jobs and returned results."""
        return {"jobs": self.jobs, "results": self.results, "equal": self.equal, "run again": self.again}


@contextlib.asynccontextmanager
async def _workers(url: str) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Run `mqcore worker` processes, each with one process for its jobs, until the block ends."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MQCORE_")}
    command = [sys.executable, "-m", "mqcore", "worker", "mqcore.demo.hashing:jobs", "--broker", url]
    command += ["--queues", "library-hashes", "--concurrency", "1", "--prefetch", str(_PREFETCH), "--no-schedules"]
    started: list[asyncio.subprocess.Process] = []
    try:
        while len(started) < _WORKERS:
            worker = await asyncio.create_subprocess_exec(
                *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
            )
            started.append(worker)
        for worker in started:
            assert worker.stdout is not None
            if not await asyncio.wait_for(worker.stdout.readline(), _LIMIT):
                raise RuntimeError(f"a worker did not start: it exited with code {await worker.wait()}")
        yield started
    finally:
        for worker in started:
            if worker.returncode is None:
                worker.terminate()
        for worker in started:
            try:
                await asyncio.wait_for(ended(worker), _LIMIT)
            except TimeoutError:
                await kill(worker)


async def run(pages: Sequence[Page], progress: Progress) -> list[Outcome]:
    """Start a broker and workers, and hash all files."""
    async with mqcore.Broker(listen=["emqp://127.0.0.1:0"]) as broker:
        # The first socket is for workers, the second one for clients.
        backend, frontend = (url.partition("?")[0].rpartition(":")[2] for url in broker.listeners[:2])
        url = f"emqp://127.0.0.1:{backend}?frontend={frontend}"
        hashing.jobs.locate(url)
        try:
            async with _workers(url) as workers:
                return [await _hash(pages, workers, progress)]
        finally:
            await asyncio.to_thread(hashing.jobs.close)


async def _hash(pages: Sequence[Page], workers: Sequence[asyncio.subprocess.Process], progress: Progress) -> Outcome:
    outcome = Hashes("library-hashes", "roundrobin", "the hash of each file, although a worker dies")
    task = progress.add_task("jobs: hashes", total=len(pages))
    sent = [(page, await hashing.hash_file.aenqueue(page.path)) for page in pages]
    outcome.jobs = len(sent)
    doomed = workers[0]
    done: Counter[int] = Counter()
    for page, job in sent:
        if doomed.returncode is None and outcome.results >= len(pages) // 4:
            # Most of the other jobs still wait, and the worker holds some of them.
            doomed.kill()
            await doomed.wait()
        try:
            found = await job.aresult(_LIMIT)
        except errors.MqcoreError as error:
            outcome.require(False, f"{page.path}: {error}")
            break
        outcome.results += 1
        outcome.equal += found.sha256 == digest(page.body)
        outcome.again += found.attempt > 1
        done[found.worker] += 1
        progress.advance(task)
    outcome.require(outcome.equal == len(pages), f"only {outcome.equal} hashes of {len(pages)} are correct")
    outcome.require(doomed.returncode is not None, "no worker was killed")
    for number, worker in enumerate(workers, 1):
        fate = "killed by SIGKILL" if worker is doomed else "worked to the end"
        outcome.transcript.append(f"worker {number}: {done[worker.pid]} files, {fate}")
    outcome.transcript.append(
        f"{outcome.again} files were hashed by other workers, because worker 1 died with their jobs"
    )
    return outcome
