"""Acknowledgements that other clients send for a delivery which is not theirs: the broker accepts none of them."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

from depth import choices, rounds
from hostile.attacks import address
from mm2_peer import MM2Peer, extension
from protocols.conversation import CREATE_QUEUE, JOIN, OK
from served import ServedBroker, serving, wait_until
from test_unfinished_input import url
from tmqp_peer import ACKNOWLEDGE, QUEUE, QUEUE_INFORMATION, RawFrame, TmqpPeer

FORGED = rounds("FORGED_ACKS", quick=2_000, full=100_000)
"""Acknowledgements that each attacker sends."""
LISTEN = ("--listen", "tmqp://127.0.0.1:0", "--listen", "mm2://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
OPTIONS = b'{"Status":"roundrobin","RequestAcknowledge":true,"DeliveryHandler":"memory","AcknowledgeTimeout":600000}'


def tmqp(broker: ServedBroker, stack: ExitStack, **properties: str) -> TmqpPeer:
    peer = stack.enter_context(TmqpPeer(*address(broker, "tmqp")))
    peer.hello(**properties)
    return peer


def counts(broker: ServedBroker) -> tuple[int, int, int, int]:
    """Messages of the queue that wait, that are in flight, and that were acknowledged positively and negatively."""
    with urllib.request.urlopen(f"{broker.admin_url}/overview", timeout=10) as answer:
        (queue,) = json.load(answer)["queues"]
    messages = queue["messages"]
    return queue["normal"], queue["in_flight"], messages["acks"], messages["negative_acks"]


def unknown_acks(broker: ServedBroker) -> int:
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return int(next(line for line in lines if line.startswith("mqcore_acks_unknown_total ")).rpartition(" ")[2])


def guesses(delivered: list[bytes]) -> Iterator[RawFrame]:
    """Acknowledgements, positive and negative, of deliveries that exist and of others, for this and other queues."""
    chance = choices(__name__)
    ids = [*delivered, b"", b"\0", b"0", b"\xff" * 8, b"18446744073709551615", b"x" * 255]
    for number in itertools.count():
        name = chance.choice(ids) if number % 3 else chance.randbytes(chance.randrange(1, 33))
        headers = [("Nack-Reason", "forged")] if chance.random() < 0.3 else []
        yield RawFrame(
            kind=ACKNOWLEDGE,
            id=name,
            target=chance.choice([b"work", b"WORK", b"other", b"@topic:work", b"owner", b""]),
            content_type=chance.choice([7, 7, 7, 0, 8, 65_535]),
            headers=headers,
        )


def test_no_acknowledgement_of_another_client_settles_a_delivery() -> None:
    with serving(*LISTEN) as broker, ExitStack() as stack:
        owner = tmqp(broker, stack, Client_Id="owner")
        assert owner.ask(CREATE_QUEUE, "work", headers={"Queue-Id": "7"}, body=OPTIONS).content_type == OK
        assert owner.ask(JOIN, "work").content_type == OK
        tmqp(broker, stack).send(RawFrame(kind=QUEUE, id=b"m", target=b"work", content_type=7, payload=b"x"))
        delivered = owner.receive()
        assert counts(broker) == (0, 1, 0, 0)

        # One attacker knows everything about the delivery, one has joined the channel too.
        outside, joined = tmqp(broker, stack, Client_Id="forger"), tmqp(broker, stack)
        assert joined.ask(JOIN, "work").content_type == OK
        frames = guesses([delivered.id])
        for attacker in (outside, joined):
            for _ in range(FORGED // 500):
                attacker.socket.sendall(b"".join(frame.encode() for frame in itertools.islice(frames, 500)))
                # The answer shows that the broker has read them.
                assert attacker.ask(QUEUE_INFORMATION, "work", headers={"Queue-Id": "7"}).content_type == OK
        # In the owner's name it costs the connection.
        outside.send(RawFrame(kind=ACKNOWLEDGE, id=b"m", source=b"owner", target=b"work", content_type=7))
        assert outside.is_closed_within(10)
        with MM2Peer(url(broker, "mm2")).open("pub-sub;ack;x-mqcore") as forger:
            ack = forger.id_of("ack")
            forger.send(*(extension(ack, number.to_bytes(2, "big")) for number in range(0, 65_536, 64)))
            forger.rest()
        assert counts(broker) == (0, 1, 0, 0), "the delivery is still the owner's"
        assert unknown_acks(broker) > FORGED // 10

        owner.send(RawFrame(kind=ACKNOWLEDGE, id=delivered.id, target=b"work", content_type=7))
        wait_until(lambda: counts(broker) == (0, 0, 1, 0), what="the owner's acknowledgement")
