"""Jobs of Celery on Redis."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from peers.clients.job_program import ADDRESS, PREFETCH, PROCESSES, RESULT_SECONDS_MAX, measure

celery: Any = importlib.import_module("celery")
app = celery.Celery("celery_jobs", broker=f"redis://{ADDRESS}/0", backend=f"redis://{ADDRESS}/0")
app.conf.update(worker_prefetch_multiplier=PREFETCH // PROCESSES, worker_hijack_root_logger=False)


def _nothing() -> None:
    pass


nothing = app.task(name="celery_jobs.nothing")(_nothing)


def submit(count: int) -> None:
    """Enqueue jobs and wait for their results."""
    for result in [nothing.delay() for _ in range(count)]:
        result.get(timeout=RESULT_SECONDS_MAX)


if __name__ == "__main__":
    worker = [sys.executable, "-m", "celery", "-A", "peers.clients.celery_jobs", "worker"]
    measure([*worker, "--concurrency", str(PROCESSES), "--loglevel", "ERROR"], submit)
