"""A TMQP connection for a program that watches its socket, as kombu does.

mqcore's own clients run in threads of the Rust core, which a forked process does not have. Celery forks: its pool
replaces processes while the worker is connected. So this connection is a plain socket with the core's codec. It does
not reconnect, because kombu and Celery do.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from mqcore import errors
from mqcore._core import Frame, tmqp_decode, tmqp_encode
from mqcore.celery import heartbeats
from mqcore.celery.endpoint import Endpoint, dial, is_readable, wait_writable

__all__ = ["Link", "header_of"]

_LOG: Final = logging.getLogger("mqcore.celery")

_PREAMBLE: Final = b"TMQP/2.0"
_PING, _PONG, _SERVER, _QUEUE, _ACKNOWLEDGE, _RESPONSE = 0x09, 0x0A, 0x10, 0x11, 0x13, 0x14
_HELLO, _ACCEPTED = 101, 202
_HELLO_ID: Final = b"hello"
_PONG_BYTES: Final = b"\x8a\xff\x00\x00\x00\x00\x00\x00"
_TERMINATE_BYTES: Final = b"\x08\x10\x00\x00\x00\x00\x00\x00"

_READ_BYTES: Final = 256 * 1024
_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
# Most frames are shorter, so that decoding one does not copy all that was read with it.
_WINDOW_BYTES: Final = 4096
# Another thread may read what this one waits for.
_POLL_SECONDS_MAX: Final = 0.2

_ERRORS: Final[Mapping[int, type[errors.OperationError]]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    404: errors.NotFound,
    406: errors.Unacceptable,
    481: errors.AlreadyExists,
    482: errors.LimitExceeded,
    503: errors.Busy,
    581: errors.SendError,
}


def header_of(frame: Frame, key: str) -> str | None:
    """Return the first value of a header, in any case; `None` if there is none."""
    wanted = key.lower().encode()
    return next((value.decode() for name, value in frame.header_pairs if name.lower() == wanted), None)


class Link:
    """One connection to a TMQP listener. Threads may send at the same time; one thread reads.

    Raises `ConnectFailed`, `TLSError` and `AuthFailed` when it connects, and `ConnectionLost` from then on.
    """

    def __init__(self, endpoint: Endpoint, kind: str = "celery") -> None:
        self._endpoint = endpoint
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._lost: errors.ConnectionLost | None = None
        self._rest = b""
        self._size_wanted = 0
        self._expected: set[bytes] = set()
        self._answers: dict[bytes, Frame] = {}
        self.deliveries: deque[Frame] = deque()
        """Messages that arrived, for the caller to remove."""
        self._socket = dial(endpoint)
        try:
            self._shake_hands(kind)
        except BaseException:
            self._socket.close()
            raise
        # Celery drops connections without closing them.
        weakref.finalize(self, self._socket.close)
        heartbeats.keep_alive(self)

    def _shake_hands(self, kind: str) -> None:
        lines = ["CONNECT /", f"Client-Name: {socket.gethostname()}-{os.getpid()}", f"Client-Type: {kind}"]
        if self._endpoint.token:
            lines.append(f"Client-Token: {self._endpoint.token}")
        body = "".join(f"{line}\r\n" for line in lines).encode()
        hello = Frame(_SERVER, id=_HELLO_ID, content_type=_HELLO, payload=body, first_acquirer=True)
        self._send(_PREAMBLE + tmqp_encode(hello))
        deadline = time.monotonic() + self._endpoint.connect_timeout
        echo = b""
        while len(echo) < len(_PREAMBLE):
            if not is_readable(self._socket, deadline - time.monotonic()):
                raise errors.ConnectFailed(f"{self._endpoint} does not answer; is it a TMQP listener?")
            try:
                part = self._socket.recv(len(_PREAMBLE) - len(echo))
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            except OSError as error:
                raise errors.ConnectFailed(f"{self._endpoint} closed the connection: {error}") from error
            if not part:
                raise errors.ConnectFailed(f"{self._endpoint} closed the connection; is it a TMQP listener?")
            echo += part
        if echo != _PREAMBLE:
            raise errors.VersionMismatch(f"{self._endpoint} does not speak TMQP/2.0; broker_url needs a TMQP listener")
        try:
            answer = self._answer(_HELLO_ID, deadline)
        except errors.ConnectionLost as error:
            raise errors.ConnectFailed(f"{self._endpoint} closed the connection before it accepted it") from error
        if answer is None:
            raise errors.ConnectFailed(f"{self._endpoint} did not accept the connection in time")
        if answer.content_type == 401:
            raise errors.AuthFailed(f"{self._endpoint} refused the credentials; check user and password of the URL")
        if answer.content_type != _ACCEPTED:
            raise errors.ConnectFailed(f"{self._endpoint} refused the connection: {answer.payload.decode()}")

    # --- state -----------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The descriptor to watch: readable means that `receive` has something to do."""
        return self._socket.fileno()

    @property
    def is_connected(self) -> bool:
        """Whether no loss was noticed."""
        return self._lost is None and self._process == os.getpid() and self._socket.fileno() >= 0

    def beat(self) -> None:
        """Send a heartbeat, unless the connection is busy or gone."""
        if self.is_connected and self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    # Eight bytes fit, or the broker is behind with reading, and then needs no heartbeat.
                    self._socket.send(_PONG_BYTES)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Tell the broker, and close. In a forked child, close only its copy of the descriptor."""
        if self._process == os.getpid() and self._lost is None:
            with contextlib.suppress(OSError, errors.MqcoreError):
                self._send(_TERMINATE_BYTES)
        self.abandon()

    def abandon(self) -> None:
        """Close without telling the broker."""
        if self._lost is None:
            self._lost = errors.ConnectionLost("the connection is closed", sent=False)
        self._socket.close()

    # --- requests --------------------------------------------------------------------------------------------------

    def ask(self, operation: int, target: str, headers: Mapping[str, str] | None = None, body: object = None) -> Frame:
        """Send an operation and return its answer. Raises an `OperationError` if the broker rejects it."""
        (answer,) = self.ask_all([(operation, target, headers or {}, body)])
        _raise_for(answer, target)
        return answer

    def ask_all(self, requests: Iterable[tuple[int, str, Mapping[str, str], object]]) -> list[Frame]:
        """Send several operations with one write, and return all answers."""
        ids, data = [], []
        for operation, target, headers, body in requests:
            ids.append(new_id())
            data.append(_operation(operation, target, headers, body, ids[-1]))
        self._expected.update(ids)
        self._send(b"".join(data))
        deadline = time.monotonic() + self._endpoint.request_timeout
        answers = []
        for message_id in ids:
            answer = self._answer(message_id, deadline)
            if answer is None:
                raise errors.RequestTimeout(
                    f"{self._endpoint} did not answer within {self._endpoint.request_timeout} s"
                )
            answers.append(answer)
        return answers

    def tell(self, operation: int, target: str, headers: Mapping[str, str]) -> None:
        """Send an operation without waiting for the result."""
        self._send(_operation(operation, target, headers, None, b""))

    def publish(self, target: str, queue_id: int, headers: bytes, body: bytes, *, confirm: bool) -> None:
        """Publish a message. With `confirm`, wait until the broker has accepted it.

        Raises an `OperationError` or `Nacked` if the broker rejects it, `ConfirmTimeout`, and `TooLarge`.
        """
        if len(body) + len(headers) > _FRAME_BYTES_MAX - 1024:
            raise errors.TooLarge(
                f"a message of {len(body)} bytes exceeds the limit of {_FRAME_BYTES_MAX} bytes; send a reference to it",
                _FRAME_BYTES_MAX,
            )
        message_id = new_id()
        frame = Frame(
            _QUEUE,
            id=message_id,
            target=target.encode(),
            content_type=queue_id,
            headers=headers,
            payload=body,
            pending_acknowledge=confirm,
        )
        if not confirm:
            self.check()
            self._send(tmqp_encode(frame))
            return
        self._expected.add(message_id)
        self._send(tmqp_encode(frame))
        answer = self._answer(message_id, time.monotonic() + self._endpoint.request_timeout)
        if answer is None:
            raise errors.ConfirmTimeout(f"{target} was not confirmed within {self._endpoint.request_timeout} s")
        if answer.kind == _RESPONSE:
            _raise_for(answer, target)
        elif (reason := header_of(answer, "Nack-Reason")) is not None:
            raise errors.Nacked(f"{target} did not take the message: {reason}", reason, target)

    def settle(self, delivery: Frame, headers: bytes = b"") -> None:
        """Acknowledge a delivery; with the header ``Nack-Reason``, reject it."""
        self._send(
            tmqp_encode(
                Frame(
                    _ACKNOWLEDGE,
                    id=delivery.id,
                    target=delivery.target,
                    content_type=delivery.content_type,
                    headers=headers,
                )
            )
        )

    # --- reading ---------------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = 0.0) -> bool:
        """Read what has arrived, after waiting at most `timeout` seconds for it. False: nothing arrived."""
        self.check()
        if not is_readable(self._socket, timeout):
            return False
        self._read()
        return True

    def check(self) -> None:
        """Raise `ConnectionLost` if the connection is gone."""
        if self._lost is not None:
            raise self._lost
        if self._process != os.getpid():
            raise errors.ConnectionLost("this connection belongs to the process that forked this one", sent=False)

    def _answer(self, message_id: bytes, deadline: float) -> Frame | None:
        while (answer := self._answers.pop(message_id, None)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                self._expected.discard(message_id)
                return None
            self.receive(min(left, _POLL_SECONDS_MAX))
        return answer

    def _read(self) -> None:
        with self._lock:
            try:
                data = self._socket.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except OSError as error:
                raise self._has_lost(f"the connection to {self._endpoint} is lost: {error}") from error
            if not data:
                raise self._has_lost(f"{self._endpoint} closed the connection")
            buffer = self._rest + data if self._rest else data
            if len(buffer) < self._size_wanted:
                self._rest = buffer
                return
            self._rest = self._decode_all(buffer)
            self._size_wanted = _least_size(self._rest)

    def _decode_all(self, buffer: bytes) -> bytes:
        """Take all whole frames, and return what is left."""
        offset, size = 0, len(buffer)
        while offset < size:
            frame, used = tmqp_decode(buffer[offset : offset + _WINDOW_BYTES])
            if frame is None and offset + _WINDOW_BYTES < size:
                frame, used = tmqp_decode(buffer[offset:])
            if frame is None:
                break
            offset += used
            self._take(frame)
        return buffer[offset:]

    def _take(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == _QUEUE:
            self.deliveries.append(frame)
        elif kind == _SERVER:
            # The answer to Hello, whose id the broker may choose.
            self._answers[_HELLO_ID] = frame
        elif kind in (_ACKNOWLEDGE, _RESPONSE):
            if frame.id in self._expected:
                self._expected.discard(frame.id)
                self._answers[frame.id] = frame
            elif kind == _RESPONSE and frame.content_type:
                # An unconfirmed message; the confirmed ones get an acknowledgement too.
                _LOG.warning("%s: status %d, %s", frame.target, frame.content_type, header_of(frame, "Reason"))
        elif kind == _PING:
            self._send(_PONG_BYTES)

    # --- writing ---------------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        self.check()
        with self._lock:
            view = memoryview(data)
            deadline = time.monotonic() + self._endpoint.request_timeout
            while view:
                try:
                    view = view[self._socket.send(view) :]
                    continue
                except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    pass
                except OSError as error:
                    raise self._has_lost(f"the connection to {self._endpoint} is lost: {error}") from error
                if time.monotonic() > deadline:
                    raise self._has_lost(f"{self._endpoint} takes no more data")
                # Reads too: a broker that cannot write stops reading.
                if wait_writable(self._socket, 1.0) and is_readable(self._socket, 0.0):
                    self._read()

    def _has_lost(self, reason: str) -> errors.ConnectionLost:
        if self._lost is None:
            self._lost = errors.ConnectionLost(reason)
        return self._lost


def new_id() -> bytes:
    """Return a message id."""
    return uuid.uuid4().hex.encode()


def _operation(operation: int, target: str, headers: Mapping[str, str], body: object, message_id: bytes) -> bytes:
    return tmqp_encode(
        Frame(
            _SERVER,
            id=message_id,
            target=target.encode(),
            content_type=operation,
            headers="".join(f"{key}:{value}\r\n" for key, value in headers.items()).encode(),
            payload=b"" if body is None else msgspec.json.encode(body),
            pending_response=bool(message_id),
        )
    )


def _raise_for(answer: Frame, target: str) -> None:
    code = answer.content_type
    if not code:
        return
    reason = header_of(answer, "Reason") or f"status {code}"
    if code == 401 and header_of(answer, "Queue-Status") == "stopped":
        raise errors.QueueStopped(f"{target}: {reason}", code, target)
    raise _ERRORS.get(code, errors.OperationError)(f"{target}: {reason}", code, target)


def _least_size(start: bytes) -> int:
    """Return a lower bound for the size of the frame that begins so, so that a large body is not decoded in vain."""
    if len(start) < 8 or start[7] < 253:
        return 0
    width = {253: 2, 254: 4, 255: 8}[start[7]]
    return 8 + width + int.from_bytes(start[8 : 8 + width], "little") if len(start) >= 8 + width else 0
