"""Raw loops of a producer and a consumer, each a process of its own, for benches whose broker runs in Python.

They write and read large pieces whose bytes are made once, so that the broker is what is measured. The producer stays
at most `AHEAD` messages ahead of the consumer, so that nothing has to be dropped.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from typing import Any

BODY_BYTES = 128
PIECE_BYTES = 64 * 1024
AHEAD = 8192
PATIENCE = 10.0
"""Seconds after which a consumer that gets nothing gives up: something was dropped, and the producer waits for it."""
PREAMBLE = b"TMQP/2.0"
SERVER, QUEUE, ROUTER = 0x10, 0x11, 0x17
HELLO, JOIN = 101, 601


def frame(
    kind: int, content_type: int, *, target: bytes = b"", wants_response: bool = False, body: bytes = b""
) -> bytes:
    """One frame whose payload length fits one byte."""
    second = wants_response << 7 | 16
    head = bytes((kind, second, 4, 0, len(target))) + struct.pack("<H", content_type) + bytes((len(body),))
    return head + b"0001" + target + body


def publication(kind: int, target: bytes) -> bytes:
    """One message, for a queue or for a router."""
    return frame(kind, 0, target=target, body=b"x" * BODY_BYTES)


def frame_size(frame: bytes) -> int:
    """How many bytes the frame at the front has, if its payload length fits one byte."""
    header = 2 + int.from_bytes(frame[8 + sum(frame[2:5]) :][:2], "little") if frame[1] & 0x20 else 0
    return 8 + sum(frame[2:5]) + header + frame[7]


@dataclass(frozen=True)
class Address:
    """Where to connect, and how."""

    port: int
    authority: str | None = None

    def context(self) -> ssl.SSLContext | None:
        """The settings of its connections, if they are encrypted."""
        return ssl.create_default_context(cafile=self.authority) if self.authority else None

    def connect(self, context: ssl.SSLContext | None, session: ssl.SSLSession | None = None) -> socket.socket:
        """A connection that has said nothing yet."""
        plain = socket.create_connection(("127.0.0.1", self.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return plain
        return context.wrap_socket(plain, server_hostname="localhost", session=session)

    def client(self) -> socket.socket:
        """A connection that has said Hello and was accepted."""
        stream = self.connect(self.context())
        stream.sendall(PREAMBLE + frame(SERVER, HELLO, body=b"CONNECT /\r\n"))
        received = b""
        while len(received) < len(PREAMBLE) + 8:
            received += stream.recv(4096)
        return stream


def produce(address: Address, message: bytes, seconds: float, begin: Any, consumed: Any) -> None:
    """Write a message again and again, as fast as it is taken, at most `AHEAD` before it is consumed."""
    stream = address.client()
    messages = PIECE_BYTES // len(message) // 4
    piece, sent = message * messages, 0
    begin.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if sent - consumed.value > AHEAD - messages:
            time.sleep(0)
            continue
        stream.sendall(piece)
        sent += messages
    stream.close()


def consume(address: Address, seconds: float, begin: Any, consumed: Any, result: Any) -> None:
    """Read for a while, and tell how many messages a second came."""
    stream = address.client()
    stream.sendall(frame(SERVER, JOIN, target=b"bench", wants_response=True))
    stream.recv(4096)
    begin.wait()
    # All deliveries are as long as the first.
    stream.settimeout(PATIENCE)
    first = stream.recv(PIECE_BYTES)
    size, before = frame_size(first), len(first)
    buffer, size_read, start = bytearray(1 << 20), 0, time.monotonic()
    while time.monotonic() < start + seconds:
        size_read += stream.recv_into(buffer)
        consumed.value = (before + size_read) // size
    result.put(size_read / size / (time.monotonic() - start))


def throughput(address: Address, message: bytes, seconds: float) -> float:
    """Messages a second from one producer to one consumer, who has joined the channel `bench`."""
    processes = multiprocessing.get_context("spawn")
    begin, result = processes.Barrier(2), processes.Queue()
    # One writes it and one reads it, so it needs no lock.
    consumed = processes.RawValue("Q", 0)
    workers = [
        processes.Process(target=consume, args=(address, seconds, begin, consumed, result)),
        processes.Process(target=produce, args=(address, message, seconds + 1, begin, consumed)),
    ]
    for worker in workers:
        worker.start()
    rate: float = result.get(timeout=seconds + 60)
    for worker in workers:
        worker.join()
    return rate
