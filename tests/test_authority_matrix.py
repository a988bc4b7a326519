"""Every action, in every protocol, for every sort of peer: the expected answer each.

A protocol joins by an adapter: how one shows credentials in it, and how one attempts each of its actions. The
expected results follow from the rules alone and are the same for all protocols.
"""

from __future__ import annotations

import select
import ssl
import time
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from _pytest.mark.structures import ParameterSet

from depth import FULL, choices
from eventmq_rights import Eventmq
from mm2_peer import MM2Peer, subscribe
from mqks_peer import MqksPeer
from personas import (
    ALLOWED,
    DENIED,
    MINE,
    OTHER,
    PERSONAS,
    TOLD_TO_WAIT,
    TURNED_AWAY,
    Adapter,
    Attempt,
    Persona,
    Place,
    attempts,
    place,
)
from served import wait_until
from throttr_peer import Cut, ThrottrPeer
from tmqp_peer import DIRECT, EVENT, PULL, QUEUE, RESPONSE, SERVER, RawFrame, TmqpPeer

ROUTER = 0x17


def covers(rule: str, action: str, resource: str) -> bool:
    """A second, simple implementation of rules, for the few patterns used here."""
    actions, _, pattern = rule.partition(":")
    if actions != "*" and not set(action.split("|")) & set(actions.split(",")):
        return False
    if pattern in ("", "*"):
        return True
    if resource == "*":
        return False
    prefix = pattern.removesuffix("*")
    if prefix != pattern:
        return resource.startswith(prefix) or resource + "/" == prefix
    return resource == pattern


def expected(persona: Persona, attempt: Attempt, entry: tuple[tuple[str, str], ...] = ()) -> str:
    """The expected result, if login requires the permissions in `entry`."""
    if persona.rules is None or not all(any(covers(rule, *need) for rule in persona.rules) for need in entry):
        return TURNED_AWAY
    met = all(any(covers(rule, *need) for rule in persona.rules) for need in attempt.needs)
    return ALLOWED if met else DENIED


