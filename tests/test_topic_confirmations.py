"""A confirmed message of a topic is saved in every durable queue that is bound to the topic, in each protocol."""

from __future__ import annotations

import json
import select
import signal
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from depth import by_depth, rounds
from mm2_peer import Cut as MM2Cut
from mm2_peer import MM2Peer
from mqks_peer import MqksPeer
from protocols.conversation import ADD_BINDING, CREATE_QUEUE, OK, Client
from served import ServedBroker, serving
from slow_sync import slow_sync
from throttr_peer import Cut, ThrottrPeer
from tmqp_peer import ACKNOWLEDGE, QUEUE, QUEUE_INFORMATION, RESPONSE, PeerClosed, RawFrame

TOPIC = "news"
QUEUES = ("alpha", "beta", "gamma", "delta")
"""Channels on several shards; queue 1 of each is durable and bound to the topic."""
WINDOW = 300
"""Messages that a producer sends before it reads the first confirmation."""


class Producer(ABC):
    """A connection that publishes numbers to the topic, and asks for confirmations."""

    socket: socket.socket

    @abstractmethod
    def __init__(self, broker: ServedBroker) -> None:
        """Connect."""

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @abstractmethod
    def publish(self, number: int) -> None:
        """Publish a message whose body is the number; numbers start at 0 and ascend."""

    @abstractmethod
    def confirmed(self) -> Iterator[int]:
        """Confirmed numbers, as they arrive, until the connection is lost."""

    def is_quiet(self) -> bool:
        """Whether nothing arrives for a moment: far longer than an answer that waits for no disk."""
        return not select.select([self.socket], [], [], 0.3)[0]


class TmqpProducer(Producer):
    def __init__(self, broker: ServedBroker) -> None:
        self.peer = Client(*broker.address)
        self.peer.hello()
        self.socket = self.peer.socket

    def publish(self, number: int) -> None:
        body = b"%d" % number
        target = f"@topic:{TOPIC}".encode()
        self.peer.send(RawFrame(kind=QUEUE, id=body, target=target, payload=body, pending_acknowledge=True))

    def confirmed(self) -> Iterator[int]:
        try:
            while True:
                frame = self.peer.receive()
                assert frame.kind == ACKNOWLEDGE
                assert frame.header("Nack-Reason") is None
                yield int(frame.id)
        except (PeerClosed, ConnectionError):
            return


class MqksProducer(Producer):
    def __init__(self, broker: ServedBroker) -> None:
        self.peer = MqksPeer(f"mqks://{broker.ready['listeners']['mqks']}")
        self.socket = self.peer.socket

    def publish(self, number: int) -> None:
        self.peer.send(f"{number} publish --confirm {TOPIC} {number}")

    def confirmed(self) -> Iterator[int]:
        try:
            while True:
                number, verdict, _ = self.peer.line().split(b" ", 2)
                assert verdict == b"ok"
                yield int(number)
        except (EOFError, ConnectionError):
            return


class MM2Producer(Producer):
    def __init__(self, broker: ServedBroker) -> None:
        self.peer = MM2Peer(f"mm2://{broker.ready['listeners']['mm2']}").open(
            "batch-ack:max-count=1000;pub-sub;x-mqcore"
        )
        # The last message of the handshake has no answer.
        assert self.peer.ask("ping;id=in") == "ok"
        self.socket = self.peer.socket

    def publish(self, number: int) -> None:
        self.peer.publish(f"topic/{TOPIC}", b"%d" % number)

    def confirmed(self) -> Iterator[int]:
        done = 0
        try:
            while True:
                (through,) = struct.unpack(">H", self.peer.frame().payload)
                yield from range(done, through)
                done = through
        except (MM2Cut, ConnectionError):
            return


