"""Routers and bindings: who gets a message, under which id, and what its producer hears; and the operations on them."""

from __future__ import annotations

import json

import pytest

import mqcore
from protocols.conversation import (
    ACKNOWLEDGE,
    ADD_BINDING,
    ALREADY_EXISTS,
    BAD_REQUEST,
    BINDING_LIST,
    CREATE_ROUTER,
    DIRECT,
    NOT_FOUND,
    OK,
    PUSH,
    QUEUE,
    REMOVE_BINDING,
    REMOVE_ROUTER,
    RESPONSE,
    ROUTER,
    ROUTER_LIST,
    TEST_ROUTE,
    UNACCEPTABLE,
    Client,
    Connect,
    StartBroker,
    vector,
)
from tmqp_peer import RawFrame

DISTRIBUTE, ROUND_ROBIN, ONLY_FIRST = range(3)
ACKNOWLEDGED, RESPONDED = 1, 2
DIRECT_BINDING, QUEUE_BINDING = range(2)


@pytest.fixture
def first(connect: Connect) -> Client:
    """A client called `c1`."""
    return connect("c1", Client_Name="one", Client_Type="sink")


@pytest.fixture
def second(connect: Connect) -> Client:
    """A client called `c2`."""
    return connect("c2", Client_Name="two", Client_Type="sink")


@pytest.fixture
def queues(producer: Client) -> list[str]:
    """Two pull queues of two channels."""
    for channel in ("a", "b"):
        producer.create_queue(channel, 1, Status="pull")
    return ["a/1", "b/1"]


def direct(client: Client) -> list[RawFrame]:
    """The direct messages that have arrived."""
    client.ask(BINDING_LIST, "r")
    return [frame for frame in client.arrived("a") if frame.kind == DIRECT]


def reason(frame: RawFrame) -> str | None:
    return frame.header("Nack-Reason")


def test_distribute_gives_every_binding_every_message(
    producer: Client, first: Client, second: Client, queues: list[str]
) -> None:
    """Twino case 68."""
    producer.create_router("r", DISTRIBUTE)
    for target in (*queues, "@client:c1", "@client:c2"):
        producer.bind("r", target)
    for number in range(4):
        answer = producer.routed("r", b"%d" % number)
        assert (answer.target, reason(answer)) == (b"r", None)
    assert [producer.stored("a"), producer.stored("b")] == [(0, 4), (0, 4)]
    for client in (first, second):
        frames = direct(client)
        assert [frame.payload for frame in frames] == [b"0", b"1", b"2", b"3"]
        assert {frame.source for frame in frames} == {b"prod"}


def test_round_robin_gives_each_binding_its_turn_by_priority(
    producer: Client, first: Client, second: Client, queues: list[str]
) -> None:
    """Twino case 69."""
    producer.create_router("r", ROUND_ROBIN)
    for priority, target in enumerate((queues[0], queues[1], "@client:c1", "@client:c2")):
        producer.bind("r", target, Priority=10 + priority)
    for number in range(5):
        assert reason(producer.routed("r", b"%d" % number)) is None
    assert [frame.payload for frame in direct(second)] == [b"0", b"4"]
    assert [frame.payload for frame in direct(first)] == [b"1"]
    assert [producer.stored("b"), producer.stored("a")] == [(0, 1), (0, 1)]


def test_only_first_gives_all_to_the_highest_priority_while_it_takes_them(
    producer: Client, first: Client, second: Client, queues: list[str]
) -> None:
    """Twino case 70."""
    producer.create_router("r", "OnlyFirst")
    for priority, target in enumerate((queues[0], queues[1], "@client:c2", "@client:c1")):
        producer.bind("r", target, Priority=priority)
    for number in range(4):
        producer.routed("r", b"%d" % number)
    assert len(direct(first)) == 4
    assert (direct(second), producer.stored("a"), producer.stored("b")) == ([], (0, 0), (0, 0))
    first.close()
    producer.ask(ROUTER_LIST)
    while not producer.json(TEST_ROUTE, "r")["Steps"][-1]["Target"].endswith("c2"):
        pass
    producer.routed("r", b"next")
    assert [frame.payload for frame in direct(second)] == [b"next"]