class Tmqp:
    """TMQP/2.0: credentials are the Hello's Client-Token."""

    entry: tuple[tuple[str, str], ...] = ()

    def can_show(self, name: str) -> bool:
        return True

    attempts = attempts(
        {
            "push": (("push", "orders/1"),),
            "push elsewhere": (("push", "invoices/1"),),
            "pull": (("join", "orders"), ("receive", "orders/*"), ("pull", "orders/2")),
            "pull elsewhere": (("join", "invoices"), ("receive", "invoices/*"), ("pull", "invoices/2")),
            "join": (("join", "orders"), ("receive", "orders/*")),
            "join elsewhere": (("join", "invoices"), ("receive", "invoices/*")),
            "join queue": (("join", "orders"), ("receive", "orders/1")),
            "join queue elsewhere": (("join", "invoices"), ("receive", "invoices/1")),
            "join two queues": (("join", "orders"), ("receive", "orders/1"), ("receive", "orders/2")),
            "join to pull": (("join", "orders"),),
            "create queue": (("create", "orders/77"),),
            "create queue elsewhere": (("create", "invoices/77"),),
            "create channel": (("create", "fresh"),),
            "create queue that dead-letters elsewhere": (("create", "orders/78"), ("push", "invoices/1")),
            "direct to id": (("direct", "peer"),),
            "direct to name": (("direct", "@name:peer"),),
            "direct to type": (("direct", "@type:peer"),),
            "respond": (("direct", "peer"),),
            "events of server": (("events", "*"),),
            "events of channel": (("events", "orders"),),
            "events of queue": (("events", "orders/1"),),
            "events of channel elsewhere": (("events", "invoices"),),
            "update queue": (("administer", "orders/1"),),
            "update queue elsewhere": (("administer", "invoices/1"),),
            "clear queue": (("administer", "orders/1"),),
            "remove queue": (("administer", "orders/2"),),
            "remove channel": (("administer", "orders/*"),),
            "remove channel elsewhere": (("administer", "invoices/*"),),
            "queue information": (("administer", "orders/1"),),
            "channel information": (("administer", "orders"),),
            "list queues": (("administer", "orders/*"),),
            "list consumers": (("administer", "orders"),),
            "list channels": (("administer", "*"),),
            "list clients": (("administer", "*"),),
            "list nodes": (("administer", "*"),),
            "publish to topic": (("publish", "orders.new"),),
            "publish to topic elsewhere": (("publish", "invoices.new"),),
            "subscribe to topic": (("subscribe", "orders.new"),),
            "subscribe to topic elsewhere": (("subscribe", "invoices.new"),),
            "subscribe to topics": (("subscribe", "orders.*"),),
            "subscribe to all topics": (("subscribe", "*"),),
            "bind queue to topic": (("subscribe", "orders.new"), ("push", "orders/1")),
            "bind queue elsewhere to topic": (("subscribe", "orders.new"), ("push", "invoices/1")),
            "unbind queue from topic": (("administer", "orders/1"),),
            "route": (("route", "sorter"),),
            "create router": (("administer", "fresh"),),
            "remove router": (("administer", "sorter"),),
            "list routers": (("administer", "*"),),
            "list bindings": (("administer", "sorter"),),
            "bind queue": (("administer", "sorter"), ("push", "orders/1")),
            "bind queue elsewhere": (("administer", "sorter"), ("push", "invoices/1")),
            "bind client": (("administer", "sorter"), ("direct", "peer")),
            "bind topic": (("administer", "sorter"), ("publish", "orders.new")),
            "unbind": (("administer", "sorter"),),
            "test router": (("administer", "sorter"),),
        }
    )

    # Operation, target, headers and body of what is asked for by operation.
    operations: dict[str, tuple[int, str, dict[str, str], bytes]] = {  # noqa: RUF012
        "create queue": (610, MINE, {"Queue-Id": "77"}, b""),
        "create queue elsewhere": (610, OTHER, {"Queue-Id": "77"}, b""),
        "create channel": (603, "fresh", {}, b""),
        "create queue that dead-letters elsewhere": (610, MINE, {"Queue-Id": "78"}, b'{"DeadLetter":"invoices/1"}'),
        "update queue": (612, MINE, {"Queue-Id": "1"}, b'{"MessageLimit":5}'),
        "update queue elsewhere": (612, OTHER, {"Queue-Id": "1"}, b'{"MessageLimit":5}'),
        "clear queue": (613, MINE, {"Queue-Id": "1", "Messages": "yes"}, b""),
        "remove queue": (611, MINE, {"Queue-Id": "2"}, b""),
        "remove channel": (604, MINE, {}, b""),
        "remove channel elsewhere": (604, OTHER, {}, b""),
        "queue information": (615, MINE, {"Queue-Id": "1"}, b""),
        "channel information": (605, MINE, {}, b""),
        "list queues": (616, MINE, {}, b""),
        "list consumers": (607, MINE, {}, b""),
        "list channels": (606, "", {}, b""),
        "list clients": (631, "", {}, b""),
        "list nodes": (621, "", {}, b""),
        "join": (601, MINE, {}, b""),
        "join elsewhere": (601, OTHER, {}, b""),
        "join queue": (601, MINE, {"Queue-Ids": "1", "Prefetch": "7"}, b""),
        "join queue elsewhere": (601, OTHER, {"Queue-Ids": "1"}, b""),
        "join two queues": (601, MINE, {"Queue-Ids": "1,2"}, b""),
        "join to pull": (601, MINE, {"Queue-Ids": ""}, b""),
        "subscribe to topic": (601, "@topic:orders.new", {}, b""),
        "subscribe to topic elsewhere": (601, "@topic:invoices.new", {}, b""),
        "subscribe to topics": (601, "@topic:orders.*", {}, b""),
        "subscribe to all topics": (601, "@topic:*", {}, b""),
        "bind queue to topic": (662, "@topic:orders.new", {}, b'{"Target":"orders/1"}'),
        "bind queue elsewhere to topic": (662, "@topic:orders.new", {}, b'{"Target":"invoices/1"}'),
        "unbind queue from topic": (663, "@topic:orders.new", {"Binding-Name": "orders/1"}, b""),
        "create router": (652, "fresh", {"Route-Method": "0"}, b""),
        "remove router": (653, "sorter", {}, b""),
        "list routers": (651, "", {}, b""),
        "list bindings": (661, "sorter", {}, b""),
        "bind queue": (662, "sorter", {}, b'{"Name":"more","Target":"orders/1"}'),
        "bind queue elsewhere": (662, "sorter", {}, b'{"Name":"more","Target":"invoices/1"}'),
        "bind client": (662, "sorter", {}, b'{"Name":"more","Target":"@client:peer"}'),
        "bind topic": (662, "sorter", {}, b'{"Name":"more","Target":"@topic:orders.new"}'),
        "unbind": (663, "sorter", {"Binding-Name": "kept"}, b""),
        "test router": (654, "sorter", {}, b"body"),
    }

    events: dict[str, tuple[str, dict[str, str]]] = {  # noqa: RUF012
        "events of server": ("ClientConnected", {}),
        "events of channel": ("ClientJoined", {"Channel-Name": MINE}),
        "events of queue": ("MessageProduced", {"Channel-Name": MINE, "Queue-Id": "1"}),
        "events of channel elsewhere": ("ClientJoined", {"Channel-Name": OTHER}),
    }

    def attempt(self, place: Place, credentials: str, name: str) -> str:
        with TmqpPeer(*place.address()) as peer:
            shown = {"Client_Token": credentials} if credentials else {}
            answer = peer.hello(Client_Id=f"tried-{uuid.uuid4().hex}", **shown)
            if answer.content_type != 202:
                assert answer.kind == SERVER
                assert answer.content_type in (401, 503)
                assert peer.is_closed_within(5)
                return TURNED_AWAY if answer.content_type == 401 else TOLD_TO_WAIT
            return self.try_once(place, peer, name)

    def try_once(self, place: Place, peer: TmqpPeer, name: str) -> str:
        if name in self.operations:
            operation, target, headers, body = self.operations[name]
            code = peer.ask(operation, target, headers=headers, body=body).content_type
            # 481: there is such a queue already, reported only to clients that may create it.
            # 404: nothing is bound there, reported only to clients that may unbind it.
            assert code in (0, 401, 404, 481), f"{name} was answered by {code}"
            return DENIED if code == 401 else ALLOWED
        if name in self.events:
            return self.subscribe(peer, *self.events[name])
        channel = OTHER if "elsewhere" in name else MINE
        if name == "route":
            return self.wait_for_acknowledgement(peer, ROUTER, "sorter", "route on sorter")
        if name.startswith("publish to topic"):
            return self.wait_for_acknowledgement(peer, QUEUE, f"@topic:{channel}.new", f"publish on {channel}.new")
        if name.startswith("push"):
            return self.push(peer, channel)
        if name.startswith("pull"):
            return self.pull(peer, channel)
        return self.send(place, peer, name)

    def subscribe(self, peer: TmqpPeer, event: str, headers: dict[str, str]) -> str:
        asked = peer.new_id()
        pairs = list(headers.items())
        peer.send(RawFrame(kind=EVENT, id=asked, target=event.encode(), content_type=1, headers=pairs))
        code = answer_to(peer, asked).content_type
        assert code in (0, 1)
        return ALLOWED if code == 0 else DENIED

    def push(self, peer: TmqpPeer, channel: str) -> str:
        asked = peer.publish(channel, 1, b"body")
        # The refusal, if there is one, is written before the answer to what was asked behind it.
        marker = RawFrame(kind=SERVER, id=peer.new_id(), target=b"nowhere", content_type=602, pending_response=True)
        peer.send(marker)
        while (answer := peer.receive()).id != marker.id:
            if answer.id == asked and answer.kind == RESPONSE and answer.content_type == 401:
                return DENIED
        return ALLOWED

    def wait_for_acknowledgement(self, peer: TmqpPeer, kind: int, target: str, denied: str) -> str:
        asked = peer.new_id()
        peer.send(RawFrame(kind=kind, id=asked, target=target.encode(), payload=b"r", pending_acknowledge=True))
        reason = answer_to(peer, asked).header("Nack-Reason") or ""
        assert reason in ("", "no-consumers") or denied in reason, reason
        return DENIED if denied in reason else ALLOWED

    def pull(self, peer: TmqpPeer, channel: str) -> str:
        # Only members pull.
        peer.ask(601, channel)
        asked = peer.new_id()
        headers = [("Count", "1")]
        peer.send(RawFrame(kind=PULL, id=asked, target=channel.encode(), content_type=2, headers=headers))
        word = answer_to(peer, asked).header("No-Content")
        assert word in {"Unauthorized", "Empty"}
        return DENIED if word == "Unauthorized" else ALLOWED

    def send(self, place: Place, peer: TmqpPeer, name: str) -> str:
        """The message arrives or is rejected; a rejected response leaves only its audit line."""
        target = {"direct to name": "@name:peer", "direct to type": "@type:peer"}.get(name, "peer")
        kind = RESPONSE if name == "respond" else DIRECT
        asked, before = peer.new_id(), place.denials()
        peer.send(RawFrame(kind=kind, id=asked, target=target.encode(), payload=b"w", pending_response=kind == DIRECT))
        until = time.monotonic() + 10
        while time.monotonic() < until:
            readable, _, _ = select.select([place.peer.socket, peer.socket], [], [], 0.01)
            if place.peer.socket in readable:
                assert answer_to(place.peer, asked).payload == b"w"
                return ALLOWED
            if peer.socket in readable:
                assert answer_to(peer, asked).content_type == 401
                return DENIED
            if kind == RESPONSE and place.denials() > before:
                return DENIED
        raise AssertionError(f"{name}: neither delivered nor refused")


