"""Values that clients change during faults: an option of a queue, a schedule and a persistent limit.

Each has one writer, which writes growing numbers. A confirmed write stays, unless the writer has replaced it. A write
without an answer may take effect, even later. So the last value is the last confirmed one, or that of a write without
an answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import mqcore
from cluster_nodes import Cluster
from mqcore import QueueOptions, admin, errors
from mqcore.jobs import Jobs
from mqcore.throttr import SyncClient

QUEUE = "settings/1"
LIMIT = "spent"
QUOTA = 1_000_000_000
TTL_SECONDS = 30 * 86_400
"""Longer than faults set clocks ahead: deadlines are saved as times of the clock."""
PROTOCOLS = ("tmqp", "emqp", "throttr?value=uint64&persist=on")
"""Listeners that a cluster needs for this, in this order."""
LIMIT_LOSS_SECONDS = 2.0
"""A limit may lose what was spent in its last interval. Slow disks are allowed some more."""

Write = Callable[[int], None]


class Register:
    """A value, and the thread that writes it."""

    def __init__(self, name: str, connect: Callable[[int], contextlib.AbstractContextManager[Write]]) -> None:
        self.name = name
        self._connect = connect
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.confirmed: list[tuple[float, int]] = []
        self.unanswered: list[int] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _write(self) -> None:
        value = attempt = 0
        while not self._ends.is_set():
            attempt += 1
            with contextlib.suppress(errors.MqcoreError), self._connect(attempt) as write:
                while not self._ends.is_set():
                    value += 1
                    self.unanswered.append(value)
                    write(value)
                    self.unanswered.pop()
                    self.confirmed.append((time.monotonic(), value))
                    # The load of messages matters more.
                    time.sleep(0.01)
            time.sleep(0.02)

    def check(self, found: int) -> None:
        assert self.confirmed, f"nothing was written into the {self.name}"
        last = self.confirmed[-1][1]
        assert found == last or found in self.unanswered, (
            f"{self.name}: found {found}, but {last} was confirmed last, and only {self.unanswered[-5:]} had no answer"
        )


class Registers:
    """All registers of a cluster, which has listeners for `PROTOCOLS`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._faults: list[tuple[float, float]] = []
        self.option = Register("option of a queue", self._set_option)
        self.schedule = Register("interval of a schedule", self._set_interval)
        self.limit = Register("limit", self._spend)
        leader = cluster.leader()
        with mqcore.sync.connect(leader.url, patience=10.0) as client, contextlib.suppress(errors.AlreadyExists):
            client.create_queue(QUEUE)
        with SyncClient(self._limits(0), request_timeout=5.0) as limits:
            self._spent_before = 0
            if limits.insert(LIMIT, quota=QUOTA, ttl=TTL_SECONDS):
                # A new limit is saved after a moment, too.
                time.sleep(1.0)
            else:
                counter = limits.query(LIMIT)
                assert counter is not None
                self._spent_before = QUOTA - counter.quota

    def start(self) -> None:
        for register in (self.option, self.schedule, self.limit):
            register.start()

    def stop(self) -> None:
        for register in (self.option, self.schedule, self.limit):
            register.stop()

    def note_fault(self, begun: float, healed: float) -> None:
        """A fault lasted from `begun` to `healed`, by `time.monotonic`."""
        self._faults.append((begun, healed))

    def check(self) -> None:
        """The last confirmed values are there."""
        leader = self._cluster.leader()
        with mqcore.sync.connect(leader.url, patience=10.0) as client:
            self.option.check(client.queue_information(QUEUE).message_limit)
        intervals = [found.interval_ms for found in admin.schedules(leader.admin).schedules]
        assert len(intervals) == 1
        assert intervals[0] is not None
        self.schedule.check(intervals[0] - 3_600_000)
        with SyncClient(self._limits(0), request_timeout=5.0) as limits:
            counter = limits.query(LIMIT)
        assert counter is not None, "the limit is lost"
        spent = QUOTA - counter.quota - self._spent_before
        sure = [at for at, _ in self.limit.confirmed if not any(self._may_lose(at, *fault) for fault in self._faults)]
        most = len(self.limit.confirmed) + len(self.limit.unanswered)
        assert len(sure) <= spent <= most, f"{spent} is spent, not {len(sure)} to {most}"

    def _may_lose(self, at: float, begun: float, healed: float) -> bool:
        return begun - LIMIT_LOSS_SECONDS <= at <= healed + LIMIT_LOSS_SECONDS

    def _limits(self, attempt: int) -> str:
        nodes = self._cluster.nodes
        return nodes[attempt % len(nodes)].listeners[2].removesuffix("&persist=on")

    @contextlib.contextmanager
    def _set_option(self, attempt: int) -> Iterator[Write]:
        nodes = self._cluster.nodes
        with mqcore.sync.connect(nodes[attempt % len(nodes)].url, request_timeout=2.0) as client:
            yield lambda value: client.update_queue(QUEUE, QueueOptions(message_limit=value))

    @contextlib.contextmanager
    def _set_interval(self, attempt: int) -> Iterator[Write]:
        nodes = self._cluster.nodes
        jobs = Jobs(nodes[attempt % len(nodes)].listeners[1], timeout=2.0)

        @jobs.task(name="register.tick", queue="ticks")
        def tick() -> None:
            """Never run: there is no worker, and the interval is an hour."""

        def write(value: int) -> None:
            schedule = jobs.every((3_600_000 + value) / 1000, tick, nohaste=True)
            jobs.send_schedules()
            jobs._schedules.remove(schedule)  # The next one replaces it.

        try:
            yield write
        finally:
            jobs.close()

    @contextlib.contextmanager
    def _spend(self, attempt: int) -> Iterator[Write]:
        with SyncClient(self._limits(attempt), request_timeout=2.0) as limits:

            def write(_value: int) -> None:
                assert limits.decrease(LIMIT)

            yield write
