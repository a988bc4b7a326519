"""Push queues: to all consumers, kept until there is one; acknowledgements and redelivery."""

from __future__ import annotations

import pytest

import mqcore
from protocols.conversation import (
    ACKNOWLEDGE,
    NOT_FOUND,
    PUSH,
    QUEUE,
    Client,
    Connect,
    Eventually,
    vector,
)
from tmqp_peer import RawFrame


@pytest.fixture
def joined(producer: Client, connect: Connect) -> list[Client]:
    """Two consumers of the push queue 1 of `ch-push`, which is the one of the vectors."""
    producer.create_queue("ch-push", 1, Status=PUSH)
    consumers = [connect("c1"), connect("c2")]
    for consumer in consumers:
        consumer.join("ch-push")
    return consumers


def publish_vector(producer: Client, message: bytes, body: bytes = b"hello", **fields: bool) -> None:
    producer.publish("ch-push", 1, body, message_id=message, **fields)


# --- bytes --------------------------------------------------------------------------------------------------


def test_deliveries_match_the_bytes_of_the_original(producer: Client, joined: list[Client]) -> None:
    """Vectors V23 and V24."""
    publish_vector(producer, b"M1")
    for consumer, name in zip(joined, ["V23", "V24"], strict=True):
        consumer.receive()
        assert consumer.raw == vector(name)


def test_one_delivery_bit_of_a_queue_message_is_ignored_as_by_the_original(
    producer: Client, joined: list[Client]
) -> None:
    publish_vector(producer, b"M1", first_acquirer=True)
    assert [consumer.receive().payload for consumer in joined] == [b"hello", b"hello"]


def test_delivery_requesting_acknowledgement_matches_the_bytes_of_the_original(
    producer: Client, joined: list[Client]
) -> None:
    """Vector V25; its queue is 1 or 2, as the vector says."""
    queue = int.from_bytes(vector("V25")[5:7], "little")
    if queue == 1:
        producer.update_queue("ch-push", 1, RequestAcknowledge=True)
    else:
        producer.create_queue("ch-push", queue, RequestAcknowledge=True)
    producer.publish("ch-push", queue, b"hello", message_id=b"M2")
    joined[0].receive()
    assert joined[0].raw == vector("V25")


def test_high_priority_delivery_matches_the_bytes_of_the_original(producer: Client, joined: list[Client]) -> None:
    """Vector V26."""
    publish_vector(producer, b"M4", b"hp", high_priority=True)
    joined[0].receive()
    assert joined[0].raw == vector("V26")


def test_brokers_acknowledgement_matches_the_bytes_of_the_original(producer: Client, joined: list[Client]) -> None:
    """Twino case 49, vector V29: sent right after receipt."""
    publish_vector(producer, b"M1", confirm=True)
    producer.receive()
    assert producer.raw == vector("V29")


def test_relayed_acknowledgement_matches_the_bytes_of_the_original(producer: Client, joined: list[Client]) -> None:
    """Vector V30, for a consumer that copies the first-acquirer bit as the original's client does."""
    data = vector("V30")
    message, consumer_id = data[8:10], data[10:12]
    consumer = next(consumer for consumer in joined if consumer.client_id == consumer_id)
    queue = int.from_bytes(data[5:7], "little")
    changes = {"RequestAcknowledge": True, "MessageDeliveryHandler": "ack-on-consume"}
    if queue == 1:
        producer.update_queue("ch-push", 1, **changes)
    else:
        producer.create_queue("ch-push", queue, **changes)
    producer.publish("ch-push", queue, b"x", message_id=message, confirm=True)
    consumer.receive()
    consumer.send(
        RawFrame(
            kind=ACKNOWLEDGE,
            id=message,
            source=consumer_id,
            target=b"ch-push",
            content_type=queue,
            first_acquirer=bool(data[0] & 0x80),
        )
    )
    producer.receive()
    assert producer.raw == data


def test_a_publish_to_an_unknown_channel_has_the_answer_of_the_original(producer: Client) -> None:
    """Vector V31, but for the reason, which we add as a header."""
    producer.publish("nope", 4, b"x", message_id=b"M3")
    answer = producer.receive()
    assert "nope" in (answer.header("Reason") or "")
    answer.headers = []
    assert answer.encode() == vector("V31")