def answer_to(peer: TmqpPeer, asked: bytes) -> RawFrame:
    while (answer := peer.receive()).id != asked:
        pass
    return answer


class Mqks:
    """MQKS: credentials are those of the first line, `{id} auth {credentials}`."""

    entry: tuple[tuple[str, str], ...] = ()
    attempts = attempts(
        {
            "publish": (("publish", "orders.new"),),
            "publish elsewhere": (("publish", "invoices.new"),),
            "publish without an answer": (("publish", "orders.new"),),
            "publish elsewhere without an answer": (("publish", "invoices.new"),),
            "consume": (("receive", "orders/1"), ("subscribe", "orders.new")),
            "consume everything of a kind": (("receive", "orders/1"), ("subscribe", "orders.*")),
            "consume elsewhere": (("receive", "invoices/1"), ("subscribe", "orders.new")),
            "consume what is elsewhere": (("receive", "orders/1"), ("subscribe", "invoices.new")),
            "rebind": (("receive", "orders/1"), ("subscribe", "orders.new")),
            "rebind to nothing": (("receive", "orders/1"),),
            "rebind elsewhere": (("receive", "invoices/1"), ("subscribe", "orders.new")),
            "ack what others have": (("direct", "peer"),),
            "ack all that others have": (("direct", "peer"),),
            "reject what others have": (("direct", "peer"),),
            "delete_consumer": (("direct", "peer"),),
            "delete_consumer of somebody else": (("direct", "somebody"),),
            "delete_queue": (("administer", "orders/1"),),
            "delete_queue elsewhere": (("administer", "invoices/1"),),
            "_eval": (("administer", "*"),),
            "_eval of a worker": (("administer", "*"),),
            "ping": (),
        }
    )
    lines: dict[str, str] = {  # noqa: RUF012
        "publish": "publish --confirm orders.new data",
        "publish elsewhere": "publish --confirm invoices.new data",
        "publish without an answer": "publish orders.new data",
        "publish elsewhere without an answer": "publish invoices.new data",
        "consume": "consume --confirm orders/1 orders.new --manual-ack",
        "consume everything of a kind": "consume --confirm orders/1 orders.* --manual-ack",
        "consume elsewhere": "consume --confirm invoices/1 orders.new --manual-ack",
        "consume what is elsewhere": "consume --confirm orders/1 invoices.new --manual-ack",
        "rebind": "rebind --confirm orders/1 --add orders.new",
        "rebind to nothing": "rebind --confirm orders/1 --remove orders.new",
        "rebind elsewhere": "rebind --confirm invoices/1 --add orders.new",
        "ack what others have": "ack --confirm peer m1",
        "ack all that others have": "ack --confirm peer --all",
        "reject what others have": "reject --confirm peer m1",
        "delete_consumer": "delete_consumer --confirm peer",
        "delete_consumer of somebody else": "delete_consumer --confirm somebody",
        "delete_queue": "delete_queue --confirm orders/1",
        "delete_queue elsewhere": "delete_queue --confirm invoices/1",
        "_eval": "_eval len(state.queues)",
        "_eval of a worker": "_eval --worker=0 len(state.queues)",
        "ping": "ping data",
    }

    def can_show(self, name: str) -> bool:
        return True

    def attempt(self, place: Place, credentials: str, name: str) -> str:
        host, port = place.address("mqks")
        before = len(place.denied())
        with MqksPeer(f"mqks://{host}:{port}") as peer:
            if credentials:
                peer.send(f"who auth {credentials}")
                if peer.line().rstrip() != b"who ok":
                    assert peer.is_cut()
                    return self.turned_away(place, before)
            peer.send(f"asked {self.lines[name]}")
            answers: list[bytes] = []
            try:
                # The second one is read after the broker has judged everything in front of the first.
                for mark in (b"mark1", b"mark2"):
                    peer.send_bytes(mark + b" ping now\n")
                    while (line := peer.line()) != mark + b" ok now":
                        answers.append(line)
            except (EOFError, ConnectionError):
                assert not credentials, "let in, and cut off"
                assert answers, "cut off without a word"
                assert answers[0].startswith(b"asked error ")
                return self.turned_away(place, before)
        denied = any(line.startswith(b"asked error ") for line in answers)
        return DENIED if denied else ALLOWED

    def turned_away(self, place: Place, before: int) -> str:
        """A peer is not told why; the audit log is."""
        wait_until(lambda: len(place.denied()) > before, what="the audit line")
        why = place.denied()[-1].get("why")
        busy = ("too many attempts from this address", "too many logins at the same time")
        return TOLD_TO_WAIT if why in busy else TURNED_AWAY


