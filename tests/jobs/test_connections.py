"""Connections of clients and workers to a broker that reads slowly, or does not answer."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from job_processes import broker_url, working
from mqcore import errors
from mqcore.jobs import Jobs, wire
from mqcore.jobs.dealer import Dealer
from mqcore.jobs.link import Link
from served import serving, wait_until

LIMIT_MS = 20_000


@pytest.fixture
def url() -> Iterator[str]:
    with serving("--listen", "emqp://127.0.0.1:0") as served:
        yield broker_url(served)


@pytest.fixture
def router() -> Iterator[tuple[zmq.Socket[bytes], int]]:
    """A broker's socket that reads only when told to, and its port."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        sock.setsockopt(zmq.RCVHWM, 1)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.RCVTIMEO, LIMIT_MS)
        yield sock, sock.bind_to_random_port("tcp://127.0.0.1")


def test_worker_keeps_results_and_their_order_while_the_broker_does_not_read(
    router: tuple[zmq.Socket[bytes], int],
) -> None:
    broker, port = router
    link = Link(f"tcp://127.0.0.1:{port}", [("q", 10)])
    try:
        for number in range(4000):
            link.send(wire.message(b"REPLY", b"%d " % number + b"x" * 4000, b"id"))
        received: list[bytes] = []

        def read() -> None:
            while len(received) < 4001:
                frames = broker.recv_multipart()
                if b"HEARTBEAT" not in frames:
                    received.append(frames[-2])

        reading = threading.Thread(target=read)
        reading.start()
        until = time.monotonic() + LIMIT_MS / 1000
        while reading.is_alive() and time.monotonic() < until:
            link.poll(0.01, ())
            link.flush()
        reading.join(LIMIT_MS / 1000)
    finally:
        link.close()
    # The first message joins the broker.
    assert [int(body.split()[0]) for body in received[1:]] == list(range(4000))


def test_closing_client_sends_what_waits_for_the_broker(router: tuple[zmq.Socket[bytes], int]) -> None:
    broker, port = router
    jobs = Jobs(f"emqp://127.0.0.1:1?frontend={port}", timeout=30)
    for number in range(1000):
        jobs.send("shop.send", [number, "x" * 10_000], result=False)
    closing = threading.Thread(target=jobs.close, args=(LIMIT_MS / 1000,))
    closing.start()
    received = [json.loads(bytes(wire.decode_call(broker.recv_multipart()[-1]).args))[0] for _ in range(1000)]
    closing.join(LIMIT_MS / 1000)
    assert not closing.is_alive()
    assert received == list(range(1000))


def test_idle_client_sends_each_job_at_once(router: tuple[zmq.Socket[bytes], int]) -> None:
    broker, port = router
    with Jobs(f"emqp://127.0.0.1:1?frontend={port}") as jobs:
        begin = time.monotonic()
        for number in range(8):
            jobs.send("shop.send", [number], result=False)
            assert b"REQUEST" in broker.recv_multipart()
        # An idle client waits for a second at a time, unless a job wakes it.
        assert time.monotonic() - begin < 4


def test_job_tells_whether_the_broker_has_dispatched_it(router: tuple[zmq.Socket[bytes], int]) -> None:
    broker, port = router
    with Jobs(f"emqp://127.0.0.1:1?frontend={port}") as jobs:
        job = jobs.send("shop.send", [1])
        identity, *_ = broker.recv_multipart()
        assert repr(job) == f"<job {job.id}, shop.send, sent>"
        broker.send_multipart([identity, b"", b"eMQP/1.0", b"REPLY", b"m", job.id.encode()])
        wait_until(lambda: job.is_dispatched, what="the notice")
        assert repr(job) == f"<job {job.id}, shop.send, dispatched>"


def test_worker_retries_by_itself_if_the_broker_counts_no_attempts(
    router: tuple[zmq.Socket[bytes], int], tasks: Callable[[str], Any]
) -> None:
    """The router is one of the original, which keeps no jobs: for workers and for clients, it forwards what comes."""
    broker, port = router
    url = f"emqp://127.0.0.1:{port}?frontend={port}"
    broker.setsockopt(zmq.RCVTIMEO, 100)
    peers: dict[bytes, bytes] = {}
    slots = 0
    ended = threading.Event()

    def route() -> None:
        nonlocal slots
        while not ended.is_set():
            try:
                identity, *frames = broker.recv_multipart()
            except zmq.Again:
                continue
            command = frames[2]
            slots += command == b"READY"
            if command == b"INFORM":
                peers[b"worker"] = identity
                broker.send_multipart([identity, b"", b"eMQP/1.0", b"ACK", b"1", frames[3], b"of a later version"])
            elif command == b"REQUEST":
                peers[b"client"] = identity
                broker.send_multipart([peers[b"worker"], *frames])
            elif command == b"REPLY":
                broker.send_multipart([peers[b"client"], *frames])

    routing = threading.Thread(target=route)
    routing.start()
    try:
        with working(url, "--pool", "thread", "--concurrency", "2", "--no-schedules"):
            wait_until(lambda: slots == 2, what="a request for each slot")
            begin = time.monotonic()
            assert tasks(url).fail_eight_times.enqueue().result(20) == 9
            # Eight waits of 10 ms. Far less than the second that the worker waits if it has nothing to do.
            assert time.monotonic() - begin < 4
            wait_until(lambda: slots == 3, what="a request for the slot of the job")
    finally:
        ended.set()
        routing.join()


def test_connecting_to_a_host_that_does_not_answer_does_not_block() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        others = [socket.socket() for _ in range(8)]
        try:
            # They fill the queue of the listener, which accepts none: further ones wait for their handshake.
            for other in others:
                other.setblocking(False)
                other.connect_ex(("127.0.0.1", port))
            made: list[Dealer] = []

            def connect() -> None:
                made.append(Dealer(f"tcp://127.0.0.1:{port}", "client"))

            threading.Thread(target=connect, daemon=True).start()
            wait_until(lambda: bool(made), limit=5, what="the dealer")
            dealer = made[0]
            assert dealer.poll(0.1) == set()
            assert not dealer.is_connected
            dealer.close()
        finally:
            for other in others:
                other.close()


def test_job_that_is_sent_while_its_client_closes_is_refused_or_ends(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(url)
    jobs.send("sample.echo", [1])
    client = jobs._client
    assert client is not None
    acquire = client._room.acquire

    def close_first(*arguments: Any, **named: Any) -> bool:
        # As if another thread closed the client after the check, before the job is in the buffer.
        closing = client._closing
        client.close()
        client._closing = closing
        return acquire(*arguments, **named)

    monkeypatch.setattr(client._room, "acquire", close_first)
    with pytest.raises(errors.Draining):
        jobs.send("sample.echo", [2])
