"""Long lists: whole ones for original clients, pages for clients that ask for them, and what happens meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

import mqcore
import mqcore.sync
from protocols.conversation import (
    BAD_REQUEST,
    CHANNEL_LIST,
    CLIENT_LIST,
    CREATE_CHANNEL,
    CREATE_QUEUE,
    LIMIT_EXCEEDED,
    OK,
    QUEUE_LIST,
    RESPONSE,
    SERVER,
    Client,
)
from served import ServedBroker, serving
from tmqp_peer import RawFrame

CHANNELS = 3_100
QUEUES = 1_500
NAMES = sorted(f"{'aBc'[number % 3]}{number:05}" for number in range(CHANNELS))
MANY = 100_000
"""Channels of the test of the full depth."""
FLOOD = 1_000
"""Whole lists of them that a peer asks for at once."""
DELAY = 5.0
"""Seconds that a confirmation may take while other clients list all of them, on a machine that does other things."""


def create(peer: Client, operation: int, targets: list[tuple[str, list[tuple[str, str]]]]) -> None:
    """Carry out one operation for each target and its headers, many at a time."""
    for begin in range(0, len(targets), 1_000):
        part = targets[begin : begin + 1_000]
        frames = [
            RawFrame(
                kind=SERVER,
                id=peer.new_id(),
                source=peer.client_id,
                target=target.encode(),
                content_type=operation,
                headers=headers,
                pending_response=True,
            )
            for target, headers in part
        ]
        peer.socket.sendall(b"".join(frame.encode() for frame in frames))
        for _ in part:
            answer = peer.receive()
            assert (answer.kind, answer.content_type) == (RESPONSE, OK), answer


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    """A broker of four shards with more channels, and a channel with more queues, than fit on a page."""
    with serving(environment={"MQCORE_SHARDS": "4"}) as running, Client(*running.address) as peer:
        peer.hello()
        create(peer, CREATE_CHANNEL, [(name, []) for name in NAMES])
        create(peer, CREATE_QUEUE, [(NAMES[0], [("Queue-Id", str(number))]) for number in range(QUEUES)])
        yield running


@pytest.fixture
def client(broker: ServedBroker) -> Iterator[Client]:
    with Client(*broker.address) as peer:
        peer.hello()
        yield peer


def pages(client: Client, operation: int, target: str, size: int, **headers: str) -> list[list[dict[str, object]]]:
    """All pages of a list."""
    found = []
    names = {"Page-Size": str(size)} | {key.replace("_", "-"): value for key, value in headers.items()}
    while True:
        answer = client.ask(operation, target, headers=names)
        assert answer.content_type == OK, answer
        found.append(json.loads(answer.payload))
        following = answer.header("Next-Page")
        if following is None:
            return found
        names["Page-After"] = following


def test_an_original_client_gets_the_whole_list(client: Client) -> None:
    answer = client.ask(CHANNEL_LIST)
    assert (answer.content_type, answer.headers) == (OK, [])
    assert [model["Name"] for model in json.loads(answer.payload)] == NAMES
    assert [model["Id"] for model in client.json(QUEUE_LIST, NAMES[0])] == list(range(QUEUES))


def test_lists_that_were_asked_for_at_once_are_answered_in_order(client: Client) -> None:
    requests = [
        RawFrame(kind=SERVER, id=b"%d" % number, target=target, content_type=CHANNEL_LIST, pending_response=True)
        for number, target in enumerate([b"", b"*7", b"a*", b"none", b""])
    ]
    client.socket.sendall(b"".join(request.encode() for request in requests))
    answers = [client.receive() for _ in requests]
    assert [answer.id for answer in answers] == [b"0", b"1", b"2", b"3", b"4"]
    names = [[model["Name"] for model in json.loads(answer.payload)] for answer in answers]
    ends = [name for name in NAMES if name.endswith("7")]
    assert names == [NAMES, ends, [name for name in NAMES if name.startswith("a")], [], NAMES]


@pytest.mark.parametrize("size", [7, 1_000])
def test_pages_have_each_entry_once_in_order(client: Client, size: int) -> None:
    pattern = "*99*" if size < 10 else ""
    listed = pages(client, CHANNEL_LIST, pattern, size)
    assert max(map(len, listed)) <= size
    assert [model["Name"] for page in listed for model in page] == [name for name in NAMES if pattern[1:-1] in name]
    queues = pages(client, QUEUE_LIST, NAMES[0], size)
    assert [model["Id"] for page in queues for model in page] == list(range(QUEUES))


def test_wrong_pages_are_refused_with_the_reason(client: Client) -> None:
    for headers, reason in [
        ({"Page-Size": "0"}, "a number from 1 to 1000"),
        ({"Page-Size": "1001"}, "a number from 1 to 1000"),
        ({"Page-After": "a"}, "needs the header Page-Size"),
        ({"Page-Size": "5", "Page-After": "x"}, "cursor"),
    ]:
        answer = client.ask(CLIENT_LIST, headers=headers)
        assert answer.content_type == BAD_REQUEST
        assert reason in str(answer.header("Reason"))


async def test_the_client_returns_complete_lists(broker: ServedBroker) -> None:
    async with mqcore.connect(broker.url) as mq:
        assert [channel.name for channel in await mq.channels()] == NAMES
        assert [channel.name for channel in await mq.channels("B*")] == [name for name in NAMES if name[0] == "B"]
        assert [queue.id for queue in await mq.queues(NAMES[0])] == list(range(QUEUES))
        lists = await asyncio.gather(*(mq.channels(f"*{number}") for number in range(10)))
        assert sum(map(len, lists)) == CHANNELS
        assert len(await mq.clients()) == 2, "this one, and that of the fixture"


def test_the_client_without_an_event_loop_returns_complete_lists(broker: ServedBroker) -> None:
    with mqcore.sync.connect(broker.url) as mq:
        assert [channel.name for channel in mq.channels()] == NAMES


@pytest.mark.full("creates 100,000 channels; the tests above list 3,100")
async def test_lists_of_very_many_channels_delay_no_other_client() -> None:
    environment = {"MQCORE_SHARDS": "4", "MQCORE_CHANNELS_PER_USER_MAX": str(2 * MANY)}
    with serving(environment=environment) as running, Client(*running.address, timeout=60) as peer:
        peer.hello()
        names = [f"c{number:06}" for number in range(MANY)]
        create(peer, CREATE_CHANNEL, [(name, []) for name in names])
        create(peer, CREATE_QUEUE, [("other", [("Queue-Id", "1")])])

        answer = peer.ask(CHANNEL_LIST)
        assert (answer.content_type, answer.payload) == (LIMIT_EXCEEDED, b"")
        assert "Page-Size" in str(answer.header("Reason"))

        flood = RawFrame(kind=SERVER, id=b"f", content_type=CHANNEL_LIST, pending_response=True).encode() * FLOOD
        peer.socket.sendall(flood)
        async with mqcore.connect(running.url) as mq, mqcore.connect(running.url) as other:
            listing = asyncio.create_task(mq.channels())
            slowest = 0.0
            while not listing.done():
                started = time.monotonic()
                await other.publish("other/1", b"x", confirm=True)
                slowest = max(slowest, time.monotonic() - started)
            listed = [channel.name for channel in await listing]
            assert listed == [*names, "other"]
            assert slowest < DELAY
