"""Every vector of MicroMessage2, offered to a real listener whole, byte by byte and with others behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import mqcore
from mm2_peer import Cut, MM2Peer, command, message, subscribe
from served import ROOT

VECTORS: list[dict[str, Any]] = [
    json.loads(line) for line in (ROOT / "tests" / "vectors" / "micromessage2.jsonl").read_text().splitlines()
]
WAYS = ["whole", "byte by byte", "with others behind it"]
PING = command("ping;id=behind")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mqcore.Broker(listen=["mm2://127.0.0.1:0?default_destination=topic/t"], shards=2) as broker:
        with MM2Peer(broker.listeners[0]) as maker:
            maker.open("pub-sub;x-mqcore")
            for queue in ("q", "MQ", "commands"):
                assert maker.ask(subscribe(queue, name=queue.lower())) == "ok"
                assert maker.ask(f"unsubscribe;id={queue.lower()}") == "ok"
        yield broker.listeners[0]


def of_kind(*kinds: str) -> list[Any]:
    found = [vector for vector in VECTORS if vector["kind"] in kinds]
    return [pytest.param(bytes.fromhex(vector["hex"]), vector["name"], id=vector["name"]) for vector in found]


def offer(peer: MM2Peer, data: bytes, way: str, behind: bytes) -> None:
    if way == "byte by byte":
        for byte in data:
            peer.send(bytes([byte]))
        peer.send(behind)
    else:
        peer.send(data + behind)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("data", "name"), of_kind("handshake"))
def test_a_handshake_is_read(url: str, data: bytes, name: str, way: str) -> None:
    with MM2Peer(url) as peer:
        offer(peer, data, way, b"")
        if name == "H5":
            # It asks for an optional extension that the broker does not have.
            assert "x-note" not in peer.reply().optional
        else:
            # H8 announces version 2.0; the lower version is spoken.
            assert peer.reply().major == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("data", "name"), of_kind("message"))
def test_a_message_is_read(url: str, data: bytes, name: str, way: str) -> None:
    with MM2Peer(url) as peer:
        peer.open("x-mqcore")
        offer(peer, data, way, PING)
        assert peer.answer("behind") == "ok", name


@pytest.mark.parametrize("way", WAYS)
def test_a_message_in_parts_is_read(url: str, way: str) -> None:
    parts = b"".join(bytes.fromhex(vector["hex"]) for vector in VECTORS if vector["name"] in ("F1", "F2", "F3"))
    with MM2Peer(url) as receiver, MM2Peer(url) as peer:
        receiver.open("pub-sub;x-mqcore").ask(subscribe("q", name="s"))
        peer.open("")
        offer(peer, parts, way, b"")
        # Vectors that came before may have left something in the queue.
        while (frame := receiver.whole_message()).payload == b"hi":
            pass
        assert (frame.payload, frame.destination, frame.properties) == (b"AAAABBBBCC", "q", "k:N1;")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("data", "name"), of_kind("command"))
def test_a_command_is_read(url: str, data: bytes, name: str, way: str) -> None:
    with MM2Peer(url) as peer:
        peer.open("pub-sub;x-mqcore")
        offer(peer, data, way, PING)
        wanted = "fail: unexpected: there is no such subscription" if name == "C3" else "ok"
        if name in ("C2", "C3"):
            assert peer.answer("1") == wanted
        assert peer.answer("behind") == "ok"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("data", "name"), of_kind("extension"))
def test_a_frame_of_an_extension_is_read(url: str, data: bytes, name: str, way: str) -> None:
    """Under the numbers of the document's example: json 1, dotnet 2, batch-ack 3."""
    with MM2Peer(url) as peer:
        peer.open("json;dotnet;batch-ack;x-mqcore")
        offer(peer, data, way, PING)
        if name in ("X4", "X5"):
            assert peer.answer("behind") == "ok"
        elif name == "X2":
            assert peer.error() == "malformed: json has no frames"
        else:
            # Nothing was delivered that could be acknowledged.
            assert peer.error().startswith("ack: ")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("data", "name"), of_kind("error"))
def test_an_error_of_the_peers_is_the_end(url: str, data: bytes, name: str, way: str) -> None:
    with MM2Peer(url) as peer:
        peer.open("x-mqcore")
        assert peer.ask("ping;id=p") == "ok", name
        offer(peer, data, way, PING if way == "whole" else b"")
        assert peer.rest() == []


@pytest.mark.parametrize(("data", "name"), of_kind("bad"))
def test_protocol_error_is_reported_and_closes_the_connection(url: str, data: bytes, name: str) -> None:
    with MM2Peer(url) as peer:
        if name == "B9":
            peer.send(data)
            with pytest.raises(Cut):
                peer.read(1)
            return
        peer.open("json;dotnet;batch-ack;x-mqcore")
        peer.send(data)
        token = "too-large" if name == "B6" else "malformed"
        assert peer.error().startswith(f"{token}: ")


def test_a_beginning_of_a_vector_is_never_an_error(url: str) -> None:
    for vector in VECTORS:
        if vector["kind"] in ("message", "command", "extension"):
            data = bytes.fromhex(vector["hex"])
            with MM2Peer(url) as peer:
                peer.open("json;dotnet;batch-ack;pub-sub;x-mqcore")
                peer.send(data[:-1])
                peer.socket.settimeout(0.01)
                with pytest.raises(TimeoutError):
                    peer.read(1)


def test_messages_of_any_form_reach_a_receiver(url: str) -> None:
    with MM2Peer(url) as receiver, MM2Peer(url) as sender:
        receiver.open("pub-sub;x-mqcore").ask(subscribe("topic/v", name="s"))
        sender.open("")
        for sequence, body in ((1, b""), (65_535, b"x" * 255), (1, b"x" * 256)):
            sender.send(message(sequence, "topic/v", body))
            assert receiver.frame().payload == body
