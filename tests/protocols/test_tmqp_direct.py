"""Messages from client to client: by id, by name, by type; acknowledged, answered, or without a receiver."""

from __future__ import annotations

import pytest

from protocols.conversation import (
    ACKNOWLEDGE,
    CLIENT_LIST,
    DIRECT,
    NOT_FOUND,
    OK,
    RESPONSE,
    Client,
    Connect,
    vector,
)
from tmqp_peer import RawFrame


def heard(client: Client) -> list[RawFrame]:
    """Frames that the broker has relayed from other clients to this one so far."""
    client.ask(CLIENT_LIST)
    return client.arrived()


@pytest.fixture
def receiver(connect: Connect) -> Client:
    return connect("c1", Client_Name="rec", Client_Type="sink")


def test_a_direct_message_arrives_with_its_senders_id(producer: Client, receiver: Client) -> None:
    """Twino case 10, in the bytes of vector V38."""
    producer.send(
        RawFrame(
            kind=DIRECT, id=b"D1", source=b"prod", target=b"c1", content_type=5, pending_acknowledge=True, payload=b"hi"
        )
    )
    frame = receiver.receive()
    assert (frame.kind, frame.source, frame.payload) == (DIRECT, b"prod", b"hi")
    expected = RawFrame(
        kind=DIRECT,
        id=vector("V38")[8:10],
        source=b"prod",
        target=b"c1",
        content_type=5,
        pending_acknowledge=True,
        hops=15,
        payload=b"hi",
    )
    assert expected.encode() == vector("V38")
    expected.id = b"D1"
    assert receiver.raw == expected.encode()


def test_the_acknowledgement_of_a_direct_message_reaches_its_sender(producer: Client, receiver: Client) -> None:
    """Twino cases 11, 13 and 14, in the bytes of vector V39: high priority is what tells it."""
    message = vector("V38")[8:10]
    producer.send(
        RawFrame(kind=DIRECT, id=message, target=b"c1", content_type=5, pending_acknowledge=True, high_priority=True)
    )
    frame = receiver.receive()
    assert (frame.high_priority, frame.pending_acknowledge) == (True, True)
    acknowledged_id = vector("V39")[8:10]
    receiver.send(
        RawFrame(
            kind=ACKNOWLEDGE,
            id=acknowledged_id,
            source=b"c1",
            target=b"prod",
            content_type=vector("V39")[5],
            high_priority=True,
        )
    )
    producer.receive()
    assert producer.raw == vector("V39")


def test_a_negative_acknowledgement_of_a_direct_message_keeps_its_reason(producer: Client, receiver: Client) -> None:
    message = producer.send_direct("c1", b"x", pending_acknowledge=True)
    receiver.receive()
    receiver.send(
        RawFrame(
            kind=ACKNOWLEDGE, id=message, target=b"prod", high_priority=True, headers=[("Nack-Reason", "not today")]
        )
    )
    answer = producer.receive()
    assert (answer.kind, answer.id, answer.header("Nack-Reason")) == (ACKNOWLEDGE, message, "not today")


def test_a_sender_whose_receiver_says_nothing_hears_nothing(producer: Client, receiver: Client) -> None:
    """Twino case 15: when to stop waiting is the sender's own business."""
    producer.send_direct("c1", b"x", pending_acknowledge=True, high_priority=True)
    assert receiver.receive().payload == b"x"
    assert heard(producer) == []


@pytest.mark.parametrize("code", [0, 1, 404, 2000, 65535])
def test_a_response_reaches_who_asked(producer: Client, receiver: Client, code: int) -> None:
    """Twino case 12: with the code and the body of the client that responded."""
    request = producer.send_direct("c1", b"question", pending_response=True)
    assert receiver.receive().pending_response
    receiver.send(
        RawFrame(
            kind=RESPONSE,
            id=request,
            source=b"c1",
            target=b"prod",
            content_type=code,
            payload=b"answer",
            headers=[("Key", "value")],
        )
    )
    answer = producer.receive()
    assert (
        producer.raw
        == RawFrame(
            kind=RESPONSE,
            id=request,
            source=b"c1",
            target=b"prod",
            content_type=code,
            payload=b"answer",
            headers=[("Key", "value")],
            hops=15,
        ).encode()
    )
    assert answer.source == b"c1"


