"""The part for TMQP/2.0: queues of all seven statuses, a Python handler, producers and consumers; one is killed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import mqcore
from mqcore import errors
from mqcore.demo.library import Key, Page, digest, expected
from mqcore.demo.outcome import Outcome
from mqcore.demo.processes import ended

if TYPE_CHECKING:
    from rich.progress import Progress

    from mqcore.broker import QueueStats
    from mqcore.client import Client, Incoming
    from mqcore.client.options import Order

__all__ = ["run"]

_PRODUCERS = 4
_LIMIT = 120.0
"""Seconds to wait for any condition before it counts as failed."""


@dataclass(slots=True)
class Counted(Outcome):
    """Result of a queue, from its own counters."""

    arrived: int
    """Files that arrived intact, summed over consumers."""
    stats: QueueStats

    def numbers(self) -> dict[str, int]:
        """Counters of the queue, and arrived files."""
        stats = self.stats
        return {
            "accepted": stats.received,
            "deliveries": stats.deliveries,
            "acks": stats.acks,
            "nacks": stats.negative_acks,
            "requeued": stats.put_back,
            "dropped": sum(stats.dropped.values()),
            "arrived": self.arrived,
        }


class Librarian(mqcore.DeliveryHandler):
    """Accepts a file only if its content matches its label. The policy decides all other steps."""

    def __init__(self) -> None:
        self.latest: dict[str, Key] = {}
        """The last accepted file by queue."""

    def received_from_producer(
        self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
    ) -> mqcore.Decision:
        """Compare label and content."""
        found = hashlib.sha256(message).hexdigest()
        if found != message.headers.get("Sha256"):
            return mqcore.Decision(allow=False, acknowledge=mqcore.SendAck.NEGATIVE)
        self.latest[queue.address] = (message.headers["Path"], found)
        return mqcore.Decision(acknowledge=mqcore.SendAck.ALWAYS)


class Hall:
    """Environment of all scenes: broker, address, files, and functions to wait."""

    def __init__(self, broker: mqcore.Broker, librarian: Librarian, pages: Sequence[Page], progress: Progress) -> None:
        self.broker = broker
        self.librarian = librarian
        self.pages = pages
        self.progress = progress
        self.url = broker.listeners[0]

    def stats(self, queue: str) -> QueueStats:
        """Current counters of a queue."""
        return self.broker.stats().queue(queue)

    async def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until `condition()` is true; return false after a timeout."""
        deadline = time.monotonic() + _LIMIT
        while not condition():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True


