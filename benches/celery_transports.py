"""Celery tasks per second on mqcore, Redis and RabbitMQ: python benches/celery_transports.py --help.

The same tasks, worker and caller for each broker, one broker after the other in each round, so that all of them meet
the same noise of the machine. A figure is the median of the rounds.

- send: tasks that `delay` sends in a second, while no worker runs.
- run: tasks that a worker of one process runs in a second, from its first task to its last, from a full queue.
- both: the same while the caller sends, from the first `delay` to the end of the last task.
- results: the same with results, until the caller has the last one. RabbitMQ stores none; its row uses `rpc://`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from peers.machine import Processors
from peers.place import ROOT, Missing, Place
from peers.servers import SERVERS, Server

APP = """
import json
import os
from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_BROKER"], backend=os.environ.get("BENCH_BACKEND") or None)
app.conf.broker_transport_options = json.loads(os.environ["BENCH_OPTIONS"])
app.conf.update(worker_prefetch_multiplier=64, task_ignore_result=not os.environ.get("BENCH_BACKEND"))
done = os.open(os.environ["BENCH_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task
def nothing():
    os.write(done, b".")
"""

CALLER = """
import json, os, sys, time
from bench import nothing

count = int(sys.argv[1])
nothing.delay()
began = time.perf_counter()
results = [nothing.delay() for _ in range(count)]
sent = time.perf_counter()
if os.environ.get("BENCH_BACKEND"):
    for result in results:
        result.get(timeout=120)
print(json.dumps([began, sent, time.perf_counter()]))
"""

KINDS = ("mqcore", "mqcore-unconfirmed", "redis", "rabbitmq", "rabbitmq-confirmed")
FIGURES = ("send", "run", "both", "results")


@dataclass(frozen=True)
class Broker:
    """A broker that runs, as Celery sees it."""

    broker: str
    backend: str
    options: dict[str, bool]
    """The setting ``broker_transport_options``."""


def urls(kind: str, server: Server) -> Broker:
    """Return the settings for a broker."""
    addresses = server.addresses
    name, _, variant = kind.partition("-")
    # The defaults: mqcore confirms messages, RabbitMQ's transport does not.
    options = {"confirm_publish": variant == "confirmed"} if variant else {}
    match name:
        case "mqcore":
            return Broker(f"mqcore://{addresses['tmqp']}", f"mqcore://{addresses['throttr']}", options)
        case "redis":
            return Broker(f"redis://{addresses['redis']}/0", f"redis://{addresses['redis']}/1", options)
        case _:
            return Broker(f"amqp://guest:guest@{addresses['amqp']}//", "rpc://", options)


class Bench:
    """One broker, and programs that use it."""

    def __init__(self, directory: Path, broker: Broker, pool: str, count: int) -> None:
        self._directory = directory
        self._broker = broker
        self._pool = pool
        self._count = count
        (directory / "bench.py").write_text(APP)
        (directory / "caller.py").write_text(CALLER)

    def _environment(self, backend: bool) -> dict[str, str]:
        return os.environ | {
            "BENCH_BROKER": self._broker.broker,
            "BENCH_OPTIONS": json.dumps(self._broker.options),
            "BENCH_BACKEND": self._broker.backend if backend else "",
            "BENCH_DONE": str(self._directory / "done"),
        }

    def _done(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / "done").stat().st_size
        return 0

    def _wait(self, count: int, limit: float = 180.0) -> float:
        deadline = time.perf_counter() + limit
        while self._done() < count:
            if time.perf_counter() > deadline:
                raise Missing(f"only {self._done()} of {count} tasks ended within {limit} s")
            time.sleep(0.001)
        return time.perf_counter()

    def _call(self, backend: bool = False) -> list[float]:
        done = subprocess.run(
            [sys.executable, "caller.py", str(self._count)],
            cwd=self._directory,
            env=self._environment(backend),
            check=True,
            capture_output=True,
            text=True,
        )
        times: list[float] = json.loads(done.stdout)
        return times

    @contextlib.contextmanager
    def _worker(self, backend: bool = False) -> Iterator[None]:
        command = [sys.executable, "-m", "celery", "-A", "bench", "worker", "--loglevel", "WARNING"]
        command += ["--pool", self._pool, "--concurrency", "1", "--without-gossip", "--without-mingle"]
        with (self._directory / "worker.log").open("a") as log:
            process = subprocess.Popen(
                command, cwd=self._directory, env=self._environment(backend), stdout=log, stderr=log
            )
        try:
            yield
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()

    def _forget(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._directory / "done").unlink()

    def figures(self) -> dict[str, float]:
        """Measure once."""
        self._forget()
        began, sent, _ = self._call()
        figures = {"send": self._count / (sent - began)}
        with self._worker():
            first = self._wait(1)
            figures["run"] = self._count / (self._wait(self._count + 1) - first)
            before = self._done()
            began, _, _ = self._call()
            figures["both"] = self._count / (self._wait(before + self._count + 1) - began)
        with self._worker(backend=True):
            before = self._done()
            self._call_once_ready(before)
            began, _, ended = self._call(backend=True)
            figures["results"] = self._count / (ended - began)
        return figures

    def _call_once_ready(self, before: int) -> None:
        """Wait for the worker by sending it a task."""
        subprocess.run(
            [sys.executable, "-c", "from bench import nothing; nothing.delay().get(timeout=60)"],
            cwd=self._directory,
            env=self._environment(True),
            check=True,
        )
        self._wait(before + 1)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=5000, help="tasks of each figure [5000]")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median counts [3]")
    parser.add_argument("--pool", default="prefork", choices=("prefork", "threads", "solo"), help="[prefork]")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"brokers [{','.join(KINDS)}]")
    parser.add_argument("--scratch", type=Path, default=ROOT / "target" / "bench-peers", help="where brokers are")
    parser.add_argument("--json", type=Path, help="file for all figures")
    arguments = parser.parse_args()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    every = frozenset(os.sched_getaffinity(0))
    place = Place(arguments.scratch, load=Path(), mqcore=Path(sys.executable))
    found: dict[str, list[dict[str, float]]] = {}
    loads = [os.getloadavg()[0]]
    for turn in range(arguments.rounds):
        for kind in arguments.kinds.split(","):
            server_kind = SERVERS[kind.partition("-")[0]]
            with tempfile.TemporaryDirectory() as name:
                try:
                    program = server_kind.install(place)
                    with server_kind.start(program, "memory", Path(name), Processors(every, every)) as server:
                        figures = Bench(Path(name), urls(kind, server), arguments.pool, arguments.tasks).figures()
                except Missing as error:
                    print(f"{kind} skipped: {error}", flush=True)
                    continue
            found.setdefault(kind, []).append(figures)
            loads.append(os.getloadavg()[0])
            print(f"round {turn + 1}, {kind}: " + json.dumps({k: round(v) for k, v in figures.items()}), flush=True)
    print(f"load average {min(loads):.1f} to {max(loads):.1f}; pool {arguments.pool}; {arguments.tasks} tasks")
    print(f"{'':20}" + "".join(f"{figure:>10}" for figure in FIGURES))
    for kind, rounds in found.items():
        medians = [statistics.median(each[figure] for each in rounds) for figure in FIGURES]
        print(f"{kind:20}" + "".join(f"{median:10.0f}" for median in medians))
    if arguments.json:
        arguments.json.write_text(json.dumps({"loads": loads, "figures": found}, indent=1))


if __name__ == "__main__":
    main()
