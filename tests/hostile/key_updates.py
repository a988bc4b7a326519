"""A TLS 1.3 connection that asks for new keys, which Python's `ssl` cannot do: calls of the same OpenSSL library."""

from __future__ import annotations

import ctypes
import socket
from pathlib import Path

import pytest

_REQUESTED = 1
"""The type of a key update that asks the other side for one too (SSL_KEY_UPDATE_REQUESTED)."""
_CTRL_SET_TLSEXT_HOSTNAME, _NAME_TYPE_HOST = 55, 0


def _library() -> ctypes.CDLL:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.split()[-1]
        if Path(path).name.startswith("libssl"):
            library = ctypes.CDLL(path)
            for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
                getattr(library, name).restype = ctypes.c_void_p
            return library
    pytest.skip("this Python has no OpenSSL library of its own file")


class KeyUpdater:
    """A TLS connection over a blocking socket."""

    def __init__(self, stream: socket.socket) -> None:
        self._ssl = _library()
        self._stream = stream
        self._context = ctypes.c_void_p(self._ssl.SSL_CTX_new(ctypes.c_void_p(self._ssl.TLS_client_method())))
        self._connection = ctypes.c_void_p(self._ssl.SSL_new(self._context))
        self._ssl.SSL_ctrl(
            self._connection, _CTRL_SET_TLSEXT_HOSTNAME, ctypes.c_long(_NAME_TYPE_HOST), ctypes.c_char_p(b"localhost")
        )
        assert self._ssl.SSL_set_fd(self._connection, stream.fileno()) == 1
        assert self._ssl.SSL_connect(self._connection) == 1, "the handshake failed"

    def write(self, data: bytes) -> bool:
        """Send data. False if the other side has closed the connection."""
        return int(self._ssl.SSL_write(self._connection, data, len(data))) == len(data)

    def read(self, size: int) -> bytes:
        """Receive so many bytes at most; none if the other side has closed the connection."""
        data = ctypes.create_string_buffer(size)
        return data.raw[: max(0, int(self._ssl.SSL_read(self._connection, data, size)))]

    def update(self) -> bool:
        """Send a key update and ask for one. False if the other side has closed the connection."""
        asked = self._ssl.SSL_key_update(self._connection, _REQUESTED) == 1
        return asked and self._ssl.SSL_do_handshake(self._connection) == 1

    def close(self) -> None:
        """Close the connection."""
        self._ssl.SSL_free(self._connection)
        self._ssl.SSL_CTX_free(self._context)
        self._stream.close()
