"""Every action, in every protocol, for every sort of peer: the expected answer each.

A protocol joins by an adapter: how one shows credentials in it, and how one attempts each of its actions. What is
expected follows from the rules alone and is the same for all of them.
"""

from __future__ import annotations

import json
import select
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

import mqcore
from conftest import wait_until
from mqcore._core import AuthorityStore
from mqcore.config import AuthorityOptions
from tmqp_peer import DIRECT, EVENT, PULL, RESPONSE, SERVER, RawFrame, TmqpPeer

ALLOWED, DENIED, TURNED_AWAY, TOLD_TO_WAIT = "allowed", "denied", "turned away", "told to wait"

# The channel inside of the scopes below; `other` is outside.
MINE, OTHER = "orders", "invoices"


@dataclass(frozen=True)
class Persona:
    """A sort of peer: what it shows, and which rules then hold for it. `None`: it must not get in at all."""

    rules: tuple[str, ...] | None
    """What it may do."""


PERSONAS = {
    "nothing shown": Persona(None),
    "nothing shown, anonymous may push": Persona(("push:orders/*",)),
    "wrong token": Persona(None),
    "token with a letter changed": Persona(None),
    "expired token": Persona(None),
    "token for another type of client": Persona(None),
    "wrong password": Persona(None),
    "unknown user": Persona(None),
    "token that pushes": Persona(("push:orders/*",)),
    "token that joins": Persona(("join:orders", "receive:orders/*")),
    "token that joins and must not receive": Persona(("join", "pull")),
    "token that consumes": Persona(("join:orders", "receive:orders/*", "pull:orders/*")),
    "token that creates": Persona(("create:orders/*", "events:orders/*", "direct:peer")),
    "token that administers one channel": Persona(("administer:orders/*",)),
    "token that scrapes": Persona(("administer:/metrics",)),
    "token without rules": Persona(()),
    "admin token": Persona(("*",)),
    "admin user": Persona(("*",)),
}


@dataclass(frozen=True)
class Attempt:
    """Something to do, and the rules of which all are needed."""

    name: str
    needs: tuple[tuple[str, str], ...]


def covers(rule: str, action: str, resource: str) -> bool:
    """What rules mean, written once more and as plainly as the few patterns used here allow."""
    actions, _, pattern = rule.partition(":")
    if actions != "*" and action not in actions.split(","):
        return False
    if pattern in ("", "*"):
        return True
    if resource == "*":
        return False
    prefix = pattern.removesuffix("*")
    if prefix != pattern:
        return resource.startswith(prefix) or resource + "/" == prefix
    return resource == pattern


def expected(persona: Persona, attempt: Attempt) -> str:
    """What has to come of it."""
    if persona.rules is None:
        return TURNED_AWAY
    met = all(any(covers(rule, *need) for rule in persona.rules) for need in attempt.needs)
    return ALLOWED if met else DENIED


@dataclass
class Place:
    """A broker with users and tokens, where two channels are, and a client that is called `peer`."""

    broker: mqcore.Broker
    audit: Path
    shown: dict[str, str]
    peer: TmqpPeer

    def address(self) -> tuple[str, int]:
        """Where TMQP is spoken."""
        host, port = self.broker.listeners[0].removeprefix("tmqp://").rsplit(":", 1)
        return host, int(port)

    def denials(self) -> int:
        """How many audit lines say that an action was denied."""
        text = self.audit.read_text() if self.audit.exists() else ""
        # The last line may still be on its way.
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return sum(line["verdict"] == "denied" and line["event"] == "action" for line in lines)

    def restore(self) -> None:
        """Make whatever an earlier attempt has removed, and remove what it has pushed."""
        for channel in (MINE, OTHER):
            assert self.peer.ask(603, channel).content_type in (0, 481)
            for queue, status in (("1", "push"), ("2", "pull")):
                body = json.dumps({"Status": status}).encode()
                answer = self.peer.ask(610, channel, headers={"Queue-Id": queue}, body=body)
                assert answer.content_type in (0, 481)
            # What an earlier attempt has pushed would go to the next one that joins.
            cleared = self.peer.ask(613, channel, headers={"Queue-Id": "1", "Messages": "yes"})
            assert cleared.content_type == 0

    def state(self) -> object:
        """What there is, without what counts connections."""
        stats = self.broker.stats()
        queues = [(queue.address, queue.options, queue.received, queue.normal) for queue in stats.queues]
        return sorted(channel.name for channel in stats.channels), sorted(map(repr, queues))


class Adapter(Protocol):
    """How one protocol is spoken, as far as this test needs it."""

    attempts: tuple[Attempt, ...]

    def attempt(self, place: Place, credentials: str, name: str) -> str:
        """Show `credentials`, attempt what is called `name`, and say what came of it."""
        ...


def attempts(needs: dict[str, tuple[tuple[str, str], ...]]) -> tuple[Attempt, ...]:
    return tuple(Attempt(name, needed) for name, needed in needs.items())


