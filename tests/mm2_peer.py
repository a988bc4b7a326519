"""A raw MicroMessage2 connection: frames out, frames in, byte by byte and without any code of the broker's."""

from __future__ import annotations

import itertools
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, unquote_to_bytes

COMMAND, EXTENSION, ERROR, LARGE, CONTINUED = 1, 2, 4, 8, 16


class Cut(Exception):
    """The other side closed the connection."""


@dataclass(frozen=True)
class Handshake:
    """One message of the handshake."""

    required: str = ""
    optional: str = ""
    identity: bytes = b"peer"
    major: int = 1
    minor: int = 0

    def encode(self) -> bytes:
        """As it is written."""
        required, optional = self.required.encode(), self.optional.encode()
        return (
            struct.pack(">BBBB", self.major, self.minor, 0, len(self.identity))
            + self.identity
            + struct.pack(">H", len(required))
            + required
            + struct.pack(">H", len(optional))
            + optional
        )


@dataclass(frozen=True)
class Frame:
    """One frame that came."""

    kind: Literal["message", "command", "extension", "error"]
    payload: bytes
    sequence: int = 0
    destination: str = ""
    properties: str = ""
    id: int = 0
    flags: int = 0

    @property
    def text(self) -> str:
        """The payload as text."""
        return self.payload.decode()


def _length(payload: bytes) -> tuple[int, bytes]:
    return (LARGE, struct.pack(">I", len(payload))) if len(payload) > 255 else (0, bytes([len(payload)]))


def message(sequence: int, destination: str, payload: bytes, properties: str = "", *, continued: bool = False) -> bytes:
    """A SEND frame."""
    large, length = _length(payload)
    name, listed = destination.encode(), properties.encode()
    return (
        struct.pack(">BHB", large | (CONTINUED if continued else 0), sequence, len(name))
        + name
        + struct.pack(">H", len(listed))
        + listed
        + length
        + payload
    )


def command(text: str) -> bytes:
    """A COMMAND frame."""
    large, length = _length(text.encode())
    return bytes([COMMAND | large]) + length + text.encode()


def extension(number: int, payload: bytes) -> bytes:
    """An EXTENSION frame."""
    large, length = _length(payload)
    return bytes([EXTENSION | large, number]) + length + payload


def subscribe(destination: str, *, name: str = "", wanted: str = "") -> str:
    """The command that subscribes, under the id `name`, to messages that pass the filter `wanted`."""
    text = f"subscribe;destination={quote(destination, safe='')}"
    text += f",id={name}" if name else ""
    return text + (f",filter={quote(wanted, safe='')}" if wanted else "")