@pytest.mark.parametrize("name", ["V20", "V21"])
def test_queue_messages_of_the_original_are_read(connect: Connect, consumer: Client, name: str) -> None:
    client = connect("cli")
    client.create_queue("ch", 258)
    client.create_queue("ch", 1)
    consumer.join()
    client.socket.sendall(vector(name))
    assert consumer.receive().payload == b"hello"
    if name == "V21":
        assert client.receive().kind == ACKNOWLEDGE


def test_a_publish_without_an_id_to_nowhere_has_no_answer(producer: Client) -> None:
    producer.create_channel()
    producer.publish("ch", 9, b"x", message_id=b"")
    message = producer.publish("ch", 9, b"x")
    [answer] = producer.arrived()
    assert (answer.id, answer.content_type) == (message, NOT_FOUND)


# --- to whom -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_every_joined_client_gets_the_message(producer: Client, connect: Connect, count: int) -> None:
    """Twino cases 40 and 44."""
    producer.create_queue()
    consumers = [connect(f"c{number}") for number in range(count)]
    for consumer in consumers:
        consumer.join()
    producer.publish_all([b"1", b"2"])
    for consumer in consumers:
        assert consumer.bodies() == [b"1", b"2"]
    assert producer.stored() == (0, 0)


def test_messages_wait_for_the_first_client_that_joins(producer: Client, connect: Connect) -> None:
    """Twino cases 41 and 45: stored, delivered on joining, and gone from the queue then."""
    producer.create_queue()
    producer.publish_all([b"1", b"2"])
    assert producer.stored() == (0, 2)
    first, second = connect("c1"), connect("c2")
    first.join()
    assert first.bodies() == [b"1", b"2"]
    second.join()
    assert second.bodies() == []
    assert producer.stored() == (0, 0)


def test_stored_messages_may_come_before_or_after_the_answer_to_joining(producer: Client, consumer: Client) -> None:
    """Twino case 118: whichever comes first, none is lost."""
    producer.create_queue()
    producer.publish_all([b"%d" % number for number in range(100)])
    consumer.join()
    assert consumer.bodies() == [b"%d" % number for number in range(100)]


def test_messages_wait_in_a_channel_that_all_have_left(producer: Client, connect: Connect) -> None:
    producer.create_queue()
    consumer = connect("c1")
    consumer.join()
    consumer.leave()
    producer.publish_all([b"x"])
    assert producer.stored() == (0, 1)
    consumer.join()
    assert consumer.bodies() == [b"x"]


def test_a_copy_reaches_each_consumer_of_both_channels(producer: Client, connect: Connect) -> None:
    """Twino case 43."""
    consumers = {}
    for channel in ("ch", "other"):
        producer.create_queue(channel, 1)
        consumers[channel] = [connect(f"{channel}-{number}") for number in range(3)]
        for consumer in consumers[channel]:
            consumer.join(channel)
    producer.publish("ch", 1, b"x", headers=[("CC", "other")])
    producer.arrived("ch")
    producer.arrived("other")
    for channel, members in consumers.items():
        for consumer in members:
            [frame] = consumer.arrived(channel)
            assert (frame.kind, frame.target, frame.payload) == (QUEUE, channel.encode(), b"x")


def test_only_first_acquirer_delivers_each_message_to_exactly_one_of_three(producer: Client, connect: Connect) -> None:
    """Twino case 46: the one that joined first."""
    producer.create_queue("ch", 1, SendOnlyFirstAcquirer=True)
    consumers = [connect(f"c{number}") for number in range(3)]
    for consumer in consumers:
        consumer.join()
    producer.publish_all([b"1", b"2"])
    assert [consumer.bodies() for consumer in consumers] == [[b"1", b"2"], [], []]
    consumers[0].leave()
    producer.publish_all([b"3"])
    assert [consumer.bodies() for consumer in consumers] == [[], [b"3"], []]


