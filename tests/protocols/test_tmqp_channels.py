"""Channels over the network: created, found, shown, joined, left, limited, removed."""

from __future__ import annotations

import json
from typing import Any

import pytest

import mqcore
from protocols.conversation import (
    ACKNOWLEDGE,
    ALREADY_EXISTS,
    BAD_REQUEST,
    CHANNEL_CONSUMERS,
    CHANNEL_INFORMATION,
    CHANNEL_LIST,
    CREATE_CHANNEL,
    CREATE_QUEUE,
    JOIN,
    LEAVE,
    LIMIT_EXCEEDED,
    NOT_FOUND,
    OK,
    PULLED,
    REMOVE_CHANNEL,
    RESPONSE,
    SERVER,
    UNACCEPTABLE,
    Client,
    Connect,
    Eventually,
    StartBroker,
    vector,
)
from tmqp_peer import RawFrame

NUMBERS = {
    "program": {"join": 601, "leave": 602, "create": 603, "remove": 604, "information": 605, "list": 606},
    "document": {"join": 110, "leave": 111, "create": 101, "remove": 103, "information": 105, "list": 104},
}


@pytest.fixture(params=["program", "document"])
def numbers(request: pytest.FixtureRequest) -> dict[str, int]:
    """The two sets of operation numbers in use."""
    return NUMBERS[request.param]


def consumers(client: Client, channel: str = "ch") -> list[str]:
    return [entry["Id"] for entry in client.json(CHANNEL_CONSUMERS, channel)]


def channels(client: Client) -> list[str]:
    return [entry["Name"] for entry in client.json(CHANNEL_LIST)]


# --- joining and leaving -------------------------------------------------------------------------------------


def test_a_client_joins_without_an_answer(producer: Client, connect: Connect) -> None:
    """Twino case 16, vector V09."""
    client = connect("cli")
    producer.create_channel()
    client.socket.sendall(vector("V09"))
    assert client.arrived() == []
    assert consumers(producer) == ["cli"]


def test_a_client_joins_with_an_answer(producer: Client, consumer: Client, numbers: dict[str, int]) -> None:
    """Twino case 17, in the bytes of vector V11."""
    producer.create_channel()
    consumer.send(
        RawFrame(
            kind=SERVER,
            id=b"j1",
            source=b"c1",
            target=b"ch",
            content_type=numbers["join"],
            pending_response=True,
        )
    )
    consumer.receive()
    assert consumer.raw == vector("V11")
    assert consumers(producer) == ["c1"]


def test_joining_what_does_not_exist_is_answered_as_not_found(connect: Connect) -> None:
    """Vector V12; we add the reason as a header, which the original's clients do not look at."""
    client = connect("c1")
    client.send(RawFrame(kind=SERVER, id=b"j3", target=b"nope", content_type=JOIN, pending_response=True))
    answer = client.receive()
    assert "nope" in (answer.header("Reason") or "")
    answer.headers = []
    assert answer.encode() == vector("V12")


@pytest.mark.parametrize("operation", [605, 607, 615, 616])
def test_a_refused_query_has_the_bytes_of_the_original_but_for_the_reason(connect: Connect, operation: int) -> None:
    """The .NET client parses every body of an answer to these as JSON, and throws if it is a sentence."""
    client = connect("c1")
    headers = {"Queue-Id": "1"} if operation == 615 else {}
    answer = client.ask(operation, "nope", headers=headers)
    assert "nope" in (answer.header("Reason") or "")
    assert answer.payload == b""
    answer.headers = []
    identity = answer.id
    # Vector V12 with another id: type 0x14, TTL 16, target c1, status 404, no body.
    assert answer.encode() == bytes([0x14, 0x10, len(identity), 0, 2, 0x94, 0x01, 0]) + identity + b"c1"


def test_joining_twice_is_joining_once(producer: Client, consumer: Client) -> None:
    producer.create_channel()
    consumer.join()
    consumer.join()
    assert consumers(producer) == ["c1"]


def test_a_client_leaves_without_an_answer(producer: Client, consumer: Client) -> None:
    """Twino case 18."""
    producer.create_channel()
    consumer.join()
    consumer.send(RawFrame(kind=SERVER, id=b"l", target=b"ch", content_type=LEAVE))
    assert consumer.arrived() == []
    assert consumers(producer) == []


