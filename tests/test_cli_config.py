"""`mqcore config`: what it shows is what brokers use, what it accepts is what they accept, and its schema agrees."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from json_schema import violations
from mqcore import errors
from mqcore.config import BrokerConfig
from mqcore.config.schema import json_schema
from mqcore.config.toml_lines import key_lines, line_of
from served import ROOT, serving
from test_cli import complaint, one
from test_cli import mqcore as run

SCHEMA = json_schema()

TEMPLATE = ROOT / "python" / "mqcore" / "cli" / "templates" / "mqcore.toml"


def with_examples(text: str) -> str:
    """A commented file in which all settings behind `#` are set."""
    return re.sub(r"^#(?=[^ \n:])", "", text, flags=re.MULTILINE)


def documents() -> dict[str, str]:
    """Configuration files in the documentation, in contrib and of `mqcore init`."""
    found = {"init": TEMPLATE.read_text(), "init with examples": with_examples(TEMPLATE.read_text())}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for number, text in enumerate(re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)):
            found[f"{page.name} {number}"] = text
    manifest = (ROOT / "contrib" / "kubernetes" / "mqcore.yaml").read_text()
    block = re.search(r"^  mqcore\.toml: \|\n((?:    .*\n)+)", manifest, re.MULTILINE)
    assert block is not None
    found["mqcore.yaml"] = re.sub(r"^    ", "", block[1], flags=re.MULTILINE)
    return found


DOCUMENTS = documents()


def written(tmp_path: Path, text: str) -> str:
    """The path of a file with this text."""
    file = tmp_path / "mqcore.toml"
    file.write_text(text)
    return str(file)


# --- config check ---------------------------------------------------------------------------------------------

BROKEN = """\
listen = ["tmqp://127.0.0.1:0"]
statsu = 1
shards = -1
history = "maybe"

[channel_defaults.queue]
status = "sleeping"
tag = '''
[[queue]]
'''
put_back_limit = 70_000

[[queue]]
status = "pull"

[[queue]]
name = "orders/1"
acknowledge_timeout = "soon"

[tls]
key = "server.key"

[[router]]
name = "orders"
binding = [
    {priority = 1},
]

[[router]]
name = "others"
[[router.binding]]
target = "orders/1"
priority = "high"

[node]
token = ["secret"]

[queues]
name = "orders/2"
"""

FOUND = [
    (2, "statsu", "there is no setting 'statsu'"),
    (3, "shards", "shards cannot be -1; it is a whole number, not negative"),
    (4, "history", "history cannot be 'maybe'; it is true or false"),
    (7, "channel_defaults.queue.status", "status cannot be 'sleeping'; it is one of broadcast, push"),
    (11, "channel_defaults.queue.put_back_limit", "put_back_limit cannot be 70000; the largest value is 65535"),
    (13, "queue[0]", "the setting 'queue[0].name' is missing"),
    (18, "queue[1].acknowledge_timeout", "acknowledge_timeout: 'soon' is not a duration"),
    (20, "tls", "the setting 'tls.cert' is missing"),
    (25, "router[0].binding[0]", "the setting 'router[0].binding[0].target' is missing"),
    (33, "router[1].binding[0].priority", "priority of a binding cannot be 'high'; it is a whole number"),
    (36, "node.token", "token cannot be ***; it is text"),
    (38, "queues", "queue and queues mean the same; write one of them"),
]


def test_check_finds_every_problem_and_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, BROKEN)
    result = run("config", "check", file, "--json")
    assert result.returncode == 2
    document = json.loads(result.stdout)
    assert (document["schema"], document["file"], document["valid"]) == ("mqcore.config.check/1", file, False)
    problems = document["problems"]
    assert [(problem["line"], problem["setting"]) for problem in problems] == [found[:2] for found in FOUND]
    assert all(problem["message"].startswith(text) for problem, (*_, text) in zip(problems, FOUND, strict=True))
    result = run("config", "check", file)
    lines = result.stdout.decode().splitlines()
    assert lines == [f"{file}:{problem['line']}: {problem['message']}" for problem in problems]
    assert (result.returncode, result.stderr.decode()) == (2, f"{file} has 12 problems\n")


REJECTED = """\
listen = ["tmqp://127.0.0.1:0", "nosuch://127.0.0.1"]
publish_limit = "often"

