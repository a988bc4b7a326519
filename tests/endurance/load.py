"""The common basis of all parts of the workload: pace, connections, consumers, and the comparison of queues."""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import mqcore
from endurance.account import Account, Findings
from endurance.place import Place
from mqcore import QueueOptions, QueueStatus, errors
from mqcore.client import Delivered

FENCE = 2
"""The queue of each channel to which a client publishes to learn that the broker saved what it sent before."""
BATCH = 10
"""Messages that a producer sends at once."""
WINDOW = 2000
"""Messages of a producer that may be neither settled nor known to be missing."""
RETRY_SECONDS = 0.02

SAVES = "at-least-once"
"""The policy of all queues."""
SHARED = QueueOptions(
    status=QueueStatus.ROUND_ROBIN,
    request_acknowledge=True,
    acknowledge_timeout="5m",
    retry_delay="10ms",
    delivery_handler=SAVES,
)
"""Options of a queue whose consumers acknowledge."""
PULLED = QueueOptions(status=QueueStatus.PULL, delivery_handler=SAVES)
"""Options of a queue from which messages are pulled."""


@dataclass(frozen=True, slots=True)
class Label:
    """The beginning of a body: which producer sent it, its number and its priority."""

    lane: str
    number: int
    priority: int = 0

    def body(self, size: int = 0) -> str:
        """A body of about this size. Its form suits all protocols."""
        return f"{self.lane} {self.number} {self.priority} {size + 1} {self._filling * (size + 1)}"

    @property
    def _filling(self) -> str:
        """A letter that depends on the number."""
        return chr(ord("a") + self.number % 26)

    @classmethod
    def of(cls, body: str) -> Label:
        """The label of a body. Raises `ValueError` if the body is not the one that was published."""
        lane, number, priority, size, filling = body.split(" ", 4)
        label = cls(lane, int(number), int(priority))
        if filling != label._filling * int(size):
            raise ValueError(f"the body of {label} is damaged: {filling[:100]!r}, {len(filling)} characters")
        return label


@dataclass
class Lane:
    """The messages of one producer: their numbers, their accounts, and how fast it may send them."""

    name: str
    accounts: tuple[Account, ...]
    rate: float | None
    """Messages per second; `None`: as many as the broker confirms."""
    window: int
    """Messages that may be open in each account before the producer pauses."""
    next_number: int = 0
    is_busy: bool = False
    confirmed: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    def sent(self, number: int, *, not_before: float = 0.0) -> None:
        """Record a message that the producer begins to publish."""
        for account in self.accounts:
            account.sent(number, not_before=not_before)

    def confirm(self, number: int) -> None:
        """Record that all its copies are confirmed as saved."""
        self.confirmed += 1
        for account in self.accounts:
            account.confirm(number)

    def record(self, numbers: Iterable[int], outcomes: Iterable[object]) -> None:
        """Record the outcome of each message: a receipt, or an error after which the broker may or may not have it."""
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self.failed(outcome)
            else:
                self.confirm(number)

    def failed(self, error: BaseException) -> None:
        """Count an error that left a message unconfirmed."""
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1


class Load:
    """When all producers send and all consumers take, and what they found."""

    def __init__(self, place: Place, chance: random.Random, rate: float | None) -> None:
        self.place = place
        self.chance = chance
        self.rate = rate
        self.findings = Findings()
        self.is_on = asyncio.Event()
        self.lanes: list[Lane] = []
        self._tasks: list[asyncio.Task[None]] = []

    # --- accounts --------------------------------------------------------------------------------------------------

    def account(self, name: str, **rules: bool) -> Account:
        """An account of a queue of the main broker."""
        return Account(name, self.findings, self.place.main.interruptions, **rules)

    def down_account(self, name: str, **rules: bool) -> Account:
        """An account of a queue of the downstream broker."""
        return Account(name, self.findings, self.place.down.interruptions, **rules)

    def lane(self, name: str, *accounts: Account, share: float = 1.0, window: int = WINDOW) -> Lane:
        """A producer, with this share of the usual rate."""
        rate = None if self.rate is None else self.rate * share
        lane = Lane(name, accounts, rate, window)
        self.lanes.append(lane)
        return lane

    # --- tasks -----------------------------------------------------------------------------------------------------

    def run(self, *works: Coroutine[Any, Any, None]) -> None:
        """Let these run until the load is closed."""
        self._tasks += [asyncio.create_task(work) for work in works]

    def check_tasks(self) -> None:
        """Raise the error of a producer or consumer that failed. None of them ends before the load is closed."""
        for task in self._tasks:
            if task.done():
                task.result()
                raise AssertionError(f"{task.get_coro()} ended")

    async def close(self) -> None:
        """End all producers and consumers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, condition: Callable[[], bool], what: str, limit: float) -> bool:
        """Wait until a condition holds; if it does not within `limit` seconds, that is a finding."""
        deadline = time.monotonic() + limit
        while not condition():
            self.check_tasks()
            if time.monotonic() > deadline:
                self.findings.add(f"after {limit:g} s still not: {what}")
                return False
            await asyncio.sleep(0.01)
        return True

    async def pause(self, limit: float) -> bool:
        """Let producers finish what they have begun, and begin nothing more."""
        self.is_on.clear()
        busy = [lane for lane in self.lanes if lane.is_busy]
        return await self.until(
            lambda: not any(lane.is_busy for lane in busy), "all producers have their answers", limit
        )

    # --- producers -------------------------------------------------------------------------------------------------

    def connect(self, url: str) -> mqcore.Client:
        """A client that reconnects soon, and whose calls wait for a broker that starts again."""
        return mqcore.connect(
            url, backoff_first="10ms", backoff_max="100ms", reconnect_attempts=None, request_timeout="60s"
        )

    async def batches(self, lane: Lane, size: int = BATCH) -> AsyncIterator[list[int]]:
        """Numbers of messages to send, as the rate allows and while the load is on."""
        due = time.monotonic()
        while True:
            lane.is_busy = False
            if not self.is_on.is_set():
                await self.is_on.wait()
                due = time.monotonic()
            while any(len(account) >= lane.window for account in lane.accounts):  # noqa: ASYNC110 (it changes often)
                await asyncio.sleep(0.005)
            if lane.rate is not None:
                # A producer that was held up does not send faster afterwards.
                due = max(due + size / lane.rate, time.monotonic() - 1.0)
                await asyncio.sleep(due - time.monotonic())
            if self.is_on.is_set():
                lane.is_busy = True
                first = lane.next_number
                lane.next_number += size
                yield list(range(first, first + size))

    def size(self) -> int:
        """The size of a body: mostly small."""
        return self.chance.choice((0, 20, 100, 100, 500, 2000)) if self.chance.random() < 0.99 else 30_000

    # --- queues ----------------------------------------------------------------------------------------------------

    async def declare(self, mq: mqcore.Client, address: str, options: QueueOptions) -> None:
        """Create a queue, and the fence of its channel."""
        channel, _, number = address.partition("/")
        await mq.declare(channel, int(number), options)
        await mq.declare(channel, FENCE, QueueOptions(status=QueueStatus.CACHE, delivery_handler=SAVES))

    async def empty(self, mq: mqcore.Client, address: str, limit: float) -> bool:
        """Wait until a queue has no message, and until that is saved."""
        deadline = time.monotonic() + limit
        while True:
            self.check_tasks()
            try:
                state = await mq.queue_information(address)
            except errors.NotFound:
                return True  # a dead-letter queue that was not needed yet
            if not state.messages + state.priority_messages + state.unsettled:
                await mq.publish(fence_of(address), b"")
                return True
            if time.monotonic() > deadline:
                counts = f"{state.messages + state.priority_messages} messages, {state.unsettled} unsettled"
                self.findings.add(f"{address} still has {counts} after {limit:g} s")
                return False
            await asyncio.sleep(0.02)


def fence_of(address: str) -> str:
    """The fence of a queue's channel."""
    return f"{address.partition('/')[0]}/{FENCE}"