def test_a_client_leaves_with_an_answer(producer: Client, consumer: Client, numbers: dict[str, int]) -> None:
    """Twino case 19."""
    producer.create_channel()
    consumer.join()
    assert consumer.ask(numbers["leave"], "ch").content_type == OK
    assert consumers(producer) == []
    assert consumer.ask(numbers["leave"], "ch").content_type == NOT_FOUND
    assert consumer.ask(numbers["leave"], "nope").content_type == NOT_FOUND


def test_a_client_whose_connection_ends_leaves_its_channels(
    producer: Client, consumer: Client, eventually: Eventually
) -> None:
    producer.create_channel("one")
    producer.create_channel("two")
    consumer.join("one")
    consumer.join("two")
    consumer.close()
    eventually(lambda: consumers(producer, "one") == [] and consumers(producer, "two") == [])


def test_a_client_that_left_gets_no_messages_any_more(producer: Client, consumer: Client) -> None:
    producer.create_queue()
    consumer.join()
    producer.publish(body=b"1")
    assert consumer.receive().payload == b"1"
    consumer.leave()
    producer.publish_all([b"2"])
    assert consumer.arrived() == []
    assert producer.stored() == (0, 1)


@pytest.mark.parametrize("operation", ["join", "leave", "create", "remove"])
def test_operations_that_only_want_an_acknowledgement_get_one(
    producer: Client, connect: Connect, numbers: dict[str, int], operation: str
) -> None:
    """As the document has it; negative when the same is tried once more, or on what does not exist."""
    client = connect("cli")
    if operation != "create":
        client.create_channel()
    if operation == "leave":
        client.join()
    answer = client.ask(numbers[operation], "ch", acknowledge=True)
    assert (answer.kind, answer.header("Nack-Reason")) == (ACKNOWLEDGE, None)
    if operation == "create":
        refused = client.ask(numbers[operation], "ch", acknowledge=True)
    else:
        refused = client.ask(numbers[operation], "nope", acknowledge=True)
    assert refused.header("Nack-Reason")
    assert not refused.high_priority


def test_an_operation_that_wants_no_answer_gets_none(producer: Client) -> None:
    producer.send(RawFrame(kind=SERVER, id=b"c", target=b"ch", content_type=CREATE_CHANNEL))
    producer.send(RawFrame(kind=SERVER, id=b"d", target=b"ch", content_type=CREATE_CHANNEL))
    assert producer.arrived() == []
    assert channels(producer) == ["ch"]


# --- creating and removing -----------------------------------------------------------------------------------


def test_a_channel_is_created(producer: Client, numbers: dict[str, int]) -> None:
    """Twino case 20."""
    answer = producer.ask(numbers["create"], "ch")
    assert (answer.content_type, answer.target, answer.source) == (OK, b"prod", b"")
    assert channels(producer) == ["ch"]


def test_creating_a_channel_that_exists_is_answered_as_a_duplicate(producer: Client, numbers: dict[str, int]) -> None:
    """Twino case 120: the original said nothing. Names are the same whatever their case."""
    producer.create_channel()
    for name in ("ch", "CH"):
        assert producer.ask(numbers["create"], name).content_type == ALREADY_EXISTS
    assert channels(producer) == ["ch"]


def test_a_channel_is_removed(producer: Client, numbers: dict[str, int]) -> None:
    """Twino case 21."""
    producer.create_channel()
    assert producer.ask(numbers["remove"], "ch").content_type == OK
    assert channels(producer) == []
    assert producer.ask(numbers["remove"], "ch").content_type == NOT_FOUND


def test_a_removed_channel_takes_its_queues_and_messages_along(producer: Client, consumer: Client) -> None:
    producer.create_queue()
    producer.publish_all([b"old"])
    producer.do(REMOVE_CHANNEL, "ch")
    producer.create_queue()
    consumer.join()
    producer.arrived()
    assert consumer.arrived() == []
    assert producer.stored() == (0, 0)


def test_members_of_a_removed_channel_stay_connected_and_may_join_the_next(producer: Client, consumer: Client) -> None:
    producer.create_channel()
    consumer.join()
    producer.do(REMOVE_CHANNEL, "ch")
    producer.create_queue()
    assert consumers(producer) == []
    producer.publish(body=b"x")
    consumer.join()
    assert consumer.receive().payload == b"x"