def test_several_queues_get_a_message_each_under_an_id_of_its_own(producer: Client, queues: list[str]) -> None:
    """Twino case 71."""
    producer.create_router("r")
    for target in queues:
        producer.bind("r", target)
    message = producer.routed("r", b"x", headers=[("A", "1")])
    ids = set()
    for channel in ("a", "b"):
        producer.join(channel)
        (frame,), _ = producer.pull(channel, Count=1)
        assert (frame.payload, frame.source, frame.header("A"), frame.content_type) == (b"x", b"prod", "1", 1)
        ids.add(frame.id)
    assert len(ids | {message.id}) == 3


def test_several_clients_get_a_message_each(producer: Client, first: Client, second: Client) -> None:
    """Twino case 72: by id, by name, by type."""
    producer.create_router("r")
    for target in ("c1", "@name:two", "@type:sink"):
        producer.bind("r", target, BindingType=DIRECT_BINDING)
    assert reason(producer.routed("r", b"x")) is None
    assert [frame.target for frame in direct(first)] == [b"c1", b"@type:sink"]
    assert [frame.target for frame in direct(second)] == [b"@name:two", b"@type:sink"]


def test_route_without_connected_clients_gets_an_answer(producer: Client) -> None:
    """Twino case 73."""
    producer.create_router("r")
    assert reason(producer.routed("r")) == "no-consumers"
    for target in ("c8", "c9"):
        producer.bind("r", target, BindingType=DIRECT_BINDING, Interaction=RESPONDED)
    assert reason(producer.routed("r")) == "no-consumers"
    message = producer.route("r", pending_response=True)
    answer = producer.answer(message)
    assert (answer.content_type, answer.payload) == (NOT_FOUND, b"")
    assert answer.header("Reason") == "no binding of router r took the message"


def test_a_publish_to_a_router_that_does_not_exist_is_acknowledged_negatively(connect: Connect) -> None:
    """Twino case 73, without a router: vector V41, and the response to who waits for one."""
    client = connect("cli")
    data = vector("V41")
    client.send(RawFrame(kind=ROUTER, id=data[8:10], target=b"zzz", pending_acknowledge=True))
    client.receive()
    # The original sets no bit of the first byte; only whether it is an acknowledgement counts there.
    assert client.raw == data
    client.send(RawFrame(kind=ROUTER, id=b"S4", target=b"zzz", pending_response=True))
    answer = client.receive()
    assert (answer.kind, answer.id, answer.content_type) == (RESPONSE, b"S4", NOT_FOUND)
    client.send(RawFrame(kind=ROUTER, id=b"S5", target=b"zzz"))
    assert client.arrived() == []


def test_a_queue_and_a_client_get_a_message(producer: Client, first: Client, queues: list[str]) -> None:
    """Twino case 74."""
    producer.create_router("r")
    producer.bind("r", "a", BindingType=QUEUE_BINDING, ContentType=1, Name="queue")
    producer.bind("r", "c1", BindingType=DIRECT_BINDING, ContentType=77, Name="client")
    producer.routed("r", b"x", content_type=5)
    assert producer.stored("a") == (0, 1)
    (frame,) = direct(first)
    assert (frame.payload, frame.content_type, frame.target) == (b"x", 77, b"c1")
    assert (frame.pending_acknowledge, frame.pending_response) == (False, False)


def test_several_queues_and_several_clients_get_a_message(
    producer: Client, first: Client, second: Client, queues: list[str]
) -> None:
    """Twino case 75."""
    producer.create_router("r")
    for target in (*queues, "@type:sink"):
        producer.bind("r", target)
    producer.routed("r", b"x")
    assert [producer.stored("a"), producer.stored("b")] == [(0, 1), (0, 1)]
    assert [len(direct(client)) for client in (first, second)] == [1, 1]


