"""Every command of every protocol, in every order up to three, from peers that have not logged in: no effect at all."""

from __future__ import annotations

import itertools
import json
import socket
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import eventmq_peer as zmtp
import mm2_peer as mm2
from depth import SEED, by_depth, choices
from hostile.attacks import LISTENERS
from hostile.crowd import Conversation, converse
from hostile.refusals import CHECKS
from metrics import metric
from mm2_peer import Handshake
from mqcore._core import AuthorityStore
from protocols.conversation import (
    CREATE_CHANNEL,
    CREATE_QUEUE,
    CREATE_ROUTER,
    JOIN,
    OK,
    ROUTER,
    Client,
)
from served import ServedBroker, serving, wait_until
from test_unfinished_input import endpoint
from throttr_peer import CHANNELS, CONNECTIONS, GET, INFO, LIST, PURGE, QUERY, STAT, STATS, WHOAMI, ThrottrPeer
from tmqp_peer import ACCEPTED, ACKNOWLEDGE, DIRECT, EVENT, PREAMBLE, PULL, QUEUE, RESPONSE, SERVER, RawFrame

HANDSHAKE_SECONDS = 1
"""Longest time in which a peer may log in, as the broker of this test is configured."""
SLACK_SECONDS = 8.0
"""How late a busy machine may be."""
SEQUENCES = by_depth(500, 0)
"""Random sequences of the quick depth; the full depth has all."""
TOGETHER = by_depth(250, 1000)
"""Connections at a time."""
LENGTH_MAX = 3
"""Longest sequence."""

UNKNOWN = "mqt_0123456789ab_" + "x" * 43
"""A token that looks right."""
OVERSIZED = "mqt_" + "x" * 70_000


@dataclass
class Place:
    """A broker with users, and a client of it that has logged in."""

    broker: ServedBroker
    observer: Client
    token: str
    expired: str

    def tokens(self) -> dict[str, str]:
        """Credentials that are worth nothing."""
        wrong = self.token[:-1] + ("a" if self.token[-1] != "a" else "b")
        return {"empty": "", "unknown": UNKNOWN, "wrong": wrong, "expired": self.expired, "oversized": OVERSIZED}

    def state(self) -> object:
        """Everything that the broker has and has counted, but its own times and logins."""
        request = urllib.request.Request(
            f"{self.broker.admin_url}/overview?limit=1000", headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=10) as page:
            overview = json.load(page)
        del overview["uptime_seconds"], overview["now_ms"]
        for client in overview["clients"]:
            del client["online_ms"]
        request.full_url = f"{self.broker.admin_url}/metrics"
        with urllib.request.urlopen(request, timeout=10) as page:
            lines = page.read().decode().splitlines()
        wanted = ("limiter_keys", "limiter_bytes", "limiter_requests", "schedules", "schedule_runs", "creations")
        wanted += ("eventmq", "commands", "actions", "topic", "messages", "router")
        return overview, [line for line in lines if line.startswith(tuple(f"mqcore_{name}" for name in wanted))]


# --- commands ------------------------------------------------------------------------------------------------------

Commands = dict[str, bytes]


def tmqp_commands(tokens: dict[str, str]) -> Commands:
    def hello(properties: str) -> bytes:
        body = f"CONNECT /\r\nClient-Id: x\r\n{properties}".encode()
        return RawFrame(kind=SERVER, id=b"h", content_type=101, payload=body).encode()

    operations = (601, 602, 603, 604, 605, 606, 607, 608, 610, 611, 612, 613, 615, 616, 621, 631, 632, 641)
    operations += (651, 652, 653, 654, 655, 661, 662, 663)
    frames = {
        "queue": RawFrame(kind=QUEUE, id=b"m", target=b"orders", payload=b"x", pending_acknowledge=True),
        "copy": RawFrame(kind=QUEUE, id=b"m", target=b"fresh", headers=[("CC", "orders")], payload=b"x"),
        "topic": RawFrame(kind=QUEUE, id=b"t", target=b"@topic:a.b", payload=b"x"),
        "router": RawFrame(kind=ROUTER, id=b"r", target=b"sorter", payload=b"x", pending_acknowledge=True),
        "direct": RawFrame(kind=DIRECT, id=b"d", target=b"observer", payload=b"x"),
        "acknowledge": RawFrame(kind=ACKNOWLEDGE, id=b"m", target=b"orders"),
        "response": RawFrame(kind=RESPONSE, id=b"m", target=b"observer"),
        "pull": RawFrame(kind=PULL, id=b"p", target=b"orders", headers=[("Count", "5"), ("Clear", "All")]),
        "event": RawFrame(kind=EVENT, id=b"e", target=b"ClientConnected", content_type=1),
        "terminate": RawFrame(kind=0x08),
        **{
            f"operation {code}": RawFrame(
                kind=SERVER,
                id=b"o",
                target=b"orders",
                content_type=code,
                headers=[("Queue-Id", "0")],
                pending_response=True,
            )
            for code in operations
        },
    }
    logins = {f"hello, {name} token": hello(f"Client-Token: {token}\r\n") for name, token in tokens.items()}
    logins["hello, node"] = hello("Client-Type: server\r\nMqcore-Node: 1\r\nMqcore-Node-Epoch: 7\r\n")
    messages = {"hello": hello(""), **logins, **{name: frame.encode() for name, frame in frames.items()}}
    return messages | {"ping": bytes.fromhex("89ff000000000000")}