@pytest.mark.parametrize("name", ["a@b", "a b", "a;b", "a*b", "@name:x", "a\tb", "a\r\nX: y", "\x00"])
@pytest.mark.parametrize("operation", [CREATE_CHANNEL, JOIN, CREATE_QUEUE])
def test_names_with_forbidden_characters_are_refused_and_nothing_else(
    producer: Client, name: str, operation: int
) -> None:
    answer = producer.ask(operation, name, headers={"Queue-Id": "1"})
    assert answer.content_type == BAD_REQUEST
    assert channels(producer) == []


def test_name_may_have_255_bytes(producer: Client, consumer: Client) -> None:
    name = "n" * 255
    producer.create_queue(name)
    consumer.join(name)
    producer.publish(name, 1, b"x")
    assert consumer.receive().target == name.encode()


def test_name_with_invalid_utf8_is_rejected(producer: Client) -> None:
    producer.send(
        RawFrame(kind=SERVER, id=b"u", target=b"\xff\xfe", content_type=CREATE_CHANNEL, pending_response=True)
    )
    assert producer.receive().content_type == BAD_REQUEST


def test_an_empty_name_is_refused(producer: Client) -> None:
    for operation in (CREATE_CHANNEL, JOIN, LEAVE, REMOVE_CHANNEL, CHANNEL_INFORMATION):
        assert producer.ask(operation).content_type == BAD_REQUEST


def test_a_channel_is_found_in_any_case_and_keeps_the_name_of_its_creator(producer: Client, consumer: Client) -> None:
    producer.create_queue("Orders")
    consumer.join("ORDERS")
    assert consumers(producer, "orders") == ["c1"]
    producer.publish("oRDERS", 1, b"x")
    assert consumer.receive().target == b"Orders"


# --- information ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["header", "target"])
@pytest.mark.parametrize("number", ["program", "document"])
def test_channels_are_listed_by_name(producer: Client, place: str, number: str) -> None:
    """Twino case 23: no filter, the exact name, and with stars; the filter as a header or as the target."""
    for name in ("ch-push", "ch-pull", "other"):
        producer.create_channel(name)
    operation = NUMBERS[number]["list"]

    def listed(pattern: str) -> list[str]:
        if place == "header":
            models = producer.json(operation, headers={"Channel-Name": pattern})
        else:
            models = producer.json(operation, pattern)
        return [model["Name"] for model in models]

    assert listed("") == ["ch-pull", "ch-push", "other"]
    assert listed("ch-push") == ["ch-push"]
    assert listed("CH-PUSH") == ["ch-push"]
    assert listed("*h-pu*") == ["ch-pull", "ch-push"]
    assert listed("*H-PUS*") == ["ch-push"]
    assert listed("ch*") == ["ch-pull", "ch-push"]
    assert listed("*er") == ["other"]
    assert listed("none*") == []


def test_channel_list_matches_the_vector(connect: Connect) -> None:
    """Vector V18 asks for `*x*`."""
    client = connect("cli")
    client.create_channel("axb")
    client.create_channel("ab")
    client.socket.sendall(vector("V18"))
    answer = client.receive()
    assert (answer.kind, answer.id, answer.target, answer.content_type) == (RESPONSE, b"id-014", b"cli", OK)
    assert [model["Name"] for model in json.loads(answer.payload)] == ["axb"]


