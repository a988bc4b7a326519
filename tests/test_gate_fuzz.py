"""Peers without good credentials that send anything: in every protocol they get refusals, and change nothing.

Bytes are random, or almost right: whole conversations of a client with all permissions, with credentials that are
almost valid, cut, doubled, put in another order and with single bytes changed.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import eventmq_peer as zmtp
import mm2_peer as mm2
import mqcore
from depth import by_depth
from hostile.refusals import check_emqp, check_mm2, check_mqks, check_throttr, check_tmqp, tmqp_frames
from mm2_peer import Handshake
from mqcore._core import AuthorityStore
from served import wait_until
from throttr_peer import ThrottrPeer
from tmqp_peer import ACKNOWLEDGE, DIRECT, EVENT, PREAMBLE, PULL, QUEUE, RESPONSE, SERVER, RawFrame, TmqpPeer

ROUTER = 0x17
EXAMPLES = settings(
    max_examples=by_depth(30, 120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@dataclass
class Place:
    """A broker with one token and one user, and its state before the fuzzing."""

    broker: mqcore.Broker
    token: str
    before: object

    def address(self, scheme: str, role: str = "") -> tuple[str, int]:
        (url,) = (url for url in self.broker.listeners if url.startswith(f"{scheme}://") and url.endswith(role))
        host, port = url.partition("://")[2].partition("?")[0].rsplit(":", 1)
        return host, int(port)

    def say(self, where: tuple[str, int], data: bytes, *, stays: bool = False) -> bytes:
        """Send bytes and nothing more; everything that comes back until the other side closes.

        `stays`: stay connected for a moment, because sessions of some protocols do not authenticate a closed peer.
        """
        answer = bytearray()
        with socket.create_connection(where, timeout=10) as stream:
            try:
                stream.sendall(data)
                if stays:
                    stream.settimeout(0.03)
                    with contextlib.suppress(TimeoutError):
                        while part := stream.recv(1 << 16):
                            answer += part
                    stream.settimeout(10)
                stream.shutdown(socket.SHUT_WR)
                while part := stream.recv(1 << 16):
                    answer += part
            except ConnectionError:
                # The broker closed with unread input, so its answer is lost.
                pass
        return bytes(answer)

    def answers(self, where: tuple[str, int], data: bytes, until: Callable[[bytes], bool]) -> bool:
        """Send bytes and stay until what came back satisfies `until`; False if the other side closes before."""
        answer = b""
        with socket.create_connection(where, timeout=10) as stream:
            stream.sendall(data)
            while not until(answer):
                part = stream.recv(1 << 16)
                if not part:
                    return False
                answer += part
        return True

    def unchanged(self) -> None:
        assert state(self.broker) == self.before


def state(broker: mqcore.Broker) -> object:
    """All that there is in a broker, and all that it has counted, in a fixed order."""
    stats = broker.stats()
    parts = (stats.channels, stats.queues, stats.clients, stats.routers, stats.topics)
    return [sorted(map(repr, part)) for part in parts], stats.refused, stats.unknown_acks


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory: Path = tmp_path_factory.mktemp("gate")
    store = AuthorityStore.of_data_dir(directory)
    token = store.add_token(json.dumps({"name": "t", "allow": ["*"]}))[1]
    store.add_user(json.dumps({"name": "ann", "allow": ["*"]}), "correct horse")
    with mqcore.Broker(
        listen=(
            "tmqp://127.0.0.1:0", "mqks://127.0.0.1:0", "throttr://127.0.0.1:0?value=uint16", "mm2://127.0.0.1:0",
            "emqp://127.0.0.1:0",
        ),
        admin="http://127.0.0.1:0", data_dir=str(directory), auto_create_channels=True, auto_create_queues=True,
        node=mqcore.NodeConfig(name="here"),
    ) as broker:  # fmt: skip
        made = Place(broker, token, None)
        with TmqpPeer(*made.address("tmqp")) as peer:
            assert peer.hello(Client_Token=token).content_type == 202
            assert peer.ask(603, "orders").content_type == 0
            assert peer.ask(610, "orders", headers={"Queue-Id": "1"}, body=b'{"Status":"pull"}').content_type == 0
            peer.send(RawFrame(kind=QUEUE, id=b"i", target=b"orders", content_type=1, pending_acknowledge=True))
            assert peer.receive().id == b"i"
            assert peer.ask(652, "sorter", headers={"Route-Method": "0"}).content_type == 0
        wait_until(lambda: not broker.stats().clients, what="the one who prepared it is gone")
        made.before = state(broker)
        yield made
        # Beside all that, who may come in still comes in, and finds what was there.
        with TmqpPeer(*made.address("tmqp")) as peer:
            assert peer.hello(Client_Token=token).content_type == 202
            assert json.loads(peer.ask(615, "orders", headers={"Queue-Id": "1"}).payload)["Messages"] == 1


@st.composite
def spoilt(draw: st.DrawFn, parts: list[bytes]) -> bytes:
    """Parts of a conversation in any order, some of them changed a little."""
    said = bytearray(b"".join(draw(st.lists(st.sampled_from(parts), min_size=1, max_size=8))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(said)))
        match draw(st.sampled_from(["change", "cut", "insert"])):
            case "change" if at < len(said):
                said[at] = draw(st.integers(0, 255))
            case "cut":
                del said[at : at + draw(st.integers(1, 8))]
            case _:
                said[at:at] = draw(st.binary(max_size=8))
    return bytes(said)


NOT_QUITE = b"mqt_0123456789ab_" + b"x" * 43
"""Pattern of tokens."""


def tmqp_parts() -> list[bytes]:
    def hello(properties: bytes, kind: int = SERVER) -> bytes:
        return RawFrame(kind=kind, id=b"h", content_type=101, payload=b"CONNECT /\r\n" + properties).encode()

    hellos = [
        hello(b"Client-Id: x\r\n"),
        hello(b"Client-Id: x\r\nClient-Token: " + NOT_QUITE + b"\r\n"),
        hello(b"Client-Id: x\r\nClient-Token: ann:correct hors\r\n"),
        hello(b"Client-Id: x\r\nClient-Type: server\r\nMqcore-Node: 1\r\nMqcore-Node-Epoch: 7\r\n"),
    ]
    to_queue = RawFrame(kind=QUEUE, id=b"m", target=b"orders", content_type=1, payload=b"x", pending_acknowledge=True)
    frames = [
        to_queue,
        RawFrame(kind=QUEUE, id=b"m", target=b"fresh", content_type=1, payload=b"x", headers=[("CC", "orders;1")]),
        RawFrame(kind=QUEUE, target=b"@topic:t", payload=b"x"),
        RawFrame(kind=ROUTER, id=b"r", target=b"sorter", payload=b"x", pending_acknowledge=True),
        RawFrame(kind=DIRECT, id=b"d", target=b"@name:x"),
        RawFrame(kind=ACKNOWLEDGE, id=b"m", target=b"orders", content_type=1),
        RawFrame(kind=RESPONSE, id=b"m", target=b"x"),
        RawFrame(kind=PULL, id=b"p", target=b"orders", content_type=1, headers=[("Count", "5"), ("Clear", "All")]),
        RawFrame(kind=EVENT, id=b"e", target=b"ClientConnected", content_type=1),
        *(
            RawFrame(kind=SERVER, id=b"o", target=b"orders", content_type=code, headers=[("Queue-Id", "1")])
            for code in (601, 603, 604, 610, 611, 613, 615, 621, 631, 651, 653)
        ),
    ]
    return [PREAMBLE, PREAMBLE, PREAMBLE, *(PREAMBLE + each for each in hellos), *hellos, *(f.encode() for f in frames)]


@EXAMPLES
@given(st.one_of(st.binary(max_size=200), spoilt(tmqp_parts())))
@example(PREAMBLE + RawFrame(kind=QUEUE, target=b"orders", content_type=1, payload=b"x").encode())
def test_a_stranger_who_speaks_anything_like_tmqp_gets_refusals_and_changes_nothing(place: Place, said: bytes) -> None:
    check_tmqp(place.say(place.address("tmqp"), said))
    place.unchanged()


MQKS_PARTS = [
    b"1 auth " + NOT_QUITE + b"\n",
    b"1 auth ann:correct hors\n",
    b"1 auth Bearer \n",
    b"2 publish --confirm orders.new data\n",
    b"3 publish orders.new data\n",
    b"4 consume orders/1 orders.* --manual-ack\n",
    b"5 consume --confirm fresh orders.new\n",
    b"6 rebind --confirm orders/1 --add orders.new\n",
    b"7 ack --confirm 4 --all\n",
    b"8 delete_queue --confirm orders/1\n",
    b"9 delete_consumer --confirm 4\n",
    b"a _eval len(state.queues)\n",
    b"b ping data\n",
    b"\n",
]


@EXAMPLES
@given(st.one_of(st.binary(max_size=200), spoilt(MQKS_PARTS)))
@example(b"3 publish orders.new data\n")
@example(b"\r  \0")
def test_a_stranger_who_speaks_anything_like_mqks_gets_errors_and_changes_nothing(place: Place, said: bytes) -> None:
    check_mqks(place.say(place.address("mqks"), said))
    place.unchanged()


def throttr_parts() -> list[bytes]:
    peer = object.__new__(ThrottrPeer)
    peer.width = 2
    rule = peer.rule(b"key", 5, 1, 5)
    return [
        peer.insert(b"key", 5, 5),
        peer.update(b"key", 0, 0, 5),
        peer.set(b"buffer", b"value", 5),
        peer.keyed(2, b"key"),
        peer.keyed(4, b"key"),
        peer.keyed(6, b"buffer"),
        b"\x07",
        b"\x08",
        b"\x10",
        b"\x14",
        b"\x15" + bytes(16),
        b"\x16",
        b"\x18",
        peer.keyed(0x11, b"orders.new"),
        peer.publish(b"orders.new", b"data"),
        peer.event(b"orders.new", b"data"),
        bytes([0xC0, 0]) + rule,
        bytes([0xC1, 0, 1]) + rule,
    ]


@EXAMPLES
@given(st.one_of(st.binary(max_size=200), spoilt(throttr_parts())))
@example(b"\x18")
def test_a_stranger_who_speaks_anything_like_throttr_is_cut_off_and_changes_nothing(place: Place, said: bytes) -> None:
    check_throttr(place.say(place.address("throttr"), said))
    place.unchanged()


def mm2_parts() -> list[bytes]:
    offers = [
        Handshake(),
        Handshake(required="pub-sub;x-mqcore"),
        Handshake(required="ack", optional="pub-sub"),
        Handshake(required="batch-ack;x-nack;pub-sub", optional="x-mqcore"),
        Handshake(required=f"pub-sub;x-mqcore:token={NOT_QUITE.decode()}"),
        Handshake(required="pub-sub;x-mqcore:token=ann%3Acorrect%20hors", identity=b"ann"),
        Handshake(major=2),
    ]
    said = [
        mm2.message(1, "orders/1", b"x"),
        mm2.message(1, "fresh", b"x"),
        mm2.message(2, "topic/orders.new", b"x" * 300, continued=True),
        mm2.command("ping;id=in"),
        mm2.command(mm2.subscribe("orders/1", name="s")),
        mm2.command(mm2.subscribe("topic/orders.new", name="t", wanted="a=1")),
        mm2.command("unsubscribe;id=s"),
        mm2.extension(1, b"\0\1"),
        mm2.extension(2, b""),
    ]
    whole = [offer.encode() + b"".join(said[:3]) for offer in offers]
    return [*(offer.encode() for offer in offers), *whole, *said]


@EXAMPLES
@given(st.one_of(st.binary(max_size=200), spoilt(mm2_parts())))
@example(Handshake(required="pub-sub").encode() + mm2.message(1, "orders/1", b"x"))
def test_a_stranger_who_speaks_anything_like_micromessage2_gets_an_error_and_changes_nothing(
    place: Place, said: bytes
) -> None:
    check_mm2(place.say(place.address("mm2"), said, stays=True))
    place.unchanged()


def zmtp_ready(kind: bytes = b"DEALER", token: bytes | None = None, identity: bytes = b"") -> bytes:
    properties = [(b"Socket-Type", kind), (b"Identity", identity)]
    if token is not None:
        properties.append((b"X-Token", token))
    return zmtp.command(
        b"READY",
        b"".join(bytes([len(key)]) + key + struct.pack(">I", len(value)) + value for key, value in properties),
    )


def emqp_parts() -> list[bytes]:
    shakes = [
        zmtp.GREETING + zmtp_ready(),
        zmtp.GREETING + zmtp_ready(token=NOT_QUITE, identity=b"boss"),
        zmtp.GREETING + zmtp_ready(token=b"ann:correct hors"),
        zmtp.GREETING + zmtp_ready(b"SUB", NOT_QUITE),
        zmtp.GREETING + zmtp_ready(b"REQ"),
        zmtp.GREETING + zmtp_ready(token=b" "),
    ]
    job = b'["run", {"path": "p", "callable": "c"}]'
    words = [
        [b"INFORM", b"i", b'[[1, "orders/1"]]', b"worker"],
        [b"INFORM", b"i", b"", b"scheduler"],
        [b"READY", b"r"],
        [b"REPLY", b"r", b"{}", b"j"],
        [b"REQUEST", b"j", b"orders/1", b"guarantee,result-queue:orders/1", job],
        [b"REQUEST", b"j", b"default", b"", job],
        [b"SCHEDULE", b"s", b"default", b"", b"1", job, b""],
        [b"UNSCHEDULE", b"s", b"default", b"", b"1", job, b""],
        [b"PUBLISH", b"p", b"orders.new", b"data"],
        [b"STATUS", b"a"],
        [b"ROUTER_SHOW_WORKERS", b"a"],
        [b"DISCONNECT", b"d"],
        [b"KBYE", b"k"],
    ]
    said = [zmtp.message([b"", b"eMQP/1.0", *each]) for each in words]
    said += [zmtp.message([b"\x01orders"]), zmtp.command(b"SUBSCRIBE", b"orders"), zmtp.command(b"PING", b"\0\0x")]
    return [*shakes, *shakes, *(shake + each for shake in shakes[:3] for each in said[:8]), *said]


@EXAMPLES
@given(
    st.sampled_from(["backend", "frontend", "admin", "publish", "subscribe"]),
    st.one_of(st.binary(max_size=200), spoilt(emqp_parts())),
)
@example("frontend", zmtp.GREETING + zmtp_ready() + zmtp.message([b"", b"eMQP/1.0", b"REQUEST", b"j", b"q", b"", b"x"]))
@example("admin", zmtp.GREETING + zmtp_ready() + zmtp.message([b"", b"eMQP/1.0", b"DISCONNECT", b"d"]))
def test_unauthenticated_eventmq_peer_learns_and_changes_nothing(place: Place, role: str, said: bytes) -> None:
    check_emqp(place.say(place.address("emqp", f"role={role}"), said, stays=True))
    assert place.broker.is_running
    place.unchanged()


def test_micromessage2_accepts_a_valid_token_and_rejects_others(place: Place) -> None:
    host, port = place.address("mm2")
    for token, answer in ((place.token, ("command", "ok;id=in")), (NOT_QUITE.decode(), ("error", "auth: "))):
        with mm2.MM2Peer(f"mm2://{host}:{port}") as peer:
            peer.open(f"pub-sub;x-mqcore:token={token}")
            peer.command("ping;id=in")
            frame = peer.frame()
            assert frame.kind == answer[0]
            assert frame.text.startswith(answer[1])
    wait_until(lambda: not place.broker.stats().clients, what="the one who was let in is gone")


def test_eventmq_accepts_a_valid_token_and_rejects_others(place: Place) -> None:
    host, port = place.address("emqp", "role=admin")
    for token, let_in in ((place.token.encode(), True), (NOT_QUITE, False)):
        with zmtp.EventmqPeer(f"emqp://{host}:{port}", shakes=False) as peer:
            peer.send_bytes(zmtp.GREETING + zmtp_ready(token=token))
            peer.say("STATUS", "s")
            if let_in:
                assert b"REPLY" in hears(peer, b"waiting_messages_by_queue")
            else:
                assert b"REPLY" not in hears(peer, None)
    wait_until(lambda: not place.broker.stats().clients, what="the administrator is gone")


def hears(peer: zmtp.EventmqPeer, until: bytes | None) -> bytes:
    """Read up to these bytes, or until the other side closes."""
    said = b""
    while until is None or until not in said:
        part = peer.socket.recv(1 << 16)
        if not part:
            break
        said += part
    return said


HTTP_PARTS = [
    *(
        f"{method} {page} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n".encode()
        for method in ("GET", "POST", "DELETE", "PUT")
        for page in (
            *("/overview", "/metrics", "/authority/reload", "/backup", "/errors", "/nowhere", "/%2e%2e/"),
            f"/schedules/{0:040}",
        )
        for headers in (
            "",
            "Authorization: Bearer " + NOT_QUITE.decode() + "\r\n",
            "Authorization: Basic YW5uOmNvcnJlY3QgaG9ycw==\r\nMqcore-Request: backup\r\n",
        )
    ),
    b"GET / HTTP/1.0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"Content-Length: 10\r\n",
]
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
HEALTH = re.compile(rb"GET /(livez|readyz|assets/|[ ?])", re.IGNORECASE)
"""Requests that need no credentials."""


@EXAMPLES
@given(st.one_of(st.binary(max_size=200), spoilt(HTTP_PARTS)))
@example(HTTP_PARTS[0])
def test_a_stranger_who_speaks_anything_like_http_gets_refusals_and_changes_nothing(place: Place, said: bytes) -> None:
    assert place.broker.admin_url is not None
    host, _, port = place.broker.admin_url.partition("://")[2].rpartition(":")
    answer = place.say((host, int(port)), said)
    if not HEALTH.search(said):
        for status in STATUS.findall(answer):
            assert 400 <= int(status) < 600, answer
    place.unchanged()


@pytest.mark.parametrize(
    ("scheme", "said", "let_in"),
    [
        (
            "tmqp",
            lambda token: hello_with(token),
            lambda answer: [frame.content_type for frame in tmqp_frames(answer)][:1] == [202],
        ),
        ("mqks", lambda token: b"1 auth " + token + b"\n2 ping data\n", lambda answer: b"2 ok data" in answer),
    ],
)
def test_same_bytes_with_valid_credentials_are_accepted(
    place: Place, scheme: str, said: Callable[[bytes], bytes], let_in: Callable[[bytes], bool]
) -> None:
    """The requests above are rejected for their credentials, not because they are invalid."""
    assert place.answers(place.address(scheme), said(place.token.encode()), let_in)
    assert not let_in(place.say(place.address(scheme), said(NOT_QUITE)))


def hello_with(token: bytes) -> bytes:
    properties = b"CONNECT /\r\nClient-Id: x\r\nClient-Token: " + token + b"\r\n"
    return PREAMBLE + RawFrame(kind=SERVER, id=b"h", content_type=101, payload=properties).encode()
