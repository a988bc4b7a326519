"""Pull and cache queues: messages for consumers that ask."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.conversation import (
    ACKNOWLEDGE,
    BROADCAST,
    CACHE,
    OK,
    PAUSED,
    PULL,
    PULLED,
    PUSH,
    QUEUE,
    RESPONSE,
    ROUND_ROBIN,
    STOPPED,
    Client,
    Connect,
    vector,
)
from tmqp_peer import RawFrame


@pytest.fixture
def puller(producer: Client, consumer: Client) -> Client:
    """A consumer of the pull queue 1 of `ch`."""
    producer.create_queue("ch", 1, Status=PULLED)
    consumer.join()
    return consumer


def bodies(frames: list[RawFrame]) -> list[bytes]:
    return [frame.payload for frame in frames]


# --- bytes --------------------------------------------------------------------------------------------------


def test_pulled_messages_and_the_end_match_the_bytes_of_the_original(producer: Client, connect: Connect) -> None:
    """Vectors V33 and V34. The vector's Count is what was asked for; the document's, and ours, is what will come."""
    client = connect("c1")
    producer.create_queue("ch-pull", 1, Status=PULLED)
    client.join("ch-pull")
    producer.publish("ch-pull", 1, b"pull", message_id=b"P1")
    producer.arrived("ch-pull")
    client.send(
        RawFrame(
            kind=PULL,
            id=b"REQ",
            source=b"c1",
            target=b"ch-pull",
            content_type=1,
            headers=[("Count", "2"), ("Info", "yes")],
        )
    )
    client.receive()
    assert client.raw == vector("V33").replace(b"Count:2", b"Count:1")
    client.receive()
    assert client.raw == vector("V34")


def test_answer_of_an_empty_queue_matches_the_bytes_of_the_original(producer: Client, connect: Connect) -> None:
    """Vector V35."""
    client = connect("c1")
    producer.create_queue("ch-pull", 1, Status=PULLED)
    client.join("ch-pull")
    client.send(RawFrame(kind=PULL, id=b"REQ", target=b"ch-pull", content_type=1, headers=[("Count", "1")]))
    client.receive()
    assert client.raw == vector("V35")


def test_a_pull_request_of_the_original_is_read(producer: Client, connect: Connect) -> None:
    """Vector V32: ten messages, the last first, with what is left, and high priority is cleared after."""
    client = connect("cli")
    producer.create_queue("ch", 7, Status=PULLED)
    client.join()
    for number in range(12):
        producer.publish("ch", 7, b"%d" % number, high_priority=number < 11)
    producer.arrived()
    client.socket.sendall(vector("V32"))
    frames = [client.receive() for _ in range(11)]
    assert bodies(frames[:10]) == [b"%d" % number for number in range(10, 0, -1)]
    assert [frame.header("Priority-Messages") for frame in frames[:10]] == [str(left) for left in range(10, 0, -1)]
    assert {frame.header("Messages") for frame in frames[:10]} == {"1"}
    assert frames[10].header("No-Content") == "End"
    assert producer.stored("ch", 7) == (0, 1)


# --- what comes ----------------------------------------------------------------------------------------------


def test_a_message_is_pulled_and_not_pushed(producer: Client, puller: Client) -> None:
    """Twino case 63: the first pull gets it, the second finds nothing."""
    producer.publish_all([b"x"])
    assert puller.arrived() == []
    messages, word = puller.pull(Count=1)
    assert (bodies(messages), word) == ([b"x"], "End")
    assert puller.pull(Count=1) == ([], "Empty")


@pytest.mark.parametrize(("asked", "comes"), [(1, 1), (3, 3), (10, 10), (12, 10), (4_294_967_295, 10), (10**30, None)])
def test_a_pull_gets_as_many_as_it_asks_for(producer: Client, puller: Client, asked: int, comes: int | None) -> None:
    """Twino case 66, and more than there are."""
    producer.publish_all([b"%d" % number for number in range(10)])
    messages, word = puller.pull(Count=asked)
    if comes is None:
        # No number that the protocol could mean: all or nothing, but an answer.
        assert (len(messages), word) in {(0, "Unacceptable"), (10, "End")}
        return
    assert (bodies(messages), word) == ([b"%d" % number for number in range(comes)], "End")
    for index, message in enumerate(messages, 1):
        assert (message.kind, message.header("Index"), message.header("Count")) == (QUEUE, str(index), str(comes))
        assert message.header("Messages") is None
    assert producer.stored() == (0, 10 - comes)


def test_five_pulls_of_one_get_all_of_five(producer: Client, puller: Client) -> None:
    """Twino case 116: the original lost every second one."""
    producer.publish_all([b"%d" % number for number in range(5)])
    assert [bodies(puller.pull(Count=1)[0]) for _ in range(5)] == [[b"%d" % number] for number in range(5)]
    assert puller.pull(Count=1) == ([], "Empty")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, [b"p1", b"p2", b"1", b"2"]),
        ({"Order": "FIFO"}, [b"p1", b"p2", b"1", b"2"]),
        ({"Order": "LIFO"}, [b"p2", b"p1", b"2", b"1"]),
        ({"Order": "lifo"}, [b"p2", b"p1", b"2", b"1"]),
        ({"Order": "sideways"}, [b"p1", b"p2", b"1", b"2"]),
    ],
    ids=["default", "fifo", "lifo", "lifo-lower", "unknown"],
)
def test_pull_order_is_the_clients_choice(
    producer: Client, puller: Client, headers: dict[str, str], expected: list[bytes]
) -> None:
    """Twino case 65; high priority is first in any case."""
    for body in (b"1", b"2"):
        producer.publish(body=body)
        producer.publish(body=b"p" + body, high_priority=True)
    producer.arrived()
    assert bodies(puller.pull(Count=9, **headers)[0]) == expected


@pytest.mark.parametrize(
    ("headers", "left"),
    [
        ({}, (2, 2)),
        ({"Clear": "None"}, (2, 2)),
        ({"Clear": "all"}, (0, 0)),
        ({"Clear": "ALL"}, (0, 0)),
        ({"Clear": "High-Priority"}, (0, 2)),
        ({"Clear": "default-priority"}, (2, 0)),
    ],
    ids=str,
)
def test_the_chosen_messages_are_cleared_after_a_pull(
    producer: Client, puller: Client, headers: dict[str, str], left: tuple[int, int]
) -> None:
    """Twino case 67."""
    for number in range(5):
        producer.publish(body=b"%d" % number, high_priority=number < 3)
    producer.arrived()
    messages, word = puller.pull(Count=1, **headers)
    assert (bodies(messages), word) == ([b"0"], "End")
    assert producer.stored() == left


def test_a_pull_with_info_says_what_is_left_after_each_message(producer: Client, puller: Client) -> None:
    for number in range(4):
        producer.publish(body=b"%d" % number, high_priority=number < 2)
    producer.arrived()
    messages, _ = puller.pull(Count=3, Info="yes")
    left = [(message.header("Priority-Messages"), message.header("Messages")) for message in messages]
    assert left == [("1", "2"), ("0", "2"), ("0", "1")]


def test_a_messages_own_headers_come_before_those_of_the_pull(producer: Client, puller: Client) -> None:
    producer.publish(body=b"x", headers=[("Own", "1"), ("Index", "mine")])
    producer.arrived()
    [message], _ = puller.pull(Count=1)
    keys = [key for key, _ in message.headers]
    assert keys == ["Own", "Index", "Request-Id", "Count", "Index"]


# --- why nothing comes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [BROADCAST, PUSH, ROUND_ROBIN, PAUSED, STOPPED])
def test_only_pull_and_cache_queues_can_be_pulled_from(producer: Client, consumer: Client, status: int) -> None:
    producer.create_queue("ch", 1, Status=status)
    consumer.join()
    assert consumer.pull(Count=1) == ([], "Unacceptable")


@pytest.mark.parametrize(
    "headers", [{}, {"Count": "0"}, {"Count": "-1"}, {"Count": "x"}, {"Count": ""}, {"Count": "1.5"}], ids=str
)
def test_a_pull_without_a_count_of_at_least_one_is_unacceptable(
    producer: Client, puller: Client, headers: dict[str, Any]
) -> None:
    """An invalid count closed the connection in the original."""
    producer.publish_all([b"x"])
    assert puller.pull(**headers) == ([], "Unacceptable")
    assert producer.stored() == (0, 1)


def test_pull_requires_joining_the_channel(producer: Client, puller: Client, connect: Connect) -> None:
    producer.publish_all([b"x"])
    stranger = connect("stranger")
    assert stranger.pull(Count=1) == ([], "Unauthorized")
    assert producer.stored() == (0, 1)


def test_a_pull_from_nowhere_says_what_is_missing(puller: Client) -> None:
    """The document's words: real clients end a pull at any of them, and would wait for ever after a response."""
    assert puller.pull("nope", 1, Count=1) == ([], "No-Channel")
    assert puller.pull("ch", 9, Count=1) == ([], "No-Queue")
    assert puller.pull("a b", 9, Count=1) == ([], "No-Channel")


