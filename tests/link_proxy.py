"""A link between two nodes of a cluster that a test can cut in one direction."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

COPY = b"MQCL\x02\x02"
"""The first bytes of a connection that copies files."""


class LinkProxy:
    """Passes bytes between callers and one address. While it is cut, bytes stay where they are, and nothing notices."""

    def __init__(self, target: tuple[str, int], *, keeps: bool = False) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self._copies = threading.Event()
        self._copies.set()
        self._ends = False
        self._kept: list[bytes] | None = [] if keeps else None
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Pass nothing on, in neither direction of the connections."""
        self._open.clear()

    def mend(self) -> None:
        """Pass bytes on again, those that waited first."""
        self._open.set()

    def hold_copies(self) -> None:
        """Let no node copy the files of the answerer. Other connections continue."""
        self._copies.clear()

    def release_copies(self) -> None:
        """Let nodes copy files again."""
        self._copies.set()

    def passed(self) -> bytes:
        """Return all bytes that have passed, if the link keeps them."""
        return b"".join(self._kept or [])

    def close(self) -> None:
        """End everything."""
        self._ends = True
        self._open.set()
        self._copies.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ends:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(caller,), daemon=True).start()

    def _pass_on(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError), caller:
            self._open.wait()
            with socket.create_connection(self._target, timeout=5) as answerer:
                ends = {caller: answerer, answerer: caller}
                is_first = True
                while not self._ends:
                    readable, _, _ = select.select(list(ends), [], [], 0.2)
                    self._open.wait()
                    for source in readable:
                        if not (piece := source.recv(1 << 16)):
                            return
                        if is_first and piece.startswith(COPY):
                            self._copies.wait()
                        is_first = False
                        if self._kept is not None:
                            self._kept.append(piece)
                        ends[source].sendall(piece)
