"""Round-robin queues: each message to one consumer, in turn."""

from __future__ import annotations

import collections

import pytest

from protocols.conversation import ACKNOWLEDGE, ROUND_ROBIN, Client, Connect, Eventually


def consumers_of(connect: Connect, count: int) -> list[Client]:
    clients = [connect(f"c{number}") for number in range(count)]
    for client in clients:
        client.join()
    return clients


@pytest.mark.parametrize("count", [1, 2, 3, 5, 20])
def test_messages_are_spread_evenly_and_in_turn(producer: Client, connect: Connect, count: int) -> None:
    """Twino case 57."""
    producer.create_queue("ch", 1, Status=ROUND_ROBIN)
    clients = consumers_of(connect, count)
    bodies = [b"%d" % number for number in range(count * 3)]
    producer.publish_all(bodies)
    assert [client.bodies() for client in clients] == [bodies[start::count] for start in range(count)]


def test_messages_wait_until_a_consumer_joins(producer: Client, consumer: Client) -> None:
    """Twino case 58."""
    producer.create_queue("ch", 1, Status=ROUND_ROBIN)
    producer.publish_all([b"1", b"2", b"3"])
    assert producer.stored() == (0, 3)
    consumer.join()
    assert consumer.bodies() == [b"1", b"2", b"3"]
    assert producer.stored() == (0, 0)


@pytest.mark.parametrize("requests", [True, False])
def test_a_producer_hears_its_consumer_only_if_the_queue_asks_it(
    producer: Client, consumer: Client, requests: bool
) -> None:
    """Twino case 59."""
    producer.create_queue(
        "ch", 1, Status=ROUND_ROBIN, RequestAcknowledge=requests, MessageDeliveryHandler="ack-on-consume"
    )
    consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    consumer.acknowledge(consumer.receive())
    consumer.arrived()
    assert [(frame.kind, frame.id) for frame in producer.arrived()] == ([(ACKNOWLEDGE, message)] if requests else [])


def test_next_message_waits_for_the_settlement_of_the_previous_one_if_configured(
    producer: Client, connect: Connect
) -> None:
    """Twino case 60: one message at a time over all consumers."""
    producer.create_queue("ch", 1, Status=ROUND_ROBIN, RequestAcknowledge=True, WaitForAcknowledge=True)
    first, second = consumers_of(connect, 2)
    producer.publish_all([b"1", b"2"])
    [delivery] = first.arrived()
    assert second.arrived() == []
    first.acknowledge(delivery)
    first.arrived()
    assert second.bodies() == [b"2"]


def test_a_message_that_is_not_acknowledged_in_time_goes_to_another_consumer(
    producer: Client, connect: Connect
) -> None:
    """Twino case 61."""
    producer.create_queue("ch", 1, Status=ROUND_ROBIN, RequestAcknowledge=True, AcknowledgeTimeout=100)
    silent, other = consumers_of(connect, 2)
    producer.publish(body=b"x")
    delivery = silent.receive()
    again = other.receive()
    assert (again.id, again.payload, again.first_acquirer) == (delivery.id, b"x", False)
    other.acknowledge(again)
    other.arrived()
    # Too late.
    silent.acknowledge(delivery)
    silent.arrived()
    assert producer.queue()["Acks"] == 1


def test_parallel_consumers_lose_and_duplicate_nothing(producer: Client, connect: Connect) -> None:
    """Twino case 62: several producers, several consumers that acknowledge as they read."""
    producer.create_queue("ch", 1, Status=ROUND_ROBIN, RequestAcknowledge=True)
    clients = consumers_of(connect, 4)
    producers = [producer, connect("p2"), connect("p3")]
    for number in range(600):
        producers[number % 3].publish(body=b"%d" % number)
    for one in producers:
        one.arrived()
    received: collections.Counter[bytes] = collections.Counter()
    for client in clients:
        for delivery in client.arrived():
            received[delivery.payload] += 1
            client.acknowledge(delivery)
    for client in clients:
        assert client.arrived() == []
    assert received == collections.Counter(b"%d" % number for number in range(600))
    information = producer.queue()
    assert (information["Acks"], information["InFlight"], information["Messages"]) == (600, 0, 0)


def test_a_refused_message_goes_to_the_next_consumer(producer: Client, connect: Connect) -> None:
    producer.create_queue("ch", 1, Status=ROUND_ROBIN, RequestAcknowledge=True)
    first, second = consumers_of(connect, 2)
    producer.publish(body=b"x")
    first.acknowledge(first.receive(), "not me")
    delivery = second.receive()
    assert delivery.payload == b"x"
    second.acknowledge(delivery)
    second.arrived()
    assert producer.queue()["PutBackMessages"] == 1


def test_messages_of_a_lost_consumer_go_to_others(producer: Client, connect: Connect) -> None:
    """Consumers die with half of the messages in their hands; each message is acknowledged once in the end."""
    producer.create_queue("ch", 1, Status=ROUND_ROBIN, RequestAcknowledge=True)
    dying, living = consumers_of(connect, 2)
    bodies = [b"%d" % number for number in range(20)]
    producer.publish_all(bodies)
    assert len(dying.bodies()) == 10
    dying.close()
    deliveries = [living.receive() for _ in bodies]
    assert sorted(delivery.payload for delivery in deliveries) == sorted(bodies)
    for delivery in deliveries:
        living.acknowledge(delivery)
    living.arrived()
    assert producer.queue()["InFlight"] == 0


def test_message_without_acknowledgements_is_delivered_once(
    producer: Client, connect: Connect, eventually: Eventually
) -> None:
    producer.create_queue("ch", 1, Status=ROUND_ROBIN)
    first, second = consumers_of(connect, 2)
    producer.publish_all([b"1", b"2"])
    first.close()
    eventually(lambda: producer.json(605, "ch")["ActiveClients"] == 1)
    assert second.bodies() == [b"2"]


def test_round_robin_continues_when_clients_join_and_leave(producer: Client, connect: Connect) -> None:
    producer.create_queue("ch", 1, Status=ROUND_ROBIN)
    first, second, third = consumers_of(connect, 3)
    producer.publish_all([b"1"])
    second.leave()
    fourth = connect("c4")
    fourth.join()
    producer.publish_all([b"2", b"3", b"4"])
    assert [client.bodies() for client in (first, second, third, fourth)] == [[b"1", b"4"], [], [b"2"], [b"3"]]
