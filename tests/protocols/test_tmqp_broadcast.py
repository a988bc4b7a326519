"""Broadcast queues deliver to the consumers that are connected now and store nothing."""

from __future__ import annotations

import pytest

from protocols.conversation import ACKNOWLEDGE, BROADCAST, Client, Connect


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_every_joined_client_gets_the_message(producer: Client, connect: Connect, count: int) -> None:
    """Twino cases 35 and 39."""
    producer.create_queue("ch", 1, Status=BROADCAST)
    consumers = [connect(f"c{number}") for number in range(count)]
    for consumer in consumers:
        consumer.join()
    producer.publish_all([b"1", b"2"])
    for consumer in consumers:
        assert consumer.bodies() == [b"1", b"2"]
    information = producer.queue()
    assert (information["SentMessages"], information["Deliveries"]) == (2, 2 * count)


def test_only_the_first_consumer_gets_the_first_acquirer_flag(producer: Client, connect: Connect) -> None:
    producer.create_queue("ch", 1, Status=BROADCAST)
    consumers = [connect(f"c{number}") for number in range(3)]
    for consumer in consumers:
        consumer.join()
    producer.publish_all([b"x"])
    assert [[frame.first_acquirer for frame in consumer.arrived()] for consumer in consumers] == [
        [True],
        [False],
        [False],
    ]


def test_broadcast_stores_nothing_for_late_consumers(producer: Client, consumer: Client) -> None:
    """Twino cases 36 and 38."""
    producer.create_queue("ch", 1, Status=BROADCAST)
    producer.publish(body=b"x")
    producer.publish(body=b"x", high_priority=True)
    assert producer.stored() == (0, 0)
    assert producer.queue()["DroppedMessages"]["no-consumer"] == 2
    consumer.join()
    assert consumer.bodies() == []


def test_a_client_that_has_left_gets_nothing(producer: Client, connect: Connect) -> None:
    producer.create_queue("ch", 1, Status=BROADCAST)
    staying, leaving = connect("c1"), connect("c2")
    staying.join()
    leaving.join()
    leaving.leave()
    producer.publish_all([b"x"])
    assert (staying.bodies(), leaving.bodies()) == ([b"x"], [])


def test_a_client_that_never_joined_gets_nothing(producer: Client, connect: Connect) -> None:
    producer.create_queue("ch", 1, Status=BROADCAST)
    member, stranger = connect("c1"), connect("c2")
    member.join()
    producer.publish_all([b"x"])
    assert (member.bodies(), stranger.bodies()) == ([b"x"], [])


@pytest.mark.parametrize("requests", [True, False])
def test_a_producer_hears_its_consumers_only_if_the_queue_asks_them(
    producer: Client, consumer: Client, requests: bool
) -> None:
    """Twino case 37, where the producer receives the answer of a consumer."""
    producer.create_queue(
        "ch", 1, Status=BROADCAST, RequestAcknowledge=requests, MessageDeliveryHandler="ack-on-consume"
    )
    consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    delivery = consumer.receive()
    assert delivery.pending_acknowledge is requests
    if requests:
        consumer.acknowledge(delivery)
    consumer.arrived()
    answers = [(frame.kind, frame.id) for frame in producer.arrived()]
    assert answers == ([(ACKNOWLEDGE, message)] if requests else [])


def test_broadcast_without_consumers_is_not_acknowledged(producer: Client) -> None:
    """Twino case 50: no consumer, so none whose word could be passed on; and nothing is stored."""
    producer.create_queue("ch", 1, Status=BROADCAST, RequestAcknowledge=True, MessageDeliveryHandler="ack-on-consume")
    producer.publish(body=b"x", confirm=True)
    assert producer.arrived() == []
    assert producer.stored() == (0, 0)


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_word_of_several_consumers_reaches_the_producer_once(
    producer: Client, connect: Connect, count: int
) -> None:
    """Twino cases 51 and 52."""
    producer.create_queue("ch", 1, Status=BROADCAST, RequestAcknowledge=True, MessageDeliveryHandler="ack-on-consume")
    consumers = [connect(f"c{number}") for number in range(count)]
    for consumer in consumers:
        consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    for consumer in consumers:
        consumer.acknowledge(consumer.receive())
        consumer.arrived()
    [answer] = producer.arrived()
    assert (answer.kind, answer.id, answer.source) == (ACKNOWLEDGE, message, b"c0")
    assert producer.queue()["Acks"] == count


def test_broadcast_reaches_only_the_first_acquirer_if_the_queue_is_so_configured(
    producer: Client, connect: Connect
) -> None:
    producer.create_queue("ch", 1, Status=BROADCAST, SendOnlyFirstAcquirer=True)
    consumers = [connect(f"c{number}") for number in range(3)]
    for consumer in consumers:
        consumer.join()
    producer.publish_all([b"1", b"2", b"3"])
    assert [consumer.bodies() for consumer in consumers] == [[b"1", b"2", b"3"], [], []]


def test_nacked_broadcast_is_not_redelivered(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, Status=BROADCAST, RequestAcknowledge=True)
    consumer.join()
    producer.publish(body=b"x")
    consumer.acknowledge(consumer.receive(), "no")
    assert consumer.bodies() == []
    assert producer.stored() == (0, 0)


def test_a_client_gets_its_own_messages_if_it_joined(producer: Client) -> None:
    producer.create_queue("ch", 1, Status=BROADCAST)
    producer.join()
    producer.publish(body=b"echo")
    assert producer.receive().payload == b"echo"


def test_a_consumer_reads_several_queues_of_several_channels(producer: Client, consumer: Client) -> None:
    """Twino cases 88, 89 and 90, as far as they concern the broker."""
    for channel in ("a", "b"):
        for queue in (1, 2):
            producer.create_queue(channel, queue, Status=BROADCAST)
        consumer.join(channel)
    for channel in ("a", "b"):
        for queue in (1, 2):
            producer.publish(channel, queue, f"{channel}{queue}".encode())
        producer.arrived(channel)
    received = {
        (frame.target, frame.content_type, frame.payload) for frame in consumer.arrived("a") + consumer.arrived("b")
    }
    assert received == {(b"a", 1, b"a1"), (b"a", 2, b"a2"), (b"b", 1, b"b1"), (b"b", 2, b"b2")}
