"""DEALER and SUB sockets: connections that come back by themselves, for whoever lives from turn to turn."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Final

from mqcore.errors import AuthFailed
from mqcore.jobs import zmtp

__all__ = ["Dealer", "Subscriber", "Waker"]

# Octets that may wait to be written, which are lost with a connection at most.
_WAITING_BYTES_MAX: Final = 256 * 1024
_READ_BYTES: Final = 256 * 1024
# Messages that may have been read and not taken; what comes then waits in the kernel, and at last at the other side.
_READ_MAX: Final = 10_000

_RETRY_FIRST: Final = 0.1
_RETRY_LAST: Final = 2.0
# How long a connection may take until both sides have said who they are.
_HANDSHAKE_MAX: Final = 5.0
_LINGER: Final = 5.0
# The status code with which a broker says that this client may not.
_UNAUTHORIZED: Final = 401

_GREETING_BYTES: Final = len(zmtp.GREETING)


class _Stage(Enum):
    """How far a connection is."""

    CLOSED = auto()
    CONNECTING = auto()
    GREETING = auto()
    SHAKING = auto()
    OPEN = auto()


class Dealer:
    """A DEALER socket. Nothing is read or written but in `poll`, so that all messages of a turn go out at once. For one
    thread."""

    _KIND = b"DEALER"

    def __init__(self, endpoint: str, identity: str, *, first: Sequence[bytes] = (), token: str | None = None) -> None:
        """Connect to `endpoint`, such as ``tcp://127.0.0.1:47290``. `first`: what is said first on each connection.
        `token`: what shows who this is."""
        self._endpoint = endpoint
        self._token = (token or "").encode()
        self._refused: str | None = None
        self._first = zmtp.encode(first) if first else b""
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self.identity = f"{identity}-{uuid.uuid4().hex[:12]}"
        """As which it is known there: another one each time, as brokers take an old one for still there."""
        # One that is told all descriptors each time: a process of a pool is replaced by another behind the same number,
        # of which epoll would never hear.
        self._selector = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self._stage = _Stage.CLOSED
        self._socket: socket.socket | None = None
        self._events = 0
        self._greeting = b""
        self._reader = zmtp.Reader()
        self._inbox: deque[list[bytes]] = deque()
        self._outbox: list[bytes] = []
        self._outbox_size = 0
        self._has_ended = False
        self._retry_at = 0.0
        self._retry_after = _RETRY_FIRST
        self._give_up_at = 0.0
        self._candidates: list[tuple[int, tuple[object, ...]]] = []
        self._connect()

    @property
    def is_connected(self) -> bool:
        """Both sides have said who they are."""
        return self._stage is _Stage.OPEN

    def also_poll(self, descriptor: int) -> None:
        """Let `poll` wait for this file descriptor too."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def forget(self, descriptor: int) -> None:
        """Poll it no longer."""
        self._selector.unregister(descriptor)

    def poll(self, seconds: float) -> set[int]:
        """Write what waits, wait until something is there, and tell which of the file descriptors of `also_poll` it
        concerns.

        What cannot be written at once also ends the waiting as soon as it can be.
        """
        self._advance()
        if self._stage is _Stage.OPEN and self._outbox:
            self._flush()
        if self._inbox:
            seconds = 0.0
        elif self._stage is not _Stage.OPEN:
            until = self._retry_at if self._stage is _Stage.CLOSED else self._give_up_at
            seconds = min(seconds, max(0.0, until - time.monotonic()))
        self._watch_for()
        own = -1 if self._socket is None else self._socket.fileno()
        others = set()
        for key, events in self._selector.select(seconds):
            if key.fd == own:
                self._happened(events)
            else:
                others.add(key.fd)
        return others

    def watch(self) -> bool:
        """Whether a connection ended since the last time."""
        ended, self._has_ended = self._has_ended, False
        return ended

    def take_refusal(self) -> AuthFailed | None:
        """Why the broker has not let us in, or not let us do what we wanted, if that was so since the last time. It is
        tried again all the same."""
        why, self._refused = self._refused, None
        return None if why is None else AuthFailed(f"{self._endpoint}: {why}")

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message with the next `poll`; false if there is no room for it now."""
        if self._outbox_size >= _WAITING_BYTES_MAX:
            return False
        octets = zmtp.encode(frames)
        self._outbox.append(octets)
        self._outbox_size += len(octets)
        return True

    def receive(self, at_most: int) -> Iterator[list[bytes]]:
        """Yield the messages that are there, up to so many."""
        for _ in range(min(at_most, len(self._inbox))):
            yield self._inbox.popleft()

    def close(self, *, linger: bool = False) -> None:
        """Close it. `linger`: what was sent is still written, for a few seconds, if the connection is there."""
        until = time.monotonic() + _LINGER
        while linger and self._stage is _Stage.OPEN and self._outbox and time.monotonic() < until:
            self._flush()
            self._watch_for()
            self._selector.select(0.05)
        self._hang_up()
        self._selector.close()

    # --- connecting -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Connect anew where it is time to."""
        now = time.monotonic()
        if self._stage in {_Stage.CONNECTING, _Stage.GREETING, _Stage.SHAKING} and now >= self._give_up_at:
            self._broke()
        if self._stage is _Stage.CLOSED and now >= self._retry_at:
            self._connect()

    def _connect(self) -> None:
        self._give_up_at = time.monotonic() + _HANDSHAKE_MAX
        if not self._candidates:
            with contextlib.suppress(OSError):
                found = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)
                self._candidates = [(family, address) for family, _, _, _, address in found]
        while self._candidates:
            family, address = self._candidates.pop(0)
            try:
                self._socket = socket.socket(family, socket.SOCK_STREAM)
                self._socket.setblocking(False)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = self._socket.connect_ex(address)
            except OSError:
                self._hang_up()
                continue
            if code in {0, errno.EINPROGRESS, errno.EWOULDBLOCK}:
                self._stage = _Stage.CONNECTING
                return
            self._hang_up()
        self._retry_later()

    def _retry_later(self) -> None:
        self._retry_at = time.monotonic() + self._retry_after
        self._retry_after = min(_RETRY_LAST, self._retry_after * 2)

    def _broke(self) -> None:
        """The connection is gone, and what waits to be written on it too; what waits for the first one stays."""
        was_open = self._stage is _Stage.OPEN
        self._hang_up()
        if was_open:
            self._has_ended = True
            self._outbox.clear()
            self._outbox_size = 0
            self._retry_after = _RETRY_FIRST
        if self._refused is not None:
            # Another address of the same broker would say the same, and so would this one at once.
            self._candidates.clear()
            self._retry_after = _RETRY_LAST
        if self._candidates:
            # A name can stand for several addresses, of which one answers.
            self._retry_at = 0.0
        else:
            self._retry_later()

    def _hang_up(self) -> None:
        self._stage = _Stage.CLOSED
        if self._socket is not None:
            if self._events:
                self._selector.unregister(self._socket)
                self._events = 0
            self._socket.close()
            self._socket = None

    # --- reading and writing ----------------------------------------------------------------------------------------

    def _watch_for(self) -> None:
        """Let the selector know what to wait for."""
        if self._socket is None:
            return
        writes = self._stage is _Stage.CONNECTING or (self._stage is _Stage.OPEN and bool(self._outbox))
        reads = self._stage is not _Stage.CONNECTING and len(self._inbox) < _READ_MAX
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        if events == self._events:
            return
        if not self._events:
            self._selector.register(self._socket, events)
        elif not events:
            self._selector.unregister(self._socket)
        else:
            self._selector.modify(self._socket, events)
        self._events = events

    def _happened(self, events: int) -> None:
        assert self._socket is not None
        try:
            if self._stage is _Stage.CONNECTING:
                code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))
                self._socket.sendall(zmtp.GREETING)
                self._greeting, self._reader, self._stage = b"", zmtp.Reader(), _Stage.GREETING
                return
            if events & selectors.EVENT_READ:
                self._read(self._socket)
            if self._stage is _Stage.OPEN and self._outbox:
                self._flush()
        except BlockingIOError:
            return
        except (OSError, zmtp.ZmtpError):
            self._broke()

    def _read(self, connection: socket.socket) -> None:
        data = connection.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError
        if self._stage is _Stage.GREETING:
            self._greeting += data
            if len(self._greeting) < _GREETING_BYTES:
                return
            zmtp.check_greeting(self._greeting)
            connection.sendall(zmtp.ready(self._KIND, self.identity.encode(), self._token))
            self._stage = _Stage.SHAKING
            data = self._greeting[_GREETING_BYTES:]
        self._inbox += self._reader.feed(data)
        if self._reader.commands:
            self._commanded(connection)

    def _commanded(self, connection: socket.socket) -> None:
        commands, self._reader.commands = self._reader.commands, []
        for command in commands:
            if command.startswith(b"\x05READY"):
                self._stage = _Stage.OPEN
                connection.sendall(self._first)
                self._retry_after = _RETRY_FIRST
                self._candidates.clear()
            elif command.startswith(b"\x05ERROR"):
                code, why = zmtp.refusal(command)
                if code == _UNAUTHORIZED:
                    self._refused = why
                raise zmtp.ZmtpError(f"the other side gave up: {command[7:]!r}")
            elif command.startswith(b"\x04PING"):
                self._outbox.append(zmtp.pong(command))

    def _flush(self) -> None:
        """Write what waits, as far as there is room."""
        assert self._socket is not None
        octets = self._outbox[0] if len(self._outbox) == 1 else b"".join(self._outbox)
        view = memoryview(octets)
        try:
            while view:
                view = view[self._socket.send(view) :]
        except BlockingIOError:
            pass
        except OSError:
            self._broke()
            return
        self._outbox = [bytes(view)] if view else []
        self._outbox_size = len(view)


class Subscriber(Dealer):
    """A SUB socket: everything that is published to topics that begin with `topic`."""

    _KIND = b"SUB"

    def __init__(self, endpoint: str, topic: str, *, token: str | None = None) -> None:
        super().__init__(endpoint, f"subscriber-{os.getpid()}", first=(b"\x01" + topic.encode(),), token=token)


class Waker:
    """Ends another thread's `Dealer.poll`."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """What to poll."""
        return self._reader.fileno()

    def wake(self) -> None:
        """End the poll, or the next one."""
        try:
            self._writer.send(b"\0")
        except OSError:
            # It is full, so it will wake up; or it is closed, and nobody sleeps.
            return

    def clear(self) -> None:
        """Forget what woke it up so far."""
        try:
            while len(self._reader.recv(4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close it."""
        self._reader.close()
        self._writer.close()
