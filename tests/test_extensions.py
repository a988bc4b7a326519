"""Vendors' extensions of MicroMessage2 that a Python program handles."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Iterable

import pytest

import mqcore
from mm2_peer import MM2Peer, extension, message, subscribe
from mqcore._answering import LoopRunner
from mqcore.errors import InvalidArgument
from mqcore.extensions import Extension, ExtensionRefused


class Note(Extension):
    """Answers each frame, in the way that the frame asks for."""

    name = "x-note"
    timeout = 60.0

    def __init__(self) -> None:
        self.seen: list[tuple[str | None, bytes]] = []
        self.threads: set[str] = set()

    def received(
        self, client: mqcore.ClientView, payload: bytes
    ) -> bytes | Iterable[bytes] | Awaitable[bytes | Iterable[bytes] | None] | None:
        self.seen.append((client.name, payload))
        self.threads.add(threading.current_thread().name)
        if payload == b"nothing":
            return None
        if payload == b"several":
            return [b"one", b"two"]
        if payload == b"refuse":
            raise ExtensionRefused("not this one")
        if payload == b"raise":
            raise ValueError("a secret")
        if payload == b"sleep":
            time.sleep(1)
        return b"got " + payload


class AsyncNote(Extension):
    """The same on the event loop."""

    name = "x-async"
    timeout = 60.0

    async def received(self, client: mqcore.ClientView, payload: bytes) -> bytes | list[bytes]:
        await asyncio.sleep(0)
        if payload == b"refuse":
            raise ExtensionRefused("not this one")
        if payload == b"raise":
            raise ValueError("a secret")
        if payload == b"sleep":
            await asyncio.sleep(10)
        return [b"got", payload]


class Nonsense(Extension):
    """Returns what is not a payload."""

    name = "x-nonsense"

    def received(self, client: mqcore.ClientView, payload: bytes) -> bytes:
        return [1, 2] if payload == b"list" else 7  # type: ignore[return-value]


def broker_with(*extensions: Extension) -> mqcore.Broker:
    broker = mqcore.Broker(listen=["mm2://127.0.0.1:0"], shards=1)
    for one in extensions:
        broker.add_extension(one)
    return broker


def test_a_frame_is_handled_and_answered_in_frames_of_the_same_extension() -> None:
    note = Note()
    with broker_with(note) as broker, MM2Peer(broker.listeners[0], identity=b"ann") as peer:
        assert "x-note" in peer.shake("json", "x-note:v=1").optional
        peer.conclude("json", "x-note")
        peer.send(extension(2, b"hello"))
        frame = peer.frame()
        assert (frame.kind, frame.id, frame.payload) == ("extension", 2, b"got hello")
        peer.send(extension(2, b"several"), extension(2, b"nothing"), extension(2, b"last"))
        assert [frame.payload for frame in peer.frames(3)] == [b"one", b"two", b"got last"]
    assert note.seen == [("ann", b"hello"), ("ann", b"several"), ("ann", b"nothing"), ("ann", b"last")]
    assert len(note.threads) == 1


class Slow(Extension):
    """Takes its time for each frame."""

    name = "x-slow"
    timeout = 1.5

    def received(self, client: mqcore.ClientView, payload: bytes) -> bytes:
        time.sleep(0.2)
        return payload


def test_waiting_behind_earlier_frames_does_not_count_as_handling() -> None:
    """10 frames of 0.2 s with a timeout of 1.5 s: the last one is answered 2 s after it arrived."""
    with broker_with(Slow()) as broker, MM2Peer(broker.listeners[0]) as peer:
        peer.open("x-slow")
        peer.send(*(extension(1, b"%d" % number) for number in range(10)))
        assert [frame.payload for frame in peer.frames(10)] == [b"%d" % number for number in range(10)]


def test_async_handlers_answer_in_the_order_of_the_frames() -> None:
    with broker_with(AsyncNote()) as broker, MM2Peer(broker.listeners[0]) as peer:
        peer.open("x-async")
        peer.send(*(extension(1, b"%d" % number) for number in range(1000)))
        assert [frame.payload for frame in peer.frames(2000)][1::2] == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("kind", [Note, AsyncNote])
@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"refuse", "extension: {}: not this one"),
        (b"raise", "internal: {}: its handler failed"),
        (b"sleep", "internal: {}: its handler took longer than 500ms"),
    ],
)
def test_failed_extension_frame_closes_the_connection_with_the_protocols_error(
    kind: type[Note] | type[AsyncNote],
    payload: bytes,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if payload == b"sleep":
        monkeypatch.setattr(kind, "timeout", 0.5)
    with (
        caplog.at_level(logging.ERROR, "mqcore.extensions"),
        broker_with(kind()) as broker,
        MM2Peer(broker.listeners[0]) as peer,
        MM2Peer(broker.listeners[0]) as bystander,
    ):
        peer.open(kind.name)
        bystander.open("x-mqcore;pub-sub")
        peer.send(extension(1, payload))
        error = peer.error()
        assert error == why.format(kind.name) or (payload == b"sleep" and error.endswith("its handler failed"))
        assert bystander.ask(subscribe("topic/t", name="s")) == "ok"
    logged = [record for record in caplog.records if kind.name in record.getMessage()]
    assert bool(logged) == (payload == b"raise") or payload == b"sleep"


@pytest.mark.parametrize("payload", [b"number", b"list"])
def test_invalid_payload_from_a_handler_is_a_failure(payload: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.ERROR, "mqcore.extensions"),
        broker_with(Nonsense()) as broker,
        MM2Peer(broker.listeners[0]) as peer,
    ):
        peer.open("x-nonsense")
        peer.send(extension(1, payload))
        assert peer.error() == "internal: x-nonsense: its handler failed"
    assert "TypeError" in caplog.text


def test_other_frames_do_not_wait_for_a_handler() -> None:
    with (
        broker_with(AsyncNote()) as broker,
        MM2Peer(broker.listeners[0]) as peer,
        MM2Peer(broker.listeners[0]) as other,
    ):
        other.open("pub-sub;x-mqcore").ask(subscribe("topic/t", name="s"))
        peer.open("x-async")
        peer.send(extension(1, b"sleep"), message(1, "topic/t", b"not held up"))
        assert other.frame().payload == b"not held up"


def test_extension_without_handler_is_unknown() -> None:
    with broker_with(Note()) as broker, MM2Peer(broker.listeners[0]) as peer, MM2Peer(broker.listeners[0]) as other:
        assert "x-other" not in peer.shake("", "x-other").optional
        with pytest.raises(AssertionError, match="unsupported x-other"):
            other.shake("x-other")


@pytest.mark.parametrize("wrong", ["note", "x-", "x-Note", "x-a b", "x-nack", "x-mqcore", 7])
def test_names_are_those_of_vendors(wrong: object) -> None:
    named = type("Named", (Note,), {"name": wrong})
    with pytest.raises(InvalidArgument, match="invalid extension name"):
        mqcore.Broker().add_extension(named())


def test_extensions_are_added_before_the_broker_starts() -> None:
    with broker_with(Note()) as broker:
        with pytest.raises(RuntimeError, match="stop it first"):
            broker.add_extension(AsyncNote())
        with pytest.raises(TypeError, match="an extension must be an instance of a subclass"):
            broker.add_extension(object())  # type: ignore[arg-type]


def test_one_of_the_same_name_takes_the_place_of_the_other() -> None:
    first, second = Note(), Note()
    with broker_with(first, second) as broker, MM2Peer(broker.listeners[0]) as peer:
        peer.open("x-note")
        peer.send(extension(1, b"x"))
        assert peer.frame().payload == b"got x"
    assert (first.seen, second.seen) == ([], [("peer", b"x")])


def test_a_broker_that_stops_does_not_wait_for_a_handler_for_ever() -> None:
    began = time.monotonic()
    with broker_with(Note()) as broker, MM2Peer(broker.listeners[0]) as peer:
        peer.open("x-note;x-mqcore")
        peer.send(extension(1, b"sleep"))
        assert peer.ask("ping;id=p") == "ok"
    assert time.monotonic() - began < 30


class Replied:
    """The reply to a handler that never runs."""

    failed = False

    def settle(self, _result: object) -> None:
        raise AssertionError("the handler never ran")

    def fail(self) -> None:
        self.failed = True


async def received() -> bytes:
    """A handler that never runs."""
    return b"never"


def test_an_answer_that_is_canceled_before_it_begins_is_settled_and_closed() -> None:
    loop, handling, reply = asyncio.new_event_loop(), received(), Replied()
    runner: LoopRunner[Replied] = LoopRunner(
        1.0, lambda: loop, raised=lambda _reply, error: pytest.fail(str(error)), closed=lambda _reply, error: None
    )
    runner.submit([(handling, reply)])
    loop.call_soon(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
    for _ in range(3):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    assert reply.failed
    assert inspect.getcoroutinestate(handling) == inspect.CORO_CLOSED


def test_answers_for_a_loop_that_closes_before_it_takes_them_are_settled_and_closed() -> None:
    loop, replies = asyncio.new_event_loop(), [Replied(), Replied()]
    handlings = [received(), received()]
    runner: LoopRunner[Replied] = LoopRunner(
        1.0,
        lambda: loop,
        raised=lambda _reply, error: pytest.fail(str(error)),
        closed=lambda _reply, error: pytest.fail(str(error)),
    )
    runner.submit(list(zip(handlings, replies, strict=True)))
    loop.close()
    assert all(reply.failed for reply in replies)
    assert [inspect.getcoroutinestate(handling) for handling in handlings] == [inspect.CORO_CLOSED] * 2


def test_answers_for_a_closed_loop_are_settled_closed_and_reported_once() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    reports: list[tuple[Replied, BaseException]] = []
    runner: LoopRunner[Replied] = LoopRunner(
        1.0,
        lambda: loop,
        raised=lambda _reply, error: pytest.fail(str(error)),
        closed=lambda reply, error: reports.append((reply, error)),
    )
    # Any awaitable is taken, not only a coroutine.
    burst = [(received(), Replied()), (asyncio.Future(loop=loop), Replied()), (received(), Replied())]
    runner.submit(burst)
    assert all(reply.failed for _, reply in burst)
    assert [inspect.getcoroutinestate(burst[at][0]) for at in (0, 2)] == [inspect.CORO_CLOSED] * 2  # type: ignore[arg-type]
    ((reply, error),) = reports
    assert reply is burst[0][1]
    assert "closed" in str(error)
