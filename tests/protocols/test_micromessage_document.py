"""MicroMessage2 as its document tells it: each demand, and each example byte by byte, by a raw peer of a listener."""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mm2_peer import Cut, Frame, Handshake, MM2Peer, command, extension, message, subscribe
from mqcore.testing import TestBroker
from served import ROOT

Connect = Callable[..., MM2Peer]

PAGE = (ROOT / "docs" / "protocols" / "micromessage2.md").read_text()


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker(listen=["mm2://127.0.0.1:0"], shards=2) as broker:
        yield broker


@pytest.fixture
def connect(broker: TestBroker) -> Iterator[Connect]:
    """Connects peers: with extensions in force, or with nothing said yet."""
    with contextlib.ExitStack() as stack:

        def connect(required: str | None = None, optional: str = "") -> MM2Peer:
            peer = stack.enter_context(MM2Peer(broker.listeners[0]))
            return peer if required is None else peer.open(required, optional)

        yield connect


def settle(broker: TestBroker, *peers: MM2Peer) -> list[list[Frame]]:
    """Messages that each peer received, once nothing is in flight. The peers need `x-mqcore`."""
    early = [peer.until_now() for peer in peers]
    asyncio.run(broker.settle())
    return [frames + peer.until_now() for frames, peer in zip(early, peers, strict=True)]


def numbers(frames: list[Frame]) -> list[int]:
    return [frame.sequence for frame in frames if frame.kind == "message"]


def bodies(frames: list[Frame]) -> list[bytes]:
    return [frame.payload for frame in frames if frame.kind == "message"]


# --- the handshake -------------------------------------------------------------------------------------------------


def test_the_handshake_of_the_document_gives_its_three_ids(broker: TestBroker, connect: Connect) -> None:
    """`hulk` offers json and dotnet, is suggested batch-ack, and takes it."""
    peer = connect()
    peer.send(bytes.fromhex("0100000468756c6b000b6a736f6e3b646f746e65740000"))
    reply = peer.reply()
    assert (reply.major, reply.minor, reply.required) == (1, 0, "")
    assert "batch-ack" in reply.optional
    peer.send(bytes.fromhex("0100000468756c6b000b6a736f6e3b646f746e657400096261746368 2d61636b".replace(" ", "")))
    # The type of the document's example under its number; what is acknowledged has that of batch-ack.
    peer.send(extension(2, b"OneTrueError.Contracts.Reports,OneTrueError.Client"))
    peer.send(message(1, "topic/t", b"{}"))
    assert peer.frame() == Frame("extension", b"\x00\x01", id=3, flags=2)
    assert broker.stats().clients[0].name == "hulk"


def test_a_client_that_takes_nothing_of_what_is_offered_is_fine(connect: Connect) -> None:
    """`json;xml;protobuf;` is offered, and the last message names one of them and no way to acknowledge."""
    peer = connect()
    peer.shake("", "json;xml;protobuf;x-mqcore")
    peer.conclude("json", "x-mqcore")
    assert peer.ask("ping;id=p") == "ok"


def test_all_serializers_may_be_required_and_one_be_chosen(connect: Connect) -> None:
    peer = connect()
    peer.shake("json;xml;protobuf;")
    peer.conclude("json", "")
    peer.send(message(1, "topic/t", b"{}"))
    peer.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        peer.frame()


@pytest.mark.parametrize(("major", "minor"), [(1, 1), (2, 1), (15, 0)])
def test_lower_version_of_both_sides_is_spoken(connect: Connect, major: int, minor: int) -> None:
    peer = connect()
    peer.send(Handshake("json", "x-mqcore", major=major, minor=minor).encode())
    reply = peer.reply()
    assert (reply.major, reply.minor) == (1, 0)
    peer.conclude("json", "x-mqcore")
    assert peer.ask("ping;id=p") == "ok"


def test_lower_version_than_the_brokers_is_refused(connect: Connect) -> None:
    other = connect()
    other.send(bytes.fromhex("000900016300000000"))
    assert other.read(31) == b"\x04\x1dversion: 0.9 is not supported"
    with pytest.raises(Cut):
        other.read(1)