def mqks_commands(tokens: dict[str, str]) -> Commands:
    lines = {
        "publish": "1 publish --confirm a.b data",
        "publish unconfirmed": "2 publish a.b data",
        "consume": "3 consume --confirm orders a.b --manual-ack",
        "consume fresh": "4 consume --confirm fresh a.b",
        "rebind": "5 rebind --confirm orders --add a.b",
        "ack": "6 ack --confirm 3 --all",
        "reject": "7 reject --confirm 3 --all",
        "delete_queue": "8 delete_queue --confirm orders",
        "delete_consumer": "9 delete_consumer --confirm 3",
        "_eval": "a _eval len(state.queues)",
        "ping": "b ping data",
        "unknown": "c nothing at all",
        "empty": "",
    }
    logins = {f"auth, {name} token": f"d auth {token}" for name, token in tokens.items()}
    return {name: f"{line}\n".encode() for name, line in (lines | logins).items()}


def throttr_commands(_: dict[str, str]) -> Commands:
    peer = object.__new__(ThrottrPeer)
    peer.width = 4
    rule = peer.rule(b"key", 5, 1, 5)
    return {
        "insert": peer.insert(b"key", 5, 5),
        "update": peer.update(b"key", 0, 0, 5),
        "set": peer.set(b"buffer", b"value", 5),
        "publish": peer.publish(b"a.b", b"data"),
        "event": peer.event(b"a.b", b"data"),
        "subscribe": peer.keyed(0x11, b"a.b"),
        "unsubscribe": peer.keyed(0x12, b"a.b"),
        "consume": bytes([0xC0, 0]) + rule,
        "consume all": bytes([0xC1, 0, 1]) + rule,
        "connection": b"\x15" + bytes(16),
        "channel": peer.keyed(0x17, b"a.b"),
        **{f"request {code}": peer.keyed(code, b"key") for code in (QUERY, PURGE, GET, STAT)},
        **{f"request {code}": bytes([code]) for code in (LIST, INFO, STATS, CONNECTIONS, CHANNELS, WHOAMI)},
    }


def mm2_commands(tokens: dict[str, str]) -> Commands:
    def login(token: str) -> bytes:
        return Handshake(required=f"pub-sub;x-mqcore:token={token}").encode()

    # A handshake has two messages of each side, and both may have the token.
    logins = {f"handshake, {name} token": login(token) for name, token in tokens.items() if name != "oversized"}
    logins |= {f"{name}, twice": 2 * login for name, login in logins.items()}
    return {
        "handshake": Handshake(required="pub-sub;x-mqcore").encode(),
        "handshake, twice": 2 * Handshake(required="ack;pub-sub;x-mqcore").encode(),
        **logins,
        "handshake, oversized token": login("x" * 60_000),
        "message": mm2.message(1, "orders/0", b"x"),
        "topic": mm2.message(1, "topic/a.b", b"x"),
        "subscribe": mm2.command(mm2.subscribe("orders/0", name="s")),
        "subscribe topic": mm2.command(mm2.subscribe("topic/a.b", name="t", wanted="a=1")),
        "unsubscribe": mm2.command("unsubscribe;id=s"),
        "ping": mm2.command("ping;id=in"),
        "extension": mm2.extension(1, b"\0\1"),
        "error": bytes([mm2.ERROR, 1]) + b"x",
    }