class MicroMessage:
    """MicroMessage2: credentials are the property `token` of the extension `x-mqcore`."""

    entry: tuple[tuple[str, str], ...] = ()
    attempts = attempts(
        {
            "SEND to a queue": (("push", "orders/1"),),
            "SEND to a queue elsewhere": (("push", "invoices/1"),),
            "SEND to a queue, unacknowledged": (("push", "orders/1"),),
            "SEND to a queue elsewhere, unacknowledged": (("push", "invoices/1"),),
            "SEND to a topic": (("publish", "orders.new"),),
            "SEND to a topic elsewhere": (("publish", "invoices.new"),),
            "SEND to a topic, unacknowledged": (("publish", "orders.new"),),
            "SEND to a topic elsewhere, unacknowledged": (("publish", "invoices.new"),),
            "subscribe to a queue": (("receive", "orders/1"),),
            "subscribe to a queue elsewhere": (("receive", "invoices/1"),),
            "subscribe to a topic": (("subscribe", "orders.new"),),
            "subscribe to a topic elsewhere": (("subscribe", "invoices.new"),),
            "unsubscribe": (),
            "ping": (),
        }
    )

    def can_show(self, name: str) -> bool:
        return True

    def attempt(self, place: Place, credentials: str, name: str) -> str:
        host, port = place.address("mm2")
        refusals = len(place.denied())
        shown = f"x-mqcore:token={quote(credentials, safe='')}" if credentials else "x-mqcore"
        acknowledges = "" if "unacknowledged" in name else "batch-ack;x-nack;"
        with MM2Peer(f"mm2://{host}:{port}") as peer:
            peer.open(f"{acknowledges}pub-sub;{shown}")
            peer.command("ping;id=in")
            frame = peer.frame()
            if frame.kind == "error":
                assert frame.text.startswith(("auth: ", "busy: "))
                wait_until(lambda: len(place.denied()) > refusals, what="the audit line")
                why = place.denied()[-1].get("why")
                busy = ("too many attempts from this address", "too many logins at the same time")
                return TOLD_TO_WAIT if why in busy else TURNED_AWAY
            assert frame.text == "ok;id=in"
            channel = OTHER if "elsewhere" in name else MINE
            destination = f"{channel}/1" if "queue" in name else f"topic/{channel}.new"
            if name.startswith("SEND"):
                return self.send(peer, destination)
            said = subscribe(destination, name="s") if name.startswith("subscribe") else f"{name};id=s"
            return DENIED if peer.ask(said).startswith("fail: auth: ") else ALLOWED

    def send(self, peer: MM2Peer, destination: str) -> str:
        peer.publish(destination, b"data")
        if "x-nack" in peer.ids:
            frame = peer.frame()
            if frame.kind == "command":
                assert frame.text.startswith("fail;id=message-1,reason="), "the reason comes before the nack"
                frame = peer.frame()
            assert (frame.kind, frame.payload) == ("extension", b"\x00\x01")
            return DENIED if frame.id == peer.id_of("x-nack") else ALLOWED
        # The second one is read after the broker has judged everything in front of the first.
        for mark in ("mark1", "mark2"):
            peer.command(f"ping;id={mark}")
            frame = peer.frame()
            if frame.kind == "error":
                return DENIED if frame.text.startswith("auth: ") else ALLOWED
        return ALLOWED


