"""Exit codes of wrong usage and of data directories that cannot be used, by the real program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqcore
import programs
from mqcore import errors
from served import ServedBroker, clean_environment, serving


def run(*arguments: str, url: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    return programs.run(
        [sys.executable, "-m", "mqcore", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        stdin=subprocess.DEVNULL,
        env=clean_environment() | ({"MQCORE_URL": url} if url else {}) | more,
    )


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with serving() as broker:
        yield broker


@pytest.mark.parametrize("arguments", [(), ("queue",), ("jobs",)])
def test_without_a_command_the_help_is_shown_as_usage_error(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("Usage: mqcore")
    assert len(result.stderr.splitlines()) > 5


@pytest.mark.parametrize(
    "arguments",
    [
        ("publish", "bad name/1", "x"),
        ("publish", "t/1", "x", "--header", "a:b\nc"),
        ("publish", "t/1", "x", "--id", "n", "--count", "2"),
        ("channel", "create", "a b"),
        ("queue", "create", "a b/1"),
        ("consume", "a b/1"),
        ("pull", "a b/1"),
        ("pull", "t/1", "--clear", "some"),
        ("router", "create", "a b"),
        ("--url", "nosuch://127.0.0.1", "queue", "ls", "t"),
        ("--url", "tmqp://127.0.0.1:x", "queue", "ls", "t"),
        ("serve", "--listen", "nosuch://127.0.0.1"),
        ("jobs", "enqueue", ".x"),
    ],
)
def test_wrong_usage_ends_with_2(served: ServedBroker, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, url=served.url)
    assert result.returncode == 2, result.stderr
    assert "please report" not in result.stderr


def test_data_directory_in_use_is_busy(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "d")):
        second = run("serve", "--listen", "tmqp://127.0.0.1:0", "--data-dir", str(tmp_path / "d"))
        assert second.returncode == 7, second.stderr
        said = second.stderr.splitlines()[-1]
        assert str(tmp_path / "d") in said
        assert "please report" not in second.stderr
        with pytest.raises(errors.DataDirBusy, match="another broker has locked it"):
            mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=str(tmp_path / "d")).start()


def without_override() -> list[str]:
    """A command that runs another one so that permissions of files apply to it, also for root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("permissions do not stop root, and there is no setpriv")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def test_unreadable_data_directory_is_an_ordinary_error(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir(mode=0)
    serve = [sys.executable, "-m", "mqcore", "serve", "--listen", "tmqp://127.0.0.1:0", "--data-dir", str(directory)]
    code = f"""import mqcore
try:
    mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir={str(directory)!r}).start()
except mqcore.MqcoreError as error:
    print(error)
"""
    results = [
        subprocess.run(
            [*without_override(), *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=clean_environment(),
        )
        for command in (serve, [sys.executable, "-c", code])
    ]
    served, embedded = results
    assert served.returncode == 2, served.stderr
    assert "please report" not in served.stderr
    assert str(directory) in served.stderr
    assert embedded.returncode == 0, embedded.stderr
    assert str(directory) in embedded.stdout, "a typed error that names the directory"


def test_data_directory_that_is_a_file_is_an_ordinary_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    result = run("serve", "--listen", "tmqp://127.0.0.1:0", "--data-dir", str(tmp_path / "file"))
    assert result.returncode == 2, result.stderr
    assert "please report" not in result.stderr
    assert str(tmp_path / "file") in result.stderr
    with pytest.raises(errors.MqcoreError, match="file"):
        mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=str(tmp_path / "file")).start()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("queue", "rm", "zz/1", "--yes"), "cannot remove queue zz/1: it does not exist"),
        (("queue", "clear", "zz/1", "--yes"), "cannot clear queue zz/1: it does not exist"),
        (("channel", "rm", "zz", "--yes"), "cannot remove channel zz: it does not exist"),
    ],
)
def test_missing_target_is_named_with_the_action(served: ServedBroker, arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments, url=served.url)
    assert result.returncode == 3
    assert result.stderr.startswith(f"mqcore: {said}")


def test_publish_sets_an_id_and_copies_and_pull_clears(served: ServedBroker) -> None:
    for queue in ("copies/1", "copies/2"):
        assert run("queue", "create", queue, "--status", "pull", url=served.url).returncode == 0
    sent = run("publish", "copies/1", "first", "--id", "id-7", "--cc", "copies/2", url=served.url)
    assert sent.returncode == 0, sent.stderr
    assert run("publish", "copies/1", "again", "--count", "3", "--cc", "copies/2", url=served.url).returncode == 0
    pulled = run("pull", "copies/1", "--json", "--clear", "all", url=served.url)
    message = json.loads(pulled.stdout)
    assert (message["id"], message["body"]) == ("id-7", "first")
    shown = json.loads(run("queue", "show", "copies/1", "--json", url=served.url).stdout)
    assert shown["messages"] == 0
    copies = run("pull", "copies/2", "--json", "--count", "9", url=served.url).stdout.splitlines()
    assert [json.loads(line)["body"] for line in copies] == ["first", "again", "again", "again"]


def test_receive_prints_and_answers_direct_messages(served: ServedBroker) -> None:
    command = [sys.executable, "-m", "mqcore", "receive", "--name", "desk", "--reply", "pong", "--count", "3", "--json"]
    environment = clean_environment() | {"MQCORE_URL": served.url}
    with programs.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as receiving:
        guard = threading.Timer(30, receiving.kill)
        guard.start()
        assert receiving.stderr is not None
        assert receiving.stdout is not None
        assert receiving.stderr.readline().startswith("receiving as ")
        asked = run("request", "@name:desk", "ping", url=served.url)
        assert (asked.returncode, asked.stdout) == (0, "pong\n"), asked.stderr
        assert run("send", "@name:desk", "news", "--confirm", url=served.url).returncode == 0
        assert run("send", "@name:desk", "plain", "--content-type", "7", url=served.url).returncode == 0
        output = [json.loads(line) for line in receiving.stdout]
        assert receiving.wait(10) == 0
        guard.cancel()
    assert [(each["schema"], each["body"], each["wants_response"]) for each in output] == [
        ("mqcore.direct/1", "ping", True),
        ("mqcore.direct/1", "news", False),
        ("mqcore.direct/1", "plain", False),
    ]
    assert output[-1]["content_type"] == 7
