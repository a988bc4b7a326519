"""How many jobs that do nothing are done in a second, from client to worker and back: python benches/jobs.py --help.

The same job on mqcore with its workers, and on Celery with Redis: one client, one broker, one worker of so many
processes, one after the other. A figure is from the first job that is sent to the last result that is there. And the
job manager of the original EventMQ, unchanged, on mqcore and on its own router: jobs that append to a file, by its
size. Beside the figures stand the microseconds of processor time that a job took, which say more on a busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from environments import environment

from mqcore.jobs import Jobs

HERE = Path(__file__).resolve().parent

jobs = Jobs()


@jobs.task
def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Result of a run."""

    rate: float
    """Jobs a second."""
    costs: Mapping[str, float]
    """Microseconds of processor time that a job took, by who spent them."""

    def __str__(self) -> str:
        spent = ", ".join(f"{who} {cost:,.0f}" for who, cost in self.costs.items())
        return f"{self.rate:,.0f} jobs/s (us a job: {spent})"


class Program:
    """A program that runs, and all that it starts."""

    def __init__(self, process: subprocess.Popen[bytes], said: dict[str, object]) -> None:
        self.process = process
        self.said = said

    def seconds(self) -> float:
        """Processor time that it and its processes have used."""
        listed = subprocess.run(
            ["ps", "-o", "cputimes=,pid=", "-g", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        ticks = 0
        for line in listed.stdout.splitlines():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{line.split()[1]}/stat").read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(
    *command: str | Path, ready: bool = False, directory: Path | None = None, **environment: str
) -> Iterator[Program]:
    """Run a program until the block ends, with its processes; `ready`: wait until it reports readiness."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE if ready else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory or HERE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        said = json.loads(process.stdout.readline()) if process.stdout is not None else {}
        yield Program(process, said)
    finally:
        # Its processes too, and none of ours.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def mqcore() -> Iterator[tuple[Program, dict[str, str]]]:
    """Run `mqcore serve`; with the addresses of its sockets."""
    with running(sys.executable, "-m", "mqcore", "serve", "--listen", "emqp://127.0.0.1:0", ready=True) as broker:
        listeners = broker.said["listeners"]
        assert isinstance(listeners, dict)
        yield broker, listeners


def mqcore_pace(count: int, processes: int, prefetch: int, guarantee: bool) -> Pace:
    """Jobs through `mqcore serve` and `mqcore worker`."""
    with mqcore() as (broker, listeners):
        backend, frontend = (listeners[name].rpartition(":")[2] for name in ("emqp", "emqp-frontend"))
        url = f"emqp://127.0.0.1:{backend}?frontend={frontend}"
        command = [sys.executable, "-m", "mqcore", "worker", "jobs:jobs", "--broker", url]
        command += ["--concurrency", str(processes), "--prefetch", str(prefetch)]
        with running(*command, ready=True) as worker:
            jobs.locate(url)
            # The worker's name for it: there this file is a module.
            assert nothing.name == "jobs.nothing"
            task = nothing.using(guarantee=guarantee)
            for job in [task.enqueue() for _ in range(20 * processes)]:
                job.result(60)
            spent = {"broker": broker.seconds, "worker": worker.seconds, "client": time.process_time}
            before = {who: seconds() for who, seconds in spent.items()}
            began = time.perf_counter()
            for job in [task.enqueue() for _ in range(count)]:
                job.result(120)
            elapsed = time.perf_counter() - began
            costs = {who: (seconds() - before[who]) / count * 1e6 for who, seconds in spent.items()}
            jobs.close()
            return Pace(count / elapsed, costs)


CELERY = """
import celery
app = celery.Celery("noop", broker={url!r}, backend={url!r})
app.conf.update(task_ignore_result=False, worker_hijack_root_logger=False, worker_prefetch_multiplier={prefetch})

@app.task
def nothing():
    pass
"""

CELERY_CLIENT = """
import sys, time, noop
for result in [noop.nothing.delay() for _ in range(200)]:
    result.get(timeout=60)
count, began, spent = int(sys.argv[1]), time.perf_counter(), time.process_time()
for result in [noop.nothing.delay() for _ in range(count)]:
    result.get(timeout=600)
print(time.perf_counter() - began, time.process_time() - spent)
"""


def celery_pace(count: int, processes: int, prefetch: int) -> Pace:
    """Jobs through Redis and a Celery worker."""
    python = environment("celery") / "python"
    with tempfile.TemporaryDirectory() as place, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        url = f"redis://127.0.0.1:{port}/0"
        (Path(place) / "noop.py").write_text(CELERY.format(url=url, prefetch=max(1, prefetch // processes)))
        command = [python, "-m", "celery", "-A", "noop", "worker", "-c", str(processes), "-l", "ERROR"]
        with (
            running("redis-server", "--port", str(port), "--save", "", directory=Path(place)) as redis,
            running(*command, directory=Path(place)) as worker,
        ):
            said = subprocess.run(
                [python, "-c", CELERY_CLIENT, str(count)], cwd=place, capture_output=True, text=True, check=True
            )
            elapsed, client = map(float, said.stdout.split())
            # With what they spent on getting ready, which is little beside this.
            costs = {"broker": redis.seconds() / count, "worker": worker.seconds() / count, "client": client / count}
            return Pace(count / elapsed, {who: seconds * 1e6 for who, seconds in costs.items()})


ORIGINAL_JOB = """
import os
file = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def mark():
    os.write(file, b".")
"""

ORIGINAL_CLIENT = """
import os, sys, time
from eventmq.sender import Sender
from eventmq.client.messages import defer_job
sender = Sender()
sender.connect(sys.argv[1])
done = lambda: os.path.getsize(os.environ["DONE"])
sent = 0
def go_on(until):
    global sent
    while time.perf_counter() < until:
        # What is ahead of the queue's own bounds would be lost without a word.
        while sent - done() < 400:
            defer_job(sender, "noop.mark")
            sent += 1
        time.sleep(0.002)
open(os.environ["DONE"], "ab").close()
go_on(time.perf_counter() + 3)
before, began = done(), time.perf_counter()
go_on(began + float(sys.argv[2]))
print((done() - before) / (time.perf_counter() - began))
"""

# Its programs write a line of their logs for each message, which halves their pace.
NO_LOG = "import logging\nlogging.disable(logging.CRITICAL)\n"


def original_rate(on_mqcore: bool, slots: int, seconds: float) -> float:
    """Jobs a second through the original's job manager with so many slots."""
    programs = environment("eventmq")
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        for name, text in (("noop.py", ORIGINAL_JOB), ("sitecustomize.py", NO_LOG)):
            (folder / name).write_text(text)
        if on_mqcore:
            _, listeners = stack.enter_context(mqcore())
            frontend, backend = (f"tcp://{listeners[name]}" for name in ("emqp-frontend", "emqp"))
        else:
            with contextlib.ExitStack() as probes:
                free = [probes.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
                frontend, backend, admin = (f"tcp://127.0.0.1:{probe.getsockname()[1]}" for probe in free)
            stack.enter_context(
                running(
                    programs / "emq-router",
                    PYTHONPATH=place,
                    EVENTMQ_WAL=str(folder / "router.log"),
                    EVENTMQ_FRONTEND_ADDR=frontend,
                    EVENTMQ_BACKEND_ADDR=backend,
                    EVENTMQ_ADMINISTRATIVE_ADDR=admin,
                )
            )
        around = {"PYTHONPATH": place, "DONE": str(folder / "done"), "EVENTMQ_WAL": str(folder / "wal.log")}
        addresses = ("EVENTMQ_WORKER_ADDR", "EVENTMQ_WORKER_ADDR_DEFAULT", "EVENTMQ_WORKER_ADDR_FAILOVER")
        stack.enter_context(
            running(
                programs / "emq-jobmanager",
                EVENTMQ_QUEUES='[[10, "default"]]',
                EVENTMQ_CONCURRENT_JOBS=str(slots),
                **around,
                **dict.fromkeys(addresses, backend),
            )
        )
        client = subprocess.run(
            [programs / "python", "-W", "ignore", "-c", ORIGINAL_CLIENT, frontend, str(seconds)],
            env={**os.environ, **around},
            capture_output=True,
            text=True,
            check=True,
        )
        return float(client.stdout)


def middle(paces: list[Pace]) -> Pace:
    """The one in the middle by its rate."""
    return sorted(paces, key=lambda pace: pace.rate)[len(paces) // 2]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="jobs [20000]")
    parser.add_argument("--processes", type=int, default=4, help="of the worker [4]")
    parser.add_argument("--prefetch", type=int, default=64, help="of the worker [64]")
    parser.add_argument("--runs", type=int, default=3, help="how often, of which the middle counts [3]")
    parser.add_argument("--seconds", type=float, default=6, help="of a run with the original's job manager [6]")
    parser.add_argument("--only", choices=["mqcore", "celery", "eventmq"], help="nothing but this")
    arguments = parser.parse_args()
    wanted = {arguments.only} if arguments.only else {"mqcore", "celery", "eventmq"}
    processes, prefetch = arguments.processes, arguments.prefetch
    ways = {
        f"kept until done, prefetch {prefetch}": (prefetch, True),
        f"at most once, prefetch {prefetch}": (prefetch, False),
        "kept until done, no prefetch": (0, True),
    }
    # One run of each in turn, so that a disturbance hits all alike.
    paces: dict[str, list[Pace]] = {}
    originals: dict[bool, list[float]] = {True: [], False: []}
    with_celery = "celery" in wanted and shutil.which("redis-server") is not None
    for _ in range(arguments.runs):
        for name, (ahead, guarantee) in ways.items() if "mqcore" in wanted else ():
            paces.setdefault(name, []).append(mqcore_pace(arguments.count, processes, ahead, guarantee))
        if with_celery:
            pace = celery_pace(max(1, arguments.count // 5), processes, prefetch)
            paces.setdefault("celery", []).append(pace)
        if "eventmq" in wanted:
            for on_mqcore, rates in originals.items():
                rates.append(original_rate(on_mqcore, processes, arguments.seconds))
    medians = {name: middle(found) for name, found in paces.items()}
    for name, pace in medians.items():
        times = f", {pace.rate / medians['celery'].rate:.1f} x celery" if {name, "celery"} <= medians.keys() else ""
        who = "celery on redis" if name == "celery" else f"mqcore, {name}"
        print(f"{who}, {processes} processes: {pace}{times}")
    if "celery" in wanted and not with_celery:
        print("celery: not measured; it needs redis-server")
    if originals[True]:
        ours, theirs = (statistics.median(originals[on_mqcore]) for on_mqcore in (True, False))
        print(f"the original's job manager, {processes} slots, on mqcore: {ours:,.0f} jobs/s")
        print(f"the same on its own router: {theirs:,.0f} jobs/s; mqcore {ours / theirs:.1f} x")


if __name__ == "__main__":
    main()