class Throttr:
    """Throttr: there is no word for credentials, so peers are known by the certificates that they show."""

    entry: tuple[tuple[str, str], ...] = ()
    attempts = attempts(
        {
            **{
                f"{word}{where}": (("limit", key),)
                for word in ("INSERT", "QUERY", "UPDATE", "PURGE", "SET", "GET", "STAT", "CONSUME")
                for where, key in (("", "orders/1"), (" elsewhere", "invoices/1"))
            },
            "CONSUME ALL": (("limit", "orders/1"),),
            "CONSUME ALL both": (("limit", "orders/1"), ("limit", "invoices/1")),
            "LIST": (("limit", "*"),),
            "STATS": (("limit", "*"),),
            "INFO": (),
            "CONNECTIONS": (("administer", "*"),),
            "CONNECTION": (("administer", "*"),),
            "CHANNELS": (("administer", "*"),),
            "CHANNEL": (("administer", "orders.new"),),
            "CHANNEL elsewhere": (("administer", "invoices.new"),),
            "WHOAMI": (),
            "UNSUBSCRIBE": (),
            "SUBSCRIBE": (("subscribe", "orders.new"),),
            "SUBSCRIBE elsewhere": (("subscribe", "invoices.new"),),
            "PUBLISH": (("publish", "orders.new"),),
            "PUBLISH elsewhere": (("publish", "invoices.new"),),
        }
    )

    def can_show(self, name: str) -> bool:
        return "password" not in name and "unknown user" not in name and name not in TOKENS_ONLY

    def connect(self, place: Place, credentials: str) -> ThrottrPeer:
        context = ssl.create_default_context(cafile=str(place.authority.ca))
        if credentials:
            context.load_cert_chain(str(place.certificates[credentials]))
        peer = ThrottrPeer(place.address("throttrs"))
        peer.socket = context.wrap_socket(peer.socket, server_hostname="localhost")
        return peer

    def attempt(self, place: Place, credentials: str, name: str) -> str:
        word = name.removesuffix(" elsewhere").removesuffix(" both")
        topic, key = (b"invoices.new", b"invoices/1") if "elsewhere" in name else (b"orders.new", b"orders/1")
        with self.connect(place, "admin token") as owner:
            known = self.prepare(owner, word)
            try:
                with self.connect(place, credentials) as peer:
                    peer.send(self.request(peer, name, topic, key, known))
                    answer = peer.read(9 if word in self.COUNTED else 1)
            except (Cut, ConnectionError, ssl.SSLError):
                return TURNED_AWAY
        if word in self.COUNTED:
            # There is always an entry; a client without permission receives an empty list.
            return ALLOWED if int.from_bytes(answer[1:], "little") else DENIED
        return DENIED if answer in (b"\x00", b"\x02") and word != "UNSUBSCRIBE" else ALLOWED

    COUNTED = ("LIST", "STATS", "CONNECTIONS", "CHANNELS")

    def prepare(self, owner: ThrottrPeer, word: str) -> bytes:
        """Create the keys, so that only clients without permission get an error. Returns the peer that created them."""
        for topic, key in ((b"orders.new", b"orders/1"), (b"invoices.new", b"invoices/1")):
            owner.status(owner.keyed(4, key))
            if word in ("GET", "SET"):
                assert owner.status(owner.set(key, b"value", 50))
            elif word not in ("INSERT", "CONSUME"):
                assert owner.status(owner.insert(key, 5, 50))
            assert owner.status(owner.keyed(0x11, topic))
        return owner.ask(b"\x18", 17)[1:]

    def request(self, peer: ThrottrPeer, name: str, topic: bytes, key: bytes, known: bytes) -> bytes:
        word = name.removesuffix(" elsewhere").removesuffix(" both")
        rules = peer.rule(key, 5, 1, 5) + peer.rule(b"invoices/1", 5, 1, 5) * ("both" in name)
        return {
            "INSERT": peer.insert(key, 5, 5),
            "UPDATE": peer.update(key, 0, 0, 5),
            "SET": peer.set(key, b"value", 5),
            "CONSUME": bytes([0xC0, 0]) + rules,
            "CONSUME ALL": bytes([0xC1, 0, 2 if "both" in name else 1]) + rules,
            "PUBLISH": peer.publish(topic, b"data"),
            "LIST": b"\x07",
            "INFO": b"\x08",
            "STATS": b"\x10",
            "CONNECTIONS": b"\x14",
            "CONNECTION": b"\x15" + known,
            "CHANNELS": b"\x16",
            "WHOAMI": b"\x18",
        }.get(word) or peer.keyed(self.KEYED[word], topic if word in self.NAMED else key)

    NAMED = ("SUBSCRIBE", "UNSUBSCRIBE", "CHANNEL")
    KEYED: dict[str, int] = {  # noqa: RUF012
        "QUERY": 2,
        "PURGE": 4,
        "GET": 6,
        "STAT": 9,
        "SUBSCRIBE": 0x11,
        "UNSUBSCRIBE": 0x12,
        "CHANNEL": 0x17,
    }


