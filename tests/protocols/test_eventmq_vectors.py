"""Everything recorded between the original and its peers, repeated over plain sockets and through libzmq.

The tests read the broker's counter of received bytes, because libzmq does not report when it has written.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import zmq

from eventmq_original import addresses
from eventmq_peer import COMMAND, GREETING, LONG, MORE, EventmqPeer, Message, command, frame, message, ready
from mqcore.testing import TestBroker
from served import wait_until

VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "vectors" / "eventmq.jsonl").read_text(encoding="utf-8").splitlines()
]
MESSAGES = [vector for vector in VECTORS if vector["kind"] == "message"]
TOPICS = [vector for vector in VECTORS if vector["kind"] == "topic"]
PROBES = [vector for vector in VECTORS if vector["kind"] == "probe"]


class Peer(Protocol):
    """One connection, whichever way its bytes come about."""

    def send(self, *parts: bytes) -> None: ...

    def heard_so_far(self, expected: int) -> list[Message]:
        """Received messages without heartbeats; waits until this many have arrived."""

    def close(self) -> None: ...


class BytePeer:
    """A peer that writes bytes itself, without libzmq."""

    def __init__(self, url: str, kind: str, identity: bytes) -> None:
        self._peer = EventmqPeer(url, kind.encode(), identity)
        self.send = self._peer.send
        self.close = self._peer.close

    def heard_so_far(self, expected: int) -> list[Message]:
        del expected
        return self._peer.until_now()


class LibraryPeer:
    """A socket of libzmq."""

    def __init__(self, url: str, kind: str, identity: bytes) -> None:
        self._socket = zmq.Context.instance().socket(getattr(zmq, kind))
        self._socket.linger = 0
        if identity:
            self._socket.identity = identity
        if kind == "SUB":
            self._socket.subscribe(b"topic")
        self._socket.connect(url)

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def heard_so_far(self, expected: int) -> list[Message]:
        found: list[Message] = []
        while self._socket.poll(10_000 if len(found) < expected else 0):
            said = self._socket.recv_multipart()
            if said[2:3] != [b"HEARTBEAT"]:
                found.append(said)
        return found

    def close(self) -> None:
        self._socket.close()


Connect = Callable[[str, str, bytes], Peer]
ENGINES: list[Connect] = [BytePeer, LibraryPeer]


class World:
    """A broker whose clock stands still, and peers of it by role and identity."""

    def __init__(self, broker: TestBroker, connect: Connect) -> None:
        self.broker = broker
        self.urls = addresses(broker.listeners)
        self._connect = connect
        self.peers: dict[tuple[str, str], Peer] = {}

    def peer(self, role: str, identity: str) -> Peer:
        key = role, identity
        if key not in self.peers:
            kind = "SUB" if role == "subscribe" else "DEALER"
            known = len(self.broker.stats().clients)
            self.peers[key] = self._connect(self.urls[role], kind, bytes.fromhex(identity))
            wait_until(lambda: len(self.broker.stats().clients) > known, what="a client more")
        return self.peers[key]

    def say(self, peer: Peer, parts: list[bytes]) -> None:
        """Send a message, and return when all that comes of it is written."""
        before = self.read()
        peer.send(*parts)
        size = len(message(parts))
        wait_until(lambda: self.read() >= before + size, what="the message to be read")
        asyncio.run(self.broker.settle())

    def page(self) -> str:
        with urllib.request.urlopen(f"{self.broker.admin_url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def number(self, name: str, page: str | None = None) -> int:
        found = re.search(rf"^{re.escape(name)} (\d+)$", page or self.page(), re.MULTILINE)
        assert found, name
        return int(found[1])

    def read(self) -> int:
        """Bytes that the broker has read from peers of EventMQ."""
        return self.number('mqcore_received_bytes_total{protocol="emqp"}')

    def mistakes(self) -> int:
        """Messages that meant nothing or could not be done, and connections that were cut for what came from them."""
        page = self.page()
        closed = 'mqcore_connections_closed_total{protocol="emqp",reason="%s"}'
        cut = sum(self.number(closed % reason, page) for reason in ("protocol-error", "login-too-large"))
        failed = self.number('mqcore_requests_failed_total{protocol="emqp"}', page)
        return cut + failed + self.number("mqcore_eventmq_ignored_total", page)


@pytest.fixture(params=ENGINES, ids=["bytes", "libzmq"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    listen = "emqp://127.0.0.1:0"
    with TestBroker(listen=listen, admin="http://127.0.0.1:0", shards=3) as broker:
        world = World(broker, request.param)
        yield world
        for peer in world.peers.values():
            peer.close()


def frames(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(part) for part in vector["frames"]]


def comparable(said: Message) -> Message:
    """Without what differs from run to run: ids of what the broker itself says, and its numbers."""
    match said[2]:
        case b"REPLY" if len(said) == 5 and said[4].startswith(b"{"):
            return said[:3]
        case b"ACK" | b"REPLY" | b"KBYE":
            return [*said[:3], *said[4:]]
        case _:
            return said


def test_all_vectors_are_there() -> None:
    assert (len(MESSAGES), len(TOPICS), len(PROBES)) == (219, 2, 32)


def test_peers_receive_the_messages_of_the_original(world: World) -> None:
    arrived: dict[Peer, list[Message]] = {}
    expected: dict[Peer, list[Message]] = {}
    for vector in MESSAGES:
        parts = frames(vector)
        peer = world.peer(vector["socket"], vector["identity"] or "")
        if vector["from"] != "peer":
            if parts[2] != b"HEARTBEAT":
                expected.setdefault(peer, []).append(comparable(parts))
        elif parts[2] == b"DISCONNECT" and vector["socket"] == "admin":
            break
        else:
            world.say(peer, parts)
            if isinstance(peer, BytePeer):
                # Read now and then, as a peer does.
                arrived.setdefault(peer, []).extend(peer.heard_so_far(0))
    extra: list[Message] = []
    for peer in world.peers.values():
        wanted = expected.get(peer, [])
        found = arrived.get(peer, [])
        found += peer.heard_so_far(len(wanted) - len(found))
        for said in map(comparable, found):
            if said in wanted:
                at = wanted.index(said)
                assert at < 3, "of two dispatches and their notices the original sometimes had the other order"
                del wanted[at]
            else:
                extra.append(said)
        assert not wanted, "missing"
    # Clients of the original never received a result, nor a notice about jobs that had to wait.
    assert Counter(len(said) for said in extra) == {5: 25, 4: 2}, extra
    assert all(said[2] == b"REPLY" for said in extra)
    assert sorted(said[3][:8] for said in extra if len(said) == 4) == [b"b0936321", b"e18a3918"]
    assert sum(said[3].startswith(b'{"value"') for said in extra) == 25


def test_stopping_broker_sends_goodbye_to_the_peers_of_the_original(world: World) -> None:
    stop = next(at for at, vector in enumerate(MESSAGES) if vector["text"][2:3] == ["DISCONNECT"])
    joined = {}
    for vector in MESSAGES[:stop]:
        if vector["from"] == "peer" and vector["text"][2:3] == ["INFORM"]:
            joined[vector["socket"], vector["identity"]] = frames(vector)
    for (role, identity), parts in joined.items():
        world.say(world.peer(role, identity), parts)
    admin = world.peer("admin", MESSAGES[stop]["identity"])
    for peer in world.peers.values():
        peer.heard_so_far(0)
    admin.send(*frames(MESSAGES[stop]))
    assert world.broker.wait(20)
    said = {}
    for key, peer in world.peers.items():
        try:
            said[key] = last_words(peer)
        except EOFError:
            said[key] = []
    assert [comparable(each) for each in said.pop(("admin", MESSAGES[stop]["identity"]))] == [
        [b"", b"eMQP/1.0", b"ACK", frames(MESSAGES[stop])[3]]
    ]
    assert {len(each) for each in said.values()} == {1}
    assert {tuple(comparable(each[0])) for each in said.values()} == {(b"", b"eMQP/1.0", b"KBYE")}


def last_words(peer: Peer) -> list[Message]:
    """Messages that a peer receives before its connection is closed, without heartbeats."""
    if isinstance(peer, LibraryPeer):
        return [said for said in peer.heard_so_far(1) if said[2] != b"ACK" or len(said) == 5]
    assert isinstance(peer, BytePeer)
    found = []
    try:
        while True:
            found.append(peer._peer.receive())
    except (EOFError, ConnectionError):
        return found


def test_a_topic_reaches_its_subscribers_as_it_did(world: World) -> None:
    subscriber = world.peer("subscribe", "")
    subscription = message([b"\x01topic"])
    if isinstance(subscriber, BytePeer):
        subscriber.send(b"\x01topic")
        shaken = len(GREETING) + len(ready(b"SUB"))
    else:
        # It names no identity.
        shaken = len(GREETING) + len(command(b"READY", b"\x0bSocket-Type" + bytes(4) + b"SUB"))
    wait_until(lambda: world.read() == shaken + len(subscription), what="the subscription to be read")
    asyncio.run(world.broker.settle())
    for vector in MESSAGES:
        if vector["socket"] == "publish":
            world.say(world.peer("publish", vector["identity"]), frames(vector))
    assert subscriber.heard_so_far(len(TOPICS)) == [frames(vector) for vector in TOPICS]


UNDERSTOOD = {"P09", "P10", "P16", "P17", "P23", "P25", "P26", "P27", "P30", "P31"}
"""Probes that are valid here. Workers reject the job of P10, which is not text, and of P27, which names no task."""


@pytest.mark.parametrize("probe", PROBES, ids=[probe["name"] for probe in PROBES])
def test_probe_is_counted_and_harmless(world: World, probe: dict[str, Any]) -> None:
    worker, client = world.peer("backend", b"worker".hex()), world.peer("frontend", b"client".hex())
    world.say(worker, [b"", b"eMQP/1.0", b"INFORM", b"i", b"", b"worker"])
    world.say(worker, [b"", b"eMQP/1.0", b"READY", b"r"])
    assert [said[2] for said in worker.heard_so_far(1)] == [b"ACK"]
    peer = world.peer(probe["socket"], probe["identity"] or "")
    before = world.mistakes()
    world.say(peer, frames(probe))
    if probe["name"] == "P26":
        world.say(peer, frames(probe))
    assert world.mistakes() - before == (probe["name"] not in UNDERSTOOD), probe["note"]
    taken = probe["command"] == "REQUEST"
    answers = ["REPLY"] if taken else [word for word in probe["answers"] if word != "HEARTBEAT"]
    if probe["name"] == "P26":
        answers *= 2
    assert [said[2].decode() for said in peer.heard_so_far(len(answers))] == answers
    if probe["name"] == "P27":
        (run,) = worker.heard_so_far(1)
        assert run[6] == frames(probe)[7], "a schedule runs at once"
        world.say(worker, [b"", b"eMQP/1.0", b"READY", b"r"])
    if taken:
        assert worker.heard_so_far(1)[0][4:] == frames(probe)[4:]
        world.say(worker, [b"", b"eMQP/1.0", b"READY", b"r"])
    # All other peers continue.
    assert world.broker.is_running
    world.say(client, [b"", b"eMQP/1.0", b"REQUEST", b"after", b"default", b"", b"job"])
    assert [said[3] for said in worker.heard_so_far(1)] == [b"after"]
    assert [said[4] for said in client.heard_so_far(1)] == [b"after"]


GARBAGE = {
    "no greeting": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n" + bytes(64),
    "another mechanism": GREETING.replace(b"NULL", b"CURV"),
    "a version that nobody speaks": b"\xff" + bytes(8) + b"\x7f\x02\x00" + b"NULL".ljust(20, b"\0") + bytes(32),
    "a message before READY": GREETING + frame(b"hello"),
    "no socket that may connect": GREETING + ready(b"PULL"),
    "READY without an end": GREETING + bytes([COMMAND, 200]) + b"\x05READY\x0bSocket-Type\xff\xff\xff\xff" + bytes(188),
    "a READY that is too long": GREETING + bytes([COMMAND | LONG]) + (1 << 20).to_bytes(8, "big") + bytes(600),
    "an unknown flag": GREETING + ready(b"DEALER") + bytes([0x80, 1]) + b"x",
    "a command that goes on": GREETING + ready(b"DEALER") + bytes([COMMAND | MORE, 1]) + b"x",
    "a frame beyond all limits": GREETING + ready(b"DEALER") + bytes([LONG]) + (1 << 62).to_bytes(8, "big"),
    "a length that is negative": GREETING + ready(b"DEALER") + bytes([LONG]) + b"\xff" * 8,
    "more frames than a message may have": GREETING + ready(b"DEALER") + frame(b"", MORE) * 65,
    "READY twice": GREETING + ready(b"DEALER") + ready(b"DEALER"),
    "an identity that begins with zero": GREETING + ready(b"DEALER", b"\0abc"),
}


@pytest.mark.parametrize("role", ["backend", "frontend", "admin", "publish", "subscribe"])
def test_garbage_costs_the_connection_that_it_came_from_and_no_other(role: str) -> None:
    with TestBroker(listen="emqp://127.0.0.1:0", admin="http://127.0.0.1:0", shards=2) as broker:
        world = World(broker, BytePeer)
        worker, client = world.peer("backend", b"worker".hex()), world.peer("frontend", b"client".hex())
        world.say(worker, [b"", b"eMQP/1.0", b"INFORM", b"i", b"", b"worker"])
        worker.heard_so_far(1)
        for number, (name, said) in enumerate(GARBAGE.items()):
            before = world.mistakes()
            if role == "subscribe":
                said = said.replace(ready(b"DEALER"), ready(b"SUB"))
            with EventmqPeer(world.urls[role], shakes=False) as stranger:
                stranger.send_bytes(said)
                assert stranger.is_cut(), name
            assert world.mistakes() == before + 1, name
            job = b"job%d" % number
            world.say(worker, [b"", b"eMQP/1.0", b"READY", b"r"])
            world.say(client, [b"", b"eMQP/1.0", b"REQUEST", job, b"default", b"", b"x"])
            assert [each[3] for each in worker.heard_so_far(1)] == [job], name
        for peer in world.peers.values():
            peer.close()


def test_a_ping_between_the_frames_of_a_message_is_answered_and_harms_neither() -> None:
    """Heartbeats of libzmq get there when a message is long."""
    with TestBroker(listen="emqp://127.0.0.1:0", shards=1) as broker:
        urls = addresses(broker.listeners)
        with EventmqPeer(urls["backend"]) as worker, EventmqPeer(urls["frontend"]) as client:
            worker.inform(slots=1)
            parts = [b"", b"eMQP/1.0", b"REQUEST", b"j", b"default", b"", b"job"]
            data = [frame(part, MORE) for part in parts[:-1]] + [frame(parts[-1])]
            client.send_bytes(command(b"PING", b"\0\0x").join(data))
            assert worker.receive() == parts
            assert client.receive()[4] == b"j"
