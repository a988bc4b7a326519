"""MM2 listeners with invalid bytes, and with peers that do not acknowledge or read."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mqcore
from mm2_peer import CONTINUED, Cut, Handshake, MM2Peer, command, extension, message, subscribe
from served import wait_until

Connect = Callable[..., MM2Peer]


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    listen = ["mm2://127.0.0.1:0", "mm2://127.0.0.1:0?message_bytes_max=4096&window_max=5"]
    with mqcore.Broker(listen=listen, admin="http://127.0.0.1:0", shards=2, handshake_timeout=2) as broker:
        yield broker


@pytest.fixture
def connect(broker: mqcore.Broker) -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:
        yield lambda listener=0: stack.enter_context(MM2Peer(broker.listeners[listener]))


@pytest.fixture
def peer(connect: Connect) -> MM2Peer:
    return connect()


@pytest.fixture
def bystander(connect: Connect) -> Iterator[MM2Peer]:
    """Another client, which is served before and after whatever happens to its neighbor."""
    bystander = connect().open("pub-sub;x-mqcore")
    assert bystander.ask("ping;id=before") == "ok"
    yield bystander
    assert bystander.ask("ping;id=after") == "ok"


def closed(broker: mqcore.Broker, reason: str) -> int:
    """Connections of this protocol that ended for a reason."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = re.search(
        rf'^mqcore_connections_closed_total\{{[^}}]*protocol="mm2"[^}}]*reason="{reason}"\}} (\d+)$', text, re.M
    ) or re.search(
        rf'^mqcore_connections_closed_total\{{[^}}]*reason="{reason}"[^}}]*protocol="mm2"\}} (\d+)$', text, re.M
    )
    assert found, text
    return int(found[1])


# --- the handshake -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 3, 6, 9])
def test_a_handshake_that_stops_halfway_ends_in_time(broker: mqcore.Broker, peer: MM2Peer, size: int) -> None:
    peer.send(Handshake("json", "").encode()[:size])
    assert peer.error().startswith("timeout: the handshake takes")
    assert closed(broker, "handshake-timeout") == 1


def test_a_handshake_without_its_last_message_ends_in_time(broker: mqcore.Broker, peer: MM2Peer) -> None:
    peer.shake("json", "")
    assert peer.error().startswith("timeout: the handshake takes")
    assert closed(broker, "handshake-timeout") == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Handshake(major=16).encode(), "version: 16.0 is not supported"),
        (Handshake(major=0, minor=9).encode(), "version: 0.9 is not supported"),
        (Handshake("protobuf;microauth").encode(), "extension: unsupported microauth"),
        (Handshake("x-geo").encode(), "extension: unsupported x-geo"),
        (Handshake("JSON").encode(), "malformed: "),
        (Handshake("json;json").encode(), "malformed: "),
        (Handshake("json:a").encode(), "malformed: "),
        (Handshake("json:a=%zz").encode(), "malformed: "),
        (Handshake("batch-ack:max-count=-1").encode(), "extension: max-count"),
        (Handshake(";".join(f"x-{n}" for n in range(10_000))[:65_535]).encode(), "too-large: required extensions"),
        (Handshake("", ";".join(f"x{n}" for n in range(2_000))).encode(), "malformed: "),
        (b"GET / HTTP/1.1\r\n\r\n", "version: 71.69 is not supported"),
    ],
)
def test_invalid_offer_gets_a_reason(
    broker: mqcore.Broker, peer: MM2Peer, bystander: MM2Peer, data: bytes, why: str
) -> None:
    peer.send(data)
    if not data.startswith(b"GET"):
        assert peer.error().startswith(why)
        reason = "login-too-large" if why.startswith("too-large") else "protocol-error"
        assert closed(broker, reason) == 1
        return
    # The length of the identity is a letter, so the rest of it is awaited.
    assert peer.error().startswith("timeout: ")


