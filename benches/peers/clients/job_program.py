"""Measurement of a job system: a worker of four processes, and a client that waits for all results."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

__all__ = ["ADDRESS", "PREFETCH", "PROCESSES", "RESULT_SECONDS_MAX", "measure"]

PROCESSES = 4
"""Processes of the worker."""
PREFETCH = 64
"""Jobs that the worker may hold."""
RESULT_SECONDS_MAX = 120
ADDRESS = os.environ.get("BENCH_ADDRESS", sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:0")
"""HOST:PORT of the broker, in this process and in those of the worker."""


def measure(worker: list[str], submit: Callable[[int], None]) -> None:
    """Print the rate of `submit(count)`, which enqueues jobs and waits for all their results, as JSON."""
    numbers = dict(pair.split("=") for pair in sys.argv[3:])
    count = int(numbers.get("count", "1000"))
    process = subprocess.Popen(
        worker,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "BENCH_ADDRESS": ADDRESS},
        start_new_session=True,
    )
    try:
        # Until all processes have done some: they start one after the other.
        submit(20 * PROCESSES)
        start = time.perf_counter()
        submit(count)
        print(json.dumps({"rate": count / (time.perf_counter() - start), "messages": count}))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
