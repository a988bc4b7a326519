"""Users and tokens that a running broker adds, changes and removes, and callers who may not do that."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
