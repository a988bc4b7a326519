"""What several test files need: a raw peer, which says exactly what a test tells it to say."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from typing import Self

import pytest

from mqcore.testing import tmqp

SERVER, QUEUE, ACKNOWLEDGE, RESPONSE = 0x10, 0x11, 0x13, 0x14
HELLO, ACCEPTED, JOIN_CHANNEL, CREATE_QUEUE = 101, 202, 601, 610


class Peer:
    """One TMQP connection over a socket, written frame by frame, without any cleverness."""

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        host, port = url.removeprefix("tmqp://").rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._numbers = itertools.count(1)
        self._socket.sendall(tmqp.PREAMBLE)
        assert self._take(8) == tmqp.PREAMBLE
        self.send(tmqp.Frame(SERVER, content_type=HELLO, payload=b"CONNECT /\r\n"))
        accepted = self.receive()
        assert (accepted.kind, accepted.content_type) == (SERVER, ACCEPTED)
        self.id = accepted.target

    def send(self, *frames: tmqp.Frame) -> None:
        self._socket.sendall(b"".join(tmqp.encode(frame) for frame in frames))

    def send_octets(self, octets: bytes) -> None:
        self._socket.sendall(octets)

    def receive(self, timeout: float | None = None) -> tmqp.Frame:
        """The next frame. Raises TimeoutError if none comes within `timeout` seconds."""
        self._socket.settimeout(10.0 if timeout is None else timeout)
        while True:
            frame, consumed = tmqp.decode(self._buffer)
            if frame is not None:
                del self._buffer[:consumed]
                return frame
            octets = self._socket.recv(1 << 16)
            if not octets:
                raise ConnectionError("the broker has closed the connection")
            self._buffer += octets

    def next_id(self) -> bytes:
        return b"m%d" % next(self._numbers)

    def ping(self, timeout: float) -> None:
        """Sends a PING; returns when the PONG is there."""
        self.send_octets(tmqp.PING)
        while (self.receive(timeout)).kind != 0x0A:
            pass

    def join(self, channel: str) -> None:
        self.send(
            tmqp.Frame(
                SERVER,
                content_type=JOIN_CHANNEL,
                id=self.next_id(),
                target=channel.encode(),
                pending_response=True,
            )
        )
        response = self.receive()
        assert (response.kind, response.content_type) == (RESPONSE, 0)

    def create_queue(self, channel: str, queue: int, delivery_handler: str) -> None:
        self.send(
            tmqp.Frame(
                SERVER,
                content_type=CREATE_QUEUE,
                id=self.next_id(),
                target=channel.encode(),
                headers=b"Queue-Id:%d\r\nDelivery-Handler:%s\r\n" % (queue, delivery_handler.encode()),
                pending_response=True,
            )
        )
        response = self.receive()
        assert (response.kind, response.content_type) == (RESPONSE, 0)

    def publish(
        self, channel: str, queue: int, body: bytes, *, wants_acknowledge: bool = False, headers: bytes = b""
    ) -> bytes:
        message = self.next_id()
        self.send(
            tmqp.Frame(
                QUEUE,
                content_type=queue,
                id=message,
                target=channel.encode(),
                headers=headers,
                payload=body,
                pending_acknowledge=wants_acknowledge,
            )
        )
        return message

    def acknowledge(self, delivery: tmqp.Frame, *, negative: str | None = None) -> None:
        self.send(
            tmqp.Frame(
                ACKNOWLEDGE,
                content_type=delivery.content_type,
                id=delivery.id,
                target=delivery.target,
                headers=b"" if negative is None else b"Nack-Reason:%s\r\n" % negative.encode(),
            )
        )

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._buffer += self._socket.recv(1 << 16)
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken


@pytest.fixture
def connect() -> Iterator[Callable[[str], Peer]]:
    """Connects raw peers, and closes them when the test is over."""
    peers = []

    def connect(url: str) -> Peer:
        peers.append(Peer(url))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.close()
