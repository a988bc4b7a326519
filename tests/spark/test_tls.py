"""TLS options of the admin side: paths and PEM, of authorities and of clients."""

from __future__ import annotations

import pickle
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqcore
from authority import Authority
from mqcore import ListenerTLS, errors
from mqcore._http import AdminClient
from mqcore.spark.options import ReadOptions
from mqcore.spark.plan import Plan


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def admin(authority: Authority, tmp_path: Path) -> Iterator[str]:
    """An admin side that demands certificates of its clients."""
    tls = ListenerTLS(cert=authority.issue(), client_ca=authority.ca)
    with mqcore.Broker(data_dir=tmp_path / "data", admin="https://127.0.0.1:0", tls=tls) as broker:
        assert broker.admin_url is not None
        yield broker.admin_url


def shards(admin: str, **options: str) -> int:
    plan = Plan.of(ReadOptions.parse({"admin": admin, **options}), [("value", "binary")])
    # As on an executor, which gets the plan from the driver.
    again: Plan = pickle.loads(pickle.dumps(plan))
    return len(again.origin().ends())


def parts(pem: str) -> tuple[str, str]:
    """The certificates and the key in a file with both."""
    at = min(pem.index(line) for line in pem.splitlines() if line.startswith("-----BEGIN") and "PRIVATE" in line)
    return pem[:at], pem[at:]


def test_files_and_pem_are_the_same(admin: str, authority: Authority, tmp_path: Path) -> None:
    both = authority.issue("client.pem", "client")
    cert, key = parts(both.read_text())
    (tmp_path / "cert.pem").write_text(cert)
    (tmp_path / "key.pem").write_text(key)
    before = set(Path("/tmp").glob("mqcore-*.pem"))
    for given in (
        {"ca": str(authority.ca), "cert": str(both)},
        {"ca": str(authority.ca), "cert": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")},
        {"ca": authority.ca.read_text(), "cert": cert, "key": key},
        {"ca": authority.ca.read_text(), "cert": cert + key},
    ):
        assert shards(admin, **given) > 0
    assert set(Path("/tmp").glob("mqcore-*.pem")) == before, "no key is left in a file"


def test_missing_certificates_fail_at_once(admin: str, authority: Authority) -> None:
    with pytest.raises(errors.ConnectFailed, match="certificate verify failed"):
        shards(admin, retries="1000000")
    with pytest.raises(errors.MqcoreError, match=r"(?i)certificate required|does not answer"):
        shards(admin, ca=str(authority.ca), retries="0")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ca": "/no/such.pem"}, r"cannot load the TLS option ca \(/no/such.pem\): .*every executor"),
        ({"ca": "-----BEGIN CERTIFICATE-----\nnonsense"}, r"cannot load the TLS option ca \(PEM\)"),
        ({"cert": "/no/such.pem"}, r"cannot load the TLS option cert \(/no/such.pem\)"),
        ({"cert": "/no/such.pem", "key": "/no/key.pem"}, r"option cert \(/no/such.pem\) and key \(/no/key.pem\)"),
        ({"key": "/no/key.pem"}, "key is the private key of cert; set cert too"),
    ],
    ids=str,
)
def test_invalid_tls_options_are_named(given: dict[str, str], why: str) -> None:
    with pytest.raises(errors.ConfigError, match=why):
        shards("https://127.0.0.1:1", **given)


def test_tls_options_need_https() -> None:
    with pytest.raises(errors.ConfigError, match="ca is for TLS; set admin to https://HOST:PORT"):
        shards("http://127.0.0.1:1", ca="/ca.pem")
    with pytest.raises(errors.ConfigError, match="ca is for TLS"):
        ReadOptions.parse({"path": "/data", "ca": "/ca.pem"})
    with pytest.raises(errors.ConfigError, match="in the URL of the admin side or as `context`, not both"):
        AdminClient("https://127.0.0.1:1?server_name=a", context=ssl.create_default_context())
