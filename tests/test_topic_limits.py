"""Limits of subscriptions to topics, and the work that masks of other clients cause for a publish."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

import pytest

import mqcore
from awaited import until
from eventmq_peer import EventmqPeer
from metrics import metric
from mm2_peer import MM2Peer, subscribe
from mqcore._core import AuthorityStore
from mqks_peer import ERROR, MqksPeer
from served import serving, wait_until
from throttr_peer import SUBSCRIBE, ThrottrPeer
from tmqp_peer import ACCEPTED, JOIN, LEAVE, RESPONSE, SERVER, RawFrame, TmqpPeer

OK, LIMIT_EXCEEDED = 0, 482
REJECTED = "mqcore_topic_subscriptions_rejected_total"
STEPS = "mqcore_topic_pattern_steps_total"


def url_of(broker: mqcore.Broker, scheme: str) -> str:
    return next(url for url in broker.listeners if url.startswith(f"{scheme}:"))


def tmqp_peer(broker: mqcore.Broker, **properties: str) -> TmqpPeer:
    host, _, port = url_of(broker, "tmqp").removeprefix("tmqp://").rpartition(":")
    peer = TmqpPeer(host, int(port))
    assert peer.hello(**properties).content_type == ACCEPTED
    return peer


def subscribe_to_masks(peer: TmqpPeer, masks: list[str]) -> None:
    """Subscribe to all masks with one write, and read all answers."""
    frames = [
        RawFrame(
            kind=SERVER,
            id=b"%d" % number,
            source=peer.client_id,
            target=f"@topic:{mask}".encode(),
            content_type=JOIN,
            pending_response=True,
        ).encode()
        for number, mask in enumerate(masks)
    ]
    peer.socket.sendall(b"".join(frames))
    for _ in masks:
        answer = peer.receive()
        assert (answer.kind, answer.content_type) == (RESPONSE, OK), answer


@pytest.mark.parametrize("form", ["plant{number}.*.sensor.*", "*.line{number}.*.value", "*{number}*.a.b.c"])
def test_publishes_cost_their_matches_and_not_the_masks_of_forty_peers(form: str) -> None:
    """Every publish is to another topic, so that the broker has to search each time."""
    publishes, masks_each = 500, 1_024
    with serving("--admin", "http://127.0.0.1:0") as broker:
        peers = []
        try:
            for at in range(40):
                peer = TmqpPeer(*broker.address)
                peers.append(peer)
                assert peer.hello().content_type == ACCEPTED
                first = 1_000_000 + at * masks_each
                subscribe_to_masks(peer, [form.format(number=first + each) for each in range(masks_each)])
            before = metric(broker, STEPS)

            async def publish() -> None:
                async with mqcore.connect(broker.url) as client, client.topic("plant7.*.*.*").subscribe() as messages:
                    for number in range(publishes):
                        await client.topic(f"plant7.line{number}.sensor.heat").publish(b"21")
                    async for message in messages:
                        if message.topic == f"plant7.line{publishes - 1}.sensor.heat":
                            break

            asyncio.run(publish())
            # The statistics search for the topics' subscribers too.
            steps = metric(broker, STEPS) - before
            assert 0 < steps < 1_000 * publishes, "40,960 masks would be at least 20 million steps"
            with urllib.request.urlopen(f"{broker.admin_url}/livez", timeout=10) as answer:
                assert answer.status == 200
        finally:
            for peer in peers:
                peer.close()


async def test_a_tmqp_client_is_refused_patterns_above_its_limit_until_it_ends_one() -> None:
    settings = mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0",), admin="http://127.0.0.1:0", topic_patterns_max=2, shards=1
    )
    async with mqcore.Broker(settings) as broker, mqcore.connect(broker.listeners[0]) as client:
        async with client.topic("a.*").subscribe(), client.topic("b.*").subscribe():
            with pytest.raises(mqcore.errors.LimitExceeded, match="limit of 2 patterns of a connection"):
                async with client.topic("c.*").subscribe():
                    pytest.fail("it was admitted")
            async with client.topic("c.by-name").subscribe():
                pass
        assert await asyncio.to_thread(metric, broker, REJECTED) == 1
        async with (
            client.topic("c.*").subscribe(),
            client.topic("d.*").subscribe(),
            mqcore.connect(broker.listeners[0]) as other,
            other.topic("e.*").subscribe(),
        ):
            pass


@pytest.mark.parametrize("protocol", ["tmqp", "mm2", "throttr"])
def test_topics_by_name_above_the_limit_are_refused_in_the_form_of_the_protocol(protocol: str) -> None:
    listen = {
        "tmqp": "tmqp://127.0.0.1:0",
        "mm2": "mm2://127.0.0.1:0",
        "throttr": "throttr://127.0.0.1:0?protocol=7.3",
    }[protocol]
    # Each connection of Throttr subscribes to two topics of its own.
    limit = 4 if protocol == "throttr" else 2
    with mqcore.Broker(listen=[listen], admin="http://127.0.0.1:0", topic_subscriptions_max=limit, shards=1) as broker:
        url = url_of(broker, protocol)
        if protocol == "tmqp":
            with tmqp_peer(broker) as peer:
                answers = [peer.ask(JOIN, f"@topic:t{number}").content_type for number in range(3)]
                assert answers == [OK, OK, LIMIT_EXCEEDED]
                assert peer.ask(LEAVE, "@topic:t0").content_type == OK
                assert peer.ask(JOIN, "@topic:t2").content_type == OK
        elif protocol == "mm2":
            with MM2Peer(url).open("pub-sub;x-mqcore") as raw:
                said = [raw.ask(subscribe(f"topic/t{number}", name=f"s{number}")) for number in range(3)]
                assert said[:2] == ["ok", "ok"]
                assert "limit of 2 topics" in said[2]
        else:
            host, _, port = url.removeprefix("throttr://").partition("?")[0].rpartition(":")
            with ThrottrPeer((host, int(port))) as throttr:
                said_by_throttr = [throttr.status(throttr.keyed(SUBSCRIBE, b"t%d" % number)) for number in range(3)]
                assert said_by_throttr == [True, True, False]
        assert metric(broker, REJECTED) == 1


def test_an_eventmq_subscriber_above_its_limit_receives_only_its_earlier_topics() -> None:
    with mqcore.Broker(listen="emqp://127.0.0.1:0", admin="http://127.0.0.1:0", topic_patterns_max=2) as broker:
        subscriber_url = next(url for url in broker.listeners if "role=subscribe" in url)
        publisher_url = next(url for url in broker.listeners if "role=publish" in url)
        with EventmqPeer(subscriber_url, b"SUB") as subscriber, EventmqPeer(publisher_url) as publisher:
            for prefix in (b"a", b"b", b"c"):
                subscriber.send(b"\x01" + prefix)
            subscriber.until_now()

            wait_until(
                lambda: any("limit of 2 topics" in error.why for error in broker.errors()), what="the recorded error"
            )
            for topic in ("c1", "b1", "a1"):
                publisher.say("PUBLISH", "p", topic, "news")
            # Order holds within a topic only: the topics can be on different shards.
            assert {subscriber.receive()[0] for _ in range(2)} == {b"b1", b"a1"}
            subscriber.send(b"\x00a")
            subscriber.send(b"\x01c")
            subscriber.until_now()
            publisher.say("PUBLISH", "p", "c2", "news")
            assert subscriber.receive()[0] == b"c2"


def test_an_mqks_request_with_too_many_masks_is_refused() -> None:
    with mqcore.Broker(listen="mqks://127.0.0.1:0") as broker, MqksPeer(broker.listeners[0]) as peer:
        assert peer.ask("b1 rebind --confirm q1 e.1 e.2") == b"b1 ok "
        masks = " ".join(f"e.{number}*" for number in range(1_025))
        refused = peer.ask(f"b2 rebind --confirm q1 --remove-mask {masks}")
        assert ERROR.match(refused), refused
        assert peer.ask(f"b3 rebind --confirm q1 --remove-mask {masks.rpartition(' ')[0]}") == b"b3 ok "


async def test_patterns_of_a_token_count_over_all_its_connections(tmp_path: Path) -> None:
    store = AuthorityStore.of_data_dir(tmp_path)
    _, token = store.add_token(json.dumps({"name": "t", "allow": ["*"]}))
    _, other = store.add_token(json.dumps({"name": "o", "allow": ["*"]}))
    settings = mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0",), data_dir=str(tmp_path), topic_patterns_per_user_max=3
    )
    async with mqcore.Broker(settings) as broker:

        def attempts() -> list[int]:
            with tmqp_peer(broker, Client_Token=token) as first, tmqp_peer(broker, Client_Token=token) as second:
                found = [first.ask(JOIN, f"@topic:a{number}.*").content_type for number in range(2)]
                found += [second.ask(JOIN, f"@topic:b{number}.*").content_type for number in range(2)]
                with tmqp_peer(broker, Client_Token=other) as third:
                    found += [third.ask(JOIN, "@topic:b1.*").content_type]
                return found

        expected = [OK, OK, OK, LIMIT_EXCEEDED, OK]
        assert await asyncio.to_thread(attempts) == expected
        await until(lambda: not broker.stats().clients, "the end of all connections")
        assert await asyncio.to_thread(attempts) == expected, "closed connections no longer count"


@pytest.mark.parametrize("name", ["topic_subscriptions_max", "topic_patterns_max", "topic_patterns_per_user_max"])
def test_a_limit_of_zero_is_rejected(name: str) -> None:
    config = mqcore.BrokerConfig.load(environ={f"MQCORE_{name.upper()}": "0"})
    with pytest.raises(mqcore.errors.ConfigError, match=rf"{name}.*at least 1"), mqcore.Broker(config):
        pytest.fail("it started")
