"""The part for durability: a broker with a data directory is killed while it works, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mqcore
from mqcore import errors
from mqcore.demo.library import Key, Page, digest, expected
from mqcore.demo.outcome import Outcome
from mqcore.demo.processes import kill

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Served", "run", "serve"]

_PRODUCERS = 4
_CONSUMERS = 3
_WINDOW = 16
"""Files that a producer has in flight."""
_FENCED = 10
"""Number of acknowledgements after which a consumer waits until they are durable."""
_LIMIT = 60.0
"""Seconds to wait for any condition before it counts as failed."""

_QUEUE = "library-durable/0"
_FENCE = "library-durable/1"
"""Queue in the same channel and journal: its confirmation implies that everything sent before is durable."""


@dataclass(slots=True)
class Survival(Outcome):
    """Result of a queue whose broker was killed."""

    receipts: int
    acknowledged: int
    settled: int
    found_again: int
    arrived: int

    def numbers(self) -> dict[str, int]:
        """Confirmations and deliveries that clients received."""
        return {
            "receipts": self.receipts,
            "acknowledged": self.acknowledged,
            "settled before": self.settled,
            "found again": self.found_again,
            "arrived": self.arrived,
        }


class Served:
    """`mqcore serve` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def kill(self) -> None:
        """Kill the process with SIGKILL, so that it cannot clean up."""
        await kill(self.process)


@contextlib.asynccontextmanager
async def serve(directory: Path, *arguments: str, listen: str = "tmqp://127.0.0.1:0") -> AsyncIterator[Served]:
    """Run a broker on `directory` until the block ends."""
    os.makedirs(directory, exist_ok=True)
    log = directory / "broker.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MQCORE_")}
    data = ("--listen", listen, "--data-dir", str(directory / "data"))
    with log.open("ab") as lines:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mqcore", "serve", *data, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=lines,
            env=environment,
        )
    try:
        assert process.stdout is not None
        ready = await asyncio.wait_for(process.stdout.readline(), _LIMIT)
        if not ready:
            raise RuntimeError(f"the broker did not start: {log.read_text(errors='replace')}")
        yield Served(process, f"tmqp://{json.loads(ready)['listeners']['tmqp']}")
    finally:
        await kill(process)


class Story:
    """Confirmations of clients before and after the broker was killed."""

    def __init__(self, pages: Sequence[Page], progress: Progress) -> None:
        self.pages = pages
        self.progress = progress
        self.saved: set[Key] = set()
        """Files with a confirmation."""
        self.acknowledged: set[Key] = set()
        """Files that a consumer acknowledged; the broker may not have received it."""
        self.settled: set[Key] = set()
        """Files that a consumer acknowledged before a message whose confirmation it received."""
        self.arrived: Counter[Key] = Counter()
        self.room = asyncio.Event()
        """Whether producers may publish all files. Until then they keep some for after the restart."""
        self.connected = asyncio.Barrier(_PRODUCERS + _CONSUMERS)
        """Producers wait for the consumers: one that joined first would get all of a few files, and keep most."""
        self.publishing = progress.add_task("durable: receipts", total=len(pages))
        self.arriving = progress.add_task("durable: arrive", total=len(pages))

    async def produce(self, url: str, number: int, pages: Sequence[Page]) -> None:
        """Publish files with confirmations, several at a time."""
        async with mqcore.connect(url, name=f"producer-{number}") as client:
            await self.connected.wait()
            for first in range(0, len(pages), _WINDOW):
                if len(self.saved) >= len(self.pages) * 3 // 4:
                    await self.room.wait()
                await asyncio.gather(*(self._publish(client, page) for page in pages[first : first + _WINDOW]))

    async def _publish(self, client: mqcore.Client, page: Page) -> None:
        await client.publish(_QUEUE, page.body, headers={"Path": page.path})
        self.saved.add(page.key)
        self.progress.update(self.publishing, completed=len(self.saved))

    async def consume(self, url: str, number: int, quota: int | None) -> None:
        """Acknowledge `quota` files, then keep further ones unacknowledged. Without a quota, acknowledge all."""
        acknowledged: list[Key] = []
        async with (
            mqcore.connect(url, name=f"consumer-{number}") as client,
            client.queue(_QUEUE).consume() as messages,
        ):
            await self.connected.wait()
            for count in itertools.count(1):
                if quota is not None and count > quota:
                    await asyncio.Event().wait()
                message = await anext(messages)
                key = (message.headers["Path"], digest(message.raw))
                self.arrived[key] += 1
                self.acknowledged.add(key)
                self.progress.update(self.arriving, completed=len(self.acknowledged))
                await message.ack()
                acknowledged.append(key)
                if quota is not None and (count == quota or len(acknowledged) == _FENCED):
                    await client.publish(_FENCE, b"")
                    self.settled.update(acknowledged)
                    acknowledged.clear()


async def run(pages: Sequence[Page], progress: Progress) -> list[Outcome]:
    """Kill the broker once half of the files are saved and a quarter is settled; continue with a new one."""
    directory = Path(tempfile.mkdtemp(prefix="mqcore-demo-"))
    try:
        return [await _two_lives(pages, progress, directory)]
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


