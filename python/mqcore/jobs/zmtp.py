"""ZMTP 3.0 with the NULL mechanism, as DEALER and SUB sockets speak it: the broker's own codec. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mqcore._core import ZmtpCodec
from mqcore.errors import ProtocolError

__all__ = ["GREETING", "Reader", "ZmtpError", "check_greeting", "encode", "error_of", "pong", "ready"]

GREETING: Final = ZmtpCodec.greeting()
"""First 64 bytes in each direction."""

ZmtpError = ProtocolError
"""Raised for bytes that violate the protocol, and if the peer sends ERROR."""


def check_greeting(greeting: bytes) -> None:
    """Check the peer's greeting. Raises `ZmtpError` for another protocol, version or mechanism."""
    ZmtpCodec.has_greeting(greeting)


def encode(frames: Sequence[bytes]) -> bytes:
    """Encode a message of at least one frame."""
    return ZmtpCodec.message(frames)


def ready(kind: bytes, identity: bytes, token: bytes = b"") -> bytes:
    """Encode READY, which completes the handshake, for a socket of type `kind`.

    `token` is an extension of mqcore: the property X-Token, because the NULL mechanism has no credentials.
    """
    return ZmtpCodec.ready(kind, identity, token)


def pong(context: bytes) -> bytes:
    """Encode PONG, the answer to a PING with this context."""
    return ZmtpCodec.pong(context)


def error_of(reason: bytes) -> tuple[int, str]:
    """Split the reason of an ERROR into a status code and a text. Without a code, which mqcore adds, it is 0."""
    code, _, text = reason.decode("utf-8", "replace").partition(" ")
    return (int(code), text) if len(code) == 3 and code.isascii() and code.isdigit() else (0, f"{code} {text}".rstrip())


class Reader:
    """Decodes the bytes after the greeting into messages and commands."""

    def __init__(self) -> None:
        self._codec = ZmtpCodec()
        self.commands: list[tuple[str, bytes]] = []
        """Received commands, for the caller to remove: READY, ERROR with its reason, PING with its context."""

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Decode more bytes, and return the messages that are now complete.

        Raises `ZmtpError` for a protocol violation, and for a message over 64 MiB or 64 frames.
        """
        messages, commands = self._codec.feed(data)
        if commands:
            self.commands.extend(map(ZmtpCodec.command, commands))
        return messages
