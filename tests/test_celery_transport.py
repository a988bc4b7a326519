"""The kombu transport, without Celery: names, exchanges, settlement, limits, failures."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kombu
import pytest
import trustme
from kombu.exceptions import ChannelError
from kombu.serialization import registry

import mqcore
from mqcore import errors
from mqcore.celery.naming import KEY_WORDS_MAX, address_of, binding_topics, channel_of, topic_of
from ports import free_port
from served import serving, wait_until

NAMES = ["celery", "Celery", "celery@Host.pidbox", "a/b", "a%2fb", "a:b", "a b", "ü", "*", "#", "a;b", "%", "A", "%41"]


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    with mqcore.Broker(mqcore.BrokerConfig(listen=("tmqp://127.0.0.1:0",))) as running:
        yield running


@pytest.fixture
def url(broker: mqcore.Broker) -> str:
    return broker.listeners[0].replace("tmqp", "mqcore")


@pytest.fixture
def connection(url: str) -> Iterator[kombu.Connection]:
    with kombu.Connection(url) as connection:
        yield connection


def receive(connection: kombu.Connection, queue: kombu.Queue, limit: float = 5.0) -> list[Any]:
    """Bodies that come until none has come for a moment."""
    bodies: list[Any] = []

    def take(body: object, message: Any) -> None:
        bodies.append(body)
        message.ack()

    with kombu.Consumer(connection, [queue], callbacks=[take]):
        try:
            while True:
                connection.drain_events(timeout=limit if not bodies else 0.2)
        except TimeoutError:
            return bodies


def drain_until_quiet(connection: kombu.Connection) -> None:
    """Deliver messages until none comes for a second."""
    with contextlib.suppress(TimeoutError):
        while True:
            connection.drain_events(timeout=1)


def publish(connection: kombu.Connection, body: object, exchange: Any = "", key: str = "", **options: Any) -> None:
    with connection.channel() as channel:
        kombu.Producer(channel).publish(body, exchange=exchange, routing_key=key, **options)


# --- names ------------------------------------------------------------------------------------------------------


def test_kombu_knows_the_schemes_without_an_import() -> None:
    program = (
        "from kombu import Connection, Queue; print(Connection('mqcore://h').port, Connection('mqcores://h').port)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "None None\n"
    assert "application/x-mqcore" not in registry._decoders


def test_two_names_never_share_a_queue() -> None:
    # Channels are found without regard to case.
    channels = {channel_of(vhost, name).lower() for vhost in ("/", "a", "A") for name in NAMES}
    assert len(channels) == 3 * len(NAMES)
    assert len({topic_of(vhost, name, "k") for vhost in ("/", "a") for name in NAMES}) == 2 * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_may_have_any_name(connection: kombu.Connection, name: str) -> None:
    queue = kombu.Queue(name, kombu.Exchange(name, type="direct"), routing_key=name)
    publish(connection, "hello", queue.exchange, name, declare=[queue])
    publish(connection, "again", "", name)
    assert receive(connection, queue) == ["hello", "again"]


def test_names_that_are_too_long_are_named(connection: kombu.Connection) -> None:
    with pytest.raises(errors.InvalidArgument, match="needs 300 bytes as a channel; use 1 to 255"):
        connection.default_channel.queue_declare("A" * 100)
    with pytest.raises(errors.InvalidArgument, match="as a topic; use at most 248"):
        publish(connection, "x", "e", "k" * 300)


def test_virtual_hosts_keep_names_apart(url: str) -> None:
    queue = kombu.Queue("tasks", kombu.Exchange("tasks"), routing_key="tasks")
    with kombu.Connection(f"{url}/one") as one, kombu.Connection(f"{url}/two") as two:
        for connection in (one, two):
            publish(connection, connection.virtual_host, queue.exchange, "tasks", declare=[queue])
        assert receive(one, queue) == ["one"]
        assert receive(two, queue) == ["two"]


# --- exchanges --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("#", "", True),
        ("#", "a", True),
        ("#", ".".join("a" * KEY_WORDS_MAX), True),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "b.a", False),
        ("#.error", "error", True),
        ("#.error", "app.db.error", True),
        ("#.a.#", "x.a.y", True),
        ("#.a.#", "a", True),
        ("#.a.#", "b", False),
        ("*.b", "A@h.b", True),
        ("a.#.#", "a.x", True),
    ],
)
def test_topic_exchanges_match_words(connection: kombu.Connection, pattern: str, key: str, matches: bool) -> None:
    queue = kombu.Queue("q", kombu.Exchange("t", type="topic"), routing_key=pattern)
    publish(connection, "hello", queue.exchange, key, declare=[queue])
    assert connection.default_channel.queue_declare("q", passive=True).message_count == int(matches)


def test_a_binding_key_with_too_many_wildcards_is_named() -> None:
    with pytest.raises(errors.InvalidArgument, match="too many words"):
        binding_topics("/", "t", "topic", "#.a.#.b.#.c.#")


def test_fanout_reaches_the_queues_of_all_connections(url: str) -> None:
    exchange = kombu.Exchange("news", type="fanout")
    with kombu.Connection(url) as first, kombu.Connection(url) as second:
        queues = [kombu.Queue(name, exchange) for name in ("one", "two")]
        for connection, queue in zip((first, second), queues, strict=True):
            queue(connection.default_channel).declare()
        publish(first, "all", exchange, "whatever.key", declare=[exchange])
        with kombu.Connection(url) as third:
            # It knows the exchange by name only.
            publish(third, "by name", "news", "some.key")
        for connection, queue in zip((first, second), queues, strict=True):
            assert receive(connection, queue) == ["all", "by name"]


def test_an_unbound_queue_gets_nothing_more(connection: kombu.Connection) -> None:
    queue = kombu.Queue("q", kombu.Exchange("d"), routing_key="k")
    publish(connection, "one", queue.exchange, "k", declare=[queue])
    queue(connection.default_channel).unbind_from(queue.exchange, "k")
    publish(connection, "two", "d", "k")
    assert receive(connection, queue) == ["one"]


def test_messages_without_a_queue_are_dropped(connection: kombu.Connection) -> None:
    publish(connection, "x", "nothing", "k")
    publish(connection, "x", "", "missing")


def test_unsupported_declarations_are_errors(connection: kombu.Connection) -> None:
    channel = connection.default_channel
    with pytest.raises(ChannelError, match=r"type 'headers'; use direct, fanout, topic"):
        channel.exchange_declare("e", type="headers")
    channel.exchange_declare("e", type="topic")
    with pytest.raises(ChannelError, match="declared with type 'topic', not 'direct'"):
        channel.exchange_declare("e", type="direct")
    with pytest.raises(errors.NotFound, match="missing"):
        channel.queue_declare("missing", passive=True)
    with pytest.raises(errors.NotFound):
        channel.basic_consume("missing", callback=print)


def test_a_queue_that_requests_no_acknowledgements_is_refused(broker: mqcore.Broker, connection: Any) -> None:
    with mqcore.sync.connect(broker.listeners[0]) as client:
        client.declare("plain", 0)
    with pytest.raises(ChannelError, match="plain/0 requests no acknowledgements; remove it"):
        connection.default_channel.basic_consume("plain", callback=print)


# --- messages ---------------------------------------------------------------------------------------------------


def test_everything_of_a_message_arrives(connection: kombu.Connection) -> None:
    queue = kombu.Queue("q", routing_key="q")
    when = datetime(2030, 1, 2, tzinfo=UTC)
    headers = {"text": "ü\r\nx: y", "number": 1.5, "when": when, "none": None, "list": [1, {"a": "b"}]}
    got: list[Any] = []
    publish(
        connection,
        b"\x00\xff",
        "",
        "q",
        declare=[queue],
        headers=headers,
        correlation_id="c",
        reply_to="r",
        content_type="application/data",
        content_encoding="binary",
    )
    with kombu.Consumer(connection, [queue], on_message=got.append, accept=["application/data"]):
        connection.drain_events(timeout=5)
    (message,) = got
    assert message.headers == headers
    assert (message.properties["correlation_id"], message.properties["reply_to"]) == ("c", "r")
    assert (message.content_type, message.content_encoding) == ("application/data", "binary")
    assert bytes(message.body) == b"\x00\xff"
    assert (message.delivery_info["exchange"], message.delivery_info["routing_key"]) == ("", "q")
    message.ack()


def test_other_clients_read_bodies_and_send_tasks(broker: mqcore.Broker, connection: kombu.Connection) -> None:
    queue = kombu.Queue("shared", routing_key="shared")
    publish(connection, {"a": 1}, "", "shared", declare=[queue])
    with mqcore.sync.connect(broker.listeners[0]) as client:
        with client.queue(address_of("/", "shared")).consume(dict) as messages:
            message = next(messages)
            assert message.body == {"a": 1}
            message.ack()
        client.publish("shared/0", {"b": 2})
    assert receive(connection, queue) == [{"b": 2}]


def test_priorities_order_messages(connection: kombu.Connection) -> None:
    queue = kombu.Queue("q", routing_key="q")
    for body, priority in (("low", 0), ("high", 9), ("middle", 5), ("also low", 0), ("highest", 255)):
        publish(connection, body, "", "q", declare=[queue], priority=priority)
    assert receive(connection, queue) == ["highest", "high", "middle", "low", "also low"]


def test_a_task_with_an_eta_is_delivered_when_it_is_due(connection: kombu.Connection) -> None:
    queue = kombu.Queue("q", routing_key="q")
    due = datetime.now(UTC) + timedelta(seconds=1)
    publish(connection, "later", "", "q", declare=[queue], headers={"eta": due.isoformat()})
    publish(connection, "past", "", "q", headers={"eta": "2020-01-01T00:00:00+00:00"})
    publish(connection, "naive", "", "q", headers={"eta": "2099-01-01T00:00:00"})
    publish(connection, "wrong", "", "q", headers={"eta": "soon"})
    assert receive(connection, queue) == ["past", "naive", "wrong"]
    assert receive(connection, queue) == ["later"]
    assert datetime.now(UTC) >= due


def test_an_expired_message_is_not_delivered(connection: kombu.Connection) -> None:
    queue = kombu.Queue("q", routing_key="q")
    publish(connection, "gone", "", "q", declare=[queue], expiration=0.1)
    channel = connection.default_channel
    wait_until(lambda: channel.queue_declare("q", passive=True).message_count == 0)


def test_a_message_that_is_too_large_is_named(connection: kombu.Connection) -> None:
    queue = kombu.Queue("q", routing_key="q")
    with pytest.raises(errors.TooLarge, match="exceeds the limit of 67108864 bytes"):
        publish(connection, "x" * (64 * 1024 * 1024), "", "q", declare=[queue])
    with pytest.raises(errors.TooLarge, match="the limit is 65000; send large values in the body"):
        publish(connection, "x", "", "q", headers={"large": "x" * 70_000})
    publish(connection, "x" * 5_000_000, "", "q")
    assert len(receive(connection, queue)[0]) == 5_000_000


# --- settlement -------------------------------------------------------------------------------------------------


def test_prefetch_limits_what_the_broker_sends(broker: mqcore.Broker, connection: kombu.Connection) -> None:
    queue = kombu.Queue("q", routing_key="q")
    for number in range(10):
        publish(connection, number, "", "q", declare=[queue])
    got: list[Any] = []
    consumer = kombu.Consumer(connection, [queue], on_message=got.append, prefetch_count=3)
    with consumer:
        connection.drain_events(timeout=5)
        with mqcore.sync.connect(broker.listeners[0]) as client:
            information = client.queue_information("q/0")
            assert (information.in_flight, information.messages) == (3, 7)
            got[0].ack()
            connection.drain_events(timeout=5)
            assert [message.payload for message in got] == [0, 1, 2, 3]
            consumer.qos(prefetch_count=5)
            wait_until(lambda: client.queue_information("q/0").in_flight == 5)
            connection.drain_events(timeout=5)
            assert len(got) == 6


def test_prefetch_is_a_limit_for_all_queues_of_a_channel(connection: kombu.Connection) -> None:
    queues = [kombu.Queue(name, routing_key=name) for name in ("a", "b")]
    for queue in queues:
        for number in range(3):
            publish(connection, number, "", queue.name, declare=[queue])
    got: list[Any] = []
    with kombu.Consumer(connection, queues, on_message=got.append, prefetch_count=2):
        for expected in range(2, 7):
            connection.drain_events(timeout=5)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.1)
            assert len(got) == expected
            if expected < 6:
                got[expected - 2].ack()


def test_what_a_closed_connection_held_returns_in_order(url: str) -> None:
    queue = kombu.Queue("q", routing_key="q")
    with kombu.Connection(url) as first:
        for number in range(5):
            publish(first, number, "", "q", declare=[queue])
        got: list[Any] = []
        consumer = kombu.Consumer(first, [queue], on_message=got.append)
        consumer.consume()
        first.drain_events(timeout=5)
        assert len(got) == 5
    with kombu.Connection(url) as second:
        assert receive(second, queue) == [0, 1, 2, 3, 4]


def test_get_takes_one_message_and_leaves_the_others(broker: mqcore.Broker, connection: kombu.Connection) -> None:
    queue = kombu.Queue("q", routing_key="q")(connection.default_channel)
    queue.declare()
    assert queue.get() is None
    for number in range(3):
        publish(connection, number, "", "q")
    first = queue.get()
    assert first.payload == 0
    first.reject(requeue=True)
    assert queue.get(no_ack=True).payload == 1
    again = queue.get()
    assert again.payload == 2
    again.ack()
    last = queue.get()
    assert (last.payload, last.delivery_info["redelivered"]) == (0, True)
    last.reject()
    assert queue.get() is None


def test_a_message_that_is_requeued_for_ever_becomes_a_dead_letter(broker: mqcore.Broker, connection: Any) -> None:
    queue = kombu.Queue("q", routing_key="q")
    publish(connection, "poison", "", "q", declare=[queue])
    count = 0

    def requeue(message: Any) -> None:
        nonlocal count
        count += 1
        message.requeue()

    with kombu.Consumer(connection, [queue], on_message=requeue):
        drain_until_quiet(connection)
    assert count == 17
    with mqcore.sync.connect(broker.listeners[0]) as client:
        assert client.queue("q/65535").pull(10).bodies == [b"poison"]


def test_purge_and_delete_count_messages(connection: kombu.Connection) -> None:
    queue = kombu.Queue("q", routing_key="q")
    for priority in (0, 9, 200):
        publish(connection, "x", "", "q", declare=[queue], priority=priority)
    bound = queue(connection.default_channel)
    with pytest.raises(ChannelError, match="has 3 messages"):
        bound.delete(if_empty=True)
    assert bound.purge() == 3
    publish(connection, "x", "", "q")
    assert connection.default_channel.queue_delete("q") == 1
    assert connection.default_channel.queue_delete("q") == 0
    with pytest.raises(errors.NotFound):
        connection.default_channel.queue_declare("q", passive=True)


def test_temporary_queues_end_with_their_consumer(broker: mqcore.Broker, connection: kombu.Connection) -> None:
    queue = kombu.Queue("t", kombu.Exchange("e", type="fanout"), auto_delete=True, expires=10)
    consumer = kombu.Consumer(connection, [queue], callbacks=[lambda body, message: message.ack()])
    with mqcore.sync.connect(broker.listeners[0]) as client:
        with consumer:
            assert [each.name for each in client.channels()] == ["t"]
        wait_until(lambda: not client.channels())
    # A caller that comes back finds its queue again.
    with consumer:
        publish(connection, "x", queue.exchange, "k")
        connection.drain_events(timeout=5)


def test_a_temporary_queue_that_expired_before_its_consumer_came_is_created_again(connection: kombu.Connection) -> None:
    queue = kombu.Queue("t", kombu.Exchange("e"), routing_key="k", auto_delete=True, message_ttl=0.1)
    publish(connection, "gone", queue.exchange, "k", declare=[queue])

    def is_gone() -> bool:
        try:
            connection.default_channel.queue_declare("t", passive=True)
        except errors.NotFound:
            return True
        return False

    wait_until(is_gone)
    got: list[Any] = []
    with kombu.Consumer(connection, [queue], on_message=got.append, auto_declare=False):
        publish(connection, "x", queue.exchange, "k")
        connection.drain_events(timeout=5)
    assert len(got) == 1


# --- failures ---------------------------------------------------------------------------------------------------


def test_a_missing_broker_is_a_connection_error() -> None:
    with kombu.Connection(f"mqcore://127.0.0.1:{free_port()}") as connection:
        assert issubclass(errors.ConnectFailed, connection.connection_errors)
        with pytest.raises(kombu.exceptions.OperationalError, match="is a broker running there"):
            connection.ensure_connection(max_retries=1, interval_start=0)


@pytest.mark.parametrize("scheme", ["throttr", "mqks", "mm2"])
def test_a_listener_of_another_protocol_is_named(scheme: str) -> None:
    with mqcore.Broker(mqcore.BrokerConfig(listen=(f"{scheme}://127.0.0.1:0",))) as broker:
        address = broker.listeners[0].partition("://")[2].partition("?")[0]
        expected = pytest.raises((errors.ConnectFailed, errors.VersionMismatch), match="TMQP")
        with kombu.Connection(f"mqcore://{address}", connect_timeout=1) as connection, expected:
            connection.connect()


def test_credentials_are_checked_and_permissions_apply(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    command = [sys.executable, "-m", "mqcore", "token", "create"]
    rules = ["create:tasks", "push:tasks", "join:tasks", "receive:tasks*", "publish,subscribe:kombu:jobs*"]
    allowed = [part for rule in rules for part in ("--allow", rule)]
    made = subprocess.run(
        [*command, "worker", *allowed, "--data-dir", data], check=True, capture_output=True, text=True
    )
    token = made.stdout.split()[0]
    with serving("--data-dir", data) as broker:
        address = broker.ready["listeners"]["tmqp"]
        expected = pytest.raises(errors.AuthFailed, match="check user and password of the URL")
        with kombu.Connection(f"mqcore://nobody:wrong@{address}") as stranger, expected:
            stranger.ensure_connection(max_retries=3)
        options = {"policy": "memory"}
        with kombu.Connection(f"mqcore://:{token}@{address}", transport_options=options) as connection:
            assert token not in connection.as_uri()
            publish(connection, "x", "", "tasks", declare=[kombu.Queue("tasks", routing_key="tasks")])
            with pytest.raises(errors.Unauthorized):
                publish(connection, "x", "", "secret")
            assert receive(connection, kombu.Queue("tasks", routing_key="tasks")) == ["x"]
            jobs = kombu.Queue("tasks", kombu.Exchange("jobs"), routing_key="k")
            jobs(connection.default_channel).declare()
            publish(connection, "y", "jobs", "k")
            assert receive(connection, jobs) == ["y"]
            with pytest.raises(errors.Unauthorized, match="not allowed to subscribe"):
                kombu.Queue("tasks", kombu.Exchange("other"))(connection.default_channel).declare()


def test_tls_is_verified(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    both = tmp_path / "both.pem"
    listen = f"tmqps://127.0.0.1:0?cert={both}&key={both}"
    with mqcore.Broker(mqcore.BrokerConfig(listen=(listen,))) as broker:
        address = broker.listeners[0].partition("://")[2].partition("?")[0]
        trusted = {"ca_certs": str(tmp_path / "ca.pem")}
        with kombu.Connection(f"mqcores://{address}", ssl=trusted) as connection:
            queue = kombu.Queue("q", routing_key="q")
            publish(connection, "x" * 1_000_000, "", "q", declare=[queue])
            assert receive(connection, queue) == ["x" * 1_000_000]
        with pytest.raises(errors.CertificateError, match="is not trusted"):
            kombu.Connection(f"mqcores://{address}").connect()
        with pytest.raises(errors.ConfigError, match="unknown TLS options ca_cert; use ca_certs"):
            kombu.Connection(f"mqcores://{address}", ssl={"ca_cert": "x"}).connect()


def test_arguments_of_publish_that_amqp_does_not_know_are_dropped(connection: kombu.Connection) -> None:
    queue = kombu.Queue("orders", channel=connection)
    queue.declare()
    producer = connection.Producer()
    # Handlers of Celery's signals pass on all their arguments.
    producer.publish({"a": 1}, routing_key="orders", correlation_id="c", signal=object(), priority=5)
    message = queue.get(no_ack=True)
    assert message is not None
    assert message.payload == {"a": 1}
    assert message.properties == {"correlation_id": "c", "delivery_mode": 2, "priority": 5}


def test_unknown_options_are_named_and_those_of_other_transports_ignored(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"visibility_timeout": 3600, "fanout_prefix": True, "confirm_publsh": False}
    with caplog.at_level(logging.WARNING), kombu.Connection(url, transport_options=options) as connection:
        connection.connect()
    assert "unknown transport options confirm_publsh; known are confirm_publish, delay_eta" in caplog.text
    assert "visibility_timeout" not in caplog.text


def test_producers_and_consumers_survive_a_restart_of_the_broker(tmp_path: Path) -> None:
    port = free_port()
    arguments = ("--listen", f"tmqp://127.0.0.1:{port}", "--data-dir", str(tmp_path / "data"))
    queue = kombu.Queue("q", kombu.Exchange("e", type="topic"), routing_key="a.#")
    got: list[object] = []
    with (
        kombu.Connection(f"mqcore://127.0.0.1:{port}") as connection,
        kombu.Connection(f"mqcore://127.0.0.1:{port}") as other,
    ):
        producer = other.Producer(serializer="json")
        policy = {"max_retries": 30, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.3}

        def send(body: object) -> None:
            producer.publish(
                body, exchange=queue.exchange, routing_key="a.b", declare=[queue], retry=True, retry_policy=policy
            )

        with serving(*arguments) as broker:
            send(1)
            broker.process.kill()
            broker.process.wait()
            threading.Timer(1.0, send, [2]).start()
            with serving(*arguments):
                send(3)

                def take(body: object, message: Any) -> None:
                    got.append(body)
                    message.ack()

                with connection.Consumer([queue], callbacks=[take]):
                    wait = time.monotonic() + 20
                    while sorted(map(str, got)) != ["1", "2", "3"] and time.monotonic() < wait:
                        with contextlib.suppress(TimeoutError):
                            connection.drain_events(timeout=1)
        assert got[0] == 1
        assert sorted(map(str, got)) == ["1", "2", "3"]


def test_a_lost_connection_is_a_recoverable_error(broker: mqcore.Broker, url: str) -> None:
    with kombu.Connection(url) as connection:
        connection.connect()
        broker.stop()
        with pytest.raises(connection.recoverable_connection_errors):
            drain_until_quiet(connection)
        assert not connection.connected


def test_an_idle_connection_stays_open(caplog: pytest.LogCaptureFixture) -> None:
    config = mqcore.BrokerConfig(listen=("tmqp://127.0.0.1:0",), ping_interval=4.0, pong_timeout=2.0)
    with mqcore.Broker(config) as broker, kombu.Connection(broker.listeners[0].replace("tmqp", "mqcore")) as connection:
        link = connection.connection.link
        # Nothing reads in this time; a heartbeat comes every five seconds.
        deadline = time.monotonic() + 9
        with mqcore.sync.connect(broker.listeners[0]) as client:
            wait_until(lambda: time.monotonic() > deadline, limit=20)
            assert len(client.clients()) == 2
        assert link.is_connected
        publish(connection, "x", "", "q", declare=[kombu.Queue("q", routing_key="q")])