def test_a_required_extension_that_is_not_known_is_an_error_and_the_end(connect: Connect) -> None:
    peer = connect()
    peer.send(Handshake("json;x-telepathy").encode())
    assert peer.error() == "extension: unsupported x-telepathy"


def test_an_optional_extension_that_is_not_known_is_not_chosen(connect: Connect) -> None:
    peer = connect()
    reply = peer.shake("", "json;x-telepathy;microauth")
    assert "json" in reply.optional
    assert "telepathy" not in reply.optional
    assert "microauth" not in reply.optional


def test_required_extensions_must_be_in_the_last_handshake_message(connect: Connect) -> None:
    peer = connect()
    peer.shake("json;pub-sub")
    peer.conclude("json")
    assert peer.error() == "extension: required extension pub-sub is missing in the final message"


def test_client_must_know_extensions_that_the_server_requires() -> None:
    listen = "mm2://127.0.0.1:0?require=batch-ack"
    with TestBroker(listen=[listen]) as broker, MM2Peer(broker.listeners[0]) as peer:
        assert peer.shake("json").required == "batch-ack"
        # A client that does not know it reports it and disconnects.
        peer.send(b"\x04\x20extension: unsupported batch-ack")
        assert peer.rest() == []


@pytest.mark.parametrize("name", ["microauth", "geo", "x-"])
def test_extensions_of_vendors_begin_with_x(connect: Connect, name: str) -> None:
    peer = connect()
    peer.send(Handshake(name).encode())
    assert peer.error() == f"extension: unsupported {name}"


@pytest.mark.parametrize("wrong", ["Json", "a_b", "a b", "json:Bad key=1", "json:k=a b", "json:k=%2", "json,xml"])
def test_names_are_fields_and_values_are_url_encoded(connect: Connect, wrong: str) -> None:
    peer = connect()
    peer.send(Handshake("", wrong).encode())
    assert peer.error().startswith("malformed")


def test_the_lists_of_the_document_are_read(connect: Connect) -> None:
    """Extensions end with a semicolon, also the last; properties are optional; a raw `!` may stand in a value."""
    for optional in [
        "x-one:prop1=propValue2,prop2=Hello%20%25%20mother!;",
        "json;xml;protobuf",
        "batch-ack:max-count=10;json;x-other",
        "batch-ack:max-count:100;",
        "batch-ack;",
        "",
    ]:
        peer = connect()
        assert peer.shake("x-mqcore", optional).major == 1
        peer.conclude("x-mqcore")
        assert peer.ask("ping;id=p") == "ok"


def test_numbers_are_in_network_byte_order(connect: Connect) -> None:
    peer = connect("batch-ack")
    peer.send(b"\x00" + b"\x01\x00" + b"\x07topic/t" + b"\x00\x00" + b"\x01x")
    assert peer.acked() == 256
    peer.send(b"\x08" + b"\x01\x01" + b"\x07topic/t" + b"\x00\x00" + b"\x00\x00\x00\x02xy")
    assert peer.acked() == 257


def test_frames_may_follow_the_last_message_at_once(connect: Connect) -> None:
    receiver = connect("pub-sub;x-mqcore")
    receiver.ask(subscribe("topic/t", name="s"))
    peer = connect()
    peer.send(Handshake("json").encode(), Handshake("json").encode(), message(1, "topic/t", b"early"))
    assert receiver.frame().payload == b"early"


def test_the_server_says_nothing_between_the_last_message_and_the_first_frame(connect: Connect) -> None:
    peer = connect()
    peer.shake("json")
    peer.conclude("json")
    peer.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        peer.read(1)


# --- messages ------------------------------------------------------------------------------------------------------


