"""Users and tokens that a running broker adds, changes and removes, and callers who may not do that."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mqcore import admin, errors, sync
from mqcore._core import AuthorityStore, hash_password
from mqcore.admin import CredentialRestrictions
from served import clean_environment, serving, wait_until
from test_admin_changes import Place, new_token

RULES = {
    "all": ("*",),
    "clerk": ("administer:/users*", "administer:/tokens*", "push:orders/*", "inspect:/queues*"),
    "viewer": ("administer:/users",),
    "sender": ("push",),
}
PASSWORD = "correct horse"
CONFIGURATION = """
[[user]]
name = "fixed"
password_hash = "{hash}"
allow = ["push"]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker with a user of its configuration, and tokens in its data directory."""
    directory = tmp_path_factory.mktemp("users")
    data, file = directory / "data", directory / "mqcore.toml"
    data.mkdir(mode=0o700)
    file.write_text(CONFIGURATION.format(hash=hash_password(PASSWORD)))
    tokens = {name: new_token(data, name, *rules) for name, rules in RULES.items()}
    with serving("--admin", "http://127.0.0.1:0", "--data-dir", str(data), "--config", str(file)) as broker:
        yield Place(broker, tokens)


def names(place: Place) -> set[str]:
    return {user.name for user in admin.users(place.url, token=place.tokens["viewer"])}


def is_lost(client: sync.Client) -> bool:
    """Whether the broker has closed a connection whose user may create channels."""
    try:
        client.create_channel("orders")
    except errors.ConnectionLost:
        return True
    return False


def test_a_new_user_logs_in_at_once_and_a_removed_one_is_disconnected(place: Place) -> None:
    admin.add_user(place.url, "ann", password=PASSWORD, allow=["push:orders/*", "create"], token=place.token)
    with sync.connect(place.broker.url, user="ann", password=PASSWORD) as client:
        client.create_channel("orders")
        (ann,) = [user for user in admin.users(place.url, token=place.token) if user.name == "ann"]
        assert (ann.has_password, ann.certificate, ann.configured, ann.connections) == (True, None, False, 1)
        assert ann.allow == ("push:orders/*", "create")
        assert ann.restrict == CredentialRestrictions()
        admin.remove_user(place.url, "ann", token=place.token)
        assert "ann" not in names(place)
        wait_until(lambda: is_lost(client), what="the end of its connection")
    with pytest.raises(errors.AuthFailed):
        sync.connect(place.broker.url, user="ann", password=PASSWORD)


def test_a_new_password_replaces_the_old_one(place: Place) -> None:
    admin.add_user(place.url, "bob", password=PASSWORD, allow=["push"], token=place.token)
    admin.set_password(place.url, "bob", "another horse", token=place.token)
    with pytest.raises(errors.AuthFailed):
        sync.connect(place.broker.url, user="bob", password=PASSWORD)
    with sync.connect(place.broker.url, user="bob", password="another horse"):
        pass


def test_a_new_token_is_valid_at_once_until_it_is_revoked_or_expires(place: Place) -> None:
    made = admin.create_token(place.url, "deploy", allow=["push"], token=place.token)
    assert made.token not in repr(made)
    (known,) = [each for each in admin.tokens(place.url, token=place.token) if each.id == made.id]
    assert (known.name, known.allow, known.expires, known.configured) == ("deploy", ("push",), None, False)
    with sync.connect(place.broker.url, token=made.token):
        pass
    admin.revoke_token(place.url, made.id, token=place.token)
    with pytest.raises(errors.AuthFailed):
        sync.connect(place.broker.url, token=made.token)
    with pytest.raises(errors.NotFound):
        admin.revoke_token(place.url, made.id, token=place.token)

    brief = admin.create_token(place.url, "brief", allow=["push"], expires=1.0, token=place.token)

    def is_refused() -> bool:
        try:
            sync.connect(place.broker.url, token=brief.token).close()
        except errors.AuthFailed:
            return True
        return False

    wait_until(is_refused, what="the expiry of the token")


def test_restrictions_of_a_token_apply(place: Place) -> None:
    tills = CredentialRestrictions(client_types=("till",), addresses=("127.0.0.0/8",))
    made = admin.create_token(place.url, "till", allow=["push"], restrict=tills, token=place.token)
    (known,) = [each for each in admin.tokens(place.url, token=place.token) if each.id == made.id]
    assert known.restrict == tills
    with pytest.raises(errors.AuthFailed):
        sync.connect(place.broker.url, token=made.token)
    with sync.connect(place.broker.url, token=made.token, kind="till"):
        pass


def test_a_caller_gives_and_takes_no_more_than_its_own_rights(place: Place) -> None:
    clerk = place.tokens["clerk"]
    admin.add_user(place.url, "eve", password=PASSWORD, allow=["push:orders/7"], token=clerk)
    admin.create_token(place.url, "eve", allow=["push:orders/*", "inspect:/queues"], token=clerk)
    admin.add_user(place.url, "chief", password=PASSWORD, allow=["*"], token=place.token)
    chief = admin.create_token(place.url, "chief", allow=["*"], token=place.token)
    refused: list[Callable[[], Any]] = [
        lambda: admin.add_user(place.url, "mallory", password=PASSWORD, allow=["*"], token=clerk),
        lambda: admin.add_user(place.url, "mallory", password=PASSWORD, allow=["push:invoices/1"], token=clerk),
        lambda: admin.create_token(place.url, "mallory", allow=["push:orders/*", "receive:orders/*"], token=clerk),
        lambda: admin.create_token(place.url, "mallory", allow=["administer"], token=clerk),
        lambda: admin.set_password(place.url, "chief", "another horse", token=clerk),
        lambda: admin.remove_user(place.url, "chief", token=clerk),
        lambda: admin.revoke_token(place.url, chief.id, token=clerk),
    ]
    before = admin.users(place.url, token=place.token), admin.tokens(place.url, token=place.token)
    for attempt in refused:
        with pytest.raises(errors.Unauthorized, match="your own credentials do not allow"):
            attempt()
    assert before == (admin.users(place.url, token=place.token), admin.tokens(place.url, token=place.token))
    admin.set_password(place.url, "eve", "another horse", token=clerk)
    admin.remove_user(place.url, "eve", token=clerk)


def forbidden(place: Place, method: str, path: str, body: Any, token: str) -> str:
    """The error of a request that is forbidden and changes nothing."""
    before = admin.users(place.url, token=place.token), admin.tokens(place.url, token=place.token)
    place.tokens["caller"] = token
    status, error = place.ask(method, path, body, who="caller")
    assert (status, error["code"]) == (403, "forbidden")
    assert before == (admin.users(place.url, token=place.token), admin.tokens(place.url, token=place.token))
    return str(error["message"])


def test_credentials_that_expire_make_none_that_are_valid_for_longer(place: Place) -> None:
    admin.add_user(place.url, "jane", password=PASSWORD, allow=["push:orders/1"], token=place.token)
    expires_ms = int(time.time() * 1000) + 3_600_000
    rules = list(RULES["clerk"])
    created = place.ask("POST", "/tokens", {"name": "short", "allow": rules, "expires_ms": expires_ms})[1]
    for path, body in [
        ("/tokens", {"name": "mallory"}),
        ("/tokens", {"name": "mallory", "expires_ms": expires_ms + 1}),
        ("/users/mallory", {"password": PASSWORD}),
        ("/users/jane/password", {"password": "another horse"}),
    ]:
        assert f"your own credentials expire at {expires_ms}" in forbidden(place, "POST", path, body, created["token"])
    body = {"name": "shorter", "allow": ["push:orders/1"], "expires_ms": expires_ms}
    assert place.ask("POST", "/tokens", body, who="caller")[0] == 200
    admin.remove_user(place.url, "jane", token=created["token"])


@pytest.mark.parametrize(
    "restrict", [{}, {"addresses": ["0.0.0.0/0"]}, {"addresses": ["127.0.0.1/32", "10.0.0.1"]}, {"client_ids": ["a"]}]
)
def test_restricted_credentials_make_none_that_more_peers_can_use(place: Place, restrict: Any) -> None:
    own = {"name": "local", "allow": list(RULES["clerk"]), "restrict": {"addresses": ["127.0.0.0/8", "::1"]}}
    token = place.ask("POST", "/tokens", own)[1]["token"]
    body = {"name": "mallory", "restrict": restrict}
    assert "your own credentials are restricted to some addresses" in forbidden(place, "POST", "/tokens", body, token)
    body = {"restrict": restrict}
    assert "restricted to some addresses" in forbidden(place, "POST", "/users/mallory", body, token)
    body = {"name": "near", "restrict": {"addresses": ["127.0.0.1"]}}
    assert place.ask("POST", "/tokens", body, who="caller")[0] == 200


class SlowRequest:
    """A request whose body comes later than its head."""

    def __init__(self, place: Place, path: str, body: bytes, token: str) -> None:
        host, port = urlsplit(place.url).netloc.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.body = body
        head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())

    def finish(self) -> int:
        """Send the body, and return the status of the answer."""
        with self.socket:
            self.socket.sendall(self.body)
            return int(self.socket.recv(1000).split()[1])


def test_a_request_whose_token_is_revoked_before_its_body_arrives_changes_nothing(place: Place) -> None:
    created = admin.create_token(place.url, "leaked", allow=["*"], token=place.token)
    body = json.dumps({"name": "mallory", "allow": ["*"]}).encode()
    slow = [SlowRequest(place, "/tokens", body, created.token), SlowRequest(place, "/drain", b"{}", created.token)]
    # The heads are admitted.
    time.sleep(0.3)
    admin.revoke_token(place.url, created.id, token=place.token)
    assert [request.finish() for request in slow] == [401, 401]
    assert "mallory" not in {token.name for token in admin.tokens(place.url, token=place.token)}


def test_requests_without_their_bodies_do_not_block_others_for_long(place: Place) -> None:
    slow = [SlowRequest(place, "/tokens", b"{}", place.tokens["clerk"]) for _ in range(64)]
    began = time.monotonic()
    admin.users(place.url, token=place.token)
    assert time.monotonic() - began < 20
    for request in slow:
        assert b" 408 " in request.socket.recv(1000).splitlines()[0]
        request.socket.close()


def test_a_stream_ends_with_the_token_that_began_it(place: Place) -> None:
    created = admin.create_token(place.url, "watcher", allow=["inspect"], token=place.token)
    request = urllib.request.Request(
        f"{place.url}/stream?topic=overview", headers={"Authorization": f"Bearer {created.token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as stream:
        assert stream.readline().startswith(b"id: ")
        admin.revoke_token(place.url, created.id, token=place.token)
        began = time.monotonic()
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            stream.read()
        assert time.monotonic() - began < 5


def test_the_audit_log_tells_who_was_refused_and_who_created_a_token(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    tokens = {name: new_token(data, name, *RULES[name]) for name in ("all", "clerk")}
    with serving("--admin", "http://127.0.0.1:0", "--data-dir", str(data)) as broker:
        place = Place(broker, tokens)
        assert place.ask("POST", "/tokens", {"name": "mallory", "allow": ["*"]}, who="clerk")[0] == 403
        created = admin.create_token(place.url, "new", allow=["push:orders/*"], token=tokens["clerk"])

        def written() -> list[tuple[str, str, str]]:
            lines = [json.loads(line) for line in (data / "audit.jsonl").read_text().splitlines()]
            of_tokens = [line for line in lines if (line.get("resource") or "").startswith("/tokens")]
            return [(line["resource"], line["who"], line["verdict"]) for line in of_tokens]

        expected = [
            ("/tokens", "clerk", "allowed"),
            ("/tokens", "clerk", "denied"),
            ("/tokens", "clerk", "allowed"),
            (f"/tokens/{created.id}", "clerk", "allowed"),
        ]
        wait_until(lambda: written() == expected, what="the lines of both requests")
        with urllib.request.urlopen(
            urllib.request.Request(f"{place.url}/metrics", headers={"Authorization": f"Bearer {place.token}"})
        ) as metrics:
            assert "\nmqcore_actions_denied_total 1\n" in metrics.read().decode()


@pytest.mark.parametrize("who", ["viewer", "sender", None])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/users/mallory", {"allow": []}),
        ("DELETE", "/users/fixed", None),
        ("POST", "/users/fixed/password", {"password": PASSWORD}),
        ("POST", "/tokens", {"name": "mallory"}),
        ("DELETE", "/tokens/absent", None),
    ],
)
def test_changes_need_the_right(place: Place, method: str, path: str, body: Any, who: str | None) -> None:
    assert place.ask(method, path, body, who=who)[0] == (401 if who is None else 403)
    assert "mallory" not in names(place)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/users/fixed", {"allow": []}, 409, 'user "fixed" already exists'),
        ("DELETE", "/users/fixed", None, 409, "in the configuration"),
        ("POST", "/users/fixed/password", {"password": PASSWORD}, 409, "in the configuration"),
        ("DELETE", "/users/absent", None, 404, "absent"),
        ("POST", "/users/absent/password", {"password": PASSWORD}, 404, "absent"),
        ("POST", "/users/a%3Ab", {"allow": []}, 400, "not a valid name"),
        ("POST", "/users/new", {"allow": ["fly:orders"]}, 400, "fly"),
        ("POST", "/users/new", {"allow": "push"}, 400, "expected a sequence"),
        ("POST", "/users/new", {"password": "short"}, 400, "at least 8 bytes"),
        ("POST", "/users/new", {"password": "x" * 1025}, 400, "at most 1024 bytes"),
        ("POST", "/users/new", {"password_hash": "x"}, 400, "password_hash"),
        ("POST", "/users/new", {"restrict": {"addresses": ["10.0.0.0/99"]}}, 400, "10.0.0.0/99"),
        ("POST", "/users/new", {"restrict": {"names": []}}, 400, "names"),
        ("POST", "/users/new", [], 400, "not a JSON object"),
        ("POST", "/users/fixed/password", {}, 400, "password"),
        ("POST", "/tokens", {}, 400, "name"),
        ("POST", "/tokens", {"name": "x", "expires_ms": -1}, 400, "expected u64"),
        ("POST", "/tokens", {"name": ""}, 400, "not a valid name"),
        ("DELETE", "/tokens/absent", None, 404, "absent"),
        ("GET", "/tokens", None, 405, "method"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(
    place: Place, method: str, path: str, body: Any, status: int, words: str
) -> None:
    before = admin.users(place.url, token=place.token), len(admin.tokens(place.url, token=place.token))
    code, error = place.ask(method, path, body)
    assert (code, words in error["message"]) == (status, True), error
    assert before == (admin.users(place.url, token=place.token), len(admin.tokens(place.url, token=place.token)))


def test_answered_changes_survive_kill_9(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    root = new_token(data, "root", "*")
    options = ("--admin", "http://127.0.0.1:0", "--data-dir", str(data))
    with serving(*options) as broker:
        admin.add_user(broker.admin_url, "ann", password=PASSWORD, allow=["push"], token=root)
        made = admin.create_token(broker.admin_url, "deploy", allow=["push"], token=root)
        broker.process.kill()
    with serving(*options) as broker:
        with sync.connect(broker.url, user="ann", password=PASSWORD):
            pass
        with sync.connect(broker.url, token=made.token):
            pass


def test_a_broker_without_a_file_of_users_reports_that(tmp_path: Path) -> None:
    data = tmp_path / "elsewhere"
    data.mkdir(mode=0o700)
    token = new_token(data, "root", "*")
    file = tmp_path / "mqcore.toml"
    stored = AuthorityStore.of_data_dir(str(data)).path.read_text()
    (record,) = json.loads(stored)["tokens"]
    file.write_text(f'[[token]]\nid = "{record["id"]}"\nname = "root"\nhash = "{record["hash"]}"\nallow = ["*"]\n')
    with serving("--admin", "http://127.0.0.1:0", "--config", str(file)) as broker:
        with pytest.raises(errors.Unacceptable, match="data_dir or authority"):
            admin.add_user(broker.admin_url, "ann", password=PASSWORD, token=token)
        with pytest.raises(errors.Unacceptable, match="data_dir or authority"):
            admin.create_token(broker.admin_url, "deploy", token=token)


def test_the_command_line_changes_a_running_broker(place: Place) -> None:
    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**clean_environment(), "MQCORE_ADMIN": place.url, "MQCORE_TOKEN": place.token}
        return subprocess.run(
            [sys.executable, "-m", "mqcore", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            input=stdin,
            check=False,
        )

    assert run("user", "add", "cli", "--allow", "push", stdin=f"{PASSWORD}\n").returncode == 0
    assert "\ncli" in run("user", "ls").stdout
    assert run("user", "passwd", "cli", stdin="another horse\n").returncode == 0
    with sync.connect(place.broker.url, user="cli", password="another horse"):
        pass
    assert run("user", "rm", "cli", "--yes").returncode == 0
    assert "cli" not in names(place)
    made = run("token", "create", "cli", "--allow", "push", "--expires", "1h").stdout.strip()
    with sync.connect(place.broker.url, token=made):
        pass
    (token_id,) = [known.id for known in admin.tokens(place.url, token=place.token) if known.name == "cli"]
    assert token_id in run("token", "ls").stdout
    assert run("token", "revoke", token_id).returncode == 0
    both = run("token", "ls", "--url", place.url, "--data-dir", "somewhere")
    assert (both.returncode, "give one of them" in both.stderr) == (2, True)
