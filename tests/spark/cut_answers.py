"""A proxy that cuts answers of the admin side after a number of bytes, as a broker does that is killed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

_PIECE = 1024


class CutAnswers:
    """Passes requests on. Answers with rows end early as often as `cuts` has numbers of bytes."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.cuts: list[int] = []
        self.between: Callable[[], object] = lambda: None
        """Called after each cut, before the client learns of it."""
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self.target) as broker:
            request = b""
            while b"\r\n\r\n" not in request:
                request += client.recv(65536)
            self.requests.append(request)
            broker.sendall(request)
            is_cut = b'"do": "rows"' in request and bool(self.cuts)
            left = self.cuts.pop(0) if is_cut else 1 << 62
            while left > 0 and (data := broker.recv(min(_PIECE, left))):
                client.sendall(data)
                left -= len(data)
            if is_cut:
                self.between()


@contextlib.contextmanager
def cut_answers(admin_url: str) -> Iterator[CutAnswers]:
    """Run a proxy in front of an admin side."""
    host, _, port = admin_url.rpartition("/")[2].rpartition(":")
    proxy = CutAnswers(host, int(port))
    try:
        yield proxy
    finally:
        proxy.close()
