"""A TMQP peer that does a client's everyday work, over the bytes of `tmqp_peer`: join, publish, acknowledge, ping."""

from __future__ import annotations

import socket
from typing import Self

from tmqp_peer import (
    ACKNOWLEDGE,
    CREATE_QUEUE,
    JOIN,
    PING_FRAME,
    PONG_FRAME,
    QUEUE,
    RawFrame,
    TmqpPeer,
)


class WorkerPeer(TmqpPeer):
    """A connection that has shaken hands."""

    @classmethod
    def connect(cls, url: str) -> Self:
        """Connects to a listener's URL."""
        host, _, port = url.removeprefix("tmqp://").rpartition(":")
        peer = cls(host, int(port))
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.hello()
        return peer

    @property
    def id(self) -> str:
        return self.client_id.decode()

    def next(self, timeout: float = 10.0) -> RawFrame:
        """The next frame. Raises TimeoutError if none comes within `timeout` seconds."""
        self.socket.settimeout(timeout)
        return self.receive()

    def ping(self, timeout: float) -> None:
        """Sends a PING and waits for its PONG. Nothing else may be on its way here."""
        self.socket.settimeout(timeout)
        self.socket.sendall(PING_FRAME)
        assert self.read(8) == PONG_FRAME

    def join(self, channel: str) -> None:
        assert self.ask(JOIN, channel).content_type == 0

    def create_queue(self, channel: str, queue: int, delivery_handler: str) -> None:
        headers = {"Queue-Id": str(queue), "Delivery-Handler": delivery_handler}
        assert self.ask(CREATE_QUEUE, channel, headers=headers).content_type == 0

    def publish_with_headers(self, channel: str, queue: int, headers: list[tuple[str, str]]) -> None:
        frame = RawFrame(
            kind=QUEUE,
            id=self.new_id(),
            target=channel.encode(),
            content_type=queue,
            headers=headers,
            pending_acknowledge=True,
        )
        self.send(frame)

    def acknowledge(self, delivery: RawFrame, *, negative: str | None = None) -> None:
        self.send(
            RawFrame(
                kind=ACKNOWLEDGE,
                id=delivery.id,
                target=delivery.target,
                content_type=delivery.content_type,
                headers=[] if negative is None else [("Nack-Reason", negative)],
            )
        )
