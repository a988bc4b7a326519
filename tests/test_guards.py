"""Limits that guard the broker itself: how often a client may publish, how often an address may connect."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import urllib.request
from pathlib import Path

import pytest

import mqcore
from conformance.adapters import PARTIES, Place
from mqcore import errors, sync
from mqcore.errors import ConfigError
from mqks_peer import MqksPeer
from served import serving, wait_until
from throttr_peer import PURGE, ThrottrPeer
from tmqp_peer import ACCEPTED, TmqpPeer


def refused(broker: mqcore.Broker) -> int:
    """How many messages the limit refused."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=10) as answer:
        line = re.search(
            r'^mqcore_guard_rejected_total\{limit="publish"\} (\d+)$', answer.read().decode(), re.MULTILINE
        )
    assert line is not None
    return int(line[1])


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


@pytest.mark.parametrize("protocol", PARTIES)
def test_publish_limit_of_a_client_holds_in_every_protocol(protocol: str) -> None:
    listeners = sorted({PARTIES[name].listener for name in ("tmqp", protocol)})
    with mqcore.Broker(listen=listeners, admin="http://127.0.0.1:0", publish_limit="2/1h") as broker:
        urls = [url for url in broker.listeners if url.startswith(f"{protocol}:")]
        (tmqp,) = (url for url in broker.listeners if url.startswith("tmqp:"))
        place = Place("news", is_queue=False)
        subscriber = PARTIES["tmqp"](tmqp)
        with contextlib.closing(subscriber), contextlib.closing(PARTIES[protocol](*urls)) as producer:
            subscriber.subscribe(place)
            for number in range(5):
                producer.publish(place, b"%d" % number)
            wait_until(lambda: refused(broker) == 3, what="three refusals")
            assert [delivery.body for delivery in subscriber.take()] == [b"0", b"1"]


def test_throttr_tells_a_publisher_beyond_the_limit() -> None:
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


def test_connection_rate_limit_per_address_disconnects_unauthenticated_clients() -> None:
    with mqcore.Broker(
        listen=["throttr://127.0.0.1:0", "throttr://127.0.0.1:0?protocol=7.3"], connect_limit="2/1h"
    ) as broker:
        address = ("127.0.0.1", port(broker))
        with ThrottrPeer(address) as first, ThrottrPeer(("127.0.0.1", port(broker, 1))) as second:
            assert first.status(first.insert(b"key", 5, 60))
            assert second.status(second.insert(b"other", 5, 60))
            for number in range(2):
                with ThrottrPeer(("127.0.0.1", port(broker, number))) as third:
                    third.send(third.insert(b"third", 5, 60))
                    assert third.is_cut()
            assert first.query(b"third") is None
            assert first.query(b"key") is not None, "who is in stays in"


async def test_peers_cannot_see_or_change_the_counts_of_the_broker() -> None:
    """The counts are not keys of the limiter: a peer can list, purge, refill or set none of them."""
    settings = mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0", "throttr://127.0.0.1:0"),
        admin="http://127.0.0.1:0",
        auto_create_channels=True,
        auto_create_queues=True,
        publish_limit="2/1h",
        connect_limit="10/1h",
    )
    async with mqcore.Broker(settings) as broker, mqcore.connect(broker.listeners[0], id="busy") as busy:
        for _ in range(2):
            await busy.publish("orders", b"x", confirm=True)
        with ThrottrPeer(("127.0.0.1", port(broker, 1))) as rogue:
            assert rogue.list_keys() == []
            for name in (b"\0publish:busy", b"publish:busy", b"busy", b"\0connect:127.0.0.1"):
                assert not rogue.status(rogue.keyed(PURGE, name)), name
                assert rogue.status(rogue.insert(name, 60_000, 60)), name
        with pytest.raises(mqcore.MqcoreError, match=r"retry after \d+"):
            await busy.publish("orders", b"x", confirm=True)


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit, which limits open files, is not installed")
def test_silent_peers_leave_file_descriptors_to_the_journal(tmp_path: Path) -> None:
    """With 256 descriptors and 400 peers that say nothing, new segments are still created and clients connect."""
    under = ("prlimit", "--nofile=256:256")
    with (
        serving("--data-dir", str(tmp_path), "--admin", "http://127.0.0.1:0", "--auto-create", under=under) as broker,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(400):
            stack.enter_context(socket.create_connection(broker.address, timeout=5))
        connected: list[sync.Client] = []

        def connects() -> bool:
            with contextlib.suppress(errors.ConnectFailed):
                connected.append(stack.enter_context(sync.connect(broker.url)))
            return bool(connected)

        # The broker closes the oldest silent peers to make room, which takes a moment.
        wait_until(connects, what="a connection")
        with connected[0] as mq:
            saving = mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, delivery_handler="at-least-once")
            mq.declare("orders", 0, saving)
            before = len(list(tmp_path.rglob("*.segment")))
            for _ in range(40):
                mq.publish("orders", bytes(1 << 20), confirm=True)
            assert len(list(tmp_path.rglob("*.segment"))) > before, "the test fills a segment"
        assert any("open_files_max" in line for line in broker.stderr_lines)


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit, which limits open files, is not installed")
def test_broker_raises_its_limit_of_open_files() -> None:
    with serving(under=("prlimit", "--nofile=256:2048")) as broker, contextlib.ExitStack() as stack:
        limits = Path(f"/proc/{broker.process.pid}/limits").read_text()
        (files,) = (line.split() for line in limits.splitlines() if line.startswith("Max open files"))
        assert files[3:5] == ["2048", "2048"]
        peers = [stack.enter_context(TmqpPeer(*broker.address)) for _ in range(400)]
        for number, peer in enumerate(peers):
            peer.hello(Client_Id=f"c{number}")
        # The first one still has its connection.
        assert peers[0].ask(601, "nosuch").content_type == 404


