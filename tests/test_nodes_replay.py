"""A peer that speaks the protocol between nodes and repeats its frames: each is published once."""

from __future__ import annotations

import json
import time
from pathlib import Path

from node_peer import frames, link, wait_until_done
from served import ServedBroker, serving
from tmqp_peer import CREATE_QUEUE, QUEUE, QUEUE_INFORMATION, RawFrame, TmqpPeer


def stored(broker: ServedBroker) -> int:
    with TmqpPeer(*broker.address) as peer:
        peer.hello()
        answer = peer.ask(QUEUE_INFORMATION, "replayed", headers={"Queue-Id": "1"})
        return int(json.loads(answer.payload)["Messages"])


def test_repeated_frames_of_a_node_are_published_once(tmp_path: Path) -> None:
    bodies = [b"1", b"2", b"3", b"4", b"5"]
    place = ("--auto-create", "--data-dir", str(tmp_path), "--node-name", "top")
    saving = b'{"Status":"pull","DeliveryHandler":"at-least-once"}'
    with serving(*place) as broker:
        with TmqpPeer(*broker.address) as peer:
            peer.hello()
            peer.ask(CREATE_QUEUE, "replayed", headers={"Queue-Id": "1"}, body=saving)
        with link(broker.address, 7) as peer:
            peer.socket.sendall(frames(1, bodies[:3]))
            wait_until_done(peer, 3)
            # From the start, from the middle, and with one new frame at the end.
            peer.socket.sendall(frames(1, bodies[:3]) + frames(2, bodies[1:3]) + frames(1, bodies[:4]))
            wait_until_done(peer, 4)
        assert stored(broker) == 4
        with link(broker.address, 7) as peer:
            peer.socket.sendall(frames(1, bodies))
            wait_until_done(peer, 5)
        assert stored(broker) == 5
        broker.process.kill()
        broker.process.wait(10)
    with serving(*place) as broker, link(broker.address, 7) as peer:
        peer.socket.sendall(frames(1, [*bodies, b"6"]))
        wait_until_done(peer, 6)
        assert stored(broker) == 6


def test_wrong_numbers_of_a_node_affect_no_other_client() -> None:
    with serving("--auto-create", "--node-name", "top") as broker, TmqpPeer(*broker.address) as calm:
        calm.hello()
        highest = 2**64 - 1
        for first in (0, 2, 1000, highest, 1, highest - 1):
            with link(broker.address, 7) as peer:
                peer.socket.sendall(frames(first, [b"a", b"b"]) + frames(1, [b"c"]))
                time.sleep(0.05)
        for number in range(20):
            calm.send(RawFrame(kind=QUEUE, id=b"%d" % number, target=b"calm", content_type=1, pending_acknowledge=True))
            assert calm.receive().id == b"%d" % number
        assert broker.process.poll() is None
    assert not [line for line in broker.stderr_lines if "panicked" in line]