@pytest.mark.parametrize(
    ("offer", "last", "why"),
    [
        (("json", ""), ("", ""), "extension: required extension json is missing"),
        (("", "json"), ("xml", ""), "extension: extension xml was not offered by either side"),
        (("ack", "batch-ack"), ("ack;batch-ack", ""), "extension: ack and batch-ack exclude each other"),
        (("json;xml", ""), ("json;xml", ""), "extension: json, xml and protobuf exclude each other"),
        (("x-nack", ""), ("x-nack", ""), "extension: x-nack requires ack or batch-ack"),
        (("", "batch-ack"), ("batch-ack:max-count=40000", ""), None),
    ],
)
def test_last_handshake_message_that_violates_the_agreement_gets_a_reason(
    broker: mqcore.Broker,
    peer: MM2Peer,
    bystander: MM2Peer,
    offer: tuple[str, str],
    last: tuple[str, str],
    why: str | None,
) -> None:
    peer.shake(*offer)
    peer.conclude(*last)
    if why is None:
        # More than can be agreed on means as many as can.
        peer.send(message(1, "topic/t", b"x"))
        assert peer.acked() == 1
        return
    assert peer.error().startswith(why)
    assert closed(broker, "protocol-error") == 1


def test_a_window_beyond_the_listeners_is_refused(connect: Connect) -> None:
    peer = connect(1)
    assert "batch-ack:max-count=5" in peer.shake("batch-ack:max-count=1000").optional
    peer.conclude("batch-ack:max-count=1000")
    assert peer.error() == "extension: max-count 1000 exceeds the maximum of 5 unacknowledged messages"


def test_an_error_in_the_place_of_a_handshake_is_the_end(peer: MM2Peer) -> None:
    peer.send(b"\x04\x00\x00\x01")
    assert peer.rest() == []


# --- frames --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x03\x00", "malformed: "),
        (b"\x05\x00", "malformed: "),
        (b"\x07\x00", "malformed: "),
        (b"\x20", "malformed: "),
        (b"\x80", "malformed: "),
        (b"\x11\x04ping", "malformed: "),
        (b"\x12\x01\x02\x00\x01", "malformed: "),
        (b"\x02\x00\x02\x00\x04", "malformed: "),
        (b"\x02\x09\x02\x00\x04", "malformed: "),
        (b"\x02\x02\x02\x00\x04", "malformed: pub-sub has no frames"),
        (b"\x02\x01\x01\x04", "malformed: "),
        (b"\x08\x00\x01\x01q\x00\x00\x80\x00\x00\x00", "too-large: "),
        (command("shout;loud=yes"), "unknown-command: shout"),
        (command("two words"), "malformed: "),
        (command("subscribe;destination"), "malformed: "),
        (command("subscribe;destination=%zz"), "malformed: "),
        (command("subscribe;destination=a b"), "malformed: "),
        (command("subscribe"), "destination: "),
        (command("subscribe;destination=%40name"), "destination: "),
        (command(f"subscribe;destination=topic%2F{'n' * 250}"), "destination: "),
        (command(subscribe("topic/t", wanted="price")), "bad-filter: "),
        (command(subscribe("topic/t", wanted="price=10")), "bad-filter: "),
        (command(subscribe("topic/t", wanted="price<=Tten")), "bad-filter: "),
        (command(subscribe("topic/t", wanted="price~N1")), "bad-filter: "),
        (command(subscribe("topic/t", wanted="price=Nten")), "bad-filter: "),
        (command(subscribe("topic/t", wanted="=N1")), "bad-filter: "),
        (command(subscribe("topic/t", wanted=";".join(f"k{n}=N1" for n in range(33)))), "bad-filter: "),
        (command(subscribe("queue", wanted="price=N1")), "bad-filter: "),
        (command("unsubscribe;id=nobody"), "unexpected: "),
        (message(0, "topic/t", b"x"), "ack: "),
        (message(1, "", b"x"), "destination: "),
        (message(1, "topic/", b"x"), "destination: "),
        (message(1, "bad name", b"x"), "destination: "),
        (message(1, "topic/t", b"x", "no colon"), "malformed: "),
        (message(1, "topic/t", b"x", "key:a\r\nForged: header"), "malformed: "),
        (message(1, "topic/t", b"x", ";".join(f"k{n}:N1" for n in range(257))), "malformed: "),
        (message(1, "missing", b"x"), "destination: "),
        (extension(1, b"\x00\x05"), "ack: "),
        (extension(1, b"\x00\x00"), "ack: "),
    ],
)
def test_invalid_frames_get_a_reason(
    broker: mqcore.Broker, peer: MM2Peer, bystander: MM2Peer, data: bytes, why: str
) -> None:
    peer.open("batch-ack;pub-sub")
    peer.send(data)
    assert peer.error().startswith(why)
    wait_until(lambda: closed(broker, "protocol-error") + closed(broker, "refused") == 1, what="the counter")