def test_the_acknowledgement_comes_from_the_queues_consumer(connect: Connect, start_broker: StartBroker) -> None:
    """Twino case 76: the producer hears the consumer, under the id that it gave, and not the router."""
    broker = start_broker(delivery_handler="ack-on-consume")
    producer, consumer, other = (connect(name, to=broker) for name in ("prod", "cons", "c1"))
    producer.create_queue("a", 1, Status=PUSH, RequestAcknowledge=True)
    consumer.join("a")
    producer.create_router("r")
    producer.bind("r", "a/1", Interaction=ACKNOWLEDGED)
    producer.bind("r", "@client:c1")
    message = producer.route("r", b"x", pending_acknowledge=True)
    frame = consumer.receive()
    assert (frame.kind, frame.id, frame.payload) == (QUEUE, message, b"x")
    assert other.receive().id != message
    consumer.acknowledge(frame)
    answer = producer.receive()
    assert (answer.kind, answer.id, answer.source, answer.target) == (ACKNOWLEDGE, message, b"cons", b"a")
    producer.ask(ROUTER_LIST)
    assert producer.arrived("a") == [], "and nothing else"


def test_the_response_of_a_client_reaches_the_publisher(producer: Client, first: Client, queues: list[str]) -> None:
    """Twino case 77."""
    producer.create_router("r")
    producer.bind("r", queues[0])
    producer.bind("r", "@name:one", Interaction=RESPONDED)
    message = producer.route("r", b"question", pending_response=True)
    frame = first.receive()
    assert (frame.id, frame.source, frame.pending_response) == (message, b"prod", True)
    first.send(RawFrame(kind=RESPONSE, id=frame.id, target=frame.source, payload=b"answer"))
    answer = producer.receive()
    assert (answer.kind, answer.id, answer.source, answer.payload) == (RESPONSE, message, b"c1", b"answer")
    assert producer.stored("a") == (0, 1)


def test_each_binding_that_was_asked_answers_for_itself(producer: Client, first: Client, second: Client) -> None:
    producer.create_router("r")
    producer.bind("r", "@type:sink", Interaction=RESPONDED)
    message = producer.route("r", b"question", pending_response=True)
    for client in (first, second):
        frame = client.receive()
        client.send(RawFrame(kind=RESPONSE, id=frame.id, target=frame.source, payload=frame.target))
    sources = {producer.answer(message).source for _ in range(2)}
    assert sources == {b"c1", b"c2"}


def test_a_queue_that_is_full_leaves_a_message_to_the_next(producer: Client) -> None:
    producer.create_queue("small", 1, Status="pull", MessageLimit=1)
    producer.create_queue("rest", 1, Status="pull")
    producer.create_router("r", ONLY_FIRST)
    producer.bind("r", "small/1", Priority=2)
    producer.bind("r", "rest/1", Priority=1)
    for _ in range(3):
        assert reason(producer.routed("r", b"x")) is None
    assert (producer.stored("small"), producer.stored("rest")) == ((0, 1), (0, 2))


def test_messages_reach_each_target_in_the_order_of_their_producer(producer: Client) -> None:
    names = [f"q{number}" for number in range(6)]
    producer.create_router("r")
    for name in names:
        producer.create_queue(name, 1, Status="pull")
        producer.bind("r", f"{name}/1")
    for number in range(500):
        producer.route("r", b"%d" % number)
    producer.routed("r", b"500")
    for name in names:
        producer.join(name)
        frames, _ = producer.pull(name, Count=1000)
        assert [frame.payload for frame in frames] == [b"%d" % number for number in range(501)]


def test_topics_are_targets_and_have_targets(producer: Client, first: Client, queues: list[str]) -> None:
    producer.create_router("r")
    producer.bind("r", "@topic:orders.new")
    assert reason(producer.routed("r", b"lost")) == "no-consumers"
    first.do(601, "@topic:orders.*")
    producer.do(ADD_BINDING, "@topic:orders.new", body=json.dumps({"Target": queues[1]}).encode())
    assert reason(producer.routed("r", b"x")) is None
    frame = first.receive()
    assert (frame.kind, frame.target, frame.payload) == (QUEUE, b"@topic:orders.new", b"x")
    producer.join("b")
    assert [frame.payload for frame in producer.pull("b", Count=9)[0]] == [b"x"]
    producer.do(REMOVE_BINDING, "@topic:orders.new", headers={"Binding-Name": "b/1"})
    first.do(602, "@topic:orders.*")
    assert reason(producer.routed("r", b"lost")) == "no-consumers"


