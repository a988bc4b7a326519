"""Budgets of users: how many channels and queues one user, or one connection without a login, creates."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import mqcore
from awaited import until
from eventmq_peer import EventmqPeer
from metrics import metric
from mm2_peer import MM2Peer, subscribe
from mqcore import QueueOptions, errors
from mqcore._core import AuthorityStore
from mqks_peer import ERROR, MqksPeer
from protocols.conversation import CREATE_CHANNEL, CREATE_QUEUE, LIMIT_EXCEEDED, OK, REMOVE_QUEUE, Client
from served import wait_until
from throttr_peer import PURGE, ThrottrPeer
from tmqp_peer import RESPONSE, SERVER, RawFrame

REJECTED = "mqcore_creations_rejected_total"
KEYS_REJECTED = "mqcore_limiter_keys_rejected_total"
DEFAULT = 16_384


def address(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rpartition(":")
    return host, int(port)


def create(peer: Client, queue: int) -> int:
    """Create a queue and return the status of the answer."""
    return peer.ask(CREATE_QUEUE, "ch", headers={"Queue-Id": str(queue)}).content_type


def test_a_tmqp_client_creates_no_more_than_its_budget_until_it_removes_some() -> None:
    with (
        mqcore.Broker(
            listen="tmqp://127.0.0.1:0", admin="http://127.0.0.1:0", channels_per_user_max=2, queues_per_user_max=3
        ) as broker,
        Client(*address(broker.listeners[0])) as peer,
    ):
        peer.hello()
        assert [create(peer, queue) for queue in range(1, 6)] == [OK, OK, OK, LIMIT_EXCEEDED, LIMIT_EXCEEDED]
        answer = peer.ask(CREATE_QUEUE, "other", headers={"Queue-Id": "1"})
        assert answer.content_type == LIMIT_EXCEEDED
        assert b"limit: 3" in answer.payload or "limit: 3" in str(answer.headers), answer
        assert "other" not in {channel.name for channel in broker.stats().channels}, "no channel without its queue"
        assert [peer.ask(CREATE_CHANNEL, name).content_type for name in ("c1", "c2")] == [OK, LIMIT_EXCEEDED]
        peer.do(REMOVE_QUEUE, "ch", headers={"Queue-Id": "2"})
        assert [create(peer, queue) for queue in (6, 7)] == [OK, LIMIT_EXCEEDED]
        with Client(*address(broker.listeners[0])) as other:
            other.hello()
            assert create(other, 8) == OK, "each connection without a login has a budget of its own"
        assert metric(broker, REJECTED) == 5


@pytest.mark.parametrize("protocol", ["mqks", "mm2", "emqp"])
def test_queues_above_the_budget_are_rejected_in_the_form_of_the_protocol(protocol: str) -> None:
    with mqcore.Broker(
        listen=f"{protocol}://127.0.0.1:0",
        admin="http://127.0.0.1:0",
        auto_create_channels=True,
        auto_create_queues=True,
        queues_per_user_max=3,
    ) as broker:
        match protocol:
            case "mqks":
                with MqksPeer(broker.listeners[0]) as mqks:
                    lines = [mqks.ask(f"r{number} consume --confirm q{number} e.1") for number in range(5)]
                assert lines[:3] == [b"r0 ok ", b"r1 ok ", b"r2 ok "]
                assert all(ERROR.match(line) for line in lines[3:]), lines
            case "mm2":
                with MM2Peer(broker.listeners[0]).open("pub-sub;x-mqcore") as mm2:
                    answers = [mm2.ask(subscribe(f"q{number}", name=f"s{number}")) for number in range(5)]
                assert answers[:3] == ["ok"] * 3
                assert all("limit" in answer for answer in answers[3:]), answers
            case _:
                frontend = next(url for url in broker.listeners if "role=frontend" in url)
                with EventmqPeer(frontend) as producer:
                    for number in range(5):
                        producer.say("REQUEST", f"m{number}", f"q{number}", "guarantee", '["run", {}]')
                    producer.until_now()
                wait_until(
                    lambda: sum("queues_per_user_max" in error.why for error in broker.errors()) == 2,
                    what="two recorded errors",
                )
        wait_until(lambda: metric(broker, REJECTED) == 2, what="two counted rejections")
        names = {queue.address for queue in broker.stats().queues}
        assert len([name for name in names if name.startswith("q")]) == 3, names


async def test_connections_of_a_token_share_a_budget_which_others_do_not_use(tmp_path: Path) -> None:
    store = AuthorityStore.of_data_dir(tmp_path)
    _, token = store.add_token(json.dumps({"name": "t", "allow": ["*"]}))
    _, other = store.add_token(json.dumps({"name": "o", "allow": ["*"]}))
    settings = mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0",),
        data_dir=str(tmp_path),
        shards=2,
        queues_per_user_max=3,
        auto_create_channels=True,
        auto_create_queues=True,
    )
    async with mqcore.Broker(settings) as broker:
        url = broker.listeners[0]
        async with mqcore.connect(url, token=token) as first, mqcore.connect(url, token=token) as second:
            await first.create_queue("a/1")
            await second.create_queue("b/1")
            await second.publish("c/1", b"creates the queue", confirm=True)
            with pytest.raises(errors.LimitExceeded, match='user "t" has created 3 queues'):
                await first.create_queue("d/1")
            with pytest.raises(errors.LimitExceeded, match="queues_per_user_max"):
                await second.publish("e/1", b"would create the queue", confirm=True)
            await second.publish("a/1", b"the queue exists", confirm=True)
            async with mqcore.connect(url, token=other) as third:
                await third.create_queue("d/1")
                await third.remove_queue("a/1")
            await first.create_queue("e/1")
        async with mqcore.connect(url, token=token) as again:
            with pytest.raises(errors.LimitExceeded):
                await again.create_queue("f/1")
    async with mqcore.Broker(settings) as broker, mqcore.connect(broker.listeners[0], token=token) as client:
        assert not await client.declare("b", 1), "it survived, and counts for no client now"
        for name in ("f/1", "g/1", "h/1"):
            await client.create_queue(name)
        with pytest.raises(errors.LimitExceeded):
            await client.create_queue("i/1")


async def test_what_the_program_declares_counts_for_no_client() -> None:
    settings = mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0",),
        queues_per_user_max=1,
        channels_per_user_max=1,
        queues=tuple(mqcore.QueueDeclaration(f"own/{number}", QueueOptions()) for number in range(1, 6)),
    )
    async with mqcore.Broker(settings) as broker, mqcore.connect(broker.listeners[0]) as client:
        await client.create_queue("own/6")
        with pytest.raises(errors.LimitExceeded, match="this connection has created 1 queues"):
            await client.create_queue("own/7")
        await client.create_channel("mine")
        with pytest.raises(errors.LimitExceeded, match="this connection has created 1 channels"):
            await client.create_channel("yours")


async def test_forty_thousand_queues_of_one_client_end_at_the_default_budget() -> None:
    wanted = 40_000
    async with mqcore.Broker(listen="tmqp://127.0.0.1:0", admin="http://127.0.0.1:0") as broker:

        def flood() -> list[int]:
            with Client(*address(broker.listeners[0]), timeout=60.0) as peer:
                peer.hello()
                found = []
                for start in range(0, wanted, 1_000):
                    frames = [
                        RawFrame(
                            kind=SERVER,
                            id=b"%d" % number,
                            source=peer.client_id,
                            target=b"ch",
                            content_type=CREATE_QUEUE,
                            headers=[("Queue-Id", str(number + 1))],
                            pending_response=True,
                        ).encode()
                        for number in range(start, start + 1_000)
                    ]
                    peer.socket.sendall(b"".join(frames))
                    while len(found) < start + 1_000:
                        answer = peer.receive()
                        if answer.kind == RESPONSE:
                            found.append(answer.content_type)
                return found

        found = await asyncio.to_thread(flood)
        assert found == [OK] * DEFAULT + [LIMIT_EXCEEDED] * (wanted - DEFAULT)
        async with mqcore.connect(broker.listeners[0]) as client:
            assert [channel.name for channel in await client.channels()] == ["ch"]
            await client.create_queue("orders/1")
        await until(lambda: metric(broker, REJECTED) == wanted - DEFAULT, "the count of rejections")


def test_a_throttr_client_creates_no_more_keys_than_its_budget_and_evicts_none_of_others() -> None:
    with mqcore.Broker(
        listen="throttr://127.0.0.1:0", admin="http://127.0.0.1:0", limiter_keys_max=100, limiter_keys_per_user_max=50
    ) as broker:
        place = address(broker.listeners[0])
        with ThrottrPeer(place) as victim, ThrottrPeer(place) as rogue:
            assert victim.status(victim.insert(b"mine", 5, 60))
            created = [rogue.status(rogue.insert(b"k%d" % number, 5, 3600)) for number in range(300)]
            assert created == [True] * 50 + [False] * 250
            assert victim.query(b"mine") is not None
            assert metric(broker, KEYS_REJECTED) == 250
            assert victim.status(victim.insert(b"other", 5, 60))
            assert rogue.status(rogue.keyed(PURGE, b"k7"))
            assert rogue.status(rogue.insert(b"k300", 5, 60)), "a removed key gives its place back"
            assert not rogue.status(rogue.insert(b"k301", 5, 60))


def test_keys_of_clients_that_anonymous_rules_admit_count_together(tmp_path: Path) -> None:
    AuthorityStore.of_data_dir(tmp_path).add_token(json.dumps({"name": "t", "allow": ["*"]}))
    settings = mqcore.BrokerConfig(
        listen=("throttr://127.0.0.1:0",),
        data_dir=str(tmp_path),
        authority=mqcore.config.AuthorityOptions(audit="off", anonymous=("limit",)),
        limiter_keys_per_user_max=3,
    )
    with mqcore.Broker(settings) as broker:
        place = address(broker.listeners[0])
        with ThrottrPeer(place) as first, ThrottrPeer(place) as second:
            assert first.status(first.insert(b"a", 5, 60))
            assert second.status(second.insert(b"b", 5, 60))
            assert first.status(first.insert(b"c", 5, 60))
            assert not first.status(first.insert(b"d", 5, 60))
            assert not second.status(second.insert(b"e", 5, 60))
            assert second.status(second.keyed(PURGE, b"a"))
            assert second.status(second.insert(b"e", 5, 60))


@pytest.mark.parametrize("name", ["channels_per_user_max", "queues_per_user_max", "limiter_keys_per_user_max"])
def test_a_budget_of_zero_is_rejected(name: str) -> None:
    config = mqcore.BrokerConfig.load(environ={f"MQCORE_{name.upper()}": "0"})
    with pytest.raises(errors.ConfigError, match=rf"{name}.*at least 1"), mqcore.Broker(config):
        pass