class Consumer(ABC):
    """A consumer of one queue. A part overrides how it finds accounts, and what it decides about a message."""

    prefetch = 200

    def __init__(self, load: Load, url: str, address: str, *, pulls: bool = False) -> None:
        self.load = load
        self.url = url
        self.address = address
        self._pulls = pulls

    def label(self, message: Delivered[str]) -> Label:
        """The label of a message."""
        return Label.of(message.body)

    @abstractmethod
    def account(self, label: Label, message: Delivered[str]) -> Account | None:
        """The account of a message; `None` if it should not be in this queue."""

    def rejects(self, label: Label, account: Account) -> float | None:
        """Whether to reject a message: after how many seconds it may be delivered again; `None`: acknowledge it."""
        return None

    async def run(self) -> None:
        """Consume forever."""
        while True:
            try:
                async with self.load.connect(self.url) as mq, aclosing(self._batches(mq)) as batches:
                    async for batch in batches:
                        await self._take(mq, batch)
            except (errors.TransportError, errors.NotFound, errors.RequestTimeout):
                await asyncio.sleep(RETRY_SECONDS)

    async def _batches(self, mq: mqcore.Client) -> AsyncGenerator[Iterable[Delivered[str]], None]:
        queue = mq.queue(self.address)
        if not self._pulls:
            async for batch in queue.consume(str, prefetch=self.prefetch).batches(max=100, wait="5ms"):
                yield batch
        while self._pulls:
            if pulled := await queue.pull(100, str):
                yield pulled
            else:
                await asyncio.sleep(0.1)

    async def _take(self, mq: mqcore.Client, batch: Iterable[Delivered[str]]) -> None:
        """Settle some messages, then learn whether the broker saved that."""
        connects = mq.counters.connects
        acked: list[tuple[Account, int]] = []
        held: list[tuple[Account, int, float]] = []
        for message in batch:
            label = self.label(message)
            account = self.account(label, message)
            if account is None:
                self.load.findings.add(f"{self.address} got {label}, which belongs elsewhere")
                await message.ack()
                continue
            account.deliver(label.number, label.priority)
            delay = self.rejects(label, account)
            if delay is None:
                if await message.ack():
                    account.ack(label.number)
                    acked.append((account, label.number))
                continue
            moment = time.monotonic() + delay
            if await message.nack("not yet", delay=delay or None):
                account.nack(label.number)
                held.append((account, label.number, moment))
        try:
            await mq.publish(fence_of(self.address), b"")
        except errors.Busy:
            return  # the disk is full, so that nothing is proved
        # Over another connection, the fence proves nothing about these.
        if mq.counters.connects == connects:
            for account, number in acked:
                account.settle((number,))
            for account, number, moment in held:
                account.hold_until(number, moment)


class Part:
    """One kind of work: its queues, its producers and consumers, and what must hold when all of it has ended."""

    name = ""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.place = load.place

    def accounts(self) -> Iterable[tuple[str, Account]]:
        """Address and account of each queue of the main broker that must be empty in the end."""
        return ()

    def down_accounts(self) -> Iterable[tuple[str, Account]]:
        """The same for the downstream broker."""
        return ()

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        """Create what it needs."""

    def start(self) -> None:
        """Begin to produce, as soon as the load is on, and to consume."""

    async def finish(self, main: mqcore.Client, *, last: bool, limit: float) -> None:
        """Check what only this part knows, after its accounts have no missing message; `last`: in the end."""

    def summary(self) -> str:
        """Its work, in a few words."""
        return ""
