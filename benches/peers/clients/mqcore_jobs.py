"""Jobs of mqcore."""

from __future__ import annotations

import sys

from mqcore.jobs import Jobs
from peers.clients.job_program import ADDRESS, PREFETCH, PROCESSES, RESULT_SECONDS_MAX, measure

jobs = Jobs()


@jobs.task(name="mqcore_jobs.nothing")
def nothing() -> None:
    """Do nothing."""


def submit(count: int) -> None:
    """Enqueue jobs, each kept by the broker until it is done, and wait for their results."""
    task = nothing.using(guarantee=True)
    for job in [task.enqueue() for _ in range(count)]:
        job.result(RESULT_SECONDS_MAX)


if __name__ == "__main__":
    backend, frontend = ADDRESS.split(",")
    url = f"emqp://{backend}?frontend={frontend.rpartition(':')[2]}"
    worker = [sys.executable, "-m", "mqcore", "worker", "peers.clients.mqcore_jobs:jobs", "--broker", url]
    worker += ["--concurrency", str(PROCESSES), "--prefetch", str(PREFETCH)]
    jobs.locate(url)
    measure(worker, submit)
    jobs.close()
