"""TLS: accepted and rejected clients, reasons of rejections, and handshakes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqcore
import mqcore.sync
import programs
from authority import Authority
from mqcore import errors
from mqcore._core import AuthorityStore
from served import ServedBroker, clean_environment, serving, wait_until
from tcp_proxy import TcpProxy
from tmqp_peer import PREAMBLE, TmqpPeer

posix_only = pytest.mark.skipif(os.name == "nt", reason="signals and file permissions as POSIX has them")

StartTls = Callable[..., mqcore.Broker]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority of the broker, and as a rule of its clients."""
    return Authority(tmp_path / "authority")


@pytest.fixture
def start() -> Iterator[StartTls]:
    """Starts brokers with one TLS listener and an admin side; stops them after the test."""
    running: list[mqcore.Broker] = []

    def start(tls: mqcore.ListenerTLS | Path, **options: Any) -> mqcore.Broker:
        shown = tls if isinstance(tls, mqcore.ListenerTLS) else mqcore.ListenerTLS(cert=tls)
        defaults: dict[str, Any] = {
            "listen": ["tmqps://127.0.0.1:0"],
            "admin": "http://127.0.0.1:0",
            "auto_create_channels": True,
            "auto_create_queues": True,
            "tls": shown,
        }
        broker = mqcore.Broker(**defaults | options)
        broker.start()
        running.append(broker)
        return broker

    yield start
    for broker in running:
        broker.stop(grace=0.0)


def address(broker: mqcore.Broker) -> tuple[str, int]:
    host, _, port = broker.listeners[0].partition("://")[2].rpartition(":")
    return host, int(port)


def url(broker: mqcore.Broker, host: str = "localhost") -> str:
    """With a name, as users connect."""
    scheme = broker.listeners[0].partition("://")[0]
    return f"{scheme}://{host}:{address(broker)[1]}"


def exchange(target: str, **options: Any) -> bytes:
    """Publish one message to oneself, and return what came back."""
    with mqcore.sync.connect(target, **options) as client:
        with contextlib.suppress(errors.AlreadyExists):
            client.create_queue("mail/1", mqcore.QueueOptions(status=mqcore.QueueStatus.PULL))
        client.publish("mail/1", b"through TLS")
        (message,) = client.queue("mail", 1).pull(1)
        return bytes(message.raw)


def refused(target: str, **options: Any) -> errors.TLSError:
    """Connect, and return why that failed."""
    with pytest.raises(errors.TLSError) as caught:
        mqcore.sync.connect(target, **options)
    return caught.value


def samples(broker: mqcore.Broker) -> dict[str, float]:
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def refusals(broker: mqcore.Broker, reason: str) -> float:
    return samples(broker)[f'mqcore_tls_handshakes_failed_total{{reason="{reason}"}}']


def said(caplog: pytest.LogCaptureFixture, words: str) -> str:
    """Wait for a log line with these words, and return it."""

    def found() -> list[str]:
        return [record.getMessage() for record in caplog.records if words in record.getMessage()]

    wait_until(lambda: bool(found()), what=f"a log line with {words!r}")
    return found()[0]


# --- accepted clients --------------------------------------------------------------------------------------------


def test_messages_go_through_tls(authority: Authority, start: StartTls) -> None:
    broker = start(authority.issue())
    assert broker.listeners[0].startswith("tmqps://127.0.0.1:")
    assert exchange(url(broker), tls=mqcore.TLSConfig(ca=authority.ca)) == b"through TLS"
    assert exchange(f"{url(broker, '127.0.0.1')}?ca={authority.ca}") == b"through TLS"
    named = mqcore.TLSConfig(ca=authority.ca, server_name="localhost")
    assert exchange(url(broker, "127.0.0.1"), tls=named) == b"through TLS"


