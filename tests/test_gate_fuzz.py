"""Peers without good credentials that send anything: in every protocol they get refusals, and change nothing.

Octets are random, or almost right: whole conversations of somebody who may do everything, with credentials that are
almost good, cut, doubled, put in another order and with single octets changed.
"""

from __future__ import annotations

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

import mqcore
from mqcore._core import AuthorityStore
from mqks_peer import ERROR
from served import wait_until
from throttr_peer import ThrottrPeer
from tmqp_peer import ACKNOWLEDGE, DIRECT, EVENT, PREAMBLE, PULL, QUEUE, RESPONSE, SERVER, RawFrame, TmqpPeer

ROUTER = 0x17
EXAMPLES = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass
class Place:
    """A broker with one token and one user, and what there was before anybody fuzzed."""

    broker: mqcore.Broker
    token: str
    before: object

    def address(self, scheme: str) -> tuple[str, int]:
        (url,) = (url for url in self.broker.listeners if url.startswith(f"{scheme}://"))
        host, port = url.partition("://")[2].partition("?")[0].rsplit(":", 1)
        return host, int(port)

    def say(self, where: tuple[str, int], octets: bytes) -> bytes:
        """Send octets and nothing more; everything that comes back until the other side closes."""
        answer = bytearray()
        with socket.create_connection(where, timeout=10) as stream:
            try:
                stream.sendall(octets)
                stream.shutdown(socket.SHUT_WR)
                while part := stream.recv(1 << 16):
                    answer += part
            except ConnectionError:
                # What was still on its way to it when it closed takes its answer along.
                pass
        return bytes(answer)

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
        listen=("tmqp://127.0.0.1:0", "mqks://127.0.0.1:0", "throttr://127.0.0.1:0?value=uint16"),
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
"""What a token looks like."""


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
    answer = place.say(place.address("tmqp"), said)
    for frame in tmqp_frames(answer):
        assert frame.kind in (SERVER, 0x08, 0x0A), "a goodbye, a PONG, or"
        assert frame.kind != SERVER or 400 <= frame.content_type < 600, "a refusal"
    place.unchanged()


def tmqp_frames(answer: bytes) -> list[RawFrame]:
    """Kind and content type of each whole frame of an answer."""
    assert PREAMBLE.startswith(answer[:8])
    rest, found = answer[8:], []
    while len(rest) >= 8:
        (content_type,) = struct.unpack("<H", rest[5:7])
        length, at = rest[7], 8
        if length >= 253:
            octets = {253: 2, 254: 4, 255: 8}[length]
            length, at = int.from_bytes(rest[at : at + octets], "little"), at + octets
        names = sum(rest[2:5])
        headers = 0
        if rest[1] & 0x20:
            headers = 2 + int.from_bytes(rest[at + names : at + names + 2], "little")
        found.append(RawFrame(kind=rest[0] & 0x3F, content_type=content_type))
        rest = rest[at + names + headers + length :]
    return found


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
def test_a_stranger_who_speaks_anything_like_mqks_gets_errors_and_changes_nothing(place: Place, said: bytes) -> None:
    answer = place.say(place.address("mqks"), said)
    for line in answer.splitlines():
        assert ERROR.match(line), line
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
    assert place.say(place.address("throttr"), said) == b""
    place.unchanged()


HTTP_PARTS = [
    *(
        f"{method} {page} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n".encode()
        for method in ("GET", "POST", "DELETE", "PUT")
        for page in ("/overview", "/metrics", "/authority/reload", "/backup", "/errors", "/nowhere", "/%2e%2e/")
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
HEALTH = re.compile(rb"GET /(health|ready|livez|readyz)", re.IGNORECASE)
"""What everybody may ask."""


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
        ("tmqp", lambda token: hello_with(token), lambda answer: tmqp_frames(answer)[0].content_type == 202),
        ("mqks", lambda token: b"1 auth " + token + b"\n2 ping data\n", lambda answer: b"2 ok data" in answer),
    ],
)
def test_the_same_octets_with_good_credentials_are_let_in(
    place: Place, scheme: str, said: Callable[[bytes], bytes], let_in: Callable[[bytes], bool]
) -> None:
    """What is refused above is refused for its credentials, and not because it is no conversation at all."""
    assert let_in(place.say(place.address(scheme), said(place.token.encode())))
    assert not let_in(place.say(place.address(scheme), said(NOT_QUITE)))


def hello_with(token: bytes) -> bytes:
    properties = b"CONNECT /\r\nClient-Id: x\r\nClient-Token: " + token + b"\r\n"
    return PREAMBLE + RawFrame(kind=SERVER, id=b"h", content_type=101, payload=properties).encode()