[[queue]]
name = "a b/1"

[[user]]
name = "ann"
allow = ["fly:*"]

[[upstream]]
url = "tmqp://ann:secret@h:x?token=secret"
"""


def test_check_finds_what_the_broker_itself_rejects(tmp_path: Path) -> None:
    result = run("config", "check", written(tmp_path, REJECTED), "--json")
    assert result.returncode == 2
    problems = json.loads(result.stdout)["problems"]
    assert [problem["line"] for problem in problems] == [1, 2, 4, 7, 11]
    messages = [problem["message"] for problem in problems]
    assert messages[0].startswith('no listener speaks "nosuch"')
    assert "not an action" in messages[3]
    assert "secret" not in result.stdout.decode()


def test_check_of_a_file_that_is_missing_or_no_toml_is_one_line(tmp_path: Path) -> None:
    missing = run("config", "check", str(tmp_path / "missing.toml"))
    assert missing.returncode == 2
    assert "cannot read the configuration" in complaint(missing)
    damaged = run("config", "check", written(tmp_path, "a = 1\nb\n"))
    assert damaged.returncode == 2
    assert "line 2" in complaint(damaged)


def test_check_starts_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = written(tmp_path, f'data_dir = "{data.as_posix()}"\n')
    assert run("config", "check", file).stderr.decode() == f"{file} is valid\n"
    assert one(run("config", "check", file, "--json"))["valid"] is True
    assert not data.exists()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documented_files_are_valid(name: str, tmp_path: Path) -> None:
    result = run("config", "check", written(tmp_path, DOCUMENTS[name]))
    assert result.returncode == 0, result.stdout.decode()


@pytest.mark.parametrize(
    "line",
    ['listen = "nosuch://h"', "statsu = 1", "[queue]\nname = 'a/1'", "[[queue]]\nstatus = 'pull'", "shards = 1.5"],
)
def test_check_rejects_what_serve_rejects(line: str, tmp_path: Path) -> None:
    file = written(tmp_path, line + "\n")
    assert run("config", "check", file).returncode == run("serve", "--config", file).returncode == 2


# --- config show ----------------------------------------------------------------------------------------------

SHOWN = """\
listen = ["tmqp://127.0.0.1:0"]
shards = 1
data_dir = "from-file"
client_limit = 7

[channel_defaults.queue]
status = "pull"
acknowledge_timeout = "1m"

[[queue]]
name = "orders/1"
tag = "x"

[[router]]
name = "orders"
[[router.binding]]
target = "orders/1"

[node]
name = "north"
token = "secret"

[[upstream]]
url = "tmqp://ann:secret@127.0.0.1:1?token=secret"

