"""One suite of promises, for each protocol that has the notion, and for each pair: published in one, received in the
other. A table of them is printed when the tests are over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.adapters import PARTIES, Party, Place
from conformance.conftest import World

Promise = Callable[[World, str, str], None]


def bodies(count: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(count)]


def receiver_of(world: World, protocol: str, place: Place) -> Party:
    party = world.connect(protocol)
    party.subscribe(place)
    return party


# --- queues --------------------------------------------------------------------------------------------------------


def once(world: World, sender: str, receiver: str) -> None:
    """Two receivers of a queue share its messages: each is delivered once, to one of them."""
    place = world.queue()
    two = [receiver_of(world, receiver, place) for _ in range(2)]
    world.publish(world.connect(sender), place, *bodies(20))
    shares = [[delivery.body for delivery in world.received(party)] for party in two]
    assert sorted(shares[0] + shares[1]) == sorted(bodies(20))
    assert len(shares[0]) == len(shares[1]) == 10


def stored(world: World, sender: str, receiver: str) -> None:
    """A queue keeps its messages until a receiver connects, in order."""
    place = world.queue()
    world.publish(world.connect(sender), place, *bodies(50))
    late = receiver_of(world, receiver, place)
    assert [delivery.body for delivery in world.received(late)] == bodies(50)


def ack(world: World, sender: str, receiver: str) -> None:
    """Acknowledged messages are not redelivered; others are."""
    place = world.queue()
    first = receiver_of(world, receiver, place)
    world.publish(world.connect(sender), place, b"a", b"b", b"c")
    a, b, c = world.received(first)
    assert (a.body, b.body, c.body) == (b"a", b"b", b"c")
    settled, left = ((a, b), c) if first.settles_in_order else ((a, c), b)
    for delivery in settled:
        first.ack(delivery)
    assert world.received(first) == []
    world.leave(first)
    second = receiver_of(world, receiver, place)
    assert [delivery.body for delivery in world.received(second)] == [left.body]


def nack(world: World, sender: str, receiver: str) -> None:
    """A nacked message is redelivered until it is acknowledged."""
    place = world.queue()
    party = receiver_of(world, receiver, place)
    world.publish(world.connect(sender), place, b"again and again")
    for _ in range(3):
        (delivery,) = world.received(party)
        assert delivery.body == b"again and again"
        party.nack(delivery)
    (delivery,) = world.received(party)
    party.ack(delivery)
    assert world.received(party) == []
    assert world.broker.stats().queue("orders/0").negative_acks == 3


def redeliver(world: World, sender: str, receiver: str) -> None:
    """Unsettled messages of a lost receiver go to another one."""
    place = world.queue()
    lost = receiver_of(world, receiver, place)
    world.publish(world.connect(sender), place, *bodies(5))
    assert len(world.received(lost)) == 5
    other = receiver_of(world, receiver, place)
    assert world.received(other) == []
    world.leave(lost)
    assert sorted(delivery.body for delivery in world.received(other)) == bodies(5)


def expire(world: World, sender: str, receiver: str) -> None:
    """Messages that wait longer than their queue allows expire, and are counted."""
    place = world.queue(MessageTimeout=5)
    producer = world.connect(sender)
    world.publish(producer, place, b"old")
    world.pass_time(6)
    world.publish(producer, place, b"new")
    late = receiver_of(world, receiver, place)
    assert [delivery.body for delivery in world.received(late)] == [b"new"]
    assert world.broker.stats().queue("orders/0").dropped["expired"] == 1


def limit(world: World, sender: str, receiver: str) -> None:
    """A queue takes no more messages than its limit."""
    place = world.queue(MessageLimit=2)
    world.publish(world.connect(sender), place, b"a", b"b", b"c")
    late = receiver_of(world, receiver, place)
    assert [delivery.body for delivery in world.received(late)] == [b"a", b"b"]


def leave_queue(world: World, sender: str, receiver: str) -> None:
    """A receiver that unsubscribes gets no more messages; the queue keeps them for others."""
    place = world.queue()
    party, producer = receiver_of(world, receiver, place), world.connect(sender)
    world.publish(producer, place, b"before")
    (delivery,) = world.received(party)
    party.ack(delivery)
    world.received(party)
    party.unsubscribe(place)
    world.publish(producer, place, b"after")
    assert world.received(party) == []
    party.subscribe(place)
    assert [delivery.body for delivery in world.received(party)] == [b"after"]


def reconnect(world: World, sender: str, receiver: str) -> None:
    """A receiver that reconnects gets messages published meanwhile."""
    place = world.queue()
    party, producer = receiver_of(world, receiver, place), world.connect(sender)
    world.leave(party)
    world.publish(producer, place, *bodies(3))
    again = receiver_of(world, receiver, place)
    assert [delivery.body for delivery in world.received(again)] == bodies(3)


# --- topics --------------------------------------------------------------------------------------------------------


def to_all(world: World, sender: str, receiver: str) -> None:
    """A message of a topic goes to all who subscribed, and each gets it once, in its order."""
    place = world.topic()
    three = [receiver_of(world, receiver, place) for _ in range(3)]
    world.publish(world.connect(sender), place, *bodies(20))
    for party in three:
        assert [delivery.body for delivery in world.received(party)] == bodies(20)


def untouched(world: World, sender: str, receiver: str) -> None:
    """The bytes of a body are those that were published."""
    place = world.topic()
    party = receiver_of(world, receiver, place)
    every = bytes(sorted(PARTIES[sender].byte_values & PARTIES[receiver].byte_values))
    wanted = [every, b"  spaces inside ", b"\xff\xfe\xfd", b"x" * 60_000, "\u00e9\u4e16".encode()]
    # White space at the end of a line is none of it, where there are lines.
    wanted = [body.strip() if "mqks" in (sender, receiver) else body for body in wanted]
    world.publish(world.connect(sender), place, *wanted)
    assert [delivery.body for delivery in world.received(party)] == wanted


def leave_topic(world: World, sender: str, receiver: str) -> None:
    """A receiver that unsubscribes from a topic gets no more messages."""
    place = world.topic()
    party, producer = receiver_of(world, receiver, place), world.connect(sender)
    world.publish(producer, place, b"before")
    assert [delivery.body for delivery in world.received(party)] == [b"before"]
    party.unsubscribe(place)
    world.publish(producer, place, b"after")
    assert world.received(party) == []


def nothing_kept(world: World, sender: str, receiver: str) -> None:
    """A topic keeps nothing for who is not there."""
    place = world.topic()
    world.publish(world.connect(sender), place, b"missed")
    party = receiver_of(world, receiver, place)
    assert world.received(party) == []


OF_QUEUES: list[Promise] = [once, stored, ack, nack, redeliver, expire, limit, leave_queue, reconnect]
OF_TOPICS: list[Promise] = [to_all, untouched, leave_topic, nothing_kept]

CASES = [
    pytest.param(promise, sender, receiver, id=f"{promise.__name__}-{sender}-{receiver}")
    for promise in OF_QUEUES + OF_TOPICS
    for sender in PARTIES
    for receiver, party in PARTIES.items()
    if promise in OF_TOPICS or party.consumes_queues
]


@pytest.mark.parametrize(("promise", "sender", "receiver"), CASES)
def test_a_promise_holds_from_one_protocol_to_the_other(
    world: World, promise: Promise, sender: str, receiver: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("promise", (promise.__name__.replace("_", " "), sender, receiver))
    promise(world, sender, receiver)


def test_receivers_of_two_protocols_share_one_queue(world: World) -> None:
    place = world.queue()
    two = [receiver_of(world, protocol, place) for protocol in ("tmqp", "mqks")]
    world.publish(world.connect("throttr"), place, *bodies(10))
    shares = [[delivery.body for delivery in world.received(party)] for party in two]
    assert [len(share) for share in shares] == [5, 5]
    assert sorted(shares[0] + shares[1]) == bodies(10)


def test_message_nacked_in_one_protocol_is_redelivered_in_another(world: World) -> None:
    place = world.queue()
    refuses = receiver_of(world, "tmqp", place)
    world.publish(world.connect("mqks"), place, b"x")
    (delivery,) = world.received(refuses)
    takes = receiver_of(world, "mqks", place)
    refuses.unsubscribe(place)
    refuses.nack(delivery)
    assert world.received(refuses) == []
    (again,) = world.received(takes)
    assert again.body == delivery.body == b"x"


def test_every_protocol_with_a_listener_takes_part() -> None:
    """A protocol that is served joins the pairs."""
    from mqcore.cli.serve import DEFAULT_LISTENERS

    assert {url.partition("://")[0] for url in DEFAULT_LISTENERS} == set(PARTIES)
