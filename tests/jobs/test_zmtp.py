"""ZMTP as workers and clients speak it: the bytes, and connections to peers that are none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from mqcore.jobs import wire, zmtp
from mqcore.jobs.dealer import Dealer
from mqcore.jobs.link import Link
from served import wait_until

FRAMES = st.lists(st.one_of(st.binary(max_size=40), st.binary(min_size=250, max_size=600)), min_size=1, max_size=8)


@given(st.lists(FRAMES, max_size=5), st.data())
def test_messages_are_read_as_they_were_written_in_whatever_pieces_they_come(
    messages: list[list[bytes]], data: st.DataObject
) -> None:
    payload = b"".join(map(zmtp.encode, messages))
    reader = zmtp.Reader()
    found = []
    while payload:
        size = data.draw(st.integers(1, len(payload)))
        found += reader.feed(payload[:size])
        payload = payload[size:]
    assert found == messages


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_messages_or_an_error(payload: bytes) -> None:
    reader = zmtp.Reader()
    try:
        assert all(reader.feed(payload))
    except zmtp.ZmtpError:
        assert payload


def test_frames_that_are_too_large_are_refused_before_they_come() -> None:
    with pytest.raises(zmtp.ZmtpError, match="exceeds the limit"):
        zmtp.Reader().feed(b"\x02" + (1 << 40).to_bytes(8, "big"))
    with pytest.raises(zmtp.ZmtpError, match="exceeds the limit"):
        zmtp.Reader().feed(b"\x01\x00" * 1000)


def test_greeting_of_libzmq_is_accepted() -> None:
    zmtp.check_greeting(b"\xff" + bytes(7) + b"\x01\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32))
    for wrong in (b"HTTP/1.1 400 Bad Request".ljust(64), zmtp.GREETING.replace(b"NULL", b"PLAIN")[:64]):
        with pytest.raises(zmtp.ZmtpError):
            zmtp.check_greeting(wrong)


@contextlib.contextmanager
def answered_by(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """An endpoint whose connections are served so, one after the other, while the block runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    is_over = threading.Event()

    def accept() -> None:
        while not is_over.is_set():
            with contextlib.suppress(TimeoutError, ConnectionError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(10)
                    serve(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        is_over.set()
        thread.join()
        listener.close()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n" * 4, zmtp.GREETING + b"\x09"])
def test_dealer_reconnects_to_a_peer_that_does_not_speak_zmtp(said: bytes) -> None:
    times = []

    def serve(connection: socket.socket) -> None:
        times.append(connection)
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass

    with answered_by(serve) as endpoint, contextlib.closing(Dealer(endpoint, "test")) as dealer:

        def polled() -> bool:
            dealer.poll(0.01)
            assert not dealer.is_connected
            assert not dealer.watch()
            return len(times) > 1

        wait_until(polled, what="a second try")


def test_a_ping_is_answered_and_what_was_sent_before_the_handshake_comes_behind_it() -> None:
    ponged = []

    def serve(connection: socket.socket) -> None:
        connection.sendall(zmtp.GREETING)
        with connection.makefile("rb") as stream:
            stream.read(64)
            flags, size = stream.read(2)
            assert flags == 4
            assert stream.read(size).startswith(b"\x05READY")
            connection.sendall(zmtp.ready(b"ROUTER", b""))
            connection.sendall(b"\x04\x09\x04PING\x00\x0acc")
            ponged.append(stream.read(len(zmtp.encode([b"first"])) + 2 + len(b"\x04PONGcc")))

    with answered_by(serve) as endpoint, contextlib.closing(Dealer(endpoint, "test")) as dealer:
        assert dealer.send([b"first"])

        def polled() -> bool:
            dealer.poll(0.01)
            return bool(ponged)

        wait_until(polled, what="the answer to a PING")
        assert ponged == [zmtp.encode([b"first"]) + b"\x04\x07\x04PONGcc"]
        wait_until(lambda: dealer.poll(0.01) is not None and dealer.watch(), what="the end of the connection")


def test_nothing_is_sent_between_the_greeting_and_the_first_message() -> None:
    received = []
    expected = b"".join(zmtp.encode([each]) for each in (b"first", b"early", b"late"))

    def serve(connection: socket.socket) -> None:
        connection.sendall(zmtp.GREETING)
        with connection.makefile("rb") as stream:
            stream.read(64)
            _, size = stream.read(2)
            stream.read(size)
            connection.sendall(zmtp.ready(b"ROUTER", b""))
            received.append(stream.read(len(expected)))

    with answered_by(serve) as endpoint, contextlib.closing(Dealer(endpoint, "test", first=[b"first"])) as dealer:
        assert dealer.send([b"early"])
        assert dealer.send([b"late"])

        def polled() -> bool:
            dealer.poll(0.01)
            return bool(received)

        wait_until(polled, what="the messages")
    assert received == [expected]


def test_send_fails_when_the_buffer_is_full() -> None:
    dealer = Dealer("tcp://127.0.0.1:1", "test")
    sent = 0
    while dealer.send([bytes(1000)]):
        sent += 1
        assert sent < 100_000
    assert sent > 100
    dealer.close(linger=True)


def test_messages_beyond_the_buffer_are_sent_without_a_pause() -> None:
    count, body = 2000, b"x" * 4000
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        received = 0
        dealer = Dealer(f"tcp://127.0.0.1:{port}", "test")
        waiting = [body] * count
        deadline = time.monotonic() + 20
        while received < count and time.monotonic() < deadline:
            while waiting and dealer.send([waiting[0]]):
                waiting.pop()
            # With a pause for each 256 KiB, this takes half a minute.
            dealer.poll(1.0 if waiting else 0.01)
            with contextlib.suppress(zmq.Again):
                while True:
                    assert router.recv_multipart(zmq.NOBLOCK)[1] == body
                    received += 1
        dealer.close()
    assert received == count


def test_worker_that_ends_writes_all_its_results_first() -> None:
    count, result = 2000, b"x" * 4000
    version = b"eMQP/1.0"
    received: list[bytes] = []
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.RCVHWM, 1)
        router.setsockopt(zmq.RCVTIMEO, 2000)
        router.setsockopt(zmq.LINGER, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        link = Link(f"tcp://127.0.0.1:{port}", [("default", 10)])
        asked: list[list[bytes]] = []

        def is_asked() -> bool:
            link.poll(0.01, ())
            with contextlib.suppress(zmq.Again):
                asked.append(router.recv_multipart(zmq.NOBLOCK))
            return bool(asked)

        wait_until(is_asked, what="the join")
        router.send_multipart([asked[0][0], b"", version, b"ACK", b"1", asked[0][4]])
        for _ in range(count):
            link.send(wire.message(wire.REPLY, result, b"7"))

        def read() -> None:
            with contextlib.suppress(zmq.Again):
                while True:
                    received.append(router.recv_multipart()[5])

        reading = threading.Thread(target=read)
        reading.start()
        link.close()
        reading.join()
    assert received == [result] * count