def limited(rate: str) -> mqcore.BrokerConfig:
    return mqcore.BrokerConfig(
        listen=("tmqp://127.0.0.1:0", "mqks://127.0.0.1:0"),
        channel=mqcore.ChannelOptions(queue=mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, publish_limit=rate)),
        auto_create_channels=True,
        auto_create_queues=True,
    )


async def test_publish_limit_of_a_queue_covers_all_clients_together() -> None:
    async with (
        mqcore.Broker(limited("3/1h")) as broker,
        mqcore.connect(broker.listeners[0], name="one") as one,
        mqcore.connect(broker.listeners[0], name="other") as other,
    ):
        await one.publish("orders", b"1", confirm=True)
        await other.publish("orders", b"2", confirm=True)
        await one.publish("orders", b"3", confirm=True)
        for mq in (one, other):
            with pytest.raises(mqcore.MqcoreError, match=r"publish limit of queue orders/0 .*retry after \d+"):
                await mq.publish("orders", b"4", confirm=True)
        await one.publish("invoices", b"1", confirm=True)
        information = await one.queue("orders").information()
        assert (information.messages, information.publish_limit) == (3, "3/h")


async def test_a_queues_limit_is_set_changed_and_removed_while_it_is_used() -> None:
    async with (
        mqcore.Broker(listen=["tmqp://127.0.0.1:0"]) as broker,
        mqcore.connect(broker.listeners[0]) as mq,
    ):
        await mq.declare("orders", 1, mqcore.QueueOptions(status=mqcore.QueueStatus.PULL, publish_limit="1/1h"))
        await mq.publish("orders/1", b"1", confirm=True)
        with pytest.raises(mqcore.MqcoreError, match=r"retry after 3\d{3}\."):
            await mq.publish("orders/1", b"2", confirm=True)
        await mq.update_queue("orders/1", mqcore.QueueOptions(publish_limit="2/20ms"))
        await mq.publish("orders/1", b"2", confirm=True)
        await mq.update_queue("orders/1", mqcore.QueueOptions(publish_limit="none"))
        for _ in range(100):
            await mq.publish("orders/1", b"3", confirm=True)
        assert (await mq.queue("orders", 1).information()).publish_limit is None
        with pytest.raises(mqcore.MqcoreError, match="PublishLimit"):
            await mq.update_queue("orders/1", mqcore.QueueOptions(publish_limit="much"))


def test_a_new_queue_is_limited_by_a_header_too() -> None:
    with (
        mqcore.Broker(listen=["tmqp://127.0.0.1:0"]) as broker,
        TmqpPeer("127.0.0.1", port(broker)) as peer,
    ):
        peer.hello()
        assert peer.ask(610, "orders", headers={"Queue-Id": "1", "Publish-Limit": "7/10s"}).content_type == 0
        (queue,) = broker.stats().queues
        assert queue.options.publish_limit == "7/10s"
        refused = peer.ask(610, "orders", headers={"Queue-Id": "2", "Publish-Limit": "x"})
        assert refused.content_type == 400


def test_copies_of_an_event_beyond_the_limit_of_a_queue_are_dropped_and_counted() -> None:
    with mqcore.Broker(limited("2/1h")) as broker, MqksPeer(broker.listeners[1]) as peer:
        assert peer.ask("c1 consume --confirm q1 e1") == b"c1 ok "
        peer.send(*(f"m{number} publish e1 {number}" for number in range(5)), "p1 ping read")
        assert sorted(peer.lines(3)) == [b"c1 ok m0 event=e1 0", b"c1 ok m1 event=e1 1", b"p1 ok read"]
        (queue,) = broker.stats().queues
        assert queue.dropped["limit"] == 3


def test_a_limit_of_a_queue_comes_back_with_its_queue(tmp_path: Path) -> None:
    for number in range(2):
        with mqcore.Broker(listen=["tmqp://127.0.0.1:0"], data_dir=str(tmp_path)) as broker:
            with TmqpPeer("127.0.0.1", port(broker)) as peer:
                peer.hello()
                if number == 0:
                    made = peer.ask(610, "orders", headers={"Queue-Id": "1", "Publish-Limit": "7/10s"})
                    assert made.content_type == 0
            (queue,) = broker.stats().queues
            assert queue.options.publish_limit == "7/10s"


def test_invalid_limit_is_rejected_at_start() -> None:
    with pytest.raises(ConfigError, match="publish_limit"):
        mqcore.Broker(publish_limit="many").start()
