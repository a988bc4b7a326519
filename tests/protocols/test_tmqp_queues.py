"""Queues over the network: created, changed, shown, cleared, removed; all their options; changes of their status."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocols.conversation import (
    ACKNOWLEDGE,
    ALREADY_EXISTS,
    BAD_REQUEST,
    BROADCAST,
    CACHE,
    CHANNEL_INFORMATION,
    CLEAR_MESSAGES,
    LIMIT_EXCEEDED,
    NOT_FOUND,
    OK,
    PAUSED,
    PULLED,
    PUSH,
    QUEUE,
    QUEUE_LIST,
    REMOVE_QUEUE,
    RESPONSE,
    ROUND_ROBIN,
    STOPPED,
    UNACCEPTABLE,
    UNAUTHORIZED,
    Client,
    Connect,
    Eventually,
    StartBroker,
    vector,
)
from tmqp_peer import CREATE_QUEUE, QUEUE_INFORMATION, UPDATE_QUEUE, RawFrame

NUMBERS = {
    "program": {"create": 610, "remove": 611, "update": 612, "information": 615, "list": 616},
    "document": {"create": 201, "remove": 203, "update": 202, "information": 205, "list": 204},
}


@pytest.fixture(params=["program", "document"])
def numbers(request: pytest.FixtureRequest) -> dict[str, int]:
    """The two sets of operation numbers in use."""
    return NUMBERS[request.param]


@pytest.fixture(params=["header", "body"])
def queue_id(request: pytest.FixtureRequest) -> Any:
    """Both ways to name a queue: the document's header, and the program's body of two bytes."""
    if request.param == "header":
        return lambda number: {"headers": {"Queue-Id": str(number)}}
    return lambda number: {"body": number.to_bytes(2, "little")}


# --- operations ----------------------------------------------------------------------------------------------


def test_a_queue_is_created(producer: Client, numbers: dict[str, int]) -> None:
    """Twino case 25; the channel is created with it."""
    assert producer.ask(numbers["create"], "ch", headers={"Queue-Id": "7"}).content_type == OK
    assert producer.json(CHANNEL_INFORMATION, "ch")["Queues"] == [7]


def test_bytes_of_the_original_create_a_queue(connect: Connect) -> None:
    """Vector V14."""
    client = connect("cli")
    client.socket.sendall(vector("V14"))
    answer = client.receive()
    assert (answer.kind, answer.id, answer.content_type, answer.payload) == (RESPONSE, b"id-007", OK, b"")
    assert client.json(CHANNEL_INFORMATION, "ch")["Queues"] == [7]


def test_a_queue_is_created_with_options(producer: Client, numbers: dict[str, int]) -> None:
    """Twino case 26, and every other option of a queue, including options that only mqcore has."""
    options: dict[str, Any] = {
        "SendOnlyFirstAcquirer": True,
        "RequestAcknowledge": True,
        "AcknowledgeTimeout": 33_000,
        "MessageTimeout": 44_000,
        "UseMessageId": False,
        "WaitForAcknowledge": True,
        "HideClientNames": True,
        "Status": PULLED,
        "MessageDeliveryHandler": "at-most-once",
        "MessageLimit": 11,
        "MessageSizeLimit": 12,
        "PutBackLimit": 13,
        "DeadLetter": "dead/2",
        "Tag": "red",
    }
    producer.create_queue("dead", 2)
    producer.do(numbers["create"], "ch", headers={"Queue-Id": "1"}, body=json.dumps(options).encode())
    information = producer.queue()
    expected = options | {"OnlyFirstAcquirer": True, "Status": "pull", "TagName": "red"}
    del expected["SendOnlyFirstAcquirer"]
    assert {name: information[name] for name in expected} == expected


def test_options_of_a_new_queue_may_come_as_headers(producer: Client) -> None:
    """As clients from 3.7 on send them; the body, where it says something too, wins."""
    headers = {
        "Queue-Id": "1",
        "Queue-Status": "round-robin",
        "Queue-Tag": "red",
        "Delivery-Handler": "at-most-once",
        "Wait-For-Acknowledge": "yes",
    }
    producer.do(CREATE_QUEUE, "ch", headers=headers, body=b'{"Tag":"blue"}')
    information = producer.queue()
    assert (information["Status"], information["TagName"]) == ("roundrobin", "blue")
    assert (information["MessageDeliveryHandler"], information["WaitForAcknowledge"]) == ("at-most-once", True)


def test_a_queue_that_exists_is_not_created_again(producer: Client, numbers: dict[str, int]) -> None:
    producer.create_queue("ch", 1, Status=PULLED)
    producer.publish_all([b"kept"])
    assert producer.ask(numbers["create"], "ch", headers={"Queue-Id": "1"}).content_type == ALREADY_EXISTS
    assert producer.stored() == (0, 1)


@pytest.mark.parametrize("operation", [CREATE_QUEUE, UPDATE_QUEUE, CLEAR_MESSAGES, REMOVE_QUEUE, QUEUE_INFORMATION])
def test_an_operation_on_a_queue_without_its_id_is_unacceptable_and_answered_once(
    producer: Client, operation: int
) -> None:
    """The original answered and used queue 0."""
    producer.create_queue("ch", 0)
    assert producer.ask(operation, "ch", body=b"{}" if operation == UPDATE_QUEUE else b"").content_type == UNACCEPTABLE
    assert producer.arrived() == []
    assert producer.json(CHANNEL_INFORMATION, "ch")["Queues"] == [0]


@pytest.mark.parametrize("digits", ["", "x", "-1", "65536", "1.5", "0x1", "99999999999999999999"])
def test_queue_id_outside_sixteen_bits_is_rejected(producer: Client, digits: str) -> None:
    """The original closed the connection."""
    for operation in (CREATE_QUEUE, QUEUE_INFORMATION, REMOVE_QUEUE):
        assert producer.ask(operation, "ch", headers={"Queue-Id": digits}).content_type == BAD_REQUEST
    assert producer.lives()


def test_a_queue_is_updated(producer: Client, numbers: dict[str, int]) -> None:
    """Twino case 27; what is not mentioned stays."""
    producer.create_queue("ch", 1, AcknowledgeTimeout=7000, Tag="red")
    changes = {"WaitForAcknowledge": True, "SendOnlyFirstAcquirer": True, "MessageTimeout": 12_000}
    producer.do(numbers["update"], "ch", headers={"Queue-Id": "1"}, body=json.dumps(changes).encode())
    information = producer.queue()
    assert (information["WaitForAcknowledge"], information["OnlyFirstAcquirer"]) == (True, True)
    assert (information["MessageTimeout"], information["AcknowledgeTimeout"]) == (12_000, 7000)
    assert information["TagName"] == "red"
    unknown = producer.ask(numbers["update"], "ch", headers={"Queue-Id": "2"}, body=b"{}")
    assert unknown.content_type == NOT_FOUND


def test_an_update_without_options_is_refused(producer: Client) -> None:
    producer.create_queue()
    assert producer.ask(UPDATE_QUEUE, "ch", headers={"Queue-Id": "1"}).content_type == BAD_REQUEST


def test_a_queue_is_removed(producer: Client, numbers: dict[str, int], queue_id: Any) -> None:
    """Twino case 28."""
    producer.create_queue("ch", 258)
    producer.create_queue("ch", 1)
    assert producer.ask(numbers["remove"], "ch", **queue_id(258)).content_type == OK
    assert producer.json(CHANNEL_INFORMATION, "ch")["Queues"] == [1]
    assert producer.ask(numbers["remove"], "ch", **queue_id(258)).content_type == NOT_FOUND
    assert producer.ask(numbers["remove"], "nope", **queue_id(258)).content_type == NOT_FOUND
    message = producer.publish("ch", 258, b"x")
    assert producer.answer(message).content_type == NOT_FOUND


def test_bytes_of_the_original_remove_a_queue(connect: Connect) -> None:
    """Vectors V15 and V16."""
    client = connect("cli")
    client.create_queue("ch", 258)
    client.socket.sendall(vector("V16"))
    assert json.loads(client.receive().payload)["Id"] == 258
    client.socket.sendall(vector("V15"))
    assert client.receive().content_type == OK
    assert client.json(CHANNEL_INFORMATION, "ch")["Queues"] == []


def test_queue_information_has_the_members_of_the_original_in_their_order(
    producer: Client, numbers: dict[str, int], queue_id: Any
) -> None:
    """Twino case 29; fields that only mqcore has follow the others."""
    producer.create_queue("ch", 258, Status=PULLED, Tag="red")
    producer.publish("ch", 258, b"x")
    information = producer.json(numbers["information"], "ch", **queue_id(258))
    members = list(information)
    assert members[:26] == [
        "Channel",
        "TagName",
        "Id",
        "PriorityMessages",
        "Messages",
        "Status",
        "OnlyFirstAcquirer",
        "RequestAcknowledge",
        "AcknowledgeTimeout",
        "MessageTimeout",
        "UseMessageId",
        "WaitForAcknowledge",
        "HideClientNames",
        "ReceivedMessages",
        "SentMessages",
        "Deliveries",
        "NegativeAcks",
        "Acks",
        "TimeoutMessages",
        "SavedMessages",
        "RemovedMessages",
        "Errors",
        "LastMessageReceived",
        "LastMessageSent",
        "MessageLimit",
        "MessageSizeLimit",
    ]
    assert (information["Channel"], information["Id"], information["TagName"]) == ("ch", 258, "red")
    assert (information["Messages"], information["ReceivedMessages"], information["SentMessages"]) == (1, 1, 0)
    assert information["LastMessageReceived"] > 1_500_000_000_000
    assert information["LastMessageSent"] == 0
    assert producer.ask(numbers["information"], "ch", **queue_id(9)).content_type == NOT_FOUND


@pytest.mark.parametrize("status", range(7))
def test_information_spells_a_status_in_lower_case(producer: Client, status: int) -> None:
    producer.create_queue("ch", 1, Status=status)
    words = ["broadcast", "push", "roundrobin", "pull", "cache", "paused", "stopped"]
    assert producer.queue()["Status"] == words[status]


def test_queues_of_a_channel_are_listed(producer: Client, numbers: dict[str, int]) -> None:
    """Twino case 30: the whole information of each."""
    producer.create_queue("ch", 9, Tag="red")
    [entry] = producer.json(numbers["list"], "ch")
    assert (entry["Id"], entry["TagName"]) == (9, "red")
    producer.create_queue("ch", 3)
    assert [entry["Id"] for entry in producer.json(QUEUE_LIST, "ch")] == [3, 9]
    assert producer.ask(numbers["list"], "nope").content_type == NOT_FOUND


@pytest.mark.parametrize(
    ("headers", "left"),
    [
        ({"Priority-Messages": "yes", "Messages": "yes"}, (0, 0)),
        ({"Priority-Messages": "yes"}, (0, 3)),
        ({"Messages": "YES"}, (2, 0)),
        ({}, (2, 3)),
    ],
)
def test_only_the_chosen_messages_are_cleared(producer: Client, headers: dict[str, str], left: tuple[int, int]) -> None:
    """Twino case 31."""
    producer.create_queue("ch", 1, Status=PULLED)
    for number in range(5):
        producer.publish(body=b"x", high_priority=number < 2)
    assert producer.ask(CLEAR_MESSAGES, "ch", headers={"Queue-Id": "1"} | headers).content_type == OK
    assert producer.stored() == left
    assert producer.queue()["DroppedMessages"]["erased"] == 5 - sum(left)


def test_bytes_of_the_original_clear_messages(connect: Connect) -> None:
    """Vector V17."""
    client = connect("cli")
    client.create_queue("ch", 7, Status=PULLED)
    client.publish("ch", 7, b"x")
    client.publish("ch", 7, b"x", high_priority=True)
    client.socket.sendall(vector("V17"))
    assert client.receive().content_type == OK
    assert client.stored("ch", 7) == (0, 0)


@pytest.mark.parametrize("operation", ["create", "update", "remove"])
def test_operations_that_only_want_an_acknowledgement_get_one(
    producer: Client, numbers: dict[str, int], operation: str
) -> None:
    if operation != "create":
        producer.create_queue("ch", 1)
    body = b'{"Tag":"red"}' if operation == "update" else b""
    headers = {"Queue-Id": "1"}
    answer = producer.ask(numbers[operation], "ch", headers=headers, body=body, acknowledge=True)
    assert (answer.kind, answer.header("Nack-Reason")) == (ACKNOWLEDGE, None)
    refused = producer.ask(
        numbers[operation],
        "ch" if operation == "create" else "nope",
        headers=headers,
        body=body,
        acknowledge=True,
    )
    assert refused.header("Nack-Reason")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nonsense",
        b"[]",
        b'{"Status":"sideways"}',
        b'{"Status":7}',
        b'{"Status":-1}',
        b'{"MessageLimit":"many"}',
        b'{"MessageTimeout":-5}',
        b'{"RequestAcknowledge":1}',
        b'{"MessageDeliveryHandler":"nobody registered this"}',
        b'{"DeadLetter":"a b/1"}',
        b'{"Tag":"' + b"t" * 300 + b'"}',
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"Tag":' * 10_000,
    ],
    ids=lambda body: body[:24].decode(errors="replace"),
)
def test_options_that_make_no_sense_are_refused_and_nothing_else(producer: Client, body: bytes) -> None:
    """The original closed the connection."""
    answer = producer.ask(CREATE_QUEUE, "ch", headers={"Queue-Id": "1"}, body=body)
    assert answer.content_type == BAD_REQUEST
    assert (answer.payload, bool(answer.header("Reason"))) == (b"", True)
    assert producer.ask(CHANNEL_INFORMATION, "ch").content_type == NOT_FOUND


def test_unknown_options_are_ignored(producer: Client) -> None:
    producer.create_queue("ch", 1, Colour="red", Status=PULLED, Nested={"a": [1]})
    assert producer.queue()["Status"] == "pull"


# --- options at work -----------------------------------------------------------------------------------------


def test_a_full_queue_refuses_messages(producer: Client) -> None:
    producer.create_queue("ch", 1, Status=PULLED, MessageLimit=2)
    for number in range(4):
        producer.publish(body=b"%d" % number, high_priority=number == 1)
    refused = producer.arrived()
    assert [(frame.kind, frame.content_type, frame.target) for frame in refused] == [
        (RESPONSE, LIMIT_EXCEEDED, b"ch")
    ] * 2
    assert producer.stored() == (1, 1)


def test_rejected_message_gets_a_negative_acknowledgement(producer: Client) -> None:
    """Beside the response, which clients of the original do not take for an answer then."""
    producer.create_queue("ch", 1, Status=PULLED, MessageSizeLimit=3)
    message = producer.publish(body=b"1234", confirm=True)
    producer.publish(body=b"123")
    response, acknowledgement = producer.arrived()
    assert (response.kind, response.id, response.content_type) == (RESPONSE, message, LIMIT_EXCEEDED)
    assert (acknowledgement.kind, acknowledgement.id, acknowledgement.content_type) == (ACKNOWLEDGE, message, 1)
    assert acknowledgement.header("Nack-Reason")
    assert producer.stored() == (0, 1)


def test_messages_without_an_id_get_one_of_32_digits(producer: Client, consumer: Client) -> None:
    """Twino case 8, with the option on."""
    producer.create_queue()
    consumer.join()
    for _ in range(2):
        producer.publish(body=b"x", message_id=b"")
    one, other = consumer.receive().id, consumer.receive().id
    for message in (one, other):
        assert len(message) == 32
        int(message, 16)
    assert one != other


def test_messages_without_an_id_get_none_if_the_queue_is_so_configured(producer: Client, consumer: Client) -> None:
    """Twino case 8, with the option off."""
    producer.create_queue("ch", 1, UseMessageId=False)
    consumer.join()
    producer.publish(body=b"x", message_id=b"")
    assert consumer.receive().id == b""


@pytest.mark.parametrize("status", [BROADCAST, PUSH, ROUND_ROBIN])
@pytest.mark.parametrize(("hidden", "source"), [(True, b""), (False, b"prod")])
def test_producer_names_are_hidden_if_configured(
    producer: Client, consumer: Client, status: int, hidden: bool, source: bytes
) -> None:
    """Twino case 48."""
    producer.create_queue("ch", 1, Status=status, HideClientNames=hidden)
    consumer.join()
    producer.publish(body=b"x")
    assert consumer.receive().source == source


def test_high_priority_is_delivered_first_and_each_priority_in_order(producer: Client, consumer: Client) -> None:
    producer.create_queue()
    for number in range(6):
        producer.publish(body=b"%d" % number, high_priority=number % 2 == 1)
    assert producer.stored() == (3, 3)
    consumer.join()
    assert consumer.bodies() == [b"1", b"3", b"5", b"0", b"2", b"4"]


def test_a_message_that_waits_too_long_expires(producer: Client, consumer: Client, eventually: Eventually) -> None:
    producer.create_queue("ch", 1, MessageTimeout=50)
    producer.publish_all([b"old"])
    eventually(lambda: producer.queue()["TimeoutMessages"] == 1)
    consumer.join()
    assert consumer.bodies() == []
    assert producer.queue()["DroppedMessages"]["expired"] == 1


def test_an_expired_message_goes_to_the_dead_letter_queue(producer: Client, eventually: Eventually) -> None:
    producer.create_queue("dead", 2, Status=PULLED)
    producer.create_queue("ch", 1, MessageTimeout=50, DeadLetter="dead/2")
    producer.publish_all([b"old"])
    eventually(lambda: producer.stored("dead", 2) == (0, 1))
    producer.join("dead")
    [message], _ = producer.pull("dead", 2, Count=1)
    assert (message.payload, message.source) == (b"old", b"prod")
    assert message.header("Dead-Letter-Reason") == "expired"
    assert message.header("Dead-Letter-Queue") == "ch/1"


@pytest.mark.parametrize("dead", ["d0", "d1", "d2", "d3", "d4", "d5"])
def test_message_nacked_too_often_is_dead_lettered_on_any_shard(
    start_broker: StartBroker, connect: Connect, eventually: Eventually, dead: str
) -> None:
    broker = start_broker(shards=4)
    producer, consumer = connect("prod", to=broker), connect("c1", to=broker)
    producer.create_queue(dead, 7)
    producer.create_queue("ch", 1, RequestAcknowledge=True, PutBackLimit=2, DeadLetter=f"{dead}/7")
    consumer.join("ch")
    mourner = connect("mourner", to=broker)
    mourner.join(dead)
    producer.publish(body=b"bad", headers=[("Own", "1")])
    for _ in range(3):
        consumer.acknowledge(consumer.receive(), "bad")
    frame = mourner.receive()
    assert (frame.target, frame.content_type, frame.payload) == (dead.encode(), 7, b"bad")
    assert [frame.header(f"Dead-Letter-{key}") for key in ("Reason", "Queue", "Attempts", "Error")] == [
        "limit",
        "ch/1",
        "3",
        "bad",
    ]
    assert frame.header("Own") == "1"
    eventually(lambda: producer.queue()["DeadLetteredMessages"] == 1)
    assert producer.queue()["PutBackMessages"] == 2


def test_message_nacked_too_often_is_dropped_if_its_option_is_drop(
    producer: Client, consumer: Client, eventually: Eventually
) -> None:
    """The default limit is 16: one delivery and sixteen redeliveries."""
    producer.create_queue("ch", 1, RequestAcknowledge=True, DeadLetter="drop")
    consumer.join()
    producer.publish(body=b"bad")
    for _ in range(17):
        consumer.acknowledge(consumer.receive(), "bad")
    eventually(lambda: producer.queue()["DroppedMessages"]["limit"] == 1)
    assert consumer.bodies() == []
    assert producer.queue()["NegativeAcks"] == 17


def test_requeue_limit_of_zero_means_one_attempt(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, RequestAcknowledge=True, PutBackLimit=0)
    consumer.join()
    producer.publish(body=b"bad")
    consumer.acknowledge(consumer.receive(), "bad")
    assert consumer.bodies() == []
    assert producer.queue()["DeadLetteredMessages"] == 1
    assert producer.queue("ch", 65535)["Messages"] == 1


def test_dead_letter_queue_that_does_not_exist_is_refused(producer: Client) -> None:
    answer = producer.ask(CREATE_QUEUE, "ch", headers={"Queue-Id": "1"}, body=b'{"DeadLetter":"missing/1"}')
    assert answer.content_type == NOT_FOUND
    assert "missing/1 does not exist" in (answer.header("Reason") or "")


def test_messages_of_three_kinds_are_preloaded_and_arrive_in_order(producer: Client, connect: Connect) -> None:
    """Twino case 34: JSON, text and bytes, in a queue each, for two consumers each."""
    contents = {
        1: [json.dumps({"Number": number}).encode() for number in range(50)],
        2: [f"text {number} ş".encode() for number in range(50)],
        3: [bytes((number,)) * number for number in range(50)],
    }
    for queue, bodies in contents.items():
        producer.create_queue("ch", queue)
        producer.publish_all(bodies, "ch", queue)
    first, late = connect(), connect()
    producer.create_channel("other")
    first.join()
    received: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    for frame in first.arrived():
        received[frame.content_type].append(frame.payload)
    assert received == contents
    late.join()
    assert late.bodies() == []


# --- every change of status, with messages and consumers there -------------------------------------------------

KEEPS = {PUSH, ROUND_ROBIN, PULLED, PAUSED}
DRAINS = {BROADCAST, PUSH, ROUND_ROBIN}


@pytest.mark.parametrize("after", range(7))
@pytest.mark.parametrize("before", [PULLED, PAUSED, CACHE])
def test_stored_messages_follow_a_change_of_status(producer: Client, consumer: Client, before: int, after: int) -> None:
    """From statuses that hold messages although a consumer is there, into each other status."""
    producer.create_queue("ch", 1, Status=before)
    consumer.join()
    producer.publish_all([b"1", b"2", b"3"])
    held = [b"3"] if before == CACHE else [b"1", b"2", b"3"]
    assert producer.stored() == (0, len(held))
    producer.update_queue(Status=after)
    if after in DRAINS:
        assert consumer.bodies() == held
        assert producer.stored() == (0, 0)
    elif after == STOPPED:
        assert consumer.bodies() == []
        assert producer.stored() == (0, 0)
    elif after == CACHE:
        assert producer.stored() == (0, 1)
        request = consumer.request_pull(Count=1)
        assert consumer.answer(request).payload == b"3"
    elif after == PULLED:
        messages, word = consumer.pull(Count=9)
        assert ([message.payload for message in messages], word) == (held, "End")
    else:
        assert consumer.bodies() == []
        assert producer.stored() == (0, len(held))


@pytest.mark.parametrize("after", range(7))
@pytest.mark.parametrize("before", [PUSH, ROUND_ROBIN])
def test_messages_that_waited_for_a_consumer_follow_a_change_of_status(
    producer: Client, consumer: Client, before: int, after: int
) -> None:
    """From statuses that hold messages only while there is no consumer; then a consumer joins."""
    producer.create_queue("ch", 1, Status=before)
    producer.publish_all([b"1", b"2"])
    assert producer.stored() == (0, 2)
    producer.update_queue(Status=after)
    consumer.join()
    handed = consumer.bodies()
    if after in DRAINS:
        assert handed == [b"1", b"2"]
    else:
        assert handed == []
        kept = {STOPPED: 0, CACHE: 1}.get(after, 2)
        assert producer.stored() == (0, kept)


@pytest.mark.parametrize("after", range(7))
@pytest.mark.parametrize("before", range(7))
def test_new_messages_are_treated_as_the_new_status_says(
    producer: Client, consumer: Client, before: int, after: int
) -> None:
    """All 49 changes: what is published afterwards depends on nothing but the status of now."""
    producer.create_queue("ch", 1, Status=before)
    consumer.join()
    producer.update_queue(Status=after)
    message = producer.publish(body=b"new")
    answers = producer.arrived()
    bodies = consumer.bodies()
    if after == STOPPED:
        assert [(frame.kind, frame.id, frame.content_type) for frame in answers] == [(RESPONSE, message, UNAUTHORIZED)]
    else:
        assert answers == []
    assert bodies == ([b"new"] if after in DRAINS else [])
    assert producer.stored() == ((0, 1) if after in {PULLED, CACHE, PAUSED} else (0, 0))


@pytest.mark.parametrize("after", range(7))
def test_messages_in_flight_survive_every_change_but_to_stopped(
    producer: Client, consumer: Client, eventually: Eventually, after: int
) -> None:
    """A refusal that comes after the change puts the message back into what the queue is now."""
    producer.create_queue("ch", 1, Status=PUSH, RequestAcknowledge=True)
    consumer.join()
    producer.publish(body=b"flying")
    delivery = consumer.receive()
    producer.update_queue(Status=after)
    consumer.acknowledge(delivery, "again")
    bodies = consumer.bodies()
    stored = producer.stored()
    if after in {PUSH, ROUND_ROBIN}:
        assert (bodies, stored) == ([b"flying"], (0, 0))
    elif after in {PULLED, PAUSED, CACHE}:
        assert (bodies, stored) == ([], (0, 1))
    else:
        # A broadcast cannot be requeued, and a stopped queue holds nothing; both are counted.
        assert (bodies, stored) == ([], (0, 0))
        reason = "erased" if after == STOPPED else "no-consumer"
        assert producer.queue()["DroppedMessages"][reason] == 1


def test_paused_queue_accepts_messages_and_delivers_none(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, Status=PAUSED)
    consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    assert producer.answer(message, (ACKNOWLEDGE,)).header("Nack-Reason") is None
    assert consumer.bodies() == []
    assert consumer.pull(Count=1) == ([], "Unacceptable")
    assert producer.stored() == (0, 1)


def test_a_stopped_queue_can_run_again(producer: Client, consumer: Client) -> None:
    producer.create_queue("ch", 1, Status=STOPPED)
    consumer.join()
    message = producer.publish(body=b"refused", confirm=True)
    assert producer.receive().content_type == UNAUTHORIZED
    assert producer.answer(message, (ACKNOWLEDGE,)).header("Nack-Reason")
    assert consumer.pull(Count=1) == ([], "Unacceptable")
    producer.update_queue(Status=PUSH)
    producer.publish(body=b"taken")
    assert consumer.receive().payload == b"taken"


# --- copies --------------------------------------------------------------------------------------------------


def test_a_copy_carries_its_own_channel_and_queue(producer: Client, connect: Connect) -> None:
    """Twino case 117: vector V45 with the target and the queue that are the copy's own."""
    first, second = connect("c1"), connect("c2")
    producer.create_queue("ch-pull", 7)
    producer.create_queue("ch-push", 1)
    first.join("ch-pull")
    second.join("ch-push")
    producer.publish("ch-pull", 7, b"cc", headers=[("CC", "ch-push;1;ccid"), ("Own", "1")])
    original = first.receive()
    assert original.headers == [("CC", "ch-push;1;ccid"), ("Own", "1")]
    second.receive()
    assert (
        second.raw
        == RawFrame(
            kind=QUEUE,
            id=b"ccid",
            source=b"prod",
            target=b"ch-push",
            content_type=1,
            payload=b"cc",
            headers=[("Own", "1")],
            first_acquirer=True,
            hops=16,
        ).encode()
    )


