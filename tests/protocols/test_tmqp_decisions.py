"""Delivery handlers and policies over the wire: chosen by key, changed remotely, and what both sides see of it."""

from __future__ import annotations

import threading

import pytest

import mqcore
from protocols.conversation import (
    ACKNOWLEDGE,
    BAD_REQUEST,
    BROADCAST,
    PULLED,
    PUSH,
    ROUND_ROBIN,
    Client,
    Connect,
    Eventually,
    StartBroker,
)
from tmqp_peer import RESPONSE, UPDATE_QUEUE

STATUSES = [PUSH, ROUND_ROBIN, PULLED]


def prepared(producer: Client, consumer: Client, status: int, policy: str) -> None:
    producer.create_queue("ch", 1, Status=status, RequestAcknowledge=True, MessageDeliveryHandler=policy)
    consumer.join()


def taken(consumer: Client, status: int) -> list[bytes]:
    """Bodies that the consumer receives now; it pulls them if the queue requires it."""
    if status == PULLED:
        return [message.payload for message in consumer.pull(Count=99)[0]]
    return consumer.bodies()


def answers(producer: Client) -> list[tuple[bytes, str | None]]:
    """The acknowledgements that the producer got so far: id, and reason if negative."""
    frames = producer.arrived()
    assert {frame.kind for frame in frames} <= {ACKNOWLEDGE}
    return [(frame.id, frame.header("Nack-Reason")) for frame in frames]


# --- ready-made policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [BROADCAST, *STATUSES])
@pytest.mark.parametrize("policy", ["memory", "at-most-once"])
def test_these_policies_acknowledge_on_receipt_and_once(
    producer: Client, consumer: Client, status: int, policy: str
) -> None:
    prepared(producer, consumer, status, policy)
    message = producer.publish(body=b"x", confirm=True)
    producer.publish(body=b"y")
    assert answers(producer) == [(message, None)]
    assert taken(consumer, status) == [b"x", b"y"]
    assert answers(producer) == []


@pytest.mark.parametrize("status", STATUSES)
def test_memory_policy_redelivers_nacked_messages(producer: Client, consumer: Client, status: int) -> None:
    """Twino case 94, without a delay."""
    prepared(producer, consumer, status, "memory")
    producer.publish_all([b"x"])
    delivery = consumer.pull(Count=1)[0][0] if status == PULLED else consumer.receive()
    consumer.acknowledge(delivery, "again")
    assert taken(consumer, status) == [b"x"]


@pytest.mark.parametrize("status", STATUSES)
def test_at_most_once_does_not(producer: Client, consumer: Client, status: int) -> None:
    prepared(producer, consumer, status, "at-most-once")
    producer.publish_all([b"x"])
    delivery = consumer.pull(Count=1)[0][0] if status == PULLED else consumer.receive()
    consumer.acknowledge(delivery, "again")
    assert taken(consumer, status) == []
    assert producer.queue()["DroppedMessages"]["refused"] == 1


def test_at_most_once_does_not_redeliver_messages_of_a_lost_consumer(
    producer: Client, connect: Connect, eventually: Eventually
) -> None:
    consumer = connect("c1")
    prepared(producer, consumer, PUSH, "at-most-once")
    producer.publish_all([b"x"])
    assert consumer.receive().payload == b"x"
    consumer.close()
    eventually(lambda: producer.queue()["InFlight"] == 0)
    other = connect("c2")
    other.join()
    assert other.bodies() == []


@pytest.mark.parametrize("status", STATUSES)
def test_ack_on_send_acknowledges_when_a_consumer_has_it(producer: Client, connect: Connect, status: int) -> None:
    producer.create_queue("ch", 1, Status=status, MessageDeliveryHandler="ack-on-send")
    message = producer.publish(body=b"x", confirm=True)
    assert answers(producer) == []
    consumer = connect("c1")
    consumer.join()
    assert taken(consumer, status) == [b"x"]
    assert answers(producer) == [(message, None)]


@pytest.mark.parametrize("status", [BROADCAST, *STATUSES])
def test_ack_on_consume_passes_the_consumers_word_on(producer: Client, consumer: Client, status: int) -> None:
    prepared(producer, consumer, status, "ack-on-consume")
    message = producer.publish(body=b"x", confirm=True)
    assert answers(producer) == []
    delivery = consumer.pull(Count=1)[0][0] if status == PULLED else consumer.receive()
    consumer.acknowledge(delivery)
    consumer.arrived()
    assert answers(producer) == [(message, None)]


@pytest.mark.parametrize("status", STATUSES)
def test_ack_on_consume_tells_a_refusal_which_is_final(producer: Client, consumer: Client, status: int) -> None:
    """The producer knows, and decides whether to send it again; the broker counts it."""
    prepared(producer, consumer, status, "ack-on-consume")
    message = producer.publish(body=b"x", confirm=True)
    producer.arrived()
    delivery = consumer.pull(Count=1)[0][0] if status == PULLED else consumer.receive()
    consumer.acknowledge(delivery, "broken")
    assert taken(consumer, status) == []
    assert answers(producer) == [(message, "broken")]
    assert producer.queue()["DroppedMessages"]["refused"] == 1


@pytest.mark.parametrize("policy", ["at-least-once", "ack-on-save"])
def test_policies_that_promise_saving_take_nothing_that_they_could_not_save(
    producer: Client, consumer: Client, policy: str
) -> None:
    """This broker has no data directory: it notifies the producer, in both forms, and does not deliver the message."""
    prepared(producer, consumer, PUSH, policy)
    message = producer.publish(body=b"x", confirm=True)
    response, refusal = producer.arrived()
    assert (response.kind, response.id, response.content_type) == (RESPONSE, message, 406)
    assert (refusal.kind, refusal.id) == (ACKNOWLEDGE, message)
    assert "data directory" in (response.header("Reason") or "")
    assert consumer.bodies() == []
    assert producer.queue()["ReceivedMessages"] == 0


