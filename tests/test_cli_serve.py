"""`mqcore serve`: applications that cannot be served, names of listeners, logs, and internal errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import programs
from eventmq_peer import EventmqPeer
from served import ServedBroker, clean_environment, serving, wait_until

APP = '''
"""Applications that cannot be served, and a log line."""

import logging

import mqcore

try:
    raise KeyError("clé")
except KeyError:
    logging.getLogger("shop").exception("échec")


class Unreadable(dict):
    """A mapping that cannot be read."""

    def items(self):
        """Raise an error."""
        raise ValueError("no items")


broker = mqcore.Broker(listen="tmqp://127.0.0.1:0")
silent = mqcore.Broker()
wrong = {"choosy": 7}
unreadable = Unreadable()
'''


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The directory of the module `shop`."""
    (tmp_path / "shop.py").write_text(APP, encoding="utf-8")
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')\n")
    return tmp_path


def run(
    *arguments: str, cwd: Path, python: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    return programs.run(
        [sys.executable, *python, "-m", "mqcore", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env=clean_environment() | environment,
        cwd=cwd,
    )


def messages(broker: ServedBroker, logger: str = "mqcore.serve") -> list[str]:
    """The messages of one logger of a broker process."""
    records: list[dict[str, Any]] = [json.loads(line) for line in broker.stderr_lines]
    return [record["message"] for record in records if record["logger"] == logger]


# --- applications ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ("--app", "shop:broker", "--config", "mqcore.toml"),
            "shop:broker is a Broker, which has its own configuration; remove --config, "
            "or export a mapping of handlers instead",
        ),
        (
            ("--app", "shop:broker", "--data-dir", "data", "--listen", "tmqp://127.0.0.1:0"),
            "shop:broker is a Broker, which has its own configuration; remove --listen, --data-dir, "
            "or export a mapping of handlers instead",
        ),
        (
            ("--app", "shop:silent"),
            "shop:silent is a Broker without listeners; create it with listen='tmqp://127.0.0.1:2622'",
        ),
        (("--app", "broken:app"), "--app broken:app: import failed with RuntimeError: not today"),
    ],
)
def test_application_that_cannot_be_served_is_explained(shop: Path, arguments: tuple[str, ...], why: str) -> None:
    result = run("serve", *arguments, cwd=shop)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == f"mqcore: {why} (see: mqcore serve --help)"


def test_value_of_another_type_than_a_handler_is_named_by_its_key(shop: Path) -> None:
    result = run("serve", "--app", "shop:wrong", "--listen", "tmqp://127.0.0.1:0", cwd=shop)
    assert (result.returncode, result.stdout) == (2, "")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("mqcore: shop:wrong, key 'choosy': ")
    assert last.endswith(" (see: mqcore serve --help)")


def test_module_in_the_working_directory_is_found_also_if_python_does_not_look_there(shop: Path) -> None:
    result = run("serve", "--app", "shop:silent", cwd=shop, python=("-P",))
    assert "shop:silent is a Broker without listeners" in result.stderr


@pytest.mark.parametrize("arguments", [("serve", "--app", "shop:silent"), ("worker", "shop:silent")])
def test_log_lines_of_an_application_are_json_or_text(shop: Path, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, cwd=shop)
    assert result.returncode == 2
    line, _ = result.stderr.splitlines()
    assert '"message": "échec"' in line
    record = json.loads(line)
    assert (record["level"], record["logger"]) == ("error", "shop")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"])
    assert record["exception"].endswith("KeyError: 'clé'")
    result = run(*arguments, "--log-format", "console", cwd=shop)
    assert re.match(r"\d\d:\d\d:\d\d ERROR   shop  échec\nTraceback ", result.stderr)


def test_unexpected_exception_is_an_internal_error_with_a_traceback_on_request(shop: Path) -> None:
    arguments = ("serve", "--app", "shop:unreadable", "--listen", "tmqp://127.0.0.1:0")
    failed = run(*arguments, cwd=shop)
    assert (failed.returncode, failed.stdout) == (70, "")
    assert failed.stderr.splitlines()[1:] == [
        "mqcore: internal error, please report it: ValueError: no items (set MQCORE_DEBUG=1 for a traceback)"
    ]
    debugged = run(*arguments, cwd=shop, MQCORE_DEBUG="1")
    assert debugged.returncode == 1
    assert debugged.stderr.endswith("\nValueError: no items\n")
    assert "please report it" not in debugged.stderr


# --- the ready line and the log -------------------------------------------------------------------------------


def test_each_listener_has_a_name_on_the_ready_line() -> None:
    free = "tmqp://127.0.0.1:0"
    listen = (*("--listen", free) * 3, "--listen", "throttr://127.0.0.1:0", "--listen", "emqp://127.0.0.1:0")
    with serving(*listen) as broker:
        assert list(broker.ready["listeners"])[:4] == ["tmqp", "tmqp-2", "tmqp-3", "throttr"]
        assert set(broker.ready["listeners"]) - {"tmqp", "tmqp-2", "tmqp-3", "throttr"} == {
            "emqp",
            "emqp-frontend",
            "emqp-admin",
            "emqp-publish",
            "emqp-subscribe",
        }
        assert len(set(broker.ready["listeners"].values())) == 9
        assert broker.ready["admin"] is None


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals of POSIX")
def test_log_reports_the_drain_and_the_signal(tmp_path: Path) -> None:
    with serving("--drain-timeout", "7s", "--data-dir", str(tmp_path)) as broker:
        assert broker.terminate() == 0
        wait_until(lambda: any("stopped" in line for line in broker.stderr_lines), what="the last log line")
        assert messages(broker) == [
            "draining for up to 7 s; a second signal stops immediately",
            "stopped after signal 15",
        ]


def test_log_reports_a_stop_by_an_administrator() -> None:
    with serving("--listen", "emqp://127.0.0.1:0") as broker:
        with EventmqPeer(f"emqp://{broker.ready['listeners']['emqp-admin']}") as peer:
            peer.say("DISCONNECT", "d")
            assert peer.receive()[2:5:2] == [b"ACK", b"d"]
        assert broker.process.wait(20) == 0
        wait_until(lambda: any("stopped without" in line for line in broker.stderr_lines), what="the last log line")
        assert messages(broker) == [
            "messages are kept in memory only and are lost when this process ends; set --data-dir to save them",
            "stopped without a signal: by an administrator, or because of an error logged above",
        ]