def test_a_queue_hands_each_message_to_one_receiver_in_order(broker: TestBroker, connect: Connect) -> None:
    two = [connect("pub-sub;x-mqcore") for _ in range(2)]
    for peer in two:
        assert peer.ask(subscribe("commands", name="s")) == "ok"
    sender = connect("")
    for number in range(10):
        sender.publish("commands", b"%d" % number)
    sender.leave()
    shares = [bodies(frames) for frames in settle(broker, *two)]
    assert sorted(shares[0] + shares[1]) == [b"%d" % number for number in range(10)]
    assert all(share == sorted(share) and len(share) == 5 for share in shares)


def test_a_topic_reaches_all_subscribers_and_has_many_publishers(broker: TestBroker, connect: Connect) -> None:
    three = [connect("pub-sub;x-mqcore") for _ in range(3)]
    for peer in three:
        assert peer.ask(subscribe("topic/domain-events", name="s")) == "ok"
    for number in range(3):
        sender = connect("")
        sender.publish("topic/domain-events", b"%d" % number)
        sender.leave()
    for frames in settle(broker, *three):
        assert sorted(bodies(frames)) == [b"0", b"1", b"2"]


def test_messages_are_pushed_and_never_asked_for(broker: TestBroker, connect: Connect) -> None:
    peer = connect("pub-sub;x-mqcore")
    sender = connect("")
    sender.publish("topic/t", b"before anybody subscribed")
    sender.leave()
    (frames,) = settle(broker, peer)
    assert frames == []
    assert peer.ask(subscribe("topic/t", name="s")) == "ok"
    again = connect("")
    again.publish("topic/t", b"after")
    assert peer.frame().payload == b"after"


def test_only_the_server_sends_what_was_subscribed_to(broker: TestBroker, connect: Connect) -> None:
    """A client's messages have the same form and go to the server, which hands on what is subscribed to with its own
    numbers and the subscriber's destination."""
    peer = connect("pub-sub;x-mqcore")
    peer.ask(subscribe("topic/t", name="s"))
    sender = connect("")
    sender.send(message(77, "topic/t", b"x"))
    frame = peer.frame()
    assert (frame.kind, frame.sequence, frame.destination) == ("message", 1, "topic/t")


def test_properties_of_the_document_reach_the_receiver(connect: Connect) -> None:
    peer = connect("pub-sub;x-mqcore")
    peer.ask(subscribe("topic/t", name="s"))
    for listed in ["first_name:jonas;twitter:jgauffin;", "a:N1;b:D1413198000.0;c:THello%20%22world%22;"]:
        sender = connect("")
        sender.publish("topic/t", b"x", listed)
        assert peer.frame().properties == listed


def test_payload_over_255_bytes_has_a_long_length(connect: Connect) -> None:
    peer = connect("pub-sub;x-mqcore")
    peer.ask(subscribe("topic/t", name="s"))
    sender = connect("")
    for size in (0, 1, 255, 256, 65_536):
        sender.publish("topic/t", b"x" * size)
        frame = peer.frame()
        assert (frame.payload, bool(frame.flags & 8)) == (b"x" * size, size > 255)


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_payload_above_a_mebibyte_comes_in_several_frames(connect: Connect, size: int) -> None:
    peer = connect("pub-sub;x-mqcore")
    peer.ask(subscribe("topic/t", name="s"))
    body = bytes(range(256)) * (size // 256) + b"!" * (size % 256)
    sender = connect("")
    sender.publish("topic/t", body, "a:N1;")
    parts = [peer.frame()]
    while parts[-1].flags & 16:
        parts.append(peer.frame())
    assert len(parts) == -(-size // (1 << 20))
    assert all(len(part.payload) <= 1 << 20 for part in parts)
    assert {(part.sequence, part.destination) for part in parts} == {(1, "topic/t")}
    assert [part.properties for part in parts] == ["a:N1;"] + [""] * (len(parts) - 1)
    assert b"".join(part.payload for part in parts) == body


# --- acknowledgements ----------------------------------------------------------------------------------------------


def test_without_an_extension_nothing_is_acknowledged(broker: TestBroker, connect: Connect) -> None:
    receiver, sender = connect("pub-sub;x-mqcore"), connect("x-mqcore")
    receiver.ask(subscribe("commands", name="s"))
    for number in range(100):
        sender.publish("commands", b"%d" % number)
    frames, answers = settle(broker, receiver, sender)
    assert len(frames) == 100
    assert answers == []


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ("ack", 1),
        ("batch-ack:max-count=10", 10),
        ("batch-ack", 10),
        ("batch-ack:count=10", 10),
        ("batch-ack:max-count:3", 3),
    ],
)
def test_no_more_is_sent_than_may_be_unacknowledged(
    broker: TestBroker, connect: Connect, wanted: str, count: int
) -> None:
    peer = connect(f"{wanted};pub-sub;x-mqcore")
    name = wanted.partition(":")[0]
    peer.ask(subscribe("commands", name="s"))
    sender = connect("")
    for number in range(30):
        sender.publish("commands", b"%d" % number)
    sender.leave()
    seen: list[int] = []
    while len(seen) < 30:
        (frames,) = settle(broker, peer)
        assert numbers(frames) == list(range(len(seen) + 1, min(len(seen) + count, 30) + 1))
        seen += numbers(frames)
        peer.ack(seen[-1], name)


