"""Output of `mqcore user` and `mqcore token`, and the store of users and tokens that they use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mqcore import admin, errors, sync
from served import serving
from test_cli import mqcore as run
from test_cli import one
from test_cli_answers import said

HEADING = "name\tallow\tpassword\tcertificate\tclient_ids\tclient_names\tclient_types\taddresses"
PASSWORD = "correct horse\n"


@pytest.mark.parametrize("option", ["--store", "--data-dir"])
def test_users_are_added_changed_and_listed_in_a_store(tmp_path: Path, option: str) -> None:
    file = tmp_path / ("users.json" if option == "--store" else "authority.json")
    place = (option, str(file if option == "--store" else tmp_path))
    rights = ("--allow", "push:orders/*", "--allow", "join", "--from", "127.0.0.0/8", "--client-name", "till-*")
    added = said("user", "add", "ann", *rights, *place, stdin=PASSWORD)
    assert added == (0, "", "added user ann; allowed: push:orders/*, join\n")
    robot = ("user", "add", "robot", "--certificate", "cn:worker-1", "--no-password", *place)
    assert said(*robot) == (0, "", "added user robot; allowed: nothing (add rights with --allow)\n")
    assert one(run("user", "add", "bob", "--allow", "join", *place, "--json", stdin=PASSWORD)) == {
        "schema": "mqcore.user.add/1",
        "name": "bob",
        "allow": ["join"],
        "store": str(file),
    }
    assert file.is_file()
    listed = (
        f"{HEADING}\n"
        "ann\tpush:orders/*,join\tyes\t-\t-\ttill-*\t-\t127.0.0.0/8\n"
        "robot\t-\tno\tcn:worker-1\t-\t-\t-\t-\n"
        "bob\tjoin\tyes\t-\t-\t-\t-\t-\n"
    )
    assert said("user", "ls", *place) == (0, listed, "")
    changed = said("user", "passwd", "ann", *place, stdin="another horse\n")
    assert changed == (0, "", "changed the password of user ann\n")
    assert one(run("user", "passwd", "ann", *place, "--json", stdin=PASSWORD)) == {
        "schema": "mqcore.user.passwd/1",
        "name": "ann",
    }
    assert one(run("user", "rm", "bob", "--yes", *place, "--json")) == {"schema": "mqcore.user.rm/1", "name": "bob"}
    assert [user["name"] for user in one(run("user", "ls", *place, "--json"))["users"]] == ["ann", "robot"]


def test_tokens_are_listed_with_the_end_of_their_lifetime(tmp_path: Path) -> None:
    place = ("--data-dir", str(tmp_path))
    began = datetime.now(UTC)
    assert said("token", "create", "month", "--allow", "*", "--expires", "30d", *place)[0] == 0
    assert said("token", "create", "forever", "--client-type", "till", *place)[0] == 0
    ended = datetime.now(UTC)
    month, forever = one(run("token", "ls", *place, "--json"))["tokens"]
    # The time is rounded down to seconds.
    lifetime, second = timedelta(days=30), timedelta(seconds=1)
    assert began + lifetime - second <= datetime.fromisoformat(month["expires"]) <= ended + lifetime
    assert (forever.get("expires"), forever["client_types"]) == (None, ["till"])
    code, text, talk = said("token", "ls", *place)
    assert (code, talk) == (0, "")
    heading, *rows = [line.split("\t") for line in text.splitlines()]
    assert heading == ["id", "name", "allow", "expires", "client_ids", "client_names", "client_types", "addresses"]
    assert rows == [
        [month["id"], "month", "*", month["expires"], "-", "-", "-", "-"],
        [forever["id"], "forever", "-", "-", "-", "-", "till", "-"],
    ]
    revoked = one(run("token", "revoke", month["id"], *place, "--json"))
    assert revoked == {"schema": "mqcore.token.revoke/1", "id": month["id"]}


def test_a_generated_token_is_valid_where_its_table_is_configured(tmp_path: Path) -> None:
    rights = ("--allow", "inspect", "--allow", "push:orders/*", "--client-id", "till-*", "--expires", "1h")
    code, table, told = said("token", "generate", 'the "first"', *rights)
    assert code == 0
    text = told.splitlines()[0]
    config = tmp_path / "mqcore.toml"
    config.write_text(table)
    with serving("--config", str(config), "--admin", "http://127.0.0.1:0") as broker:
        with pytest.raises(errors.Unauthorized):
            admin.queues(broker.admin_url)
        with sync.connect(broker.url, id="till-1", token=text) as client:
            assert client.id == "till-1"
        with pytest.raises(errors.AuthFailed), sync.connect(broker.url, id="other", token=text):
            pass
    document = one(run("token", "generate", "robot", "--json"))
    assert document["table"]["name"] == "robot"
    assert "expires_ms" not in document["table"]
    assert document["token"].startswith(f"mqt_{document['table']['id']}_")
    assert document["table"]["hash"] not in document["token"]
    code, _, told = said("token", "generate", "robot", "--allow", "fly:away")
    assert code == 2
    assert "is not an action" in told
