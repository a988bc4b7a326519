"""Names that collide under hashes without a key cost the broker no more than other names, and limits hold."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from depth import by_depth, choices
from hostile.collisions import HASHES, colliding, unrelated
from hostile.crowd import processor_seconds
from metrics import metric
from protocols.conversation import CREATE_CHANNEL, Client
from served import ServedBroker, serving, wait_until
from test_unfinished_input import endpoint
from throttr_peer import ThrottrPeer
from tmqp_peer import QUEUE, RawFrame

KEYS = by_depth(1 << 14, 1 << 20)
"""Keys of the limiter."""
CHANNELS = by_depth(1 << 11, 1 << 15)
"""Channels; the full depth has twice as many as one user may create."""
TOPICS = by_depth(1 << 12, 1 << 18)
CHANNELS_MAX = 16_384
FACTOR = by_depth(5.0, 2.0)
"""The processor time that colliding names may take, in that of random ones. Few names take too little time to be exact.
The time would grow with the square of the number of names: hundreds of times longer.
"""
BATCH = 2000

Say = Callable[[socket.socket, list[bytes]], None]


@contextmanager
def broker_for(*, user_keys: int) -> Iterator[ServedBroker]:
    listen = ("--listen", "tmqp://127.0.0.1:0", "--listen", "throttr://127.0.0.1:0?value=uint32")
    environment = {"MQCORE_LIMITER_KEYS_PER_USER_MAX": str(user_keys)}
    with serving(*listen, "--auto-create", "--admin", "http://127.0.0.1:0", environment=environment) as broker:
        yield broker


def send_and_read(stream: socket.socket, data: bytes, answer: int) -> bytes:
    """Send all of it while so many bytes of answers are read."""
    sender = threading.Thread(target=stream.sendall, args=(data,))
    sender.start()
    parts, left = [], answer
    while left:
        part = stream.recv(min(left, 1 << 20))
        assert part
        parts.append(part)
        left -= len(part)
    sender.join()
    return b"".join(parts)


def insert(broker: ServedBroker, names: Sequence[bytes]) -> int:
    """Insert a counter for each name; how many the broker accepted."""
    with ThrottrPeer(endpoint(broker, "throttr"), width=4) as peer:
        accepted = 0
        for at in range(0, len(names), BATCH):
            batch = names[at : at + BATCH]
            data = b"".join(peer.insert(name, 5, 3600) for name in batch)
            accepted += send_and_read(peer.socket, data, len(batch)).count(1)
        return accepted


def create_channels(broker: ServedBroker, names: Sequence[bytes]) -> int:
    """Create a channel for each name; how many the broker accepted."""
    with Client(*endpoint(broker, "tmqp"), timeout=60.0) as peer:
        peer.hello()
        accepted = 0
        for at in range(0, len(names), 500):
            batch = names[at : at + 500]
            frames = (
                RawFrame(
                    kind=0x10,
                    id=b"c",
                    source=peer.client_id,
                    target=name,
                    content_type=CREATE_CHANNEL,
                    pending_response=True,
                )
                for name in batch
            )
            peer.socket.sendall(b"".join(frame.encode() for frame in frames))
            accepted += sum(peer.answer(b"c").content_type == 0 for _ in batch)
        return accepted


def publish(broker: ServedBroker, names: Sequence[bytes]) -> int:
    """Publish to a topic of each name."""
    with Client(*endpoint(broker, "tmqp"), timeout=60.0) as peer:
        peer.hello()
        for at in range(0, len(names), BATCH):
            frames = (RawFrame(kind=QUEUE, id=b"m", target=b"@topic:" + name) for name in names[at : at + BATCH])
            peer.socket.sendall(b"".join(frame.encode() for frame in frames))
        arrived = 'mqcore_topic_messages_total{outcome="in"}'
        wait_until(lambda: metric(broker, arrived) >= len(names), limit=60.0, what="all messages")
        return metric(broker, arrived)


SURFACES: dict[str, tuple[Callable[[ServedBroker, Sequence[bytes]], int], int, int]] = {
    "limiter keys": (insert, KEYS, KEYS),
    "channels": (create_channels, CHANNELS, min(CHANNELS, CHANNELS_MAX)),
    "topics": (publish, TOPICS, TOPICS),
}
"""A use of names, their number, and the number that the broker accepts."""


def measure(names: Sequence[bytes], use: Callable[[ServedBroker, Sequence[bytes]], int], accepted: int) -> float:
    """The processor time that a new broker takes for these names."""
    with broker_for(user_keys=KEYS) as broker:
        before = processor_seconds(broker.process.pid)
        assert use(broker, names) == accepted
        return processor_seconds(broker.process.pid) - before


@pytest.mark.timeout(by_depth(60, 900))
@pytest.mark.parametrize("surface", SURFACES)
def test_names_with_one_hash_cost_no_more_than_others(surface: str) -> None:
    use, count, accepted = SURFACES[surface]
    chance = choices(f"{__name__} {surface}")
    # Names for the others take seconds to find.
    sets = {name: colliding(name, count, chance) for name in by_depth(["crc-32"], list(HASHES))}
    usual = measure(unrelated(count, len(next(iter(sets.values()))[0]), chance), use, accepted)
    print(f"{surface}: {count} random names take {usual:.2f} s of processor time")
    for name, names in sets.items():
        seconds = measure(names, use, accepted)
        print(f"{surface}: {name} takes {seconds:.2f} s, {seconds / usual:.2f} times as long")
        assert seconds <= usual * FACTOR, name


def test_colliding_keys_are_rejected_at_the_limit_and_others_keep_theirs() -> None:
    names = colliding("java", 1000, choices(__name__))
    with broker_for(user_keys=500) as broker, ThrottrPeer(endpoint(broker, "throttr"), width=4) as other:
        assert other.status(other.insert(b"mine", 5, 3600))
        assert insert(broker, names) == 500
        assert metric(broker, "mqcore_limiter_keys_rejected_total") == 500
        assert other.query(b"mine") is not None
        assert other.status(other.insert(b"another", 5, 3600))