def test_parts_of_two_messages_do_not_mix(connect: Connect, bystander: MM2Peer) -> None:
    part = message(7, "topic/a", b"one", continued=True)
    for behind in (
        message(8, "topic/b", b"other", continued=True),
        message(8, "topic/b", b"other"),
        command(subscribe("topic/a")),
        bytes([CONTINUED | 1, 0]),
    ):
        peer = connect().open("pub-sub")
        peer.send(part, behind)
        assert peer.error().startswith("malformed: ")


def test_all_parts_together_have_a_limit(connect: Connect, bystander: MM2Peer) -> None:
    peer = connect(1).open("")
    for _ in range(4):
        peer.send(message(1, "topic/a", bytes(1024), continued=True))
    peer.send(message(1, "topic/a", b"x"))
    assert peer.error().startswith("too-large: message of 4097 bytes")


def test_half_a_message_is_nothing(connect: Connect, bystander: MM2Peer) -> None:
    bystander.ask(subscribe("topic/a", name="s"))
    peer = connect().open("")
    peer.send(message(1, "topic/a", b"half", continued=True))
    peer.leave()
    assert bystander.until_now() == []


def test_missing_acknowledgements_block_only_their_own_connection(
    broker: mqcore.Broker, connect: Connect, bystander: MM2Peer
) -> None:
    silent = connect().open("batch-ack:max-count=3;pub-sub;x-mqcore")
    silent.ask(subscribe("orders", name="s"))
    for number in range(10):
        bystander.publish("orders", b"%d" % number)
    assert [frame.payload for frame in silent.frames(3)] == [b"0", b"1", b"2"]
    assert silent.until_now() == []
    quick = connect().open("batch-ack:max-count=100;pub-sub")
    quick.command(subscribe("orders"))
    assert [frame.payload for frame in quick.frames(7)] == [b"%d" % number for number in range(3, 10)]
    quick.ack(7)
    silent.close()
    assert sorted(frame.payload for frame in quick.frames(3)) == [b"0", b"1", b"2"]


def test_more_unacknowledged_messages_than_agreed_end_the_connection(peer: MM2Peer, bystander: MM2Peer) -> None:
    peer.open("ack")
    peer.send(message(1, "topic/t", b"x") + message(2, "topic/t", b"x"))
    assert peer.error().startswith("ack: message 2 exceeds the window of 1 ")


def test_a_subscriber_that_does_not_acknowledge_misses_messages_and_is_let_go() -> None:
    """Messages of a topic wait for it up to a limit; others receive all of them."""
    with mqcore.Broker(
        listen=["mm2://127.0.0.1:0"], output_bytes_max=256 * 1024, slow_consumer_timeout=2.0, shards=1
    ) as broker:
        url = broker.listeners[0]
        with MM2Peer(url) as silent, MM2Peer(url) as quick, MM2Peer(url) as sender:
            silent.open("ack;pub-sub;x-mqcore").ask(subscribe("topic/t", name="s"))
            quick.open("pub-sub;x-mqcore").ask(subscribe("topic/t", name="s"))
            sender.open("batch-ack:max-count=100")
            for number in range(100):
                sender.publish("topic/t", struct.pack(">I", number) + bytes(16_384))
                assert quick.frame().payload[:4] == struct.pack(">I", number)
            assert len(silent.rest()) == 1
            (topic,) = [topic for topic in broker.stats().topics if topic.name == "t"]
            assert topic.dropped["slow"] > 0


def test_a_receiver_that_does_not_read_is_closed_and_loses_nothing() -> None:
    count = 1000
    with mqcore.Broker(
        listen=["mm2://127.0.0.1:0"], output_bytes_max=256 * 1024, slow_consumer_timeout=2.0, shards=1
    ) as broker:
        url = broker.listeners[0]
        with MM2Peer(url) as slow, MM2Peer(url) as sender, MM2Peer(url) as quick:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.open("batch-ack:max-count=30000;pub-sub;x-mqcore").ask(subscribe("orders", name="s"))
            sender.open("batch-ack:max-count=1000")
            for number in range(count):
                sender.publish("orders", struct.pack(">I", number) + bytes(16_384))
            while sender.acked() != count:
                pass
            wait_until(lambda: len(broker.stats().clients) == 1, what="the end of the slow one")
            quick.open("batch-ack:max-count=30000;pub-sub").command(subscribe("orders"))
            seen = {struct.unpack(">I", frame.payload[:4])[0] for frame in quick.frames(count)}
            assert seen == set(range(count))