async def test_asyncio_clients_go_through_tls_too(authority: Authority, start: StartTls) -> None:
    broker = start(authority.issue())
    body = os.urandom(3_000_000)
    async with mqcore.connect(url(broker), tls=mqcore.TLSConfig(ca=authority.ca)) as client:
        await client.create_queue("large/1", mqcore.QueueOptions(status=mqcore.QueueStatus.PULL))
        await client.publish("large/1", body)
        (message,) = await client.queue("large", 1).pull(1)
        assert message.raw == body


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken_and_a_large_message_comes_back_whole(
    authority: Authority, start: StartTls, version: ssl.TLSVersion
) -> None:
    context = authority.context()
    context.minimum_version = context.maximum_version = version
    body = os.urandom(5_000_001)
    with TmqpPeer(*address(start(authority.issue())), tls=context) as peer:
        assert isinstance(peer.socket, ssl.SSLSocket)
        assert peer.socket.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
        peer.hello(Client_Id="echo")
        peer.ask(601, "large")
        peer.publish("large", 0, body)
        assert peer.receive().payload == body


def test_a_client_shows_its_certificate_to_a_listener_that_requires_one(authority: Authority, start: StartTls) -> None:
    files = mqcore.ListenerTLS(cert=authority.issue(), client_ca=authority.ca)
    broker = start(files)
    worker = authority.issue("worker.pem", "worker.example", common_name="worker")
    assert exchange(url(broker), tls=mqcore.TLSConfig(ca=authority.ca, cert=worker)) == b"through TLS"
    assert exchange(f"{url(broker)}?ca={authority.ca}&cert={worker}") == b"through TLS"


