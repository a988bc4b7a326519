"""Load on a broker that is stopped in the middle of it: producers, consumers, workers, and what each observed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mqcore
from job_processes import WorkerProcess, lines_of, working
from mqcore import QueueOptions, QueueStatus, errors
from mqcore.client import Delivered
from mqcore.jobs import Job, Jobs
from ports import free_ports
from served import ServedBroker, serving

PRODUCERS = 3
CONSUMERS = 2
PREFETCH = 50
BURST = 20
"""Messages that a producer publishes before it waits for their confirmations."""

WORK = "work/1"
FENCE = "work/2"
"""A queue of the same channel: a message saved here proves that earlier acknowledgements are saved."""

SECONDS_OF_JOBS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
WORKERS = 2
SLOTS = 4
"""Concurrent jobs of one worker."""
WAITING_JOBS = 4
"""Jobs that wait in the queue while all slots are busy."""


@dataclass
class Place:
    """A data directory, and a broker and workers that keep their ports over restarts."""

    directory: Path
    drain_seconds: float

    def __post_init__(self) -> None:
        backend, frontend, admin, publish, subscribe, tmqp = free_ports(6)
        self.jobs_url = f"emqp://127.0.0.1:{backend}?frontend={frontend}&admin={admin}&subscribe={subscribe}"
        self._listen = (f"{self.jobs_url}&publish={publish}", f"tmqp://127.0.0.1:{tmqp}")

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.directory / "data"

    def broker(self) -> contextlib.AbstractContextManager[ServedBroker]:
        """Run the broker until the block ends."""
        listen = [word for url in self._listen for word in ("--listen", url)]
        return serving(*listen, "--data-dir", str(self.data), "--drain-timeout", f"{self.drain_seconds}s")

    @contextlib.contextmanager
    def workers(self) -> Iterator[list[WorkerProcess]]:
        """Run the workers until the block ends."""
        with contextlib.ExitStack() as stack:
            arguments = ("--pool", "thread", "--concurrency", str(SLOTS))
            yield [stack.enter_context(working(self.jobs_url, *arguments)) for _ in range(WORKERS)]


@dataclass
class Ledger:
    """Messages that clients published and consumed."""

    confirmed: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    """Acknowledged by a consumer; the broker may not have received it."""
    settled: set[str] = field(default_factory=set)
    """Acknowledged before a confirmed message of the same connection and channel."""
    in_process: dict[str, str] = field(default_factory=dict)
    """The message on which each consumer works."""


async def _produce(mq: mqcore.Client, producer: int, ledger: Ledger) -> None:
    number = 0
    while True:
        names = [f"{producer}-{number + at}" for at in range(BURST)]
        for receipt, name in zip(await mq.publish_many(WORK, names), names, strict=True):
            assert receipt.by == "server"
            ledger.confirmed.add(name)
        number += BURST


async def _consume(mq: mqcore.Client, consumer: str, ledger: Ledger, chance: random.Random) -> None:
    acked: list[str] = []
    async with mq.queue(WORK).consume(str, prefetch=PREFETCH) as messages:
        async for message in messages:
            ledger.in_process[consumer] = message.body
            await asyncio.sleep(chance.uniform(0.0, 0.005))
            ledger.acked.add(message.body)
            del ledger.in_process[consumer]
            await message.ack()
            acked.append(message.body)
            if len(acked) >= 10:
                await mq.publish(FENCE, b"")
                ledger.settled.update(acked)
                acked.clear()


class Traffic:
    """Producers and consumers that work until the broker ends."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self.ledger = Ledger()
        self._url = url
        self._chance = chance
        self._clients: list[mqcore.Client] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect all clients and let them work."""
        for number in range(PRODUCERS + CONSUMERS):
            self._clients.append(await mqcore.connect(self._url, name=f"peer-{number}"))
        work = [_produce(mq, number, self.ledger) for number, mq in enumerate(self._clients[:PRODUCERS])]
        work += [_consume(mq, mq.id, self.ledger, self._chance) for mq in self._clients[PRODUCERS:]]
        self._tasks = [asyncio.create_task(step) for step in work]

    @property
    def is_busy(self) -> bool:
        """Whether all consumers work on a message, and some messages are settled."""
        return len(self.ledger.in_process) == CONSUMERS and len(self.ledger.settled) >= 10

    async def stop(self) -> None:
        """Close all clients, whose broker has ended."""
        for mq in self._clients:
            await mq.close(drain=0)
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, (errors.MqcoreError, asyncio.CancelledError)), outcome


class JobLoad:
    """A client that keeps all slots of the workers busy, and what its jobs wrote to a file."""

    def __init__(self, url: str, trace: Path, chance: random.Random) -> None:
        self.trace = trace
        self._chance = chance
        self._jobs = Jobs(url)
        self._sent: list[Job[object]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_jobs)

    def __enter__(self) -> JobLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._jobs.close()

    def _send_jobs(self) -> None:
        # The broker may end while a job waits for buffer space.
        with contextlib.suppress(errors.Busy, errors.ConnectFailed):
            while not self._stopped.is_set():
                if len(self._sent) - len(self.ended()) < WORKERS * SLOTS + WAITING_JOBS:
                    seconds = self._chance.choice(SECONDS_OF_JOBS)
                    arguments = [str(self.trace), f"job-{len(self._sent)}", seconds]
                    self._sent.append(self._jobs.send("sample_jobs.work", arguments, guarantee=True))
                else:
                    self._stopped.wait(0.01)

    def stop(self) -> None:
        """Send no more jobs."""
        self._stopped.set()
        self._thread.join()

    def accepted(self) -> set[str]:
        """Jobs that the broker has saved."""
        return {f"job-{number}" for number, job in enumerate(self._sent) if job.is_dispatched}

    def begun(self) -> list[str]:
        """Jobs in the order in which they began, once for each run."""
        return self._traced("begin")

    def ended(self) -> list[str]:
        """Jobs in the order in which they ended, once for each run."""
        return self._traced("end")

    def _traced(self, event: str) -> list[str]:
        lines = [line.split() for line in lines_of(self.trace)]
        return [name for kind, name in lines if kind == event]

    @property
    def is_busy(self) -> bool:
        """Whether some jobs run and others have ended."""
        begun, ended = len(self.begun()), len(self.ended())
        return ended > 0 and begun - ended >= SLOTS


async def declare(url: str) -> None:
    """Create the queues of the load."""
    async with mqcore.connect(url) as mq:
        work = QueueOptions(status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, delivery_handler="at-least-once")
        await mq.declare("work", 1, work)
        await mq.declare("work", 2, QueueOptions(status=QueueStatus.CACHE, delivery_handler="at-least-once"))


async def remaining(url: str) -> list[Delivered[str]]:
    """Consume and settle all messages that wait in the queue."""
    async with mqcore.connect(url) as mq:
        stored = (await mq.queue(WORK).information()).messages
        left: list[Delivered[str]] = []
        async with mq.queue(WORK).consume(str, prefetch=stored + 1, idle_timeout=1.0) as messages:
            async for message in messages:
                left.append(message)
                await message.ack()
        assert len(left) == stored
        return left


def terminate(broker: ServedBroker, limit: float) -> float:
    """Send SIGTERM to the broker, which has to end with exit code 0 within `limit` seconds. Returns its seconds."""
    began = time.monotonic()
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(limit) == 0
    return time.monotonic() - began