class Tmqp:
    """TMQP/2.0: credentials are the Hello's Client-Token."""

    attempts = attempts(
        {
            "push": (("push", "orders/1"),),
            "push elsewhere": (("push", "invoices/1"),),
            "pull": (("join", "orders"), ("receive", "orders/*"), ("pull", "orders/2")),
            "pull elsewhere": (("join", "invoices"), ("receive", "invoices/*"), ("pull", "invoices/2")),
            "join": (("join", "orders"), ("receive", "orders/*")),
            "join elsewhere": (("join", "invoices"), ("receive", "invoices/*")),
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
            # 481: there is such a queue already, which only they are told who may create it.
            assert code in (0, 401, 481), f"{name} was answered by {code}"
            return DENIED if code == 401 else ALLOWED
        if name in self.events:
            return self.subscribe(peer, *self.events[name])
        channel = OTHER if "elsewhere" in name else MINE
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
        """What is sent arrives, or is refused; a response that is refused leaves nothing but its audit line."""
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


class Http:
    """The admin side: credentials are in the Authorization header."""

    attempts = attempts(
        {
            "GET /overview": (("administer", "/overview"),),
            "GET /metrics": (("administer", "/metrics"),),
            "GET /nowhere": (("administer", "/nowhere"),),
            "POST /authority/reload": (("administer", "/authority/reload"),),
            "DELETE /overview": (("administer", "/overview"),),
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
        assert code in (200, 401, 403, 404, 405, 429)
        return {401: TURNED_AWAY, 429: TOLD_TO_WAIT, 403: DENIED}.get(code, ALLOWED)


ADAPTERS: dict[str, Adapter] = {"tmqp": Tmqp(), "http": Http()}


def place(directory: Path, anonymous: tuple[str, ...]) -> Iterator[Place]:
    store = AuthorityStore.of_data_dir(directory)

    def token(*allow: str, **more: object) -> str:
        return store.add_token(json.dumps({"name": "token", "allow": allow, **more}))[1]

    shown = {name: token(*(persona.rules or ())) for name, persona in PERSONAS.items() if name.startswith("token that")}
    good = token("*")
    shown |= {
        "nothing shown": "",
        "nothing shown, anonymous may push": "",
        "wrong token": "mqt_0123456789ab_nobodyhasthistoken",
        "token with a letter changed": good[:-1] + ("A" if good[-1] != "A" else "B"),
        "expired token": token("*", expires_ms=1),
        "token for another type of client": token("*", restrict={"client_types": ["robot"]}),
        "wrong password": basic("ann", "incorrect horse"),
        "unknown user": basic("bob", "correct horse"),
        "token without rules": token(),
        "admin token": good,
        "admin user": basic("ann", "correct horse"),
    }
    store.add_user(json.dumps({"name": "ann", "allow": ["*"]}), "correct horse")
    broker = mqcore.Broker(
        listen="tmqp://127.0.0.1:0",
        admin="http://127.0.0.1:0",
        data_dir=str(directory),
        authority=AuthorityOptions(anonymous=anonymous),
    )
    with ExitStack() as stack:
        stack.enter_context(broker)
        host, port = broker.listeners[0].removeprefix("tmqp://").rsplit(":", 1)
        peer = stack.enter_context(TmqpPeer(host, int(port)))
        names = {"Client_Id": "peer", "Client_Name": "peer", "Client_Type": "peer"}
        assert peer.hello(Client_Token=good, **names).content_type == 202
        yield Place(broker, directory / "audit.jsonl", shown, peer)


def basic(user: str, password: str) -> str:
    from mqcore.client import ClientOptions

    return ClientOptions(user=user, password=password).token or ""


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
    for attempt in adapter.attempts
]


def test_the_matrix_has_enough_cells_and_every_verdict() -> None:
    assert len(CELLS) >= 200
    verdicts = [expected(PERSONAS[str(name)], attempt) for _, name, attempt in (cell.values for cell in CELLS)]  # type: ignore[arg-type]
    assert all(verdicts.count(verdict) >= 50 for verdict in (ALLOWED, DENIED, TURNED_AWAY))


@pytest.mark.parametrize(("protocol", "name", "attempt"), CELLS)
def test_what_a_peer_may_do_follows_from_its_rules_in_every_protocol(
    protocol: str, name: str, attempt: Attempt, request: pytest.FixtureRequest
) -> None:
    here: Place = request.getfixturevalue("lenient" if "anonymous" in name else "strict")
    here.restore()
    wanted = expected(PERSONAS[name], attempt)
    if protocol == "http" and not attempt.name.startswith("GET") and "token" not in name:
        # Only a token changes anything there: a browser shows a password by itself.
        wanted = TURNED_AWAY
    before, denials = here.state(), here.denials()
    outcome = ADAPTERS[protocol].attempt(here, here.shown[name], attempt.name)
    until = time.monotonic() + 20
    # All peers here share one address, whose wrong passwords make its right ones wait too.
    while outcome == TOLD_TO_WAIT and wanted != TURNED_AWAY and time.monotonic() < until:
        time.sleep(0.1)
        outcome = ADAPTERS[protocol].attempt(here, here.shown[name], attempt.name)
    assert outcome == wanted or (outcome == TOLD_TO_WAIT and wanted == TURNED_AWAY)
    if wanted == DENIED:
        wait_until(lambda: here.denials() > denials, what="the audit line")
    if wanted != ALLOWED:
        assert here.state() == before, "a denied action left a trace"
