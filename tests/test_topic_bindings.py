"""Queues that are bound to topics: they are so after the broker was killed, and those that were unbound are not."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import mqcore
import mqcore.sync
from protocols.conversation import ADD_BINDING, CREATE_CHANNEL, CREATE_QUEUE, JOIN, OK, REMOVE_BINDING, Client
from served import serving, tmqp_address
from throttr_peer import ThrottrPeer
from tmqp_peer import QUEUE, QUEUE_INFORMATION, RawFrame


def published(client: Client, topic: str, body: bytes) -> None:
    frame = RawFrame(kind=QUEUE, id=body, target=f"@topic:{topic}".encode(), payload=body, pending_acknowledge=True)
    client.send(frame)
    assert client.receive().id == body


def waiting(client: Client) -> int:
    """How many messages are in the queue."""
    return int(json.loads(client.ask(QUEUE_INFORMATION, "copies", headers={"Queue-Id": "7"}).payload)["Messages"])


def test_queues_bound_to_topics_are_bound_after_the_broker_was_killed(tmp_path: Path) -> None:
    place, shards = ("--data-dir", str(tmp_path)), {"MQCORE_SHARDS": "3"}
    with serving(*place, environment=shards) as broker, Client(*broker.address) as client:
        client.hello()
        options = json.dumps({"Status": "pull", "DeliveryHandler": "at-least-once"}).encode()
        assert client.ask(CREATE_CHANNEL, "Copies").content_type == OK
        assert client.ask(CREATE_QUEUE, "Copies", headers={"Queue-Id": "7"}, body=options).content_type == OK
        for topic in ("orders.new", "orders.*", "a b", "gone", "gone.*"):
            answer = client.ask(ADD_BINDING, f"@topic:{topic}", body=b'{"Target":"Copies/7"}')
            assert answer.content_type == OK
        for topic in ("gone", "gone.*"):
            answer = client.ask(REMOVE_BINDING, f"@topic:{topic}", headers={"Binding-Name": "Copies/7"})
            assert answer.content_type == OK
        broker.process.send_signal(signal.SIGKILL)
        broker.process.wait(10)
    for _ in range(2):
        with serving(*place, environment=shards) as broker, Client(*broker.address) as client:
            client.hello()
            assert client.ask(JOIN, "copies").content_type == OK
            # That a message was pulled may be lost with a broker that was killed right behind it.
            client.pull("copies", 7, Count=100)
            for topic, body in {
                "orders.new": b"1", "orders.old": b"2", "a b": b"3", "gone.x": b"4", "gone": b"5"
            }.items():  # fmt: skip
                published(client, topic, body)
            # A confirmed copy is saved.
            assert waiting(client) == 3
            messages, _ = client.pull("copies", 7, Count=100)
            # Both the name and the mask match the first: the queue gets one copy all the same.
            assert [message.payload for message in messages] == [b"1", b"2", b"3"]
            broker.process.send_signal(signal.SIGKILL)
            broker.process.wait(10)


def test_a_message_published_over_throttr_reaches_a_consumer_of_a_bound_queue() -> None:
    """Such a message once had no hops left, and clients of TMQP ignore frames without hops."""
    listeners = ("tmqp://127.0.0.1:0", "throttr://127.0.0.1:0")
    with mqcore.Broker(listen=listeners) as broker:
        tmqp, throttr = broker.listeners
        host, _, port = throttr.removeprefix("throttr://").rpartition(":")
        with (
            mqcore.sync.connect(tmqp) as client,
            ThrottrPeer((host, int(port))) as peer,
            Client(*tmqp_address(broker)) as raw,
        ):
            client.declare("copies", 7)
            raw.hello()
            assert raw.ask(ADD_BINDING, "@topic:orders", body=b'{"Target":"copies/7"}').content_type == OK
            with client.queue("copies", 7).consume(str) as messages:
                assert peer.status(peer.publish(b"orders", b"from throttr"))
                message = next(iter(messages))
                assert message.body == "from throttr"
                assert message.headers["Topic"] == "orders"
                message.ack()


def test_a_queue_names_the_topic_of_each_copy_unless_its_producer_did() -> None:
    with mqcore.Broker(listen="tmqp://127.0.0.1:0") as broker, Client(*tmqp_address(broker)) as client:
        client.hello()
        client.create_queue("copies", 7, Status="pull", RequestAcknowledge=False)
        for topic in ("orders.*", "alerts.old"):
            assert client.ask(ADD_BINDING, f"@topic:{topic}", body=b'{"Target":"copies/7"}').content_type == OK
        published(client, "orders.new", b"1")
        published(client, "alerts.old", b"2")
        named = RawFrame(
            kind=QUEUE, id=b"3", target=b"@topic:orders.new", headers=[("topic", "of the producer")], payload=b"3"
        )
        client.send(named)
        client.send(RawFrame(kind=QUEUE, id=b"4", target=b"copies", content_type=7, payload=b"4"))
        assert client.ask(JOIN, "copies").content_type == OK
        messages, _ = client.pull("copies", 7, Count=10)
        topics = [message.header("Topic") for message in messages]
        assert topics == ["orders.new", "alerts.old", "of the producer", None]
