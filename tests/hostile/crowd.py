"""Many connections at once, served by one thread of the tests."""

from __future__ import annotations

import resource
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

Address = tuple[str, int]

SPARE_DESCRIPTORS = 200
"""Descriptors that tests need for other things."""


def raise_descriptor_limit() -> int:
    """Raise the limit of open files of this process to the hard limit; return how many connections that leaves."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard - SPARE_DESCRIPTORS


@dataclass
class Conversation:
    """Bytes for a connection, and what comes back until the other side closes it."""

    address: Address
    sent: bytes
    answer: bytearray = field(default_factory=bytearray)
    sent_at: float = 0.0
    closed_after: float | None = None
    """Seconds from the connection until the other side closed it; `None` as long as it is open."""


def converse(conversations: Iterable[Conversation], *, together: int, limit: float) -> Iterator[Conversation]:
    """Hold all conversations, so many at a time; yield each when the other side has closed it or `limit` has passed."""
    waiting = iter(conversations)
    poll = select.epoll()
    open_ones: dict[int, tuple[socket.socket, Conversation, memoryview]] = {}
    is_all_begun = False
    try:
        while open_ones or not is_all_begun:
            while not is_all_begun and len(open_ones) < together:
                conversation = next(waiting, None)
                if conversation is None:
                    is_all_begun = True
                    break
                stream = socket.socket()
                stream.setblocking(False)
                stream.connect_ex(conversation.address)
                conversation.sent_at = time.monotonic()
                open_ones[stream.fileno()] = (stream, conversation, memoryview(conversation.sent))
                poll.register(stream, select.EPOLLIN | select.EPOLLOUT)
            for number, events in poll.poll(0.1):
                stream, conversation, rest = open_ones[number]
                if events & select.EPOLLOUT and rest:
                    rest = rest[_send(stream, rest) :]
                    open_ones[number] = (stream, conversation, rest)
                if not rest:
                    poll.modify(number, select.EPOLLIN)
                if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and _has_closed(stream, conversation):
                    conversation.closed_after = time.monotonic() - conversation.sent_at
                    poll.unregister(number)
                    del open_ones[number]
                    stream.close()
                    yield conversation
            late = time.monotonic() - limit
            for number, (stream, conversation, _) in list(open_ones.items()):
                if conversation.sent_at < late:
                    poll.unregister(number)
                    del open_ones[number]
                    stream.close()
                    yield conversation
    finally:
        poll.close()
        for stream, _, _ in open_ones.values():
            stream.close()


def _send(stream: socket.socket, data: memoryview) -> int:
    try:
        return stream.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        # The other side no longer reads. Its earlier bytes are still to be received.
        return len(data)


def _has_closed(stream: socket.socket, conversation: Conversation) -> bool:
    try:
        while part := stream.recv(1 << 16):
            conversation.answer += part
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def open_many(address: Callable[[int], Address], count: int, first: Callable[[int], bytes]) -> list[socket.socket]:
    """Open connections that each send a few bytes."""
    peers = []
    for number in range(count):
        peer = socket.create_connection(address(number), timeout=10)
        peer.sendall(first(number))
        peers.append(peer)
    return peers


def is_open(peer: socket.socket) -> bool:
    """Whether the other side has not closed the connection; what it sent is dropped."""
    peer.setblocking(False)
    try:
        while peer.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@dataclass(frozen=True)
class Usage:
    """Resources of a process."""

    resident: int
    """Bytes of memory."""
    virtual: int
    """Bytes of address space."""
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        """Measure a process."""
        process = Path(f"/proc/{pid}")
        text = (process / "status").read_text(encoding="ascii")
        status = dict(line.partition(":")[::2] for line in text.splitlines())
        size = {name: int(status[name].split()[0]) << 10 for name in ("VmRSS", "VmSize")}
        return cls(size["VmRSS"], size["VmSize"], sum(1 for _ in (process / "fd").iterdir()))


def processor_seconds(pid: int) -> float:
    """Time that all threads of a process have run."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text(encoding="ascii").split()[0]) for each in tasks) / 1e9
