"""Arguments of `mqcore`: one-line errors that name the command, limits of numbers, help, exit codes and tokens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mqcore as package
from mqcore.cli.exit_code import ExitCode
from served import ROOT, ServedBroker, serving
from test_cli import complaint, mqcore, one
from test_cli_answers import said

SPARK = ("--journal", ".", "--out", ".")


@pytest.mark.parametrize(
    ("arguments", "command", "why"),
    [
        (("zzz",), "", "mqcore: unknown command 'mqcore zzz'"),
        (("queue", "zzz"), " queue", "mqcore: unknown command 'mqcore queue zzz'"),
        (
            ("client", "ls", "a*", "--channel", "b"),
            " client ls",
            "mqcore: KIND and --channel exclude each other; give one of them",
        ),
        (
            ("publish", "a/1", "--file", "x", "--count", "2"),
            " publish",
            "mqcore: --count repeats BODY; it cannot be used with --file or --stdin",
        ),
        (("publish", "a/1", "x", "--header", ":y"), " publish", "invalid header ':y'; use KEY:VALUE"),
        (
            ("publish", "a/65536", "x"),
            " publish",
            "invalid queue 'a/65536'; use CHANNEL/ID with an id from 0 to 65535, for example orders/1001",
        ),
        (("consume", "a/1", "--idle=-1"), " consume", "a duration cannot be -1.0: it is finite and not negative"),
        (
            ("queue", "status", "a/1", "sleeping"),
            " queue status",
            "unknown status 'sleeping'; use one of broadcast, push, roundrobin, pull, cache, paused, stopped",
        ),
        (
            ("queue", "set", "a/1", "--put-back-limit", "65536"),
            " queue set",
            "65536 is not in the range 0<=x<=65535",
        ),
        (("queue", "set", "a/1", "--message-limit=-1"), " queue set", "-1 is not in the range x>=0"),
        (
            ("channel", "create", "a", "--allow-queues", "7,65536"),
            " channel create",
            "invalid queue id '65536'; use ids from 0 to 65535, for example 1,7,1001",
        ),
        (
            ("token", "ls", "--url", "http://127.0.0.1:2627", "--store", "users.json"),
            " token ls",
            "mqcore: --url names a running broker, --data-dir and --store a file; give one of them",
        ),
        (("backup", "--to", "copy"), " backup", "mqcore: give either --url ADMIN or --data-dir DIR"),
        (
            ("jobs", "enqueue", "shop.send", "--keyword", "right"),
            " jobs enqueue",
            "invalid keyword argument 'right'; use NAME=VALUE",
        ),
        (
            ("jobs", "enqueue", "shop.send", "--keyword", "1st=2"),
            " jobs enqueue",
            "invalid keyword argument '1st=2'; use NAME=VALUE",
        ),
        (("worker", "shop:"), " worker", "mqcore: shop:: invalid name; use MODULE:ATTR, for example shop:app"),
        (
            ("serve", "--app", ":app"),
            " serve",
            "mqcore: --app :app: invalid name; use MODULE:ATTR, for example shop:app",
        ),
        (
            ("serve", "--app", "os:sep"),
            " serve",
            "mqcore: --app os:sep: sep is of type str; expected an mqcore.Broker, a mapping of handlers, "
            "or an mqcore.authority.Authority",
        ),
        (
            ("serve", "--app", "os:nothing"),
            " serve",
            "mqcore: --app os:nothing: nothing is missing; expected an mqcore.Broker, a mapping of handlers, "
            "or an mqcore.authority.Authority",
        ),
        (
            ("pipeline", "run", "sessions", "reconcile", "--follow", *SPARK, "--set", "days"),
            " pipeline run",
            "mqcore: --follow takes one pipeline; 2 were given",
        ),
        (
            ("pipeline", "run", "sessions", "--follow", *SPARK, "--set", "days"),
            " pipeline run",
            "invalid option 'days'; use NAME=VALUE",
        ),
        (
            ("pipeline", "run", "sessions", "reconcile", *SPARK, "--set", "days=7", "--set", "days"),
            " pipeline run",
            "invalid option 'days'; use NAME=VALUE",
        ),
    ],
)
def test_wrong_usage_is_explained_with_the_command_that_helps(
    arguments: tuple[str, ...], command: str, why: str
) -> None:
    result = mqcore(*arguments)
    assert result.returncode == 2
    text = complaint(result)
    assert text.endswith(f"{why} (see: mqcore{command} --help)")
    if why.startswith("mqcore: "):
        assert text == f"{why} (see: mqcore{command} --help)"


def test_unknown_pipeline_is_an_error_before_spark_starts() -> None:
    result = mqcore("pipeline", "run", "nothing", *SPARK)
    assert result.returncode == 2
    assert complaint(result).startswith("mqcore: unknown pipeline 'nothing'; use one of lifecycle, reconcile, ")


def test_pipelines_are_listed_with_their_descriptions() -> None:
    listed = one(mqcore("pipeline", "ls", "--json"))
    assert listed["schema"] == "mqcore.pipeline.ls/1"
    described = {row["name"]: row["description"] for row in listed["pipelines"]}
    assert described["sessions"] == "activity of each client over all protocols, and conversations between clients"
    code, text, talk = said("pipeline", "ls")
    assert (code, talk) == (0, "")
    heading, *rows = text.splitlines()
    assert heading == "name\tdescription"
    assert dict(row.split("\t") for row in rows) == described


def test_largest_and_smallest_numbers_are_accepted(served: ServedBroker) -> None:
    assert said("queue", "create", "orders/65535", "--message-limit", "0", url=served.url)[0] == 0
    assert said("publish", "orders/65535", "x", url=served.url)[0] == 0
    assert said("channel", "create", "shop", "--allow-queues", "0,65535", url=served.url)[0] == 0
    assert one(mqcore("channel", "show", "shop", "--json", url=served.url))["allowed_queues"] == [0, 65535]
    assert said("queue", "set", "orders/65535", "--put-back-limit", "65535", url=served.url)[0] == 0
    assert one(mqcore("queue", "show", "orders/65535", "--json", url=served.url))["put_back_limit"] == 65535


def test_version_option_prints_the_version_and_ends_with_0() -> None:
    assert said("--version") == (0, f"{package.__version__}\n", "")


def help_of(*command: str) -> str:
    """The help of a command in one line."""
    code, text, talk = said(*command, "--help")
    assert (code, talk) == (0, "")
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("command", "timeout"),
    [(("queue", "ls"), "15s"), (("limit", "ls"), "15s"), (("jobs", "status"), "15s"), (("trace",), "60s")],
)
def test_help_shows_the_default_timeout(command: tuple[str, ...], timeout: str) -> None:
    assert f"--timeout DURATION Time to wait for each answer. [default: {timeout}]" in help_of(*command)


def test_help_of_queue_options_shows_meanings_choices_and_ranges() -> None:
    own = help_of("queue", "create")
    statuses = "broadcast, push, roundrobin, pull, cache, paused, stopped"
    assert f"--status STATUS How the queue delivers: {statuses}. " in own
    assert "--tag TEXT Label for people; shown in queue information. " in own
    of_channel = help_of("channel", "create")
    assert f"--queue-status STATUS Default of its queues: How the queue delivers: {statuses}. " in of_channel
    assert "--queue-tag TEXT Default of its queues: Label for people; shown in queue information. " in of_channel
    # A limit of 32 bits is as good as none, so the help shows only the smaller ones.
    assert "--client-limit INTEGER RANGE Maximum number of joined clients; 0: no limit. [x>=0]" in of_channel
    assert "--put-back-limit INTEGER RANGE " in own
    assert "[0<=x<=65535]" in own


def test_documentation_lists_all_exit_codes() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("\n## Exit codes\n")[2]
    rows = re.findall(r"^\| (\d[\d, ]*) \|", text.partition("\n## ")[0], flags=re.MULTILINE)
    documented = [int(code) for row in rows for code in row.split(",")]
    assert documented == [int(code) for code in ExitCode]


def test_token_is_taken_from_the_option_or_the_environment(tmp_path: Path) -> None:
    code, text, _ = said("token", "create", "reader", "--allow", "*", "--data-dir", str(tmp_path))
    assert code == 0
    token = text.strip()
    with serving("--data-dir", str(tmp_path)) as broker:
        assert one(mqcore("--token", token, "queue", "ls", "--json", url=broker.url))["queues"] == []
        assert one(mqcore("queue", "ls", "--json", url=broker.url, MQCORE_TOKEN=token))["queues"] == []
        denied = mqcore("queue", "ls", "--json", url=broker.url)
        assert denied.returncode == 4
        complaint(denied)
