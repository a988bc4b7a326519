"""Brokers and workers that are killed at random moments while jobs run; what tests of that share."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mqcore
from depth import choices, rounds
from eventmq_peer import EventmqPeer
from job_processes import WorkerProcess, working
from mqcore import QueueOptions, QueueStatus
from ports import free_ports
from served import ServedBroker, serving

ROUNDS = rounds("JOB", quick=2, full=50)
"""How often something is killed; `make jobs-crash` asks for more."""

JOBS_A_ROUND = 200
WINDOW = 50
"""Jobs that a client sends before it waits for what the broker says of them."""

RESULTS = "results"
"""The queue that results are kept in."""


@dataclass
class Place:
    """A broker with a data directory, workers, and ports that stay the same."""

    directory: Path
    workers_wanted: int = 2
    arguments: tuple[str, ...] = ()
    """Further arguments of the broker."""

    def __post_init__(self) -> None:
        self.chance = choices(__name__)
        backend, frontend, admin, publish, subscribe, tmqp = free_ports(6)
        ports = f"?frontend={frontend}&admin={admin}"
        self.url = f"emqp://127.0.0.1:{backend}{ports}"
        self.frontend = f"tcp://127.0.0.1:{frontend}"
        self.tmqp = f"tmqp://127.0.0.1:{tmqp}"
        listen = (f"{self.url}&publish={publish}&subscribe={subscribe}", self.tmqp)
        self._arguments = [word for url in listen for word in ("--listen", url)]
        self._arguments += ["--data-dir", str(self.directory / "data"), *self.arguments]
        self._broker: tuple[ServedBroker, contextlib.ExitStack] | None = None
        self._workers: list[tuple[WorkerProcess, contextlib.ExitStack]] = []
        self.broker_kills = self.worker_kills = 0

    def __enter__(self) -> Place:
        self.repair()
        return self

    def __exit__(self, *_: object) -> None:
        for _process, stack in (*self._workers, *([self._broker] if self._broker else [])):
            stack.close()

    def repair(self) -> None:
        """Start whatever is missing."""
        if self._broker is None:
            stack = contextlib.ExitStack()
            self._broker = stack.enter_context(serving(*self._arguments)), stack
        while len(self._workers) < self.workers_wanted:
            stack = contextlib.ExitStack()
            self._workers.append((stack.enter_context(working(self.url, "--concurrency", "2")), stack))

    @property
    def is_broker_up(self) -> bool:
        """Whether it has not been killed."""
        return self._broker is not None

    def kill_broker(self) -> None:
        """Kill the broker."""
        assert self._broker is not None
        (broker, stack), self._broker = self._broker, None
        broker.process.send_signal(signal.SIGKILL)
        stack.close()
        self.broker_kills += 1

    def kill_worker(self) -> None:
        """Kill one of the workers; its processes end with it."""
        worker, stack = self._workers.pop(self.chance.randrange(len(self._workers)))
        worker.process.send_signal(signal.SIGKILL)
        stack.close()
        self.worker_kills += 1

    def kill(self) -> None:
        """Kill a broker, a worker or both."""
        victims = self.chance.choice(["broker", "worker", "both"])
        if victims != "worker":
            self.kill_broker()
        if victims != "broker":
            self.kill_worker()

    def moment(self) -> None:
        """Let a random time pass."""
        time.sleep(self.chance.uniform(0.1, 1.2))

    async def declare_results(self) -> None:
        """Make the queue that results are kept in."""
        async with mqcore.connect(self.tmqp) as mq:
            options = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
            await mq.declare(RESULTS, 0, options)

    async def kept_results(self) -> int:
        """How many results there are."""
        async with mqcore.connect(self.tmqp) as mq:
            return (await mq.queue(RESULTS, 0).information()).messages

    async def take_results(self) -> list[tuple[str, object]]:
        """Take all results out of their queue: the job's id, and what it returned."""
        async with mqcore.connect(self.tmqp) as mq:
            count = (await mq.queue(RESULTS, 0).information()).messages
            pulled = await mq.queue(RESULTS, 0).pull(count, bytes) if count else []
            return [(message.id, json.loads(message.body)["value"]) for message in pulled]


@dataclass
class Sender:
    """A client that sends jobs until its broker ends, and records the answers."""

    frontend: str
    """Address at which the broker accepts jobs."""
    file: Path
    taken: set[str] = field(default_factory=set)
    """The broker said that it has them."""
    returned: dict[str, object] = field(default_factory=dict)
    """Results that came back."""

    def job(self, name: str) -> bytes:
        """A job that leaves its name in the file."""
        call = {"path": "sample_jobs", "callable": "write", "args": [str(self.file), name], "kwargs": {}}
        return json.dumps(["run", {**call, "class_args": [], "class_kwargs": {}}]).encode()

    def _send(self, peer: EventmqPeer, names: list[str]) -> None:
        headers = f"guarantee,reply-requested,result-queue:{RESULTS}"
        for at in range(0, len(names), WINDOW):
            missing = set(names[at : at + WINDOW])
            for name in missing:
                peer.say("REQUEST", name, "default", headers, self.job(name))
            while missing:
                said = peer.receive()
                assert said[2] == b"REPLY", said
                if len(said) == 5:
                    missing.discard(said[4].decode())
                    self.taken.add(said[4].decode())
                else:
                    self.returned[said[5].decode()] = json.loads(said[4])["value"]

    def send_all(self, names: list[str]) -> None:
        """Send these, until the broker has all of them or ends."""
        with contextlib.suppress(OSError, EOFError), EventmqPeer(self.frontend) as peer:
            self._send(peer, names)

    @contextlib.contextmanager
    def sending(self, names: list[str]) -> Iterator[threading.Thread]:
        """Send these meanwhile. A client may resend jobs that the broker had not confirmed when it was killed."""

        thread = threading.Thread(target=self.send_all, args=(names,))
        thread.start()
        try:
            yield thread
        finally:
            thread.join(30)
            assert not thread.is_alive()
