"""Limits that guard the broker itself: how often a client may publish, how often an address may connect."""

from __future__ import annotations

import pytest

import mqcore
from mqcore.errors import ConfigError
from throttr_peer import ThrottrPeer
from tmqp_peer import ACCEPTED, TmqpPeer


def port(broker: mqcore.Broker, number: int = 0) -> int:
    return int(broker.listeners[number].rpartition(":")[2])


async def test_a_client_that_publishes_too_often_is_refused_and_told_when_to_try_again() -> None:
    settings = mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0",), auto_create_channels=True, auto_create_queues=True, publish_limit="3/1h"
    )
    async with mqcore.Broker(settings) as broker, mqcore.connect(broker.listeners[0], name="busy") as busy:
        for _ in range(3):
            await busy.publish("orders", b"x", confirm=True)
        with pytest.raises(mqcore.MqcoreError, match=r"retry after \d+"):
            await busy.publish("orders", b"x", confirm=True)
        async with mqcore.connect(broker.listeners[0], name="other") as other:
            await other.publish("orders", b"x", confirm=True)


def test_the_limit_holds_in_every_protocol() -> None:
    with (
        mqcore.Broker(listen=["throttr://127.0.0.1:0?protocol=7.3"], publish_limit="2/1h") as broker,
        ThrottrPeer(("127.0.0.1", port(broker))) as peer,
    ):
        request = peer.publish(b"*", b"x")
        assert peer.ask(request, 6) == b"\x19\x01\x01\x00*x"[:6]
        assert peer.read(1) == b"\x01"
        peer.ask(request, 7)
        assert not peer.status(request)
        assert peer.status(peer.insert(b"key", 1, 60)), "other requests go on"


def test_an_address_that_connects_too_often_is_refused() -> None:
    with mqcore.Broker(listen=["tmqp://127.0.0.1:0"], connect_limit="2/1h") as broker:
        peers = [TmqpPeer("127.0.0.1", port(broker)) for _ in range(3)]
        try:
            answers = [peer.hello(Client_Id=f"c{number}") for number, peer in enumerate(peers)]
            assert [answer.content_type for answer in answers] == [ACCEPTED, ACCEPTED, 482]
        finally:
            for peer in peers:
                peer.socket.close()


def test_what_is_no_limit_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="publish_limit"):
        mqcore.Broker(publish_limit="many").start()