class ThrottrProducer(Producer):
    def __init__(self, broker: ServedBroker) -> None:
        host, _, port = broker.ready["listeners"]["throttr"].rpartition(":")
        self.peer = ThrottrPeer((host, int(port)))
        self.socket = self.peer.socket

    def publish(self, number: int) -> None:
        self.peer.send(self.peer.publish(TOPIC.encode(), b"%d" % number))

    def confirmed(self) -> Iterator[int]:
        number = 0
        try:
            while True:
                assert self.peer.read(1) == b"\x01"
                yield number
                number += 1
        except (Cut, ConnectionError):
            return


PRODUCERS: dict[str, type[Producer]] = {
    "tmqp": TmqpProducer,
    "mqks": MqksProducer,
    "mm2": MM2Producer,
    "throttr": ThrottrProducer,
}
"""All protocols in which a producer can wait for a confirmation of a topic's message."""

each_protocol = pytest.mark.parametrize("protocol", PRODUCERS)


@contextmanager
def bound_broker(directory: Path, environment: dict[str, str]) -> Iterator[tuple[ServedBroker, Client]]:
    """A broker with a listener of each protocol and durable queues that are bound to the topic; and a client."""
    listeners = [f"--listen={protocol}://127.0.0.1:0" for protocol in PRODUCERS]
    with ExitStack() as stack:
        arguments = ("--data-dir", str(directory / "data"), "--listen", "tmqp://127.0.0.1:0", *listeners[1:])
        broker = stack.enter_context(serving(*arguments, environment={"MQCORE_SHARDS": "3", **environment}))
        client = stack.enter_context(Client(*broker.address))
        client.hello()
        options = json.dumps({"Status": "pull", "DeliveryHandler": "at-least-once"}).encode()
        for queue in QUEUES:
            assert client.ask(CREATE_QUEUE, queue, headers={"Queue-Id": "1"}, body=options).content_type in (OK, 481)
            target = json.dumps({"Target": f"{queue}/1"}).encode()
            assert client.ask(ADD_BINDING, f"@topic:{TOPIC}", body=target).content_type == OK
        yield broker, client


def waiting(client: Client, queue: str) -> int:
    """Number of messages in a queue."""
    information = client.ask(QUEUE_INFORMATION, queue, headers={"Queue-Id": "1"})
    assert information.kind == RESPONSE
    return int(json.loads(information.payload)["Messages"])


@each_protocol
def test_a_confirmation_waits_until_every_bound_queue_has_saved_its_copy(tmp_path: Path, protocol: str) -> None:
    gate = tmp_path / "gate"
    with bound_broker(tmp_path, slow_sync(tmp_path, gate=gate)) as (broker, client):
        with PRODUCERS[protocol](broker) as producer:
            gate.touch()
            producer.publish(0)
            assert producer.is_quiet()
            gate.unlink()
            assert next(producer.confirmed()) == 0
        assert [waiting(client, queue) for queue in QUEUES] == [1] * len(QUEUES)


# A round takes two seconds, and several times that on a machine that does other things.
@pytest.mark.timeout(by_depth(60, 600))
@each_protocol
def test_a_killed_broker_has_every_confirmed_message_of_a_topic(tmp_path: Path, protocol: str) -> None:
    slow = slow_sync(tmp_path, milliseconds=15)
    for number in range(rounds("TOPIC_CRASH", quick=1, full=20)):
        directory = tmp_path / str(number)
        directory.mkdir()
        with bound_broker(directory, slow) as (broker, _), PRODUCERS[protocol](broker) as producer:
            for message in range(WINDOW):
                producer.publish(message)
            confirmations = producer.confirmed()
            confirmed = {next(confirmations)}
            broker.process.send_signal(signal.SIGKILL)
            confirmed.update(confirmations)
            broker.process.wait(10)
        with bound_broker(directory, {}) as (_, client):
            for queue in QUEUES:
                client.join(queue)
                messages, _ = client.pull(queue, 1, Count=WINDOW) if waiting(client, queue) else ([], "")
                assert confirmed <= {int(message.payload) for message in messages}, queue