TOKENS_ONLY = ("token with a letter changed", "expired token", "token for another type of client")
"""Faults that a token can have, but not a certificate."""


class Http:
    """The admin side: credentials are in the Authorization header."""

    entry: tuple[tuple[str, str], ...] = ()

    def can_show(self, name: str) -> bool:
        return True

    attempts = attempts(
        {
            **{
                f"GET {page}": (("administer|inspect", page),)
                for page in (
                    *(
                        "/access",
                        "/attention",
                        "/connections",
                        "/healthz",
                        "/metrics",
                        "/overview",
                        "/queues",
                        "/cluster",
                    ),
                    *("/queues/a/1", "/stream", "/totals", "/errors", "/openapi.json", "/schedules"),
                    *("/jobs", "/policies"),
                )
            },
            "GET /backup": (("administer", "/backup"),),
            "GET /history": (("administer", "/history"),),
            "GET /nowhere": (("administer", "/nowhere"),),
            "GET /queues/a/1/messages/absent": (("administer", "/queues/a/1/messages/absent"),),
            "GET /queues/a/1/messages": (("administer", "/queues/a/1/messages"),),
            "GET /trace/absent": (("administer", "/trace/absent"),),
            "GET /users": (("administer", "/users"),),
            "POST /users/absent/password": (("administer", "/users/absent/password"),),
            "DELETE /users/absent": (("administer", "/users/absent"),),
            "POST /tokens": (("administer", "/tokens"),),
            "DELETE /tokens/absent": (("administer", "/tokens/absent"),),
            "GET /audit": (("administer", "/audit"),),
            "GET /handlers/absent/stack": (("administer", "/handlers/absent/stack"),),
            "POST /queues/a/1/purge": (("administer", "/queues/a/1/purge"),),
            "POST /queues/a/1/move": (("administer", "/queues/a/1/move"),),
            "DELETE /queues/a/1": (("administer", "/queues/a/1"),),
            "DELETE /connections/absent": (("administer", "/connections/absent"),),
            "POST /routers/absent/test": (("administer", "/routers/absent/test"),),
            "DELETE /policies/absent": (("administer", "/policies/absent"),),
            "GET /limits": (("administer", "/limits"),),
            "DELETE /limits/absent": (("administer", "/limits/absent"),),
            "POST /authority/reload": (("administer", "/authority/reload"),),
            "DELETE /overview": (("administer", "/overview"),),
            f"DELETE /schedules/{0:040}": (("administer", f"/schedules/{0:040}"),),
        }
    )

    def attempt(self, place: Place, credentials: str, name: str) -> str:
        method, page = name.split(" ")
        request = urllib.request.Request(f"{place.broker.admin_url}{page}", method=method)
        if credentials:
            basic = credentials.startswith("Basic ")
            request.add_header("Authorization", credentials if basic else f"Bearer {credentials}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                code = answer.status
        except urllib.error.HTTPError as refused:
            with refused:
                code = refused.code
        # This broker saves nothing, so pages about files answer 400, and those that change users 409.
        assert code in (200, 400, 401, 403, 404, 405, 409, 429)
        return {401: TURNED_AWAY, 429: TOLD_TO_WAIT, 403: DENIED}.get(code, ALLOWED)


ADAPTERS: dict[str, Adapter] = {
    "tmqp": Tmqp(),
    "mqks": Mqks(),
    "mm2": MicroMessage(),
    "throttr": Throttr(),
    "emqp": Eventmq(),
    "http": Http(),
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from place(tmp_path_factory.mktemp("strict"), ())


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from place(tmp_path_factory.mktemp("lenient"), PERSONAS["nothing shown, anonymous may push"].rules or ())


CELLS = [
    pytest.param(protocol, name, attempt, id=f"{protocol}-{name}-{attempt.name}")
    for protocol, adapter in ADAPTERS.items()
    for name in PERSONAS
    if adapter.can_show(name)
    for attempt in adapter.attempts
]


def sampled() -> list[ParameterSet]:
    """Random cells: each action allowed and refused, each persona and every verdict, in every protocol."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for at, cell in enumerate(CELLS):
        protocol, name, attempt = cell.values
        assert isinstance(protocol, str)
        assert isinstance(name, str)
        assert isinstance(attempt, Attempt)
        verdict = expected(PERSONAS[name], attempt, ADAPTERS[protocol].entry)
        groups[protocol, "action", attempt.name, verdict == ALLOWED].append(at)
        groups[protocol, "persona", name].append(at)
        groups[protocol, "verdict", verdict].append(at)
    chance, chosen = choices(__name__), set[int]()
    # Small groups come first: their cells are also in large ones.
    for group in sorted(groups.values(), key=len):
        if chosen.isdisjoint(group):
            chosen.add(chance.choice(group))
    return [CELLS[at] for at in sorted(chosen)]


def test_the_matrix_has_enough_cells_and_every_verdict() -> None:
    assert len(CELLS) >= 200
    for protocol, adapter in ADAPTERS.items():
        verdicts = [
            expected(PERSONAS[name], attempt, adapter.entry)
            for name in PERSONAS
            if adapter.can_show(name)
            for attempt in adapter.attempts
        ]
        for verdict in (ALLOWED, DENIED, TURNED_AWAY):
            assert verdicts.count(verdict) >= 4, f"{protocol}: {verdict}"


@pytest.mark.parametrize(("protocol", "name", "attempt"), CELLS if FULL else sampled())
def test_rules_apply_in_every_protocol(
    protocol: str, name: str, attempt: Attempt, request: pytest.FixtureRequest
) -> None:
    here: Place = request.getfixturevalue("lenient" if "anonymous" in name else "strict")
    here.restore()
    adapter = ADAPTERS[protocol]
    wanted = expected(PERSONAS[name], attempt, adapter.entry)
    shown = here.shown[name]
    if protocol == "throttr":
        shown = name if name in here.certificates else ""
    if protocol == "http" and not attempt.name.startswith("GET") and "token" not in name:
        # Only a token changes anything there: a browser shows a password by itself.
        wanted = TURNED_AWAY
    before, denials, refusals = here.state(), here.denials(), len(here.denied())
    outcome = adapter.attempt(here, shown, attempt.name)
    until = time.monotonic() + 20
    # All peers here share one address, whose wrong passwords make its right ones wait too.
    while outcome == TOLD_TO_WAIT and wanted != TURNED_AWAY and time.monotonic() < until:
        time.sleep(0.1)
        outcome = adapter.attempt(here, shown, attempt.name)
    assert outcome == wanted or (outcome == TOLD_TO_WAIT and wanted == TURNED_AWAY)
    if wanted == DENIED:
        wait_until(lambda: here.denials() > denials, what="the audit line")
    if wanted == TURNED_AWAY:
        wait_until(lambda: len(here.denied()) > refusals, what="the audit line")
    if wanted != ALLOWED and here.state() != before:
        # An unconfirmed message of an earlier attempt may arrive only now. A trace of this attempt comes back.
        here.restore()
        before = here.state()
        adapter.attempt(here, shown, attempt.name)
        assert here.state() == before, "a denied action left a trace"
