"""Events: a subscriber receives each event, and no longer receives it after it unsubscribes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocols.conversation import (
    EVENT,
    FAILED,
    OK,
    PULLED,
    REMOVE_CHANNEL,
    REMOVE_QUEUE,
    RESPONSE,
    SUBSCRIBE,
    Client,
    Connect,
    Eventually,
    vector,
)
from tmqp_peer import PeerClosed, RawFrame


@pytest.fixture
def watcher(connect: Connect) -> Client:
    """The client that subscribes; it connects before all others."""
    return connect("watcher")


def events_of(watcher: Client, channel: str = "ch") -> list[tuple[str, dict[str, Any]]]:
    """The events that the watcher has received so far: name and body of each."""
    return [(frame.source.decode(), json.loads(frame.payload)) for frame in watcher.arrived(channel)]


def members(watcher: Client) -> tuple[RawFrame, dict[str, Any]]:
    """The next event, and its body with the members in their order."""
    frame = watcher.receive()
    assert frame.kind == EVENT
    assert (frame.id, frame.headers, frame.hops) == (b"", [], 16)
    return frame, json.loads(frame.payload)


# --- of the server -------------------------------------------------------------------------------------------


def test_client_connected_event(watcher: Client, connect: Connect) -> None:
    """Twino case 78."""
    assert watcher.subscribe("ClientConnected") == OK
    connect("new", Client_Name="nm", Client_Type="ty")
    frame, body = members(watcher)
    assert (frame.source, frame.target, frame.content_type) == (b"ClientConnected", b"", 0)
    assert list(body.items()) == [("Id", "new"), ("Name", "nm"), ("Type", "ty"), ("Node", None)]
    assert watcher.unsubscribe("ClientConnected") == OK
    connect("newer")
    assert events_of(watcher) == []


def test_client_disconnected_event(watcher: Client, connect: Connect, eventually: Eventually) -> None:
    """Twino case 79; once only, however it leaves."""
    assert watcher.subscribe("ClientDisconnected") == OK
    connect("gone").close()
    frame, body = members(watcher)
    assert (frame.source, frame.target, frame.content_type) == (b"ClientDisconnected", b"", 0)
    assert list(body.items()) == [("Id", "gone"), ("Name", None), ("Type", None), ("Node", None)]
    polite = connect("polite")
    polite.socket.sendall(vector("V05"))
    with pytest.raises((PeerClosed, ConnectionError)):
        polite.read(1)
    _, body = members(watcher)
    assert body["Id"] == "polite"
    polite.close()
    assert watcher.unsubscribe("ClientDisconnected") == OK
    connect("again").close()
    eventually(lambda: [entry["Id"] for entry in watcher.json(631)] == ["watcher"])
    assert events_of(watcher) == []


def test_channel_created_event(watcher: Client, producer: Client) -> None:
    """Twino case 82."""
    assert watcher.subscribe("ChannelCreated") == OK
    producer.create_channel("ch", ClientLimit=9)
    frame, body = members(watcher)
    assert (frame.source, frame.target, frame.content_type) == (b"ChannelCreated", b"", 0)
    assert list(body.items()) == [("Name", "ch"), ("ActiveClients", 0), ("ClientLimit", 9), ("Node", None)]
    # The bytes of the original: its client drops an event whose target is not that of its subscription.
    original = b'ChannelCreated{"Name":"ch","ActiveClients":0,"ClientLimit":9,"Node":null}'
    assert watcher.raw == bytes.fromhex("1610000e0000003b") + original
    assert watcher.unsubscribe("ChannelCreated") == OK
    producer.create_channel("ch2")
    assert events_of(watcher, "ch2") == []


def test_channel_removed_event(watcher: Client, producer: Client, consumer: Client) -> None:
    """Twino case 83."""
    for name in ("ch", "ch2"):
        producer.create_channel(name)
    consumer.join()
    assert watcher.subscribe("ChannelRemoved") == OK
    producer.do(REMOVE_CHANNEL, "ch")
    frame, body = members(watcher)
    assert (frame.source, frame.target, frame.content_type) == (b"ChannelRemoved", b"", 0)
    assert list(body.items()) == [("Name", "ch"), ("ActiveClients", 1), ("ClientLimit", 0), ("Node", None)]
    original = b'ChannelRemoved{"Name":"ch","ActiveClients":1,"ClientLimit":0,"Node":null}'
    assert watcher.raw == bytes.fromhex("1610000e0000003b") + original
    assert watcher.unsubscribe("ChannelRemoved") == OK
    producer.do(REMOVE_CHANNEL, "ch2")
    assert events_of(watcher, "ch2") == []


# --- of a channel --------------------------------------------------------------------------------------------


def test_client_joined_event(watcher: Client, producer: Client, connect: Connect) -> None:
    """Twino case 80."""
    producer.create_channel()
    assert watcher.subscribe("ClientJoined", Channel_Name="ch") == OK
    joining = connect("c1", Client_Name="nm", Client_Type="ty")
    joining.join()
    frame, body = members(watcher)
    assert (frame.source, frame.target, frame.content_type) == (b"ClientJoined", b"ch", 0)
    assert list(body.items()) == [
        ("Channel", "ch"),
        ("ClientId", "c1"),
        ("ClientName", "nm"),
        ("ClientType", "ty"),
        ("Node", None),
    ]
    joining.join()
    assert events_of(watcher) == []
    assert watcher.unsubscribe("ClientJoined", Channel_Name="ch") == OK
    producer.join()
    assert events_of(watcher) == []


def test_client_left_channel_event(watcher: Client, producer: Client, connect: Connect, eventually: Eventually) -> None:
    """Twino case 81: whether it leaves explicitly or disconnects."""
    producer.create_channel()
    leaving, dying, last = connect("c1"), connect("c2"), connect("c3")
    for client in (leaving, dying, last):
        client.join()
    assert watcher.subscribe("ClientLeft", Channel_Name="ch") == OK
    leaving.leave()
    frame, body = members(watcher)
    assert (frame.source, frame.target, body["ClientId"]) == (b"ClientLeft", b"ch", "c1")
    assert list(body) == ["Channel", "ClientId", "ClientName", "ClientType", "Node"]
    dying.close()
    assert members(watcher)[1]["ClientId"] == "c2"
    assert watcher.unsubscribe("ClientLeft", Channel_Name="ch") == OK
    last.leave()
    assert events_of(watcher) == []


def test_queue_created_event(watcher: Client, producer: Client) -> None:
    """Twino case 84; before the broker answers the client that created it."""
    producer.create_channel()
    assert watcher.subscribe("QueueCreated", Channel_Name="ch") == OK
    producer.create_queue("ch", 7, Tag="red", Status=2)
    frame, body = members(watcher)
    assert (frame.source, frame.target, frame.content_type) == (b"QueueCreated", b"ch", 0)
    assert list(body.items()) == [
        ("Channel", "ch"),
        ("Id", 7),
        ("Tag", "red"),
        ("Status", "RoundRobin"),
        ("PriorityMessages", 0),
        ("Messages", 0),
        ("Node", None),
    ]
    assert watcher.unsubscribe("QueueCreated", Channel_Name="ch") == OK
    producer.create_queue("ch", 8)
    assert events_of(watcher) == []


def test_an_event_comes_before_the_answer_to_what_caused_it(watcher: Client) -> None:
    watcher.create_channel()
    assert watcher.subscribe("QueueCreated", Channel_Name="ch") == OK
    watcher.send(
        RawFrame(kind=0x10, id=b"r", target=b"ch", content_type=610, headers=[("Queue-Id", "1")], pending_response=True)
    )
    assert [watcher.receive().kind, watcher.receive().kind] == [EVENT, RESPONSE]


def test_queue_updated_event(watcher: Client, producer: Client) -> None:
    """Twino case 85: with the status and the messages that it has then."""
    producer.create_queue("ch", 7, Status=PULLED)
    producer.publish("ch", 7, b"x")
    producer.publish("ch", 7, b"x", high_priority=True)
    producer.arrived()
    assert watcher.subscribe("QueueUpdated", Channel_Name="ch") == OK
    producer.update_queue("ch", 7, Status=5, Tag="blue")
    frame, body = members(watcher)
    assert (frame.source, frame.target) == (b"QueueUpdated", b"ch")
    assert list(body.items()) == [
        ("Channel", "ch"),
        ("Id", 7),
        ("Tag", "blue"),
        ("Status", "Paused"),
        ("PriorityMessages", 1),
        ("Messages", 1),
        ("Node", None),
    ]
    assert watcher.unsubscribe("QueueUpdated", Channel_Name="ch") == OK
    producer.update_queue("ch", 7, Status=PULLED)
    assert events_of(watcher) == []


def test_queue_removed_event(watcher: Client, producer: Client) -> None:
    """Twino case 86."""
    for queue in (7, 8):
        producer.create_queue("ch", queue)
    assert watcher.subscribe("QueueRemoved", Channel_Name="ch") == OK
    producer.do(REMOVE_QUEUE, "ch", headers={"Queue-Id": "7"})
    frame, body = members(watcher)
    assert (frame.source, frame.target, body["Id"], body["Status"]) == (b"QueueRemoved", b"ch", 7, "Push")
    assert watcher.unsubscribe("QueueRemoved", Channel_Name="ch") == OK
    producer.do(REMOVE_QUEUE, "ch", headers={"Queue-Id": "8"})
    assert events_of(watcher) == []


def test_removing_a_channel_sends_queue_removed_events(watcher: Client, producer: Client) -> None:
    for queue in (7, 8):
        producer.create_queue("ch", queue)
    assert watcher.subscribe("QueueRemoved", Channel_Name="ch") == OK
    producer.do(REMOVE_CHANNEL, "ch")
    assert [body["Id"] for _, body in events_of(watcher)] == [7, 8]


# --- of a queue ----------------------------------------------------------------------------------------------


def test_message_produced_event_matches_the_bytes_of_the_original(watcher: Client, producer: Client) -> None:
    """Twino case 87, vector V44."""
    producer.create_queue("ch-pull", 7, Status=PULLED)
    producer.create_queue("ch-pull", 1, Status=PULLED)
    data = vector("V44")
    queue = int.from_bytes(data[5:7], "little")
    expected = json.loads(data[data.index(b"{") :])
    assert watcher.subscribe("MessageProduced", Channel_Name="ch-pull", Queue_Id=str(queue)) == OK, (
        "the queue of the vector exists"
    )
    other = 1 if queue == 7 else 7
    producer.publish("ch-pull", other, b"x")
    producer.publish("ch-pull", queue, b"x", message_id=expected["Id"].encode())
    watcher.receive()
    assert watcher.raw == data
    assert watcher.unsubscribe("MessageProduced", Channel_Name="ch-pull", Queue_Id=str(queue)) == OK
    producer.publish("ch-pull", queue, b"x")
    producer.arrived("ch-pull")
    assert events_of(watcher, "ch-pull") == []


def test_message_produced_event_contains_the_producers_name(watcher: Client, connect: Connect) -> None:
    producer = connect("p", Client_Name="nm", Client_Type="ty")
    producer.create_queue()
    assert watcher.subscribe("MessageProduced", Channel_Name="ch", Queue_Id="1") == OK
    message = producer.publish(body=b"x")
    _, body = members(watcher)
    assert list(body.items()) == [
        ("Channel", "ch"),
        ("Queue", 1),
        ("Id", message.decode()),
        ("Saved", False),
        ("ProducerId", "p"),
        ("ProducerName", "nm"),
        ("ProducerType", "ty"),
    ]


def test_a_message_that_is_refused_is_not_told(watcher: Client, producer: Client) -> None:
    producer.create_queue("ch", 1, Status=PULLED, MessageLimit=1)
    assert watcher.subscribe("MessageProduced", Channel_Name="ch", Queue_Id="1") == OK
    producer.publish_all([b"1", b"2"])
    assert len(events_of(watcher)) == 1


# --- subscribing ---------------------------------------------------------------------------------------------

SERVER_EVENTS = ["ClientConnected", "ClientDisconnected", "ChannelCreated", "ChannelRemoved"]
CHANNEL_EVENTS = ["ClientJoined", "ClientLeft", "QueueCreated", "QueueUpdated", "QueueRemoved"]


def test_subscription_with_the_bytes_of_the_original_is_answered(connect: Connect) -> None:
    """Vectors V42 and V43; V43 needs a queue that exists."""
    client = connect("cli")
    client.create_queue("ch", 7)
    for name in ("V42", "V43"):
        client.socket.sendall(vector(name))
        answer = client.receive()
        assert (answer.kind, answer.target, answer.content_type, answer.source) == (RESPONSE, b"cli", OK, b"")
        assert answer.id == vector(name)[8:14]


def test_a_subscription_is_answered_even_if_no_answer_is_wanted(watcher: Client) -> None:
    watcher.send(RawFrame(kind=EVENT, id=b"e", target=b"ClientConnected", content_type=SUBSCRIBE))
    answer = watcher.receive()
    assert (answer.kind, answer.id, answer.content_type) == (RESPONSE, b"e", OK)


@pytest.mark.parametrize("event", SERVER_EVENTS)
def test_events_of_the_server_need_no_channel(watcher: Client, event: str) -> None:
    assert watcher.subscribe(event) == OK
    assert watcher.unsubscribe(event) == OK


@pytest.mark.parametrize("event", [*CHANNEL_EVENTS, "MessageProduced"])
def test_events_of_a_channel_need_one_that_exists(watcher: Client, event: str) -> None:
    watcher.create_channel()
    assert watcher.subscribe(event) == FAILED
    assert watcher.subscribe(event, Channel_Name="nope", Queue_Id="1") == FAILED
    assert watcher.subscribe(event, Channel_Name="a b", Queue_Id="1") == FAILED
    expected = FAILED if event == "MessageProduced" else OK
    assert watcher.subscribe(event, Channel_Name="ch") == expected


@pytest.mark.parametrize("queue", ["2", "x", "65536", "-1", ""])
def test_message_produced_needs_a_queue_that_exists(watcher: Client, queue: str) -> None:
    watcher.create_queue("ch", 1)
    assert watcher.subscribe("MessageProduced", Channel_Name="ch", Queue_Id=queue) == FAILED
    assert watcher.subscribe("MessageProduced", Channel_Name="ch", Queue_Id="1") == OK


@pytest.mark.parametrize("event", ["", "clientconnected", "NodeRemoved", "Nothing", "ş"])
def test_events_that_do_not_exist_are_refused(watcher: Client, event: str) -> None:
    """The original said nothing, and let its client wait."""
    assert watcher.subscribe(event) == FAILED


def test_subscribing_twice_is_subscribing_once(watcher: Client, producer: Client) -> None:
    for _ in range(2):
        assert watcher.subscribe("ChannelCreated") == OK
    producer.create_channel()
    assert len(events_of(watcher)) == 1


def test_unsubscribing_from_what_one_did_not_subscribe_to_does_no_harm(watcher: Client) -> None:
    assert watcher.unsubscribe("ChannelCreated") == OK


def test_an_unsubscription_may_have_any_number_but_one(watcher: Client, producer: Client) -> None:
    for content_type in (0, 2, 65535):
        assert watcher.subscribe("ChannelCreated") == OK
        assert watcher.subscribe("ChannelCreated", content_type=content_type) == OK
    producer.create_channel()
    assert events_of(watcher) == []


def test_events_reach_all_subscribers_after_one_disconnects(
    watcher: Client, producer: Client, connect: Connect
) -> None:
    others = [connect() for _ in range(3)]
    for client in (watcher, *others):
        assert client.subscribe("ChannelCreated") == OK
    others.pop().close()
    producer.create_channel()
    for client in (watcher, *others):
        assert [name for name, _ in events_of(client)] == ["ChannelCreated"]