def test_pull_without_an_id_is_rejected(producer: Client, puller: Client) -> None:
    producer.publish_all([b"x"])
    puller.send(RawFrame(kind=PULL, target=b"ch", content_type=1, headers=[("Count", "1")]))
    frame = puller.receive()
    assert (frame.kind, frame.id, frame.header("No-Content")) == (QUEUE, b"", "Id-Required")
    assert producer.stored() == (0, 1)


# --- acknowledgements ----------------------------------------------------------------------------------------


def test_a_producers_wait_ends_when_the_pulling_consumer_acknowledges(producer: Client, consumer: Client) -> None:
    """Twino case 64."""
    producer.create_queue("ch", 1, Status=PULLED, RequestAcknowledge=True, MessageDeliveryHandler="ack-on-consume")
    consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    assert producer.arrived() == []
    [delivery], _ = consumer.pull(Count=1)
    assert delivery.pending_acknowledge
    assert producer.arrived() == []
    consumer.acknowledge(delivery)
    assert producer.answer(message, (ACKNOWLEDGE,)).source == b"c1"


def test_a_pulled_message_that_is_refused_can_be_pulled_again(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, Status=PULLED, RequestAcknowledge=True)
    consumer.join()
    producer.publish_all([b"x"])
    [delivery], _ = consumer.pull(Count=1)
    assert consumer.pull(Count=1) == ([], "Empty")
    consumer.acknowledge(delivery, "later")
    [again], _ = consumer.pull(Count=1)
    assert (again.id, again.payload) == (delivery.id, b"x")
    assert (delivery.first_acquirer, again.first_acquirer) == (True, False)