def test_a_certificate_says_who_a_peer_is_and_what_it_may_do(
    authority: Authority, start: StartTls, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    allow = ["create:mail/*", "push:mail/*"]
    user = {"name": "postman", "certificate": "cn:worker", "allow": allow}
    AuthorityStore.of_data_dir(data).add_user(json.dumps(user))
    files = mqcore.ListenerTLS(cert=authority.issue(), client_ca=authority.ca, client_cert="optional")
    broker = start(files, data_dir=str(data))
    worker = authority.issue("worker.pem", "worker.example", common_name="worker")
    with TmqpPeer(*address(broker), tls=authority.context(worker)) as peer:
        assert peer.hello(Client_Id="w").content_type == 202
        assert [peer.ask(603, channel).content_type for channel in ("mail", "other")] == [0, 401]
        assert peer.ask(631, "").content_type == 401
    nobody = authority.issue("nobody.pem", "nobody.example", common_name="worker-2")
    for shown in (nobody, None):
        with TmqpPeer(*address(broker), tls=authority.context(shown)) as peer:
            assert peer.hello(Client_Id="n").content_type == 401
            assert peer.is_closed_within(5)

    def logins() -> list[tuple[object, object]]:
        lines = [json.loads(line) for line in (data / "audit.jsonl").read_text().splitlines(keepends=True)]
        return [(line["verdict"], line.get("who")) for line in lines if line["event"] == "login"]

    wait_until(lambda: len(logins()) == 3, what="three logins are written down")
    assert logins()[0] == ("allowed", "postman")
    assert [verdict for verdict, _ in logins()[1:]] == ["denied", "denied"]


def test_an_optional_certificate_may_be_left_out_but_not_be_a_strangers(
    authority: Authority, start: StartTls, tmp_path: Path
) -> None:
    files = mqcore.ListenerTLS(cert=authority.issue(), client_ca=authority.ca, client_cert="optional")
    broker = start(files)
    assert exchange(url(broker), tls=mqcore.TLSConfig(ca=authority.ca)) == b"through TLS"
    stranger = Authority(tmp_path / "stranger").issue("stranger.pem")
    failure = refused(url(broker), tls=mqcore.TLSConfig(ca=authority.ca, cert=stranger))
    assert failure.reason == "certificate-refused"


def test_certificate_verification_is_disabled_only_on_request(authority: Authority, start: StartTls) -> None:
    broker = start(authority.issue(days=-1))
    careless = mqcore.TLSConfig(dangerously_accept_any_certificate=True)
    assert exchange(url(broker), tls=careless) == b"through TLS"
    with pytest.raises(errors.InvalidArgument, match="unknown option"):
        mqcore.sync.connect(f"{url(broker)}?dangerously_accept_any_certificate=1")


# --- who is refused, and the reason given ----------------------------------------------------------------------


def test_a_broker_of_another_authority_is_not_trusted(
    authority: Authority, start: StartTls, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(authority.issue())
    failure = refused(url(broker), tls=mqcore.TLSConfig(ca=Authority(tmp_path / "other").ca))
    assert isinstance(failure, errors.CertificateError)
    assert failure.reason == "unknown-authority"
    assert "an authority that this client does not trust" in str(failure)
    assert url(broker) in str(failure)
    line = said(caplog, "TLS handshake failed")
    assert "does not trust the authority" in line
    assert "peer=127.0.0.1:" in line
    assert broker.listeners[0] in line
    wait_until(lambda: refusals(broker, "declined") == 1)


def test_certificates_unknown_to_the_system_are_not_trusted_by_default(authority: Authority, start: StartTls) -> None:
    failure = refused(url(start(authority.issue())))
    assert failure.reason == "unknown-authority"


def test_an_expired_broker_is_not_trusted(authority: Authority, start: StartTls) -> None:
    failure = refused(url(start(authority.issue(days=-3))), tls=mqcore.TLSConfig(ca=authority.ca))
    assert isinstance(failure, errors.CertificateError)
    assert failure.reason == "expired"
    assert "expired 3 days ago" in str(failure)


def test_a_broker_of_another_name_is_not_trusted(authority: Authority, start: StartTls) -> None:
    broker = start(authority.issue("server.pem", "broker.example"))
    failure = refused(url(broker), tls=mqcore.TLSConfig(ca=authority.ca))
    assert isinstance(failure, errors.CertificateError)
    assert failure.reason == "wrong-name"
    assert "not for localhost" in str(failure)
    assert "broker.example" in str(failure)


def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    authority: Authority, start: StartTls, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(mqcore.ListenerTLS(cert=authority.issue(), client_ca=authority.ca))
    failure = refused(url(broker), tls=mqcore.TLSConfig(ca=authority.ca))
    assert isinstance(failure, errors.CertificateError)
    assert failure.reason == "certificate-required"
    assert "'cert' and 'key'" in str(failure)
    assert "sent no certificate" in said(caplog, "reason=no-certificate")
    assert broker.stats().clients == ()


@pytest.mark.parametrize(
    ("days", "of", "reason"),
    [(365, "stranger", "unknown-authority"), (-1, "ca", "expired-certificate")],
)
def test_a_client_with_an_unsound_certificate_is_refused(
    authority: Authority,
    start: StartTls,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    days: float,
    of: str,
    reason: str,
) -> None:
    broker = start(mqcore.ListenerTLS(cert=authority.issue(), client_ca=authority.ca))
    issuer = authority if of == "ca" else Authority(tmp_path / "stranger")
    cert = issuer.issue("client.pem", days=days)
    failure = refused(url(broker), tls=mqcore.TLSConfig(ca=authority.ca, cert=cert))
    assert isinstance(failure, errors.CertificateError)
    assert failure.reason == "certificate-refused"
    said(caplog, f"reason={reason}")
    wait_until(lambda: refusals(broker, reason) == 1)
    assert broker.stats().clients == ()


def test_plaintext_on_a_tls_port_is_rejected_and_reported(
    authority: Authority, start: StartTls, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(authority.issue())
    failure = refused(f"tmqp://127.0.0.1:{address(broker)[1]}")
    assert failure.reason == "tls-wanted"
    assert "use tmqps://" in str(failure)
    assert not isinstance(failure, errors.CertificateError)
    assert 'its first bytes are "TMQP/2.0"' in said(caplog, "reason=not-tls")
    wait_until(lambda: refusals(broker, "not-tls") == 1)


def test_tls_on_a_plaintext_port_is_rejected_and_reported(
    broker: mqcore.Broker, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    port = broker.listeners[0].rpartition(":")[2]
    failure = refused(f"tmqps://127.0.0.1:{port}", tls=mqcore.TLSConfig(ca=authority.ca))
    assert failure.reason in {"closed", "not-tls"}
    assert "speaks TLS" in str(failure)
    assert "it speaks TLS" in said(caplog, "this listener does not")


def hello_of(version: bytes) -> bytes:
    """A ClientHello that offers nothing newer than `version`, made manually: OpenSSL may not offer it any more."""
    ciphers = bytes.fromhex("c009c013002f0035")
    groups = struct.pack(">HHHH", 10, 4, 2, 23)
    points = struct.pack(">HHBB", 11, 2, 1, 0)
    extensions = groups + points
    body = version + bytes(32) + b"\0" + struct.pack(">H", len(ciphers)) + ciphers + b"\x01\0"
    body += struct.pack(">H", len(extensions)) + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack(">H", len(message)) + message


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (hello_of(b"\x03\x02"), "old-version"),
        (hello_of(b"\x03\x01"), "old-version"),
        (hello_of(b"\x03\x00"), "old-version"),
        # SSL 2: length, ClientHello, version 2.0, one cipher, no session, a challenge of 16 bytes.
        (bytes.fromhex("802b0100020012000000100100800700c0030080010080060040040080020080") + bytes(16), "old-version"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not-tls"),
        (b"\x16\x03\x01\x00\x04\xff\xff\xff\xff", "malformed"),
        (b"\x16\x03\x01\xff\xff" + bytes(100), "malformed"),
        (bytes(64), "not-tls"),
    ],
    ids=["tls-1.1", "tls-1.0", "ssl-3", "ssl-2", "http", "garbage", "oversized", "zeros"],
)
def test_old_versions_and_garbage_are_rejected_by_reason(
    authority: Authority, start: StartTls, caplog: pytest.LogCaptureFixture, hello: bytes, reason: str
) -> None:
    broker = start(authority.issue())
    with socket.create_connection(address(broker), timeout=10) as peer:
        peer.sendall(hello)
        answer = b""
        while part := peer.recv(4096):
            answer += part
    # If anything is said, it is an alert and no hello.
    assert answer[:1] in {b"", b"\x15"}
    said(caplog, f"reason={reason}")
    wait_until(lambda: refusals(broker, reason) == 1)
    assert exchange(url(broker), tls=mqcore.TLSConfig(ca=authority.ca)) == b"through TLS"


def test_a_flood_of_refusals_is_not_a_flood_of_lines(
    authority: Authority, start: StartTls, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(authority.issue())
    for _ in range(60):
        with socket.create_connection(address(broker), timeout=10) as peer:
            peer.sendall(PREAMBLE)
            while peer.recv(4096):
                pass
    wait_until(lambda: refusals(broker, "not-tls") == 60)
    assert sum("TLS handshake failed" in record.getMessage() for record in caplog.records) <= 40


# --- stalled, killed, replaced --------------------------------------------------------------------------------


def test_incomplete_handshake_times_out_without_delaying_others(
    authority: Authority, start: StartTls, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(authority.issue(), handshake_timeout=2)
    stalled = [socket.create_connection(address(broker), timeout=10) for _ in range(20)]
    try:
        for peer in stalled:
            peer.sendall(hello_of(b"\x03\x03")[:20])
        assert exchange(url(broker), tls=mqcore.TLSConfig(ca=authority.ca)) == b"through TLS"
        for peer in stalled:
            assert peer.recv(100) == b""
    finally:
        for peer in stalled:
            peer.close()
    assert "did not finish the handshake within 2s" in said(caplog, "reason=timeout")
    wait_until(lambda: samples(broker)["mqcore_tls_handshakes"] == 0)
    wait_until(lambda: refusals(broker, "timeout") == 20)


def test_a_peer_killed_in_the_middle_of_a_message_loses_nothing_of_others(
    authority: Authority, start: StartTls
) -> None:
    broker = start(authority.issue())
    peer = TmqpPeer(*address(broker), tls=authority.context())
    peer.hello(Client_Id="killed")
    peer.ask(601, "work")
    peer.publish("work", 0, bytes(100_000))
    # A reset, as the system of a killed program may send it: no close_notify, half a record on its way.
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    wait_until(lambda: broker.stats().clients == (), what="the broker has noticed")
    assert exchange(url(broker), tls=mqcore.TLSConfig(ca=authority.ca)) == b"through TLS"


async def test_a_client_that_is_cut_off_comes_back_with_the_same_settings(
    authority: Authority, start: StartTls
) -> None:
    worker = authority.issue("worker.pem", "worker.example")
    broker = start(mqcore.ListenerTLS(cert=authority.issue(), client_ca=authority.ca))
    async with TcpProxy(*address(broker)) as proxy:
        tls = mqcore.TLSConfig(ca=authority.ca, cert=worker)
        async with mqcore.connect(f"tmqps://localhost:{proxy.port}", tls=tls, backoff_first=0.01) as client:
            await client.create_queue("mail/1", mqcore.QueueOptions(status=mqcore.QueueStatus.PULL))
            await proxy.cut()
            receipt = await client.publish("mail/1", b"again", id="again", retry=True)
            assert receipt.by == "server"
            assert proxy.accepted >= 2


@posix_only
def test_sighup_shows_a_new_certificate_and_keeps_the_old_one_if_the_new_is_broken(authority: Authority) -> None:
    cert = authority.issue(common_name="first")
    arguments = ("--listen", "tmqps://127.0.0.1:0", "--tls-cert", str(cert), "--admin", "http://127.0.0.1:0")
    with serving(*arguments) as broker:
        target = f"tmqps://localhost:{broker.ready['listeners']['tmqps'].rpartition(':')[2]}?ca={authority.ca}"

        def shown() -> Any:
            return overview(broker)["certificates"][0]

        def log() -> str:
            return "".join(broker.stderr_lines)

        assert shown()["subject"] == "first"
        with mqcore.sync.connect(target) as before:
            authority.issue(common_name="second")
            broker.process.send_signal(signal.SIGHUP)
            wait_until(lambda: shown()["subject"] == "second", what="the new certificate is shown")
            before.create_queue("kept/1")
            cert.write_text("-----BEGIN CERTIFICATE-----\nbroken")
            broker.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "keeps its certificate" in log(), what="the log says it")
            assert shown()["subject"] == "second"
            assert exchange(target) == b"through TLS"
            before.publish("kept/1", b"still here")
        assert broker.terminate() == 0


def overview(broker: ServedBroker) -> Any:
    with urllib.request.urlopen(f"{broker.admin_url}/overview", timeout=10) as page:
        return json.load(page)


def test_an_embedded_broker_reads_its_certificates_again(authority: Authority, start: StartTls) -> None:
    cert = authority.issue(common_name="first")
    broker = start(cert)
    (before,) = broker.certificates()
    assert (before.listener, before.subject) == (broker.listeners[0], "first")
    assert before.names == ("dns:localhost", "ip:127.0.0.1")
    authority.issue(common_name="second")
    broker.reload_tls()
    (after,) = broker.certificates()
    assert after.subject == "second"
    assert after.fingerprint != before.fingerprint
    cert.unlink()
    with pytest.raises(errors.ConfigError, match="keeps its certificate: cannot read the certificate"):
        broker.reload_tls()
    assert broker.certificates()[0].fingerprint == after.fingerprint


def test_the_time_until_a_certificate_expires_is_a_metric_and_a_warning(
    authority: Authority, start: StartTls, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(authority.issue(days=9.5))
    left = samples(broker)[f'mqcore_tls_certificate_expiry_seconds{{listener="{broker.listeners[0]}"}}']
    assert 9.5 * 86_400 - 60 < left <= 9.5 * 86_400
    assert abs(broker.certificates()[0].expires_in - left) <= 60
    said(caplog, "the certificate expires in 9 days")
    caplog.clear()
    start(authority.issue(days=10), tls_expiry_warning="5d")
    start(authority.issue(days=-1))
    said(caplog, "the certificate has expired")
    assert not any("expires in" in record.getMessage() for record in caplog.records)


# --- the admin side, the command line, Unix sockets -----------------------------------------------------------


def test_the_admin_side_speaks_https(authority: Authority, start: StartTls) -> None:
    broker = start(authority.issue(), admin="https://127.0.0.1:0")
    assert broker.admin_url is not None
    assert broker.admin_url.startswith("https://127.0.0.1:")
    with urllib.request.urlopen(f"{broker.admin_url}/readyz", timeout=10, context=authority.context()) as page:
        assert json.load(page) == {"status": "ready"}
    assert {shown.listener for shown in broker.certificates()} == {broker.listeners[0], broker.admin_url}
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"{broker.admin_url}/readyz", timeout=10)


def test_the_command_line_goes_through_tls(authority: Authority, start: StartTls) -> None:
    broker = start(authority.issue())

    def mqcore_publish(target: str) -> subprocess.CompletedProcess[str]:
        return programs.run(
            [sys.executable, "-m", "mqcore", "--url", target, "publish", "orders/1", "x"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=clean_environment(),
        )

    assert mqcore_publish(f"{url(broker)}?ca={authority.ca}").returncode == 0
    failed = mqcore_publish(url(broker))
    assert failed.returncode == 5
    assert "an authority that this client does not trust" in failed.stderr


def test_listeners_of_tables_have_certificates_of_their_own(authority: Authority, tmp_path: Path) -> None:
    one = authority.issue("one.pem", common_name="one")
    other = authority.issue("other.pem", common_name="other")
    file = tmp_path / "mqcore.toml"
    file.write_text(
        f"""
        admin = "http://127.0.0.1:0"
        [tls]
        cert = "{one}"
        [[listener]]
        url = "tmqps://127.0.0.1:0"
        [[listener]]
        url = "tmqps://127.0.0.1:0"
        [listener.tls]
        cert = "{other}"
        client_ca = "{authority.ca}"
        client_cert = "optional"
        """
    )
    with mqcore.Broker(mqcore.BrokerConfig.load(file, environ={})) as broker:
        assert [shown.subject for shown in broker.certificates()] == ["one", "other"]


@posix_only
def test_world_readable_key_is_logged_as_a_warning(
    authority: Authority, start: StartTls, caplog: pytest.LogCaptureFixture
) -> None:
    cert = authority.issue()
    cert.chmod(0o644)
    start(cert)
    assert f"chmod 600 {cert}" in said(caplog, "is readable by all users of this machine")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cert": "/no/such.pem"}, "cannot read the certificate /no/such.pem"),
        ({"key": "other"}, "does not belong to the first certificate"),
        ({"cert": "ca"}, "no private key in"),
        ({"key": "ca"}, "no private key in"),
        ({"client_ca": "empty"}, "no certificate in the client authorities"),
    ],
)
def test_files_that_cannot_be_used_are_named_at_the_start(
    authority: Authority, start: StartTls, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    places = {"other": authority.issue("other.pem"), "ca": authority.ca, "empty": empty}
    given = {name: places.get(value, Path(value)) for name, value in options.items()}
    with pytest.raises(errors.ConfigError, match=words):
        start(mqcore.ListenerTLS(**{"cert": authority.issue(), **given}))


def test_settings_that_contradict_each_other_are_refused(authority: Authority, broker: mqcore.Broker) -> None:
    plain = broker.listeners[0]
    with pytest.raises(errors.InvalidArgument, match="does not use TLS"):
        mqcore.sync.connect(plain, tls=mqcore.TLSConfig(ca=authority.ca))
    with pytest.raises(errors.InvalidArgument, match="cannot read the authorities"):
        mqcore.sync.connect("tmqps://127.0.0.1:1?ca=/no/such.pem")
    with pytest.raises(errors.InvalidArgument, match="'cert' is missing"):
        mqcore.sync.connect("tmqps://127.0.0.1:1", tls=mqcore.TLSConfig(ca=authority.ca, key=authority.issue()))
    with pytest.raises(errors.ConfigError, match="'required' or 'optional'"):
        mqcore.ListenerTLS(cert="a.pem", client_cert="perhaps")


@posix_only
def test_clients_reach_a_broker_through_a_unix_socket(tmp_path: Path) -> None:
    target = f"tmqp+unix://{tmp_path}/mqcore.sock"
    with mqcore.Broker(listen=target, auto_create_channels=True, auto_create_queues=True) as broker:
        assert broker.listeners == (target,)
        assert exchange(target) == b"through TLS"
    started = time.monotonic()
    with pytest.raises(errors.ConnectFailed, match=r"mqcore\.sock"):
        mqcore.sync.connect(target)
    assert time.monotonic() - started < 5
