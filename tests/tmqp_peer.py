"""A TMQP/2.0 peer made of a socket and thirty lines of codec, written from the protocol's text alone.

Tests that look at bytes use this one, so that a mistake in our codec cannot hide behind the same mistake in the test.
"""

from __future__ import annotations

import socket
import ssl
import struct
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

PREAMBLE = b"TMQP/2.0"

TERMINATE, PING, PONG = 0x08, 0x09, 0x0A
SERVER, QUEUE, DIRECT, ACKNOWLEDGE, RESPONSE, PULL, EVENT = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16

HELLO, ACCEPTED, UNAUTHORIZED = 101, 202, 401
JOIN, LEAVE, CREATE_CHANNEL = 601, 602, 603
CREATE_QUEUE, UPDATE_QUEUE, QUEUE_INFORMATION = 610, 612, 615

PING_FRAME = bytes.fromhex("89ff000000000000")
PONG_FRAME = bytes.fromhex("8aff000000000000")


@dataclass(kw_only=True)
class RawFrame:
    """One frame, its texts as bytes."""

    kind: int
    id: bytes = b""
    source: bytes = b""
    target: bytes = b""
    content_type: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    payload: bytes = b""
    first_acquirer: bool = False
    high_priority: bool = False
    pending_response: bool = False
    pending_acknowledge: bool = False
    hops: int = 16

    def header(self, key: str) -> str | None:
        """The first value of a key, in any case; `None` if there is none."""
        return next((value for name, value in self.headers if name.lower() == key.lower()), None)

    def encode(self) -> bytes:
        """The bytes of this frame."""
        text = "".join(f"{key}:{value}\r\n" for key, value in self.headers).encode()
        first = self.first_acquirer << 7 | self.high_priority << 6 | self.kind
        second = self.pending_response << 7 | self.pending_acknowledge << 6 | bool(text) << 5 | self.hops
        lengths = bytes((first, second, len(self.id), len(self.source), len(self.target)))
        size = len(self.payload)
        if size < 253:
            length = bytes((size,))
        elif size <= 0xFFFF:
            length = b"\xfd" + struct.pack("<H", size)
        else:
            length = b"\xfe" + struct.pack("<I", size)
        header = struct.pack("<H", len(text)) + text if text else b""
        head = lengths + struct.pack("<H", self.content_type) + length
        return head + self.id + self.source + self.target + header + self.payload


class PeerClosed(ConnectionError):
    """The broker closed the connection."""


class TmqpPeer:
    """One connection, read and written frame by frame. Everything waits `timeout` seconds at most.

    With `tls` it goes through TLS, to a broker that is called `localhost`.
    """

    def __init__(self, host: str, port: int, *, timeout: float = 10.0, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout)
        if tls is not None:
            try:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
            except OSError:
                self.socket.close()
                raise
        self.client_id = b""

    def hello(self, **properties: str) -> RawFrame:
        """Shake hands as the original client does, and return the answer to Hello. Keywords: `Client_Name="x"`."""
        lines = ["CONNECT /", *(f"{key.replace('_', '-')}: {value}" for key, value in properties.items())]
        body = "".join(f"{line}\r\n" for line in lines).encode()
        hello = RawFrame(kind=SERVER, id=self.new_id(), content_type=HELLO, payload=body, first_acquirer=True)
        self.socket.sendall(PREAMBLE + hello.encode())
        assert self.read(8) == PREAMBLE
        answer = self.receive()
        if answer.content_type == ACCEPTED:
            self.client_id = answer.target
        return answer

    def send(self, frame: RawFrame) -> None:
        """Write one frame."""
        self.socket.sendall(frame.encode())

    def ask(
        self, operation: int, target: str = "", *, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> RawFrame:
        """Send a server operation and return its response; other frames that come before are dropped."""
        request = RawFrame(
            kind=SERVER,
            id=self.new_id(),
            source=self.client_id,
            target=target.encode(),
            content_type=operation,
            headers=list((headers or {}).items()),
            payload=body,
            pending_response=True,
        )
        self.send(request)
        while True:
            answer = self.receive()
            if answer.kind == RESPONSE and answer.id == request.id:
                return answer

    def publish(self, channel: str, queue: int, body: bytes, *, confirm: bool = False) -> bytes:
        """Send a queue message and return its id."""
        frame = RawFrame(
            kind=QUEUE,
            id=self.new_id(),
            source=self.client_id,
            target=channel.encode(),
            content_type=queue,
            payload=body,
            pending_acknowledge=confirm,
        )
        self.send(frame)
        return frame.id

    def receive(self) -> RawFrame:
        """Read one frame; pings are answered and passed over."""
        while True:
            head = self.read(8)
            if head == PING_FRAME:
                self.socket.sendall(PONG_FRAME)
                continue
            if head == PONG_FRAME:
                continue
            return self._rest(head)

    def _rest(self, head: bytes) -> RawFrame:
        first, second, id_size, source_size, target_size, content_type, size = struct.unpack("<BBBBBHB", head)
        if size >= 253:
            width = {253: 2, 254: 4, 255: 8}[size]
            size = int.from_bytes(self.read(width), "little")
        frame = RawFrame(
            kind=first & 0x3F,
            id=self.read(id_size),
            source=self.read(source_size),
            target=self.read(target_size),
            content_type=content_type,
            first_acquirer=bool(first & 0x80),
            high_priority=bool(first & 0x40),
            pending_response=bool(second & 0x80),
            pending_acknowledge=bool(second & 0x40),
            hops=second & 0x1F,
        )
        if second & 0x20:
            text = self.read(int.from_bytes(self.read(2), "little")).decode()
            pairs = (line.partition(":") for line in text.split("\r\n") if ":" in line)
            frame.headers = [(key, value) for key, _, value in pairs]
        frame.payload = self.read(size)
        return frame

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes. Raises `PeerClosed` if the broker closes before."""
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise PeerClosed(f"closed after {len(parts)} of {size} bytes")
            parts += part
        return bytes(parts)

    def is_closed_within(self, seconds: float) -> bool:
        """Whether the broker closes the connection in that time; what it sends before is dropped."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    @staticmethod
    def new_id() -> bytes:
        """A message id as the original client makes them: 32 hexadecimal digits."""
        return uuid.uuid4().hex.encode()

    def close(self) -> None:
        """Close the connection, without a word."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
