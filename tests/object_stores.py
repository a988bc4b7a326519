"""Real S3 servers for tests: one that honors conditional writes, one that ignores them, and access to their objects."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

import programs
from served import wait_until

BUCKET = "lake"
"""The bucket that every server begins with."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests-secret", "AWS_REGION": "us-east-1"}
"""Accepted by every server."""


@dataclass(frozen=True)
class ObjectStore:
    """A server with an S3 API."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a broker that uses it."""
        return CREDENTIALS | {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ALLOW_HTTP": "true"}

    @property
    def client(self) -> Any:
        """A client of another maker."""
        import boto3  # type: ignore[import-untyped]

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region_name=CREDENTIALS["AWS_REGION"],
        )

    def keys(self, prefix: str = "") -> list[str]:
        """Names of all objects that begin with `prefix`."""
        return list(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Sizes in bytes of all objects whose names begin with `prefix`."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return {found["Key"]: found["Size"] for page in pages for found in page.get("Contents", ())}

    @property
    def properties(self) -> dict[str, str]:
        """How PyIceberg reaches it."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "s3.region": CREDENTIALS["AWS_REGION"],
        }


@contextlib.contextmanager
def moto_server(**settings: str) -> Iterator[ObjectStore]:
    """moto as a program of its own. It honors ``If-None-Match``. `settings` are variables of its environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = programs.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | CREDENTIALS | settings
    )
    try:
        wait_until(lambda: answers(port), limit=60, what="the S3 server")
        store = ObjectStore(f"http://127.0.0.1:{port}")
        store.client.create_bucket(Bucket=BUCKET)
        yield store
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    """Whether a server listens on a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Relay(BaseHTTPRequestHandler):
    """Passes requests on to another server, unchanged but for what `Between` decides."""

    protocol_version = "HTTP/1.1"
    between: Between

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def relay(self) -> None:
        """Pass one request on, and its answer back."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.between.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        decision = self.between.decide(self.command)
        if decision == "refuse":
            self.close_connection = True
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in self.between.dropped}
        upstream = HTTPConnection("127.0.0.1", self.between.port, timeout=30)
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if decision == "lose":
            self.close_connection = True
            return
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.between.count(len(content))

    def __getattr__(self, name: str) -> Any:
        """Every method is relayed."""
        if name.startswith("do_"):
            return self.relay
        raise AttributeError(name)


class Between:
    """Faults of the way between clients and a server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.dropped: set[str] = {"connection"}
        """Headers that do not arrive."""
        self.is_down = False
        """Whether no request arrives."""
        self.counted = "PUT"
        """Method of the requests whose answers may be lost."""
        self.lost: set[int] = set()
        """Numbers of these requests whose answers are lost, from 0."""
        self.requests = 0
        """Number of requests with this method."""
        self.seen: list[tuple[str, dict[str, str]]] = []
        """Path and headers of every request."""
        self.sent = 0
        """Bytes of all answers, without their headers."""
        self._counting = Lock()

    def count(self, sent: int) -> None:
        """Add to the bytes of all answers. Each connection has a thread of its own."""
        with self._counting:
            self.sent += sent

    def decide(self, method: str) -> str:
        """Return ``pass``, ``refuse`` or ``lose``."""
        if self.is_down:
            return "refuse"
        if method == self.counted:
            self.requests += 1
            if self.requests - 1 in self.lost:
                return "lose"
        return "pass"


@contextlib.contextmanager
def relayed(store: ObjectStore) -> Iterator[tuple[ObjectStore, Between]]:
    """A server in front of another one."""
    with relaying(store.endpoint) as (endpoint, between):
        yield ObjectStore(endpoint), between


@contextlib.contextmanager
def relaying(endpoint: str) -> Iterator[tuple[str, Between]]:
    """A server in front of any HTTP server of this machine: its address, and what is between."""
    between = Between(urlsplit(endpoint).port or 0)
    handler = type("BoundRelay", (Relay,), {"between": between})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", between
    finally:
        server.shutdown()
        server.server_close()
