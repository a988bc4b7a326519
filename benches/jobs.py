"""How many jobs that do nothing are done in a second, from client to worker and back: python benches/jobs.py --help.

The same job on mqcore with its workers, and, where it is installed, on Celery with Redis: one client, one broker, one
worker of so many processes, one after the other. A figure is from the first job that is sent to the last result that is
there, results asked for or not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mqcore.jobs import Job, Jobs

HERE = Path(__file__).resolve().parent

jobs = Jobs()


@jobs.task
def nothing() -> None:
    """Do nothing."""


@contextlib.contextmanager
def running(*command: str, ready: bool, directory: Path | None = None) -> Iterator[dict[str, object]]:
    """Run a program until the block ends; what its ready line says, if it has one."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=directory or HERE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()) if ready else {}
    finally:
        # Its processes too, and none of ours.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def mqcore_rate(count: int, processes: int, prefetch: int, guarantee: bool) -> float:
    """Jobs a second through `mqcore serve` and `mqcore worker`."""
    program = [sys.executable, "-m", "mqcore"]
    with running(*program, "serve", "--listen", "emqp://127.0.0.1:0", ready=True) as served:
        listeners = served["listeners"]
        assert isinstance(listeners, dict)
        backend, frontend = (str(address).rpartition(":")[2] for address in list(listeners.values())[:2])
        url = f"emqp://127.0.0.1:{backend}?frontend={frontend}"
        worker = [*program, "worker", "jobs:jobs", "--broker", url, "--concurrency", str(processes)]
        with running(*worker, "--prefetch", str(prefetch), ready=True):
            jobs.locate(url)
            task = nothing.using(guarantee=guarantee)
            # The worker's name for it: there this file is a module.
            warm = [jobs.send("jobs.nothing", queue="default") for _ in range(20 * processes)]
            for job in warm:
                job.result(60)
            assert task.name == "jobs.nothing"
            rate = timed(count, lambda: [task.enqueue() for _ in range(count)])
            jobs.close()
            return rate


CELERY = """
import celery
app = celery.Celery("noop", broker={url!r}, backend={url!r})
app.conf.update(task_ignore_result=False, worker_hijack_root_logger=False)

@app.task
def nothing():
    pass
"""


def celery_rate(count: int, processes: int, python: str) -> float:
    """Jobs a second through Redis and a Celery worker of the interpreter `python`."""
    with tempfile.TemporaryDirectory() as place, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        url = f"redis://127.0.0.1:{port}/0"
        (Path(place) / "noop.py").write_text(CELERY.format(url=url))
        worker = [python, "-m", "celery", "-A", "noop", "worker", "-c", str(processes), "-l", "ERROR"]
        program = f"""
import time, noop
for result in [noop.nothing.delay() for _ in range(200)]:
    result.get(timeout=60)
began = time.perf_counter()
for result in [noop.nothing.delay() for _ in range({count})]:
    result.get(timeout=600)
print({count} / (time.perf_counter() - began))
"""
        with (
            running("redis-server", "--port", str(port), "--save", "", ready=False, directory=Path(place)),
            running(*worker, ready=False, directory=Path(place)),
        ):
            said = subprocess.run([python, "-c", program], cwd=place, capture_output=True, text=True, check=True)
            return float(said.stdout)


def timed(count: int, send: Callable[[], list[Job[None]]]) -> float:
    """Jobs a second."""
    began = time.perf_counter()
    for job in send():
        job.result(120)
    return count / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="jobs [20000]")
    parser.add_argument("--processes", type=int, default=4, help="of the worker [4]")
    parser.add_argument("--runs", type=int, default=3, help="how often, of which the best counts [3]")
    parser.add_argument("--celery", metavar="PYTHON", default=sys.executable, help="which has celery[redis] [this]")
    arguments = parser.parse_args()
    best = 0.0
    for name, prefetch, guarantee in (
        ("kept until done", 0, True),
        ("kept until done, prefetch 32", 32, True),
        ("at most once, prefetch 32", 32, False),
    ):
        rates = [mqcore_rate(arguments.count, arguments.processes, prefetch, guarantee) for _ in range(arguments.runs)]
        best = max(best, *rates)
        print(f"mqcore, {arguments.processes} processes, {name}: {max(rates):,.0f} jobs/s")
    has_celery = arguments.celery != sys.executable or importlib.util.find_spec("celery") is not None
    if not has_celery or shutil.which("redis-server") is None:
        print("celery: not measured; it needs redis-server, and celery[redis] in --celery PYTHON")
        return
    rate = max(celery_rate(arguments.count, arguments.processes, arguments.celery) for _ in range(arguments.runs))
    print(f"celery on redis, {arguments.processes} processes: {rate:,.0f} jobs/s; mqcore {best / rate:.1f} x")


if __name__ == "__main__":
    main()
