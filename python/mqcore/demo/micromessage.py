"""The part for MicroMessage2: every file through a queue to one of two receivers that acknowledge in batches, and
through a topic to two subscribers with complementary filters."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import mqcore
from mqcore.demo.library import Key, Page, digest, expected
from mqcore.demo.outcome import Outcome

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["run"]

_LIMIT = 120.0
"""Seconds to wait for any condition before it counts as failed."""

_WINDOW = 50
"""Maximum number of unacknowledged messages."""

_PART = 1 << 20
"""Bytes of a frame's payload; larger files are sent in parts."""

_AHEAD = 4
"""Files of the topic in flight: a topic stores nothing for slow subscribers."""

_SMALL = 8192
"""Minimum bytes of a file for the subscriber of large files."""

_COMMAND, _EXTENSION, _ERROR, _LARGE, _CONTINUED = 1, 2, 4, 8, 16


@dataclass(slots=True)
class Frames(Outcome):
    """Result of a destination, in frames."""

    published: int = 0
    deliveries: int = 0
    acknowledgements: int = 0
    arrived: int = 0

    def numbers(self) -> dict[str, int]:
        """Counts of the clients."""
        return {
            "published": self.published,
            "deliveries": self.deliveries,
            "acknowledgements": self.acknowledgements,
            "arrived": self.arrived,
        }


