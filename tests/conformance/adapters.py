"""Each protocol as the suite of promises sees it: who publishes, subscribes, is handed messages and settles them.

A new protocol joins by one more `Party`, and by its name in `PARTIES`.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from eventmq_peer import EventmqPeer
from mm2_peer import MM2Peer, subscribe
from mqks_peer import MqksPeer
from protocols.conversation import CHANNEL_LIST, QUEUE, Client
from throttr_peer import SUBSCRIBE, UNSUBSCRIBE, WHOAMI, ThrottrPeer


@dataclass(frozen=True)
class Place:
    """A destination. Queues are bound to the topic of their name, for clients that can publish to topics only."""

    name: str
    is_queue: bool


@dataclass(frozen=True)
class Delivery:
    """A message as it was delivered, and what its receiver needs to settle it."""

    body: bytes
    handle: Any = None


class Party(ABC):
    """One connection of one protocol."""

    listener: ClassVar[str]
    """The URL of a listener for it."""
    consumes_queues: ClassVar[bool] = True
    """Whether it can be handed messages of a queue, and settle them."""
    settles_in_order: ClassVar[bool] = False
    """Whether an acknowledgement covers everything that was delivered before."""
    byte_values: ClassVar[frozenset[int]] = frozenset(range(256))
    """Byte values that a body may contain."""

    @abstractmethod
    def __init__(self, *urls: str) -> None:
        """Connect. A protocol whose listener has several sockets gets the URLs of all."""

    @abstractmethod
    def close(self) -> None:
        """Leave, and return once the broker knows."""

    @abstractmethod
    def publish(self, place: Place, body: bytes) -> None:
        """Publish one message."""

    @abstractmethod
    def subscribe(self, place: Place) -> None:
        """Be handed the messages of a place, and return once that is so. Those of a queue want to be settled."""

    @abstractmethod
    def unsubscribe(self, place: Place) -> None:
        """End that, and return once it is so."""

    @abstractmethod
    def take(self) -> list[Delivery]:
        """Deliveries to this connection that were not returned before; reads the answers to earlier requests first."""

    def ack(self, delivery: Delivery) -> None:
        """The message was processed."""
        raise TypeError(f"{type(self).__name__} has nothing to settle: {delivery}")

    def nack(self, delivery: Delivery) -> None:
        """The message was not processed, and is to be redelivered."""
        raise TypeError(f"{type(self).__name__} has nothing to settle: {delivery}")


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rpartition(":")
    return host, int(port)


class Tmqp(Party):
    """TMQP: channels are joined; a topic is the channel `@topic:NAME`."""

    listener = "tmqp://127.0.0.1:0"

    def __init__(self, url: str) -> None:
        self.client = Client(*_address(url))
        self.client.hello()

    def close(self) -> None:
        self.client.__exit__(None, None, None)

    def _channel(self, place: Place) -> str:
        return place.name if place.is_queue else f"@topic:{place.name}"

    def publish(self, place: Place, body: bytes) -> None:
        self.client.publish(self._channel(place), 0, body)

    def subscribe(self, place: Place) -> None:
        self.client.join(self._channel(place))

    def unsubscribe(self, place: Place) -> None:
        self.client.leave(self._channel(place))

    def take(self) -> list[Delivery]:
        self.client.ask(CHANNEL_LIST)
        frames = [frame for frame in self.client.arrived("no-such-channel") if frame.kind == QUEUE]
        # Clients of the original ignore frames without hops.
        assert all(frame.hops > 0 for frame in frames)
        return [Delivery(frame.payload, frame) for frame in frames]

    def ack(self, delivery: Delivery) -> None:
        self.client.acknowledge(delivery.handle)

    def nack(self, delivery: Delivery) -> None:
        self.client.acknowledge(delivery.handle, "error")


class Mqks(Party):
    """MQKS: every receiver has a queue; who wants a topic has one of its own that is bound to it."""

    listener = "mqks://127.0.0.1:0"
    # The ends of lines and TABs would part a line; white space at the end of a line is not part of it.
    byte_values = frozenset(range(256)) - frozenset(b"\t\n\r")
    _names = itertools.count()

    def __init__(self, url: str) -> None:
        self.peer = MqksPeer(url)
        self.consumers: dict[Place, str] = {}
        self.places: dict[str, Place] = {}

    def close(self) -> None:
        self.peer.half_close()
        self.peer.rest()
        self.peer.close()

    def _ask(self, action: str, data: str) -> None:
        request = f"r{next(self._names)}"
        self.peer.send(f"{request} {action} --confirm {data}")
        self._wait(request)

    def _wait(self, request: str) -> None:
        kept = []
        while (line := self.peer.line()) != f"{request} ok ".encode():
            assert b" error " not in line, line
            kept.append(line)
        self.peer.unread(kept)

    def publish(self, place: Place, body: bytes) -> None:
        self.peer.send_bytes(f"m{next(self._names)} publish {place.name} ".encode() + body + b"\n")

    def subscribe(self, place: Place) -> None:
        consumer = f"c{next(self._names)}"
        self.consumers[place] = consumer
        self.places[consumer] = place
        queue = place.name if place.is_queue else f"of-{consumer} {place.name} --delete-queue-when-unused"
        self.peer.send(f"{consumer} consume --confirm {queue} --manual-ack")
        self._wait(consumer)

    def unsubscribe(self, place: Place) -> None:
        self._ask("delete_consumer", self.consumers.pop(place))

    def take(self) -> list[Delivery]:
        deliveries = []
        for line in self.peer.until_now():
            consumer, verdict, data = line.split(b" ", 2)
            assert verdict == b"ok", line
            message, properties, body = data.split(b" ", 2)
            event = self.places[consumer.decode()].name
            assert properties.split(b",")[0] == f"event={event}".encode(), line
            deliveries.append(Delivery(body, (consumer.decode(), message.decode())))
        return deliveries

    def ack(self, delivery: Delivery) -> None:
        self._ask("ack", " ".join(delivery.handle))

    def nack(self, delivery: Delivery) -> None:
        self._ask("reject", " ".join(delivery.handle))


class Throttr(Party):
    """Throttr: channels are topics, and nothing is kept."""

    listener = "throttr://127.0.0.1:0?value=uint16"
    consumes_queues = False

    def __init__(self, url: str) -> None:
        self.peer = ThrottrPeer(_address(url))

    def close(self) -> None:
        self.peer.leave()

    def publish(self, place: Place, body: bytes) -> None:
        self.peer.status(self.peer.publish(place.name.encode(), body))

    def subscribe(self, place: Place) -> None:
        assert self.peer.status(self.peer.keyed(SUBSCRIBE, place.name.encode()))

    def unsubscribe(self, place: Place) -> None:
        assert self.peer.status(self.peer.keyed(UNSUBSCRIBE, place.name.encode()))

    def take(self) -> list[Delivery]:
        self.peer.send(bytes([WHOAMI]))
        bodies = []
        while (first := self.peer.read(1)) != b"\x01":
            assert first == b"\x03", first
            bodies.append(self.peer.read(int.from_bytes(self.peer.read(2), "little")))
        self.peer.read(16)
        return [Delivery(body) for body in bodies]


class MicroMessage(Party):
    """MicroMessage2: `topic/NAME` is a topic, else it is a queue; what is delivered is acknowledged up to a number."""

    listener = "mm2://127.0.0.1:0"
    settles_in_order = True
    _names = itertools.count()

    def __init__(self, url: str) -> None:
        self.peer = MM2Peer(url).open("batch-ack:max-count=1000;x-nack;pub-sub;x-mqcore")
        # The last message of the handshake has no answer.
        assert self.peer.ask("ping;id=in") == "ok"
        self.subscriptions: dict[Place, str] = {}

    def close(self) -> None:
        self.peer.leave()

    def _destination(self, place: Place) -> str:
        return place.name if place.is_queue else f"topic/{place.name}"

    def publish(self, place: Place, body: bytes) -> None:
        self.peer.publish(self._destination(place), body)

    def subscribe(self, place: Place) -> None:
        name = self.subscriptions[place] = f"s{next(self._names)}"
        assert self.peer.ask(subscribe(self._destination(place), name=name)) == "ok"

    def unsubscribe(self, place: Place) -> None:
        assert self.peer.ask(f"unsubscribe;id={self.subscriptions.pop(place)}") == "ok"

    def take(self) -> list[Delivery]:
        frames = self.peer.until_now()
        return [Delivery(frame.payload, frame.sequence) for frame in frames if frame.kind == "message"]

    def ack(self, delivery: Delivery) -> None:
        self.peer.ack(delivery.handle)

    def nack(self, delivery: Delivery) -> None:
        self.peer.nack(delivery.handle)


class Eventmq(Party):
    """EventMQ: a message of a queue is a job; who is handed some is a worker, and its result settles one."""

    listener = "emqp://127.0.0.1:0"
    SLOTS = 100
    _names = itertools.count()

    def __init__(self, *urls: str) -> None:
        self.urls = {url.partition("?role=")[2]: url for url in urls}
        self.peers: dict[str, EventmqPeer] = {}

    def _peer(self, role: str) -> EventmqPeer:
        if role not in self.peers:
            kind = b"SUB" if role == "subscribe" else b"DEALER"
            self.peers[role] = EventmqPeer(self.urls[role], kind)
        return self.peers[role]

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()

    def publish(self, place: Place, body: bytes) -> None:
        name = f"m{next(self._names)}"
        if place.is_queue:
            peer = self._peer("frontend")
            peer.say("REQUEST", name, place.name, "guarantee", body)
        else:
            peer = self._peer("publish")
            peer.say("PUBLISH", name, place.name, body)
        peer.until_now()

    def subscribe(self, place: Place) -> None:
        if place.is_queue:
            self._peer("backend").inform(f'[[10, "{place.name}"]]', self.SLOTS)
        else:
            peer = self._peer("subscribe")
            peer.send(b"\x01" + place.name.encode())
            peer.until_now()

    def unsubscribe(self, place: Place) -> None:
        if place.is_queue:
            # A worker that has said goodbye comes back as another one.
            peer = self.peers.pop("backend")
            peer.say("KBYE", "bye")
            peer.until_now()
            peer.close()
        else:
            peer = self._peer("subscribe")
            peer.send(b"\x00" + place.name.encode())
            peer.until_now()

    def take(self) -> list[Delivery]:
        taken = []
        for said in self.peers["backend"].until_now() if "backend" in self.peers else []:
            assert said[2] == b"REQUEST", said
            taken.append(Delivery(said[6], said[3]))
        for _, body in self.peers["subscribe"].until_now() if "subscribe" in self.peers else []:
            taken.append(Delivery(body))
        return taken

    def _result(self, delivery: Delivery, result: str) -> None:
        peer = self._peer("backend")
        peer.say("REPLY", f"r{next(self._names)}", result, delivery.handle)
        # Behind its result it is ready for another job, as a real worker is.
        peer.say("READY", "ready")
        peer.kept = peer.until_now()

    def ack(self, delivery: Delivery) -> None:
        self._result(delivery, '{"value": true}')

    def nack(self, delivery: Delivery) -> None:
        self._result(delivery, '{"error": "not now", "retry_after": 0}')


PARTIES: dict[str, type[Party]] = {
    "tmqp": Tmqp,
    "mqks": Mqks,
    "throttr": Throttr,
    "mm2": MicroMessage,
    "emqp": Eventmq,
}
"""All protocols that take part."""
