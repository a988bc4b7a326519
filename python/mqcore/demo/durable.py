"""The part for what survives: a broker with a data directory is killed in the middle of the work and started again."""

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

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Served", "run", "serve"]

_PRODUCERS = 4
_CONSUMERS = 3
_WINDOW = 16
"""Files that a producer has under way at a time."""
_FENCED = 10
"""Acknowledgements after which a consumer makes sure that they are durable."""
_LIMIT = 60.0
"""Seconds after which anything that was waited for is taken as not coming."""

_QUEUE = "library-durable/0"
_FENCE = "library-durable/1"
"""Of the same channel, so of the same journal: a receipt for it comes after everything said before is durable."""


@dataclass(slots=True)
class Survival(Outcome):
    """The story of a queue that outlived its broker."""

    receipts: int
    acknowledged: int
    settled: int
    found_again: int
    arrived: int

    def numbers(self) -> dict[str, int]:
        """What clients were told, and what they got."""
        return {
            "receipts": self.receipts,
            "acknowledged": self.acknowledged,
            "settled before": self.settled,
            "found again": self.found_again,
            "arrived": self.arrived,
        }


class Served:
    """A `mqcore serve` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def kill(self) -> None:
        """End it as a power cut would: it learns nothing of it."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def serve(directory: Path, *arguments: str, listen: str = "tmqp://127.0.0.1:0") -> AsyncIterator[Served]:
    """A broker on the data of `directory`, until the block ends."""
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
        if process.returncode is None:
            process.kill()
        await process.wait()


class Story:
    """What the clients were told, before the broker was killed and after."""

    def __init__(self, pages: Sequence[Page], progress: Progress) -> None:
        self.pages = pages
        self.progress = progress
        self.saved: set[Key] = set()
        """A receipt said so."""
        self.acknowledged: set[Key] = set()
        """A consumer said so; the broker may not have heard it."""
        self.settled: set[Key] = set()
        """A consumer said so, and then got a receipt for something it published behind it."""
        self.arrived: Counter[Key] = Counter()
        self.room = asyncio.Event()
        """Producers may go on to the end. Until then they leave something for the time after."""
        self.publishing = progress.add_task("durable: receipts", total=len(pages))
        self.arriving = progress.add_task("durable: arrive", total=len(pages))

    async def produce(self, url: str, number: int, pages: Sequence[Page]) -> None:
        """Publish files with receipts, some at a time."""
        async with mqcore.connect(url, name=f"producer-{number}") as client:
            for first in range(0, len(pages), _WINDOW):
                if len(self.saved) >= len(self.pages) * 3 // 4:
                    await self.room.wait()
                await asyncio.gather(*(self._publish(client, page) for page in pages[first : first + _WINDOW]))

    async def _publish(self, client: mqcore.Client, page: Page) -> None:
        await client.publish(_QUEUE, page.body, headers={"Path": page.path})
        self.saved.add(page.key)
        self.progress.update(self.publishing, completed=len(self.saved))

    async def consume(self, url: str, number: int, quota: int | None) -> None:
        """Acknowledge `quota` files and then sit on what comes; without a quota, go on for ever."""
        acknowledged: list[Key] = []
        async with (
            mqcore.connect(url, name=f"consumer-{number}") as client,
            client.queue(_QUEUE).consume() as messages,
        ):
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
    """Kill the broker once half of the files are saved and a quarter of them settled; go on with another one."""
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
        "whatever a receipt called saved arrives; nothing settled comes again",
        receipts=len(story.saved),
        acknowledged=len(story.acknowledged),
        settled=len(settled),
        found_again=len(found),
        arrived=len(story.arrived.keys() | story.acknowledged),
        data_dir=directory / "data",
    )
    got = story.arrived.keys() | story.acknowledged
    outcome.require(unfinished is None, unfinished or "")
    outcome.require(story.saved == set(files), f"only {len(story.saved)} files of {len(pages)} got a receipt")
    outcome.require(story.saved <= got, f"{len(story.saved - got)} files were called saved and did not arrive")
    outcome.require(got <= set(files), "something arrived damaged, or was never sent")
    again = settled & set(story.arrived)
    outcome.require(not again, f"{len(again)} files were settled and came again")
    # A file without a receipt was published again: the broker may have had it all the same.
    twice = {key for key, times in story.arrived.items() if times > 1} & before
    outcome.require(not twice, f"{len(twice)} saved files came twice")
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
    """Everybody works; then the broker is killed under them."""
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
    """Publish what got no receipt, consume everything that is there; tell what did not come in time."""
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
    """Wait until nothing is stored, and all that was handed out was seen: only then nothing more can come."""
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
    """Wait until `condition()` is true; a task that failed meanwhile fails this too."""
    deadline = time.monotonic() + _LIMIT
    while not condition():
        for task in tasks:
            if task.done():
                task.result()
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_LIMIT} s in vain for {what}")
        await asyncio.sleep(0.01)


async def _dismiss(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Stop the clients. Those of a killed broker lost their connections; nothing else may have happened to them."""
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        if end is not None and not isinstance(end, (errors.MqcoreError, asyncio.CancelledError, StopAsyncIteration)):
            raise end