class Scene:
    """A queue with its consumers."""

    status: ClassVar[mqcore.QueueStatus]
    promise: ClassVar[str]
    acknowledge: ClassVar[bool] = False

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        self.channel = f"library-{self.status}"
        self.queue = f"{self.channel}/0"
        self.stack = contextlib.AsyncExitStack()
        self.tasks: list[asyncio.Task[None]] = []
        self.bar = hall.progress.add_task(f"{self.status}: arrive", total=self.wanted())

    def wanted(self) -> int:
        """Number of expected files, summed over consumers."""
        return len(self.hall.pages)

    async def create(self, client: Client) -> None:
        """Create the queue."""
        options = mqcore.QueueOptions(
            status=self.status,
            request_acknowledge=self.acknowledge,
            acknowledge_timeout=_LIMIT,
            delivery_handler="librarian",
        )
        await client.create_queue(self.queue, options)

    async def open(self) -> None:
        """Connect the consumers before anything is published."""

    async def finish(self) -> Outcome:
        """Wait for the remaining files, and check the result."""
        raise AssertionError("each scene implements its own end")

    async def close(self) -> None:
        """Disconnect all clients."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.stack.aclose()

    async def enter(self, name: str) -> Client:
        """Connect one more client."""
        return await self.stack.enter_async_context(mqcore.connect(self.hall.url, name=name))

    async def attend(self, name: str, ledger: Counter[Key], refuse: Callable[[Key], bool] = lambda key: False) -> None:
        """Add a consumer that records files in its ledger, and rejects those that `refuse` selects."""
        client = await self.enter(name)
        messages = await self.stack.enter_async_context(client.queue(self.queue).consume())

        async def consume() -> None:
            async for message in messages:
                key = _key(message)
                if refuse(key):
                    await message.nack("not today")
                    continue
                if self.acknowledge:
                    await message.ack()
                ledger[key] += 1
                self.hall.progress.advance(self.bar)

        self.tasks.append(asyncio.create_task(consume()))

    def outcome(self, *ledgers: Counter[Key]) -> Counted:
        """Return the current result."""
        arrived = sum(ledger.total() for ledger in ledgers)
        status = str(self.status)
        return Counted(self.queue, status, self.promise, arrived, self.hall.stats(self.queue))


def _key(message: Incoming[bytes]) -> Key:
    return message.headers["Path"], digest(message.raw)


class Broadcast(Scene):
    """Two consumers; a slow one misses files, which are counted."""

    status = mqcore.QueueStatus.BROADCAST
    promise = "each file at most once to each of 2; missed ones are counted"

    async def open(self) -> None:
        self.ledgers: list[Counter[Key]] = [Counter(), Counter()]
        for number, ledger in enumerate(self.ledgers):
            await self.attend(f"listener-{number}", ledger)

    def wanted(self) -> int:
        return 2 * len(self.hall.pages)

    async def finish(self) -> Outcome:
        def accounted() -> int:
            heard = sum(ledger.total() for ledger in self.ledgers)
            return heard + self.hall.stats(self.queue).dropped["slow"]

        await self.hall.until(lambda: accounted() >= self.wanted())
        outcome = self.outcome(*self.ledgers)
        files = expected(self.hall.pages)
        for ledger in self.ledgers:
            outcome.require(ledger <= files, "files arrived twice, damaged, or were never sent")
        outcome.require(accounted() == self.wanted(), f"{accounted()} accounted for, not {self.wanted()}")
        return outcome


class Push(Scene):
    """Each consumer receives each file."""

    status = mqcore.QueueStatus.PUSH
    promise = "each file exactly once to each of 2"
    acknowledge = True

    async def open(self) -> None:
        self.ledgers: list[Counter[Key]] = [Counter(), Counter()]
        for number, ledger in enumerate(self.ledgers):
            await self.attend(f"reader-{number}", ledger)

    def wanted(self) -> int:
        return 2 * len(self.hall.pages)

    async def finish(self) -> Outcome:
        await self.hall.until(lambda: self.hall.stats(self.queue).acks >= self.wanted())
        outcome = self.outcome(*self.ledgers)
        files = expected(self.hall.pages)
        for ledger in self.ledgers:
            outcome.require(ledger == files, f"a reader has {ledger.total()} files, or wrong ones")
        return outcome


class RoundRobin(Scene):
    """Three consumers share the files; one rejects some, one is killed with unsettled files."""

    status = mqcore.QueueStatus.ROUND_ROBIN
    promise = "each file acknowledged exactly once, by one of 3; one is killed, one rejects"
    acknowledge = True

    async def open(self) -> None:
        self.steady: Counter[Key] = Counter()
        self.picky: Counter[Key] = Counter()
        self.killed: Counter[Key] = Counter()
        self.refused: set[Key] = set()
        self.turn = 0
        await self.attend("steady", self.steady)
        await self.attend("picky", self.picky, self._refuses)
        settle = min(100, len(self.hall.pages) // 10)
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mqcore.demo.mortal", self.hall.url, self.queue, str(settle)),
            stdout=asyncio.subprocess.PIPE,
        )
        await self._line()
        self.tasks.append(asyncio.create_task(self._watch_it_die()))

    def _refuses(self, key: Key) -> bool:
        """Every tenth file, none twice."""
        self.turn += 1
        if self.turn % 10 or key in self.refused:
            return False
        self.refused.add(key)
        return True

    async def _line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), _LIMIT)).decode().rstrip("\n")

    async def _watch_it_die(self) -> None:
        """Record the acknowledgements of the third consumer, and kill it once it holds unsettled files."""
        while "\t" in (line := await self._line()):
            path, sha256 = line.split("\t")
            self.killed[path, sha256] += 1
            self.hall.progress.advance(self.bar)
        if line == "holding":
            self.process.kill()
        await ended(self.process)

    async def finish(self) -> Outcome:
        await self.hall.until(lambda: self.hall.stats(self.queue).acks >= self.wanted())
        # The broker counts an acknowledgement shortly before the consumer records it.
        shared = (self.steady, self.picky, self.killed)
        await self.hall.until(lambda: sum(ledger.total() for ledger in shared) >= self.wanted())
        # The broker requeues the files of a killed consumer shortly before this process learns that it is dead.
        await self.hall.until(lambda: self.process.returncode is not None)
        outcome = self.outcome(*shared)
        stats = outcome.stats
        together = self.steady + self.picky + self.killed
        outcome.require(together == expected(self.hall.pages), f"{together.total()} files, or wrong ones")
        outcome.require(stats.acks == self.wanted(), f"{stats.acks} acknowledgements for {self.wanted()} files")
        outcome.require(stats.negative_acks == len(self.refused), "rejections were not counted")
        outcome.require(self.process.returncode not in (0, None), "the third consumer was not killed")
        outcome.require(
            stats.put_back > len(self.refused), "unsettled files of the killed consumer were not redelivered"
        )
        return outcome

    async def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        await super().close()


class Pull(Scene):
    """Pulls a hundred files at a time, alternating between oldest and newest first."""

    status = mqcore.QueueStatus.PULL
    promise = "each file exactly once, on request"

    async def finish(self) -> Outcome:
        ledger: Counter[Key] = Counter()
        client = await self.enter("puller")
        orders: Iterator[Order] = itertools.cycle(("fifo", "lifo"))
        async with client.join(self.channel):
            while batch := await client.queue(self.queue).pull(100, order=next(orders)):
                ledger.update(map(_key, batch))
                self.hall.progress.update(self.bar, completed=ledger.total())
        outcome = self.outcome(ledger)
        outcome.require(ledger == expected(self.hall.pages), f"{ledger.total()} files, or wrong ones")
        return outcome


class Cache(Scene):
    """Keeps the latest file for all clients."""

    status = mqcore.QueueStatus.CACHE
    promise = "the latest file, to each of 2 on every request"

    def wanted(self) -> int:
        return 4

    async def finish(self) -> Outcome:
        ledger: Counter[Key] = Counter()
        for name in ("first", "second"):
            client = await self.enter(f"{name}-asker")
            for _ in range(2):
                message = await client.queue(self.queue).get_cached()
                if message is not None:
                    ledger[_key(message)] += 1
                    self.hall.progress.advance(self.bar)
        outcome = self.outcome(ledger)
        latest = self.hall.librarian.latest[self.queue]
        outcome.require(ledger == Counter({latest: self.wanted()}), f"not {latest[0]} four times")
        return outcome


class Paused(Scene):
    """Delivers nothing until its status changes."""

    status = mqcore.QueueStatus.PAUSED
    promise = "nothing while paused; then each file exactly once"

    async def open(self) -> None:
        self.ledger: Counter[Key] = Counter()
        await self.attend("patient", self.ledger)

    async def finish(self) -> Outcome:
        stored = self.hall.stats(self.queue)
        waiting = self.outcome(self.ledger)
        waiting.require(stored.normal == self.wanted(), f"{stored.normal} files wait, not {self.wanted()}")
        waiting.require(stored.deliveries == 0, f"{stored.deliveries} were delivered while paused")
        client = await self.enter("warden")
        await client.update_queue(self.queue, mqcore.QueueOptions(status=mqcore.QueueStatus.PUSH))
        await self.hall.until(lambda: self.ledger.total() >= self.wanted())
        outcome = self.outcome(self.ledger)
        outcome.broken = waiting.broken
        outcome.require(self.ledger == expected(self.hall.pages), f"{self.ledger.total()} files, or wrong ones")
        return outcome


class Stopped(Scene):
    """Rejects all files."""

    status = mqcore.QueueStatus.STOPPED
    promise = "nothing; each publish is rejected"
    refusals = 0

    def wanted(self) -> int:
        return 0

    async def open(self) -> None:
        self.ledger: Counter[Key] = Counter()
        await self.attend("hopeful", self.ledger)

    async def finish(self) -> Outcome:
        outcome = self.outcome(self.ledger)
        outcome.require(outcome.arrived == 0, f"{outcome.arrived} files arrived")
        outcome.require(outcome.stats.received == 0, f"{outcome.stats.received} files were accepted")
        outcome.require(self.refusals == len(self.hall.pages), f"producers received {self.refusals} rejections")
        return outcome


_SCENES: tuple[type[Scene], ...] = (Broadcast, Push, RoundRobin, Pull, Cache, Paused, Stopped)


async def run(pages: Sequence[Page], progress: Progress) -> list[Outcome]:
    """Run all scenes at once in one broker; every producer publishes to all queues."""
    broker = mqcore.Broker(listen="tmqp://127.0.0.1:0")
    librarian = Librarian()
    broker.delivery_handlers["librarian"] = librarian
    async with broker:
        hall = Hall(broker, librarian, pages, progress)
        publishing = progress.add_task("publish", total=len(pages) * len(_SCENES))
        scenes = [scene(hall) for scene in _SCENES]
        try:
            async with mqcore.connect(hall.url, name="founder") as founder:
                for scene in scenes:
                    await scene.create(founder)
            for scene in scenes:
                await scene.open()
            shares = [pages[first::_PRODUCERS] for first in range(_PRODUCERS)]
            await asyncio.gather(
                *(_produce(hall, scenes, share, publishing, number) for number, share in enumerate(shares))
            )
            return [await scene.finish() for scene in scenes]
        finally:
            for scene in scenes:
                await scene.close()


async def _produce(hall: Hall, scenes: Sequence[Scene], share: Sequence[Page], bar: object, number: int) -> None:
    """A producer: publishes its share of the files to every queue, and one forgery that the handler must reject."""
    async with mqcore.connect(hall.url, name=f"producer-{number}") as client:
        for page in share:
            await asyncio.gather(*(_publish(client, scene, page) for scene in scenes))
            hall.progress.advance(bar, len(scenes))  # type: ignore[arg-type]
        for scene in scenes:
            await _forge(client, scene, share[0])


async def _publish(client: Client, scene: Scene, page: Page) -> None:
    try:
        await client.publish(scene.queue, page.body, headers={"Path": page.path, "Sha256": page.sha256})
    except errors.OperationError:
        if not isinstance(scene, Stopped):
            raise
        scene.refusals += 1


async def _forge(client: Client, scene: Scene, page: Page) -> None:
    with contextlib.suppress(errors.Nacked, errors.OperationError):
        await client.publish(scene.queue, page.body + b"#", headers={"Path": page.path, "Sha256": page.sha256})
        raise RuntimeError(f"a forgery of {page.path} was accepted by {scene.queue}")