def test_an_early_acknowledgement_makes_room_for_as_many(broker: TestBroker, connect: Connect) -> None:
    """The document would reset its counter, and send more than was agreed; what was acknowledged is subtracted here."""
    peer = connect("batch-ack:max-count=10;pub-sub;x-mqcore")
    peer.ask(subscribe("commands", name="s"))
    sender = connect("")
    for number in range(30):
        sender.publish("commands", b"%d" % number)
    sender.leave()
    (frames,) = settle(broker, peer)
    assert len(frames) == 10
    peer.ack(4)
    (frames,) = settle(broker, peer)
    assert numbers(frames) == [11, 12, 13, 14]


def test_the_acknowledgement_of_the_document_covers_1_to_4(broker: TestBroker, connect: Connect) -> None:
    """`2 3 2 0 4`: an extension frame, of the third extension, of two bytes, up to number 4."""
    peer = connect("json;dotnet", "batch-ack;pub-sub;x-mqcore")
    peer.ask(subscribe("commands", name="s"))
    sender = connect("")
    for number in range(6):
        sender.publish("commands", b"%d" % number)
    sender.leave()
    (frames,) = settle(broker, peer)
    assert numbers(frames) == [1, 2, 3, 4, 5, 6]
    peer.send(bytes([2, 3, 2, 0, 4]))
    (frames,) = settle(broker, peer)
    assert frames == []
    peer.leave()
    asyncio.run(broker.settle())
    other = connect("pub-sub;x-mqcore")
    other.ask(subscribe("commands", name="s"))
    (frames,) = settle(broker, other)
    assert bodies(frames) == [b"4", b"5"]


def test_an_acknowledgement_across_the_wrap_covers_all_five(broker: TestBroker, connect: Connect) -> None:
    """65534, 65535, 1, 2 and 3 are acknowledged by 3, whatever was acknowledged before."""
    peer = connect("batch-ack:max-count=32000;pub-sub;x-mqcore")
    peer.ask(subscribe("topic/t", name="s"))
    peer.ask(subscribe("commands", name="q"))
    sender = connect("batch-ack:max-count=32000")
    left = 65_533
    while left:
        count = min(left, 4_000)
        sender.send(*(message(sender.sent + n + 1, "topic/t", b"") for n in range(count)))
        sender.sent += count
        last = [peer.frame().sequence for _ in range(count)][-1]
        peer.ack(last)
        while sender.acked() != sender.sent:
            pass
        left -= count
    assert sender.sent == 65_533
    for number in range(5):
        sender.publish("commands", b"%d" % number)
    assert sender.sent == 3
    (frames,) = settle(broker, peer)
    assert numbers(frames) == [65_534, 65_535, 1, 2, 3]
    peer.ack(3)
    settle(broker, peer)
    queue = broker.stats().queue("commands/0")
    assert (queue.acks, queue.in_flight) == (5, 0)


