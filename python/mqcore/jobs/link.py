"""A worker's connection to its broker: joins, requests jobs, and joins again after the connection is lost."""

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

# Interval of heartbeats in both directions, as all brokers of this protocol expect it.
_HEARTBEAT_SECONDS: Final = 3.0
# Time without a message after which the connection counts as lost.
_SILENCE_MAX_SECONDS: Final = 15.0
# Time to wait for the acknowledgement of a join. A broker that lost the request would never answer.
_JOIN_MAX_SECONDS: Final = 5.0

# Time for `close` to write messages that the connection has no room for yet.
_CLOSE_MAX_SECONDS: Final = 5.0

_BATCH: Final = 256

_LOG: Final = logging.getLogger("mqcore.worker")


class Link:
    """The worker's end of the connection. Not thread-safe."""

    def __init__(self, endpoint: str, queues: Sequence[tuple[str, int]], token: str | None = None) -> None:
        self._endpoint = endpoint
        self._token = token
        self._queues = wire.encode_queues(queues)
        self._host = socket.gethostname()
        self._also: set[int] = set()
        self._waiting: list[Sequence[bytes]] = []
        self._dealer = self._open()
        self._has_warned = False
        self._ever_joined = False
        self._left = False
        self._is_dismissed = False
        self.is_joined = False
        """Whether the broker has acknowledged the worker."""
        self.announced = 0
        """Number of requested jobs that have not arrived yet."""

    @property
    def identity(self) -> str:
        """The worker's name at the broker. It changes with each connection."""
        return self._dealer.identity

    def _open(self) -> Dealer:
        dealer = Dealer(self._endpoint, f"worker-{self._host}-{os.getpid()}", token=self._token)
        for descriptor in self._also:
            dealer.also_poll(descriptor)
        join = wire.message(b"INFORM", self._queues, b"worker", b"attempts")
        self._join_id = join[3]
        dealer.send(join)
        now = time.monotonic()
        self._join_until = now + _JOIN_MAX_SECONDS
        self._received_at = self._sent_heartbeat_at = now
        return dealer

    def _reopen(self, why: str) -> None:
        if not self._has_warned:
            _LOG.warning("%s: %s; retrying", self._endpoint, why)
        # Warn once per outage, not once per retry.
        self._has_warned = True
        self._dealer.close()
        self.is_joined = False
        self._is_dismissed = False
        self.announced = 0
        self._waiting.clear()
        self._dealer = self._open()

    def poll(self, seconds: float, descriptors: Collection[int]) -> set[int]:
        """Wait up to `seconds` for the broker or one of `descriptors`; return the descriptors that are ready."""
        wanted = set(descriptors)
        for descriptor in self._also - wanted:
            self._dealer.forget(descriptor)
        for descriptor in wanted - self._also:
            self._dealer.also_poll(descriptor)
        self._also = wanted
        return self._dealer.poll(min(seconds, self._next()))

    def _next(self) -> float:
        now = time.monotonic()
        until = self._sent_heartbeat_at + _HEARTBEAT_SECONDS if self.is_joined else self._join_until
        return max(0.0, until - now)

    def receive(self) -> Iterator[wire.Received]:
        """Send due heartbeats, reconnect if needed, and yield jobs and other messages for the worker.

        Raises `AuthFailed` if the broker rejects the credentials or a queue before the worker has joined once.
        """
        self._watch()
        for frames in self._dealer.receive(_BATCH):
            self._received_at = time.monotonic()
            message = wire.parse(frames)
            if message is None:
                continue
            if message.command == b"ACK" and message.body[:1] == [self._join_id]:
                self.is_joined = self._ever_joined = True
                self._has_warned = False
            elif message.command in {b"KBYE", b"KBAI"}:
                self._dismissed()
            elif message.command not in {b"ACK", b"HEARTBEAT"}:
                yield message

    def _watch(self) -> None:
        now = time.monotonic()
        broke = self._dealer.watch()
        refusal = self._dealer.take_refusal()
        if refusal is not None:
            # After an earlier success the cause is probably a change on the broker, which can be corrected while
            # this worker finishes its jobs. So it keeps retrying.
            if not self._ever_joined:
                raise refusal
            if not self._has_warned:
                _LOG.warning("%s; retrying until the broker accepts this worker", refusal)
                self._has_warned = True
        if self._left:
            # A worker that is leaving does not join again. The broker requeues jobs whose results were lost.
            self.is_joined = self.is_joined and not broke
        elif broke:
            self._reopen("connection lost")
        elif not self.is_joined and now >= self._join_until:
            self._reopen(
                "the broker did not acknowledge the join" if self._dealer.is_connected else "no broker answers"
            )
        elif self.is_joined and now - self._received_at > _SILENCE_MAX_SECONDS:
            self._reopen(f"no heartbeat from the broker for {_SILENCE_MAX_SECONDS:g} s")
        if self.is_joined and now - self._sent_heartbeat_at >= _HEARTBEAT_SECONDS:
            self.send(wire.heartbeat())
            self._sent_heartbeat_at = now

    def _dismissed(self) -> None:
        """Handle the broker's announcement that it stops.

        It still accepts results of running jobs, until it closes the connection. After a restart it does not know this
        worker, so the lost connection leads to a new join.
        """
        if not self._has_warned and not self._left:
            _LOG.warning(
                "%s: the broker is shutting down; sending results until it closes the connection", self._endpoint
            )
        self._has_warned = True
        self._is_dismissed = True

    def announce(self, jobs: int) -> None:
        """Request `jobs` more jobs from the broker."""
        if self.is_joined and not self._left and not self._is_dismissed:
            for _ in range(jobs):
                self.send(wire.message(b"READY"))
                self.announced += 1

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message now, or as soon as the buffer has room."""
        if self._waiting:
            self._waiting.append(frames)
            self.flush()
        elif not self._dealer.send(frames):
            self._waiting.append(frames)

    def flush(self) -> None:
        """Send buffered messages as far as there is room."""
        sent = 0
        for frames in self._waiting:
            if not self._dealer.send(frames):
                break
            sent += 1
        del self._waiting[:sent]

    def leave(self) -> None:
        """Ask the broker to send no more jobs. Results of jobs that the worker holds can still be sent."""
        if not self._left:
            self._left = True
            self.send(wire.message(b"KBYE"))

    def close(self) -> None:
        """Write buffered messages for up to 5 s, and close the connection."""
        for descriptor in self._also:
            self._dealer.forget(descriptor)
        self._also = set()
        until = time.monotonic() + _CLOSE_MAX_SECONDS
        # The connection buffers only a part of them at a time.
        while self._waiting and self._dealer.is_connected and (left := until - time.monotonic()) > 0:
            self._dealer.poll(left)
            self.flush()
        self._dealer.close(linger=True)
