"""`mqcore context`, and how other commands find their broker: options, --context, environment, defaults."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from job_processes import broker_url
from served import ServedBroker, clean_environment, serving
from test_cli import complaint, one
from test_cli import mqcore as run
from test_cli_terminal import Terminal

NOWHERE = "tmqp://127.0.0.1:1"
ADMIN_NOWHERE = "http://127.0.0.1:1"


class Home:
    """A user with a directory for configuration."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "mqcore" / "contexts.json"
        self.environment = {"XDG_CONFIG_HOME": str(directory)}

    def run(self, *arguments: str, stdin: str | None = None, **more: str) -> subprocess.CompletedProcess[bytes]:
        """Run `mqcore` as this user."""
        return run(*arguments, stdin=stdin, **self.environment, **more)

    def add(self, *arguments: str, stdin: str | None = None) -> Any:
        """Add a context, and return the output."""
        return one(self.run("context", "add", *arguments, "--json", stdin=stdin))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A user without contexts."""
    return Home(tmp_path / "config")


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    """A broker with an admin side, and a message in the queue shop/1."""
    with serving("--admin", "http://127.0.0.1:0", "--auto-create") as served:
        assert run("queue", "create", "shop/1", "--status", "pull", url=served.url).returncode == 0
        assert run("publish", "shop/1", "x", url=served.url).returncode == 0
        yield served


def queues(result: subprocess.CompletedProcess[bytes]) -> list[str]:
    """The queues that `mqcore queue ls --json` printed."""
    return [queue["queue"] for queue in one(result)["queues"]]


# --- the commands ---------------------------------------------------------------------------------------------


def test_contexts_are_added_listed_shown_and_removed(home: Home) -> None:
    assert one(home.run("context", "ls", "--json")) == {"schema": "mqcore.context.ls/1", "contexts": []}
    added = home.add("prod", "--url", "tmqps://broker.example:2622", "--admin", "https://broker.example", "--protected")
    assert added == {
        "schema": "mqcore.context.add/1",
        "current": False,
        "name": "prod",
        "urls": ["tmqps://broker.example:2622"],
        "admin": "https://broker.example",
        "token": None,
        "protected": True,
        "file": str(home.file),
    }
    home.add("dev", "--url", "tmqp://127.0.0.1:2622", "--use")
    listed = home.run("context", "ls").stdout.decode().splitlines()
    assert [line.split("\t") for line in listed] == [
        ["current", "name", "urls", "admin", "token", "protected"],
        ["yes", "dev", "tmqp://127.0.0.1:2622", "-", "-", "no"],
        ["no", "prod", "tmqps://broker.example:2622", "https://broker.example", "-", "yes"],
    ]
    shown = one(home.run("context", "show", "--json"))
    assert (shown["schema"], shown["name"], shown["chosen_by"]) == (
        "mqcore.context.show/1",
        "dev",
        "mqcore context use",
    )
    used = one(home.run("context", "use", "prod", "--json"))
    assert used == {"schema": "mqcore.context.use/1", "current": "prod", "previous": "dev"}
    removed = one(home.run("context", "rm", "prod", "--json"))
    assert removed == {"schema": "mqcore.context.rm/1", "name": "prod", "was_current": True}
    assert home.run("context", "show").returncode == 3
    assert home.run("context", "use", "dev").stderr == b"context dev is current\n"
    assert home.run("context", "use", "--none").stderr == b"no context is current\n"
    assert home.run("context", "show").returncode == 3


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_only_the_user_can_read_the_file(home: Home) -> None:
    home.add("prod", "--url", NOWHERE)
    home.file.chmod(0o644)
    home.add("dev", "--url", NOWHERE)
    assert stat.S_IMODE(home.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.file.parent.stat().st_mode) == 0o700
    assert [path.name for path in home.file.parent.iterdir()] == ["contexts.json"], "no temporary file is left"


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_linked_file_stays_a_link(home: Home, tmp_path: Path) -> None:
    home.add("prod", "--url", NOWHERE)
    elsewhere = tmp_path / "elsewhere.json"
    home.file.rename(elsewhere)
    home.file.symlink_to(elsewhere)
    home.add("dev", "--url", NOWHERE)
    assert home.file.is_symlink()
    assert set(json.loads(elsewhere.read_text())["contexts"]) == {"dev", "prod"}


def test_tokens_are_never_printed(home: Home, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    added = [
        home.add("a", "--url", NOWHERE, "--token-stdin", stdin="secret-1\n"),
        home.add("b", "--url", NOWHERE, "--token", "secret-2"),
        home.add("c", "--url", "tmqp://ann:secret-3@127.0.0.1:1", "--admin", "http://secret-4@127.0.0.1:1"),
        home.add("d", "--url", NOWHERE, "--token-file", str(tmp_path / "token")),
    ]
    assert [row["token"] for row in added] == ["stored", "stored", None, f"file {tmp_path / 'token'}"]
    printed = b"".join(
        home.run(*arguments).stdout
        for arguments in (("context", "ls", "--json"), ("context", "show", "a"), ("context", "show", "c", "--json"))
    )
    assert b"secret" not in printed + json.dumps(added).encode()
    assert "secret-1" in home.file.read_text()
    assert "from-file" not in home.file.read_text()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("prod",), "give the broker's --url, its --admin URL, or both"),
        (("prod", "--url", "amqp://h"), "--url amqp://h is not the URL of a broker; use for example tmqp://HOST:2622"),
        (("prod", "--admin", "tmqp://h"), "tmqp://h is not a URL of an admin side"),
        (("a b", "--url", NOWHERE), "invalid context name 'a b'"),
        (("prod", "--url", NOWHERE, "--token", "t", "--token-stdin"), "give only one of --token, --token-file and"),
        (("prod", "--url", "tmqp://t@h", "--token", "t"), "--url contains credentials already"),
        (("prod", "--url", NOWHERE, "--token-stdin"), "no token on stdin; write it there as one line"),
        (("prod", "--url", NOWHERE, "--token-file", "missing"), "cannot read the token file"),
        (("kept", "--url", NOWHERE), "context kept exists; add --force to replace it"),
    ],
)
def test_wrong_context_is_not_added(home: Home, arguments: tuple[str, ...], why: str) -> None:
    home.add("kept", "--url", "tmqp://kept.example")
    before = home.file.read_text()
    result = home.run("context", "add", *arguments)
    assert result.returncode == 2
    assert why in complaint(result)
    assert home.file.read_text() == before


def test_force_replaces_a_context(home: Home) -> None:
    home.add("prod", "--url", NOWHERE, "--protected")
    assert home.add("prod", "--admin", ADMIN_NOWHERE, "--force")["urls"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("context", "show", "prd"),
        ("context", "use", "prd"),
        ("context", "rm", "prd"),
        ("--context", "prd", "queue", "ls"),
        ("--context", "prd", "status"),
    ],
)
def test_unknown_name_is_answered_with_the_closest(home: Home, arguments: tuple[str, ...]) -> None:
    home.add("prod", "--url", NOWHERE)
    result = home.run(*arguments)
    assert result.returncode == 3
    assert complaint(result) == (
        "mqcore: context 'prd' does not exist; did you mean 'prod'? (list contexts with 'mqcore context ls')"
    )


def test_damaged_file_is_named_and_does_not_stop_commands_with_a_url(home: Home, broker: ServedBroker) -> None:
    home.file.parent.mkdir(parents=True)
    for content in (
        "{",
        "[]",
        '{"schema": "mqcore.contexts/9"}',
        '{"schema": "mqcore.contexts/1", "contexts": {"a": 1}}',
    ):
        home.file.write_text(content)
        result = home.run("queue", "ls")
        assert result.returncode == 2
        assert str(home.file) in complaint(result)
        assert queues(home.run("--url", broker.url, "queue", "ls", "--json")) == ["shop/1"]


def test_shell_completes_names(home: Home) -> None:
    for name in ("prod", "prod-eu", "dev"):
        home.add(name, "--url", NOWHERE)

    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_MQCORE_COMPLETE": "bash_complete"}
        environment = clean_environment() | home.environment | words
        # The variable makes the entry point of the program complete, before it reads any argument.
        script = "import sys; sys.argv[0] = 'mqcore'; from mqcore.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
        )
        return [each.partition(",")[2] for each in done.stdout.splitlines()]

    assert completed("mqcore --context pr") == ["prod", "prod-eu"]
    assert completed("mqcore context use prod-") == ["prod-eu"]
    assert completed("mqcore context rm d") == ["dev"]


# --- which broker a command uses ------------------------------------------------------------------------------


def test_context_gives_the_listener_and_the_admin_side(home: Home, broker: ServedBroker) -> None:
    home.add("prod", "--url", broker.url, "--admin", broker.admin_url)
    assert queues(home.run("--context", "prod", "queue", "ls", "--json")) == ["shop/1"]
    assert queues(home.run("queue", "ls", "--json", MQCORE_CONTEXT="prod")) == ["shop/1"]
    home.run("context", "use", "prod")
    assert queues(home.run("queue", "ls", "--json")) == ["shop/1"]
    assert one(home.run("top", "--json"))["total"] == 1
    assert one(home.run("peek", "shop/1", "--json"))["messages"][0]["body"] == "x"


def test_options_override_the_environment_and_this_the_current_context(home: Home, broker: ServedBroker) -> None:
    home.add("wrong", "--url", NOWHERE, "--admin", ADMIN_NOWHERE, "--use")
    right = {"MQCORE_URL": broker.url}
    assert queues(home.run("--url", broker.url, "queue", "ls", "--json", MQCORE_URL=NOWHERE)) == ["shop/1"]
    assert queues(home.run("queue", "ls", "--url", broker.url, "--json", MQCORE_CONTEXT="wrong")) == ["shop/1"]
    assert queues(home.run("queue", "ls", "--json", **right)) == ["shop/1"]
    assert one(home.run("--admin", broker.admin_url, "top", "--json", MQCORE_ADMIN=ADMIN_NOWHERE))["total"] == 1
    assert one(home.run("top", "--json", MQCORE_ADMIN=broker.admin_url))["total"] == 1
    assert one(home.run("top", "--json", MQCORE_URL=broker.admin_url))["total"] == 1
    result = home.run("queue", "ls")
    assert result.returncode == 5
    assert complaint(result).endswith("(context wrong)")


WRONG_ENVIRONMENT = {
    "MQCORE_URL": NOWHERE,
    "MQCORE_ADMIN": ADMIN_NOWHERE,
    "MQCORE_TOKEN": "mq_of_another_broker",
    "MQCORE_LIMIT_URL": "throttr://127.0.0.1:1",
    "MQCORE_JOBS_URL": "emqp://127.0.0.1:1",
}


def test_named_context_overrides_the_environment(home: Home, broker: ServedBroker) -> None:
    home.add("right", "--url", broker.url, "--admin", broker.admin_url)
    for variables in (WRONG_ENVIRONMENT, {"MQCORE_URL": ADMIN_NOWHERE}, {"MQCORE_CONTEXT": "missing"}):
        listed = home.run("--context", "right", "queue", "ls", "--json", **variables)
        assert queues(listed) == ["shop/1"]
        assert listed.stderr == b""
        assert one(listed)["queues"][0]["oldest_seconds"] is not None, "the admin side is that of the context"
        assert one(home.run("--context", "right", "top", "--json", **variables))["total"] == 1


def test_options_override_the_named_context(home: Home, broker: ServedBroker) -> None:
    home.add("wrong", "--url", NOWHERE, "--admin", ADMIN_NOWHERE)
    named = ("--context", "wrong")
    assert queues(home.run(*named, "--url", broker.url, "queue", "ls", "--json", **WRONG_ENVIRONMENT)) == ["shop/1"]
    assert queues(home.run(*named, "queue", "ls", "--url", broker.url, "--json", **WRONG_ENVIRONMENT)) == ["shop/1"]
    assert one(home.run(*named, "--admin", broker.admin_url, "top", "--json", **WRONG_ENVIRONMENT))["total"] == 1
    for command, option in (("limit", "--url throttr://HOST:PORT"), ("jobs", "--broker emqp://HOST:PORT")):
        result = home.run(*named, "--url", broker.url, command, "ls" if command == "limit" else "workers")
        assert result.returncode == 2
        assert f"is not a {option.split()[1].split(':')[0]}:// URL; pass {option}, or remove --url" in complaint(result)


def test_worker_rejects_a_named_context(home: Home) -> None:
    home.add("prod", "--url", "emqp://127.0.0.1:1")
    result = home.run("--context", "prod", "worker", "--allow-import", "shop.*")
    assert result.returncode == 2
    assert "mqcore worker does not use contexts; remove --context and pass --broker" in complaint(result)


def test_empty_name_chooses_no_context(home: Home) -> None:
    home.add("prod", "--url", NOWHERE, "--use")
    assert home.run("context", "show", MQCORE_CONTEXT="").returncode == 3
    assert home.run("--context", "", "context", "show").returncode == 3
    assert one(home.run("--context", "", "context", "show", "prod", "--json"))["current"] is True


def test_context_without_a_needed_url_is_not_replaced_by_the_default(home: Home) -> None:
    home.add("messages", "--url", NOWHERE)
    home.add("admin", "--admin", ADMIN_NOWHERE)
    for context, command, missing in (
        ("messages", ("status",), "has no URL of the admin side; pass --url"),
        ("admin", ("queue", "ls"), "has no URL for messages; pass --url"),
        ("messages", ("limit", "ls"), "has no throttr:// URL; pass --url throttr://HOST:PORT"),
        ("messages", ("jobs", "status"), "has no emqp:// URL; pass --broker emqp://HOST:PORT"),
    ):
        result = home.run("--context", context, *command)
        assert result.returncode == 2
        assert f"context {context} {missing}" in complaint(result)


def test_each_command_uses_the_url_of_its_protocol(home: Home) -> None:
    listeners = (
        "--listen",
        "tmqp://127.0.0.1:0",
        "--listen",
        "throttr://127.0.0.1:0",
        "--listen",
        "emqp://127.0.0.1:0",
    )
    with serving(*listeners) as served:
        urls = [f"{name}://{served.ready['listeners'][name]}" for name in ("throttr", "tmqp")]
        jobs_url = broker_url(served)
        home.add("dev", *(part for url in (*urls, jobs_url) for part in ("--url", url)), "--use")
        assert one(home.run("context", "show", "--json"))["urls"] == [*urls, jobs_url]
        assert queues(home.run("queue", "ls", "--json")) == []
        assert home.run("limit", "set", "key", "7", "--ttl", "60s").returncode == 0
        assert one(home.run("limit", "get", "key", "--json"))["left"] == 7
        assert one(home.run("jobs", "workers", "--json"))["workers"] == []
        assert home.run("limit", "ls", MQCORE_LIMIT_URL="throttr://127.0.0.1:1").returncode == 5
        for named in (("limit", "get", "key"), ("jobs", "workers")):
            assert home.run("--context", "dev", *named, **WRONG_ENVIRONMENT).returncode == 0


def test_token_of_a_context_goes_to_its_broker_only(home: Home, tmp_path: Path) -> None:
    made = run("token", "create", "reader", "--allow", "*", "--data-dir", str(tmp_path / "data"))
    token = made.stdout.decode().strip()
    (tmp_path / "token").write_text(f"{token}\n")
    with serving("--admin", "http://127.0.0.1:0", "--data-dir", str(tmp_path / "data")) as served:
        urls = ("--url", served.url, "--admin", served.admin_url)
        home.add("stored", *urls, "--token-stdin", stdin=token)
        home.add("file", *urls, "--token-file", str(tmp_path / "token"))
        home.add("wrong", *urls, "--token", "mq_x_y")
        for name in ("stored", "file"):
            assert queues(home.run("--context", name, "queue", "ls", "--json")) == []
            assert one(home.run("--context", name, "top", "--json"))["total"] == 0
        assert home.run("--context", "wrong", "queue", "ls").returncode == 4
        assert home.run("--context", "wrong", "top").returncode == 4
        chosen = {"MQCORE_CONTEXT": "wrong", "MQCORE_TOKEN": token}
        for arguments, environment in ((("--context", "wrong", "--token", token), {}), ((), chosen)):
            assert queues(home.run(*arguments, "queue", "ls", "--json", **environment)) == []
            assert one(home.run(*arguments, "top", "--json", **environment))["total"] == 0
        for arguments in (("queue", "ls", "--url", served.url), ("top", "--url", served.admin_url)):
            assert home.run("--context", "stored", *arguments).returncode == 4


def test_token_of_the_environment_is_not_sent_to_a_named_context(home: Home, tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    token = run("token", "create", "all", "--allow", "*", *data).stdout.decode().strip()
    listeners = ("--listen", "tmqp://127.0.0.1:0", "--listen", "emqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
    with serving(*listeners, *data) as served:
        urls = (served.url, broker_url(served))
        options = (*(part for url in urls for part in ("--url", url)), "--admin", served.admin_url)
        home.add("without", *options, "--use")
        home.add("with", *options, "--token", token)
        for command in (("queue", "ls"), ("top", "--once"), ("jobs", "workers", "--timeout", "2s")):
            assert home.run(*command, MQCORE_TOKEN=token).returncode == 0
            assert home.run("--context", "without", *command, MQCORE_TOKEN=token).returncode in {4, 5}, command
            assert home.run("--context", "with", *command, MQCORE_TOKEN="wrong").returncode == 0


# --- confirmation ---------------------------------------------------------------------------------------------


@pytest.fixture
def filled(broker: ServedBroker) -> str:
    """The name of a queue with a message, which a test may clear."""
    run("queue", "create", "lost/1", "--status", "pull", url=broker.url)
    assert run("publish", "lost/1", "x", url=broker.url).returncode == 0
    return "lost/1"


def messages(broker: ServedBroker, queue: str) -> int:
    """Messages in a queue."""
    return int(one(run("queue", "show", queue, "--json", url=broker.url))["messages"])


def test_protected_context_is_not_confirmed_by_yes_without_a_terminal(
    home: Home, broker: ServedBroker, filled: str
) -> None:
    home.add("prod", "--url", broker.url, "--protected")
    before = messages(broker, filled)
    result = home.run("--context", "prod", "queue", "clear", filled, "--yes")
    assert result.returncode == 2
    assert "context prod is protected, so --yes does not confirm it: run the command on a terminal" in complaint(result)
    assert messages(broker, filled) == before
    assert home.run("--url", broker.url, "queue", "clear", filled, "--yes").returncode == 0
    assert messages(broker, filled) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudoterminal")
def test_protected_context_asks_on_a_terminal_in_spite_of_yes(home: Home, broker: ServedBroker, filled: str) -> None:
    home.add("prod", "--url", broker.url, "--protected", "--use")
    with Terminal("queue", "clear", filled, "--yes", environment=home.environment) as terminal:
        terminal.wait_for(
            rf"context prod \(protected\): {broker.url}\ncontext prod is protected: clearing lost/1 loses \d message"
            r"s?; type lost/1 to confirm: \Z"
        )
        terminal.type("lost/1\n")
        assert terminal.end() == (0, "")
    assert messages(broker, filled) == 0


def test_other_context_is_confirmed_by_yes(home: Home, broker: ServedBroker, filled: str) -> None:
    home.add("dev", "--url", broker.url, "--use")
    result = home.run("queue", "clear", filled)
    assert result.returncode == 2
    assert "; add --yes to confirm" in complaint(result)
    assert home.run("queue", "clear", filled, "--yes").returncode == 0
    assert messages(broker, filled) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudoterminal")
def test_token_is_typed_without_being_shown(home: Home) -> None:
    arguments = ("context", "add", "prod", "--url", NOWHERE, "--token-stdin")
    with Terminal(*arguments, environment=home.environment, has_own_session=True) as terminal:
        terminal.wait_for(r"Token: \Z")
        terminal.type("secret\n")
        assert terminal.end() == (0, "")
        assert "secret" not in terminal.text()
    assert json.loads(home.file.read_text())["contexts"]["prod"]["token"] == "secret"