def test_accepted_message_is_acknowledged(connect: Connect) -> None:
    for name in ("ack", "batch-ack"):
        sender = connect(f"{name};json")
        for number in range(1, 5):
            sender.publish("topic/t", b"x")
            assert sender.acked(name) == number


def test_unacknowledged_message_goes_to_another_receiver(broker: TestBroker, connect: Connect) -> None:
    first = connect("batch-ack;pub-sub;x-mqcore")
    first.ask(subscribe("commands", name="s"))
    sender = connect("")
    for number in range(3):
        sender.publish("commands", b"%d" % number)
    sender.leave()
    settle(broker, first)
    first.ack(1)
    first.leave()
    asyncio.run(broker.settle())
    second = connect("batch-ack;pub-sub;x-mqcore")
    second.ask(subscribe("commands", name="s"))
    (frames,) = settle(broker, second)
    assert bodies(frames) == [b"1", b"2"]


# --- extensions ----------------------------------------------------------------------------------------------------


def test_the_type_frame_of_the_document_comes_before_the_message(connect: Connect) -> None:
    """`2 2 50 OneTrueError.Contracts.Reports,OneTrueError.Client`, and it holds for what follows."""
    name = b"OneTrueError.Contracts.Reports,OneTrueError.Client"
    assert len(name) == 50
    knows, other = connect("dotnet", "pub-sub;x-mqcore"), connect("pub-sub;x-mqcore")
    for peer in (knows, other):
        peer.ask(subscribe("topic/t", name="s"))
    sender = connect("json;dotnet")
    sender.send(bytes([2, 2, 50]) + name)
    sender.publish("topic/t", b"1")
    sender.publish("topic/t", b"2")
    for body in (b"1", b"2"):
        typed, frame = knows.frames(2)
        assert (typed.kind, typed.id, typed.payload) == ("extension", 1, name)
        assert frame.payload == body
    assert bodies(other.frames(2)) == [b"1", b"2"]
    connect("json").publish("topic/t", b"3")
    untyped, frame = knows.frames(2)
    assert (untyped.payload, frame.payload) == (b"", b"3")


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        ("price=N1", {"one"}),
        ("price!=N1", {"two", "text", "none"}),
        ("price<N2", {"one"}),
        ("price<=N2", {"one", "two"}),
        ("price>N1", {"two"}),
        ("price>=N1", {"one", "two"}),
        ("sent<D1413198000.5", {"one"}),
        ("sent>=D1413198000.5", {"two"}),
        ("name=THello%20%22world%22", {"one"}),
        ("name=Thello%20%22world%22", set()),
        ("name<THello", {"one"}),
        ("name>T%22", {"one"}),
        ("name&Tlo%20%22", {"one"}),
        ("name~Tlo", {"two", "text", "none"}),
        ("name!=THello%20%22world%22", {"two", "text", "none"}),
        ("price>N0;sent>D1413198000.0;name&To", {"two"}),
        ("", {"one", "two", "text", "none"}),
    ],
)
def test_filters_compare_numbers_dates_and_text(
    broker: TestBroker, connect: Connect, wanted: str, passes: set[str]
) -> None:
    peer = connect("pub-sub;x-mqcore")
    assert peer.ask(subscribe("topic/t", name="s", wanted=wanted)) == "ok"
    sender = connect("x-mqcore")
    for body, listed in {
        "one": "price:N1;sent:D1413198000.0;name:THello%20%22world%22;",
        "two": "price:N2;sent:D1413198000.5;name:Tno;",
        "text": "price:Tcheap;",
        "none": "",
    }.items():
        sender.publish("topic/t", body.encode(), listed)
    frames, _ = settle(broker, peer, sender)
    assert {body.decode() for body in bodies(frames)} == passes


