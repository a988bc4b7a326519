"""Jobs of Dramatiq on Redis."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from peers.clients.job_program import ADDRESS, PREFETCH, PROCESSES, RESULT_SECONDS_MAX, measure

dramatiq: Any = importlib.import_module("dramatiq")
brokers: Any = importlib.import_module("dramatiq.brokers.redis")
results: Any = importlib.import_module("dramatiq.results")
backends: Any = importlib.import_module("dramatiq.results.backends")

broker = brokers.RedisBroker(url=f"redis://{ADDRESS}/0")
broker.add_middleware(results.Results(backend=backends.RedisBackend(url=f"redis://{ADDRESS}/0")))
dramatiq.set_broker(broker)


def _nothing() -> int:
    # A result of `None` is logged as a likely mistake.
    return 0


nothing = dramatiq.actor(store_results=True, actor_name="nothing")(_nothing)


def submit(count: int) -> None:
    """Enqueue jobs and wait for their results."""
    for message in [nothing.send() for _ in range(count)]:
        message.get_result(block=True, timeout=RESULT_SECONDS_MAX * 1000)


if __name__ == "__main__":
    import os

    os.environ["dramatiq_queue_prefetch"] = str(PREFETCH // PROCESSES)  # noqa: SIM112 (its own spelling)
    worker = [
        sys.executable,
        "-m",
        "dramatiq",
        "peers.clients.dramatiq_jobs",
        "--processes",
        str(PROCESSES),
        "--threads",
        "1",
    ]
    measure(worker, submit)
