"""Every recorded dialog of the original, said again to a listener of the broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from mqcore.testing import TestBroker
from mqks_peer import MqksPeer, comparable

VECTORS = Path(__file__).parent.parent / "vectors" / "mqks.jsonl"
DIALOGUES = [json.loads(line) for line in VECTORS.read_text(encoding="utf-8").splitlines()]

# A request to the wrong worker of the original is lost there. Here every port is every worker, and it is done.
DONE_HERE = {"routing_publish_wrong_worker", "routing_consume_wrong_worker", "routing_ack_wrong_worker"}

# The transcript of the original's client tells what came after a line, and not to which line it belongs.
GATHERED = {"real_python_client_session"}

END = b"<EOF>"


class Replay:
    """One dialog with a broker of its own. The broker's clock is turned where time passes."""

    def __init__(self, broker: TestBroker) -> None:
        self.broker = broker
        self.peers: dict[str, MqksPeer] = {}
        self.unfinished: set[str] = set()
        self.ended: set[str] = set()

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()

    def peer(self, name: str) -> MqksPeer:
        if name not in self.peers:
            # `w1.A` is a client of the second of several workers.
            worker = int(name[1]) if name.startswith("w") else 0
            self.peers[name] = MqksPeer(self.broker.listeners[worker])
        return self.peers[name]

    def say(self, name: str, step: dict[str, Any]) -> None:
        peer = self.peer(name)
        data = bytes.fromhex(step.get("send_raw_hex", ""))
        if step["send"] is not None:
            data += step["send"].encode() + b"\n"
        if data:
            peer.send_bytes(data)
            self.unfinished.discard(name)
            if not data.endswith(b"\n"):
                self.unfinished.add(name)
        if step.get("op") == "half-close":
            peer.half_close()
            self.ended.add(name)
        if END.decode() in step["expect_lines"]:
            self.ended.add(name)

    def leave(self, name: str) -> None:
        before = len(self.broker.stats().clients)
        self.peers.pop(name).close()
        deadline = time.monotonic() + 10
        while len(self.broker.stats().clients) == before:
            assert time.monotonic() < deadline, "the broker does not notice that a client has left"
            time.sleep(0.005)
        asyncio.run(self.broker.settle())

    def heard(self, name: str) -> list[bytes]:
        """Messages that a peer received, once nothing is in flight."""
        peer = self.peer(name)
        if name in self.ended:
            return [*peer.rest(), END]
        if name in self.unfinished:
            return []
        # The first answer says that all was read, the second that all that came of it was written.
        early = peer.until_now()
        asyncio.run(self.broker.settle())
        return early + peer.until_now()


def wanted(step: dict[str, Any]) -> list[bytes]:
    return [line.encode() for line in step["expect_lines"]] + [
        bytes.fromhex(line) for line in step.get("expect_raw_hex", ())
    ]


def say(dialogue: dict[str, Any], shards: int) -> None:
    gathered: dict[str, tuple[list[bytes], list[bytes]]] = {}
    listeners = ["mqks://127.0.0.1:0"] * dialogue["workers"]
    with TestBroker(listen=listeners, shards=shards) as broker, contextlib.closing(Replay(broker)) as replay:
        for number, step in enumerate(dialogue["steps"]):
            name = step["conn"]
            if step.get("op") == "sleep":
                asyncio.run(broker.clock.advance(seconds=step["seconds"]))
            if name is None:
                continue
            if step.get("op") == "close":
                replay.leave(name)
                continue
            replay.say(name, step)
            found = replay.heard(name)
            if dialogue["name"] in GATHERED:
                all_wanted, all_found = gathered.setdefault(name, ([], []))
                all_wanted += wanted(step)
                all_found += found
                continue
            assert comparable(found) == comparable(wanted(step)), (number, step)
        for all_wanted, all_found in gathered.values():
            assert comparable(all_found) == comparable(all_wanted)


def test_all_dialogues_are_there() -> None:
    assert len(DIALOGUES) == 30
    assert {dialogue["name"] for dialogue in DIALOGUES} > DONE_HERE | GATHERED


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "dialogue",
    [dialogue for dialogue in DIALOGUES if dialogue["name"] not in DONE_HERE],
    ids=lambda dialogue: dialogue["name"],
)
def test_conversation_matches_the_original(dialogue: dict[str, Any], shards: int) -> None:
    say(dialogue, shards)


def test_a_request_to_any_port_is_done() -> None:
    with (
        TestBroker(listen=["mqks://127.0.0.1:0"] * 3, shards=2) as broker,
        MqksPeer(broker.listeners[0]) as one,
        MqksPeer(broker.listeners[1]) as two,
        MqksPeer(broker.listeners[2]) as three,
    ):
        for number in range(6):
            assert one.ask(f"c{number} consume --confirm q{number} e{number} --manual-ack") == f"c{number} ok ".encode()
        for number in range(6):
            assert two.ask(f"m{number} publish --confirm e{number} d") == f"m{number} ok ".encode()
        assert sorted(one.lines(6)) == [f"c{n} ok m{n} event=e{n} d".encode() for n in range(6)]
        for number in range(6):
            assert three.ask(f"a{number} ack --confirm c{number} m{number}") == f"a{number} ok ".encode()
        assert three.ask("ev _eval len(state.unacked)") == b"ev ok 0"