def test_garbage_behind_a_good_handshake_costs_its_sender_only(connect: Connect, bystander: MM2Peer) -> None:
    for first in range(256):
        peer = connect().open("pub-sub")
        with contextlib.suppress(ConnectionError):
            peer.send(bytes([first]) + bytes(range(256)) * 4)
            peer.socket.shutdown(socket.SHUT_WR)
        peer.rest()


# --- limits and the end --------------------------------------------------------------------------------------------


def test_publishes_over_the_rate_limit_get_the_protocols_error() -> None:
    with mqcore.Broker(listen=["mm2://127.0.0.1:0"], publish_limit="2/1h") as broker:
        url = broker.listeners[0]
        with MM2Peer(url) as refuses, MM2Peer(url) as ends:
            refuses.open("batch-ack;x-nack")
            for _ in range(3):
                refuses.publish("topic/t", b"x")
            seen = set()
            while (refuses.id_of("x-nack"), 3) not in seen:
                frame = refuses.frame()
                seen.add((frame.id, struct.unpack(">H", frame.payload)[0]))
            ends.open("")
            for _ in range(3):
                ends.publish("topic/t", b"x")
            assert ends.error().startswith("limit: publish limit reached; retry after ")


def test_connections_over_the_rate_limit_get_a_reason() -> None:
    with mqcore.Broker(listen=["mm2://127.0.0.1:0"], connect_limit="2/1h") as broker:
        for attempt in range(3):
            with MM2Peer(broker.listeners[0]) as peer:
                peer.open("x-mqcore")
                if attempt < 2:
                    assert peer.ask("ping;id=p") == "ok"
                else:
                    assert peer.error().startswith("limit: connect limit reached; retry after ")


def test_stopping_broker_notifies_clients() -> None:
    broker = mqcore.Broker(listen=["mm2://127.0.0.1:0"])
    with broker:
        peer = MM2Peer(broker.listeners[0]).open("x-mqcore")
        assert peer.ask("ping;id=p") == "ok"
    assert peer.error() == "shutdown: the broker stops"
    peer.close()


def test_silent_peer_is_disconnected_if_the_listener_is_so_configured() -> None:
    with mqcore.Broker(listen=["mm2://127.0.0.1:0?idle_timeout=1"]) as broker, MM2Peer(broker.listeners[0]) as peer:
        peer.open("x-mqcore")
        assert peer.ask("ping;id=p") == "ok"
        assert peer.error().startswith("timeout: nothing came for ")


def test_a_listener_may_demand_extensions() -> None:
    listen = "mm2://127.0.0.1:0?require=batch-ack:max-count=7;json"
    with mqcore.Broker(listen=[listen]) as broker, MM2Peer(broker.listeners[0]) as peer:
        assert peer.shake("json", "").required == "batch-ack:max-count=7"
        peer.conclude("json", "")
        assert peer.error().startswith("extension: required extension batch-ack is missing")


@pytest.mark.parametrize(
    "options", ["require=microauth", "window_max=0", "properties=none", "message_bytes_max=1", "nonsense=1"]
)
def test_a_listener_with_options_that_cannot_be_meant_is_refused(options: str) -> None:
    with pytest.raises(mqcore.MqcoreError, match=options.partition("=")[0]):
        mqcore.Broker(listen=[f"mm2://127.0.0.1:0?{options}"]).start()


def test_a_unix_socket_speaks_the_same(tmp_path: Path) -> None:
    with mqcore.Broker(listen=[f"mm2+unix://{tmp_path}/mm2.sock"]) as broker, MM2Peer(broker.listeners[0]) as peer:
        assert peer.open("x-mqcore").ask("ping;id=p") == "ok"


def test_requests_before_a_half_close_are_processed_and_acknowledged(broker: mqcore.Broker, peer: MM2Peer) -> None:
    peer.open("batch-ack:max-count=50")
    for _ in range(50):
        peer.publish("topic/t", b"x")
    peer.socket.shutdown(socket.SHUT_WR)
    last = peer.rest()[-1]
    assert (last.id, last.payload) == (1, struct.pack(">H", 50))
    with pytest.raises(Cut):
        peer.read(1)
