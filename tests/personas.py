"""A broker with clients of many sorts, each with its own rights, and what they attempt in the tests of rights.

`test_authority_matrix.py` and `test_permission_matrix.py` have the adapters of the protocols and the models.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import mqcore
from authority import Authority
from mqcore._core import AuthorityStore
from mqcore.config import AuthorityOptions
from tmqp_peer import TmqpPeer

ALLOWED, DENIED, TURNED_AWAY, TOLD_TO_WAIT = "allowed", "denied", "turned away", "told to wait"

# The channel inside of the scopes below; `other` is outside.
MINE, OTHER = "orders", "invoices"


@dataclass(frozen=True)
class Persona:
    """A sort of peer: what it shows, and which rules then hold for it. `None`: it must not get in at all."""

    rules: tuple[str, ...] | None
    """Its permissions; `None`: it cannot log in."""


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
    "token that joins one queue": Persona(("join:orders", "receive:orders/1")),
    "token that consumes": Persona(("join:orders", "receive:orders/*", "pull:orders/*")),
    "token that creates": Persona(("create:orders/*", "events:orders/*", "direct:peer")),
    "token that administers one channel": Persona(("administer:orders/*",)),
    "token that uses topics": Persona(("publish:orders.*", "subscribe:orders.*")),
    "token that binds topics": Persona(("subscribe:orders.*", "receive:orders/*", "push:orders/*")),
    "token that routes": Persona(("route:sorter", "direct:peer")),
    "token that administers one router": Persona(("administer:sorter", "push:orders/*")),
    "token that limits": Persona(("limit", "publish:orders.*")),
    "token that limits and subscribes": Persona(("limit", "subscribe")),
    "token that limits some keys": Persona(("limit:orders/*", "publish", "subscribe")),
    "token that scrapes": Persona(("inspect:/metrics",)),
    "token that inspects": Persona(("inspect",)),
    "token without rules": Persona(()),
    "admin token": Persona(("*",)),
    "admin user": Persona(("*",)),
}


@dataclass(frozen=True)
class Attempt:
    """Something to do, and the rules of which all are needed."""

    name: str
    needs: tuple[tuple[str, str], ...]


@dataclass
class Place:
    """A broker with users and tokens, where two channels are, and a client that is called `peer`."""

    broker: mqcore.Broker
    audit: Path
    shown: dict[str, str]
    peer: TmqpPeer
    listener: TmqpPeer
    """Hears the topics that are published to."""
    authority: Authority
    """The authority that issued the certificates."""
    certificates: dict[str, Path]
    """Certificates of personas that authenticate with one."""
    own: Counter[str] = field(default_factory=Counter)
    """By queue: messages that the tests themselves sent for a client to receive."""

    def address(self, scheme: str = "tmqp") -> tuple[str, int]:
        """Address of the listener of a protocol."""
        (found,) = (url for url in self.broker.listeners if url.startswith(f"{scheme}://"))
        host, port = found.partition("://")[2].partition("?")[0].rsplit(":", 1)
        return host, int(port)

    def denied(self) -> list[dict[str, object]]:
        """The audit lines about rejected clients and denied actions."""
        text = self.audit.read_text() if self.audit.exists() else ""
        # The last line may still be on its way.
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if line["verdict"] == "denied"]

    def denials(self) -> int:
        """How many audit lines say that an action was denied."""
        return sum(line["event"] == "action" for line in self.denied())

    def restore(self) -> None:
        """Make whatever an earlier attempt has removed, and remove what it has made and pushed."""
        for channel in (MINE, OTHER):
            assert self.peer.ask(603, channel).content_type in (0, 481)
            for queue, status in (("1", "push"), ("2", "pull")):
                body = json.dumps({"Status": status}).encode()
                answer = self.peer.ask(610, channel, headers={"Queue-Id": queue}, body=body)
                assert answer.content_type in (0, 481)
            # Otherwise a job for a queue that must not exist would be put into it.
            assert self.peer.ask(611, channel, headers={"Queue-Id": "77"}).content_type in (0, 404)
            # Otherwise the next consumer would receive messages of an earlier attempt.
            cleared = self.peer.ask(613, channel, headers={"Queue-Id": "1", "Messages": "yes"})
            assert cleared.content_type == 0
        assert self.peer.ask(604, "default").content_type in (0, 404)
        for topic in ("orders.new", "invoices.new"):
            assert self.listener.ask(601, f"@topic:{topic}").content_type == 0
        for topic in ("orders.new", "orders.*"):
            self.peer.ask(663, f"@topic:{topic}", headers={"Binding-Name": "orders/1"})
        for router in ("fresh", "sorter"):
            assert self.peer.ask(653, router).content_type == 0
        assert self.peer.ask(652, "sorter", headers={"Route-Method": "0"}).content_type == 0
        assert self.peer.ask(662, "sorter", body=b'{"Name":"kept","Target":"invoices/1"}').content_type == 0

    def state(self) -> object:
        """State of the broker, without connection counters."""
        stats = self.broker.stats()
        queues = [
            (queue.address, queue.options, queue.received - self.own[queue.address], queue.normal)
            for queue in stats.queues
        ]
        schedules = [(kept.id, kept.queue, kept.interval_ms) for kept in self.broker.schedules().schedules]
        channels = sorted(channel.name for channel in stats.channels)
        return channels, sorted(map(repr, queues)), stats.routers, sorted(schedules)


class Adapter(Protocol):
    """How one protocol is spoken, as far as this test needs it."""

    attempts: tuple[Attempt, ...]
    entry: tuple[tuple[str, str], ...]
    """Permissions that login requires."""

    def can_show(self, name: str) -> bool:
        """Whether a peer of this sort can be in this protocol at all."""
        ...

    def attempt(self, place: Place, credentials: str, name: str) -> str:
        """Show `credentials`, attempt what is called `name`, and say what came of it."""
        ...


def attempts(needs: dict[str, tuple[tuple[str, str], ...]]) -> tuple[Attempt, ...]:
    return tuple(Attempt(name, needed) for name, needed in needs.items())


def place(directory: Path, anonymous: tuple[str, ...] = (), personas: dict[str, Persona] = PERSONAS) -> Iterator[Place]:
    """A broker with these personas. The names of those with a token of their own begin with "token that"."""
    store = AuthorityStore.of_data_dir(directory)

    def token(*allow: str, **more: object) -> str:
        return store.add_token(json.dumps({"name": "token", "allow": allow, **more}))[1]

    shown = {name: token(*(persona.rules or ())) for name, persona in personas.items() if name.startswith("token that")}
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
    authority = Authority(directory / "certificates")
    certificates = {}
    for number, (name, persona) in enumerate({**personas, "admin token": PERSONAS["admin token"]}.items()):
        if name.startswith("nothing"):
            continue
        certificates[name] = authority.issue(f"{number}.pem", "peer.example", common_name=f"peer-{number}")
        if persona.rules is not None:
            user = {"name": f"peer-{number}", "certificate": f"cn:peer-{number}", "allow": persona.rules}
            store.add_user(json.dumps(user))
    broker = mqcore.Broker(
        listen=[
            "tmqp://127.0.0.1:0",
            "mqks://127.0.0.1:0",
            "throttrs://127.0.0.1:0?value=uint16",
            "mm2://127.0.0.1:0",
            "emqp://127.0.0.1:0",
        ],
        admin="http://127.0.0.1:0",
        data_dir=str(directory),
        tls=mqcore.ListenerTLS(cert=authority.issue(), client_ca=authority.ca, client_cert="optional"),
        authority=AuthorityOptions(anonymous=anonymous),
        # `peer` reads nothing while the cells of the other broker have their turn, and must not be taken for dead.
        ping_interval="1h",
        # Passwords are checked slowly on purpose, and even more so on a busy machine.
        handshake_timeout="1m",
    )
    with ExitStack() as stack:
        stack.enter_context(broker)
        host, port = broker.listeners[0].removeprefix("tmqp://").rsplit(":", 1)
        peer, listener = (stack.enter_context(TmqpPeer(host, int(port))) for _ in range(2))
        assert listener.hello(Client_Token=good, Client_Id="listener").content_type == 202
        names = {"Client_Id": "peer", "Client_Name": "peer", "Client_Type": "peer"}
        assert peer.hello(Client_Token=good, **names).content_type == 202
        yield Place(broker, directory / "audit.jsonl", shown, peer, listener, authority, certificates)


def basic(user: str, password: str) -> str:
    from mqcore.client import ClientOptions

    return ClientOptions(user=user, password=password).token or ""
