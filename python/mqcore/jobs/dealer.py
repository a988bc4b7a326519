"""DEALER and SUB sockets that reconnect by themselves, for event loops that call `poll`."""

from __future__ import annotations

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

# Maximum bytes that wait to be written; a lost connection loses at most these.
_WAITING_BYTES_MAX: Final = 256 * 1024
_READ_BYTES: Final = 256 * 1024
# Maximum messages that have been read but not received. Beyond it, the socket is not read, which slows the peer down.
_UNRECEIVED_MESSAGES_MAX: Final = 10_000

# Delays between connection attempts; each is twice as long as the previous one.
_RETRY_FIRST_SECONDS: Final = 0.1
_RETRY_LAST_SECONDS: Final = 2.0
# Time for connecting and the handshake.
_HANDSHAKE_MAX_SECONDS: Final = 5.0
# Time for `close` to write waiting messages.
_LINGER_SECONDS: Final = 5.0
# Status code of an ERROR that rejects the credentials.
_UNAUTHORIZED: Final = 401

_GREETING_BYTES: Final = len(zmtp.GREETING)


class _Stage(Enum):
    """State of a connection."""

    CLOSED = auto()
    CONNECTING = auto()
    GREETING = auto()
    SHAKING = auto()
    OPEN = auto()


class Dealer:
    """A DEALER socket. Only `poll` reads and writes, so that messages are written in batches. Not thread-safe."""

    _KIND = b"DEALER"

    def __init__(self, endpoint: str, identity: str, *, first: Sequence[bytes] = (), token: str | None = None) -> None:
        """Connect to `endpoint`, such as ``tcp://127.0.0.1:47290``.

        `first` is a message that is sent first on each connection. `token` contains the credentials.
        """
        self._endpoint = endpoint
        self._token = (token or "").encode()
        self._refused: str | None = None
        self._unreachable: str | None = None
        self._first = zmtp.encode(first) if first else b""
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self.identity = f"{identity}-{uuid.uuid4().hex[:12]}"
        """Identity of the socket. Random, because brokers may still consider an earlier connection open."""
        # Not epoll: when a pool replaces a process, the new pipe can have the same descriptor number. epoll would drop
        # the old one silently and not watch the new one.
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
        self._retry_after = _RETRY_FIRST_SECONDS
        self._give_up_at = 0.0
        self._candidates: list[tuple[int, tuple[object, ...]]] = []
        self._connect()

    @property
    def is_connected(self) -> bool:
        """Whether the handshake is complete."""
        return self._stage is _Stage.OPEN

    @property
    def endpoint(self) -> str:
        """The endpoint that it connects to."""
        return self._endpoint

    def also_poll(self, descriptor: int) -> None:
        """Make `poll` also wait for this file descriptor."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def forget(self, descriptor: int) -> None:
        """Stop polling this file descriptor."""
        self._selector.unregister(descriptor)

    def poll(self, seconds: float) -> set[int]:
        """Write waiting messages, wait up to `seconds` for events, and return the ready descriptors of `also_poll`.

        It also returns once `send` accepts messages again, if it did not before.
        """
        self._advance()
        was_full = self._is_full
        if self._stage is _Stage.OPEN and self._outbox:
            self._flush()
        if self._inbox or (was_full and not self._is_full):
            seconds = 0.0
        elif self._stage is not _Stage.OPEN:
            until = self._retry_at if self._stage is _Stage.CLOSED else self._give_up_at
            seconds = min(seconds, max(0.0, until - time.monotonic()))
        self._watch_for()
        own = -1 if self._socket is None else self._socket.fileno()
        others = set()
        for key, events in self._selector.select(seconds):
            if key.fd == own:
                self._handle(events)
            else:
                others.add(key.fd)
        return others

    def watch(self) -> bool:
        """Whether an open connection was lost since the last call."""
        ended, self._has_ended = self._has_ended, False
        return ended

    def take_refusal(self) -> AuthFailed | None:
        """Return the broker's rejection of the credentials since the last call, or `None`. Connecting is retried."""
        why, self._refused = self._refused, None
        return None if why is None else AuthFailed(f"{self._endpoint}: {why}")

    @property
    def unreachable(self) -> str | None:
        """Why the last connection attempt reached no address; `None` during the first attempt and while connected."""
        return self._unreachable

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message with the next `poll`. Returns false if 256 KiB are already waiting."""
        if self._is_full:
            return False
        encoded = zmtp.encode(frames)
        self._outbox.append(encoded)
        self._outbox_size += len(encoded)
        return True

    @property
    def _is_full(self) -> bool:
        return self._outbox_size >= _WAITING_BYTES_MAX

    def receive(self, at_most: int) -> Iterator[list[bytes]]:
        """Yield up to `at_most` messages that have arrived, without waiting."""
        for _ in range(min(at_most, len(self._inbox))):
            yield self._inbox.popleft()

    def close(self, *, linger: bool = False) -> None:
        """Close the socket. With `linger`, write waiting messages for up to 5 s first, if it is connected."""
        until = time.monotonic() + _LINGER_SECONDS
        while linger and self._stage is _Stage.OPEN and self._outbox and time.monotonic() < until:
            self._flush()
            self._watch_for()
            self._selector.select(0.05)
        self._hang_up()
        self._selector.close()

    # --- connecting -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Start a connection attempt, or give one up, if it is due."""
        now = time.monotonic()
        if self._stage in {_Stage.CONNECTING, _Stage.GREETING, _Stage.SHAKING} and now >= self._give_up_at:
            self._broke()
        if self._stage is _Stage.CLOSED and now >= self._retry_at:
            self._connect()

    def _connect(self) -> None:
        self._give_up_at = time.monotonic() + _HANDSHAKE_MAX_SECONDS
        why = ""
        if not self._candidates:
            try:
                found = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)
                self._candidates = [(family, address) for family, _, _, _, address in found]
            except OSError as error:
                why = error.strerror or str(error)
        while self._candidates:
            family, address = self._candidates.pop(0)
            try:
                self._socket = socket.socket(family, socket.SOCK_STREAM)
                self._socket.setblocking(False)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = self._socket.connect_ex(address)
            except OSError as error:
                why = error.strerror or str(error)
                self._hang_up()
                continue
            if code in {0, errno.EINPROGRESS, errno.EWOULDBLOCK}:
                self._stage = _Stage.CONNECTING
                return
            why = os.strerror(code)
            self._hang_up()
        self._unreachable = why or "no address"
        self._retry_later()

    def _retry_later(self) -> None:
        self._retry_at = time.monotonic() + self._retry_after
        self._retry_after = min(_RETRY_LAST_SECONDS, self._retry_after * 2)

    def _broke(self, why: str = "the peer does not complete the handshake") -> None:
        """Handle a lost connection: drop its unwritten messages. Messages from before the first connection stay.

        `why` is the reason if there was no connection yet.
        """
        was_open = self._stage is _Stage.OPEN
        self._hang_up()
        if was_open:
            self._has_ended = True
            self._outbox.clear()
            self._outbox_size = 0
            self._retry_after = _RETRY_FIRST_SECONDS
        if self._refused is not None:
            # Other addresses of the same broker would reject the credentials as well, and so would an early retry.
            self._candidates.clear()
            self._retry_after = _RETRY_LAST_SECONDS
        if self._candidates:
            # The host name has further addresses; try the next one immediately.
            self._retry_at = 0.0
        else:
            self._unreachable = why
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
        """Register the events that the current stage needs."""
        if self._socket is None:
            return
        writes = self._stage is _Stage.CONNECTING or (self._stage is _Stage.OPEN and bool(self._outbox))
        reads = self._stage is not _Stage.CONNECTING and len(self._inbox) < _UNRECEIVED_MESSAGES_MAX
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

    def _handle(self, events: int) -> None:
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
        except OSError as error:
            self._broke(error.strerror or "the peer closed the connection during the handshake")
        except zmtp.ZmtpError as error:
            self._broke(str(error))

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
            self._obey_commands(connection)

    def _obey_commands(self, connection: socket.socket) -> None:
        commands, self._reader.commands = self._reader.commands, []
        for name, argument in commands:
            if name == "READY":
                self._stage = _Stage.OPEN
                self._unreachable = None
                connection.sendall(self._first)
                self._retry_after = _RETRY_FIRST_SECONDS
                self._candidates.clear()
            elif name == "ERROR":
                code, reason = zmtp.error_of(argument)
                if code == _UNAUTHORIZED:
                    self._refused = reason
                raise zmtp.ZmtpError(f"the peer closed the connection: {reason}")
            elif name == "PING":
                self._outbox.append(zmtp.pong(argument))

    def _flush(self) -> None:
        """Write waiting messages as far as the socket accepts them."""
        assert self._socket is not None
        waiting = self._outbox[0] if len(self._outbox) == 1 else b"".join(self._outbox)
        view = memoryview(waiting)
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
    """A SUB socket that receives messages of all topics that begin with `topic`."""

    _KIND = b"SUB"

    def __init__(self, endpoint: str, topic: str, *, token: str | None = None) -> None:
        super().__init__(endpoint, f"subscriber-{os.getpid()}", first=(b"\x01" + topic.encode(),), token=token)


class Waker:
    """Wakes up another thread's `Dealer.poll`."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def __del__(self) -> None:
        # A worker that never runs has no other end.
        self.close()

    def fileno(self) -> int:
        """The descriptor for `Dealer.also_poll`."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Wake up the current or the next poll."""
        try:
            self._writer.send(b"\0")
        except OSError:
            # Full: the wake-up is already pending. Closed: no poll is waiting.
            return

    def clear(self) -> None:
        """Reset after a wake-up."""
        try:
            while len(self._reader.recv(4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close both ends."""
        self._reader.close()
        self._writer.close()