class MM2Peer:
    """One connection to an MM2 listener."""

    def __init__(self, url: str, *, identity: bytes = b"peer") -> None:
        scheme, _, rest = url.partition("://")
        if scheme.endswith("+unix"):
            self.socket = socket.socket(socket.AF_UNIX)
            address: str | tuple[str, int] = rest
        else:
            self.socket = socket.socket()
            host, _, port = rest.partition("?")[0].rpartition(":")
            address = (host, int(port))
        self.socket.settimeout(10)
        self.socket.connect(address)
        self.identity = identity
        self.ids: list[str] = []
        """The names of what was agreed on; the first has the number 1."""
        self._read = bytearray()
        self._early: deque[Frame] = deque()
        self._marks = itertools.count()
        self.sent = 0

    def __enter__(self) -> MM2Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def leave(self) -> None:
        """Say nothing more, and wait until the other side knows."""
        self.socket.shutdown(socket.SHUT_WR)
        self.rest()
        self.close()

    def send(self, *data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(b"".join(data))

    def read(self, size: int) -> bytes:
        """Receive exactly so many bytes. Raises `Cut` if the other side closes before."""
        while len(self._read) < size:
            try:
                part = self.socket.recv(1 << 20)
            except ConnectionResetError:
                part = b""
            if not part:
                raise Cut(bytes(self._read))
            self._read += part
        taken = bytes(self._read[:size])
        del self._read[:size]
        return taken

    # --- the handshake ---------------------------------------------------------------------------------------------

    def shake(self, required: str = "", optional: str = "") -> Handshake:
        """Make an offer and receive the reply. Raises `AssertionError` with the text of an error that comes instead."""
        self.send(Handshake(required, optional, self.identity).encode())
        return self.reply()

    def reply(self) -> Handshake:
        """Receive a message of the handshake."""
        first = self.read(1)
        assert first[0] not in (4, 12), self.text_of_error(first[0])
        minor, _, length = self.read(3)
        identity = self.read(length)
        (length,) = struct.unpack(">H", self.read(2))
        required = self.read(length).decode()
        (length,) = struct.unpack(">H", self.read(2))
        return Handshake(required, self.read(length).decode(), identity, first[0], minor)

    def text_of_error(self, flags: int) -> str:
        """The rest of an error whose flags were read."""
        size = struct.unpack(">I", self.read(4))[0] if flags & LARGE else self.read(1)[0]
        return self.read(size).decode()

    def conclude(self, required: str = "", optional: str = "") -> None:
        """Send the last message of the handshake."""
        self.send(Handshake(required, optional, self.identity).encode())
        listed = [item.partition(":")[0] for item in (required + ";" + optional).split(";")]
        self.ids = [item for item in listed if item]

    def open(self, required: str = "", optional: str = "") -> MM2Peer:
        """Agree on these extensions."""
        self.shake(required, optional)
        self.conclude(required, optional)
        return self

    def id_of(self, name: str) -> int:
        """The number of an extension."""
        return self.ids.index(name) + 1

    # --- frames ----------------------------------------------------------------------------------------------------

    def frame(self) -> Frame:
        """Receive a frame."""
        if self._early:
            return self._early.popleft()
        flags = self.read(1)[0]
        kind = flags & 7

        def payload() -> bytes:
            return self.read(struct.unpack(">I", self.read(4))[0] if flags & LARGE else self.read(1)[0])

        if kind == COMMAND:
            return Frame("command", payload(), flags=flags)
        if kind == ERROR:
            return Frame("error", payload(), flags=flags)
        if kind == EXTENSION:
            number = self.read(1)[0]
            return Frame("extension", payload(), id=number, flags=flags)
        assert kind == 0, flags
        sequence, length = struct.unpack(">HB", self.read(3))
        destination = self.read(length).decode()
        (length,) = struct.unpack(">H", self.read(2))
        properties = self.read(length).decode()
        return Frame("message", payload(), sequence, destination, properties, flags=flags)

    def frames(self, count: int) -> list[Frame]:
        """Receive so many frames."""
        return [self.frame() for _ in range(count)]

    def rest(self) -> list[Frame]:
        """Receive everything until the other side closes."""
        found = []
        try:
            while True:
                found.append(self.frame())
        except Cut:
            return found

    def error(self) -> str:
        """The text of the error with which the other side ends the conversation."""
        last = self.rest()[-1]
        assert last.kind == "error", last
        assert not self._read, "an error is the last word"
        return last.text

    def whole_message(self) -> Frame:
        """Receive a message, all its parts together."""
        parts = [self.frame()]
        while parts[-1].flags & CONTINUED:
            parts.append(self.frame())
        assert {part.kind for part in parts} == {"message"}, parts
        first = parts[0]
        body = b"".join(part.payload for part in parts)
        return Frame("message", body, parts[-1].sequence, first.destination, first.properties, flags=parts[-1].flags)

    def command(self, text: str) -> None:
        """Send a command."""
        self.send(command(text))

    def ask(self, text: str) -> str:
        """Send a command with an id, and receive its answer. Earlier frames are received later."""
        self.command(text)
        arguments = dict(pair.split("=") for pair in text.partition(";")[2].split(","))
        return self.answer(arguments["id"])

    def answer(self, name: str) -> str:
        """Receive the answer to the command of this id. Earlier frames are received later."""
        early: list[Frame] = []
        while True:
            frame = self.frame()
            assert frame.kind != "error", frame.text
            if frame.kind == "command":
                verdict, _, rest = frame.text.partition(";")
                arguments = dict(pair.split("=") for pair in rest.split(","))
                if arguments["id"] == name:
                    self._early = deque(early) + self._early
                    reason = unquote_to_bytes(arguments.get("reason", "")).decode()
                    return f"{verdict}: {reason}" if reason else verdict
            early.append(frame)

    def until_now(self) -> list[Frame]:
        """Receive all frames that the broker has written before it answered to this. Needs `x-mqcore`."""
        mark = f"mark-{next(self._marks)}"
        assert self.ask(f"ping;id={mark}") == "ok"
        found, self._early = list(self._early), deque()
        return found

    def publish(self, destination: str, payload: bytes, properties: str = "") -> int:
        """Send a message whole; its number."""
        self.sent = self.sent % 65535 + 1
        parts = [payload[at : at + (1 << 20)] for at in range(0, len(payload), 1 << 20)] or [b""]
        for place, part in enumerate(parts):
            continued = place + 1 < len(parts)
            listed = "" if place else properties
            self.send(message(self.sent, destination, part, listed, continued=continued))
        return self.sent

    def ack(self, sequence: int, name: str = "batch-ack") -> None:
        """Acknowledge everything up to a number."""
        self.send(extension(self.id_of(name), struct.pack(">H", sequence)))

    def nack(self, sequence: int) -> None:
        """Refuse one message."""
        self.send(extension(self.id_of("x-nack"), struct.pack(">H", sequence)))

    def acked(self, name: str = "batch-ack") -> int:
        """Receive an acknowledgement; its number."""
        frame = self.frame()
        assert (frame.kind, frame.id) == ("extension", self.id_of(name)), frame
        return int(struct.unpack(">H", frame.payload)[0])