def test_exactly_one_of_three_that_come_late_gets_a_stored_message(producer: Client, connect: Connect) -> None:
    """Twino case 47."""
    producer.create_queue("ch", 1, SendOnlyFirstAcquirer=True)
    producer.publish_all([b"x"])
    consumers = [connect(f"c{number}") for number in range(3)]
    for consumer in consumers:
        consumer.join()
    assert sorted(body for consumer in consumers for body in consumer.bodies()) == [b"x"]


# --- acknowledgements ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("requests", [True, False])
def test_a_producer_hears_its_consumers_only_if_the_queue_asks_them(
    producer: Client, consumer: Client, requests: bool
) -> None:
    """Twino case 42."""
    producer.create_queue("ch", 1, RequestAcknowledge=requests, MessageDeliveryHandler="ack-on-consume")
    consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    delivery = consumer.receive()
    assert delivery.pending_acknowledge is requests
    consumer.acknowledge(delivery)
    consumer.arrived()
    assert [(frame.kind, frame.id) for frame in producer.arrived()] == ([(ACKNOWLEDGE, message)] if requests else [])


def test_message_without_consumers_is_delivered_later_and_not_acknowledged(producer: Client, consumer: Client) -> None:
    """Twino case 53."""
    producer.create_queue("ch", 1, RequestAcknowledge=True, MessageDeliveryHandler="ack-on-consume")
    message = producer.publish(body=b"x", confirm=True)
    assert producer.arrived() == []
    assert producer.stored() == (0, 1)
    consumer.join()
    consumer.acknowledge(consumer.receive())
    assert producer.answer(message, (ACKNOWLEDGE,)).header("Nack-Reason") is None


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_word_of_several_consumers_reaches_the_producer_once(
    producer: Client, connect: Connect, count: int
) -> None:
    """Twino cases 54, 55 and 56: acknowledged manually."""
    producer.create_queue("ch", 1, RequestAcknowledge=True, MessageDeliveryHandler="ack-on-consume")
    consumers = [connect(f"c{number}") for number in range(count)]
    for consumer in consumers:
        consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    for consumer in consumers:
        consumer.acknowledge(consumer.receive())
        consumer.arrived()
    [answer] = producer.arrived()
    assert (answer.kind, answer.id, answer.source) == (ACKNOWLEDGE, message, b"c0")


def test_a_producer_that_did_not_ask_hears_nothing(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, RequestAcknowledge=True, MessageDeliveryHandler="ack-on-consume")
    consumer.join()
    producer.publish(body=b"x")
    consumer.acknowledge(consumer.receive())
    consumer.arrived()
    assert producer.arrived() == []


@pytest.mark.parametrize("reason", ["none", "no stock", "ş", "a:b"])
def test_a_negative_acknowledgement_is_relayed_with_its_reason(producer: Client, consumer: Client, reason: str) -> None:
    """Twino case 119."""
    producer.create_queue("ch", 1, RequestAcknowledge=True, MessageDeliveryHandler="ack-on-consume", PutBackLimit=0)
    consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    consumer.acknowledge(consumer.receive(), reason)
    answer = producer.answer(message, (ACKNOWLEDGE,))
    assert (answer.header("Nack-Reason"), answer.source, answer.hops) == (reason, b"c1", 15)


def test_hidden_names_hide_who_acknowledged(producer: Client, consumer: Client) -> None:
    producer.create_queue(
        "ch", 1, RequestAcknowledge=True, MessageDeliveryHandler="ack-on-consume", HideClientNames=True
    )
    consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    consumer.acknowledge(consumer.receive())
    assert producer.answer(message, (ACKNOWLEDGE,)).source == b""


def test_message_is_redelivered_after_the_acknowledge_timeout(producer: Client, consumer: Client) -> None:
    """Twino case 56, without any word: the queue counts it as refused, and tries again."""
    producer.create_queue("ch", 1, RequestAcknowledge=True, AcknowledgeTimeout=100)
    consumer.join()
    producer.publish(body=b"x")
    first, second = consumer.receive(), consumer.receive()
    assert (first.id, first.payload) == (second.id, second.payload)
    assert (first.first_acquirer, second.first_acquirer) == (True, False)
    consumer.acknowledge(second)
    assert consumer.arrived() == []
    information = producer.queue()
    assert (information["NegativeAcks"], information["Acks"], information["PutBackMessages"]) == (1, 1, 1)