def test_channel_information_has_the_members_of_the_original_in_their_order(
    producer: Client, consumer: Client, numbers: dict[str, int]
) -> None:
    """Twino case 24."""
    producer.create_queue("ch", 7)
    producer.create_queue("ch", 3)
    consumer.join()
    information = producer.json(numbers["information"], "ch")
    members = list(information)
    original, own = members[:15], members[15:]
    assert {name: information[name] for name in original} == {
        "Name": "ch",
        "Queues": [3, 7],
        "AllowMultipleQueues": True,
        "AllowedQueues": None,
        "OnlyFirstAcquirer": False,
        "RequestAcknowledge": False,
        "AcknowledgeTimeout": 15_000,
        "MessageTimeout": 0,
        "UseMessageId": True,
        "WaitForAcknowledge": False,
        "HideClientNames": False,
        "ActiveClients": 1,
        "ClientLimit": 0,
        "QueueLimit": 0,
        "DestroyWhenEmpty": False,
    }
    assert original == [
        "Name",
        "Queues",
        "AllowMultipleQueues",
        "AllowedQueues",
        "OnlyFirstAcquirer",
        "RequestAcknowledge",
        "AcknowledgeTimeout",
        "MessageTimeout",
        "UseMessageId",
        "WaitForAcknowledge",
        "HideClientNames",
        "ActiveClients",
        "ClientLimit",
        "QueueLimit",
        "DestroyWhenEmpty",
    ]
    assert own[:4] == ["ChannelEventHandler", "Authenticator", "Status", "MessageLimit"]
    assert producer.ask(numbers["information"], "nope").content_type == NOT_FOUND


def test_consumers_of_a_channel_are_listed_in_the_order_of_joining(producer: Client, connect: Connect) -> None:
    producer.create_channel()
    for client_id in ("b", "a", "c"):
        connect(client_id, Client_Name=f"n-{client_id}").join()
    models = producer.json(CHANNEL_CONSUMERS, "ch")
    assert [(model["Id"], model["Name"]) for model in models] == [("b", "n-b"), ("a", "n-a"), ("c", "n-c")]
    assert list(models[0]) == ["Id", "Name", "Type", "Online", "IsAuthenticated"]
    assert producer.ask(CHANNEL_CONSUMERS, "nope").content_type == NOT_FOUND


# --- options -------------------------------------------------------------------------------------------------


def test_options_of_a_new_channel_are_applied(producer: Client) -> None:
    """Twino case 22, and every other option of a channel."""
    options: dict[str, Any] = {
        "AllowMultipleQueues": False,
        "SendOnlyFirstAcquirer": True,
        "AllowedQueues": [1, 2],
        "RequestAcknowledge": True,
        "AcknowledgeTimeout": 33_000,
        "MessageTimeout": 44_000,
        "UseMessageId": False,
        "WaitForAcknowledge": True,
        "HideClientNames": True,
        "ClientLimit": 3,
        "QueueLimit": 4,
        "DestroyWhenEmpty": False,
    }
    producer.create_channel(**options)
    information = producer.json(CHANNEL_INFORMATION, "ch")
    options["OnlyFirstAcquirer"] = options.pop("SendOnlyFirstAcquirer")
    assert {name: information[name] for name in options} == options


def test_queues_inherit_the_options_of_their_channel(producer: Client) -> None:
    producer.create_channel(Status=PULLED, HideClientNames=True, MessageLimit=9, AcknowledgeTimeout=7000, Tag="t")
    producer.create_queue("ch", 1)
    producer.create_queue("ch", 2, HideClientNames=False, MessageLimit=5)
    inherits, differs = producer.queue("ch", 1), producer.queue("ch", 2)
    names = ("Status", "HideClientNames", "MessageLimit", "AcknowledgeTimeout", "TagName")
    assert [inherits[name] for name in names] == ["pull", True, 9, 7000, "t"]
    assert [differs[name] for name in names] == ["pull", False, 5, 7000, "t"]


def test_channels_inherit_the_options_of_the_broker(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(
        channel=mqcore.ChannelOptions(
            client_limit=5, queue=mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, request_acknowledge=True)
        )
    )
    client = connect("cli", to=broker)
    client.create_queue()
    information = client.json(CHANNEL_INFORMATION, "ch")
    assert (information["ClientLimit"], information["RequestAcknowledge"]) == (5, True)
    queue = client.queue()
    assert (queue["Status"], queue["RequestAcknowledge"]) == ("pull", True)


def test_a_channel_takes_as_many_clients_as_its_limit(producer: Client, connect: Connect) -> None:
    producer.create_channel(ClientLimit=2)
    first, second, third = (connect(f"c{number}") for number in range(3))
    first.join()
    second.join()
    assert third.ask(JOIN, "ch").content_type == LIMIT_EXCEEDED
    first.leave()
    third.join()
    assert consumers(producer) == ["c1", "c2"]


