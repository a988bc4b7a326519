"""Parts that concern single queues: priorities, delays, rejections, dead letters, expired messages, a backlog."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable

import mqcore
from endurance.account import Account
from endurance.load import PULLED, SHARED, Consumer, Label, Lane, Load, Part, fence_of
from mqcore.client import Delivered

PRIORITIES = (0, 0, 3, 128, 200, 255)


async def publish_batches(load: Load, lane: Lane, url: str, address: str) -> None:
    """Publish batches to a queue forever, each with a random priority."""
    async with load.connect(url) as mq:
        async for numbers in load.batches(lane):
            priority = load.chance.choice(PRIORITIES)
            bodies = [Label(lane.name, number, priority).body(load.size()) for number in numbers]
            for number in numbers:
                lane.sent(number)
            outcomes = await mq.publish_many(address, bodies, priority=priority, return_exceptions=True)
            lane.record(numbers, outcomes)


class _Single(Consumer):
    """A consumer of a queue with one account."""

    def __init__(self, load: Load, address: str, account: Account) -> None:
        super().__init__(load, load.place.main_urls["tmqp"], address)
        self._account = account

    def account(self, label: Label, message: Delivered[str]) -> Account | None:
        return self._account


class Priorities(Part):
    """A queue with priorities and a consumer: each priority keeps its order."""

    name = "work"
    QUEUE = "work/1"

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._account = load.account(self.QUEUE, is_ordered=True)
        self._lane = load.lane(self.name, self._account)

    def accounts(self) -> Iterable[tuple[str, Account]]:
        return [(self.QUEUE, self._account)]

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        await self.load.declare(main, self.QUEUE, SHARED)

    def start(self) -> None:
        self.load.run(
            publish_batches(self.load, self._lane, self.place.main_urls["tmqp"], self.QUEUE),
            _Single(self.load, self.QUEUE, self._account).run(),
        )


class Delays(Part):
    """Delayed messages, some of which are rejected with another delay: none is early, all come."""

    name = "later"
    QUEUE = "later/1"
    LONGEST = 0.6
    REJECTED = 8
    """Of so many messages, one is rejected at its first delivery."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._account = load.account(self.QUEUE)
        self._lane = load.lane(self.name, self._account)

    def accounts(self) -> Iterable[tuple[str, Account]]:
        return [(self.QUEUE, self._account)]

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        await self.load.declare(main, self.QUEUE, SHARED)

    def start(self) -> None:
        self.load.run(self._produce(), _Rejecting(self.load, self.QUEUE, self._account).run())

    async def _produce(self) -> None:
        async with self.load.connect(self.place.main_urls["tmqp"]) as mq:
            async for numbers in self.load.batches(self._lane):
                delay = self.load.chance.uniform(0.02, self.LONGEST)
                for number in numbers:
                    # The delay begins when the queue accepts the message, which is later than this.
                    self._lane.sent(number, not_before=time.monotonic() + delay)
                bodies = [Label(self.name, number).body(self.load.size()) for number in numbers]
                outcomes = await mq.publish_many(self.QUEUE, bodies, delay=delay, return_exceptions=True)
                self._lane.record(numbers, outcomes)


class _Rejecting(_Single):
    """Rejects some messages once, with a delay."""

    def rejects(self, label: Label, account: Account) -> float | None:
        nacks, _ = account.nacks_of(label.number)
        return 0.2 if label.number % Delays.REJECTED == 0 and nacks == 0 else None