class _Peer:
    """A connection: handshake, then frames in both directions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sent = 0
        self.unacknowledged = 0

    @classmethod
    async def connect(cls, url: str) -> _Peer:
        """Connect, and agree on acknowledging in batches (1), subscribing (2) and answered commands (3)."""
        host, _, port = url.removeprefix("mm2://").rpartition(":")
        peer = cls(*await asyncio.open_connection(host, int(port)))
        required = f"batch-ack:max-count={_WINDOW};pub-sub;x-mqcore".encode()
        said = b"\x01\x00\x00\x04demo" + struct.pack(">H", len(required)) + required + b"\x00\x00"
        peer._writer.write(said)
        _, _, _, length = await peer._reader.readexactly(4)
        await peer._reader.readexactly(length)
        for _ in ("required", "optional"):
            (length,) = struct.unpack(">H", await peer._reader.readexactly(2))
            await peer._reader.readexactly(length)
        peer._writer.write(said)
        return peer

    async def frame(self) -> tuple[int, int, bytes, bytes]:
        """Receive a frame: its flags, its number (of a message) or id (of an extension), its properties and payload."""
        (flags,) = await self._reader.readexactly(1)
        number, properties = 0, b""
        if flags & _EXTENSION:
            (number,) = await self._reader.readexactly(1)
        elif not flags & (_COMMAND | _ERROR):
            number, length = struct.unpack(">HB", await self._reader.readexactly(3))
            await self._reader.readexactly(length)
            (length,) = struct.unpack(">H", await self._reader.readexactly(2))
            properties = await self._reader.readexactly(length)
        if flags & _LARGE:
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
        else:
            (length,) = await self._reader.readexactly(1)
        return flags, number, properties, await self._reader.readexactly(length)

    async def message(self) -> tuple[int, bytes, bytes]:
        """Receive a message, all its parts together: its number, its properties, its payload."""
        flags, number, properties, payload = await self.frame()
        while flags & _CONTINUED:
            flags, number, _, more = await self.frame()
            payload += more
        return number, properties, payload

    async def publish(self, destination: str, properties: str, payload: bytes) -> None:
        """Send a message once the window has room."""
        while self.unacknowledged >= _WINDOW:
            await self.acknowledged()
        self._sent = self._sent % 65535 + 1
        self.unacknowledged += 1
        parts = [payload[at : at + _PART] for at in range(0, len(payload), _PART)] or [b""]
        for place, part in enumerate(parts):
            listed = b"" if place else properties.encode()
            flags = (_LARGE if len(part) > 255 else 0) | (_CONTINUED if place + 1 < len(parts) else 0)
            head = struct.pack(">BHB", flags, self._sent, len(destination)) + destination.encode()
            size = struct.pack(">I" if flags & _LARGE else ">B", len(part))
            self._writer.write(head + struct.pack(">H", len(listed)) + listed + size + part)
        await self._writer.drain()

    async def acknowledged(self) -> None:
        """Receive an acknowledgement."""
        flags, _, _, payload = await self.frame()
        if not flags & _EXTENSION:
            raise ConnectionError(payload.decode(errors="replace"))
        (number,) = struct.unpack(">H", payload)
        self.unacknowledged = (self._sent - number) % 65535

    def acknowledge(self, number: int) -> None:
        """Acknowledge everything up to a number."""
        self._writer.write(bytes([_EXTENSION, 1, 2]) + struct.pack(">H", number))

    async def subscribe(self, destination: str, wanted: str = "") -> None:
        """Subscribe with a filter, and return once the broker has confirmed it."""
        text = f"subscribe;id=demo,destination={quote(destination, safe='')},filter={quote(wanted, safe='')}".encode()
        self._writer.write(bytes([_COMMAND, len(text)]) + text)
        _, _, _, answer = await self.frame()
        if answer != b"ok;id=demo":
            raise ConnectionError(answer.decode(errors="replace"))

    async def leave(self) -> None:
        """Close."""
        self._writer.close()
        await self._writer.wait_closed()


async def run(pages: Sequence[Page], progress: Progress) -> list[Outcome]:
    """Start a broker and send all files."""
    async with mqcore.Broker(listen=["mm2://127.0.0.1:0"]) as broker:
        url = broker.listeners[0]
        shared = Frames("library-batches", "shared", "each file once to one of two, whole")
        await _pass(url, pages, progress, shared, "library", ("", ""))
        topic = Frames("topic/library", "filtered", "small files to one, large ones to the other")
        filters = (f"size<N{_SMALL};path!=T", f"size>=N{_SMALL};path!=T")
        await _pass(url, pages, progress, topic, "topic/library", filters)
        return [shared, topic]


async def _pass(
    url: str, pages: Sequence[Page], progress: Progress, outcome: Frames, destination: str, filters: tuple[str, str]
) -> None:
    task = progress.add_task(outcome.queue, total=len(pages))
    arrived: Counter[Key] = Counter()
    done = asyncio.Event()
    room = asyncio.Semaphore(_AHEAD if destination.startswith("topic/") else len(pages))

    async def receive(peer: _Peer, wanted: str) -> None:
        delivered = 0
        while True:
            number, _, payload = await peer.message()
            head, _, body = payload.partition(b"\n")
            outcome.deliveries += 1
            delivered += 1
            fits = not wanted or (wanted.startswith("size<") == (len(body) < _SMALL))
            outcome.require(fits, f"{head.decode()} arrived at the wrong subscriber")
            arrived[json.loads(head), digest(body)] += 1
            progress.advance(task)
            room.release()
            if delivered % (_WINDOW // 2) == 0:
                peer.acknowledge(number)
                outcome.acknowledgements += 1
            if arrived.total() >= len(pages):
                done.set()

    peers = [await _Peer.connect(url) for _ in filters]
    for peer, wanted in zip(peers, filters, strict=True):
        await peer.subscribe(destination, wanted)
    receivers = [asyncio.create_task(receive(peer, wanted)) for peer, wanted in zip(peers, filters, strict=True)]
    publisher = await _Peer.connect(url)
    try:
        async with asyncio.timeout(_LIMIT):
            for page in pages:
                await room.acquire()
                properties = f"size:N{len(page.body)};path:T{quote(page.path, safe='')};"
                await publisher.publish(destination, properties, json.dumps(page.path).encode() + b"\n" + page.body)
                outcome.published += 1
            while publisher.unacknowledged:
                await publisher.acknowledged()
            await done.wait()
    except TimeoutError:
        outcome.require(False, f"only {arrived.total()} of {len(pages)} files arrived")
    finally:
        for receiver in receivers:
            receiver.cancel()
        ended = await asyncio.gather(*receivers, return_exceptions=True)
        for peer in (*peers, publisher):
            await peer.leave()
    for end in ended:
        outcome.require(isinstance(end, asyncio.CancelledError), f"a receiver ended: {end!r}")
    outcome.arrived = (arrived & expected(pages)).total()
    outcome.require(arrived == expected(pages), "files are missing, damaged or duplicated")
