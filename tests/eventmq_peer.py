"""A raw ZMTP connection that speaks eMQP: bytes out, messages in, without libzmq between."""

from __future__ import annotations

import itertools
import select
import socket
import struct
from collections.abc import Sequence

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""First bytes in both directions."""

MORE, LONG, COMMAND = 1, 2, 4

Message = list[bytes]


def frame(body: bytes, flags: int = 0) -> bytes:
    """One frame."""
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | LONG]) + struct.pack(">Q", len(body)) + body


def message(parts: Sequence[bytes]) -> bytes:
    """A message of these frames."""
    return b"".join(frame(part, MORE if at + 1 < len(parts) else 0) for at, part in enumerate(parts))


def command(name: bytes, data: bytes = b"") -> bytes:
    """A command of ZMTP."""
    return frame(bytes([len(name)]) + name + data, COMMAND)


def ready(kind: bytes, identity: bytes = b"", token: str = "") -> bytes:
    """The command that ends the handshake."""
    properties = [(b"Socket-Type", kind), (b"Identity", identity)]
    if token:
        properties.append((b"X-Token", token.encode()))
    return command(
        b"READY",
        b"".join(bytes([len(key)]) + key + struct.pack(">I", len(value)) + value for key, value in properties),
    )


class EventmqPeer:
    """One connection to a listener of EventMQ."""

    def __init__(
        self, url: str, kind: bytes = b"DEALER", identity: bytes = b"", *, shakes: bool = True, token: str = ""
    ) -> None:
        host, _, port = url.partition("://")[2].partition("?")[0].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self._read = bytearray()
        self._marks = itertools.count()
        self.kept: list[Message] = []
        """Messages that came while something else was waited for."""
        if shakes:
            try:
                self._shake_hands(kind, identity, token)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> EventmqPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shake_hands(self, kind: bytes, identity: bytes, token: str) -> None:
        self.send_bytes(GREETING + ready(kind, identity, token))
        assert self._take(64)[:10] == GREETING[:10]
        name, _ = self._command()
        assert name == b"READY"

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def send_bytes(self, payload: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(payload)

    def send(self, *parts: bytes) -> None:
        """Send a message of these frames."""
        self.send_bytes(message(parts))

    def say(self, *words: str | bytes) -> None:
        """Send a message of eMQP: a command, an id, and the rest."""
        self.send(b"", b"eMQP/1.0", *(word.encode() if isinstance(word, str) else word for word in words))

    def read(self, size: int) -> bytes:
        """So many bytes. Raises `EOFError` if the other side closes before."""
        return self._take(size)

    def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            part = self.socket.recv(1 << 16)
            if not part:
                raise EOFError(bytes(self._read))
            self._read += part
        taken = bytes(self._read[:size])
        del self._read[:size]
        return taken

    def _frame(self) -> tuple[int, bytes]:
        flags = self._take(1)[0]
        size = struct.unpack(">Q", self._take(8))[0] if flags & LONG else self._take(1)[0]
        return flags, self._take(size)

    def _command(self) -> tuple[bytes, bytes]:
        flags, body = self._frame()
        assert flags & COMMAND, body
        return body[1 : 1 + body[0]], body[1 + body[0] :]

    def _next(self) -> Message | tuple[bytes, bytes]:
        """A message, or a command of ZMTP as name and data."""
        parts: Message = []
        while True:
            flags, body = self._frame()
            if flags & COMMAND:
                return body[1 : 1 + body[0]], body[1 + body[0] :]
            parts.append(body)
            if not flags & MORE:
                return parts

    def receive(self) -> Message:
        """The next message that is not a heartbeat. Raises `EOFError` if the other side closes before."""
        while True:
            found = self.kept.pop(0) if self.kept else self._next()
            if isinstance(found, list) and found[2:3] != [b"HEARTBEAT"]:
                return found

    def heard(self) -> Message:
        """The next message, heartbeats too."""
        while True:
            found = self._next()
            if isinstance(found, list):
                return found

    def has_input(self) -> bool:
        """Whether a message, or a part of one, has arrived."""
        return bool(self.kept or self._read or select.select([self.socket], [], [], 0)[0])

    def heard_or_control(self) -> Message | tuple[bytes, bytes]:
        """The next message, heartbeats too, or the next command of ZMTP as name and data."""
        return self._next()

    def until_now(self) -> list[Message]:
        """All messages that the broker has written before it answered to this; no heartbeats."""
        mark = b"mark%d" % next(self._marks)
        self.send_bytes(command(b"PING", b"\0\0" + mark))
        found, self.kept = self.kept, []
        while (said := self._next()) != (b"PONG", mark):
            if isinstance(said, list) and said[2:3] != [b"HEARTBEAT"]:
                found.append(said)
        return found

    def is_cut(self) -> bool:
        """Whether the other side closes; what it says before does not matter."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def inform(self, queues: str = "", slots: int = 0) -> None:
        """Join as a worker with so many free slots."""
        self.say("INFORM", "inform", queues, "worker")
        assert self.heard()[2:3] == [b"ACK"]
        assert self.heard()[2:3] == [b"HEARTBEAT"]
        for _ in range(slots):
            self.say("READY", "ready")
        self.kept = self.until_now()
