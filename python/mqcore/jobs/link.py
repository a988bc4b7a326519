"""A worker's conversation with its broker: it joins, says how many jobs it can take, and joins anew when it has to."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from mqcore.jobs import wire
from mqcore.jobs.dealer import Dealer

__all__ = ["Link"]

# All brokers of this protocol expect something this often, and send something as often.
_HEARTBEAT: Final = 3.0
# Silence after which the broker is taken to be gone.
_SILENCE_MAX: Final = 15.0
# How long it may take to be acknowledged. A broker that lost the request would never answer.
_JOIN_MAX: Final = 5.0

_BATCH: Final = 256

_LOG: Final = logging.getLogger("mqcore.worker")


class Link:
    """The worker's end. For one thread."""

    def __init__(self, endpoint: str, queues: Sequence[tuple[str, int]], token: str | None = None) -> None:
        self._endpoint = endpoint
        self._token = token
        self._queues = wire.encode_queues(queues)
        self._host = socket.gethostname()
        self._also: set[int] = set()
        self._waiting: list[Sequence[bytes]] = []
        self._dealer = self._open()
        self._has_complained = False
        self._ever_joined = False
        self._left = False
        self.is_joined = False
        """The broker has acknowledged us."""
        self.announced = 0
        """Jobs that it may still send."""

    @property
    def identity(self) -> str:
        """As whom the broker knows us."""
        return self._dealer.identity

    def _open(self) -> Dealer:
        dealer = Dealer(self._endpoint, f"worker-{self._host}-{os.getpid()}", token=self._token)
        for descriptor in self._also:
            dealer.also_poll(descriptor)
        join = wire.message(b"INFORM", self._queues, b"worker", b"attempts")
        self._join_id = join[3]
        dealer.send(join)
        now = time.monotonic()
        self._join_until = now + _JOIN_MAX
        self._heard_at = self._said_at = now
        return dealer

    def _reopen(self, why: str) -> None:
        if not self._has_complained:
            _LOG.warning("%s: %s; trying again until it answers", self._endpoint, why)
        # Once for each time that it goes away, however long it stays away.
        self._has_complained = True
        self._dealer.close()
        self.is_joined = False
        self.announced = 0
        self._waiting.clear()
        self._dealer = self._open()

    def poll(self, seconds: float, descriptors: Collection[int]) -> set[int]:
        """Wait for the broker, or for one of these; tells which of these."""
        wanted = set(descriptors)
        for descriptor in self._also - wanted:
            self._dealer.forget(descriptor)
        for descriptor in wanted - self._also:
            self._dealer.also_poll(descriptor)
        self._also = wanted
        return self._dealer.poll(min(seconds, self._next()))

    def _next(self) -> float:
        now = time.monotonic()
        until = self._said_at + _HEARTBEAT if self.is_joined else self._join_until
        return max(0.0, until - now)

    def receive(self) -> Iterator[wire.Received]:
        """Do what is due, and yield what came but is not about the conversation itself.

        Raises `AuthFailed` if the broker does not let us in, or not serve a queue, and never did.
        """
        self._watch()
        for frames in self._dealer.receive(_BATCH):
            self._heard_at = time.monotonic()
            message = wire.parse(frames)
            if message is None:
                continue
            if message.command == b"ACK" and message.body[:1] == [self._join_id]:
                self.is_joined = self._ever_joined = True
                self._has_complained = False
            elif message.command in {b"KBYE", b"KBAI"}:
                # It stops; what it becomes when it is there again knows nothing of us.
                if not self._left:
                    self._reopen("the broker leaves")
                    return
            elif message.command not in {b"ACK", b"HEARTBEAT"}:
                yield message

    def _watch(self) -> None:
        now = time.monotonic()
        broke = self._dealer.watch()
        refusal = self._dealer.take_refusal()
        if refusal is not None:
            # Who was let in before is let in again, once somebody has put that right; jobs that are here go on.
            if not self._ever_joined:
                raise refusal
            if not self._has_complained:
                _LOG.warning("%s; trying again until it lets us in", refusal)
                self._has_complained = True
        if self._left:
            # Who has said goodbye does not join again; what could not be sent back, the broker gives to others.
            self.is_joined = self.is_joined and not broke
        elif broke:
            self._reopen("the connection broke")
        elif not self.is_joined and now >= self._join_until:
            self._reopen("the broker does not take us" if self._dealer.is_connected else "no broker answers")
        elif self.is_joined and now - self._heard_at > _SILENCE_MAX:
            self._reopen(f"the broker has said nothing for {_SILENCE_MAX:g} s")
        if self.is_joined and now - self._said_at >= _HEARTBEAT:
            self.send(wire.heartbeat())
            self._said_at = now

    def announce(self, jobs: int) -> None:
        """Let the broker send so many jobs more."""
        if self.is_joined and not self._left:
            for _ in range(jobs):
                self.send(wire.message(b"READY"))
                self.announced += 1

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message, now or as soon as there is room."""
        if self._waiting:
            self._waiting.append(frames)
            self.flush()
        elif not self._dealer.send(frames):
            self._waiting.append(frames)

    def flush(self) -> None:
        """Send what waits for room."""
        sent = 0
        for frames in self._waiting:
            if not self._dealer.send(frames):
                break
            sent += 1
        del self._waiting[:sent]

    def leave(self) -> None:
        """Tell the broker to send nothing more. Results of what we have can still be sent."""
        if not self._left:
            self._left = True
            self.send(wire.message(b"KBYE"))

    def close(self) -> None:
        """Put on the wire what was sent, and end."""
        self.flush()
        self._dealer.close(linger=True)
