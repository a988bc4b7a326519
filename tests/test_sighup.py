"""SIGHUP to `mqcore serve`: certificates, users and tokens are read again in one go, each failing for itself alone."""

from __future__ import annotations

import json
import signal
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from authority import Authority
from mqcore._core import AuthorityStore
from served import ServedBroker, serving, wait_until
from tmqp_peer import ACCEPTED, TmqpPeer

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")


@dataclass
class Place:
    """A broker with TLS and tokens, and its files."""

    broker: ServedBroker
    authority: Authority
    cert: Path
    store: AuthorityStore
    users: Path

    def shown(self) -> str:
        """The subject of the certificate that the listener shows."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        with TmqpPeer("localhost", self._port, tls=context) as peer:
            assert isinstance(peer.socket, ssl.SSLSocket)
            subject = peer.socket.getpeercert()["subject"]  # type: ignore[index]
        return next(value for part in subject for name, value in part if name == "commonName")  # type: ignore[union-attr]

    def lets_in(self, token: str) -> bool:
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        with TmqpPeer("localhost", self._port, tls=context) as peer:
            return peer.hello(Client_Token=token).content_type == ACCEPTED

    @property
    def _port(self) -> int:
        return int(self.broker.ready["listeners"]["tmqps"].rpartition(":")[2])

    def token(self, name: str) -> str:
        return self.store.add_token(json.dumps({"name": name, "allow": ["*"]}))[1]

    def hang_up(self) -> None:
        self.broker.process.send_signal(signal.SIGHUP)

    def logged(self, text: str) -> int:
        """How many lines of the log have this."""
        return sum(text in line for line in self.broker.stderr_lines)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    authority = Authority(tmp_path / "authority")
    cert = authority.issue(common_name="first")
    data = tmp_path / "data"
    data.mkdir()
    store = AuthorityStore.of_data_dir(data)
    store.add_token(json.dumps({"name": "somebody", "allow": ["*"]}))
    listen = ("--listen", "tmqps://127.0.0.1:0", "--tls-cert", str(cert), "--data-dir", str(data))
    with serving(*listen) as broker:
        yield Place(broker, authority, cert, store, data / "authority.json")


def test_sighup_reloads_certificates_and_users_and_logs_it(place: Place) -> None:
    token = place.token("new")
    place.authority.issue(common_name="second")
    place.hang_up()
    wait_until(lambda: place.shown() == "second", what="the new certificate is shown")
    wait_until(lambda: place.lets_in(token), what="the new token is known")
    wait_until(lambda: place.logged("reloaded users and tokens") == 1, what="the log says so")
    assert place.logged("reloaded certificates") == 1
    assert token not in "".join(place.broker.stderr_lines)
    assert place.broker.terminate() == 0


def test_a_broken_certificate_keeps_no_new_user_out(place: Place) -> None:
    token = place.token("new")
    place.cert.write_text("-----BEGIN CERTIFICATE-----\nbroken")
    place.hang_up()
    wait_until(lambda: place.logged("keeps its certificate") > 0, what="the log names the listener")
    wait_until(lambda: place.logged("reloaded users and tokens") == 1, what="the users were read")
    assert place.shown() == "first"
    assert place.lets_in(token)


def test_a_broken_file_of_users_keeps_no_new_certificate_back(place: Place) -> None:
    token = place.token("known")
    place.hang_up()
    wait_until(lambda: place.logged("reloaded users and tokens") == 1, what="the users were read")
    place.users.write_text("{")
    place.authority.issue(common_name="second")
    place.hang_up()
    wait_until(lambda: place.logged("cannot reload users and tokens") >= 1, what="the log says what is broken")
    assert place.shown() == "second"
    assert place.lets_in(token), "those that were known go on to hold"
    place.users.unlink()
    place.cert.write_text("nothing")
    place.hang_up()
    wait_until(lambda: place.logged("cannot reload certificates") == 1, what="both may fail at once")
    assert place.shown() == "second"
