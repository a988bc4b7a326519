"""The HTTP client of the admin side: TLS, proxies, timeouts, and answers that no admin side sends."""

from __future__ import annotations

import http.client
import http.server
import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mqcore
import programs
from authority import Authority
from mqcore import admin, errors
from mqcore._http import AdminClient
from mqcore.backup import backup
from mqcore.tls import TLSConfig
from served import clean_environment


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def secure(authority: Authority, tmp_path: Path) -> Iterator[mqcore.Broker]:
    """A broker with data, and an admin side behind TLS."""
    with mqcore.Broker(
        data_dir=tmp_path / "data",
        admin="https://127.0.0.1:0",
        tls=mqcore.ListenerTLS(cert=authority.issue()),
    ) as broker:
        yield broker


def admin_url(broker: mqcore.Broker) -> str:
    assert broker.admin_url is not None
    return broker.admin_url


@contextmanager
def answering(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Serve HTTP with what `answer` sends to each GET; give the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_unused: object) -> None:
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return programs.run(
        [sys.executable, "-m", "mqcore", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=clean_environment() | environment,
    )


def test_https_admin_is_verified_with_the_authority_of_the_url(secure: mqcore.Broker, authority: Authority) -> None:
    url = admin_url(secure)
    assert admin.errors(f"{url}?ca={authority.ca}") == ()
    assert admin.errors(url, tls=TLSConfig(ca=authority.ca)) == ()
    assert admin.errors(url, tls=TLSConfig(dangerously_accept_any_certificate=True)) == ()
    assert admin.schedules(f"{url}?ca={authority.ca}").total == 0
    with pytest.raises(errors.ConnectFailed, match="certificate verify failed"):
        admin.errors(url)


def test_https_admin_is_verified_by_server_name(authority: Authority) -> None:
    certificate = mqcore.ListenerTLS(cert=authority.issue("named.pem", "broker.example"))
    with mqcore.Broker(admin="https://127.0.0.1:0", tls=certificate) as broker:
        url = f"{admin_url(broker)}?ca={authority.ca}"
        assert admin.errors(f"{url}&server_name=broker.example") == ()
        with pytest.raises(errors.ConnectFailed, match="IP address mismatch"):
            admin.errors(url)


def test_backup_over_https(secure: mqcore.Broker, authority: Authority, tmp_path: Path) -> None:
    url = admin_url(secure)
    assert backup(tmp_path / "one", url=url, tls=TLSConfig(ca=authority.ca)).messages == 0
    done = command("backup", "--url", f"{url}?ca={authority.ca}", "--to", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    refused = command("backup", "--url", url, "--to", str(tmp_path / "three"))
    assert refused.returncode == 5
    assert "certificate verify failed" in refused.stderr


def test_commands_take_the_admin_side_from_the_root_url_and_from_the_environment(
    secure: mqcore.Broker, authority: Authority, tmp_path: Path
) -> None:
    url = f"{admin_url(secure)}?ca={authority.ca}"
    for arguments in (("errors",), ("jobs", "schedules")):
        assert command("--url", url, *arguments).returncode == 0
        assert command(*arguments, MQCORE_URL=url).returncode == 0
        # The option of the command counts more.
        assert command("--url", url, *arguments, "--url", "http://127.0.0.1:1").returncode == 5
    assert "no message" in command("trace", "M-1", MQCORE_URL=url).stderr
    assert command("backup", "--to", str(tmp_path / "copy"), MQCORE_URL=url).returncode == 0


def test_a_root_url_of_another_protocol_is_wrong_usage_of_admin_commands() -> None:
    wrong = command("--url", "tmqp://127.0.0.1:2622", "errors")
    assert "is not a URL of the admin API" in wrong.stderr
    assert wrong.returncode in {1, 2}
    # In the environment it is where messages go: the default of the admin side holds.
    assert "is not a URL of the admin API" not in command("errors", MQCORE_URL="tmqp://127.0.0.1:2622").stderr


def test_proxies_of_the_environment_are_used_but_not_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        asked.append((request.path, request.headers["Proxy-Authorization"]))
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b'{"errors": []}')

    with answering(answer) as proxy:
        monkeypatch.setenv("http_proxy", proxy.replace("http://", "http://user:secret@"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert admin.errors("http://broker.invalid:2627") == ()
        assert asked == [("http://broker.invalid:2627/errors?limit=100", "Basic dXNlcjpzZWNyZXQ=")]
        with pytest.raises(errors.ConnectFailed):
            admin.errors("http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "broker.invalid")
        with pytest.raises(errors.ConnectFailed):
            admin.errors("http://broker.invalid:2627", timeout=1)
        assert len(asked) == 1


def test_a_token_stands_in_the_url_or_beside_it() -> None:
    seen: list[str | None] = []

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        seen.append(request.headers["Authorization"])
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b'{"errors": []}')

    with answering(answer) as url:
        admin.errors(url, token="secret")
        admin.errors(url.replace("://", "://secret@"))
        admin.errors(url.replace("://", "://ann:pass@"))
        admin.errors(url)
        with pytest.raises(errors.ConfigError, match="not both"):
            admin.errors(url.replace("://", "://secret@"), token="secret")
    assert seen == ["Bearer secret", "Bearer secret", "Basic YW5uOnBhc3M=", None]


def test_a_redirect_is_not_followed() -> None:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", "http://127.0.0.1:1/")
        request.end_headers()

    with answering(answer) as url, pytest.raises(errors.BadAnswer, match="answers 302"):
        admin.errors(url, token="secret")


def test_silence_ends_with_the_timeout() -> None:
    release = threading.Event()

    def answer(_request: http.server.BaseHTTPRequestHandler) -> None:
        release.wait(10)

    with answering(answer) as url:
        with pytest.raises(errors.ConnectFailed, match="timed out"):
            admin.errors(url, timeout="200ms")
        release.set()


def test_an_answer_that_breaks_off_is_a_lost_connection() -> None:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b'{"errors": [')

    with answering(answer) as url, pytest.raises(errors.ConnectionLost, match="broke off"):
        admin.errors(url)


@pytest.mark.parametrize("excess", [0, 1])
def test_answer_has_at_most_8_mebibytes(excess: int) -> None:
    content = b'{"errors": []}'

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(content + b" " * ((8 << 20) + excess - len(content)))

    with answering(answer) as url:
        if not excess:
            assert admin.errors(url) == ()
            return
        with pytest.raises(errors.BadAnswer, match="more than 8388608 bytes"):
            admin.errors(url)


def test_an_answer_of_more_bytes_than_the_limit_is_refused() -> None:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b" " * 2000)

    with answering(answer) as url, pytest.raises(errors.BadAnswer, match="more than 1000 bytes"):
        AdminClient(url).ask("GET", "/", bytes_max=1000)


def failing(status: int, body: bytes) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    """Answer each request with an error."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.end_headers()
        request.wfile.write(body)

    return answer


@pytest.mark.parametrize(
    ("code", "kind", "members"),
    [
        ("unauthorized", errors.Unauthorized, {"code": 401}),
        ("forbidden", errors.Unauthorized, {"code": 401}),
        ("not-found", errors.NotFound, {"code": 404}),
        ("busy", errors.Busy, {"code": 503}),
        ("not-saved", errors.Nacked, {"reason": "not-saved"}),
        ("stopping", errors.ConnectionLost, {"sent": False}),
        ("no-leader", errors.ConnectFailed, {}),
        ("leader-unreachable", errors.ConnectFailed, {}),
        ("another", errors.BadAnswer, {}),
    ],
)
def test_error_of_the_admin_side_is_an_exception_with_its_code(
    code: str, kind: type[errors.MqcoreError], members: dict[str, object]
) -> None:
    body = json.dumps({"error": {"code": code, "message": "the reason"}}).encode()
    with answering(failing(500, body)) as url, pytest.raises(kind, match="the reason") as raised:
        admin.errors(url)
    assert type(raised.value) is kind
    assert {name: getattr(raised.value, name) for name in members} == members


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[]", b'{"error": "text"}', b'{"error": {"code": "busy"}}'])
def test_error_in_another_form_is_a_bad_answer(body: bytes) -> None:
    with (
        answering(failing(503, body)) as url,
        pytest.raises(errors.BadAnswer, match="answers 503, but not like the admin side of a broker"),
    ):
        admin.errors(url)


def test_error_of_more_than_a_mebibyte_is_a_bad_answer() -> None:
    body = json.dumps({"error": {"code": "busy", "message": "x" * (1 << 20)}}).encode()
    with answering(failing(503, body)) as url, pytest.raises(errors.BadAnswer, match="answers 503"):
        admin.errors(url)


def test_certificate_that_is_not_verified_is_logged(
    secure: mqcore.Broker, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    url = admin_url(secure)
    assert admin.errors(url, tls=TLSConfig(ca=authority.ca)) == ()
    assert "without verifying" not in caplog.text
    assert admin.errors(url, tls=TLSConfig(dangerously_accept_any_certificate=True)) == ()
    assert f"connected to {url} without verifying its certificate" in caplog.text


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("tmqp://127.0.0.1", "is not a URL of an admin side"),
        ("http://", "is not a URL of an admin side"),
        ("http://127.0.0.1:x", "is not a URL of an admin side"),
        ("https://127.0.0.1?cax=1", "has no option 'cax'"),
        ("http://127.0.0.1?ca=x.pem", "write https://"),
    ],
)
def test_a_url_of_something_else_is_a_config_error(url: str, reason: str) -> None:
    with pytest.raises(errors.ConfigError, match=reason):
        AdminClient(url)


def test_missing_tls_files_are_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="cannot load the TLS files"):
        admin.errors("https://127.0.0.1:1", tls=TLSConfig(ca=tmp_path / "none.pem"))


@pytest.mark.parametrize("page", ["/overview", "/backup", "/metrics"])
@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        (None, None, 200),
        ("localhost:{port}", None, 200),
        ("localhost:{port}", "http://localhost:{port}", 200),
        ("evil.example:{port}", None, 403),
        ("evil.example:{port}", "http://evil.example:{port}", 403),
        (None, "http://evil.example", 403),
        (None, "null", 403),
    ],
)
def test_pages_of_other_origins_read_nothing(
    tmp_path: Path, page: str, host: str | None, origin: str | None, status: int
) -> None:
    """A page that was loaded from a name that now means this machine (DNS rebinding) shows that name in `Host`."""
    with mqcore.Broker(admin="http://127.0.0.1:0", data_dir=tmp_path) as broker:
        assert broker.admin_url is not None
        port = broker.admin_url.rpartition(":")[2]
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
        given = {"Host": host, "Origin": origin, "Mqcore-Request": "backup"}
        connection.request("GET", page, headers={key: value.format(port=port) for key, value in given.items() if value})
        answer = connection.getresponse()
        assert answer.status == status, answer.read(200)
        connection.close()