def test_a_policy_is_changed_remotely_and_holds_for_what_comes_then(producer: Client, consumer: Client) -> None:
    prepared(producer, consumer, PUSH, "memory")
    before = producer.publish(body=b"x", confirm=True)
    assert answers(producer) == [(before, None)]
    producer.update_queue(MessageDeliveryHandler="ack-on-consume")
    after = producer.publish(body=b"y", confirm=True)
    assert answers(producer) == []
    for delivery in consumer.arrived():
        consumer.acknowledge(delivery)
    consumer.arrived()
    assert answers(producer) == [(after, None)]


def test_unregistered_handler_cannot_be_chosen(producer: Client, consumer: Client) -> None:
    prepared(producer, consumer, PUSH, "memory")
    answer = producer.ask(
        UPDATE_QUEUE, "ch", headers={"Queue-Id": "1"}, body=b'{"MessageDeliveryHandler":"nobody","Status":3}'
    )
    assert answer.content_type == BAD_REQUEST
    assert "nobody" in (answer.header("Reason") or "")
    information = producer.queue()
    assert (information["MessageDeliveryHandler"], information["Status"]) == ("memory", "push")


def test_handlers_are_inherited_from_broker_and_channel(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(delivery_handler="ack-on-consume")
    producer, consumer = connect("prod", to=broker), connect("c1", to=broker)
    producer.create_channel("brokers")
    producer.create_channel("own", MessageDeliveryHandler="memory")
    for channel in ("brokers", "own"):
        producer.create_queue(channel, 1, RequestAcknowledge=True)
        consumer.join(channel)
    producer.create_queue("own", 2, RequestAcknowledge=True, MessageDeliveryHandler="ack-on-consume")
    messages = {
        place: producer.publish(*place, b"x", confirm=True) for place in [("brokers", 1), ("own", 1), ("own", 2)]
    }
    heard = {frame.id for channel in ("brokers", "own") for frame in producer.arrived(channel)}
    assert heard == {messages["own", 1]}


# --- handlers in Python, chosen over the wire ------------------------------------------------------------------


class Picky(mqcore.DeliveryHandler):
    """Rejects marked messages, and records its calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []

    def received_from_producer(
        self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
    ) -> mqcore.Decision:
        self.seen.append((producer.id, bytes(message)))
        if bytes(message) == b"refuse":
            return mqcore.Decision(allow=False, acknowledge=mqcore.SendAck.NEGATIVE)
        return mqcore.Decision(acknowledge=mqcore.SendAck.ALWAYS)

    def can_consumer_receive(
        self, queue: mqcore.QueueView, message: mqcore.Message, consumer: mqcore.ClientView
    ) -> mqcore.Decision:
        return mqcore.Decision(allow=bytes(message) != b"not for c1" or consumer.id != "c1")


def test_a_python_handler_is_chosen_by_key_over_the_wire(
    broker: mqcore.Broker, producer: Client, connect: Connect
) -> None:
    handler = Picky()
    broker.delivery_handlers["picky"] = handler
    first, second = connect("c1"), connect("c2")
    producer.create_queue("ch", 1)
    first.join()
    second.join()
    producer.update_queue(MessageDeliveryHandler="picky")
    refused = producer.publish(body=b"refuse")
    allowed = producer.publish(body=b"not for c1")
    assert producer.receive().id == refused
    assert producer.receive().id == allowed
    assert second.receive().payload == b"not for c1"
    assert first.bodies() == []
    assert handler.seen == [("prod", b"refuse"), ("prod", b"not for c1")]
    producer.update_queue(MessageDeliveryHandler="memory")
    producer.publish(body=b"refuse")
    assert first.receive().payload == b"refuse"
    assert len(handler.seen) == 2


def test_a_message_that_waits_for_its_handler_holds_its_own_queue_and_no_other(
    broker: mqcore.Broker, producer: Client, consumer: Client
) -> None:
    release = threading.Event()

    class Slow(mqcore.DeliveryHandler):
        def received_from_producer(
            self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
        ) -> mqcore.Decision:
            release.wait(20)
            return mqcore.Decision()

    broker.delivery_handlers["slow"] = Slow()
    producer.create_queue("ch", 1, MessageDeliveryHandler="slow")
    producer.create_queue("ch", 2)
    consumer.join()
    try:
        producer.publish("ch", 1, b"held")
        producer.publish("ch", 2, b"free")
        assert consumer.receive().payload == b"free"
        assert consumer.bodies() == []
        assert producer.queue()["Undecided"] == 1
    finally:
        release.set()
    assert consumer.receive().payload == b"held"


def test_a_handler_that_raises_loses_no_message(
    broker: mqcore.Broker, producer: Client, consumer: Client, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(mqcore.DeliveryHandler):
        def received_from_producer(
            self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
        ) -> mqcore.Decision:
            raise ValueError("broken on purpose")

    broker.delivery_handlers["broken"] = Broken()
    producer.create_queue("ch", 1, MessageDeliveryHandler="broken")
    consumer.join()
    for body in (b"1", b"2", b"3"):
        producer.publish(body=body)
    assert [consumer.receive().payload for _ in range(3)] == [b"1", b"2", b"3"]
    assert producer.queue()["Errors"] == 3