def test_copy_without_other_headers_matches_the_bytes_of_the_original_in_its_own_queue(
    producer: Client, connect: Connect
) -> None:
    """Vector V45, in which only the bytes of the target are corrected: both names are as long."""
    consumer = connect("c2")
    producer.create_queue("ch-pull", 1)
    producer.create_queue("ch-push", 1)
    consumer.join("ch-push")
    producer.publish("ch-pull", 1, b"cc", headers=[("CC", "ch-push;1;ccid")])
    consumer.receive()
    assert consumer.raw == vector("V45").replace(b"ch-pull", b"ch-push")


def test_omitted_options_of_a_copy_are_filled_in(producer: Client, connect: Connect) -> None:
    consumer = connect("c1")
    for channel in ("ch", "a", "b"):
        producer.create_queue(channel, 5)
    producer.create_queue("b", 6)
    consumer.join("a")
    consumer.join("b")
    producer.publish("ch", 5, b"x", headers=[("cc", "a"), ("Cc", " b ; 6 ")], message_id=b"mine")
    producer.arrived()
    frames = {frame.target: frame for frame in consumer.arrived("a") + consumer.arrived("b")}
    assert (frames[b"a"].content_type, frames[b"b"].content_type) == (5, 6)
    for frame in frames.values():
        assert len(frame.id) == 32
        assert frame.header("cc") is None


def test_an_impossible_copy_is_refused_and_harms_neither_message_nor_producer(
    producer: Client, consumer: Client
) -> None:
    """The original disconnected the producer."""
    producer.create_queue()
    consumer.join()
    copies = ["nope", "nope;1;nid", "ch;x", "a b", "ch;99", ""]
    producer.publish(body=b"x", headers=[("CC", copy) for copy in copies])
    assert consumer.receive().payload == b"x"
    # The copies that broker parts refuse may be answered later than those that are refused at once.
    codes = sorted(producer.receive().content_type for _ in copies)
    assert codes == [BAD_REQUEST] * 3 + [NOT_FOUND] * 3
    assert producer.lives()
