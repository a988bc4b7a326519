"""Output of commands that change or show something, for people and as JSON, and rejected arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mqcore import sync
from served import ServedBroker, clean_environment, serving
from test_cli import lines, mqcore, one


def said(*arguments: str, url: str | None = None, stdin: str | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    result = mqcore(*arguments, url=url, stdin=stdin)
    return result.returncode, result.stdout.decode(), result.stderr.decode()


CHANGES = [
    (("channel", "create", "shop"), "created shop", {"channel": "shop"}),
    (
        ("channel", "set", "shop", "--client-limit", "5"),
        "shop: client_limit 5",
        {"channel": "shop", "changed": {"client_limit": 5}},
    ),
    (("queue", "create", "shop/1", "--status", "pull"), "created shop/1", {"queue": "shop/1"}),
    (
        ("queue", "set", "shop/1", "--message-limit", "9", "--tag", "x"),
        "shop/1: message_limit 9, tag x",
        {"queue": "shop/1", "changed": {"message_limit": 9, "tag": "x"}, "messages_lost": 0},
    ),
    (
        ("queue", "status", "shop/1", "paused"),
        "shop/1: status paused",
        {"queue": "shop/1", "changed": {"status": "paused"}, "messages_lost": 0},
    ),
    (("queue", "clear", "shop/1", "--yes"), "cleared shop/1", {"queue": "shop/1", "messages_lost": 0}),
    (("router", "create", "r"), "created r", {"router": "r", "method": "distribute"}),
    (("queue", "rm", "shop/1", "--yes"), "removed shop/1", {"queue": "shop/1", "messages_lost": 0}),
    (("channel", "rm", "shop", "--yes"), "removed shop", {"channel": "shop", "messages_lost": 0}),
]


def test_changes_are_reported_on_stderr_or_as_json(served: ServedBroker) -> None:
    for arguments, message, _ in CHANGES:
        assert said(*arguments, url=served.url) == (0, "", f"{message}\n")
    assert said("router", "rm", "r", url=served.url) == (0, "", "removed r\n")
    for arguments, _, content in CHANGES:
        schema = {"schema": f"mqcore.{arguments[0]}.{arguments[1]}/1"}
        assert one(mqcore(*arguments, "--json", url=served.url)) == schema | content


def test_shown_records_have_one_line_for_each_field(served: ServedBroker) -> None:
    mqcore("queue", "create", "shop/7", "--status", "pull", url=served.url)
    for arguments, fields in (
        (("channel", "show", "shop"), {"name": "shop", "queues": "7", "client_limit": "0", "authenticator": "-"}),
        (("queue", "show", "shop/7"), {"queue": "shop/7", "status": "pull", "messages": "0", "use_message_id": "yes"}),
    ):
        code, text, _ = said(*arguments, url=served.url)
        shown = dict(line.split("\t") for line in text.splitlines())
        assert code == 0
        assert fields.items() <= shown.items()
        document = one(mqcore(*arguments, "--json", url=served.url))
        assert document.keys() == shown.keys() | {"schema"}


def test_clearing_counts_and_removes_the_messages_of_both_priorities(served: ServedBroker) -> None:
    mqcore("publish", "orders/1", "x", "--count", "2", url=served.url)
    mqcore("publish", "orders/1", "x", "--high-priority", url=served.url)
    code, text, warning = said("queue", "clear", "orders/1", url=served.url)
    assert (code, text) == (2, "")
    assert "clearing orders/1 loses 3 messages; add --yes to confirm" in warning
    assert said("queue", "clear", "orders/1", "--yes", url=served.url) == (0, "", "cleared orders/1\n")
    assert said("queue", "pull", "orders/1", url=served.url)[1] == ""
    shown = one(mqcore("queue", "show", "orders/1", "--json", url=served.url))
    assert (shown["messages"], shown["priority_messages"]) == (0, 0)


def test_limits_are_reported_on_stderr_or_as_json() -> None:
    with serving("--listen", "throttr://127.0.0.1:0?value=uint64") as served:
        url = f"throttr://{served.ready['listeners']['throttr']}?value=uint64"
        given = ("--url", url)
        assert said("limit", "set", "k", "5", "--ttl", "1h", *given) == (0, "", "k: 5 left\n")
        assert one(mqcore("limit", "set", "k", "6", "--json", *given)) == {
            "schema": "mqcore.limit.set/1", "key": "k", "left": 6, "ttl": None,
        }  # fmt: skip
        listed = one(mqcore("limit", "ls", "--json", url=url))["limits"]
        assert [(row["key"], row["left"], 3000 < row["expires_in"] <= 3600) for row in listed] == [("k", 6, True)]
        assert said("limit", "reset", "k", url=url) == (0, "", "reset k\n")


def test_users_and_tokens_are_made_shown_and_removed(tmp_path: Path) -> None:
    place = ("--data-dir", str(tmp_path))
    code, text, talk = said("token", "create", "deploy", *place)
    assert (code, text.startswith("mqt_")) == (0, True)
    number = text.split("_")[1]
    assert f"created token {number} (deploy); allowed: nothing (add rights with --allow); save it now" in talk
    code, text, talk = said("token", "create", "ci", "--allow", "push", "--allow", "pull:a/*", *place)
    assert "allowed: push, pull:a/*; save it now, it is not shown again" in talk
    made = one(mqcore("token", "create", "third", "--allow", "*", "--json", *place))
    assert (made["schema"], made["name"], made["allow"]) == ("mqcore.token.create/1", "third", ["*"])
    assert made["id"] == made["token"].split("_")[1]
    assert [row["name"] for row in one(mqcore("token", "ls", "--json", *place))["tokens"]] == ["deploy", "ci", "third"]
    assert said("token", "revoke", number, *place) == (0, "", f"revoked token {number}\n")
    code, _, talk = said("user", "hash")
    assert (code, "no password on stdin; write it there as one line" in talk) == (2, True)
    code, text, _ = said("user", "hash", stdin="password\r\n")
    assert (code, text.startswith("$"), len(text.splitlines())) == (0, True, 1)
    assert said("user", "add", "ann", *place, stdin="password\n")[0] == 0
    code, _, talk = said("user", "rm", "ann", *place)
    assert (code, "removing user ann revokes its access" in talk) == (2, True)
    assert said("user", "rm", "ann", "--yes", *place) == (0, "", "removed user ann\n")


def test_idle_consumer_prints_nothing_and_a_message_is_an_object(served: ServedBroker) -> None:
    mqcore("queue", "create", "orders/1", url=served.url)
    for arguments in (("--json",), ()):
        code, text, _ = said("consume", "orders/1", "--idle", "10ms", *arguments, url=served.url)
        assert (code, text) == (0, "")
    mqcore("publish", "orders/1", "x", url=served.url)
    (shown,) = lines(mqcore("consume", "orders/1", "--count", "1", "--json", url=served.url))
    assert (shown["queue"], shown["body"]) == ("orders/1", "x")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("channel", "set", "shop"), "no option to change; add one, for example --client-limit 100"),
        (("queue", "set", "shop/1"), "no option to change; add one, for example --message-limit 1000"),
        (("publish", "@topic:", "x"), "invalid topic '@topic:'; use @topic:NAME"),
        (
            ("pipeline", "run", "sessions", "--journal", ".", "--out", ".", "--set", "days"),
            "invalid option 'days'; use NAME=VALUE",
        ),
        (
            ("pipeline", "run", "sessions", "--journal", ".", "--out", ".", "--set", "=7"),
            "invalid option '=7'; use NAME=VALUE",
        ),
        (("router", "rm"), "Missing argument"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[str, ...], why: str) -> None:
    code, text, talk = said(*arguments, url="tmqp://127.0.0.1:1")
    assert (code, text) == (2, "")
    assert why in talk


@pytest.mark.parametrize(("rate", "why"), [("0/s", "invalid rate"), ("x", "invalid rate"), ("5/d", "invalid rate")])
def test_rates_of_a_replay_are_messages_per_unit(rate: str, why: str, tmp_path: Path) -> None:
    code, _, talk = said("journal", "replay", str(tmp_path), "--to", "a/1", "--rate", rate)
    assert code == 2
    assert why in talk


def test_empty_data_directory_is_named(tmp_path: Path) -> None:
    code, text, talk = said("journal", "export", str(tmp_path), "--history", "--format", "jsonl")
    assert (code, text) == (2, "")
    assert "--history cannot be exported as jsonl; use --format parquet or arrow" in talk


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudoterminal")
def test_tables_on_a_terminal_show_brackets_in_names(served: ServedBroker) -> None:
    name = "[red]of ours[/red] [spark]"
    command = [sys.executable, "-m", "mqcore", "client", "ls", "--url", served.url]
    environment = clean_environment() | {"COLUMNS": "200", "TERM": "xterm"}
    with sync.connect(served.url, name=name):
        ours, theirs = os.openpty()
        done = subprocess.run(command, stdout=theirs, env=environment, timeout=60, check=True)
        os.close(theirs)
        text = os.read(ours, 1 << 16).decode()
        os.close(ours)
    assert done.returncode == 0
    assert name in text
