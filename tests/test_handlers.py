"""Delivery handlers in Python: every step, plain and awaited; what raises, sleeps or holds the interpreter."""

from __future__ import annotations

import asyncio
import inspect
import logging
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mqcore
from mqcore import Broker, ChannelOptions, Decision, DeliveryHandler, PutBack, QueueOptions, SendAck
from mqcore._core import policy_decision

ALLOW = Decision()
REFUSE = Decision(allow=False)
TELL = Decision(acknowledge=SendAck.ALWAYS)
QUEUE, ACKNOWLEDGE = 0x11, 0x13
BUSY = 503

Step = Callable[..., Any]


def eventually(condition: Callable[[], bool], *, limit: float = 10.0) -> None:
    """Polls until `condition` holds; what it asks about may not exist yet."""

    def holds() -> bool:
        try:
            return condition()
        except KeyError:
            return False

    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline, "this should have come true by now"
        time.sleep(0.002)


def handler(style: str, **steps: Step) -> DeliveryHandler:
    """A handler whose overridden steps are `steps`, as plain or as async methods."""

    def plain(step: Step) -> Step:
        return lambda self, *arguments: step(*arguments)

    def awaited(step: Step) -> Step:
        async def method(self: DeliveryHandler, *arguments: Any) -> Any:
            await asyncio.sleep(0)
            return step(*arguments)

        return method

    wrap = plain if style == "plain" else awaited
    return type("Handler", (DeliveryHandler,), {name: wrap(step) for name, step in steps.items()})()


