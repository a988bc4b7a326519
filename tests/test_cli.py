"""The program `mqcore`, run as users run it: in a process of its own, against a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import ServedBroker, clean_environment, serving, wait_until
from tmqp_peer import TmqpPeer

posix_only = pytest.mark.skipif(os.name == "nt", reason="signals as POSIX has them")


def mqcore(
    *arguments: str, url: str | None = None, stdin: str | bytes | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run `mqcore` and return how it ended."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    return subprocess.run(
        [sys.executable, "-m", "mqcore", *arguments],
        input=given or b"",
        capture_output=True,
        timeout=30,
        check=False,
        env=clean_environment() | ({"MQCORE_URL": url} if url else {}) | environment,
    )


def lines(result: subprocess.CompletedProcess[bytes]) -> list[Any]:
    """The JSON objects on stdout."""
    assert result.returncode == 0, result.stderr.decode()
    return [json.loads(line) for line in result.stdout.splitlines()]


def one(result: subprocess.CompletedProcess[bytes]) -> Any:
    """The one JSON document on stdout."""
    (document,) = lines(result)
    return document


def complaint(result: subprocess.CompletedProcess[bytes]) -> str:
    """The one line with which the program said what was wrong."""
    said = result.stderr.decode().splitlines()
    assert result.stdout == b""
    assert len(said) == 1, said
    assert said[0].startswith("mqcore: ")
    return said[0]


# --- help, versions, usage ------------------------------------------------------------------------------------


def test_help_imports_neither_rich_nor_the_network_nor_the_extension_module() -> None:
    script = (
        "import sys, mqcore.cli.program as program\n"
        "assert program.run(['--help']) == 0\n"
        "assert program.run(['queue', 'create', '--help']) == 0\n"
        "heavy = {'rich', 'socket', 'asyncio', 'ssl', 'msgspec', 'mqcore._core', 'mqcore.broker', 'mqcore.sync'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "serve" in result.stdout


def test_every_command_explains_itself() -> None:
    import click

    from mqcore.cli.program import root

    def walk(command: click.Command, path: tuple[str, ...]) -> None:
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (path, parameter.name)
        if isinstance(command, click.Group):
            for name, child in command.commands.items():
                walk(child, (*path, name))

    walk(root(), ())


def test_the_version_is_that_of_the_package() -> None:
    import mqcore as package

    assert mqcore("version").stdout.decode().strip() == package.__version__
    assert mqcore("--version").stdout.decode().strip() == package.__version__
    told = one(mqcore("version", "--json"))
    assert told["schema"] == "mqcore.version/1"
    assert told["version"] == package.__version__
    assert told["python"].count(".") == 2


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("pubish",), "mqcore publish"),
        (("queue", "statsu"), "mqcore queue status"),
        (("chanel", "ls"), "mqcore channel"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(arguments: tuple[str, ...], meant: str) -> None:
    result = mqcore(*arguments)
    assert result.returncode == 2
    assert f"did you mean '{meant}'" in complaint(result)


@pytest.mark.parametrize(
    "arguments",
    [
        ("publish", "orders/99999", "x"),
        ("publish", "orders/1"),
        ("publish", "orders/1", "x", "--stdin"),
        ("publish", "orders/1", "x", "--header", "no colon"),
        ("consume", "orders/1", "--idle", "soon"),
        ("queue", "set", "orders/1"),
        ("queue", "status", "orders/1", "sleeping"),
        ("serve", "--listen", "amqp://127.0.0.1:1"),
        ("serve", "--listen", "tmqp://10.1.2.3:1"),
        ("serve", "--data-dir", "somewhere"),
        ("serve", "--app", "no_such_module:handlers"),
        ("serve", "--app", "os:sep"),
        ("serve", "--config", "no-such-file.toml"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = mqcore(*arguments, url="tmqp://127.0.0.1:1")
    assert result.returncode == 2
    complaint(result)


def test_a_broker_that_is_not_there_is_exit_code_5_and_named() -> None:
    result = mqcore("publish", "orders/1", "x", url="tmqp://127.0.0.1:1")
    assert result.returncode == 5
    assert "127.0.0.1:1" in complaint(result)


# --- serve ----------------------------------------------------------------------------------------------------


def test_the_ready_line_names_what_is_bound_and_is_all_of_stdout(served: ServedBroker) -> None:
    assert served.ready["event"] == "ready"
    assert served.ready["pid"] == served.process.pid
    assert set(served.ready) == {"event", "listeners", "admin", "pid"}
    with TmqpPeer(*served.address) as peer:
        peer.hello()
    host, _, port = served.ready["admin"].rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert served.terminate() == 0
    assert served.process.stdout is not None
    assert served.process.stdout.read() == ""


def test_memory_only_is_said_in_one_warning_line(served: ServedBroker) -> None:
    served.terminate()
    wait_until(lambda: any("stopped" in line for line in served.stderr_lines))
    records = [json.loads(line) for line in served.stderr_lines]
    warnings = [record for record in records if record["level"] == "warning"]
    assert len(warnings) == 1
    assert "memory" in warnings[0]["message"]


def test_console_logs_are_for_people(tmp_path: Path) -> None:
    with serving("--log-format", "console") as broker:
        broker.terminate()
        wait_until(lambda: any("stopped" in line for line in broker.stderr_lines))
        assert "WARNING" in broker.stderr_lines[0]


@posix_only
def test_the_first_signal_drains_and_the_second_one_stops_now() -> None:
    with serving("--drain-timeout", "60s") as broker, TmqpPeer(*broker.address) as peer:
        peer.hello()
        # A peer that takes nothing of what is its own keeps the drain waiting.
        peer.ask(603, "stuck")
        peer.ask(610, "stuck", headers={"Queue-Id": "0"})
        peer.ask(601, "stuck")
        body = b"x" * 100_000
        for _ in range(200):
            peer.publish("stuck", 0, body)
        broker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: any("draining" in line for line in broker.stderr_lines), what="the drain")
        assert broker.process.poll() is None
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(10) == 128 + signal.SIGTERM


@posix_only
def test_ctrl_c_drains_too() -> None:
    with serving() as broker:
        broker.process.send_signal(signal.SIGINT)
        assert broker.process.wait(10) == 0


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mqcore.toml"
    file.write_text('listen = ["tmqp://127.0.0.1:1"]\nadmin = "http://127.0.0.1:0"\nauto_create_channels = true\n')
    environment = {"MQCORE_LISTEN": "tmqp://127.0.0.1:2", "MQCORE_AUTO_CREATE_QUEUES": "yes"}
    with serving("--config", str(file), environment=environment) as broker, TmqpPeer(*broker.address) as peer:
        assert broker.ready["admin"] is not None
        peer.hello()
        peer.publish("orders", 1, b"x", confirm=True)
        assert peer.receive().header("Nack-Reason") is None


def test_a_setting_that_does_not_exist_is_an_error_that_names_it() -> None:
    result = mqcore("serve", MQCORE_LISTENN="tmqp://127.0.0.1:0")
    assert result.returncode == 2
    assert "listenn" in complaint(result)


def test_an_address_in_use_is_an_error_that_names_it(served: ServedBroker) -> None:
    result = mqcore("serve", "--listen", served.url)
    assert result.returncode == 2
    assert served.ready["listeners"]["tmqp"] in complaint(result)


APP = '''
"""Refuses what says no."""

import mqcore


class Choosy(mqcore.DeliveryHandler):
    """Refuses what says no."""

    def received_from_producer(self, queue, message, producer):
        """Refuse what says no."""
        if message.body == b"no":
            return mqcore.Decision(allow=False, acknowledge=mqcore.SendAck.NEGATIVE)
        return mqcore.Decision(acknowledge=mqcore.SendAck.ALWAYS)


handlers = {"choosy": Choosy()}
broker = mqcore.Broker(
    listen="tmqp://127.0.0.1:0", delivery_handler="choosy", auto_create_channels=True, auto_create_queues=True
)
broker.delivery_handlers["choosy"] = Choosy()
silent = mqcore.Broker()
'''


def answers(broker: ServedBroker) -> list[str | None]:
    """What a producer hears about `yes` and about `no`."""
    heard = []
    with TmqpPeer(*broker.address) as peer:
        peer.hello()
        for body in (b"yes", b"no"):
            peer.publish("orders", 1, body, confirm=True)
            heard.append(peer.receive().header("Nack-Reason"))
    return heard


@pytest.mark.parametrize("attribute", ["handlers", "broker"])
def test_an_app_decides(attribute: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    arguments = ["--app", f"shop:{attribute}"]
    if attribute == "handlers":
        arguments += ["--listen", "tmqp://127.0.0.1:0", "--auto-create"]
    with serving(*arguments, cwd=tmp_path, environment={"MQCORE_DELIVERY_HANDLER": "choosy"}) as broker:
        accepted, refused = answers(broker)
    assert accepted is None
    assert refused is not None


def test_an_app_that_is_a_broker_takes_no_flags_and_must_listen(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    path = {"PYTHONPATH": str(tmp_path)}
    contradiction = mqcore("serve", "--app", "shop:broker", "--listen", "tmqp://127.0.0.1:0", **path)
    assert contradiction.returncode == 2
    assert "--listen" in complaint(contradiction)
    silent = mqcore("serve", "--app", "shop:silent", **path)
    assert silent.returncode == 2
    assert "listens nowhere" in complaint(silent)
