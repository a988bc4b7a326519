"""Progress reports of jobs while the connection to the broker is lost for shorter or longer than the timeout."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from mqcore import errors
from mqcore.jobs import Jobs, wire
from served import wait_until

TOPIC = b"mqcore.jobs.progress/7"
REPORT = wire.JobProgress("7", "shop.send", 0.5, "half of it", 1, "worker")


@pytest.fixture
def port() -> int:
    """A free port for a socket that a broker publishes on."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        return publisher.bind_to_random_port("tcp://127.0.0.1")


@contextlib.contextmanager
def publishing_on(context: zmq.Context[zmq.Socket[bytes]], port: int) -> Iterator[zmq.Socket[bytes]]:
    """A publisher, as a broker has one for progress reports."""
    with context.socket(zmq.XPUB) as publisher:
        publisher.setsockopt(zmq.LINGER, 0)
        publisher.setsockopt(zmq.RCVTIMEO, 20_000)

        def is_bound() -> bool:
            # The socket that was here before closes in a thread of libzmq.
            with contextlib.suppress(zmq.ZMQError):
                publisher.bind(f"tcp://127.0.0.1:{port}")
                return True
            return False

        wait_until(is_bound, what="a free port")
        yield publisher


def wait_for_subscriber(publisher: zmq.Socket[bytes]) -> None:
    assert publisher.recv() == b"\x01" + TOPIC


def watch(port: int, timeout: float, found: list[object]) -> None:
    """Append the first report, or the error instead of it."""
    jobs = Jobs(f"emqp://127.0.0.1:1?subscribe={port}", timeout=timeout)
    try:
        found.append(next(iter(jobs.watch("7"))))
    except errors.MqcoreError as error:
        found.append(error)


@pytest.mark.parametrize("timeout", [20.0, 0.2])
def test_interruption_ends_a_watch_only_if_it_is_longer_than_the_timeout(port: int, timeout: float) -> None:
    found: list[object] = []
    watching = threading.Thread(target=watch, args=(port, timeout, found))
    with zmq.Context() as context:
        with publishing_on(context, port) as publisher:
            watching.start()
            wait_for_subscriber(publisher)
        if timeout < 1:
            watching.join(20)
        else:
            with publishing_on(context, port) as publisher:
                wait_for_subscriber(publisher)
                publisher.send_multipart([TOPIC, msgspec.json.encode(REPORT)])
                watching.join(20)
    (end,) = found
    if timeout < 1:
        assert isinstance(end, errors.ConnectionLost)
        assert "no connection to the job broker for 0.2 s" in str(end)
    else:
        assert end == REPORT