@pytest.fixture(params=["plain", "async"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def broker(handler: DeliveryHandler, **queue: Any) -> Iterator[Broker]:
    """A broker whose queues all ask `handler`, unless they name another."""
    mq = Broker(
        listen="tmqp://127.0.0.1:0",
        auto_create_channels=True,
        auto_create_queues=True,
        delivery_handler="asked",
        channel=ChannelOptions(queue=QueueOptions(**queue)),
    )
    mq.delivery_handlers["asked"] = handler
    with mq:
        yield mq


def nack_reason(frame: Any) -> str | None:
    reason: str | None = frame.header("Nack-Reason")
    return reason


def test_received_from_producer_decides_what_is_taken(style: str, connect: Any) -> None:
    seen = []

    def received(queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView) -> Decision:
        seen.append((queue.address, message.body, producer.id, str(queue.status)))
        return TELL if message.body == b"good" else Decision(allow=False, acknowledge=SendAck.NEGATIVE)

    with broker(handler(style, received_from_producer=received)) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        bad = producer.publish("orders", 7, b"bad", confirm=True)
        good = producer.publish("orders", 7, b"good", confirm=True)
        answers = {answer.id: nack_reason(answer) for answer in (producer.next(), producer.next())}
        assert answers == {bad: "none", good: None}
        assert consumer.next().id == good
        assert seen == [("orders/7", body, producer.id, "push") for body in (b"bad", b"good")]
        assert mq.stats().queue("orders/7").dropped["refused"] == 1


def test_begin_send_can_end_the_way(style: str, connect: Any) -> None:
    begin = lambda queue, message: REFUSE if message.body == b"no" else ALLOW  # noqa: E731
    with broker(handler(style, begin_send=begin)) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        producer.publish("orders", 1, b"no")
        wanted = producer.publish("orders", 1, b"yes")
        assert consumer.next().id == wanted
        assert mq.stats().queue("orders/1").dropped["refused"] == 1


def test_queue_information_counts_messages_whose_delivery_is_undecided(style: str) -> None:
    """They are neither stored nor in flight, so without this count they would look lost."""
    begun, release = threading.Event(), threading.Event()

    def begin(*_: object) -> Decision:
        begun.set()
        release.wait(10)
        return ALLOW

    async def scenario(mq: Broker) -> None:
        async with mqcore.connect(mq.listeners[0]) as client, client.join("orders"):
            await client.create_queue("orders/1", QueueOptions(status="pull", request_acknowledge=True))
            queue = client.queue("orders/1")
            for _ in range(3):
                await queue.publish(b"")
            pull = asyncio.create_task(queue.pull(3))
            assert await asyncio.to_thread(begun.wait, 10)
            information = await queue.information()
            assert (information.messages, information.in_flight, information.unsettled) == (0, 0, 3)
            release.set()
            batch = await pull
            assert (await queue.information()).unsettled == 3
            for message in batch:
                assert await message.ack()
            assert (await queue.information()).unsettled == 0

    with broker(handler(style, begin_send=begin)) as mq:
        asyncio.run(scenario(mq))


def test_can_consumer_receive_chooses_among_consumers(style: str, connect: Any) -> None:
    chosen: list[str] = []
    can = lambda queue, message, consumer: ALLOW if consumer.id in chosen else REFUSE  # noqa: E731
    with broker(handler(style, can_consumer_receive=can)) as mq:
        producer, left, right = (connect(mq.listeners[0]) for _ in range(3))
        left.join("orders")
        right.join("orders")
        chosen.append(right.id)
        message = producer.publish("orders", 1, b"")
        assert right.next().id == message
        with pytest.raises(TimeoutError):
            left.next(timeout=0.05)


def test_consumer_received_can_tell_the_producer(style: str, connect: Any) -> None:
    seen = []

    def received(queue: object, delivery: mqcore.Delivery, consumer: mqcore.ClientView) -> Decision:
        seen.append((delivery.message.body, delivery.attempt, delivery.consumer.id, consumer.id))
        return TELL

    steps = {"received_from_producer": lambda *_: ALLOW, "consumer_received": received}
    with broker(handler(style, **steps)) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        message = producer.publish("orders", 1, b"x", confirm=True)
        answer = producer.next()
        assert (answer.kind, answer.id, nack_reason(answer)) == (ACKNOWLEDGE, message, None)
        name = consumer.id
        assert seen == [(b"x", 1, name, name)]


def test_consumer_receive_failed_decides_about_what_a_lost_consumer_had(style: str, connect: Any) -> None:
    seen = []

    def failed(queue: object, delivery: mqcore.Delivery, consumer: mqcore.ClientView) -> Decision:
        seen.append((delivery.message.body, consumer.id))
        return Decision(put_back=PutBack.START)

    with broker(handler(style, consumer_receive_failed=failed), request_acknowledge=True) as mq:
        producer, first, second = (connect(mq.listeners[0]) for _ in range(3))
        first.join("orders")
        message = producer.publish("orders", 1, b"x")
        assert first.next().id == message
        first.close()
        second.join("orders")
        assert second.next().id == message
        assert seen == [(b"x", first.id)]


def test_end_send_can_tell_the_producer(style: str, connect: Any) -> None:
    steps = {"received_from_producer": lambda *_: ALLOW, "end_send": lambda queue, message: TELL}
    with broker(handler(style, **steps)) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        message = producer.publish("orders", 1, b"x", confirm=True)
        assert consumer.next().id == message
        assert producer.next().id == message


def test_acknowledge_received_decides_after_a_consumers_word(style: str, connect: Any) -> None:
    seen = []

    def acknowledged(
        queue: object, acknowledgement: mqcore.Acknowledgement, delivery: mqcore.Delivery | None
    ) -> Decision:
        assert delivery is not None
        seen.append((acknowledgement.positive, acknowledgement.reason, delivery.attempt))
        assert acknowledgement.message_id == delivery.message.id
        return ALLOW if acknowledgement.positive else Decision(put_back=PutBack.END)

    with broker(handler(style, acknowledge_received=acknowledged), request_acknowledge=True) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        message = producer.publish("orders", 1, b"x")
        consumer.acknowledge(consumer.next(), negative="later")
        again = consumer.next()
        assert again.id == message
        consumer.acknowledge(again)
        eventually(lambda: len(seen) == 2)
        assert seen == [(False, "later", 1), (True, None, 2)]


def test_acknowledge_received_of_the_base_class_answers_what_the_policy_decides(connect: Any) -> None:
    decisions: dict[bool, Decision] = {}

    class Watching(DeliveryHandler):
        policy = "ack-on-consume"

        def acknowledge_received(
            self, queue: mqcore.QueueView, acknowledgement: mqcore.Acknowledgement, delivery: mqcore.Delivery | None
        ) -> Any:
            decision = super().acknowledge_received(queue, acknowledgement, delivery)
            decisions[acknowledgement.positive] = decision
            return decision

    with broker(Watching(), request_acknowledge=True) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        message = producer.publish("orders", 1, b"x", confirm=True)
        consumer.acknowledge(consumer.next())
        assert (answer := producer.next()).id == message
        assert nack_reason(answer) is None
        producer.publish("orders", 1, b"y", confirm=True)
        consumer.acknowledge(consumer.next(), negative="later")
        assert nack_reason(producer.next()) == "later"
    assert decisions == {
        positive: policy_decision("ack-on-consume", "acknowledge_received", positive=positive)
        for positive in (True, False)
    }


def test_acknowledge_timed_out_decides_when_no_word_comes(style: str, connect: Any) -> None:
    seen = []

    def timed_out(queue: object, delivery: mqcore.Delivery) -> Decision:
        seen.append(delivery.attempt)
        return Decision(put_back=PutBack.END if delivery.attempt < 2 else PutBack.NO, acknowledge=SendAck.NEGATIVE)

    steps = {"received_from_producer": lambda *_: ALLOW, "acknowledge_timed_out": timed_out}
    with broker(handler(style, **steps), request_acknowledge=True, acknowledge_timeout="50ms") as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        message = producer.publish("orders", 1, b"x", confirm=True)
        assert [consumer.next().id, consumer.next().id] == [message, message]
        answer = producer.next()
        assert (answer.id, nack_reason(answer)) == (message, "timeout")
        eventually(lambda: mq.stats().queue("orders/1").removed == 1)
        assert seen == [1, 2]


def test_message_timed_out_decides_about_what_waited_too_long(style: str, connect: Any) -> None:
    seen = []

    def timed_out(queue: object, message: mqcore.Message) -> Decision:
        seen.append(message.body)
        return REFUSE

    with broker(handler(style, message_timed_out=timed_out), message_timeout="50ms") as mq:
        producer = connect(mq.listeners[0])
        producer.publish("orders", 1, b"x")
        eventually(lambda: seen == [b"x"])
        eventually(lambda: mq.stats().queue("orders/1").removed == mq.stats().queue("orders/1").timed_out == 1)


def test_message_dequeued_is_called_after_a_message_is_removed(style: str, connect: Any) -> None:
    gone: list[bytes] = []
    note_dequeued = lambda queue, message: gone.append(message.body)  # noqa: E731
    with broker(handler(style, message_dequeued=note_dequeued), request_acknowledge=True) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        producer.publish("orders", 1, b"x")
        delivery = consumer.next()
        assert gone == []
        consumer.acknowledge(delivery)
        eventually(lambda: gone == [b"x"])


def test_save_message_answers_whether_it_is_saved(style: str, connect: Any) -> None:
    save = Decision(save=True, acknowledge=SendAck.IF_SAVED)
    steps = {
        "received_from_producer": lambda *_: save,
        "save_message": lambda queue, message: message.body == b"yes",
    }
    with broker(handler(style, **steps)) as mq:
        producer = connect(mq.listeners[0])
        refused = producer.publish("orders", 1, b"no", confirm=True)
        saved = producer.publish("orders", 1, b"yes", confirm=True)
        response, nack, confirmation = (producer.next() for _ in range(3))
        assert (response.id, response.content_type, nack.id) == (refused, BUSY, refused)
        reason = nack_reason(nack)
        assert reason is not None
        assert "save_message of delivery handler" in reason
        assert (confirmation.id, nack_reason(confirmation)) == (saved, None)
        queue = mq.stats().queue("orders/1")
        assert (queue.saved, queue.save_failed, queue.normal) == (1, 1, 1)
        # Without a producer that waits, the message stays in the queue, unsaved.
        producer.publish("orders", 1, b"no")
        eventually(lambda: mq.stats().queue("orders/1").normal == 2)


def test_exception_thrown_decides_instead_of_what_raised(style: str, connect: Any) -> None:
    seen = []

    def received(queue: object, message: mqcore.Message, producer: object) -> Decision:
        raise ValueError(message.body)

    def thrown(queue: mqcore.QueueView, message: mqcore.Message | None, exception: Exception) -> Decision:
        assert message is not None
        seen.append((queue.address, message.body, repr(exception)))
        return Decision(allow=False, acknowledge=SendAck.NEGATIVE)

    with broker(handler(style, received_from_producer=received, exception_thrown=thrown)) as mq:
        producer = connect(mq.listeners[0])
        message = producer.publish("orders", 1, b"x", confirm=True)
        answer = producer.next()
        assert (answer.id, nack_reason(answer)) == (message, "none")
        assert seen == [("orders/1", b"x", "ValueError(b'x')")]
        assert mq.stats().handlers[0].failed == 0


def test_unsaved_message_stays_unsaved_for_every_exception_thrown_decision(style: str, connect: Any) -> None:
    def save(queue: object, message: mqcore.Message) -> bool:
        if message.body == b"bad":
            raise OSError("no space left")
        return True

    steps = {
        "received_from_producer": lambda *_: Decision(save=True, acknowledge=SendAck.IF_SAVED),
        "save_message": save,
        "exception_thrown": lambda *_: Decision(allow=True),
    }
    with broker(handler(style, **steps)) as mq:
        producer = connect(mq.listeners[0])
        bad = producer.publish("orders", 1, b"bad", confirm=True)
        good = producer.publish("orders", 1, b"good", confirm=True)
        assert [producer.next().id for _ in range(3)] == [bad, bad, good]
        queue = mq.stats().queue("orders/1")
        assert (queue.saved, queue.save_failed) == (1, 1)


RAISING_STEPS = [
    "received_from_producer",
    "begin_send",
    "can_consumer_receive",
    "consumer_received",
    "consumer_receive_failed",
    "end_send",
    "acknowledge_received",
    "acknowledge_timed_out",
    "message_timed_out",
    "message_dequeued",
    "save_message",
]


@pytest.mark.parametrize("step", RAISING_STEPS)
def test_a_step_that_raises_loses_no_message(
    style: str, step: str, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raised = threading.Event()

    def broken(*_: object) -> Decision:
        if raised.is_set():
            return True if step == "save_message" else None if step == "message_dequeued" else ALLOW  # type: ignore[return-value]
        raised.set()
        raise ValueError("broken on purpose")

    steps: dict[str, Step] = {step: broken}
    if step == "save_message":
        steps["received_from_producer"] = lambda *_: Decision(save=True)
    timeouts = {"message_timeout": "100ms"} if step == "message_timed_out" else {"acknowledge_timeout": "100ms"}
    with broker(handler(style, **steps), request_acknowledge=True, **timeouts) as mq:
        producer, first = connect(mq.listeners[0]), connect(mq.listeners[0])
        if step != "message_timed_out":
            first.join("orders")
        message = producer.publish("orders", 1, b"x")
        if step == "message_timed_out":
            eventually(raised.is_set)
            first.join("orders")
        delivery = first.next()
        assert delivery.id == message
        if step in {"consumer_receive_failed", "acknowledge_timed_out"}:
            # It is redelivered, although what should have decided that raised.
            second = connect(mq.listeners[0])
            if step == "consumer_receive_failed":
                first.close()
                second.join("orders")
                delivery, first = second.next(), second
            else:
                delivery = first.next()
            assert delivery.id == message
        if step == "acknowledge_received":
            first.acknowledge(delivery, negative="no")
            delivery = first.next()
            assert delivery.id == message
        first.acknowledge(delivery)
        eventually(lambda: mq.stats().queue("orders/1").removed == 1)
        eventually(lambda: "broken on purpose" in caplog.text)
        stats = mq.stats()
        assert (sum(stats.queue("orders/1").dropped.values()), stats.handlers[0].failed) == (0, 1)


def test_invalid_decision_is_an_error_that_names_the_method(
    style: str, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with broker(handler(style, received_from_producer=lambda *_: "fine")) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        message = producer.publish("orders", 1, b"x")
        assert consumer.next().id == message
        eventually(lambda: "TypeError" in caplog.text)
        assert "Handler.received_from_producer returned 'fine', not a mqcore.Decision" in caplog.text


def test_failures_of_a_batch_are_one_log_record_with_their_number(
    connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def received(*_: object) -> Decision:
        raise ValueError("broken on purpose")

    count = 1000
    with broker(handler("plain", received_from_producer=received)) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        for _ in range(count):
            producer.publish("orders", 1, b"x")
        for _ in range(count):
            consumer.next()
        eventually(lambda: mq.stats().handlers[0].failed == count)
    records = [record for record in caplog.records if record.name == "mqcore.handlers"]
    assert 1 <= len(records) < count / 4
    assert all(record.levelno == logging.ERROR and record.exc_info for record in records)


def test_only_overridden_steps_are_asked(connect: Any) -> None:
    with broker(handler("plain", end_send=lambda *_: ALLOW), request_acknowledge=True) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        for _ in range(10):
            producer.publish("orders", 1, b"x")
            consumer.acknowledge(consumer.next())
        eventually(lambda: mq.stats().queue("orders/1").acks == mq.stats().handlers[0].asked == 10)


def test_the_base_class_answers_what_the_policy_decides() -> None:
    class Custom(DeliveryHandler):
        policy = "at-least-once"

    base = Custom()
    unused: Any = None
    assert base.received_from_producer(unused, unused, unused) == Decision(save=True, acknowledge=SendAck.IF_SAVED)
    assert base.acknowledge_timed_out(unused, unused) == Decision(put_back=PutBack.END)
    assert base.begin_send(unused, unused) == ALLOW
    assert base.save_message(unused, unused) is False
    assert base.exception_thrown(unused, None, ValueError()) == base.fallback == Decision(put_back=PutBack.END)


def test_order_is_kept_through_a_handler(style: str, connect: Any) -> None:
    with broker(handler(style, received_from_producer=lambda *_: ALLOW)) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        sent = [producer.publish("orders", 1, b"") for _ in range(2000)]
        assert [consumer.next().id for _ in sent] == sent


def test_a_handler_can_be_replaced_while_the_broker_runs(style: str, connect: Any) -> None:
    with broker(handler(style, received_from_producer=lambda *_: REFUSE)) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        producer.publish("orders", 1, b"old")
        eventually(lambda: mq.stats().queue("orders/1").dropped["refused"] == 1)
        mq.delivery_handlers["asked"] = handler(style, received_from_producer=lambda *_: TELL)
        message = producer.publish("orders", 1, b"new", confirm=True)
        assert producer.next().id == message
        assert consumer.next().id == message


def test_handlers_of_an_entered_broker_run_on_the_loop_that_entered_it(connect: Any) -> None:
    loops = []

    class Loops(DeliveryHandler):
        async def received_from_producer(
            self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
        ) -> Decision:
            loops.append(asyncio.get_running_loop())
            return TELL

    async def main() -> asyncio.AbstractEventLoop:
        mq = Broker(listen="tmqp://127.0.0.1:0", auto_create_channels=True, auto_create_queues=True)
        mq.delivery_handlers["memory"] = Loops()
        async with mq:
            await asyncio.to_thread(publish, mq)
        return asyncio.get_running_loop()

    def publish(mq: Broker) -> None:
        producer = connect(mq.listeners[0])
        message = producer.publish("orders", 1, b"", confirm=True)
        assert producer.next().id == message

    assert [asyncio.run(main())] == loops


def test_awaited_answers_overlap(connect: Any) -> None:
    class Slow(DeliveryHandler):
        async def received_from_producer(
            self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
        ) -> Decision:
            await asyncio.sleep(0.2)
            return ALLOW

    with broker(Slow()) as mq:
        producer, consumer = connect(mq.listeners[0]), connect(mq.listeners[0])
        consumer.join("orders")
        began = time.monotonic()
        sent = [producer.publish("orders", 1, b"") for _ in range(50)]
        assert [consumer.next().id for _ in sent] == sent
        assert time.monotonic() - began < 5.0, "one after the other they would have taken ten seconds"


@pytest.mark.parametrize("style", ["plain", "async"])
def test_a_late_answer_is_replaced_by_the_fallback(style: str, connect: Any) -> None:
    release = threading.Event()

    class Late(DeliveryHandler):
        timeout = "100ms"
        fallback = Decision(allow=False, acknowledge=SendAck.NEGATIVE)

        def received_from_producer(
            self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
        ) -> Any:
            if style == "async":
                return asyncio.sleep(60, ALLOW)
            release.wait(10)
            return ALLOW

    with broker(Late()) as mq:
        producer = connect(mq.listeners[0])
        message = producer.publish("orders", 1, b"", confirm=True)
        answer = producer.next()
        assert (answer.id, nack_reason(answer)) == (message, "none")
        release.set()
        eventually(lambda: mq.stats().handlers[0].waiting == 0)


def test_a_sleeping_handler_stops_neither_pings_nor_other_handlers_nor_policies(connect: Any) -> None:
    asleep, release = threading.Event(), threading.Event()

    def sleep(*_: object) -> Decision:
        asleep.set()
        release.wait(10)
        return ALLOW

    with broker(handler("plain", received_from_producer=sleep)) as mq:
        mq.delivery_handlers["quick"] = handler("plain", received_from_producer=lambda *_: TELL)
        peer = connect(mq.listeners[0])
        peer.create_queue("quick", 1, "quick")
        peer.create_queue("policy", 1, "memory")
        sleeping = peer.publish("slow", 1, b"x", confirm=True)
        eventually(asleep.is_set)
        for _ in range(100):
            peer.ping(timeout=5.0)
            for channel in ("quick", "policy"):
                message = peer.publish(channel, 1, b"", confirm=True)
                assert peer.next(timeout=5.0).id == message
        assert mq.stats().queue("slow/1").undecided == 1
        release.set()
        assert sleeping not in {None}
        eventually(lambda: mq.stats().queue("slow/1").undecided == 0)


def test_a_raising_handler_stops_neither_pings_nor_other_queues(connect: Any) -> None:
    def broken(*_: object) -> Decision:
        raise ValueError("broken on purpose")

    with broker(handler("plain", received_from_producer=broken)) as mq:
        peer = connect(mq.listeners[0])
        peer.create_queue("policy", 1, "memory")
        for _ in range(100):
            for _ in range(10):
                peer.publish("raising", 1, b"")
            peer.ping(timeout=5.0)
            message = peer.publish("policy", 1, b"", confirm=True)
            assert peer.next(timeout=5.0).id == message
        eventually(lambda: mq.stats().queue("raising/1").normal == 1000)


# Plays the peer of a broker whose interpreter is held: it has to be another process. Prints the slowest ping, the
# slowest confirmed publish to a queue of a policy, and how long the message to the holding handler took.
HELD_PEER = textwrap.dedent(
    """
    import sys, time
    sys.path.insert(0, sys.argv[1])
    from worker_peer import WorkerPeer
    peer = WorkerPeer.connect(sys.argv[2])
    peer.create_queue("policy", 1, "memory")
    holding = WorkerPeer.connect(sys.argv[2])
    began = time.monotonic()
    message = holding.publish("held", 1, b"", confirm=True)
    slowest_ping = slowest_publish = 0.0
    while time.monotonic() - began < 0.9:
        start = time.monotonic()
        peer.ping(timeout=5)
        pinged = time.monotonic()
        expected = peer.publish("policy", 1, b"", confirm=True)
        assert peer.next().id == expected
        slowest_ping = max(slowest_ping, pinged - start)
        slowest_publish = max(slowest_publish, time.monotonic() - pinged)
    assert holding.next().id == message
    print(slowest_ping, slowest_publish, time.monotonic() - began)
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="holds the interpreter through the C library of Linux")
def test_a_handler_that_holds_the_interpreter_for_a_second_stops_neither_pings_nor_policies() -> None:
    import ctypes

    # PyDLL calls do not let go of the interpreter, unlike those of CDLL.
    sleep = ctypes.PyDLL("libc.so.6").usleep

    def hold(*_: object) -> Decision:
        sleep(1_000_000)
        return TELL

    with broker(handler("plain", received_from_producer=hold)) as mq:
        peer = subprocess.run(
            [sys.executable, "-c", HELD_PEER, str(Path(__file__).parent), mq.listeners[0]],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert peer.returncode == 0, peer.stderr
    slowest_ping, slowest_publish, held = map(float, peer.stdout.split())
    assert held >= 1.0, "the interpreter was not held, so nothing was shown"
    assert slowest_ping < 0.5
    assert slowest_publish < 0.5


@pytest.mark.parametrize(
    "base",
    [
        *((DeliveryHandler, step) for step in mqcore.handlers._ARGUMENTS),
        *((mqcore.EventHandler, event) for event in mqcore.observing._EVENTS),
        (mqcore.Authenticator, "authenticate"),
    ],
    ids=lambda base: f"{base[0].__name__}.{base[1]}",
)
def test_methods_take_exactly_the_arguments_of_the_base_class(base: tuple[type, str]) -> None:
    kind, name = base
    names = list(inspect.signature(getattr(kind, name)).parameters)
    mq = Broker()
    registry: Any = {
        DeliveryHandler: mq.delivery_handlers, mqcore.EventHandler: mq.event_handlers,
        mqcore.Authenticator: mq.authenticators,
    }[kind]  # fmt: skip
    for count in range(len(names) - 1, len(names) + 2):
        method = eval(f"lambda {', '.join([*names, 'more'][:count])}: None")
        made = type("Made", (kind,), {name: method})()
        if count == len(names):
            registry["k"] = made
        else:
            with pytest.raises(TypeError, match=rf"Made\.{name} cannot be called with its {len(names) - 1} argument"):
                registry["k"] = made


def test_a_handler_has_to_be_one() -> None:
    mq = Broker()
    with pytest.raises(TypeError, match="DeliveryHandler"):
        mq.delivery_handlers["x"] = object()  # type: ignore[assignment]

    class Unknown(DeliveryHandler):
        policy = "at-most-twice"

    with pytest.raises(ValueError, match="at-least-once"):
        mq.delivery_handlers["x"] = Unknown()
    assert list(mq.delivery_handlers) == []


def test_delivery_handlers_of_a_broker_are_a_mapping() -> None:
    mq = Broker()
    first, second = DeliveryHandler(), DeliveryHandler()
    mq.delivery_handlers["a"] = first
    mq.delivery_handlers["b"] = second
    assert (len(mq.delivery_handlers), dict(mq.delivery_handlers)) == (2, {"a": first, "b": second})


DECIDING_HOOKS = {
    "received_from_producer": 3,
    "begin_send": 2,
    "can_consumer_receive": 3,
    "consumer_received": 3,
    "consumer_receive_failed": 3,
    "end_send": 2,
    "acknowledge_timed_out": 2,
    "message_timed_out": 2,
}
"""Hooks that return a decision, and their numbers of arguments."""


@pytest.mark.parametrize("policy", ["memory", "at-least-once"])
def test_hooks_that_are_not_overridden_decide_like_the_policy(policy: str) -> None:
    handler: Any = DeliveryHandler()
    handler.policy = policy
    for hook, arguments in DECIDING_HOOKS.items():
        decision = getattr(handler, hook)(*[None] * arguments)
        assert decision == policy_decision(policy, hook), hook
        assert isinstance(decision, Decision), hook


def test_decisions_are_values() -> None:
    decision = Decision(save=True, put_back=PutBack.END, acknowledge=SendAck.IF_SAVED)
    assert decision == Decision(True, True, put_back=PutBack.END, acknowledge=SendAck.IF_SAVED)
    assert (decision.allow, decision.save) == (True, True)
    assert decision.put_back is PutBack.END
    assert decision.acknowledge is SendAck.IF_SAVED
    assert len({decision, Decision(), Decision()}) == 2
    assert repr(Decision()) == "Decision(allow=True, save=False, put_back='no', acknowledge='none')"
    with pytest.raises(AttributeError):
        decision.allow = False  # type: ignore[misc]
    with pytest.raises(ValueError, match="'no', 'start' or 'end'"):
        Decision(put_back="middle")  # type: ignore[arg-type]


def test_a_message_lends_its_body_without_a_copy(connect: Any) -> None:
    kept: list[mqcore.Message] = []

    def received(queue: object, message: mqcore.Message, producer: object) -> Decision:
        kept.append(message)
        return TELL

    with broker(handler("plain", received_from_producer=received)) as mq:
        producer = connect(mq.listeners[0])
        producer.publish("orders", 1, b"body" * 1000, confirm=True)
        producer.next()
    (message,) = kept
    view = memoryview(message)
    assert view.readonly
    assert view.nbytes == len(message) == 4000
    assert view == b"body" * 1000
    assert message.body is message.body
    assert (len(message.id), message.content_type, message.high_priority) == (32, 1, False)
    del message, kept[0]
    assert bytes(view[:4]) == b"body", "a view keeps its message alive"
    with pytest.raises(TypeError):
        view[0] = 0


def test_headers_are_a_mapping_without_regard_to_case(connect: Any) -> None:
    kept: list[mqcore.Message] = []

    def received(queue: object, message: mqcore.Message, producer: object) -> Decision:
        kept.append(message)
        return TELL

    with broker(handler("plain", received_from_producer=received)) as mq:
        producer = connect(mq.listeners[0])
        producer.publish_with_headers("orders", 1, [("Schema", "v1"), ("Tag", "a"), ("tag", "b")])
        producer.next()
    headers = kept[0].headers
    assert headers["schema"] == headers["SCHEMA"] == headers.get("Schema") == "v1"
    assert "Schema" in headers
    assert "Other" not in headers
    assert headers.get("Other", 5) == 5
    assert headers.get_all("TAG") == ["a", "b"]
    assert dict(headers) == {"Schema": "v1", "Tag": "a"}
    assert list(headers) == ["Schema", "Tag"]
    assert len(headers) == 2
    with pytest.raises(KeyError):
        headers["Other"]