async def _two_lives(pages: Sequence[Page], progress: Progress, directory: Path) -> Survival:
    story = Story(pages, progress)
    async with serve(directory, "--history") as broker:
        await _declare(broker.url)
        await _first_life(broker, story)
    before, settled = set(story.saved), set(story.settled)
    story.arrived.clear()
    story.room.set()
    async with serve(directory, "--history") as broker:
        unfinished = await _second_life(broker, story)
    found = before & set(story.arrived)
    files = expected(pages)
    outcome = Survival(
        _QUEUE,
        str(mqcore.QueueStatus.ROUND_ROBIN),
        "confirmed files arrive; settled files are not redelivered",
        receipts=len(story.saved),
        acknowledged=len(story.acknowledged),
        settled=len(settled),
        found_again=len(found),
        arrived=len(story.arrived.keys() | story.acknowledged),
        data_dir=directory / "data",
    )
    got = story.arrived.keys() | story.acknowledged
    outcome.require(unfinished is None, unfinished or "")
    outcome.require(story.saved == set(files), f"only {len(story.saved)} files of {len(pages)} were confirmed")
    outcome.require(story.saved <= got, f"{len(story.saved - got)} confirmed files did not arrive")
    outcome.require(got <= set(files), "files arrived damaged, or were never sent")
    again = settled & set(story.arrived)
    outcome.require(not again, f"{len(again)} settled files were redelivered")
    # A file without a confirmation was published again, although the broker may have saved it.
    twice = {key for key, times in story.arrived.items() if times > 1} & before
    outcome.require(not twice, f"{len(twice)} saved files arrived twice")
    return outcome


async def _declare(url: str) -> None:
    async with mqcore.connect(url, name="founder") as client:
        saving = mqcore.QueueOptions(
            status=mqcore.QueueStatus.ROUND_ROBIN,
            request_acknowledge=True,
            acknowledge_timeout=_LIMIT,
            delivery_handler="at-least-once",
        )
        await client.create_queue(_QUEUE, saving)
        latest = mqcore.QueueOptions(status=mqcore.QueueStatus.CACHE, delivery_handler="at-least-once")
        await client.create_queue(_FENCE, latest)


async def _first_life(broker: Served, story: Story) -> None:
    """Run all clients, and kill the broker while they work."""
    half = len(story.pages) // 2
    quota = len(story.pages) // 4 // _CONSUMERS
    tasks = _producers(broker.url, story, story.pages)
    tasks += [asyncio.create_task(story.consume(broker.url, number, quota)) for number in range(_CONSUMERS)]
    try:
        await _until(
            lambda: len(story.saved) >= half and len(story.settled) >= quota * _CONSUMERS,
            "half of the files saved, and a quarter settled",
            tasks,
        )
        await broker.kill()
    finally:
        await _dismiss(tasks)


async def _second_life(broker: Served, story: Story) -> str | None:
    """Publish unconfirmed files again, consume all files, and report those that did not arrive in time."""
    rest = [page for page in story.pages if page.key not in story.saved]
    tasks = _producers(broker.url, story, rest)
    consumers = [asyncio.create_task(story.consume(broker.url, number, None)) for number in range(_CONSUMERS)]
    try:
        await asyncio.wait_for(asyncio.gather(*tasks), _LIMIT)
        await _until(lambda: len(story.acknowledged) >= len(story.pages), "the arrival of all files", consumers)
        async with mqcore.connect(broker.url, name="auditor") as auditor:
            await _drained(auditor, story)
    except TimeoutError as error:
        return str(error) or "publishing took too long"
    finally:
        await _dismiss([*tasks, *consumers])
    return None


async def _drained(auditor: mqcore.Client, story: Story) -> None:
    """Wait until no file is stored and all deliveries were received, so that no more can arrive."""
    deadline = time.monotonic() + _LIMIT
    while True:
        queue = await auditor.queue(_QUEUE).information()
        if queue.messages == 0 and queue.deliveries == story.arrived.total():
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{queue.messages} files are still stored after {_LIMIT} s")
        await asyncio.sleep(0.02)


def _producers(url: str, story: Story, pages: Sequence[Page]) -> list[asyncio.Task[None]]:
    shares = (pages[first::_PRODUCERS] for first in range(_PRODUCERS))
    return [asyncio.create_task(story.produce(url, number, share)) for number, share in enumerate(shares)]


async def _until(condition: Callable[[], bool], what: str, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until `condition()` is true. Raises the exception of a task that failed meanwhile."""
    deadline = time.monotonic() + _LIMIT
    while not condition():
        for task in tasks:
            if task.done():
                task.result()
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {_LIMIT} s waiting for {what}")
        await asyncio.sleep(0.01)


async def _dismiss(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Stop the clients. Clients of a killed broker may fail with a lost connection, but with no other error."""
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        if end is not None and not isinstance(end, (errors.MqcoreError, asyncio.CancelledError, StopAsyncIteration)):
            raise end