[[token]]
id = "1"
name = "reader"
hash = "0000000000000000000000000000000000000000000000000000000000000000"
"""


def shown(*arguments: str, **environment: str) -> dict[str, Any]:
    """The settings that `mqcore config show` prints, by name."""
    document = one(run("config", "show", "--json", *arguments, **environment))
    assert document["schema"] == "mqcore.config.show/1"
    names = [row["name"] for row in document["settings"]]
    assert len(names) == len(set(names))
    return {row["name"]: row for row in document["settings"]}


def test_each_value_has_its_origin(tmp_path: Path) -> None:
    file = written(tmp_path, SHOWN)
    environment = {"MQCORE_CLIENT_LIMIT": "8", "MQCORE_CHANNEL_DEFAULTS__QUEUE__TAG": "y", "MQCORE_TLS__CERT": "c.pem"}
    flags = ("--data-dir", "from-flag", "--tls-key", "k.pem", "--auto-create", "--keep-messages")
    found = shown("--config", file, *flags, **environment)
    assert {name: (found[name]["value"], found[name]["origin"]) for name in EXPECTED} == {
        name: (value, origin.replace("FILE", file)) for name, (value, origin) in EXPECTED.items()
    }
    assert (found["shards"]["kind"], found["shards"]["source"], found["shards"]["line"]) == ("file", file, 2)


EXPECTED: dict[str, tuple[Any, str]] = {
    "listen": (["tmqp://127.0.0.1:0"], "FILE:1"),
    "shards": (1, "FILE:2"),
    "data_dir": ("from-flag", "--data-dir"),
    "client_limit": (8, "MQCORE_CLIENT_LIMIT"),
    "tls.cert": ("c.pem", "MQCORE_TLS__CERT"),
    "tls.key": ("k.pem", "--tls-key"),
    "tls.client_ca": (None, "default"),
    "auto_create_queues": (True, "--auto-create"),
    "channel_defaults.queue.status": ("pull", "FILE:7"),
    "channel_defaults.queue.acknowledge_timeout": (60.0, "FILE:8"),
    "channel_defaults.queue.tag": ("y", "MQCORE_CHANNEL_DEFAULTS__QUEUE__TAG"),
    "channel_defaults.queue.put_back_limit": (16, "default"),
    "channels": ([], "default"),
    "queue[0].name": ("orders/1", "FILE:11"),
    "queue[0].tag": ("x", "FILE:12"),
    "router[0].name": ("orders", "FILE:15"),
    "router[0].binding[0].target": ("orders/1", "FILE:17"),
    "router[0].binding[0].priority": (0, "default"),
    "node.name": ("north", "FILE:20"),
    "node.token": ("***", "FILE:21"),
    "node.keep_messages": (True, "--keep-messages"),
    "upstream[0].url": ("tmqp://***@127.0.0.1:1?token=***", "FILE:24"),
    "upstream[0].token": (None, "default"),
    "token[0].hash": ("***", "FILE:29"),
    "tls_expiry_warning": (2_592_000.0, "default"),
}


def test_secrets_of_flags_and_variables_are_hidden() -> None:
    found = run("config", "show", "--upstream", "tmqp://h?token=secret-1", MQCORE_NODE__TOKEN="secret-2")
    assert found.returncode == 0
    assert b"secret" not in found.stdout
    rows = shown("--upstream", "tmqp://h?token=secret-1", MQCORE_NODE__TOKEN="secret-2")
    assert (rows["upstream[0].url"]["value"], rows["upstream[0].url"]["origin"]) == ("tmqp://h?token=***", "--upstream")
    assert (rows["node.token"]["value"], rows["node.token"]["origin"]) == ("***", "MQCORE_NODE__TOKEN")


def test_defaults_include_the_listeners_of_serve(tmp_path: Path) -> None:
    found = shown(MQCORE_CONFIG=written(tmp_path, "shards = 2\n"))
    assert len(found["listen"]["value"]) == 5
    assert (found["listen"]["origin"], found["shards"]["value"]) == ("default", 2)


def test_options_of_the_process_are_shown_too() -> None:
    # The other variables belong to clients.
    clients = {"MQCORE_LIMIT_URL": "throttr://h", "MQCORE_JOBS_URL": "emqp://h", "MQCORE_CONTEXT": "prod"}
    found = shown("--app", "shop:app", MQCORE_DRAIN_TIMEOUT="1m", **clients)
    assert [(found[name]["value"], found[name]["origin"]) for name in ("--app", "--drain-timeout", "--log-format")] == [
        ("shop:app", "--app"),
        (60.0, "MQCORE_DRAIN_TIMEOUT"),
        (None, "default"),
    ]


def test_variables_that_set_a_table_twice_are_an_error() -> None:
    for variables in ({"MQCORE_TLS": "x", "MQCORE_TLS__CERT": "y"}, {"MQCORE_TLS__CERT": "y", "MQCORE_TLS": "x"}):
        result = run("config", "show", **variables)
        assert result.returncode == 2
        assert "unset one" in complaint(result)


def test_large_file_is_checked_quickly(tmp_path: Path) -> None:
    queues = "".join(f'[[queue]]\nname = "shop/{number}"\n' for number in range(5000))
    file = written(tmp_path, queues + '[[queue]]\nname = "a b/1"\n')
    before = time.monotonic()
    result = run("config", "check", file, "--json")
    assert [problem["line"] for problem in json.loads(result.stdout)["problems"]] == [10_001]
    assert time.monotonic() - before < 20


def test_table_has_origins_if_asked() -> None:
    assert run("config", "show").stdout.decode().splitlines()[0] == "name\tvalue"
    heading, first, *_ = run("config", "show", "--origin", "--listen", "tmqp://h").stdout.decode().splitlines()
    assert (heading, first) == ("name\tvalue\torigin", "listen\ttmqp://h\t--listen")


def test_wrong_configuration_is_not_shown(tmp_path: Path) -> None:
    result = run("config", "show", "--config", written(tmp_path, "statsu = 1\n"))
    assert result.returncode == 2
    assert "there is no setting 'statsu'" in complaint(result)


def test_upstream_flags_override_those_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, '[[upstream]]\nurl = "tmqp://file.example"\n')
    found = shown("--config", file, "--upstream", "tmqp://flag.example")
    assert (found["upstream[0].url"]["value"], found["upstream[0].url"]["origin"]) == (
        "tmqp://flag.example",
        "--upstream",
    )


def test_broker_uses_what_is_shown(tmp_path: Path) -> None:
    file = written(tmp_path, '[[queue]]\nname = "orders/1"\nstatus = "pull"\nmessage_limit = 3\n')
    found = shown("--config", file)
    with serving("--config", file) as broker:
        queue = one(run("queue", "show", "orders/1", "--json", url=broker.url))
        for option in ("status", "message_limit"):
            assert queue[option] == found[f"queue[0].{option}"]["value"]
        # Options that nothing sets.
        for option in ("acknowledge_timeout", "put_back_limit", "durability", "use_message_id", "retry_delay_max"):
            assert queue[option] == found[f"channel_defaults.queue.{option}"]["value"], option


# --- config schema --------------------------------------------------------------------------------------------


def test_schema_is_printed_as_one_document() -> None:
    result = run("config", "schema")
    assert result.returncode == 0
    assert json.loads(result.stdout) == SCHEMA
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


TABLES: dict[str, str] = {
    "": "no_such_setting = 1",
    "ListenerTLS": "[tls]\nno_such_setting = 1",
    "Listener": "[[listener]]\nno_such_setting = 1",
    "ChannelOptions": "[channel_defaults]\nno_such_setting = 1",
    "QueueOptions": "[channel_defaults.queue]\nno_such_setting = 1",
    "ChannelDeclaration": "[[channel]]\nname = 'a'\nno_such_setting = 1",
    "QueueDeclaration": "[[queue]]\nname = 'a/1'\nno_such_setting = 1",
    "RouterOptions": "[[router]]\nno_such_setting = 1",
    "Binding": "[[router]]\nname = 'a'\n[[router.binding]]\nno_such_setting = 1",
    "ClusterConfig": "[cluster]\nno_such_setting = 1",
    "NodeConfig": "[node]\nno_such_setting = 1",
    "UpstreamConfig": "[[upstream]]\nno_such_setting = 1",
    "NodeFilter": "[node.accept]\nno_such_setting = 1",
    "NodeRule": "[[node.accept.allow]]\nno_such_setting = 1",
    "AuthorityOptions": "[authority]\nno_such_setting = 1",
    "UserOptions": "[[user]]\nno_such_setting = 1",
    "TokenOptions": "[[token]]\nno_such_setting = 1",
}
"""A file with an unknown key in each kind of table."""


def test_every_kind_of_table_is_compared() -> None:
    assert TABLES.keys() - {""} == SCHEMA["$defs"].keys()


@pytest.mark.parametrize("table", TABLES)
def test_schema_has_the_keys_that_the_reader_accepts(table: str) -> None:
    with pytest.raises(errors.ConfigError, match="there is no setting") as raised:
        BrokerConfig.from_document(tomllib.loads(TABLES[table]))
    accepted = set(str(raised.value).partition("there are: ")[2].split(", "))
    # The name of a declaration is beside the options, and only programs can give a function.
    beside = {"name"} if table.endswith("Declaration") else set()
    described = SCHEMA["$defs"][table] if table else SCHEMA
    assert described["properties"].keys() == (accepted | beside) - {"decide"}
    assert described["additionalProperties"] is False


@pytest.mark.parametrize("name", DOCUMENTS)
def test_schema_accepts_documented_files(name: str) -> None:
    assert violations(tomllib.loads(DOCUMENTS[name]), SCHEMA, SCHEMA) == []


def test_schema_rejects_what_the_reader_rejects() -> None:
    for text in (
        "statsu = 1",
        "shards = -1",
        "history = 3",
        'ping_interval = "soon"',
        '[channel_defaults.queue]\nstatus = "sleeping"',
        "[channel_defaults.queue]\nput_back_limit = 70000",
        "[[queue]]\nstatus = 'pull'",
        "[queue]\nname = 'a/1'",
        "[tls]\nkey = 'x'",
        "[[router]]\nname = 'r'\n[[router.binding]]\npriority = 1",
    ):
        document = tomllib.loads(text)
        with pytest.raises(errors.ConfigError):
            BrokerConfig.from_document(document)
        assert violations(document, SCHEMA, SCHEMA), text


def test_schema_describes_every_setting() -> None:
    tables = [SCHEMA, *SCHEMA["$defs"].values()]
    parts = [(name, part) for table in tables for name, part in table["properties"].items() if name != "channel"]
    assert len(parts) > 170
    assert not [name for name, part in parts if not part.get("description")]


# --- lines ----------------------------------------------------------------------------------------------------

DIFFICULT = '''\
"quoted.key" = 1
a.b = [ # ]
  "]", \'\'\'
x = 1\'\'\',
]
c = {d = "}", e = [1]}

[ t . "u v" ]
k = """
[[t]]
\\""" """
l = 1
[[list]]
m = 1
[[list.inner]]
n = 1
[[list.inner]]
[list.inner.table]
o = 1
[[list]]
[[list.inner]]
p = 1
'''


def test_lines_of_keys_are_found_between_strings_comments_and_lists() -> None:
    tomllib.loads(DIFFICULT)
    lines = key_lines(DIFFICULT)
    assert lines == {
        ("quoted.key",): 1,
        ("a", "b"): 2,
        ("c",): 6,
        ("t", "u v"): 8,
        ("t", "u v", "k"): 9,
        ("t", "u v", "l"): 12,
        ("list",): 13,
        ("list", 0): 13,
        ("list", 0, "m"): 14,
        ("list", 0, "inner"): 15,
        ("list", 0, "inner", 0): 15,
        ("list", 0, "inner", 0, "n"): 16,
        ("list", 0, "inner", 1): 17,
        ("list", 0, "inner", 1, "table"): 18,
        ("list", 0, "inner", 1, "table", "o"): 19,
        ("list", 1): 20,
        ("list", 1, "inner"): 21,
        ("list", 1, "inner", 0): 21,
        ("list", 1, "inner", 0, "p"): 22,
    }
    assert line_of(("c", "e", 0), lines) == 6
    assert line_of(("missing",), lines) is None


@pytest.mark.parametrize("name", DOCUMENTS)
def test_line_of_each_key_contains_it(name: str) -> None:
    document = tomllib.loads(DOCUMENTS[name])
    lines, text = key_lines(DOCUMENTS[name]), DOCUMENTS[name].splitlines()
    assert {path[0] for path in lines} == document.keys()
    for path, line in lines.items():
        assert str(next(key for key in reversed(path) if isinstance(key, str))) in text[line - 1]
        found: Any = document
        for key in path:
            found = found[key]


def test_schema_imports_neither_the_network_nor_the_extension_module() -> None:
    script = (
        "import sys, mqcore.cli.program as program\n"
        "assert program.run(['config', 'schema']) == 0\n"
        "heavy = {'rich', 'socket', 'asyncio', 'ssl', 'mqcore._core', 'mqcore.broker'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