class DeadLetters(Part):
    """Messages that are always rejected are dead-lettered, after as many attempts as their queue allows, and only they.

    Their dead-letter queue is the default one, which the broker creates. A message may be in both queues if the broker
    is killed while it moves.
    """

    name = "doomed"
    QUEUE = "doomed/1"
    LETTERS = "doomed/65535"
    ATTEMPTS = 3
    BAD = 4
    """Of so many messages, one is always rejected."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.good = load.account(self.QUEUE)
        self.bad = load.account(f"{self.QUEUE}, rejected", may_repeat=True)
        self.letters = load.account(self.LETTERS, may_repeat=True)
        self._lane = load.lane(self.name, self.good)

    def accounts(self) -> Iterable[tuple[str, Account]]:
        return [(self.QUEUE, self.good), (self.QUEUE, self.bad), (self.LETTERS, self.letters)]

    def is_bad(self, number: int) -> bool:
        """Whether the consumer always rejects it."""
        return number % self.BAD == 0

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        await self.load.declare(main, self.QUEUE, dataclasses.replace(SHARED, put_back_limit=self.ATTEMPTS))

    def start(self) -> None:
        url = self.place.main_urls["tmqp"]
        self.load.run(
            self._produce(),
            _Doomed(self.load, url, self.QUEUE, self).run(),
            _Letters(self.load, url, self.LETTERS, self).run(),
        )

    async def _produce(self) -> None:
        async with self.load.connect(self.place.main_urls["tmqp"]) as mq:
            async for numbers in self.load.batches(self._lane):
                for number in numbers:
                    if self.is_bad(number):
                        self.bad.sent(number)
                        self.letters.sent(number)
                    else:
                        self.good.sent(number)
                bodies = [Label(self.name, number).body(self.load.size()) for number in numbers]
                outcomes = await mq.publish_many(self.QUEUE, bodies, return_exceptions=True)
                for number, outcome in zip(numbers, outcomes, strict=True):
                    if isinstance(outcome, BaseException):
                        self._lane.failed(outcome)
                        continue
                    self._lane.confirmed += 1
                    # The account of rejected messages only counts deliveries: they end in the other queue.
                    (self.letters if self.is_bad(number) else self.good).confirm(number)


class _Doomed(Consumer):
    """Rejects the bad messages, whatever their attempt."""

    def __init__(self, load: Load, url: str, address: str, part: DeadLetters, *, pulls: bool = False) -> None:
        super().__init__(load, url, address, pulls=pulls)
        self._part = part

    def account(self, label: Label, message: Delivered[str]) -> Account | None:
        return self._part.bad if self._part.is_bad(label.number) else self._part.good

    def rejects(self, label: Label, account: Account) -> float | None:
        if account is not self._part.bad:
            return None
        nacks, kills = account.nacks_of(label.number)
        if kills == 0 and nacks > self._part.ATTEMPTS:
            self.load.findings.add(f"{self.address}: message {label.number} was retried {nacks} times")
        return 0.0


class _Letters(_Doomed):
    """Checks why each dead letter is one."""

    def __init__(self, load: Load, url: str, address: str, part: DeadLetters) -> None:
        super().__init__(load, url, address, part, pulls=True)

    def account(self, label: Label, message: Delivered[str]) -> Account | None:
        nacks, kills = self._part.bad.nacks_of(label.number)
        reason = message.headers.get("Dead-Letter-Reason"), message.headers.get("Dead-Letter-Queue")
        if reason != ("limit", self._part.QUEUE):
            self.load.findings.add(f"{self.address}: message {label.number} names as its origin {reason}")
        if kills == 0 and nacks and nacks != self._part.ATTEMPTS + 1:
            self.load.findings.add(f"{self.address}: message {label.number} is dead after {nacks} rejections")
        return self._part.letters if self._part.is_bad(label.number) else None

    def rejects(self, label: Label, account: Account) -> float | None:
        return None


class Expired(Part):
    """Messages that wait too long are dead-lettered with the reason, not before their time. No consumer takes them."""

    name = "mortal"
    QUEUE = "mortal/1"
    LETTERS = "graves/1"
    TIMEOUT = 0.3

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._letters = load.account(self.LETTERS, may_repeat=True)
        self._lane = load.lane(self.name, self._letters, share=0.5)

    def accounts(self) -> Iterable[tuple[str, Account]]:
        return [(self.LETTERS, self._letters)]

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        await self.load.declare(main, self.LETTERS, SHARED)
        mortal = dataclasses.replace(PULLED, message_timeout=self.TIMEOUT, dead_letter=self.LETTERS)
        await self.load.declare(main, self.QUEUE, mortal)

    def start(self) -> None:
        self.load.run(self._produce(), _Graves(self.load, self.LETTERS, self._letters).run())

    async def finish(self, main: mqcore.Client, *, last: bool, limit: float) -> None:
        await self.load.empty(main, self.QUEUE, limit)

    async def _produce(self) -> None:
        async with self.load.connect(self.place.main_urls["tmqp"]) as mq:
            async for numbers in self.load.batches(self._lane):
                for number in numbers:
                    self._lane.sent(number, not_before=time.monotonic() + self.TIMEOUT)
                bodies = [Label(self.name, number).body(self.load.size()) for number in numbers]
                self._lane.record(numbers, await mq.publish_many(self.QUEUE, bodies, return_exceptions=True))


class _Graves(_Single):
    """Checks why each message is here."""

    def account(self, label: Label, message: Delivered[str]) -> Account | None:
        reason = message.headers.get("Dead-Letter-Reason"), message.headers.get("Dead-Letter-Queue")
        if reason != ("expired", Expired.QUEUE):
            self.load.findings.add(f"{self.address}: message {label.number} names as its origin {reason}")
        return self._account


class Backlog(Part):
    """A queue that is emptied now and then only: its count fits, and its messages come by priority and in order."""

    name = "stock"
    QUEUE = "stock/1"
    MOST = 3000
    """Messages at which it is emptied. The producer pauses then."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._account = load.account(self.QUEUE)
        self._lane = load.lane(self.name, self._account, share=0.5, window=self.MOST)
        self._emptied = 0

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        await self.load.declare(main, self.QUEUE, PULLED)

    def start(self) -> None:
        self.load.run(publish_batches(self.load, self._lane, self.place.main_urls["tmqp"], self.QUEUE))

    async def finish(self, main: mqcore.Client, *, last: bool, limit: float) -> None:
        state = await main.queue_information(self.QUEUE)
        found = state.messages + state.priority_messages
        confirmed, unconfirmed = len(self._account.missing()), self._account.unconfirmed()
        if not confirmed <= found <= confirmed + unconfirmed:
            self.load.findings.add(
                f"{self.QUEUE} has {found} messages; {confirmed} are confirmed, and {unconfirmed} unknown"
            )
        if last or found >= self.MOST:
            await self._empty(main)

    async def _empty(self, main: mqcore.Client) -> None:
        before: tuple[int, int] | None = None
        while True:
            batch = await main.queue(self.QUEUE).pull(500, str)
            for message in batch:
                label = Label.of(message.body)
                place = -label.priority, label.number
                if before is not None and place <= before:
                    self.load.findings.add(f"{self.QUEUE}: {label} came after number {before[1]} of {-before[0]}")
                before = place
                self._account.deliver(label.number, label.priority)
                self._account.ack(label.number)
            if not batch:
                break
        # The queue wants no acknowledgements: a message is settled when it is written.
        await main.publish(fence_of(self.QUEUE), b"")
        self._account.close()
        self._emptied += 1

    def summary(self) -> str:
        return f"emptied {self._emptied} times"
