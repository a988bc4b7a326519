"""Credentials in URLs and beside them, and options of listeners that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mqcore
import mqcore.sync
from mqcore import credentials, errors
from mqcore.tls import Listener, ListenerTLS


@pytest.mark.parametrize(
    ("url", "plain", "found"),
    [
        ("tmqp://host:1/x", "tmqp://host:1/x", None),
        ("tmqp://secret@host:1/x?y=a@b", "tmqp://host:1/x?y=a@b", "secret"),
        ("tmqp://se%40cret@host", "tmqp://host", "se@cret"),
        ("tmqp://ann:pass@host?x=1", "tmqp://host?x=1", "Basic YW5uOnBhc3M="),
        ("tmqp://ann:p%3Ass@host", "tmqp://host", "Basic YW5uOnA6c3M="),
        ("tmqp://host/a@b", "tmqp://host/a@b", None),
        ("tmqp://host?a@b", "tmqp://host?a@b", None),
    ],
)
def test_credentials_end_before_host_path_and_options(url: str, plain: str, found: str | None) -> None:
    assert credentials.split(url) == (plain, found)


def test_credentials_are_a_token_or_a_user_with_a_password() -> None:
    assert credentials.of(None, None, None) is None
    assert credentials.of("secret", None, None) == "secret"
    assert credentials.of(None, "ann", "pass") == "Basic YW5uOnBhc3M="
    for incomplete in ((None, "ann", None), (None, None, "pass"), ("secret", "ann", None)):
        with pytest.raises(errors.ConfigError, match="a user needs a password"):
            credentials.of(*incomplete)
    with pytest.raises(errors.ConfigError, match="not both"):
        credentials.of("secret", "ann", "pass")
    with pytest.raises(errors.ConfigError, match="must not contain a colon: 'a:b'"):
        credentials.basic("a:b", "pass")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": 5}, "url cannot be 5; it is text"),
        ({"url": "tmqps://127.0.0.1", "tls": "cert.pem"}, "tls cannot be 'cert.pem'; it is a ListenerTLS"),
    ],
)
def test_listener_with_a_value_of_another_type_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(errors.ConfigError, match=why):
        Listener(**options)


def test_certificates_of_a_listener_are_paths_as_text() -> None:
    tls = ListenerTLS(cert=Path("cert.pem"), client_ca=b"ca.pem", client_cert="optional")
    assert (tls.cert, tls.key, tls.client_ca) == ("cert.pem", None, "ca.pem")
    assert Listener(url="tmqps://127.0.0.1", tls=tls).tls is tls
    assert Listener(url="tmqp://127.0.0.1").tls is None
    with pytest.raises(errors.ConfigError, match="key cannot be 5; it is a path"):
        ListenerTLS(cert="cert.pem", key=5)  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="client_cert cannot be 'never'; it is 'required' or 'optional'"):
        ListenerTLS(cert="cert.pem", client_cert="never")


def test_statistics_of_a_queue_that_does_not_exist_are_a_key_error() -> None:
    with mqcore.Broker(auto_create_channels=True, auto_create_queues=True) as broker:
        with mqcore.sync.connect(broker) as client:
            client.publish("orders/1", b"x")
        assert broker.stats().queue("orders/1").address == "orders/1"
        with pytest.raises(KeyError, match="orders/2"):
            broker.stats().queue("orders/2")
