"""The part for MQKS: every file as one line, shared by two consumers of which one rejects some, and the first
dialog of the protocol document, typed into `nc` if it is installed."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mqcore
from mqcore.demo.library import Key, Page, digest, expected
from mqcore.demo.outcome import Outcome
from mqcore.demo.processes import kill

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["run"]

_LIMIT = 120.0
"""Seconds to wait for any condition before it counts as failed."""

_LINE_MAX = 64 << 20
"""Maximum bytes of a line: the largest file, a third larger because of base64."""

_REFUSED = 10
"""One delivery of this many is rejected once."""


@dataclass(slots=True)
class Lines(Outcome):
    """Result of a queue, in lines."""

    published: int = 0
    deliveries: int = 0
    refused: int = 0
    arrived: int = 0

    def numbers(self) -> dict[str, int]:
        """Counts of the clients."""
        return {
            "published": self.published,
            "deliveries": self.deliveries,
            "refused": self.refused,
            "arrived": self.arrived,
        }


class _Talker:
    """A client that writes and reads lines through `nc` if it is installed, else through a socket."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nc: asyncio.subprocess.Process | None
    ):
        self._reader = reader
        self._writer = writer
        self._nc = nc
        self.name = ""
        self.transcript: list[str] = []
        """Log of sent and received lines, for clients with a name."""

    @classmethod
    async def connect(cls, host: str, port: int, program: str | None) -> _Talker:
        """Connect; `program` is where `nc` is."""
        if program is None:
            reader, writer = await asyncio.open_connection(host, port, limit=_LINE_MAX)
            return cls(reader, writer, None)
        pipe = asyncio.subprocess.PIPE
        nc = await asyncio.create_subprocess_exec(program, host, str(port), stdin=pipe, stdout=pipe, limit=_LINE_MAX)
        assert nc.stdin is not None
        assert nc.stdout is not None
        return cls(nc.stdout, nc.stdin, nc)

    async def say(self, line: str) -> None:
        """Write a line."""
        self._note(">", line)
        self._writer.write(f"{line}\n".encode())
        await self._writer.drain()

    async def hear(self) -> str:
        """Read a line; empty at the end of the connection."""
        line = (await self._reader.readline()).decode().removesuffix("\n")
        self._note("<", line)
        return line

    def _note(self, direction: str, line: str) -> None:
        if self.name:
            self.transcript.append(f"{self.name:8}{direction} {line}")

    async def leave(self) -> None:
        """Close."""
        self._writer.close()
        if self._nc is None:
            await self._writer.wait_closed()
            return
        await kill(self._nc)


async def run(pages: Sequence[Page], progress: Progress) -> list[Outcome]:
    """Start a broker, send all files, and run the dialog."""
    listen = f"mqks://127.0.0.1:0?line_bytes_max={_LINE_MAX}"
    async with mqcore.Broker(listen=[listen], frame_bytes_max=_LINE_MAX) as broker:
        host, _, port = broker.listeners[0].removeprefix("mqks://").rpartition(":")
        return [await _library(host, int(port), pages, progress), await _hello_world(host, int(port))]


async def _library(host: str, port: int, pages: Sequence[Page], progress: Progress) -> Outcome:
    outcome = Lines("library-lines", "shared", "each file once to one of two, also after a rejection")
    task = progress.add_task("library-lines", total=len(pages))
    arrived: Counter[Key] = Counter()
    done = asyncio.Event()

    async def consume(name: str) -> None:
        talker = await _Talker.connect(host, port, None)
        try:
            await talker.say(f"{name} consume --confirm library-lines library --manual-ack")
            while (line := await talker.hear()) != f"{name} ok ":
                pass
            ready.release()
            while line := await talker.hear():
                _, _, message, properties, body = line.split(" ", 4)
                outcome.deliveries += 1
                if int(message) % _REFUSED == 0 and ",retry=" not in properties:
                    outcome.refused += 1
                    await talker.say(f"r{message} reject {name} {message}")
                    continue
                path, encoded = json.loads(body)
                arrived[path, digest(base64.b64decode(encoded))] += 1
                progress.advance(task)
                await talker.say(f"a{message} ack {name} {message}")
                if arrived.total() >= len(pages):
                    done.set()
        finally:
            await talker.leave()

    ready = asyncio.Semaphore(0)
    consumers = [asyncio.create_task(consume(name)) for name in ("alice", "bob")]
    try:
        for _ in consumers:
            await asyncio.wait_for(ready.acquire(), _LIMIT)
        publisher = await _Talker.connect(host, port, None)
        for number, page in enumerate(pages):
            body = json.dumps([page.path, base64.b64encode(page.body).decode()])
            await publisher.say(f"{number} publish library {body}")
            outcome.published += 1
        try:
            await asyncio.wait_for(done.wait(), _LIMIT)
        except TimeoutError:
            outcome.require(False, f"only {arrived.total()} of {len(pages)} files arrived")
        await publisher.leave()
    finally:
        for consumer in consumers:
            consumer.cancel()
        ended = await asyncio.gather(*consumers, return_exceptions=True)
    for end in ended:
        outcome.require(isinstance(end, asyncio.CancelledError), f"a consumer ended: {end!r}")
    outcome.arrived = (arrived & expected(pages)).total()
    outcome.require(arrived == expected(pages), "files are missing, damaged or duplicated")
    return outcome


async def _hello_world(host: str, port: int) -> Outcome:
    """Alice and Bob share a queue, Charlie has one of his own, and Dave greets them."""
    program = shutil.which("nc")
    people = "typed into nc" if program else "written to sockets, because nc is not installed"
    outcome = Lines("greetings", people, "the greeting reaches one of the two that share a queue, and the third client")
    subscriptions = {
        "Alice": "greetings hi hello",
        "Bob": "greetings hi hello",
        "Charlie": "greetings-and-byes hi hello bye good-bye",
    }
    talkers = {name: await _Talker.connect(host, port, program) for name in (*subscriptions, "Dave")}
    for name, talker in talkers.items():
        talker.name, talker.transcript = name, outcome.transcript
    try:
        async with asyncio.timeout(_LIMIT):
            for name, subscription in subscriptions.items():
                await talkers[name].say(f"{name} consume --confirm {subscription}")
                outcome.require(await talkers[name].hear() == f"{name} ok ", f"{name} got no answer")
            await talkers["Dave"].say("Dave publish --confirm hello world")
            outcome.published += 1
            outcome.require(await talkers["Dave"].hear() == "Dave ok ", "Dave got no answer")
            heard = [await talkers["Charlie"].hear()]
            both = {asyncio.create_task(talkers[name].hear()): talkers[name] for name in ("Alice", "Bob")}
            _, silent = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for waiting in silent:
                await both[waiting].say("none ping else")
            heard += [line for line in await asyncio.gather(*both) if line != "none ok else"]
    except TimeoutError:
        outcome.require(False, "a client waits for an answer")
        heard = []
    finally:
        for talker in talkers.values():
            await talker.leave()
    outcome.deliveries = outcome.arrived = len(heard)
    greeting = "{} ok Dave event=hello world"
    shared = [line for line in heard if line in {greeting.format("Alice"), greeting.format("Bob")}]
    outcome.require(len(shared) == 1, f"Alice and Bob received {shared}")
    outcome.require(heard.count(greeting.format("Charlie")) == 1 and len(heard) == 2, f"received {heard}")
    return outcome