def test_producer_is_notified_of_a_missing_acknowledgement(producer: Client, consumer: Client) -> None:
    producer.create_queue(
        "ch",
        1,
        RequestAcknowledge=True,
        AcknowledgeTimeout=50,
        MessageDeliveryHandler="ack-on-consume",
        PutBackLimit=0,
    )
    consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    assert producer.answer(message, (ACKNOWLEDGE,)).header("Nack-Reason") == "timeout"


def test_an_acknowledgement_of_nothing_in_flight_is_counted_and_changes_nothing(
    broker: mqcore.Broker, producer: Client, consumer: Client
) -> None:
    producer.create_queue("ch", 1, RequestAcknowledge=True)
    consumer.join()
    producer.publish(body=b"x")
    delivery = consumer.receive()
    producer.acknowledge(delivery)
    producer.arrived()
    consumer.acknowledge(delivery)
    consumer.acknowledge(delivery)
    consumer.acknowledge(RawFrame(kind=QUEUE, id=b"never", target=b"ch", content_type=1), "no")
    consumer.arrived()
    information = producer.queue()
    assert (information["Acks"], information["NegativeAcks"]) == (1, 0)
    assert broker.stats().unknown_acks == 3


def test_two_deliveries_of_one_id_are_acknowledged_one_by_one(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, RequestAcknowledge=True)
    consumer.join()
    for _ in range(2):
        producer.publish(body=b"x", message_id=b"same")
    deliveries = [consumer.receive(), consumer.receive()]
    consumer.acknowledge(deliveries[0])
    consumer.arrived()
    assert producer.queue()["InFlight"] == 1
    consumer.acknowledge(deliveries[1])
    consumer.arrived()
    assert producer.queue()["InFlight"] == 0


def test_messages_of_a_lost_consumer_are_redelivered_to_others(
    producer: Client, connect: Connect, eventually: Eventually
) -> None:
    """Twino case 96: at once, not when its time is up. Its oldest message first, and in front of what waits."""
    producer.create_queue("ch", 1, RequestAcknowledge=True, SendOnlyFirstAcquirer=True)
    dying, living = connect("c1"), connect("c2")
    dying.join()
    producer.publish_all([b"1", b"2", b"3"])
    assert dying.bodies() == [b"1", b"2", b"3"]
    living.join()
    dying.close()
    assert [living.receive().payload for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_message_of_which_one_consumer_was_lost_is_not_handed_to_who_acknowledged(
    producer: Client, connect: Connect, eventually: Eventually
) -> None:
    """Push promises at least one consumer, and one had it."""
    producer.create_queue("ch", 1, RequestAcknowledge=True)
    living, dying = connect("c1"), connect("c2")
    living.join()
    dying.join()
    producer.publish_all([b"x"])
    living.acknowledge(living.receive())
    dying.close()
    eventually(lambda: producer.queue()["InFlight"] == 0)
    assert living.bodies() == []
    assert producer.stored() == (0, 0)


def test_next_message_waits_for_the_settlement_of_the_previous_one_if_configured(
    producer: Client, consumer: Client
) -> None:
    producer.create_queue("ch", 1, RequestAcknowledge=True, WaitForAcknowledge=True)
    consumer.join()
    producer.publish_all([b"1", b"2", b"3"])
    [first] = consumer.arrived()
    assert producer.stored() == (0, 2)
    consumer.acknowledge(first)
    [second] = consumer.arrived()
    assert second.payload == b"2"
    consumer.acknowledge(second, "again")
    # It goes back behind the third.
    [third] = consumer.arrived()
    assert third.payload == b"3"
    consumer.acknowledge(third)
    [again] = consumer.arrived()
    assert again.payload == b"2"


def test_waiting_for_acknowledgements_ends_with_their_time(producer: Client, consumer: Client) -> None:
    producer.create_queue(
        "ch",
        1,
        RequestAcknowledge=True,
        WaitForAcknowledge=True,
        AcknowledgeTimeout=50,
        MessageDeliveryHandler="at-most-once",
    )
    consumer.join()
    producer.publish_all([b"1", b"2"])
    assert [consumer.receive().payload, consumer.receive().payload] == [b"1", b"2"]