def test_routers_are_created_listed_and_removed(producer: Client) -> None:
    assert producer.json(ROUTER_LIST) == []
    producer.create_router("one", ROUND_ROBIN)
    producer.create_router("One", ONLY_FIRST)
    producer.create_router("one", ROUND_ROBIN)
    assert producer.ask(CREATE_ROUTER, "one").content_type == ALREADY_EXISTS
    assert producer.json(ROUTER_LIST) == [
        {"Name": "One", "IsEnabled": True, "Method": ONLY_FIRST},
        {"Name": "one", "IsEnabled": True, "Method": ROUND_ROBIN},
    ]
    assert [router["Name"] for router in producer.json(ROUTER_LIST, "one")] == ["One", "one"]
    for _ in range(2):
        producer.do(REMOVE_ROUTER, "one")
    assert [router["Name"] for router in producer.json(ROUTER_LIST)] == ["One"]
    assert producer.ask(CREATE_ROUTER, "a b").content_type == BAD_REQUEST


def test_bindings_are_added_listed_and_removed(producer: Client) -> None:
    assert producer.ask(BINDING_LIST, "r").content_type == NOT_FOUND
    producer.create_router("r")
    producer.bind("r", "ch", Name="b", ContentType=7, Priority=3, Interaction=1, BindingType=QUEUE_BINDING)
    producer.bind("r", "@name:n", Priority=9)
    bindings = producer.json(BINDING_LIST, "r")
    assert [binding["Name"] for binding in bindings] == ["@name:n", "b"]
    assert bindings[1] == {
        "Name": "b",
        "Target": "ch",
        "ContentType": 7,
        "Priority": 3,
        "Interaction": 1,
        "BindingType": QUEUE_BINDING,
        "Method": 0,
        "Address": "ch/7",
    }
    again = producer.ask(ADD_BINDING, "r", body=b'{"Name":"b","Target":"x"}')
    assert again.content_type == ALREADY_EXISTS
    web = producer.ask(ADD_BINDING, "r", body=b'{"Target":"http://x","BindingType":2}')
    assert web.content_type == UNACCEPTABLE
    producer.do(REMOVE_BINDING, "r", headers={"Binding-Name": "b"})
    assert [binding["Name"] for binding in producer.json(BINDING_LIST, "r")] == ["@name:n"]


def test_a_test_says_where_a_message_would_go_and_sends_nothing(producer: Client, queues: list[str]) -> None:
    producer.create_router("r", ONLY_FIRST)
    for priority, target in enumerate((queues[0], "@client:gone", "none/1")):
        producer.bind("r", target, Priority=priority)
    answer = producer.ask(TEST_ROUTE, "r", body=b"x")
    assert answer.content_type == OK
    result = json.loads(answer.payload)
    assert (result["Method"], result["Taken"], result["Refusal"], result["Skipped"]) == ("only-first", True, None, [])
    assert [(step["Target"], step["Takes"], step["Why"]) for step in result["Steps"]] == [
        ("none/1", False, "the channel does not exist"),
        ("@client:gone", False, "no such client is connected"),
        ("a/1", True, "the queue takes it"),
    ]
    assert producer.stored("a") == (0, 0)
    assert producer.ask(TEST_ROUTE, "none").content_type == NOT_FOUND


def test_routers_of_the_configuration_are_there_from_the_start(connect: Connect, start_broker: StartBroker) -> None:
    binding = mqcore.Binding("orders/1", priority=3)
    broker = start_broker(routers=[mqcore.RouterOptions("declared", mqcore.RouteMethod.ONLY_FIRST, (binding,))])
    client = connect("c", to=broker)
    assert client.json(ROUTER_LIST) == [{"Name": "declared", "IsEnabled": True, "Method": ONLY_FIRST}]
    assert [entry["Address"] for entry in client.json(BINDING_LIST, "declared")] == ["orders/1"]
