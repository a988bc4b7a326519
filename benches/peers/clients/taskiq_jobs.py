"""Jobs of taskiq on Redis."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

from peers.clients.job_program import ADDRESS, PREFETCH, PROCESSES, RESULT_SECONDS_MAX, measure

taskiq_redis: Any = importlib.import_module("taskiq_redis")

POLL_SECONDS = 0.005
"""Pause between two questions for a result; its default is 0.2."""

backend = taskiq_redis.RedisAsyncResultBackend(redis_url=f"redis://{ADDRESS}/0")
# The stream keeps a job until it is acknowledged.
broker = taskiq_redis.RedisStreamBroker(url=f"redis://{ADDRESS}/0").with_result_backend(backend)


async def _nothing() -> None:
    pass


nothing = broker.task(task_name="taskiq_jobs.nothing")(_nothing)


async def _submit(count: int) -> None:
    started = [await nothing.kiq() for _ in range(count)]
    for task in started:
        await task.wait_result(check_interval=POLL_SECONDS, timeout=RESULT_SECONDS_MAX)


def main() -> None:
    """Measure, on one event loop."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(broker.startup())
    worker = [sys.executable, "-m", "taskiq", "worker", "peers.clients.taskiq_jobs:broker", "--workers", str(PROCESSES)]
    worker += ["--max-prefetch", str(PREFETCH // PROCESSES), "--log-level", "ERROR"]
    measure(worker, lambda count: loop.run_until_complete(_submit(count)))
    loop.run_until_complete(broker.shutdown())


if __name__ == "__main__":
    main()
