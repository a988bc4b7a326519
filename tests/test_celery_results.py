"""The result backend without workers: stored values, their lifetime, and notifications."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

import mqcore
from mqcore import errors
from mqcore.celery.backend import Backend
from mqcore.celery.endpoint import Endpoint
from mqcore.celery.store import Store, Subscription
from ports import free_port
from served import wait_until

LISTENERS = [
    f"throttr://127.0.0.1:0?value={value}&protocol={version}"
    for value in ("uint16", "uint32", "uint64")
    for version in ("7.1", "7.3")
]


def endpoint_of(broker: mqcore.Broker) -> Endpoint:
    host, _, port = broker.listeners[0].partition("://")[2].partition("?")[0].rpartition(":")
    return Endpoint(host, int(port))


@pytest.fixture(params=LISTENERS)
def any_endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with mqcore.Broker(mqcore.BrokerConfig(listen=(request.param,))) as broker:
        yield endpoint_of(broker)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with mqcore.Broker(mqcore.BrokerConfig(listen=("throttr://127.0.0.1:0?value=uint64",))) as broker:
        yield endpoint_of(broker)


@pytest.fixture
def app(endpoint: Endpoint) -> Iterator[Celery]:
    with Celery("results", broker="memory://", backend=f"mqcore://{endpoint}", set_as_current=False) as app:
        yield app


@pytest.mark.parametrize("size", [0, 1, 65_534, 65_535, 65_536, 1_000_000])
def test_values_of_any_size_come_back_from_any_listener(any_endpoint: Endpoint, size: int) -> None:
    store, value = Store(any_endpoint), os.urandom(size)
    store.put(b"key", value, 60)
    store.put(b"other", b"x", 60)
    assert store.get_many([b"other", b"key", b"missing"]) == [b"x", value, None]
    store.remove(b"key")
    assert store.get(b"key") is None
    store.close()


def test_subscribers_get_values_of_any_size(any_endpoint: Endpoint) -> None:
    store, subscription = Store(any_endpoint), Subscription(any_endpoint)
    subscription.change([b"a", b"b"], [])
    subscription.change([], [b"b"])
    store.put(b"b", b"not wanted", 60)
    store.put(b"a", b"small", 60)
    store.put(b"a", b"x" * 200_000, 60)
    got: list[bytes | None] = []

    def all_came() -> bool:
        if subscription.is_readable(0.1):
            got.extend(subscription.take())
        return len(got) == 2

    wait_until(all_came)
    # A value that one message cannot hold is read from the store.
    assert got[0] == b"small"
    assert got[1] in (None, b"x" * 200_000)
    subscription.close()


def test_values_expire_and_can_be_kept_longer() -> None:
    with mqcore.Broker(mqcore.BrokerConfig(listen=("throttr://127.0.0.1:0?value=uint64",))) as broker:
        store = Store(endpoint_of(broker))
        store.put(b"short", b"x" * 100, 1)
        store.put(b"long", b"x" * 100, 1)
        store.keep(b"long", 60)
        wait_until(lambda: store.get(b"short") is None, limit=5)
        assert store.get(b"long") == b"x" * 100


def test_narrow_listeners_count_minutes_and_name_what_they_cannot_express() -> None:
    with mqcore.Broker(mqcore.BrokerConfig(listen=("throttr://127.0.0.1:0?value=uint16",))) as broker:
        store = Store(endpoint_of(broker))
        store.put(b"month", b"x", 30 * 24 * 3600)
        for seconds, text in ((100 * 24 * 3600, "for 8.64e\\+06 s"), (None, "for ever")):
            with pytest.raises(errors.ConfigError, match=f"cannot keep results {text}: its longest time is 3932100 s"):
                store.put(b"x", b"x", seconds)
        assert store.get(b"month") == b"x"


def test_an_event_counts_once(any_endpoint: Endpoint) -> None:
    store = Store(any_endpoint)
    counts = [store.count(b"chord", part, 60) for part in (b"a", b"b", b"a", b"a", b"c")]
    assert counts == [1, 2, 2, 2, 3]
    store.remove(b"chord")
    assert store.count(b"chord", b"d", 60) == 1


def test_threads_and_forked_processes_share_a_store(endpoint: Endpoint) -> None:
    store = Store(endpoint)
    store.put(b"parent", b"x", 60)

    def work(number: int) -> None:
        for turn in range(100):
            key = f"{number}-{turn}".encode()
            store.put(key, key, 60)
            assert store.get(key) == key

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get_many([f"{number}-99".encode() for number in range(8)]) == [
        f"{number}-99".encode() for number in range(8)
    ]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.put(b"child", store.get(b"parent") or b"", 60)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert store.get(b"child") == b"x"


def test_get_waits_for_a_result_that_another_program_stores(app: Celery) -> None:
    backend = app.backend
    assert isinstance(backend, Backend)
    result = app.AsyncResult("later")
    timer = threading.Timer(0.3, backend.store_result, ["later", {"a": 1}, "SUCCESS"])
    timer.start()
    began = time.monotonic()
    assert result.get(timeout=10) == {"a": 1}
    assert time.monotonic() - began < 5
    timer.join()


def test_threads_wait_for_their_results_at_the_same_time(app: Celery) -> None:
    got: dict[str, Any] = {}
    names = [f"task-{number}" for number in range(8)]

    def wait(name: str) -> None:
        got[name] = app.AsyncResult(name).get(timeout=20)

    threads = [threading.Thread(target=wait, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for name in reversed(names):
        app.backend.store_result(name, name, "SUCCESS")
    for thread in threads:
        thread.join()
    assert got == {name: name for name in names}


def test_a_result_is_not_missed_while_the_broker_restarts() -> None:
    port = free_port()
    listen = (f"throttr://127.0.0.1:{port}?value=uint64",)
    with Celery("results", broker="memory://", backend=f"mqcore://127.0.0.1:{port}", set_as_current=False) as app:
        with mqcore.Broker(mqcore.BrokerConfig(listen=listen)):
            thread = threading.Thread(target=app.AsyncResult("late").get, kwargs={"timeout": 30})
            thread.start()
            wait_until(lambda: bool(app.backend.result_consumer._subscribed))
        with mqcore.Broker(mqcore.BrokerConfig(listen=listen)):
            app.backend.store_result("late", 1, "SUCCESS")
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mqcore://h?value=uint64", "unknown options value in result_backend; use request_timeout, ssl_ca_certs"),
        ("mqcores://h?ssl_ca_certs=/missing.pem", "cannot use the TLS files"),
        ("mqcore://h:many", "Port could not be cast"),
    ],
)
def test_a_wrong_url_is_named(url: str, text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=text):
        Celery("results", backend=url, set_as_current=False).backend.get(b"x")


def test_a_listener_of_another_protocol_is_named() -> None:
    expected = pytest.raises(errors.MqcoreError, match="Throttr listener")
    with mqcore.Broker(mqcore.BrokerConfig(listen=("tmqp://127.0.0.1:0",))) as broker, expected:
        Store(endpoint_of(broker)).get(b"x")


def test_a_missing_broker_is_named() -> None:
    with pytest.raises(errors.ConnectFailed, match="is a broker running there"):
        Store(Endpoint("127.0.0.1", free_port())).get(b"x")


def test_a_value_that_is_too_large_is_named(endpoint: Endpoint) -> None:
    with pytest.raises(errors.TooLarge, match="store a reference to it"):
        Store(endpoint).put(b"x", b"x" * (32 * 1024 * 1024 + 1), 60)
