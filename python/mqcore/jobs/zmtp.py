"""ZMTP 3.0 with the mechanism NULL, as DEALER and SUB sockets speak it: octets of messages, and commands. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mqcore.errors import MqcoreError

__all__ = ["GREETING", "Reader", "check_greeting", "encode", "pong", "ready", "refusal"]

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""What both sides say first."""

_MORE: Final = 1
_LONG: Final = 2
_COMMAND: Final = 4

# Octets and frames of one message; beyond these the connection is given up.
_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_FRAMES_MAX: Final = 256

_SHORT_HEADS: Final = tuple(bytes((_MORE, length)) for length in range(256))


class ZmtpError(MqcoreError):
    """The peer does not speak ZMTP, or not so that this side understands it."""


def check_greeting(greeting: bytes) -> None:
    """Raise `ZmtpError` if the peer speaks something else."""
    if greeting[0] != 0xFF or greeting[9] != 0x7F or greeting[10] < 3:
        raise ZmtpError("the other side does not speak ZMTP 3")
    if greeting[12:32].rstrip(b"\0") != b"NULL":
        raise ZmtpError("the other side wants another mechanism than NULL")


def encode(frames: Sequence[bytes]) -> bytes:
    """Write a message."""
    parts: list[bytes] = []
    for frame in frames:
        size = len(frame)
        parts.append(_SHORT_HEADS[size] if size < 256 else b"\x03" + size.to_bytes(8, "big"))
        parts.append(frame)
    last = len(frames[-1])
    parts[-2] = bytes((0, last)) if last < 256 else b"\x02" + last.to_bytes(8, "big")
    return b"".join(parts)


def ready(kind: bytes, identity: bytes, token: bytes = b"") -> bytes:
    """Write the command that ends the handshake; `kind` is that of this socket, `token` shows a broker of mqcore who we
    are, as this mechanism has no word for it."""
    properties = [(b"Socket-Type", kind), (b"Identity", identity)]
    if token:
        properties.append((b"X-Token", token))
    octets = (bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value for name, value in properties)
    return _command(b"READY", b"".join(octets))


def refusal(error: bytes) -> tuple[int, str]:
    """Read ERROR, the command whose body is given: the status code with which brokers of mqcore begin, else 0, and the
    rest."""
    code, _, why = error[7:].decode("utf-8", "replace").partition(" ")
    return (int(code), why) if len(code) == 3 and code.isascii() and code.isdigit() else (0, f"{code} {why}".rstrip())


def pong(ping: bytes) -> bytes:
    """Write the answer to a PING, the command whose body is given."""
    # Its name, two octets of a time to live, and what is to come back.
    return _command(b"PONG", ping[7:])


def _command(name: bytes, data: bytes) -> bytes:
    body = bytes((len(name),)) + name + data
    if len(body) < 256:
        return bytes((_COMMAND, len(body))) + body
    return bytes((_COMMAND | _LONG,)) + len(body).to_bytes(8, "big") + body


class Reader:
    """Cuts what comes behind the greeting into messages and commands."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0
        # Octets that there must be before looking again is worth it.
        self._needed = 0
        self._frames: list[bytes] = []
        self._frames_size = 0
        self.commands: list[bytes] = []
        """The bodies of commands that came, to be taken out."""

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Take octets; the messages that are whole now. Raises `ZmtpError`."""
        if self._rest:
            self._rest.append(data)
            self._size += len(data)
            if self._size < self._needed:
                return []
            data = b"".join(self._rest)
            self._rest = []
        found: list[list[bytes]] = []
        frames = self._frames
        at, end = 0, len(data)
        needed = 2
        while at + 2 <= end:
            flags = data[at]
            if flags & _LONG:
                if at + 9 > end:
                    needed = 9
                    break
                begin = at + 9
                size = int.from_bytes(data[at + 1 : begin], "big")
                if size > _MESSAGE_BYTES_MAX:
                    raise ZmtpError(f"a frame of {size} octets is too large")
            else:
                begin = at + 2
                size = data[at + 1]
            stop = begin + size
            if stop > end:
                needed = stop - at
                break
            at = stop
            if flags & ~_MORE & ~_LONG:
                self._command(flags, data[begin:stop])
                continue
            frames.append(data[begin:stop])
            if flags & _MORE:
                self._frames_size += size
                if len(frames) > _FRAMES_MAX or self._frames_size > _MESSAGE_BYTES_MAX:
                    raise ZmtpError("a message is too large")
                continue
            found.append(frames)
            frames = []
            self._frames_size = 0
        self._frames = frames
        if at < end:
            self._rest = [data[at:]]
            self._size, self._needed = end - at, needed
        return found

    def _command(self, flags: int, body: bytes) -> None:
        if flags & ~(_LONG | _COMMAND):
            raise ZmtpError("a frame has flags that nobody knows")
        self.commands.append(body)
