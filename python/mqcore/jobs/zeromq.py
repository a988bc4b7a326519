"""DEALER sockets of libzmq, which is loaded when the first one is opened."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from mqcore.errors import NotSupported

if TYPE_CHECKING:
    import zmq

__all__ = ["Dealer", "Waker"]

# What libzmq keeps for a peer that does not read, and what is lost with a connection at most.
_QUEUED_MESSAGES = 1000

_LINGER_MS = 5000

# Frames of other software may be of any size; beyond this libzmq closes the connection.
_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024


class Dealer:
    """A DEALER socket, and whether it is connected. For one thread."""

    def __init__(self, endpoint: str, identity: str) -> None:
        library = _library()
        self._library = library
        self._again = library.Again
        self.identity = f"{identity}-{uuid.uuid4().hex[:12]}"
        """As which it is known there: another one each time, as brokers take an old one for still there."""
        self.is_connected = False
        """The last that was heard of it; renewed by `watch`."""
        self._socket: zmq.Socket[bytes] = library.Context.instance().socket(library.DEALER)
        self._socket.setsockopt(library.IDENTITY, self.identity.encode())
        self._socket.setsockopt(library.LINGER, 0)
        self._socket.setsockopt(library.SNDHWM, _QUEUED_MESSAGES)
        self._socket.setsockopt(library.MAXMSGSIZE, _FRAME_BYTES_MAX)
        self._socket.setsockopt(library.IPV6, 1)
        self._socket.setsockopt(library.RECONNECT_IVL, 100)
        self._socket.setsockopt(library.RECONNECT_IVL_MAX, 2000)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(
            library.EVENT_HANDSHAKE_SUCCEEDED | library.EVENT_DISCONNECTED | library.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        self._poller = library.Poller()
        self._poller.register(self._monitor, library.POLLIN)
        self._poller.register(self._socket, library.POLLIN)
        self._wants_room = False
        self._socket.connect(endpoint)

    def also_poll(self, descriptor: int) -> None:
        """Let `poll` wait for this file descriptor too."""
        self._poller.register(descriptor, self._library.POLLIN)

    def forget(self, descriptor: int) -> None:
        """Poll it no longer."""
        self._poller.unregister(descriptor)

    def poll(self, seconds: float, *, for_room: bool = False) -> set[int]:
        """Wait until something is there, and tell which of the file descriptors of `also_poll` it concerns.

        `for_room`: also until something can be sent.
        """
        if for_room != self._wants_room:
            self._wants_room = for_room
            self._poller.register(self._socket, self._library.POLLIN | (self._library.POLLOUT if for_room else 0))
        events = self._poller.poll(max(0, int(seconds * 1000 + 0.999)))
        return {found for found, _ in events if isinstance(found, int)}

    def watch(self) -> bool:
        """Renew `is_connected`; true if a connection ended since the last time."""
        ended = False
        while self._monitor.poll(0):
            event = int.from_bytes(self._monitor.recv_multipart()[0][:2], "little")
            if event == self._library.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_connected = True
            else:
                ended |= self.is_connected
                self.is_connected = False
        return ended

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message; false if there is no room for it now."""
        try:
            self._socket.send_multipart(frames, self._library.NOBLOCK)
        except self._again:
            return False
        return True

    def receive(self, at_most: int) -> Iterator[list[bytes]]:
        """Yield the messages that are there, up to so many."""
        for _ in range(at_most):
            try:
                yield self._socket.recv_multipart(self._library.NOBLOCK)
            except self._again:
                return

    def close(self, *, linger: bool = False) -> None:
        """Close it. `linger`: what was sent is still put on the wire, for a few seconds, if the connection is there."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(_LINGER_MS if linger and self.is_connected else 0)


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


def _library() -> Any:
    try:
        import zmq
    except ImportError as error:
        raise NotSupported("jobs and workers need pyzmq; pip install 'mqcore[jobs]' brings it") from error
    return zmq