def emqp_commands(tokens: dict[str, str]) -> Commands:
    def handshake(kind: bytes = b"DEALER", token: str = "") -> bytes:
        return zmtp.GREETING + zmtp.ready(kind, b"", token)

    job = b'["run", {"path": "p", "callable": "c"}]'
    commands = [
        [b"INFORM", b"i", b'[[1, "orders/0"]]', b"worker"],
        [b"INFORM", b"i", b"", b"scheduler"],
        [b"READY", b"r"],
        [b"REPLY", b"r", b"{}", b"j"],
        [b"REQUEST", b"j", b"orders/0", b"guarantee", job],
        [b"SCHEDULE", b"s", b"orders", b"", b"1", job, b""],
        [b"UNSCHEDULE", b"s", b"orders", b"", b"1", job, b""],
        [b"PUBLISH", b"p", b"a.b", b"data"],
        [b"STATUS", b"a"],
        [b"ROUTER_SHOW_WORKERS", b"a"],
        [b"ROUTER_SHOW_SCHEDULERS", b"a"],
        [b"DISCONNECT", b"d"],
        [b"KBYE", b"k"],
    ]
    messages = {f"{one[0].decode()} {at}": zmtp.message([b"", b"eMQP/1.0", *one]) for at, one in enumerate(commands)}
    logins = {f"handshake, {name} token": handshake(token=token) for name, token in tokens.items()}
    subscriptions = {
        "SUBSCRIBE": zmtp.command(b"SUBSCRIBE", b"a"),
        "subscription": zmtp.message([b"\x01a"]),
        "PING": zmtp.command(b"PING", b"\0\0x"),
    }
    return logins | {"handshake": handshake(), "handshake, SUB": handshake(b"SUB")} | messages | subscriptions


COMMANDS = {
    "tmqp": tmqp_commands,
    "mqks": mqks_commands,
    "throttr": throttr_commands,
    "mm2": mm2_commands,
    "emqp-frontend": emqp_commands,
    "emqp": emqp_commands,
    "emqp-admin": emqp_commands,
    "emqp-publish": emqp_commands,
    "emqp-subscribe": emqp_commands,
}
"""The commands of each listener, and logins that fail."""
FULL_LENGTH_MAX = {"emqp": 2, "emqp-admin": 2, "emqp-publish": 2, "emqp-subscribe": 2}
"""Shorter sequences for listeners that have the same commands as another one."""


def sequences(listener: str, commands: Commands) -> Iterator[tuple[str, ...]]:
    """Every sequence of commands, by their names."""
    for length in range(1, FULL_LENGTH_MAX.get(listener, LENGTH_MAX) + 1):
        yield from itertools.product(commands, repeat=length)


def bytes_of(listener: str, commands: Commands, names: tuple[str, ...]) -> bytes:
    """The bytes of a sequence. TMQP has eight bytes before everything else."""
    return (PREAMBLE if listener == "tmqp" else b"") + b"".join(commands[name] for name in names)


# --- tests ---------------------------------------------------------------------------------------------------------


def listening(directory: Path) -> Any:
    """A broker with a listener of each protocol."""
    listen = [argument for each in LISTENERS if "tmqps" not in each for argument in ("--listen", each)]
    others = ("--admin", "http://127.0.0.1:0", "--auto-create", "--node-name", "here", "--data-dir", str(directory))
    return serving(*listen, *others, environment={"MQCORE_HANDSHAKE_TIMEOUT": f"{HANDSHAKE_SECONDS}s"})


