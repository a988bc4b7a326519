"""A raw MQKS connection: lines out, lines in, bytes as they are."""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Iterable

ERROR = re.compile(rb"\A(.*) error (\d{20}[0-9A-Za-z]{4})\Z", re.DOTALL)
"""An error line: the request's id and the error's."""


class MqksPeer:
    """One connection to an MQKS listener."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        if scheme.endswith("+unix"):
            self.socket = socket.socket(socket.AF_UNIX)
            address: str | tuple[str, int] = rest
        else:
            self.socket = socket.socket()
            host, _, port = rest.rpartition(":")
            address = (host, int(port))
        self.socket.settimeout(10)
        self.socket.connect(address)
        self._read = bytearray()
        self._marks = itertools.count()

    def __enter__(self) -> MqksPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def half_close(self) -> None:
        """Say nothing more, and still listen."""
        self.socket.shutdown(socket.SHUT_WR)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def send(self, *lines: str) -> None:
        """Send lines, each with its end."""
        self.send_bytes("".join(f"{line}\n" for line in lines).encode())

    def line(self) -> bytes:
        """Receive a line, without its end. Raises `EOFError` if the other side closes before."""
        while True:
            line, end, rest = bytes(self._read).partition(b"\n")
            if end:
                self._read = bytearray(rest)
                return line
            part = self.socket.recv(1 << 16)
            if not part:
                raise EOFError(line)
            self._read += part

    def unread(self, lines: list[bytes]) -> None:
        """Put lines back in front of those that are still to be received."""
        self._read = bytearray(b"".join(line + b"\n" for line in lines)) + self._read

    def lines(self, count: int) -> list[bytes]:
        """Receive so many lines."""
        return [self.line() for _ in range(count)]

    def ask(self, line: str) -> bytes:
        """Send a line, and receive one."""
        self.send(line)
        return self.line()

    def rest(self) -> list[bytes]:
        """Receive everything until the other side closes."""
        found = []
        try:
            while True:
                found.append(self.line())
        except (EOFError, ConnectionResetError):
            return found

    def is_cut(self) -> bool:
        """Whether the other side closes without another byte."""
        return self.rest() == [] and not self._read

    def until_now(self) -> list[bytes]:
        """Receive all lines that the broker has written before it answered to this."""
        mark = f"mark-{next(self._marks)}"
        self.send(f"{mark} ping now")
        found = []
        while (line := self.line()) != f"{mark} ok now".encode():
            found.append(line)
        return found

    def failed(self, line: str) -> str:
        """Send a line that fails, and return the id of the error."""
        answer = self.ask(line)
        match = ERROR.match(answer)
        assert match, answer
        wanted = line.partition(" ")[0] if line.count(" ") >= 2 else "None"
        assert match[1] == wanted.encode(), answer
        return match[2].decode()


def comparable(lines: Iterable[bytes]) -> list[bytes]:
    """Comparable parts of two transcripts: error ids differ each time, lines to several consumers come in any order."""
    return sorted(ERROR.sub(rb"\1 error {ERROR_ID}", line) for line in lines)