def test_messages_of_a_lost_puller_can_be_pulled_by_others(producer: Client, connect: Connect, eventually: Any) -> None:
    producer.create_queue("ch", 1, Status=PULLED, RequestAcknowledge=True)
    dying, living = connect("c1"), connect("c2")
    dying.join()
    living.join()
    producer.publish_all([b"1", b"2", b"3"])
    dying.pull(Count=2)
    dying.close()
    eventually(lambda: producer.stored() == (0, 3))
    assert bodies(living.pull(Count=3)[0]) == [b"1", b"2", b"3"]


def test_several_pullers_share_a_queue(producer: Client, connect: Connect) -> None:
    producer.create_queue("ch", 1, Status=PULLED)
    pullers = [connect(f"c{number}") for number in range(3)]
    for puller in pullers:
        puller.join()
    producer.publish_all([b"%d" % number for number in range(30)])
    requests = [puller.request_pull(Count=12) for puller in pullers]
    received: list[bytes] = []
    for puller, request in zip(pullers, requests, strict=True):
        while (frame := puller.receive()).header("No-Content") is None:
            assert frame.header("Request-Id") == request.decode()
            received.append(frame.payload)
    assert sorted(received, key=int) == [b"%d" % number for number in range(30)]


# --- cache ---------------------------------------------------------------------------------------------------


def cached(client: Client, **headers: Any) -> RawFrame:
    """Pull from the cache queue 1 of `ch`: one answer, whatever it is."""
    client.request_pull(**headers)
    return client.receive()


def test_cache_returns_the_latest_message_to_each_client(producer: Client, connect: Connect) -> None:
    producer.create_queue("ch", 1, Status=CACHE)
    pullers = [connect("c1"), connect("c2")]
    for puller in pullers:
        puller.join()
    producer.publish_all([b"1", b"2"])
    for puller in pullers:
        assert puller.arrived() == []
        assert [cached(puller, Count=1).payload for _ in range(3)] == [b"2"] * 3
    assert producer.stored() == (0, 1)
    producer.publish_all([b"3"])
    assert cached(pullers[0], Count=1).payload == b"3"


def test_a_cached_message_comes_as_the_response_to_its_pull(producer: Client, connect: Connect) -> None:
    """The id is the request's, the code says success; the message's own id does not matter."""
    client = connect("c1")
    producer.create_queue("ch", 7, Status=CACHE)
    client.join()
    producer.publish("ch", 7, b"hello", headers=[("Own", "1")])
    producer.arrived()
    client.send(RawFrame(kind=PULL, id=b"REQ", target=b"ch", content_type=7, headers=[("Count", "1")]))
    client.receive()
    assert (
        client.raw
        == RawFrame(
            kind=RESPONSE,
            id=b"REQ",
            source=b"prod",
            target=b"c1",
            content_type=OK,
            headers=[("Own", "1")],
            payload=b"hello",
        ).encode()
    )


def test_a_cache_needs_no_count(producer: Client, consumer: Client) -> None:
    """The document mentions none: there is one message at most."""
    producer.create_queue("ch", 1, Status=CACHE)
    consumer.join()
    producer.publish_all([b"x"])
    assert (cached(consumer).kind, cached(consumer).payload) == (RESPONSE, b"x")


def test_empty_cache_answers_empty(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, Status=CACHE)
    consumer.join()
    assert cached(consumer, Count=1).header("No-Content") == "Empty"


def test_a_cache_is_for_members_only(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, Status=CACHE)
    producer.publish_all([b"x"])
    assert cached(consumer, Count=1).header("No-Content") == "Unauthorized"


def test_cache_hides_producers_if_configured(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, Status=CACHE, HideClientNames=True)
    consumer.join()
    producer.publish_all([b"x"])
    assert cached(consumer, Count=1).source == b""


def test_high_priority_does_not_outlive_a_newer_message_in_a_cache(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, Status=CACHE)
    consumer.join()
    producer.publish(body=b"1", high_priority=True)
    producer.publish_all([b"2"])
    assert cached(consumer, Count=1).payload == b"2"
    assert producer.stored() == (0, 1)
