"""A Throttr connection for a program that forks: buffers with a time to live, counters, and channels.

`mqcore.throttr` runs in threads of the Rust core, which a forked process does not have; `mqcore.celery.link` says more.
"""

from __future__ import annotations

import contextlib
import math
import os
import ssl
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mqcore import errors
from mqcore.celery.endpoint import Endpoint, dial, is_readable, wait_writable

__all__ = ["KEY_BYTES_MAX", "Store", "Subscription"]

KEY_BYTES_MAX: Final = 255
"""Length of a key in bytes."""

_QUERY, _UPDATE, _PURGE, _SET, _GET = 0x02, 0x03, 0x04, 0x05, 0x06
_SUBSCRIBE, _UNSUBSCRIBE, _PUBLISH, _WHOAMI = 0x11, 0x12, 0x13, 0x18
_CONSUME_ALL: Final = 0xC1
_TIME_TO_LIVE, _REPLACE, _FIXED_WINDOW, _TAKE = 1, 0, 0, 0
_SECONDS, _MINUTES = 4, 5
_PUSH_7_1, _PUSH_7_3 = 0x03, 0x19
_IMPOSSIBLE: Final = 2

_READ_BYTES: Final = 256 * 1024
_VALUE_BYTES_MAX: Final = 32 * 1024 * 1024
_COUNT_MAX: Final = 2**31
# How a stored value begins: all of it, or the name and number of its parts.
_WHOLE, _PARTS = b"\x01", b"\x02"

# Listeners with so few bytes per number count minutes, as 65,535 seconds are less than a day.
_NARROW_BYTES: Final = 2

_PROBE_NAME: Final = b"mqcore/width"
_WIDTHS: Final = (1, 2, 4, 8)
_ID_BYTES: Final = 16