def test_each_receiver_has_its_own_filters(broker: TestBroker, connect: Connect) -> None:
    cheap, dear, either = (connect("pub-sub;x-mqcore") for _ in range(3))
    cheap.ask(subscribe("topic/t", name="a", wanted="price<N10"))
    dear.ask(subscribe("topic/t", name="a", wanted="price>=N10"))
    either.ask(subscribe("topic/t", name="a", wanted="price<N10"))
    either.ask(subscribe("topic/t", name="b", wanted="price>=N10"))
    sender = connect("x-mqcore")
    for price in (5, 10, 15):
        sender.publish("topic/t", b"%d" % price, f"price:N{price};")
    frames = settle(broker, cheap, dear, either, sender)
    assert [bodies(found) for found in frames[:3]] == [[b"5"], [b"10", b"15"], [b"5", b"10", b"15"]]


def test_a_subscription_ends_with_its_command(broker: TestBroker, connect: Connect) -> None:
    peer = connect("pub-sub;x-mqcore")
    assert peer.ask(subscribe("topic/t", name="s1")) == "ok"
    assert peer.ask("unsubscribe;id=s1") == "ok"
    sender = connect("x-mqcore")
    sender.publish("topic/t", b"x")
    frames, _ = settle(broker, peer, sender)
    assert frames == []


def test_subscribing_needs_its_extension(connect: Connect) -> None:
    peer = connect("json")
    peer.command(subscribe("topic/t"))
    assert peer.error() == "unexpected: subscribe needs the extension pub-sub"


def test_the_values_of_commands_are_url_encoded(connect: Connect) -> None:
    peer = connect("pub-sub")
    peer.send(command("subscribe;destination=topic/with space"))
    assert peer.error().startswith("malformed: ")


def test_headers_of_other_protocols_are_properties_of_text(broker: TestBroker, connect: Connect) -> None:
    peer = connect("pub-sub;x-mqcore")
    peer.ask(subscribe("commands", name="s"))
    asyncio.run(broker.publish("commands/0", b"x", headers={"Schema": "order 1"}))
    frame = peer.frame()
    assert "Schema:Torder%201;" in frame.properties


def test_handlers_see_all_parts_of_a_message(broker: TestBroker, connect: Connect) -> None:
    peer = connect("pub-sub;x-mqcore")
    assert peer.ask(subscribe("commands", name="s")) == "ok"
    assert peer.ask("unsubscribe;id=s") == "ok"
    sender = connect("json;dotnet;batch-ack")
    sender.send(extension(2, b"Shop.Order"))
    sender.publish("commands", b"{}", "price:N1;")
    assert sender.acked() == 1
    (stored,) = broker.messages("commands/0")
    headers: dict[str, Any] = dict(stored.message.headers.items())
    assert headers["Content-Type"] == "json"
    assert headers["Mm2-Type"] == "Shop.Order"
    assert headers["Mm2-Properties"] == "price:N1;"


# --- the page ------------------------------------------------------------------------------------------------------


def test_every_demand_of_the_document_has_its_test() -> None:
    """The table of the page names a test for each sentence; all of them exist."""
    table = PAGE.split("| the document demands |")[1].split("\n\n")[0]
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    assert len(rows) >= 20
    here = ROOT / "tests" / "protocols" / "test_micromessage_document.py"
    rust = ROOT / "rust" / "mqcore-wire" / "tests" / "micromessage_agreement.rs"
    for row in rows:
        names = re.findall(r"`([a-z0-9_]+)`", row.rsplit("|", 2)[1])
        assert names, row
        for name in names:
            found = f"def test_{name}(" in here.read_text() or f"fn {name}(" in rust.read_text()
            assert found, f"{name}: no such test"


def test_the_raw_peer_writes_what_the_tables_of_the_document_say() -> None:
    assert message(2, "MQ", b"mother") == bytes.fromhex("000002024d510000066d6f74686572")
    assert command("ping") == bytes.fromhex("010470696e67")
    assert extension(3, struct.pack(">H", 4)) == bytes.fromhex("0203020004")
    assert Handshake().encode() == b"\x01\x00\x00\x04peer\x00\x00\x00\x00"
