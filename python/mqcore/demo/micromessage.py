"""The part for MicroMessage2, through the client: every file through a queue that two share and of which one refuses
some, and through a topic whose two subscribers want the small and the large ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mqcore
from mqcore.demo.library import Key, Page, digest, expected
from mqcore.demo.outcome import Outcome
from mqcore.micromessage import headers, properties

if TYPE_CHECKING:
    from rich.progress import Progress

    from mqcore.client import Client

__all__ = ["run"]

_LIMIT = 120.0
"""Seconds after which anything that was waited for is taken as not coming."""

_REFUSED = 10
"""One message of so many is refused once."""

_SMALL = 8192
"""Octets of a file up to which it is a small one."""

_BATCH = 256
"""Files that are published together."""


@dataclass(slots=True)
class Frames(Outcome):
    """The story of a destination."""

    published: int = 0
    deliveries: int = 0
    refused: int = 0
    arrived: int = 0

    def numbers(self) -> dict[str, int]:
        """What was counted on the clients' side."""
        return {
            "published": self.published,
            "deliveries": self.deliveries,
            "refused": self.refused,
            "arrived": self.arrived,
        }


class _Desk:
    """Where the files of one destination arrive."""

    def __init__(self, outcome: Frames, pages: Sequence[Page], progress: Progress) -> None:
        self._outcome = outcome
        self._wanted = expected(pages)
        self._progress = progress
        self._task = progress.add_task(outcome.queue, total=len(pages))
        self._arrived: Counter[Key] = Counter()
        self._refused: set[str] = set()
        self._more = asyncio.Condition()

    async def receive(self, url: str, name: str, ready: asyncio.Semaphore, wanted: str | None = None) -> None:
        """Receive files, until cancelled."""
        async with mqcore.connect(url, name=name) as client:
            queue = client.queue(self._outcome.queue)
            async with queue.consume() if wanted is None else queue.consume(filter=wanted) as messages:
                ready.release()
                async for message in messages:
                    self._outcome.deliveries += 1
                    told = properties(message.headers)
                    path = str(told["path"])
                    if told.get("refuse") == 1 and path not in self._refused:
                        self._refused.add(path)
                        self._outcome.refused += 1
                        await message.nack()
                        continue
                    self._arrived[path, digest(message.raw)] += 1
                    await message.ack()
                    self._progress.advance(self._task)
                    async with self._more:
                        self._more.notify_all()

    async def caught_up(self) -> None:
        """Wait until everything that was published has arrived: a topic drops what a subscriber is too slow for."""
        async with asyncio.timeout(_LIMIT):
            async with self._more:
                await self._more.wait_for(lambda: self._arrived.total() >= self._outcome.published)

    async def finish(self) -> None:
        """Wait for the last file, and compare."""
        try:
            await self.caught_up()
        except TimeoutError:
            self._outcome.require(False, f"only {self._arrived.total()} of {self._wanted.total()} files came")
        self._outcome.arrived = (self._arrived & self._wanted).total()
        self._outcome.require(self._arrived == self._wanted, "files are missing, damaged, or came twice")


async def run(pages: Sequence[Page], progress: Progress) -> list[Outcome]:
    """Start a broker, and let all files pass twice."""
    async with mqcore.Broker(listen="mm2://127.0.0.1:0") as broker:
        (url,) = broker.listeners
        queue = Frames("library-frames", "queue", "each file once to one of two, whole, refused or not")
        topic = Frames("topic/library", "topic", "each file once to the one of two who wants it, by its size")
        either: list[tuple[str, str | None]] = [("ann", None), ("ben", None)]
        by_size = [("small", f"size<=N{_SMALL}"), ("large", f"size>N{_SMALL}")]
        return [await _pass(url, queue, either, pages, progress), await _pass(url, topic, by_size, pages, progress)]


async def _pass(
    url: str,
    outcome: Frames,
    receivers: Iterable[tuple[str, str | None]],
    pages: Sequence[Page],
    progress: Progress,
) -> Outcome:
    desk, ready = _Desk(outcome, pages, progress), asyncio.Semaphore(0)
    receiving = [asyncio.create_task(desk.receive(url, name, ready, wanted)) for name, wanted in receivers]
    try:
        for _ in receiving:
            await asyncio.wait_for(ready.acquire(), _LIMIT)
        async with mqcore.connect(url, name="dora") as publisher:
            await _publish(publisher, outcome, pages, desk)
        await desk.finish()
    finally:
        for task in receiving:
            task.cancel()
        ended = await asyncio.gather(*receiving, return_exceptions=True)
    for end in ended:
        outcome.require(isinstance(end, asyncio.CancelledError), f"a receiver ended: {end!r}")
    return outcome


async def _publish(publisher: Client, outcome: Frames, pages: Sequence[Page], desk: _Desk) -> None:
    """Publish each file, and count those that the broker has acknowledged; to a topic no faster than they arrive."""
    is_topic = outcome.queue.startswith("topic/")
    for begin in range(0, len(pages), _BATCH):
        batch = pages[begin : begin + _BATCH]
        publishing = [
            publisher.publish(
                outcome.queue,
                page.body,
                headers=headers(
                    {
                        "path": page.path,
                        "size": len(page.body),
                        # A topic keeps nothing that could come again.
                        "refuse": int(not is_topic and (begin + place) % _REFUSED == 0),
                    }
                ),
                timeout=_LIMIT,
            )
            for place, page in enumerate(batch)
        ]
        outcome.published += len(await asyncio.gather(*publishing))
        if is_topic:
            await desk.caught_up()