def test_answers_to_a_client_that_has_left_are_dropped(producer: Client, receiver: Client) -> None:
    request = producer.send_direct("c1", b"x", pending_response=True, pending_acknowledge=True)
    receiver.receive()
    producer.close()
    receiver.send(RawFrame(kind=RESPONSE, id=request, target=b"prod"))
    receiver.send(RawFrame(kind=ACKNOWLEDGE, id=request, target=b"prod", high_priority=True))
    assert heard(receiver) == []


@pytest.mark.parametrize("target", ["@name:rec", '@name:"rec"', "@type:sink", '@type:"sink"'])
def test_a_message_for_a_name_or_a_type_reaches_all_who_have_it(
    producer: Client, connect: Connect, target: str
) -> None:
    receivers = [connect(f"c{number}", Client_Name="rec", Client_Type="sink") for number in range(3)]
    other = connect("other", Client_Name="Rec", Client_Type="Sink")
    producer.send_direct(target, b"all", content_type=7)
    for receiver in receivers:
        frame = receiver.receive()
        assert (frame.payload, frame.content_type, frame.source) == (b"all", 7, b"prod")
        # The target tells the receiver how it was addressed.
        assert frame.target.decode() == target.replace('"', "")
    assert heard(producer) == []
    assert heard(other) == []


@pytest.mark.parametrize("target", ["@name:rec", "@type:sink"])
def test_a_message_for_one_of_a_name_or_a_type_reaches_the_oldest(
    producer: Client, connect: Connect, target: str
) -> None:
    receivers = [connect(f"c{number}", Client_Name="rec", Client_Type="sink") for number in range(3)]
    producer.send_direct(target, b"one", first_acquirer=True)
    assert receivers[0].receive().payload == b"one"
    assert heard(producer) == []
    assert [heard(receiver) for receiver in receivers[1:]] == [[], []]


def test_when_the_oldest_leaves_the_next_is_the_oldest(producer: Client, connect: Connect) -> None:
    first, second = connect(Client_Name="rec"), connect(Client_Name="rec")
    first.socket.sendall(vector("V05"))
    assert first.is_closed_within(5)
    producer.send_direct("@name:rec", b"x", first_acquirer=True)
    assert second.receive().payload == b"x"


def test_several_acknowledgements_of_a_message_for_many_all_arrive(producer: Client, connect: Connect) -> None:
    receivers = [connect(f"c{number}", Client_Type="sink") for number in range(3)]
    message = producer.send_direct("@type:sink", b"x", pending_acknowledge=True)
    for receiver in receivers:
        receiver.receive()
        receiver.send(RawFrame(kind=ACKNOWLEDGE, id=message, target=b"prod", high_priority=True))
    assert {producer.receive().source for _ in receivers} == {b"c0", b"c1", b"c2"}


def test_message_to_an_unknown_id_is_always_answered(producer: Client) -> None:
    message = producer.send_direct("nobody", b"x")
    answer = producer.receive()
    assert (answer.kind, answer.id, answer.content_type, answer.target) == (RESPONSE, message, NOT_FOUND, b"prod")


def test_ids_are_case_sensitive(producer: Client, receiver: Client) -> None:
    message = producer.send_direct("C1", b"x")
    assert producer.answer(message).content_type == NOT_FOUND
    assert heard(receiver) == []


@pytest.mark.parametrize("target", ["@name:nobody", "@type:nobody"])
def test_message_to_an_unknown_name_is_answered_if_the_sender_waits(producer: Client, target: str) -> None:
    producer.send_direct(target, b"x")
    waits = producer.send_direct(target, b"x", pending_response=True)
    [answer] = heard(producer)
    assert (answer.kind, answer.id, answer.content_type) == (RESPONSE, waits, NOT_FOUND)


def test_acknowledgement_of_an_undeliverable_message_is_negative(producer: Client) -> None:
    message = producer.send_direct("@name:nobody", b"x", pending_acknowledge=True)
    answer = producer.receive()
    assert (answer.kind, answer.id, answer.high_priority) == (ACKNOWLEDGE, message, True)
    assert answer.header("Nack-Reason") == "no-consumers"


def test_a_client_may_write_to_itself(producer: Client) -> None:
    message = producer.send_direct("prod", b"me", pending_response=True)
    frame = producer.receive()
    assert (frame.kind, frame.payload) == (DIRECT, b"me")
    producer.send(RawFrame(kind=RESPONSE, id=message, target=b"prod", content_type=OK))
    assert producer.receive().kind == RESPONSE