def prepare(broker: ServedBroker, token: str | None) -> Client:
    """Create what commands name, and watch everything that a client can."""
    observer = Client(*endpoint(broker, "tmqp"))
    properties = {"Client_Token": token} if token else {}
    assert observer.hello(Client_Id="observer", **properties).content_type == ACCEPTED
    for operation, target, headers in (
        (CREATE_CHANNEL, "orders", {}),
        (CREATE_QUEUE, "orders", {"Queue-Id": "0"}),
        (CREATE_ROUTER, "sorter", {"Route-Method": "0"}),
        (JOIN, "orders", {}),
        (JOIN, "@topic:*", {}),
        (JOIN, "@topic:*.*", {}),
    ):
        assert observer.ask(operation, target, headers=headers).content_type == OK, target
    for event in ("ClientConnected", "ClientDisconnected", "ChannelCreated", "ChannelRemoved"):
        assert observer.subscribe(event) == OK
    for event in ("ClientJoined", "ClientLeft", "QueueCreated", "QueueUpdated", "QueueRemoved"):
        assert observer.subscribe(event, Channel_Name="orders") == OK, event
    assert observer.subscribe("MessageProduced", Channel_Name="orders", Queue_Id="0") == OK
    return observer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("gate")
    store = AuthorityStore.of_data_dir(directory)
    token = store.add_token(json.dumps({"name": "t", "allow": ["*"]}))[1]
    ended = {"name": "e", "allow": ["*"], "expires_ms": int(time.time() * 1000) - 1000}
    expired = store.add_token(json.dumps(ended))[1]
    with listening(directory) as broker:
        observer = prepare(broker, token)
        yield Place(broker, observer, token, expired)
        observer.close()


@pytest.mark.timeout(by_depth(60, 1200))
@pytest.mark.parametrize("protocol", CHECKS)
def test_no_sequence_of_commands_before_a_login_has_an_effect(protocol: str, place: Place) -> None:
    listeners = [name for name in COMMANDS if name.partition("-")[0] == protocol]
    chance = choices(f"{__name__} {protocol}")
    before = place.state()
    place.observer.arrived("orders")
    names: dict[int, str] = {}
    answers: Counter[bytes] = Counter()
    count, slowest, wrong = 0, 0.0, []

    def all_sequences() -> Iterator[Conversation]:
        for listener in listeners:
            commands = COMMANDS[listener](place.tokens())
            chosen = sequences(listener, commands)
            if SEQUENCES:
                chosen = iter(chance.sample(list(chosen), SEQUENCES // len(CHECKS) // len(listeners)))
            for sequence in chosen:
                conversation = Conversation(endpoint(place.broker, listener), bytes_of(listener, commands, sequence))
                names[id(conversation)] = f"{listener}: {', '.join(sequence)}"
                yield conversation

    limit = HANDSHAKE_SECONDS + SLACK_SECONDS
    for ended in converse(all_sequences(), together=TOGETHER, limit=limit):
        name = names.pop(id(ended))
        count += 1
        if ended.closed_after is None:
            wrong.append(f"{name}: still open after {limit} s")
        else:
            slowest = max(slowest, ended.closed_after)
        try:
            CHECKS[protocol](bytes(ended.answer))
        except AssertionError as error:
            wrong.append(f"{name}: {bytes(ended.answer)!r} {error}")
        answers[bytes(ended.answer[:4])] += 1
    print(f"{protocol}: {count} sequences, seed {SEED}; the last connection closed after {slowest:.2f} s")
    assert not wrong, "\n".join(wrong[:20])
    assert place.observer.arrived("orders") == [], "the observer saw an effect"
    assert place.state() == before


IN = 'mqcore_messages_total{outcome="in"}'
TOPIC_IN = 'mqcore_topic_messages_total{outcome="in"}'


@pytest.mark.parametrize(
    ("listener", "sequence", "effect"),
    [
        ("tmqp", ("hello", "queue"), IN),
        ("mqks", ("publish",), TOPIC_IN),
        ("throttr", ("insert",), 'mqcore_limiter_keys{kind="counter"}'),
        ("mm2", ("handshake, twice", "message"), IN),
        ("emqp-frontend", ("handshake", "REQUEST 4"), IN),
        ("emqp", ("handshake", "INFORM 0"), "mqcore_eventmq_workers"),
        ("emqp-publish", ("handshake", "PUBLISH 7"), TOPIC_IN),
    ],
)
def test_the_same_commands_have_effects_where_no_login_is_needed(
    listener: str, sequence: tuple[str, ...], effect: str, tmp_path: Path
) -> None:
    """The commands above are valid, and the broker rejects them only because no login came before."""
    with listening(tmp_path) as broker, prepare(broker, None):
        assert metric(broker, effect) == 0
        with socket.create_connection(endpoint(broker, listener), timeout=10) as peer:
            peer.sendall(bytes_of(listener, COMMANDS[listener]({}), sequence))
            wait_until(lambda: metric(broker, effect) == 1, what="the effect")