def test_a_channel_takes_as_many_queues_as_its_limit(producer: Client) -> None:
    producer.create_channel(QueueLimit=2)
    producer.create_queue("ch", 1)
    producer.create_queue("ch", 2)
    assert producer.ask(CREATE_QUEUE, "ch", headers={"Queue-Id": "3"}).content_type == LIMIT_EXCEEDED
    assert producer.json(CHANNEL_INFORMATION, "ch")["Queues"] == [1, 2]


def test_a_channel_for_one_queue_refuses_a_second(producer: Client) -> None:
    """Twino case 32."""
    producer.create_channel(AllowMultipleQueues=False)
    producer.create_queue("ch", 1)
    assert producer.ask(CREATE_QUEUE, "ch", headers={"Queue-Id": "2"}).content_type == UNACCEPTABLE
    assert producer.json(CHANNEL_INFORMATION, "ch")["Queues"] == [1]


def test_a_queue_that_its_channel_does_not_allow_is_refused(producer: Client) -> None:
    """Twino case 33."""
    producer.create_channel(AllowedQueues=[10, 20])
    producer.create_queue("ch", 10)
    assert producer.ask(CREATE_QUEUE, "ch", headers={"Queue-Id": "11"}).content_type == UNACCEPTABLE
    assert producer.json(CHANNEL_INFORMATION, "ch")["Queues"] == [10]


@pytest.mark.parametrize("allowed", [None, []])
def test_a_channel_that_names_no_allowed_queues_allows_all(producer: Client, allowed: list[int] | None) -> None:
    producer.create_channel(AllowedQueues=allowed)
    producer.create_queue("ch", 65535)
    assert producer.json(CHANNEL_INFORMATION, "ch")["AllowedQueues"] is None


def test_a_channel_that_wants_to_goes_when_its_last_client_leaves(producer: Client, consumer: Client) -> None:
    producer.create_channel(DestroyWhenEmpty=True)
    producer.create_queue()
    consumer.join()
    consumer.leave()
    assert channels(producer) == []


def test_a_channel_with_messages_stays_when_its_last_client_leaves(producer: Client, consumer: Client) -> None:
    producer.create_channel(DestroyWhenEmpty=True)
    producer.create_queue("ch", 1, Status=PULLED)
    consumer.join()
    producer.publish_all([b"kept"])
    consumer.leave()
    assert producer.stored() == (0, 1)
    consumer.join()
    messages, word = consumer.pull(Count=1)
    assert ([message.payload for message in messages], word) == ([b"kept"], "End")
    consumer.leave()
    assert channels(producer) == []


def test_a_channel_goes_with_the_connection_of_its_last_client(
    producer: Client, consumer: Client, eventually: Eventually
) -> None:
    producer.create_channel(DestroyWhenEmpty=True)
    consumer.join()
    consumer.close()
    eventually(lambda: channels(producer) == [])


def test_channel_without_clients_stays(producer: Client) -> None:
    producer.create_channel(DestroyWhenEmpty=True)
    producer.create_queue()
    assert channels(producer) == ["ch"]


@pytest.mark.parametrize("creates", [True, False])
def test_joining_a_missing_channel_creates_it_with_auto_create(
    start_broker: StartBroker, connect: Connect, creates: bool
) -> None:
    broker = start_broker(auto_create_channels=creates, auto_create_queues=creates)
    client = connect("cli", to=broker)
    answer = client.ask(JOIN, "fresh")
    assert answer.content_type == (OK if creates else NOT_FOUND)
    message = client.publish("fresh", 5, b"x")
    if creates:
        assert client.receive().payload == b"x"
        assert client.json(CHANNEL_INFORMATION, "fresh")["Queues"] == [5]
    else:
        assert client.answer(message).content_type == NOT_FOUND


def test_there_are_as_many_channels_as_the_broker_allows(start_broker: StartBroker, connect: Connect) -> None:
    client = connect("cli", to=start_broker(channel_limit=2, shards=1))
    codes = [client.ask(CREATE_CHANNEL, f"ch{number}").content_type for number in range(3)]
    assert codes == [OK, OK, LIMIT_EXCEEDED]


def test_channels_of_all_shards_are_listed_together(start_broker: StartBroker, connect: Connect) -> None:
    client = connect("cli", to=start_broker(shards=4))
    names = [f"ch{number:02}" for number in range(40)]
    for name in names:
        client.create_channel(name)
    assert channels(client) == names