class _Wire:
    """A socket, and how many bytes the listener uses for numbers."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._socket = dial(endpoint)
        self._buffer = bytearray()
        self.process = os.getpid()
        try:
            self.width = self._ask_width()
        except BaseException:
            self._socket.close()
            raise
        # Celery does not close backends.
        weakref.finalize(self, self._socket.close)

    def close(self) -> None:
        self._socket.close()

    def number(self, value: int) -> bytes:
        return value.to_bytes(self.width, "little")

    @property
    def value_max(self) -> int:
        """The largest number that the listener knows."""
        return int(256**self.width) - 1

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not wait_writable(self._socket, self._endpoint.request_timeout):
                    raise errors.ConnectionLost(f"{self._endpoint} takes no more data") from None
                if is_readable(self._socket, 0.0):
                    self.fill(0.0)
            except OSError as error:
                raise errors.ConnectionLost(f"the connection to {self._endpoint} is lost: {error}") from error

    def fill(self, timeout: float) -> bool:
        """Read what has arrived, after waiting for it. False: nothing arrived."""
        if not is_readable(self._socket, timeout):
            return False
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError as error:
            raise errors.ConnectionLost(f"the connection to {self._endpoint} is lost: {error}") from error
        if not data:
            raise errors.ConnectionLost(f"{self._endpoint} closed the connection")
        self._buffer += data
        return True

    def is_readable(self, timeout: float) -> bool:
        """Wait until something has arrived."""
        return is_readable(self._socket, timeout)

    def fill_or_fail(self) -> None:
        """Read what has arrived; something must arrive."""
        if not self.fill(self._endpoint.request_timeout):
            raise errors.ConnectionLost(f"{self._endpoint} did not answer in {self._endpoint.request_timeout} s")

    def read(self, size: int) -> bytes:
        deadline = time.monotonic() + self._endpoint.request_timeout
        while len(self._buffer) < size:
            left = deadline - time.monotonic()
            if left <= 0 or not self.fill(left):
                raise errors.ConnectionLost(f"{self._endpoint} did not answer in {self._endpoint.request_timeout} s")
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def read_number(self) -> int:
        return int.from_bytes(self.read(self.width), "little")

    def peek(self, size: int) -> bytes:
        """The next bytes if so many have arrived, else none."""
        return bytes(self._buffer[:size]) if len(self._buffer) >= size else b""

    def _ask_width(self) -> int:
        """Ask with bytes that are harmless requests in every width, and answered with one id for each narrower one."""
        ending = bytes([_WHOAMI] * 3 + [_UNSUBSCRIBE, len(_PROBE_NAME)]) + _PROBE_NAME
        update = bytearray(9)
        key_end = len(update) + len(_PROBE_NAME)
        for left_over, width in enumerate(reversed(_WIDTHS)):
            update[width] = key_end + left_over - width - 1
        self.send(bytes([_UPDATE, 2, 0]) + bytes(update) + _PROBE_NAME + ending)
        try:
            if self.read(1) != b"\x00":
                raise errors.VersionMismatch(f"{self._endpoint} is not a Throttr listener; result_backend needs one")
            for width in _WIDTHS:
                if self.read(1) == b"\x00":
                    return width
                self.read(_ID_BYTES)
        except errors.ConnectionLost as error:
            raise errors.ConnectFailed(
                f"{self._endpoint} does not answer as a Throttr listener: {error}; result_backend needs the address of "
                "one, such as mqcore://host:9000"
            ) from error
        raise errors.VersionMismatch(f"{self._endpoint} is not a Throttr listener; result_backend needs one")


class Store:
    """Values with a time to live, and counters. Threads share it; a forked child gets a connection of its own.

    It connects on first use and after a loss. Every method raises `ConnectFailed`, `TLSError`, and `ConnectionLost` if
    the connection ends before the answer.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._wire: _Wire | None = None
        self._process = os.getpid()

    def get(self, key: bytes) -> bytes | None:
        """Return a value; `None` if there is none."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of several keys, read with one write."""
        with self._connected() as wire:
            return [None if head is None else self._whole(wire, key, head) for key, head in self._heads(wire, keys)]

    def put(self, key: bytes, value: bytes, seconds: float | None, publish: bool = True) -> None:
        """Store a value for so long (`None`: for ever), and `publish` it to the channel of the same name.

        Raises `TooLarge`, and `ConfigError` for a time that the listener cannot express.
        """
        if len(value) > _VALUE_BYTES_MAX:
            raise errors.TooLarge(
                f"a result of {len(value)} bytes exceeds the limit of {_VALUE_BYTES_MAX}; store a reference to it",
                _VALUE_BYTES_MAX,
            )
        with self._connected() as wire:
            unit, ttl = self._lifetime(wire, seconds)
            room = min(wire.value_max, _VALUE_BYTES_MAX + 1) - 1
            data, head = [], _WHOLE + value
            if len(value) > room:
                name = uuid.uuid4().hex.encode()
                parts = [value[at : at + room] for at in range(0, len(value), room)]
                data = [_set(wire, _part_key(name, number), part, unit, ttl) for number, part in enumerate(parts)]
                head = _PARTS + name + b":" + str(len(parts)).encode()
            data.append(_set(wire, key, head, unit, ttl))
            stored = len(data)
            if publish:
                data.append(bytes([_PUBLISH, len(key)]) + wire.number(len(head)) + key + head)
            wire.send(b"".join(data))
            if 0 in wire.read(len(data))[:stored]:
                raise errors.LimitExceeded(f"{self._endpoint} did not store {key!r}; it has reached a limit", 482)

    def remove(self, key: bytes) -> None:
        """Remove a value or a counter, if there is one."""
        with self._connected() as wire:
            keys = [key]
            for _, head in self._heads(wire, [key]):
                if head is not None and head.startswith(_PARTS):
                    name, count = _parts(head)
                    keys += [_part_key(name, number) for number in range(count)]
            wire.send(b"".join(bytes([_PURGE]) + _named(each) for each in keys))
            wire.read(len(keys))

    def keep(self, key: bytes, seconds: float | None) -> None:
        """Replace the time to live of a value or a counter, if there is one."""
        with self._connected() as wire:
            _, ttl = self._lifetime(wire, seconds)
            keys = [key]
            for _, head in self._heads(wire, [key]):
                if head is not None and head.startswith(_PARTS):
                    name, count = _parts(head)
                    keys += [_part_key(name, number) for number in range(count)]
            wire.send(
                b"".join(bytes([_UPDATE, _TIME_TO_LIVE, _REPLACE]) + wire.number(ttl) + _named(each) for each in keys)
            )
            wire.read(len(keys))

    def count(self, key: bytes, event: bytes, seconds: float | None) -> int:
        """Count an event once, however often this is called for it, and return the number of events."""
        with self._connected() as wire:
            unit, ttl = self._lifetime(wire, seconds)
            most = min(wire.value_max, _COUNT_MAX)
            rules = [_rule(wire, key + b":" + event, 1, unit, ttl), _rule(wire, key, most, unit, ttl)]
            wire.send(bytes([_CONSUME_ALL, _TAKE, len(rules)]) + b"".join(rules))
            status, count = wire.read(2)
            remaining = most
            for _ in range(count):
                wire.read(1)
                wire.read_number()
                remaining = wire.read_number()
                wire.read(16)
            if status == _IMPOSSIBLE:
                raise errors.Unacceptable(f"{key!r} is not a counter at {self._endpoint}; remove it", 406)
            return most - remaining

    def counted(self, key: bytes) -> int:
        """Return the number of events; 0 if there is no counter."""
        with self._connected() as wire:
            wire.send(bytes([_QUERY]) + _named(key))
            if wire.read(1) == b"\x00":
                return 0
            remaining = wire.read_number()
            wire.read(1 + wire.width)
            return min(wire.value_max, _COUNT_MAX) - remaining

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[_Wire]:
        if self._process != os.getpid():
            # The lock may be held by a thread that exists in the parent only.
            self._reset()
        with self._lock:
            if self._wire is None:
                self._wire = _Wire(self._endpoint)
            try:
                yield self._wire
            except (errors.LimitExceeded, errors.Unacceptable, errors.ConfigError, errors.TooLarge):
                raise
            except BaseException:
                # Answers may be on the way, which must not be taken for those of later requests.
                self.close()
                raise

    def _lifetime(self, wire: _Wire, seconds: float | None) -> tuple[int, int]:
        """Return unit and number; the unit is the same for all keys, because it cannot be changed later."""
        unit, length = (_MINUTES, 60) if wire.width <= _NARROW_BYTES else (_SECONDS, 1)
        if not seconds and wire.width > _NARROW_BYTES:
            # 136 years, or for ever.
            return unit, wire.value_max
        ttl = math.ceil(seconds / length) if seconds else wire.value_max + 1
        if ttl > wire.value_max:
            asked = f"for {seconds:g} s" if seconds else "for ever"
            raise errors.ConfigError(
                f"{self._endpoint} cannot keep results {asked}: its longest time is {wire.value_max * length} s; set "
                "result_expires, or use a listener throttr://...?value=uint64"
            )
        return unit, max(ttl, 1)

    def _heads(self, wire: _Wire, keys: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        wire.send(b"".join(bytes([_GET]) + _named(key) for key in keys))
        heads: list[tuple[bytes, bytes | None]] = []
        for key in keys:
            if wire.read(1) == b"\x00":
                heads.append((key, None))
                continue
            wire.read(1 + wire.width)
            heads.append((key, wire.read(wire.read_number()) or None))
        return heads

    def _whole(self, wire: _Wire, key: bytes, head: bytes) -> bytes | None:
        if head.startswith(_WHOLE):
            return head[1:]
        name, count = _parts(head)
        parts = [part for _, part in self._heads(wire, [_part_key(name, number) for number in range(count)])]
        return None if None in parts else b"".join(part for part in parts if part is not None)


class Subscription:
    """Channels that a program listens to. Only `is_readable` may be called by several threads at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._wire = _Wire(endpoint)
        self._unanswered = 0
        self._payloads: list[bytes] = []

    def change(self, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Subscribe and unsubscribe, and wait until the broker has done both."""
        asked = [bytes([_SUBSCRIBE]) + _named(channel) for channel in added]
        asked += [bytes([_UNSUBSCRIBE]) + _named(channel) for channel in removed]
        self._unanswered += len(asked)
        self._wire.send(b"".join(asked))
        self._take()
        while self._unanswered:
            self._wire.fill_or_fail()
            self._take()

    def is_readable(self, timeout: float) -> bool:
        """Wait for messages."""
        return bool(self._payloads) or self._wire.is_readable(timeout)

    def take(self) -> list[bytes | None]:
        """Return what `Store.put` published and has arrived; `None` for a value that is too large for a message."""
        self._wire.fill(0.0)
        self._take()
        payloads, self._payloads = self._payloads, []
        return [payload[1:] if payload.startswith(_WHOLE) else None for payload in payloads]

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def _take(self) -> None:
        width = self._wire.width
        while start := self._wire.peek(1):
            if start[0] not in (_PUSH_7_1, _PUSH_7_3):
                # The answer to a subscription.
                self._wire.read(1)
                self._unanswered -= 1
                continue
            named = int(start[0] == _PUSH_7_3)
            head = self._wire.peek(1 + named + width)
            if not head:
                break
            name_size = head[1] if named else 0
            size = int.from_bytes(head[1 + named :], "little")
            whole = self._wire.peek(len(head) + name_size + size)
            if not whole:
                break
            self._wire.read(len(whole))
            self._payloads.append(whole[len(head) + name_size :])


def _named(name: bytes) -> bytes:
    if len(name) > KEY_BYTES_MAX:
        raise errors.TooLarge(f"key {name!r} exceeds the limit of {KEY_BYTES_MAX} bytes", KEY_BYTES_MAX)
    return bytes([len(name)]) + name


def _set(wire: _Wire, key: bytes, value: bytes, unit: int, ttl: int) -> bytes:
    sizes = _named(key)[:1] + wire.number(len(value))
    return bytes([_SET, unit]) + wire.number(ttl) + sizes + key + value


def _rule(wire: _Wire, key: bytes, limit: int, unit: int, ttl: int) -> bytes:
    return bytes([_FIXED_WINDOW]) + wire.number(limit) + wire.number(1) + bytes([unit]) + wire.number(ttl) + _named(key)


def _part_key(name: bytes, number: int) -> bytes:
    return b"celery-part-" + name + b":" + str(number).encode()


def _parts(head: bytes) -> tuple[bytes, int]:
    name, _, count = head[1:].partition(b":")
    return name, int(count)
